/* SPDX-License-Identifier: Apache-2.0 */
/* Propagation executed: forward and backward of whole models, placed on a mesh, run node by node on
 * simulated ranks with reference kernels and the planned redistributions, against one rank.
 * labels: threads long
 *
 * This is the smallest executor that placements allow: it shows that what propagate says is enough
 * to run a graph that knows nothing of ranks, under ZeRO, tensor and sequence parallelism.
 */
#include "accel/cpu/registry.h"
#include "base/rng.h"
#include "common/check.h"
#include "common/golden.h"
#include "common/sim_ranks.h"
#include "compile/train_graph.h"
#include "grad/grad.h"
#include "op/ops.h"
#include "place/propagate.h"
#include "place/redistribute_run.h"
#include "place/tensor_rules.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 4, SEQ = 8, VOCAB = 131, MOST_RANKS = 8, CEILING = 1 << 12 };

static ds_ctx *ctx;

static int set_up(void **state)
{
    (void)state;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    return ds_ctx_create(&params, &ctx);
}

static int tear_down(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

/* ---- the graph ------------------------------------------------------------------------------- */

typedef struct traced {
    ds_model *model;
    ds_cells *cells;
    ds_graph *graph;
    uint32_t ranks;  /* that share sequences; 1: none do */
    ds_value x, lse; /* what the loss reads, and each row's log-sum-exp of its logits */
} traced;

/* Forward, backward, and a store of each gradient into a cell. */
static traced trace_model(const char *name, uint32_t ranks)
{
    traced t = {.ranks = ranks};
    char path[4096];
    golden_path(path, sizeof path, "parity/%s/config.json", name);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &t.model));
    CHECK_OK(ctx, ds_cells_create(ctx, CEILING, &t.cells));
    const ds_trace trace = {.mode = DS_TRACE_TRAIN,
                            .dtype = DS_DTYPE_F32,
                            .batch = BATCH,
                            .seq_length = SEQ,
                            .head_ranks = ranks > 1 ? ranks : 0,
                            .sequence_ranks = ranks};
    CHECK_OK(ctx, dsi_forward_graph(t.model, &trace, NULL, NULL, t.cells, &t.graph));
    const uint32_t n = ds_cells_count(t.cells);
    const ds_cell_info seed = {
        .name = "loss_seed", .kind = DS_CELL_SCALAR, .meta = {DS_DTYPE_F32, {0}}, .of = DS_NONE};
    ds_cell cell = DS_NONE;
    ds_value one = DS_NONE;
    CHECK_OK(ctx, ds_cells_add(t.cells, &seed, &cell));
    CHECK_OK(ctx, ds_graph_read(t.graph, cell, &one));
    const ds_value loss = ds_graph_find_output(t.graph, "loss");
    const dsi_node_info *last = &t.graph->nodes[t.graph->values[loss].producer];
    t.x = dsi_node_in(t.graph, last)[0];
    t.lse = dsi_node_out(t.graph, last)[1];
    ds_value *gradient = calloc((size_t)n + 1, sizeof *gradient);
    assert_non_null(gradient);
    CHECK_OK(ctx, dsi_grad_build(t.graph, &loss, &one, 1, gradient));
    for (ds_cell c = 0; c < n; ++c) {
        if (gradient[c] != DS_NONE) {
            const ds_cell_info param = *ds_cells_get(t.cells, c);
            const ds_cell_info info = {.name = param.name,
                                       .kind = DS_CELL_GRAD,
                                       .meta = {DS_DTYPE_F32, param.meta.shape},
                                       .of = c};
            ds_value in[2] = {DS_NONE, gradient[c]};
            ds_value out[DS_MAX_OUT];
            CHECK_OK(ctx, ds_cells_add(t.cells, &info, &cell));
            CHECK_OK(ctx, ds_graph_read(t.graph, cell, &in[0]));
            CHECK_OK(ctx, ds_graph_set_scope(t.graph, param.name));
            CHECK_OK(ctx, ds_graph_apply(t.graph, &dsi_op_store, NULL, in, 2, out));
        }
    }
    free(gradient);
    return t;
}

