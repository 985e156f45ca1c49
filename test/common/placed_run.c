/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks in lockstep. See placed_run.h. */
#include "common/placed_run.h"
#include "accel/cpu/registry.h"
#include "base/half.h"
#include "common/random_graph.h"
#include "op/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TERMS = 64 };

static void *room(ds_meta meta)
{
    return calloc((size_t)ds_shape_count(meta.shape) + 64, ds_dtype_bytes(meta.dtype));
}

void tensors_free(tensors *t)
{
    for (size_t i = 0; t->at != NULL && i < (size_t)t->n_values * t->n_each; ++i) {
        free(t->at[i]);
    }
    free((void *)t->at);
    memset(t, 0, sizeof *t);
}

static tensors tensors_make(uint32_t n_values, uint32_t n_each)
{
    return (tensors){n_values, n_each, calloc((size_t)n_values * n_each + 1, sizeof(void *))};
}

/* ---- sums ------------------------------------------------------------------------------------ */

static double get(const void *data, ds_dtype dtype, int64_t e)
{
    switch (dtype) {
    case DS_DTYPE_F32:
        return (double)((const float *)data)[e];
    case DS_DTYPE_BF16:
        return (double)dsi_bf16_to_f32(((const uint16_t *)data)[e]);
    case DS_DTYPE_F64:
        return ((const double *)data)[e];
    default:
        return (double)((const int32_t *)data)[e];
    }
}

/* Additions in fp32; integers and doubles as they are. */
static double tree(const void *const *terms, uint32_t n, ds_dtype dtype, int64_t e)
{
    if (n == 1) {
        return get(terms[0], dtype, e);
    }
    uint32_t left = 1;
    while (2 * left < n) {
        left *= 2;
    }
    const double sum = tree(terms, left, dtype, e) + tree(terms + left, n - left, dtype, e);
    return dtype == DS_DTYPE_F64 || dtype == DS_DTYPE_I32 ? sum : (double)(float)sum;
}

static void add_terms(const void *const *terms, uint32_t n, ds_meta meta, double factor, void *out)
{
    for (int64_t e = 0; e < ds_shape_count(meta.shape); ++e) {
        const double sum = tree(terms, n, meta.dtype, e);
        const float scaled = (float)sum * (float)factor;
        switch (meta.dtype) {
        case DS_DTYPE_F32:
            ((float *)out)[e] = scaled;
            break;
        case DS_DTYPE_BF16:
            ((uint16_t *)out)[e] = dsi_f32_to_bf16(scaled);
            break;
        case DS_DTYPE_F64:
            ((double *)out)[e] = sum * factor;
            break;
        default:
            ((int32_t *)out)[e] = (int32_t)sum;
            break;
        }
    }
}

static ds_status run_kernel(ds_ctx *ctx, const ds_op *op, const void *attrs, const ds_meta *in_meta,
                            uint32_t n_in, const ds_meta *out_meta, uint32_t n_out,
                            void *const *in_at, void *const *out_at);

/* max_of, or the exact pairs one behind the other. */
static void combine_terms(ds_ctx *ctx, const void *const *terms, uint32_t n, ds_meta meta,
                          bool is_max, void *out)
{
    const size_t bytes = ds_meta_bytes(meta);
    const int64_t count = ds_shape_count(meta.shape);
    const ds_meta all = {meta.dtype, is_max ? ds_shape_1d(n) : ds_shape_2d(n, count)};
    char *stack = room(all);
    void *in = stack;
    for (uint32_t i = 0; i < n; ++i) {
        memcpy(stack + i * bytes, terms[i], bytes);
    }
    (void)run_kernel(ctx, is_max ? &dsi_op_abs_max : &dsi_op_sum_parts, NULL, &all, 1, &meta, 1,
                     &in, &out);
    free(stack);
}

/* ---- one node -------------------------------------------------------------------------------- */

