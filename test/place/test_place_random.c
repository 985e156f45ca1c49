/* SPDX-License-Identifier: Apache-2.0 */
/* Random graphs on random meshes: propagated, executed as they are placed, localized, executed with
 * their collectives; each against the same graph on one rank.
 * labels: slow
 *
 * Half of the cases are data parallel: inputs are each rank's own, parameters, gradients and states
 * are replicated, flat or terms, over tuples of axes in any order. There every value, every cell
 * and every output has the bits of the one rank. In the other half cells are placed at random, cut
 * and summed too; bits where no sum crosses ranks, else within
 *
 *     1e-4 of the tensor's largest magnitude + 5e-6 of the largest of all values
 *
 * in fp32. What is refused must name a value and both placements; reasons are counted. At most a
 * tenth of all cases is refused. 31 of 32 placements are such as a run could ask for.
 *
 * DS_PLACE_CASES: how many (default 2000). DS_PLACE_SEED: the first one's (default: by the day).
 */
#include "base/exact_bins.h"
#include "common/check.h"
#include "common/placed_run.h"
#include "common/random_graph.h"
#include "op/ops.h"
#include "op/paged_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CASES = 2000, MOST_UNSEEN = 12, MOST_RANKS = 24, MOST_CELLS = 1024 };

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

enum { MOST_OPS = 256 };

/* What a refusal says; the first that fits counts. */
static const char *const reasons[] = {
    "which makes parts of different shapes",
    "it is written",
    "it would write",
    "the policy does not allow this change",
    "is flat along an axis that cuts it",
    "still to be divided by the number of ranks",
    "of the rank's own samples",
    "has no collectives",
    "",
};
enum { N_REASONS = sizeof reasons / sizeof reasons[0] };

typedef struct counts {
    uint32_t cases, placed, localized, values, inexact;
    uint32_t refused[N_REASONS];
    uint32_t nodes[MOST_OPS]; /* that were placed, in the order of dsi_op_all */
} counts;

typedef struct trial {
    uint64_t seed, rng;
    bool data; /* data parallel alone */
    ds_cells *cells;
    ds_graph *graph;
    dsi_mesh mesh;
    dsi_axis axes[3]; /* those of the mesh, in any order */
    uint32_t n_axes;
    uint32_t scheme[3]; /* of each: 0 nothing, 1 samples, 2 positions, 3 parameters are cut */
    uint32_t own;
    dsi_placement states, gradients;
    dsi_spread cell[MOST_CELLS];
    dsi_propagation *placed;
    tensors copies;
    uint32_t *own_of; /* per value */
    bool *exact;      /* per value */
    double top;       /* largest magnitude of all values */
    char text[256];
} trial;

/* ---- where cells lie ------------------------------------------------------------------------- */

static void choose_mesh(trial *t)
{
    static const dsi_axis all[] = {DSI_AXIS_DPR, DSI_AXIS_DPS, DSI_AXIS_EP, DSI_AXIS_SP,
                                   DSI_AXIS_TP};
    do {
        uint32_t size[DSI_AXIS_COUNT] = {1, 1, 1, 1, 1, 1};
        t->n_axes = 0;
        for (uint32_t want = 1 + random_below(&t->rng, 3); t->n_axes < want;) {
            const dsi_axis a = all[random_below(&t->rng, t->data ? 3 : 5)];
            bool has = false;
            for (uint32_t i = 0; i < t->n_axes; ++i) {
                has = has || t->axes[i] == a;
            }
            if (!has) {
                t->axes[t->n_axes++] = a;
                size[a] = 1 + random_below(&t->rng, 4);
            }
        }
        CHECK_OK(ctx, dsi_mesh_of(ctx, size, &t->mesh));
    } while (t->mesh.n_ranks > MOST_RANKS);
}

static dsi_placement random_flat(trial *t)
{
    dsi_axes axes = {0};
    for (uint32_t i = 0; i < t->n_axes; ++i) {
        const uint32_t at = random_below(&t->rng, t->n_axes);
        if (random_below(&t->rng, 3) != 0) {
            dsi_axes_add(&axes, t->axes[at]);
        }
    }
    return axes.n == 0 ? dsi_replicate() : dsi_flat(dsi_replicate(), axes);
}