static void close_model(traced *t)
{
    ds_graph_destroy(&t->graph);
    ds_cells_destroy(&t->cells);
    ds_model_destroy(&t->model);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text);
    const size_t m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Logical contents of a cell: the same on any mesh. */
static void fill_cell(const traced *t, ds_cell c, const ds_cell_info *info, void *data)
{
    const int64_t n = ds_shape_count(info->meta.shape);
    const int64_t last = ds_shape_last(info->meta.shape);
    for (int64_t e = 0; e < n; ++e) {
        if (info->meta.dtype == DS_DTYPE_F32) {
            const float noise = dsi_rng_normal(17, c, (uint64_t)e);
            ((float *)data)[e] =
                info->kind == DS_CELL_SCALAR ? 1.0f
                : info->kind == DS_CELL_GRAD ? 0.0f
                : info->meta.shape.n_dims == 1 && strstr(info->name, "norm") != NULL
                    ? 1.0f + 0.1f * noise
                    : 0.2f * noise;
        } else if (info->meta.dtype == DS_DTYPE_I64) { /* seed, step, first sample */
            ((int64_t *)data)[e] = e < 3 ? 7 + e : 0;
        } else {
            const int32_t token = (int32_t)dsi_rng_below(3, c, (uint64_t)e, VOCAB);
            const bool is_place = ends_with(info->name, "/positions");
            const bool ignored = t->ranks > 1 && ends_with(info->name, "/targets") && e % 8 < 3;
            ((int32_t *)data)[e] = ignored                           ? -100
                                   : ends_with(info->name, "/first") ? 0
                                   : is_place                        ? (int32_t)(e % last)
                                                                     : token;
        }
    }
}

/* ---- where cells lie ------------------------------------------------------------------------- */

typedef struct layout {
    const char *model, *mesh;
    bool flat_params, flat_grads; /* ZeRO: over the axes that dsi_axes_zero names */
    bool tensor;                  /* the model's linear layers are cut on tp */
    bool same_bits;               /* as the row before: the same ranks, other placements */
    size_t bytes;                 /* of all redistributions: pinned */
} layout;

static dsi_place_on tensor[CEILING]; /* per parameter, of dsi_tensor_rules */

static void place_parameter(const layout *l, ds_cell param, ds_cell_kind kind, dsi_placement *at)
{
    if (l->tensor && tensor[param].kind == DSI_SHARD) {
        at->on[DSI_AXIS_TP] = tensor[param];
    }
    const bool flat = kind == DS_CELL_GRAD ? l->flat_grads : l->flat_params;
    *at = flat ? dsi_flat(*at, dsi_axes_zero(false)) : *at;
}

static void place_cell(void *user, ds_cell cell, const ds_cell_info *info, dsi_spread *spread_out)
{
    if (info->kind == DS_CELL_PARAM || info->kind == DS_CELL_GRAD) {
        const ds_cell param = info->kind == DS_CELL_GRAD ? info->of : cell;
        place_parameter(user, param, info->kind, &spread_out->at);
    } else if (info->kind == DS_CELL_INPUT && info->meta.shape.n_dims == 2) {
        dsi_placement at = dsi_shard(dsi_replicate(), DSI_AXIS_DPR, 0);
        at = dsi_shard(at, DSI_AXIS_DPS, 0);
        /* the mask is read by all heads, whole */
        spread_out->at = ends_with(info->name, "/first") ? at : dsi_shard(at, DSI_AXIS_SP, 1);
    }
}

/* ---- running a rank -------------------------------------------------------------------------- */

typedef struct run {
    const traced *t;
    const dsi_propagation *p;
    float *whole[CEILING]; /* contents of gradient cells, put together from parts; per cell */
    float loss[MOST_RANKS];
    float *x, *lse; /* whole */
} run;

typedef struct rank_run {
    const run *r;
    ds_ctx *ctx;
    dsi_mesh_comms comms;
    uint32_t rank;
    void **memory; /* per value */
} rank_run;

