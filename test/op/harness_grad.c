/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient rules against central differences in fp64, and in the 16- and 32-bit dtypes against
 * fp64.
 *
 * The operator becomes a graph whose operands are cells; its first output (and linear's saved
 * pre-activation) is projected on random numbers and summed. dsi_grad_build gives the gradients; a
 * small interpreter runs the graph on reference kernels. See harness.h.
 */
#include "op/harness.h"

#include "base/rng.h"
#include "grad/grad.h"
#include "ir/graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = DS_MAX_IN + DS_MAX_OUT + 1 };

typedef struct trial {
    ds_ctx *ctx;
    const op_case *c;
    ds_cells *cells;
    ds_graph *graph;
    uint32_t n_cells, n_operands;
    ds_tensor cell[MAX_CELLS]; /* data of each cell: operands, projections, the seed 1 */
    ds_value loss;
    uint32_t n_forward;         /* nodes up to the loss */
    ds_cell d_value[MAX_CELLS]; /* value id of each cell's gradient, DS_NONE for none */
    ds_tensor *value;           /* per value, owned unless it is a cell's */
} trial;

static ds_status add_cell(trial *b, const char *prefix, ds_meta meta, bool trainable,
                          uint32_t *index_out)
{
    char name[32];
    (void)snprintf(name, sizeof name, "%s%u", prefix, b->n_cells);
    const ds_cell_info info = {.name = name,
                               .kind = trainable ? DS_CELL_PARAM : DS_CELL_INPUT,
                               .meta = meta,
                               .of = DS_NONE};
    ds_cell cell;
    DS_TRY(ds_cells_add(b->cells, &info, &cell));
    b->cell[b->n_cells] = (ds_tensor){calloc(1, ds_meta_bytes(meta) + 64), meta};
    if (b->cell[b->n_cells].data == NULL) {
        return ds_fail(b->ctx, DS_ERR_NOMEM, "no memory for a cell");
    }
    *index_out = b->n_cells++;
    return DS_OK;
}

static bool is_float(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16 ||
           dtype == DS_DTYPE_F64;
}

static void fill_noise(const ds_tensor *t, uint32_t site)
{
    for (int64_t i = 0; i < ds_shape_count(t->meta.shape); ++i) {
        const float x = dsi_rng_normal(7, site, (uint64_t)i);
        if (t->meta.dtype == DS_DTYPE_F64) {
            ((double *)t->data)[i] = (double)x;
        } else {
            ((float *)t->data)[i] = x;
        }
    }
}

static ds_status read_cell(const trial *b, uint32_t cell, ds_value *out)
{
    return ds_graph_read(b->graph, cell, out);
}

/* total += sum_all(output · projection), in the statistics' dtype. */
static ds_status add_projection(trial *b, ds_value output, ds_value *total)
{
    const ds_meta meta = ds_graph_meta(b->graph, output);
    const bool doubles = meta.dtype == DS_DTYPE_F64;
    const ds_meta projection = {.dtype = doubles ? DS_DTYPE_F64 : DS_DTYPE_F32,
                                .shape = meta.shape};
    uint32_t cell;
    ds_value in[2];
    ds_value out[DS_MAX_OUT];
    DS_TRY(add_cell(b, "projection", projection, false, &cell));
    fill_noise(&b->cell[cell], cell);
    const dsi_cast_attrs cast = {.dtype = projection.dtype};
    DS_TRY(ds_graph_apply(b->graph, &dsi_op_cast, &cast, &output, 1, out));
    in[0] = out[0];
    DS_TRY(read_cell(b, cell, &in[1]));
    DS_TRY(ds_graph_apply(b->graph, &dsi_op_mul, NULL, in, 2, out));
    DS_TRY(ds_graph_apply(b->graph, &dsi_op_sum_all, NULL, out, 1, out));
    if (*total != DS_NONE) {
        in[0] = *total;
        in[1] = out[0];
        DS_TRY(ds_graph_apply(b->graph, &dsi_op_add, NULL, in, 2, out));
    }
    *total = out[0];
    return DS_OK;
}

static ds_status build_forward(trial *b, const op_operands *o)
{
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = 0; i < o->sig.n_in; ++i) {
        in[i] = DS_NONE;
        if (o->in_meta[i].dtype != DS_DTYPE_NONE) {
            uint32_t cell;
            const ds_dtype dtype = o->in_meta[i].dtype;
            const bool trainable = is_float(dtype) &&
                                   (o->act == DS_DTYPE_F64 ? dtype == DS_DTYPE_F64 : true) &&
                                   (b->c->frozen >> i & 1) == 0;
            DS_TRY(add_cell(b, "operand", o->in_meta[i], trainable, &cell));
            memcpy(b->cell[cell].data, o->original[i], ds_meta_bytes(o->in_meta[i]));
            DS_TRY(read_cell(b, cell, &in[i]));
        }
    }
    b->n_operands = b->n_cells;
    DS_TRY(ds_graph_apply(b->graph, b->c->op, b->c->attrs, in, o->sig.n_in, out));
    b->loss = DS_NONE;
    DS_TRY(add_projection(b, out[0], &b->loss));
    if (b->c->op == &dsi_op_linear && out[1] != DS_NONE) {
        DS_TRY(add_projection(b, out[1], &b->loss));
    }
    b->n_forward = ds_graph_n_nodes(b->graph);
    return DS_OK;
}