static dsi_spread over_own(const trial *t, bool terms)
{
    dsi_spread s = {0};
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if ((t->own >> a & 1u) != 0) {
            s.at = terms ? dsi_partial(s.at, (dsi_axis)a) : dsi_own(s.at, (dsi_axis)a);
            s.averaged |= terms ? 1u << a : 0;
        }
    }
    return s;
}

static bool is_float(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16;
}

/* ZeRO and what is near to it. */
static dsi_spread data_placement(trial *t, const ds_cell_info *info)
{
    const bool odd = random_below(&t->rng, 40) == 0; /* not as the others */
    switch (info->kind) {
    case DS_CELL_INPUT:
        return over_own(t, false);
    case DS_CELL_PARAM:
        if (random_below(&t->rng, 3) == 0) { /* as hpZ has them: over the first of the axes */
            dsi_placement at = t->states;
            at.flat.n = at.flat.n > 0 ? random_below(&t->rng, at.flat.n) : 0;
            at = at.flat.n > 0 ? dsi_flat(dsi_replicate(), at.flat) : dsi_replicate();
            return (dsi_spread){.at = at};
        }
        return (dsi_spread){.at = random_below(&t->rng, 2) == 0 ? t->states : dsi_replicate()};
    case DS_CELL_GRAD:
        return t->gradients.on[0].kind == DSI_OWN ? over_own(t, true)
                                                  : (dsi_spread){.at = t->gradients};
    case DS_CELL_SCALAR:
        return (dsi_spread){0};
    default:
        return (dsi_spread){.at = odd ? random_flat(t) : t->states};
    }
}

/* Along an axis inputs are cut by sample or by position, or parameters anyhow, or all of it. */
static dsi_place_on any_on(trial *t, const ds_cell_info *info, uint32_t scheme, ds_shape shape)
{
    const bool input = info->kind == DS_CELL_INPUT;
    const uint32_t wild = random_below(&t->rng, 24);
    const uint32_t dim = shape.n_dims == 0 ? 0 : random_below(&t->rng, shape.n_dims);
    if (shape.n_dims == 0 || (wild > 0 && scheme == 0)) {
        return (dsi_place_on){0};
    }
    if (input && wild < 2 && is_float(info->meta.dtype)) {
        return (dsi_place_on){.kind = DSI_PARTIAL};
    }
    if (wild < 2 || (!input && scheme == 3 && wild < 16)) {
        const uint8_t blocks =
            random_below(&t->rng, 3) == 0 ? (uint8_t)(2 + random_below(&t->rng, 2)) : 0;
        return (dsi_place_on){DSI_SHARD, (uint8_t)dim, blocks};
    }
    return input && scheme < 3 && scheme <= shape.n_dims
               ? (dsi_place_on){.kind = DSI_SHARD, .dim = (uint8_t)(scheme - 1)}
               : (dsi_place_on){0};
}

static dsi_spread any_placement(trial *t, const ds_cell_info *info)
{
    dsi_spread s = {0};
    if (info->kind == DS_CELL_SCALAR || info->kind == DS_CELL_GRAD) {
        return s;
    }
    if (info->kind != DS_CELL_INPUT && random_below(&t->rng, 5) == 0) {
        s.at = random_flat(t);
        return s;
    }
    for (uint32_t i = 0; i < t->n_axes; ++i) {
        const dsi_axis a = t->axes[i];
        s.at.on[a] = any_on(t, info, t->scheme[i], info->meta.shape);
        if ((t->own >> a & 1u) != 0) {
            s.at.on[a] = (dsi_place_on){0};
            s.at = info->kind == DS_CELL_INPUT ? dsi_own(s.at, a) : s.at;
        }
    }
    return s;
}