static dsi_part part_of(const rank_run *k, const dsi_placement *at, ds_shape shape)
{
    return dsi_placement_part(&k->r->p->mesh, at, shape, k->rank);
}

static void *new_memory(int64_t n, ds_dtype dtype)
{
    return calloc((size_t)n + 1, ds_dtype_bytes(dtype));
}

static void load_cells(rank_run *k)
{
    const ds_graph *g = k->r->t->graph;
    for (ds_value v = 0; v < g->n_values; ++v) {
        const dsi_value_info *info = &g->values[v];
        if (info->producer == DS_NONE && info->cell != DS_NONE) {
            const dsi_part part = part_of(k, &k->r->p->value[v].at, info->meta.shape);
            const dsi_part all = dsi_part_whole(info->meta.shape);
            void *whole = new_memory(all.count, info->meta.dtype);
            fill_cell(k->r->t, info->cell, ds_cells_get(g->cells, info->cell), whole);
            k->memory[v] = new_memory(part.slots, info->meta.dtype);
            dsi_part_copy(&all, whole, &part, k->memory[v], ds_dtype_bytes(info->meta.dtype));
            free(whole);
        }
    }
}

/* An input as the node needs it: new memory. */
static ds_status bring(rank_run *k, ds_value v, const dsi_spread *need, void **memory_out)
{
    const dsi_propagation *p = k->r->p;
    const ds_meta meta = k->r->t->graph->values[v].meta;
    const dsi_redistribution r = {
        .name = "x", .mesh = p->mesh, .meta = meta, .from = p->value[v].at, .to = need->at};
    dsi_moves moves;
    DS_TRY(dsi_redistribute(k->ctx, &r, &moves));
    const dsi_part part = part_of(k, &need->at, meta.shape);
    void *memory = new_memory(part.slots, meta.dtype);
    const ds_status status = dsi_moves_run(&moves, &k->comms, "x", k->memory[v], memory);
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        const bool divides = ((p->value[v].averaged & ~need->averaged) >> a & 1u) != 0;
        for (int64_t e = 0; divides && e < part.count; ++e) {
            ((float *)memory)[e] /= (float)p->mesh.size[a];
        }
    }
    *memory_out = memory;
    return status;
}

static ds_status run_kernel(rank_run *k, const ds_kernel_sig *sig, const ds_tensor *in,
                            const ds_tensor *out)
{
    const ds_kernel *kernel = dsi_cpu_kernel_choose(sig, DS_ISA_REF);
    if (kernel == NULL) {
        return ds_fail(k->ctx, DS_ERR_INTERNAL, "no kernel for %s", sig->op->name);
    }
    const size_t bytes = kernel->work_bytes != NULL ? kernel->work_bytes(sig) : 0;
    void *work = aligned_alloc(64, (bytes + 127) / 64 * 64);
    const ds_kernel_call call = {.ctx = k->ctx, .sig = sig, .in = in, .out = out, .work = work};
    const ds_status status = kernel->run(&call);
    free(work);
    return status;
}

typedef struct node_run {
    ds_meta in_whole[DS_MAX_IN], out_whole[DS_MAX_OUT], in_meta[DS_MAX_IN], out_meta[DS_MAX_OUT];
    dsi_placement need[DS_MAX_IN], made[DS_MAX_OUT];
    ds_tensor in[DS_MAX_IN], out[DS_MAX_OUT];
    double attrs[64];
} node_run;