static ds_status run_kernel(ds_ctx *ctx, const ds_op *op, const void *attrs, const ds_meta *in_meta,
                            uint32_t n_in, const ds_meta *out_meta, uint32_t n_out,
                            void *const *in_at, void *const *out_at)
{
    ds_tensor in[DS_MAX_IN] = {{0}};
    ds_tensor out[DS_MAX_OUT] = {{0}};
    const ds_kernel_sig sig = {.op = op,
                               .attrs = attrs,
                               .n_in = n_in,
                               .n_out = n_out,
                               .in = in_meta,
                               .out = out_meta,
                               .n_threads = 1};
    for (uint32_t i = 0; i < n_in; ++i) {
        in[i] = (ds_tensor){in_at[i], in_meta[i]};
    }
    for (uint32_t o = 0; o < n_out; ++o) {
        const int from = op->writes != NULL ? op->writes[o] : -1;
        out[o] = (ds_tensor){out_at[o], out_meta[o]};
        if (from >= 0 && (uint32_t)from < n_in && in[from].data != NULL && out[o].data != NULL) {
            memcpy(out[o].data, in[from].data, ds_meta_bytes(in_meta[from]));
            in[from].data = out[o].data; /* a written cell is both */
        }
    }
    if ((op->flags & DS_OP_VIEW) != 0) {
        memcpy(out[0].data, in[0].data, ds_meta_bytes(in_meta[0]));
        return DS_OK;
    }
    const ds_kernel *kernel = dsi_cpu_kernel_choose(&sig, DS_ISA_REF);
    if (kernel == NULL) {
        return ds_fail(ctx, DS_ERR_INTERNAL, "no kernel for %s", op->name);
    }
    const size_t bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
    void *work = aligned_alloc(64, (bytes + 127) / 64 * 64);
    const ds_kernel_call call = {.ctx = ctx, .sig = &sig, .in = in, .out = out, .work = work};
    const ds_status status = kernel->run(&call);
    free(work);
    return status;
}

static bool writes_input(const ds_graph *g, const dsi_node_info *node, uint32_t i)
{
    bool written = false;
    for (uint32_t o = 0; o < node->n_out && node->op->writes != NULL; ++o) {
        written = written || (node->op->writes[o] == (int)i && dsi_node_out(g, node)[o] != DS_NONE);
    }
    return written;
}

/* A term of a cell that is a sum: small multiples of 1/16, so that the sum is exact. */
static void make_term(ds_meta meta, void *data, uint32_t index, uint32_t n)
{
    for (int64_t e = 0; e < ds_shape_count(meta.shape); ++e) {
        const double value = nearbyint(get(data, meta.dtype, e) * 16.0) / 16.0 + 0.0; /* no -0 */
        const double other = 0.25 * (double)(e % 3);
        const float term = (float)(index == 0 ? value - other * (double)(n - 1) : other);
        if (meta.dtype == DS_DTYPE_BF16) {
            ((uint16_t *)data)[e] = dsi_f32_to_bf16(term);
        } else {
            ((float *)data)[e] = term;
        }
    }
}

/* ---- the graph on one rank, for each rank's own samples -------------------------------------- */

static dsi_axes own_axes(const placed_case *c)
{
    return dsi_axes_of(c->own);
}

static uint32_t copy_of_rank(const placed_case *c, uint32_t rank)
{
    const dsi_axes axes = own_axes(c);
    return dsi_mesh_group(&c->mesh, &axes, rank).index;
}

static uint32_t rank_of_copy(const placed_case *c, uint32_t copy)
{
    const dsi_axes axes = own_axes(c);
    return dsi_mesh_peer(&c->mesh, &axes, 0, copy);
}

void *logical_whole(const placed_case *c, ds_meta meta, const tensors *copies, ds_value v,
                    uint32_t mean, uint32_t rank)
{
    const dsi_axes axes = dsi_axes_of(mean);
    const uint32_t n = dsi_axes_size(&c->mesh, &axes);
    const void *terms[MOST_TERMS];
    void *out = room(meta);
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t peer = dsi_mesh_peer(&c->mesh, &axes, rank, i);
        terms[i] = copies->at[(size_t)v * copies->n_each + copy_of_rank(c, peer)];
    }
    if (n == 1) {
        memcpy(out, terms[0], ds_meta_bytes(meta));
    } else {
        add_terms(terms, n, meta, 1.0 / n, out);
    }
    return out;
}