/* Whether all ranks have parts of one shape. */
static bool is_even(const trial *t, const dsi_placement *at, ds_shape shape)
{
    const dsi_part first = dsi_placement_part(&t->mesh, at, shape, 0);
    const dsi_part last = dsi_placement_part(&t->mesh, at, shape, t->mesh.n_ranks - 1);
    return ds_shape_equal(dsi_part_shape(&first), dsi_part_shape(&last));
}

/* Whether a run could ask for it: dims that the ranks divide, states and gradients where their
 * parameter is, a policy that allows gathers and exchanges. */
static bool is_sensible(trial *t)
{
    return random_below(&t->rng, 32) != 0;
}

static void place_cell(trial *t, ds_cell c)
{
    const ds_cell_info *info = ds_cells_get(t->cells, c);
    const ds_shape shape = info->meta.shape;
    const bool even = !t->data && is_sensible(t);
    if (!t->data && info->of != DS_NONE && is_sensible(t) &&
        (info->kind != DS_CELL_GRAD || random_below(&t->rng, 2) == 0)) {
        t->cell[c] = t->cell[info->of];
        return;
    }
    for (uint32_t tries = 0; tries < 20; ++tries) {
        t->cell[c] = t->data ? data_placement(t, info) : any_placement(t, info);
        if (dsi_placement_check(ctx, &t->mesh, &t->cell[c].at, shape, "x") >= 0 &&
            (!even || is_even(t, &t->cell[c].at, shape))) {
            return;
        }
        t->cell[c] = (dsi_spread){0};
    }
}

static void place_cells(trial *t)
{
    t->states = random_flat(t);
    for (uint32_t i = 0; i < t->n_axes; ++i) {
        t->scheme[i] = random_below(&t->rng, 4);
    }
    const uint32_t g = random_below(&t->rng, 3);
    t->gradients = g == 0 ? dsi_replicate() : t->states;
    if (g == 2 && t->own != 0) {
        t->gradients = dsi_own(dsi_replicate(), (dsi_axis)0); /* a mark: terms over the own axes */
    }
    for (ds_cell c = 0; c < ds_cells_count(t->cells); ++c) {
        place_cell(t, c);
    }
}

static void cell_of(void *user, ds_cell cell, const ds_cell_info *info, dsi_spread *spread_out)
{
    const trial *t = user;
    (void)info;
    *spread_out = t->cell[cell];
}

/* ---- comparing ------------------------------------------------------------------------------- */

static double element(const void *data, ds_dtype dtype, int64_t e)
{
    uint32_t bits = 0;
    float f = 0.0f;
    switch (dtype) {
    case DS_DTYPE_F32:
        return (double)((const float *)data)[e];
    case DS_DTYPE_BF16:
        bits = (uint32_t)((const uint16_t *)data)[e] << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    case DS_DTYPE_F64:
        return ((const double *)data)[e];
    case DS_DTYPE_I64:
        return (double)((const int64_t *)data)[e];
    default:
        return (double)((const int32_t *)data)[e];
    }
}

static double top_of(const void *data, ds_meta meta)
{
    double top = 0.0;
    for (int64_t e = 0; e < ds_shape_count(meta.shape); ++e) {
        const double x = fabs(element(data, meta.dtype, e));
        top = x > top ? x : top;
    }
    return top;
}

/* The number that an exact sum's parts stand for; how they are split is not said. */
static double exact_number(const double *parts, int64_t n)
{
    dsi_exact_bins bins = {{0.0}};
    if (n == 2) {
        return parts[0] + parts[1];
    }
    if (n == 2 * DSI_EXACT_WIDE) { /* two of them; their sum says enough */
        return exact_number(parts, n / 2) + 3.0 * exact_number(parts + n / 2, n / 2);
    }
    dsi_exact_bins_join(&bins, parts);
    return dsi_exact_bins_total(bins.at);
}