static ds_status build(trial *b, const op_operands *o)
{
    ds_value seed;
    uint32_t cell;
    DS_TRY(ds_cells_create(b->ctx, 64, &b->cells));
    DS_TRY(ds_graph_create(b->ctx, b->cells, &b->graph));
    DS_TRY(build_forward(b, o));
    DS_TRY(add_cell(b, "seed", ds_graph_meta(b->graph, b->loss), false, &cell));
    if (b->cell[cell].meta.dtype == DS_DTYPE_F64) {
        *(double *)b->cell[cell].data = 1.0;
    } else {
        *(float *)b->cell[cell].data = 1.0f;
    }
    DS_TRY(read_cell(b, cell, &seed));
    DS_TRY(dsi_grad_build(b->graph, &b->loss, &seed, 1, b->d_value));
    DS_TRY(dsi_graph_check(b->graph));
    b->value = calloc(ds_graph_n_values(b->graph) + 1, sizeof *b->value);
    if (b->value == NULL) {
        return ds_fail(b->ctx, DS_ERR_NOMEM, "no memory for values");
    }
    for (ds_value v = 0; v < ds_graph_n_values(b->graph); ++v) {
        const ds_cell of = ds_graph_cell_of(b->graph, v);
        const ds_meta meta = ds_graph_meta(b->graph, v);
        b->value[v] =
            of != DS_NONE ? b->cell[of] : (ds_tensor){calloc(1, ds_meta_bytes(meta) + 64), meta};
    }
    return DS_OK;
}

static void destroy(trial *b)
{
    for (ds_value v = 0; b->value != NULL && v < ds_graph_n_values(b->graph); ++v) {
        if (ds_graph_cell_of(b->graph, v) == DS_NONE) {
            free(b->value[v].data);
        }
    }
    free(b->value);
    for (uint32_t i = 0; i < b->n_cells; ++i) {
        free(b->cell[i].data);
    }
    ds_graph_destroy(&b->graph);
    ds_cells_destroy(&b->cells);
}

static ds_status run_node(trial *b, const dsi_node_info *node)
{
    ds_tensor in[DS_MAX_IN] = {{0}};
    ds_tensor out[DS_MAX_OUT] = {{0}};
    ds_meta in_meta[DS_MAX_IN] = {{0}};
    ds_meta out_meta[DS_MAX_OUT] = {{0}};
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(b->graph, node)[i];
        in[i] = v != DS_NONE ? b->value[v] : (ds_tensor){0};
        in_meta[i] = in[i].meta;
    }
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(b->graph, node)[i];
        out[i] = v != DS_NONE ? b->value[v] : (ds_tensor){0};
        out_meta[i] = out[i].meta;
    }
    const ds_kernel_sig sig = {node->op, node->attrs, node->n_in, node->n_out,
                               in_meta,  out_meta,    1};
    const ds_kernel *kernel = op_reference(&sig);
    if (kernel == NULL) {
        return ds_fail(b->ctx, DS_ERR_UNSUPPORTED, "no reference kernel for %s", node->op->name);
    }
    const size_t bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
    void *work = malloc(bytes + 1);
    const ds_kernel_call call = {b->ctx, &sig, in, out, work};
    const ds_status status =
        work != NULL ? kernel->run(&call) : ds_fail(b->ctx, DS_ERR_NOMEM, "no memory for work");
    free(work);
    return status;
}

static ds_status run_nodes(trial *b, uint32_t end)
{
    for (ds_node n = 0; n < end; ++n) {
        DS_TRY(run_node(b, &b->graph->nodes[n]));
    }
    return DS_OK;
}

/* ---- fp64: central differences along a random direction of one operand
 * ----------------------------- */
static double gradient_element(const trial *b, uint32_t cell, int64_t i)
{
    return b->d_value[cell] == DS_NONE ? 0.0 : op_element(&b->value[b->d_value[cell]], i);
}

static ds_status loss_at(trial *b, uint32_t cell, uint32_t site, double step, double *loss)
{
    double *x = b->cell[cell].data;
    const int64_t n = ds_shape_count(b->cell[cell].meta.shape);
    double *kept = malloc(ds_meta_bytes(b->cell[cell].meta) + 1);
    if (kept == NULL) {
        return ds_fail(b->ctx, DS_ERR_NOMEM, "no memory");
    }
    memcpy(kept, x, ds_meta_bytes(b->cell[cell].meta));
    for (int64_t i = 0; i < n; ++i) {
        x[i] += step * (double)dsi_rng_normal(11, site, (uint64_t)i);
    }
    const ds_status status = run_nodes(b, b->n_forward);
    *loss = op_element(&b->value[b->loss], 0);
    memcpy(x, kept, ds_meta_bytes(b->cell[cell].meta));
    free(kept);
    return status;
}