/* Axes along which a gradient's cell holds terms, that its readers want added. */
static uint32_t terms_of(const placed_case *c, ds_value v)
{
    const ds_cell cell = c->graph->values[v].cell;
    const bool gradient =
        cell != DS_NONE && ds_cells_get(c->graph->cells, cell)->kind == DS_CELL_GRAD;
    return gradient ? dsi_placement_partial_axes(&c->placed->cell[cell].at) & c->own : 0;
}

static void fill_copies(const placed_case *c, ds_value v, tensors *t, uint32_t *own)
{
    const dsi_value_info *info = &c->graph->values[v];
    const dsi_placement *at = &c->placed->cell[info->cell].at;
    const bool is_sum = (dsi_placement_partial_axes(at) & ~terms_of(c, v)) != 0;
    own[v] = dsi_placement_own_axes(at) | terms_of(c, v);
    const dsi_axes axes = dsi_axes_of(own[v]);
    for (uint32_t k = 0; k < t->n_each; ++k) {
        void *data = room(info->meta);
        const dsi_rank_group group = dsi_mesh_group(&c->mesh, &axes, rank_of_copy(c, k));
        random_graph_fill(c->graph->cells, info->cell, c->seed, group.index, data);
        if (is_sum) {
            make_term(info->meta, data, 0, 1);
        }
        t->at[(size_t)v * t->n_each + k] = data;
    }
}

static ds_status logical_node(const placed_case *c, const dsi_node_info *node, tensors *t,
                              uint32_t *own)
{
    const ds_graph *g = c->graph;
    const ds_value *in = dsi_node_in(g, node);
    const ds_value *out = dsi_node_out(g, node);
    const uint32_t completed = dsi_completed_input(g, node);
    ds_meta in_meta[DS_MAX_IN] = {{0}};
    ds_meta out_meta[DS_MAX_OUT] = {{0}};
    uint32_t mean[DS_MAX_IN] = {0};
    uint32_t mask = 0;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        if (in[i] != DS_NONE) {
            const uint32_t terms =
                completed < node->n_in && writes_input(g, node, 0) ? terms_of(c, in[0]) : 0;
            in_meta[i] = g->values[in[i]].meta;
            mean[i] = i == completed              ? own[in[i]] & ~terms
                      : !writes_input(g, node, i) ? terms_of(c, in[i])
                                                  : 0;
            mask |= own[in[i]] & ~mean[i];
        }
    }
    ds_status status = DS_OK;
    for (uint32_t o = 0; o < node->n_out; ++o) {
        out_meta[o] = out[o] == DS_NONE ? (ds_meta){0} : g->values[out[o]].meta;
        if (out[o] != DS_NONE) {
            own[out[o]] = mask;
        }
    }
    for (uint32_t k = 0; k < t->n_each && status >= 0; ++k) {
        void *in_at[DS_MAX_IN] = {NULL};
        void *out_at[DS_MAX_OUT] = {NULL};
        for (uint32_t i = 0; i < node->n_in; ++i) {
            in_at[i] = in[i] == DS_NONE
                           ? NULL
                           : logical_whole(c, in_meta[i], t, in[i], mean[i], rank_of_copy(c, k));
        }
        for (uint32_t o = 0; o < node->n_out; ++o) {
            out_at[o] = out[o] == DS_NONE ? NULL : room(out_meta[o]);
            if (out[o] != DS_NONE) {
                t->at[(size_t)out[o] * t->n_each + k] = out_at[o];
            }
        }
        status = run_kernel(c->ctx, node->op, node->attrs, in_meta, node->n_in, out_meta,
                            node->n_out, in_at, out_at);
        for (uint32_t i = 0; i < node->n_in; ++i) {
            free(in_at[i]);
        }
    }
    return status;
}

ds_status logical_run(const placed_case *c, tensors *copies_out, uint32_t **own_out)
{
    const ds_graph *g = c->graph;
    const dsi_axes axes = own_axes(c);
    ds_status status = DS_OK;
    tensors t = tensors_make(g->n_values, dsi_axes_size(&c->mesh, &axes));
    uint32_t *own = calloc((size_t)g->n_values + 1, sizeof *own);
    for (ds_value v = 0; v < g->n_values; ++v) {
        if (g->values[v].producer == DS_NONE && g->values[v].cell != DS_NONE) {
            fill_copies(c, v, &t, own);
        }
    }
    for (ds_node n = 0; n < g->n_nodes && status >= 0; ++n) {
        status = logical_node(c, &g->nodes[n], &t, own);
    }
    *copies_out = t;
    *own_out = own;
    return status;
}