static void describe(const rank_run *k, const dsi_node_info *node, node_run *n)
{
    const ds_graph *g = k->r->t->graph;
    const ds_value *in = dsi_node_in(g, node);
    const ds_value *out = dsi_node_out(g, node);
    *n = (node_run){.attrs = {0}};
    for (uint32_t i = 0; i < node->n_in; ++i) {
        if (in[i] != DS_NONE) {
            n->in_whole[i] = n->in_meta[i] = g->values[in[i]].meta;
            n->need[i] = k->r->p->use[node->in_at + i].at;
            const dsi_part part = part_of(k, &n->need[i], n->in_whole[i].shape);
            n->in_meta[i].shape = dsi_part_shape(&part);
        }
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        if (out[o] != DS_NONE) {
            n->out_whole[o] = n->out_meta[o] = g->values[out[o]].meta;
            n->made[o] = node->op->writes != NULL ? k->r->p->value[out[o]].at
                                                  : k->r->p->use[node->out_at + o].at;
            const dsi_part part = part_of(k, &n->made[o], n->out_whole[o].shape);
            n->out_meta[o].shape = dsi_part_shape(&part);
        }
    }
    ds_place_case rule;
    dsi_rule_case_make(node->op, node->attrs, n->in_whole, node->n_in, n->out_whole, node->n_out,
                       &rule);
    dsi_rule_local_attrs(&rule, &k->r->p->mesh, n->need, n->made, k->rank, n->attrs);
}

/* The shape rule must say the same of local shapes as the placements do. */
static ds_status check_shapes(const rank_run *k, const dsi_node_info *node, const node_run *n)
{
    ds_meta out[DS_MAX_OUT] = {{0}};
    DS_TRY(dsi_graph_infer(k->ctx, node->op, n->attrs, n->in_meta, node->n_in, out));
    for (uint32_t o = 0; o < node->n_out; ++o) {
        if (out[o].dtype != n->out_meta[o].dtype ||
            !ds_shape_equal(out[o].shape, n->out_meta[o].shape)) {
            return ds_fail(k->ctx, DS_ERR_SHAPE, "%s: output %u has another local shape",
                           node->op->name, o);
        }
    }
    return DS_OK;
}

/* What a node made is moved at once where the propagation says so. */
static ds_status complete(rank_run *k, const dsi_node_info *node, uint32_t o)
{
    const dsi_propagation *p = k->r->p;
    const ds_value v = dsi_node_out(k->r->t->graph, node)[o];
    const ds_meta meta = k->r->t->graph->values[v].meta;
    const dsi_redistribution r = {.name = "x",
                                  .mesh = p->mesh,
                                  .meta = meta,
                                  .from = p->use[node->out_at + o].at,
                                  .to = p->value[v].at};
    dsi_moves moves;
    if (node->op->writes != NULL || dsi_placement_equal(&r.from, &r.to)) {
        return DS_OK;
    }
    DS_TRY(dsi_redistribute(k->ctx, &r, &moves));
    const dsi_part part = part_of(k, &r.to, meta.shape);
    void *memory = new_memory(part.slots, meta.dtype);
    const ds_status status = dsi_moves_run(&moves, &k->comms, "x", k->memory[v], memory);
    free(k->memory[v]);
    k->memory[v] = memory;
    return status;
}

static ds_status run_node(rank_run *k, const dsi_node_info *node)
{
    const ds_graph *g = k->r->t->graph;
    const ds_value *in = dsi_node_in(g, node);
    const ds_value *out = dsi_node_out(g, node);
    node_run n;
    describe(k, node, &n);
    DS_TRY(check_shapes(k, node, &n));
    ds_status status = DS_OK;
    for (uint32_t i = 0; i < node->n_in && status >= 0; ++i) {
        if (in[i] != DS_NONE) {
            n.in[i].meta = n.in_meta[i];
            status = bring(k, in[i], &k->r->p->use[node->in_at + i], &n.in[i].data);
        }
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        if (out[o] != DS_NONE) {
            const dsi_part part = part_of(k, &n.made[o], n.out_whole[o].shape);
            const int from = node->op->writes != NULL ? node->op->writes[o] : -1;
            n.out[o] = (ds_tensor){new_memory(part.slots, n.out_meta[o].dtype), n.out_meta[o]};
            if (from >= 0) { /* a written cell is both input and output */
                memcpy(n.out[o].data, n.in[from].data,
                       (size_t)part.slots * ds_dtype_bytes(n.out_meta[o].dtype));
                free(n.in[from].data);
                n.in[from].data = n.out[o].data;
            }
            k->memory[out[o]] = n.out[o].data;
        }
    }
    const ds_kernel_sig sig = {.op = node->op,
                               .attrs = n.attrs,
                               .n_in = node->n_in,
                               .n_out = node->n_out,
                               .in = n.in_meta,
                               .out = n.out_meta,
                               .n_threads = 1};
    if (status >= 0) {
        status = run_kernel(k, &sig, n.in, n.out);
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
        bool kept = false;
        for (uint32_t o = 0; o < node->n_out; ++o) {
            kept = kept || n.in[i].data == n.out[o].data;
        }
        if (!kept) {
            free(n.in[i].data);
        }
    }
    for (uint32_t o = 0; o < node->n_out && status >= 0; ++o) {
        status = out[o] != DS_NONE ? complete(k, node, o) : DS_OK;
    }
    return status;
}