static bool agree(const trial *t, ds_meta meta, bool exact, const void *got, const void *want)
{
    const int64_t n = ds_shape_count(meta.shape);
    if (meta.dtype == DS_DTYPE_F64) {
        const double a = exact_number(got, n);
        const double b = exact_number(want, n);
        return exact ? a == b : fabs(a - b) <= 1e-3 * fabs(b) + 5e-6 * t->top * t->top;
    }
    if (exact || !is_float(meta.dtype)) {
        return memcmp(got, want, ds_meta_bytes(meta)) == 0;
    }
    const double tolerance = 1e-4 * top_of(want, meta) + 5e-6 * t->top;
    bool same = true;
    for (int64_t e = 0; e < n; ++e) {
        same =
            same && fabs(element(got, meta.dtype, e) - element(want, meta.dtype, e)) <= tolerance;
    }
    return same;
}

static placed_case case_of(const trial *t)
{
    return (placed_case){.ctx = ctx,
                         .graph = t->graph,
                         .mesh = t->mesh,
                         .placed = t->placed,
                         .own = t->own,
                         .seed = t->seed};
}

static void print_case(const trial *t)
{
    dsi_buf buf = dsi_buf_make(1 << 20);
    dsi_propagation_text(t->graph, t->placed, &buf);
    (void)fputs(dsi_buf_text(&buf), stderr);
    dsi_buf_free(&buf);
}

/* What the ranks have of a logical value, against the copies. */
static void check_value(const trial *t, const char *stage, ds_value v, const dsi_spread *at,
                        void *const *ranks, counts *n)
{
    const placed_case c = case_of(t);
    const ds_meta meta = t->graph->values[v].meta;
    const uint32_t mean =
        t->own_of[v] & (dsi_placement_partial_axes(&at->at) | ~dsi_placement_own_axes(&at->at));
    for (uint32_t r = 0; r < t->mesh.n_ranks; ++r) {
        void *got = placed_whole(&c, meta, at, ranks, r);
        void *want = logical_whole(&c, meta, &t->copies, v, mean, r);
        const dsi_part part = dsi_placement_part(&t->mesh, &at->at, meta.shape, r);
        const dsi_part all = dsi_part_whole(meta.shape);
        if (dsi_placement_partial_axes(&at->at) == 0 &&
            at->averaged == 0) { /* this rank's own elements */
            dsi_part_copy(&part, ranks[r], &all, got, ds_dtype_bytes(meta.dtype));
        }
        if (!agree(t, meta, t->exact[v], got, want)) {
            char text[DSI_PLACEMENT_TEXT];
            print_case(t);
            fail_msg("%s: %s: %%%u %s on rank %u differs from the run on one rank%s", t->text,
                     stage, v, dsi_placement_str(&at->at, text), r,
                     t->exact[v] ? ", which has its bits" : "");
        }
        free(got);
        free(want);
    }
    n->values += 1;
    n->inexact += t->exact[v] ? 0 : 1;
}

/* Bits are promised where no sum over ranks came into a value, but the mean of complete gradients,
 * which the run on one rank takes as well. */
static void mark_exact(trial *t)
{
    const ds_graph *g = t->graph;
    t->exact = calloc((size_t)g->n_values + 1, sizeof *t->exact);
    for (ds_value v = 0; v < g->n_values; ++v) {
        t->exact[v] = true;
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        bool exact = true;
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            exact = exact && (v == DS_NONE || t->exact[v]);
        }
        for (uint32_t o = 0; o < node->n_out; ++o) {
            const ds_value v = dsi_node_out(g, node)[o];
            const dsi_placement *made = &t->placed->use[node->out_at + o].at;
            bool sums = false;
            for (uint32_t a = 0; a < DSI_AXIS_COUNT && v != DS_NONE; ++a) {
                sums = sums || (made->on[a].kind == DSI_PARTIAL &&
                                made->on[a].dim == DSI_TERMS_SUM && (t->own_of[v] >> a & 1u) == 0);
            }
            if (v != DS_NONE) {
                const uint32_t averaged = t->placed->use[node->out_at + o].averaged;
                t->exact[v] = exact && !sums && (averaged & ~t->own_of[v]) == 0;
            }
        }
    }
    for (ds_value v = 0; v < g->n_values; ++v) {
        for (uint32_t k = 0; k < t->copies.n_each; ++k) {
            const double x =
                is_float(g->values[v].meta.dtype)
                    ? top_of(t->copies.at[(size_t)v * t->copies.n_each + k], g->values[v].meta)
                    : 0.0;
            t->top = isfinite(x) && x > t->top ? x : t->top;
        }
    }
}