/* ---- cells of ranks -------------------------------------------------------------------------- */

static uint32_t kinds_of(const dsi_placement *at, uint8_t kind)
{
    uint32_t mask = 0;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        mask |= at->on[a].kind == kind ? 1u << a : 0;
    }
    return mask;
}

static void *load_cell(const placed_case *c, ds_cell cell, uint32_t rank)
{
    const ds_cell_info *info = ds_cells_get(c->graph->cells, cell);
    const dsi_placement *at = &c->placed->cell[cell].at;
    const uint32_t sums = dsi_placement_partial_axes(at);
    const bool gradient = info->kind == DS_CELL_GRAD;
    const dsi_axes own = dsi_axes_of(dsi_placement_own_axes(at) | (gradient ? sums & c->own : 0));
    const dsi_axes terms = dsi_axes_of(gradient ? sums & ~c->own : sums);
    const dsi_part all = dsi_part_whole(info->meta.shape);
    const dsi_part part = dsi_placement_part(&c->mesh, at, info->meta.shape, rank);
    const dsi_rank_group group = dsi_mesh_group(&c->mesh, &terms, rank);
    void *whole = room(info->meta);
    void *local = room((ds_meta){info->meta.dtype, ds_shape_1d(part.slots)});
    random_graph_fill(c->graph->cells, cell, c->seed, dsi_mesh_group(&c->mesh, &own, rank).index,
                      whole);
    if (terms.n > 0) {
        make_term(info->meta, whole, group.index, group.size);
    }
    dsi_part_copy(&all, whole, &part, local, ds_dtype_bytes(info->meta.dtype));
    free(whole);
    return local;
}

/* ---- changes of placement -------------------------------------------------------------------- */

/* What the ranks that are like `rank` on the axes of the mask have between them. */
static void assemble(const placed_case *c, ds_meta meta, const dsi_placement *at,
                     void *const *ranks, uint32_t like, uint32_t rank, void *whole)
{
    const dsi_coords want = dsi_mesh_coords(&c->mesh, rank);
    const dsi_part all = dsi_part_whole(meta.shape);
    for (uint32_t q = 0; q < c->mesh.n_ranks; ++q) {
        const dsi_coords have = dsi_mesh_coords(&c->mesh, q);
        bool is_like = true;
        for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
            is_like = is_like && ((like >> a & 1u) == 0 || have.at[a] == want.at[a]);
        }
        if (is_like) {
            const dsi_part part = dsi_placement_part(&c->mesh, at, meta.shape, q);
            dsi_part_copy(&part, ranks[q], &all, whole, ds_dtype_bytes(meta.dtype));
        }
    }
}

/* With the sums along `keep` left as they are. */
static void *whole_of(const placed_case *c, ds_meta meta, const dsi_spread *from,
                      void *const *ranks, uint32_t keep, uint32_t divided, uint32_t rank)
{
    const uint32_t partial = dsi_placement_partial_axes(&from->at);
    const dsi_axes sum = dsi_axes_of(partial & ~keep);
    const dsi_axes over = dsi_axes_of(divided);
    const uint32_t n = dsi_axes_size(&c->mesh, &sum);
    const uint32_t like = partial | kinds_of(&from->at, DSI_OWN);
    void *terms[MOST_TERMS];
    for (uint32_t i = 0; i < n; ++i) {
        terms[i] = room(meta);
        assemble(c, meta, &from->at, ranks, like, dsi_mesh_peer(&c->mesh, &sum, rank, i), terms[i]);
    }
    if (sum.n == 0 && over.n == 0) {
        return terms[0];
    }
    void *out = room(meta);
    const uint8_t kind = sum.n > 0 ? from->at.on[sum.axis[0]].dim : DSI_TERMS_SUM;
    if (kind == DSI_TERMS_SUM) {
        add_terms((const void *const *)terms, n, meta, 1.0 / (double)dsi_axes_size(&c->mesh, &over),
                  out);
    } else {
        combine_terms(c->ctx, (const void *const *)terms, n, meta, kind == DSI_TERMS_MAX, out);
    }
    for (uint32_t i = 0; i < n; ++i) {
        free(terms[i]);
    }
    return out;
}