static int check_direction(trial *b, uint32_t cell, uint32_t site)
{
    const double step = 1e-5;
    double above = 0.0;
    double below = 0.0;
    double slope = 0.0;
    double scale = 0.0;
    for (int64_t i = 0; i < ds_shape_count(b->cell[cell].meta.shape); ++i) {
        const double term =
            gradient_element(b, cell, i) * (double)dsi_rng_normal(11, site, (uint64_t)i);
        slope += term;
        scale += term * term;
    }
    if (loss_at(b, cell, site, step, &above) < 0 || loss_at(b, cell, site, -step, &below) < 0) {
        printf("FAIL %s (%s): %s\n", b->c->op->name, b->c->label, ds_ctx_error(b->ctx));
        return 1;
    }
    const double numeric = (above - below) / (2.0 * step);
    if (fabs(numeric - slope) <=
        1e-7 * (sqrt(scale) + fabs(numeric)) + 1e-9 * (1.0 + fabs(above))) {
        return 0;
    }
    printf("FAIL %s (%s): operand %u: slope by differences %.12g, by the gradient rule %.12g\n",
           b->c->op->name, b->c->label, cell, numeric, slope);
    return 1;
}

static int check_differences(trial *b)
{
    int failures = 0;
    for (uint32_t cell = 0; cell < b->n_operands; ++cell) {
        if (b->cell[cell].meta.dtype == DS_DTYPE_F64 && (b->c->frozen >> cell & 1) == 0) {
            for (uint32_t direction = 0; direction < 2; ++direction) {
                failures += check_direction(b, cell, cell * 2 + direction);
            }
        }
    }
    return failures;
}

/* ---- other dtypes: the gradient's type, and its value against fp64
 * ---------------------------------- */
static int check_cell(const trial *b, const trial *exact, uint32_t cell, ds_dtype act)
{
    if ((b->d_value[cell] == DS_NONE) != (exact->d_value[cell] == DS_NONE)) {
        printf("FAIL %s (%s) %s: operand %u has a gradient in one dtype only\n", b->c->op->name,
               b->c->label, ds_dtype_name(act), cell);
        return 1;
    }
    if (b->d_value[cell] == DS_NONE) {
        return 0;
    }
    const ds_tensor *got = &b->value[b->d_value[cell]];
    const int64_t n = ds_shape_count(got->meta.shape);
    double squares = 0.0;
    double error = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        const double want = gradient_element(exact, cell, i);
        const double e = op_element(got, i) - want;
        squares += want * want;
        error += e * e;
    }
    const double tolerance = act == DS_DTYPE_F32 ? 1e-5 : act == DS_DTYPE_F16 ? 6e-3 : 5e-2;
    if (got->meta.dtype != DS_DTYPE_F32 ||
        !ds_shape_equal(got->meta.shape, b->cell[cell].meta.shape) ||
        !(error <= tolerance * tolerance * squares + 1e-12)) {
        printf("FAIL %s (%s) %s: gradient of operand %u is %s, relative error %.3g, expected f32 "
               "and at most %.3g\n",
               b->c->op->name, b->c->label, ds_dtype_name(act), cell,
               ds_dtype_name(got->meta.dtype), sqrt(error / (squares + 1e-300)), tolerance);
        return 1;
    }
    return 0;
}

static int run_graph(ds_ctx *ctx, const op_case *c, ds_dtype act, trial *b)
{
    op_operands o;
    *b = (trial){.ctx = ctx, .c = c};
    ds_status status = op_operands_create(ctx, c, act, &o);
    if (status >= 0) {
        status = build(b, &o);
        op_operands_destroy(&o);
    }
    if (status >= 0) {
        status = run_nodes(b, ds_graph_n_nodes(b->graph));
    }
    if (status < 0) {
        printf("FAIL %s (%s) %s: %s\n", c->op->name, c->label, ds_dtype_name(act),
               ds_ctx_error(ctx));
    }
    return status < 0 ? 1 : 0;
}

int op_grad_case(ds_ctx *ctx, const op_case *c)
{
    if (c->op->grad == NULL || (c->flags & OP_NO_GRAD) != 0) {
        return 0;
    }
    trial exact;
    int failures = run_graph(ctx, c, DS_DTYPE_F64, &exact);
    for (uint32_t d = 0; failures == 0 && op_case_dtype(c, d) != DS_DTYPE_NONE; ++d) {
        trial b;
        failures += run_graph(ctx, c, op_case_dtype(c, d), &b);
        for (uint32_t cell = 0; failures == 0 && cell < exact.n_operands; ++cell) {
            if (exact.cell[cell].meta.dtype == DS_DTYPE_F64) {
                failures += check_cell(&b, &exact, cell, op_case_dtype(c, d));
            }
        }
        destroy(&b);
    }
    if (failures == 0) {
        failures += check_differences(&exact);
    }
    destroy(&exact);
    return failures;
}