/* ---- one case -------------------------------------------------------------------------------- */

static bool is_named(const char *message)
{
    const bool have =
        strstr(message, "is placed") != NULL && strstr(message, "would have to be") != NULL;
    const bool write =
        strstr(message, "would write") != NULL && strstr(message, "the cell is") != NULL;
    const bool move = strstr(message, " from ") != NULL && strstr(message, " to ") != NULL;
    return have || write || move;
}

static void count_reason(counts *n, const char *message)
{
    for (uint32_t i = 0; i < N_REASONS; ++i) {
        if (strstr(message, reasons[i]) != NULL) {
            n->refused[i] += 1;
            return;
        }
    }
}

/* Whether it is done; a refusal must say what of. */
static bool accepted(const trial *t, const char *stage, ds_status status, counts *n)
{
    if (status < 0 && (status != DS_ERR_UNSUPPORTED || !is_named(ds_ctx_error(ctx)))) {
        if (t->placed != NULL) {
            print_case(t);
        }
        fail_msg("%s: %s: %s: %s", t->text, stage, ds_status_name(status), ds_ctx_error(ctx));
    }
    if (status < 0 && getenv("DS_PLACE_SHOW") != NULL) {
        print_message("%s: %s: %s\n", t->text, stage, ds_ctx_error(ctx));
    }
    if (status < 0) {
        count_reason(n, ds_ctx_error(ctx));
    }
    return status >= 0;
}

static void count_nodes(const trial *t, counts *n)
{
    for (ds_node i = 0; i < t->graph->n_nodes; ++i) {
        for (uint32_t op = 0; dsi_op_all()[op] != NULL; ++op) {
            assert_true(op < MOST_OPS);
            n->nodes[op] += dsi_op_all()[op] == t->graph->nodes[i].op ? 1 : 0;
        }
    }
}

static void run_placed(const trial *t, counts *n)
{
    const placed_case c = case_of(t);
    tensors ranks;
    const ds_status status = placed_run(&c, &ranks);
    if (status < 0) {
        print_case(t);
        fail_msg("%s: as placed: %s", t->text, ds_ctx_error(ctx));
    }
    for (ds_value v = 0; v < t->graph->n_values; ++v) {
        if (ranks.at[(size_t)v * t->mesh.n_ranks] != NULL) {
            check_value(t, "as placed", v, &t->placed->value[v],
                        &ranks.at[(size_t)v * t->mesh.n_ranks], n);
        }
    }
    tensors_free(&ranks);
}

static ds_value last_version(const ds_graph *g, ds_cell cell)
{
    ds_value last = DS_NONE;
    for (ds_value v = 0; v < g->n_values; ++v) {
        const bool later = last == DS_NONE || g->values[v].version > g->values[last].version;
        last = g->values[v].cell == cell && later ? v : last;
    }
    return last;
}