void *placed_whole(const placed_case *c, ds_meta meta, const dsi_spread *from, void *const *ranks,
                   uint32_t rank)
{
    return whole_of(c, meta, from, ranks, 0, from->averaged, rank);
}

/* A rank's memory in the new placement. */
static void *change(const placed_case *c, ds_meta meta, const dsi_spread *from,
                    const dsi_spread *to, void *const *ranks, uint32_t rank)
{
    const dsi_part part = dsi_placement_part(&c->mesh, &to->at, meta.shape, rank);
    void *local = room((ds_meta){meta.dtype, ds_shape_1d(part.slots)});
    if (dsi_placement_equal(&from->at, &to->at) && (from->averaged & ~to->averaged) == 0) {
        memcpy(local, ranks[rank], (size_t)part.slots * ds_dtype_bytes(meta.dtype));
        return local;
    }
    const uint32_t before = dsi_placement_partial_axes(&from->at);
    const uint32_t after = dsi_placement_partial_axes(&to->at);
    const dsi_axes made = dsi_axes_of(after & ~before);
    void *whole =
        whole_of(c, meta, from, ranks, before & after, from->averaged & ~to->averaged, rank);
    const dsi_part all = dsi_part_whole(meta.shape);
    if (dsi_mesh_group(&c->mesh, &made, rank).index == 0) { /* an addend: 0 elsewhere */
        dsi_part_copy(&all, whole, &part, local, ds_dtype_bytes(meta.dtype));
    }
    free(whole);
    return local;
}

/* ---- the graph as it is placed --------------------------------------------------------------- */

typedef struct local_node {
    ds_meta in[DS_MAX_IN], out[DS_MAX_OUT];
    double attrs[64];
} local_node;

static ds_status describe(const placed_case *c, const dsi_node_info *node, uint32_t rank,
                          local_node *n)
{
    const ds_graph *g = c->graph;
    ds_meta in_whole[DS_MAX_IN] = {{0}};
    ds_meta out_whole[DS_MAX_OUT] = {{0}};
    ds_meta inferred[DS_MAX_OUT] = {{0}};
    dsi_placement need[DS_MAX_IN];
    dsi_placement made[DS_MAX_OUT];
    memset(need, 0, sizeof need);
    memset(made, 0, sizeof made);
    *n = (local_node){.attrs = {0}};
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(g, node)[i];
        if (v != DS_NONE) {
            in_whole[i] = n->in[i] = g->values[v].meta;
            need[i] = c->placed->use[node->in_at + i].at;
            const dsi_part part = dsi_placement_part(&c->mesh, &need[i], in_whole[i].shape, rank);
            n->in[i].shape = dsi_part_shape(&part);
        }
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(g, node)[o];
        if (v != DS_NONE) {
            out_whole[o] = n->out[o] = g->values[v].meta;
            made[o] = c->placed->use[node->out_at + o].at;
            const dsi_part part = dsi_placement_part(&c->mesh, &made[o], out_whole[o].shape, rank);
            n->out[o].shape = dsi_part_shape(&part);
        }
    }
    ds_place_case rule;
    dsi_rule_case_make(node->op, node->attrs, in_whole, node->n_in, out_whole, node->n_out, &rule);
    dsi_rule_local_attrs(&rule, &c->mesh, need, made, rank, n->attrs);
    DS_TRY(dsi_graph_infer(c->ctx, node->op, n->attrs, n->in, node->n_in, inferred));
    for (uint32_t o = 0; o < node->n_out; ++o) {
        if (dsi_node_out(g, node)[o] != DS_NONE &&
            !ds_shape_equal(inferred[o].shape, n->out[o].shape)) {
            return ds_fail(c->ctx, DS_ERR_INTERNAL, "%s at %s: output %u of rank %u: other shape",
                           node->op->name, node->scope, o, rank);
        }
    }
    return DS_OK;
}