/* Puts the rank's part of each gradient into the whole ones. Ranks write different elements, or the
 * same element once: the group's first. */
static void collect(rank_run *k)
{
    const ds_graph *g = k->r->t->graph;
    for (ds_value v = 0; v < g->n_values; ++v) {
        const dsi_value_info *info = &g->values[v];
        if (info->cell == DS_NONE || info->version != 1) {
            continue;
        }
        const dsi_placement *at = &k->r->p->value[v].at;
        const dsi_coords coords = dsi_mesh_coords(&k->r->p->mesh, k->rank);
        bool first = true;
        for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
            const bool cut = at->on[a].kind == DSI_SHARD || dsi_axes_has(&at->flat, (dsi_axis)a);
            first = first && (cut || coords.at[a] == 0);
        }
        const dsi_part part = part_of(k, at, info->meta.shape);
        const dsi_part all = dsi_part_whole(info->meta.shape);
        if (first) {
            dsi_part_copy(&part, k->memory[v], &all, k->r->whole[info->cell], sizeof(float));
        }
    }
}

/* Puts the rank's rows of a value into the whole one. */
static void collect_rows(const rank_run *k, ds_value v, float *whole)
{
    const ds_shape shape = k->r->t->graph->values[v].meta.shape;
    const dsi_part part = part_of(k, &k->r->p->value[v].at, shape);
    const dsi_part all = dsi_part_whole(shape);
    dsi_part_copy(&part, k->memory[v], &all, whole, sizeof(float));
}