static void run_local(const trial *t, counts *n)
{
    const placed_case c = case_of(t);
    const dsi_localize_params how = {.placed = t->placed,
                                     .comm_dtype = DS_DTYPE_F32,
                                     .reduce_bucket = 1 + (int64_t)(t->seed % 400),
                                     .gather_bucket = 1 + (int64_t)(t->seed % 300),
                                     .max_live = (int64_t)(t->seed % 500),
                                     .max_reuse_distance = (int64_t)(t->seed % 700)};
    ds_cells *cells = NULL;
    ds_graph *local = NULL;
    tensors ranks;
    CHECK_OK(ctx, ds_cells_create(ctx, 2 * MOST_CELLS, &cells));
    if (accepted(t, "localize", dsi_localize(t->graph, &how, cells, &local), n)) {
        n->localized += 1;
        CHECK_OK(ctx, dsi_graph_check(local));
        const ds_status status = local_run(&c, local, &ranks);
        if (status < 0) {
            print_case(t);
            fail_msg("%s: localized: %s", t->text, ds_ctx_error(ctx));
        }
        for (ds_cell cell = 0; cell < ds_cells_count(t->cells); ++cell) {
            const ds_value logical = last_version(t->graph, cell);
            const ds_value own = last_version(local, cell);
            if (logical != DS_NONE && own != DS_NONE && t->graph->values[logical].version > 0) {
                if (local->values[own].version == 0) {
                    print_case(t);
                    fail_msg("%s: localized: nothing writes %s", t->text,
                             ds_cells_get(t->cells, cell)->name);
                }
                check_value(t, "localized cell", logical, &t->placed->cell[cell],
                            &ranks.at[(size_t)own * t->mesh.n_ranks], n);
            }
        }
        for (uint32_t i = 0; i < t->graph->n_outputs; ++i) {
            const ds_value own = ds_graph_find_output(local, t->graph->outputs[i].name);
            check_value(t, "localized output", t->graph->outputs[i].value, &t->placed->output[i],
                        &ranks.at[(size_t)own * t->mesh.n_ranks], n);
        }
        tensors_free(&ranks);
    }
    ds_graph_destroy(&local);
    ds_cells_destroy(&cells);
}