static ds_status placed_node(const placed_case *c, const dsi_node_info *node, tensors *t)
{
    const ds_graph *g = c->graph;
    const ds_value *in = dsi_node_in(g, node);
    const ds_value *out = dsi_node_out(g, node);
    const uint32_t completed = dsi_completed_input(g, node);
    const uint32_t n_ranks = c->mesh.n_ranks;
    void *made[DS_MAX_OUT][MOST_TERMS] = {{NULL}};
    ds_status status = DS_OK;
    for (uint32_t r = 0; r < n_ranks && status >= 0; ++r) {
        local_node n;
        void *in_at[DS_MAX_IN] = {NULL};
        void *out_at[DS_MAX_OUT] = {NULL};
        DS_TRY(describe(c, node, r, &n));
        for (uint32_t i = 0; i < node->n_in; ++i) {
            if (in[i] != DS_NONE) {
                const dsi_spread *value = &c->placed->value[in[i]];
                const dsi_spread from = i == completed ? dsi_completed_spread(value) : *value;
                in_at[i] = change(c, g->values[in[i]].meta, &from, &c->placed->use[node->in_at + i],
                                  &t->at[(size_t)in[i] * n_ranks], r);
            }
        }
        for (uint32_t o = 0; o < node->n_out; ++o) {
            out_at[o] = made[o][r] = out[o] == DS_NONE ? NULL : room(n.out[o]);
        }
        status = run_kernel(c->ctx, node->op, n.attrs, n.in, node->n_in, n.out, node->n_out, in_at,
                            out_at);
        for (uint32_t i = 0; i < node->n_in; ++i) {
            free(in_at[i]);
        }
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        for (uint32_t r = 0; r < n_ranks && out[o] != DS_NONE && status >= 0; ++r) {
            t->at[(size_t)out[o] * n_ranks + r] =
                change(c, g->values[out[o]].meta, &c->placed->use[node->out_at + o],
                       &c->placed->value[out[o]], made[o], r);
        }
        for (uint32_t r = 0; r < n_ranks; ++r) {
            free(made[o][r]);
        }
    }
    return status;
}

ds_status placed_run(const placed_case *c, tensors *ranks_out)
{
    const ds_graph *g = c->graph;
    ds_status status = DS_OK;
    *ranks_out = tensors_make(g->n_values, c->mesh.n_ranks);
    for (ds_value v = 0; v < g->n_values; ++v) {
        const bool is_cell = g->values[v].producer == DS_NONE && g->values[v].cell != DS_NONE;
        for (uint32_t r = 0; r < c->mesh.n_ranks && is_cell; ++r) {
            ranks_out->at[(size_t)v * c->mesh.n_ranks + r] = load_cell(c, g->values[v].cell, r);
        }
    }
    for (ds_node n = 0; n < g->n_nodes && status >= 0; ++n) {
        status = placed_node(c, &g->nodes[n], ranks_out);
    }
    return status;
}

/* ---- the graph that localize made ------------------------------------------------------------ */