static uint32_t run_rank(ds_ctx *own, dsi_comm *world, void *arg)
{
    run *r = arg;
    const ds_graph *g = r->t->graph;
    rank_run k = {.r = r, .ctx = own, .rank = world->rank};
    k.memory = calloc((size_t)g->n_values + 1, sizeof *k.memory);
    ds_status status = dsi_mesh_comms_make(own, world, &r->p->mesh, &k.comms);
    load_cells(&k);
    for (uint32_t n = 0; n < g->n_nodes && status >= 0; ++n) {
        status = run_node(&k, &g->nodes[n]);
    }
    if (status < 0) {
        (void)fprintf(stderr, "rank %u: %s\n", k.rank, ds_ctx_error(own));
        dsi_comm_abort(world, "failed");
    } else {
        collect(&k);
        if (r->p->mesh.size[DSI_AXIS_TP] == 1) {
            collect_rows(&k, r->t->x, r->x);
            collect_rows(&k, r->t->lse, r->lse);
        }
        r->loss[k.rank] = *(float *)k.memory[ds_graph_find_output(g, "loss")];
    }
    for (ds_value v = 0; v < g->n_values; ++v) { /* no two values share memory here */
        free(k.memory[v]);
    }
    free(k.memory);
    dsi_mesh_comms_destroy(&k.comms);
    return status < 0 ? 1 : 0;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static run *run_layout(const traced *t, const layout *l, size_t *bytes_out)
{
    run *r = calloc(1, sizeof *r);
    assert_non_null(r);
    dsi_propagate_params params = {.policy = dsi_place_policy_default(), .cell = place_cell};
    dsi_propagation *p = NULL;
    layout own = *l;
    params.user = &own;
    if (t->ranks == 1) {
        params.policy.mean |= 1u << DSI_AXIS_SP; /* each rank has as many rows */
    }
    CHECK_OK(ctx, dsi_mesh_parse(ctx, l->mesh, &params.mesh));
    CHECK_OK(ctx, dsi_tensor_rules(t->graph, &params.mesh, NULL, tensor));
    CHECK_OK(ctx, dsi_propagate(t->graph, &params, &p));
    r->t = t;
    r->p = p;
    *bytes_out = p->bytes;
    r->x = calloc((size_t)ds_shape_count(t->graph->values[t->x].meta.shape), sizeof(float));
    r->lse = calloc((size_t)BATCH * SEQ, sizeof(float));
    for (ds_cell c = 0; c < ds_cells_count(t->cells); ++c) {
        const ds_cell_info *info = ds_cells_get(t->cells, c);
        if (info->kind == DS_CELL_GRAD) {
            r->whole[c] = calloc((size_t)ds_shape_count(info->meta.shape), sizeof(float));
        }
    }
    assert_int_equal(sim_ranks_run(params.mesh.n_ranks, NULL, run_rank, r), 0);
    dsi_propagation_destroy(&p);
    r->p = NULL;
    return r;
}

static void free_run(run *r)
{
    for (uint32_t c = 0; c < CEILING; ++c) {
        free(r->whole[c]);
    }
    free(r->x);
    free(r->lse);
    free(r);
}

static void compare(const layout *l, const traced *t, const run *one, const run *many)
{
    dsi_mesh mesh;
    CHECK_OK(ctx, dsi_mesh_parse(ctx, l->mesh, &mesh));
    double loss = 0.0; /* the mean of the ranks', over axes where it is Partial */
    for (uint32_t k = 0; k < mesh.n_ranks; ++k) {
        loss += (double)many->loss[k] / mesh.n_ranks;
    }
    loss *= t->ranks; /* of sequences in parts it is a sum */
    assert_true(fabs(loss - (double)one->loss[0]) < 1e-5);
    for (ds_cell c = 0; c < ds_cells_count(t->cells); ++c) {
        if (one->whole[c] != NULL) {
            const ds_cell_info *info = ds_cells_get(t->cells, c);
            const size_t n = (size_t)ds_shape_count(info->meta.shape);
            const double d = check_relative_difference(many->whole[c], one->whole[c], n);
            if (!(d < 2e-5)) {
                fail_msg("%s on %s: gradient of %s differs by %g", l->model, l->mesh, info->name,
                         d);
            }
        }
    }
}

/* Law 4: what is sharded, and how, changes no bit of a gradient. */
static void compare_bits(const layout *l, const traced *t, const run *a, const run *b)
{
    for (ds_cell c = 0; c < ds_cells_count(t->cells); ++c) {
        const ds_cell_info *info = ds_cells_get(t->cells, c);
        const size_t n = (size_t)ds_shape_count(info->meta.shape);
        if (a->whole[c] != NULL && memcmp(a->whole[c], b->whole[c], n * sizeof(float)) != 0) {
            fail_msg("%s on %s: the gradient of %s has other bits than in the row before", l->model,
                     l->mesh, info->name);
        }
    }
}

static void run_layouts(const layout *rows, uint32_t n)
{
    traced t = trace_model(rows[0].model, 1);
    const layout alone = {rows[0].model, "mesh()", false, false, false, false, 0};
    size_t bytes = 0;
    uint32_t n_bad = 0;
    run *one = run_layout(&t, &alone, &bytes);
    run *last = NULL;
    assert_int_equal(bytes, 0);
    assert_true(isfinite(one->loss[0]) && one->loss[0] > 0.1f);
    for (uint32_t i = 0; i < n; ++i) {
        run *many = run_layout(&t, &rows[i], &bytes);
        compare(&rows[i], &t, one, many);
        if (rows[i].same_bits) {
            compare_bits(&rows[i], &t, last, many);
        }
        if (bytes != rows[i].bytes) {
            print_error("%s on %s: %zu bytes a rank, pinned %zu\n", rows[i].model, rows[i].mesh,
                        bytes, rows[i].bytes);
            ++n_bad;
        }
        if (last != NULL) {
            free_run(last);
        }
        last = many;
    }
    free_run(last);
    free_run(one);
    close_model(&t);
    assert_int_equal(n_bad, 0);
}

static void test_llama(void **state)
{
    (void)state;
    static const layout rows[] = {
        {"llama3", "mesh(dps=2)", false, false, false, false, 145280},
        {"llama3", "mesh(dps=2)", false, true, false, true, 72640},
        {"llama3", "mesh(dps=2)", true, true, false, true, 209536},
        {"llama3", "mesh(dps=4)", false, false, false, false, 217920},
        {"llama3", "mesh(dps=4)", true, true, false, true, 314304},
        {"llama3", "mesh(dpr=2,dps=2)", true, true, false, true, 282176},
        {"llama3", "mesh(tp=2)", false, false, true, false, 65536},
        {"llama3", "mesh(sp=2)", false, false, false, false, 162272},
        {"llama3", "mesh(dps=2,tp=2)", true, true, true, false, 159360},
        {"llama3", "mesh(dps=2,sp=2)", true, true, false, false, 322800},
    };
    run_layouts(rows, sizeof rows / sizeof rows[0]);
}

/* Sequences in parts: what each row's logits are made of, and their log-sum-exp, has the bits of
 * one rank, whether heads are exchanged or keys and values gathered. Gradients are sums over the
 * same rows in another order: of n terms of at most eps each, (log2(ranks) + 1)·eps of the largest
 * within a few times over, far below 2e-5. */
static void test_sequences(void **state)
{
    (void)state;
    static const struct {
        layout l;
        uint32_t ranks;
    } rows[] = {
        {{"llama3", "mesh(sp=2)", false, false, false, false, 0}, 2},
        {{"llama3", "mesh(sp=4)", true, true, false, false, 0}, 4},
        {{"llama2", "mesh(sp=8)", true, true, false, false, 0}, 8},
        {{"gpt2", "mesh(sp=2)", false, false, false, false, 0}, 2},
        {{"gpt2", "mesh(sp=4)", true, true, false, false, 0}, 4},
        {{"gpt2", "mesh(sp=8)", false, true, false, false, 0}, 8},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const layout alone = {rows[i].l.model, "mesh()", false, false, false, false, 0};
        traced t = trace_model(rows[i].l.model, rows[i].ranks);
        size_t bytes = 0;
        run *one = run_layout(&t, &alone, &bytes);
        run *many = run_layout(&t, &rows[i].l, &bytes);
        const size_t n = (size_t)ds_shape_count(t.graph->values[t.x].meta.shape);
        compare(&rows[i].l, &t, one, many);
        assert_true(bytes > 0);
        if (memcmp(one->x, many->x, n * sizeof(float)) != 0 ||
            memcmp(one->lse, many->lse, (size_t)BATCH * SEQ * sizeof(float)) != 0) {
            fail_msg("%s on %s: other logits than one rank's", rows[i].l.model, rows[i].l.mesh);
        }
        free_run(one);
        free_run(many);
        close_model(&t);
    }
}

static void test_three_axes(void **state)
{
    (void)state;
    static const layout rows[] = {
        {"llama2", "mesh(dps=2,sp=2,tp=2)", false, false, true, false, 170608},
        {"llama2", "mesh(dps=2,sp=2,tp=2)", true, true, true, true, 231664},
        {"llama2", "mesh(tp=4)", false, true, true, false, 98304},
    };
    run_layouts(rows, sizeof rows / sizeof rows[0]);
}

static void test_gpt2(void **state)
{
    (void)state;
    static const layout rows[] = {
        {"gpt2", "mesh(dps=2)", false, true, false, false, 68016},
        {"gpt2", "mesh(dps=4)", true, true, false, false, 306504},
        {"gpt2", "mesh(tp=3)", false, false, true, false, 65536},
        {"gpt2", "mesh(tp=2)", false, false, true, false, 24576},
        {"gpt2", "mesh(dps=2,tp=4)", true, true, true, false, 138672},
    };
    run_layouts(rows, sizeof rows / sizeof rows[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_three_axes),
        cmocka_unit_test(test_gpt2),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