static void run_case(uint64_t seed, counts *data, counts *any)
{
    trial *t = calloc(1, sizeof *t);
    dsi_buf mesh = dsi_buf_make(1 << 10);
    assert_non_null(t);
    t->seed = t->rng = seed;
    t->data = random_next(&t->rng) % 2 == 0;
    counts *n = t->data ? data : any;
    const random_graph_params params = {.seed = random_next(&t->rng), .smooth = !t->data};
    choose_mesh(t);
    dsi_mesh_text(&t->mesh, &mesh);
    (void)snprintf(t->text, sizeof t->text, "case %llu, %s, %.*s", (unsigned long long)seed,
                   t->data ? "data" : "any", (int)mesh.size, mesh.data);
    dsi_buf_free(&mesh);
    random_graph_make(ctx, &params, &t->cells, &t->graph);
    for (uint32_t i = 0; i < t->n_axes; ++i) {
        const bool own = t->data ? random_below(&t->rng, 8) != 0 : random_below(&t->rng, 4) == 0;
        t->own |= own && t->mesh.size[t->axes[i]] > 1 ? 1u << t->axes[i] : 0;
    }
    place_cells(t);
    dsi_place_policy policy = dsi_place_policy_default();
    const bool allows = !t->data && is_sensible(t);
    policy.gather = t->data ? 0 : allows ? ~0u : (uint32_t)random_next(&t->rng);
    policy.exchange |= t->data ? 0 : allows ? ~0u : (uint32_t)random_next(&t->rng);
    policy.mean |= t->data ? 0 : (uint32_t)random_next(&t->rng);
    const dsi_propagate_params how = {.mesh = t->mesh,
                                      .policy = policy,
                                      .gradient = t->data ? t->states : dsi_replicate(),
                                      .cell = cell_of,
                                      .user = t};
    n->cases += 1;
    if (accepted(t, "propagate", dsi_propagate(t->graph, &how, &t->placed), n)) {
        n->placed += 1;
        const placed_case c = case_of(t);
        CHECK_OK(ctx, logical_run(&c, &t->copies, &t->own_of));
        mark_exact(t);
        count_nodes(t, n);
        run_placed(t, n);
        run_local(t, n);
    }
    tensors_free(&t->copies);
    free(t->own_of);
    free(t->exact);
    dsi_propagation_destroy(&t->placed);
    ds_graph_destroy(&t->graph);
    ds_cells_destroy(&t->cells);
    free(t);
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static void report(const char *name, const counts *n)
{
    print_message(
        "%s: %u cases, %u placed, %u localized, %u values compared, %u of them within the "
        "tolerance, the others bit for bit\n",
        name, n->cases, n->placed, n->localized, n->values, n->inexact);
    for (uint32_t i = 0; i < N_REASONS; ++i) {
        if (n->refused[i] > 0) {
            print_message("  refused %u: %s\n", n->refused[i],
                          *reasons[i] != '\0' ? reasons[i] : "another reason");
        }
    }
}

/* Operators that no graph here has: collectives and swaps, which are lowered to; generation,
 * ZenFlow, compression (test_compress.sh), parts of the vocabulary (test_tensor_parallel), losses
 * of pairs, which a rank's own rows make (test_preference_runs.sh), experts (test_rules,
 * test_zero_matrix.sh), halves of a batch (test_domino), and what other operators stand for. */
static bool is_left_out(const ds_op *op)
{
    static const ds_op *const out[] = {&dsi_op_take_slice,
                                       &dsi_op_take_term,
                                       &dsi_op_reduce_scatter,
                                       &dsi_op_all_reduce,
                                       &dsi_op_all_gather,
                                       &dsi_op_all_to_all,
                                       &dsi_op_gather_store,
                                       &dsi_op_swap_in,
                                       &dsi_op_swap_out,
                                       &dsi_op_take_rows,
                                       &dsi_op_rng_ahead,
                                       &dsi_op_kv_write,
                                       &dsi_op_paged_write,
                                       &dsi_op_paged_attention,
                                       &dsi_op_slot_adapter,
                                       &dsi_op_column_sums,
                                       &dsi_op_choose_columns,
                                       &dsi_op_postpone,
                                       &dsi_op_weigh_columns,
                                       &dsi_op_take_columns,
                                       &dsi_op_put_columns,
                                       &dsi_op_fake_quant,
                                       &dsi_op_fake_quant_rows,
                                       &dsi_op_top_mask,
                                       &dsi_op_mask_weight,
                                       &dsi_op_mask_scores,
                                       &dsi_op_compress_signs,
                                       &dsi_op_average_signs,
                                       &dsi_op_expand_signs,
                                       &dsi_op_quantize_blocks,
                                       &dsi_op_quantize_with_error,
                                       &dsi_op_dequantize_blocks,
                                       &dsi_op_dequantize_sum,
                                       &dsi_op_own_term,
                                       &dsi_op_largest_of_ranks,
                                       &dsi_op_sum_of_ranks,
                                       &dsi_op_mean_by_signs,
                                       &dsi_op_rows_of_ranks,
                                       &dsi_op_sum_rows_of_ranks,
                                       &dsi_op_linear_packed,
                                       &dsi_op_weight_norms,
                                       &dsi_op_first_moment,
                                       &dsi_op_frozen_adam,
                                       &dsi_op_unit_matrix,
                                       &dsi_op_muon,
                                       &dsi_op_preference,
                                       &dsi_op_preference_backward,
                                       &dsi_op_times,
                                       &dsi_op_local_adam,
                                       &dsi_op_local_take,
                                       &dsi_op_local_put,
                                       &dsi_op_average_ratio,
                                       &dsi_op_root_mean,
                                       &dsi_op_freeze_lamb,
                                       &dsi_op_frozen_lamb_moments,
                                       &dsi_op_frozen_lamb_factor,
                                       &dsi_op_frozen_lamb,
                                       &dsi_op_row_numbers,
                                       &dsi_op_embedding_part,
                                       &dsi_op_embedding_part_dw,
                                       &dsi_op_linear_cross_entropy_part,
                                       &dsi_op_cross_entropy_join,
                                       &dsi_op_linear_cross_entropy_part_backward,
                                       &dsi_op_route,
                                       &dsi_op_route_backward,
                                       &dsi_op_group_rows,
                                       &dsi_op_group_sizes,
                                       &dsi_op_spread_rows,
                                       &dsi_op_combine_rows,
                                       &dsi_op_combine_rows_dw,
                                       &dsi_op_grouped_linear,
                                       &dsi_op_grouped_linear_dw,
                                       &dsi_op_kept_weights,
                                       &dsi_op_kept_weights_backward,
                                       &dsi_op_gather_offsets,
                                       &dsi_op_expert_segments,
                                       &dsi_op_to_experts,
                                       &dsi_op_split_tokens,
                                       &dsi_op_join_tokens,
                                       &dsi_op_turn_parts,
                                       &dsi_op_attention_part,
                                       &dsi_op_attention_part_backward,
                                       &dsi_op_shift,
                                       &dsi_op_attention_sinks,
                                       &dsi_op_attention_sinks_backward,
                                       &dsi_op_causal_conv,
                                       &dsi_op_causal_conv_backward,
                                       &dsi_op_causal_conv_step,
                                       &dsi_op_paged_causal_conv,
                                       &dsi_op_decay,
                                       &dsi_op_decay_backward,
                                       &dsi_op_delta_rule,
                                       &dsi_op_delta_rule_backward,
                                       &dsi_op_delta_rule_step,
                                       &dsi_op_paged_delta_rule,
                                       &dsi_op_document_end,
                                       &dsi_op_filled_end,
                                       &dsi_op_shift_labels,
                                       &dsi_op_relative_bias,
                                       &dsi_op_relative_bias_backward,
                                       &dsi_op_embedding_blocks,
                                       &dsi_op_schedule_free,
                                       &dsi_op_schedule_free_point,
                                       &dsi_op_adam_8bit,
                                       &dsi_op_ademamix_8bit,
                                       &dsi_op_adam_8bit_direction,
                                       &dsi_op_ademamix_8bit_direction,
                                       &dsi_op_adam_8bit_step,
                                       &dsi_op_adafactor_rows,
                                       &dsi_op_adafactor_columns,
                                       &dsi_op_adafactor_direction,
                                       &dsi_op_adafactor,
                                       &dsi_op_dispatch_rows,
                                       &dsi_op_return_rows,
                                       &dsi_op_from_experts};
    bool left = false;
    for (size_t i = 0; i < sizeof out / sizeof out[0]; ++i) {
        left = left || out[i] == op;
    }
    return left;
}

static uint32_t count_unseen(const counts *data, const counts *any)
{
    uint32_t n = 0;
    for (uint32_t op = 0; dsi_op_all()[op] != NULL; ++op) {
        if (data->nodes[op] + any->nodes[op] == 0 && !is_left_out(dsi_op_all()[op])) {
            print_message("no graph had %s\n", dsi_op_all()[op]->name);
            ++n;
        }
    }
    return n;
}

/* Cases that went wrong once: a parameter gathered for a use that needs it whole, and cut for the
 * next; a maximum whose terms are combined along one of their axes; a cut inside of another axis'
 * that went through heads of keys; two axes that cut blocks, where placed and on the way; an
 * exchange behind a cut that had left some ranks nothing. */
static const uint64_t found[] = {20780000259,     20780000449,     179580570200457,
                                 179580570201245, 2468060242537,   6852001242180,
                                 2537232910835,   179580570202223, 179582212414845};

static void test_random(void **state)
{
    (void)state;
    const uint64_t n = number_of("DS_PLACE_CASES", CASES);
    const uint64_t first = number_of("DS_PLACE_SEED", (uint64_t)time(NULL) / 86400 * 1000000);
    counts data = {0};
    counts any = {0};
    print_message("DS_PLACE_SEED=%llu\n", (unsigned long long)first);
    for (size_t i = 0; i < sizeof found / sizeof found[0]; ++i) {
        run_case(found[i], &(counts){0}, &(counts){0});
    }
    for (uint64_t i = 0; i < n; ++i) {
        run_case(first + i, &data, &any);
    }
    report("data parallel", &data);
    report("placed at random", &any);
    if (n >= CASES) { /* refusals, and what there is to see */
        assert_true((data.localized + any.localized) * 10 >= n * 9);
        assert_int_equal(data.inexact, 0);
        assert_true(count_unseen(&data, &any) <= MOST_UNSEEN);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