/* What rank r receives: ranks hold `in` of count elements each. */
static void *collective(const placed_case *c, const dsi_node_info *node, ds_meta in, ds_meta out,
                        void *const *ranks, uint32_t r)
{
    const dsi_comm_attrs *a = node->attrs;
    const dsi_axes axes = dsi_axes_decode(a->axes);
    const dsi_rank_group group = dsi_mesh_group(&c->mesh, &axes, r);
    const size_t element = ds_dtype_bytes(in.dtype);
    const size_t n_in = (size_t)ds_shape_count(in.shape);
    const size_t n_out = (size_t)ds_shape_count(out.shape);
    char *to = room(out);
    if (node->op == &dsi_op_all_gather || node->op == &dsi_op_gather_store) {
        for (uint32_t i = 0; i < group.size; ++i) {
            const size_t at = n_in * i;
            const size_t n = at >= n_out ? 0 : n_out - at < n_in ? n_out - at : n_in;
            const uint32_t peer = dsi_mesh_peer(&c->mesh, &axes, r, i);
            memcpy(to + (n > 0 ? at : 0) * element, ranks[peer], n * element);
        }
        return to;
    }
    for (uint32_t i = 0; i < group.size && node->op == &dsi_op_all_to_all; ++i) {
        const size_t block = n_in / group.size * element;
        const char *from = ranks[dsi_mesh_peer(&c->mesh, &axes, r, i)];
        memcpy(to + i * block, from + group.index * block, block);
    }
    if (node->op == &dsi_op_all_to_all) {
        return to;
    }
    if (node->op == &dsi_op_take_term) {
        memcpy(to, ranks[r], group.index == 0 ? n_out * element : 0);
        for (size_t i = 1; i <= n_out && group.index > 0; ++i) {
            to[i * element - 1] = (char)0x80; /* -0 */
        }
        return to;
    }
    const void *terms[MOST_TERMS] = {ranks[r]};
    const bool reduces = node->op->role != DS_ROLE_TAKE_SLICE;
    for (uint32_t i = 0; i < group.size && reduces; ++i) {
        terms[i] = ranks[dsi_mesh_peer(&c->mesh, &axes, r, i)];
    }
    char *sum = room(in);
    add_terms(terms, reduces ? group.size : 1, in, reduces ? a->factor : 1.0, sum);
    const size_t begin = node->op == &dsi_op_all_reduce ? 0 : n_out * group.index;
    const size_t n = begin >= n_in ? 0 : n_in - begin < n_out ? n_in - begin : n_out;
    memcpy(to, sum + (n > 0 ? begin : 0) * element, n * element);
    free(sum);
    return to;
}

static ds_status local_node_run(const placed_case *c, const ds_graph *g, const dsi_node_info *node,
                                tensors *t)
{
    const ds_value *in = dsi_node_in(g, node);
    const ds_value *out = dsi_node_out(g, node);
    const uint32_t n_ranks = c->mesh.n_ranks;
    ds_status status = DS_OK;
    for (uint32_t r = 0; r < n_ranks && status >= 0; ++r) {
        ds_meta in_meta[DS_MAX_IN] = {{0}};
        ds_meta out_meta[DS_MAX_OUT] = {{0}};
        void *in_at[DS_MAX_IN] = {NULL};
        void *out_at[DS_MAX_OUT] = {NULL};
        if ((node->op->flags & DS_OP_COMM) != 0) {
            const ds_value x = in[node->op == &dsi_op_gather_store ? 1 : 0];
            t->at[(size_t)out[0] * n_ranks + r] = collective(
                c, node, g->values[x].meta, g->values[out[0]].meta, &t->at[(size_t)x * n_ranks], r);
            continue;
        }
        for (uint32_t i = 0; i < node->n_in; ++i) {
            in_meta[i] = in[i] == DS_NONE ? (ds_meta){0} : g->values[in[i]].meta;
            in_at[i] = in[i] == DS_NONE ? NULL : t->at[(size_t)in[i] * n_ranks + r];
        }
        for (uint32_t o = 0; o < node->n_out; ++o) {
            out_meta[o] = out[o] == DS_NONE ? (ds_meta){0} : g->values[out[o]].meta;
            out_at[o] = out[o] == DS_NONE ? NULL : room(out_meta[o]);
            if (out[o] != DS_NONE) {
                t->at[(size_t)out[o] * n_ranks + r] = out_at[o];
            }
        }
        status = run_kernel(c->ctx, node->op, node->attrs, in_meta, node->n_in, out_meta,
                            node->n_out, in_at, out_at);
    }
    return status;
}

ds_status local_run(const placed_case *c, const ds_graph *local, tensors *ranks_out)
{
    ds_status status = DS_OK;
    *ranks_out = tensors_make(local->n_values, c->mesh.n_ranks);
    for (ds_value v = 0; v < local->n_values; ++v) {
        const bool is_cell =
            local->values[v].producer == DS_NONE && local->values[v].cell != DS_NONE;
        for (uint32_t r = 0; r < c->mesh.n_ranks && is_cell; ++r) {
            ranks_out->at[(size_t)v * c->mesh.n_ranks + r] = load_cell(c, local->values[v].cell, r);
        }
    }
    for (ds_node n = 0; n < local->n_nodes && status >= 0; ++n) {
        status = local_node_run(c, local, &local->nodes[n], ranks_out);
    }
    return status;
}
