/* SPDX-License-Identifier: Apache-2.0 */
/* Placement rules, executed: every strategy of every operator, on one axis and on two together.
 *
 * A case of the operator harness is run whole by the reference kernel; then on each rank with the
 * inputs cut, replicated or split into addends as the strategy says. Outputs that are cut or
 * replicated must be those of the whole run, bit for bit; outputs that are sums over ranks agree
 * within rounding.
 * labels: slow */
#include "common/check.h"
#include "common/own_op.h"
#include "op/harness.h"
#include "place/rule.h"

#include "base/exact_bins.h"
#include "base/half.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 6, MOST_ELEMENTS = 6000, TEXT = 512 };

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

/* A node on a mesh, its placements chosen. */
typedef struct trial {
    const op_case *c;
    ds_dtype act;
    dsi_mesh mesh;
    ds_place_case rule;
    dsi_placement need[DS_MAX_IN], out[DS_MAX_OUT];
    double times[DS_MAX_OUT];   /* ranks over which an output is averaged */
    double times_in[DS_MAX_IN]; /* … an input */
    op_operands *whole;         /* has run */
    char label[256];
} trial;

static uint32_t n_run, n_sums;

static void put_element(const ds_tensor *t, int64_t i, double value)
{
    switch (t->meta.dtype) {
    case DS_DTYPE_F32:
        ((float *)t->data)[i] = (float)value;
        break;
    case DS_DTYPE_F64:
        ((double *)t->data)[i] = value;
        break;
    case DS_DTYPE_BF16:
        ((uint16_t *)t->data)[i] = dsi_f32_to_bf16((float)value);
        break;
    case DS_DTYPE_F16:
        ((uint16_t *)t->data)[i] = dsi_f32_to_f16((float)value);
        break;
    case DS_DTYPE_I64:
        ((int64_t *)t->data)[i] = (int64_t)value;
        break;
    default:
        ((int32_t *)t->data)[i] = (int32_t)value;
        break;
    }
}

static dsi_rank_group sum_group(const trial *t, const dsi_placement *p, uint32_t rank)
{
    const dsi_axes axes = dsi_axes_of(dsi_placement_partial_axes(p));
    return dsi_mesh_group(&t->mesh, &axes, rank);
}

/* Addend k of n of a value: different, of both signs. The number of rows that a mean divides by is
 * the same on each rank, so that the mean of the ranks' means is the mean. */
static double addend(const trial *t, uint32_t i, double value, uint32_t k, uint32_t n)
{
    const ds_meta meta = t->whole->in_meta[i];
    if (dsi_rule_terms(&t->rule) == DSI_TERMS_MAX) {
        return k == 0 ? value : value - (double)k;
    }
    const bool rows = (t->rule.flags & DS_PLACE_MEAN_ROWS) != 0 && meta.shape.n_dims == 0 && i > 0;
    if (meta.dtype == DS_DTYPE_I32 || meta.dtype == DS_DTYPE_I64) {
        return k == 0 ? value - 3.0 * (double)(n - 1) : 3.0;
    }
    return rows ? value / (double)n : k == 0 ? value * 1.5 : value * -0.5 / (double)(n - 1);
}

/* A rank's operand from the whole one. */
static void fill_local(const trial *t, uint32_t i, uint32_t rank, const ds_tensor *local)
{
    const ds_tensor whole = {t->whole->original[i], t->whole->in_meta[i]};
    const dsi_part part = dsi_placement_part(&t->mesh, &t->need[i], whole.meta.shape, rank);
    const dsi_part all = dsi_part_whole(whole.meta.shape);
    dsi_part_copy(&all, whole.data, &part, local->data, ds_dtype_bytes(whole.meta.dtype));
    const dsi_rank_group group = sum_group(t, &t->need[i], rank);
    for (int64_t e = 0; group.size > 1 && e < part.count; ++e) {
        put_element(local, e,
                    t->times_in[i] * addend(t, i, op_element(local, e), group.index, group.size));
    }
    const bool is_rng = whole.meta.dtype == DS_DTYPE_I64;
    if (is_rng && (t->rule.flags & DS_PLACE_SAMPLES) != 0) {
        const uint32_t x = t->c->op == &dsi_op_attention_backward ? 1 : 0;
        const dsi_part own =
            dsi_placement_part(&t->mesh, &t->need[x], t->whole->in_meta[x].shape, rank);
        ((int64_t *)local->data)[2] += own.offset[0];
    }
}

/* Runs a rank; its outputs stay in *o. */
static void run_rank(const trial *t, uint32_t rank, op_operands *o, op_case *local, char *text,
                     double *attrs)
{
    size_t at = 0;
    for (uint32_t i = 0; i < t->rule.n_in; ++i) {
        ds_meta meta = t->whole->in_meta[i];
        char one[128] = "-"; /* absent; what follows it is not read */
        if (meta.dtype != DS_DTYPE_NONE) {
            const dsi_part part = dsi_placement_part(&t->mesh, &t->need[i], meta.shape, rank);
            meta.shape = dsi_part_shape(&part);
            ds_meta_text(meta, one, sizeof one);
        }
        at += (size_t)snprintf(text + at, TEXT - at, "%s0 ", one); /* filled below */
    }
    dsi_rule_local_attrs(&t->rule, &t->mesh, t->need, t->out, rank, attrs);
    *local = (op_case){.op = t->c->op, .label = t->c->label, .in = text, .attrs = attrs};
    CHECK_OK(ctx, op_operands_create(ctx, local, t->act, o));
    for (uint32_t i = 0; i < t->rule.n_in; ++i) {
        if (o->original[i] != NULL) {
            const ds_tensor x = {o->original[i], o->in_meta[i]};
            fill_local(t, i, rank, &x);
        }
    }
    const ds_kernel *kernel = op_reference(&o->sig);
    assert_non_null(kernel);
    const ds_status status = op_operands_run(ctx, o, kernel, false);
    if (status < 0) {
        fail_msg("%s: rank %u: %s", t->label, rank, ds_ctx_error(ctx));
    }
}

/* By the coarsest dtype of the node. */
static double tolerance(const trial *t)
{
    double coarsest = 4e-6;
    for (uint32_t i = 0; i < DS_MAX_IN + DS_MAX_OUT; ++i) {
        const ds_dtype dtype =
            i < DS_MAX_IN ? t->whole->in_meta[i].dtype : t->whole->out_meta[i - DS_MAX_IN].dtype;
        const double own = dtype == DS_DTYPE_F16 ? 4e-3 : dtype == DS_DTYPE_BF16 ? 3e-2 : 0.0;
        coarsest = own > coarsest ? own : coarsest;
    }
    return coarsest * (t->c->loose > 0 ? t->c->loose : 1.0);
}

/* The largest magnitude of a tensor: what rounding is measured by. */
static double largest(const ds_tensor *t)
{
    double top = 0.0;
    for (int64_t e = 0; e < ds_shape_count(t->meta.shape); ++e) {
        top = fabs(op_element(t, e)) > top ? fabs(op_element(t, e)) : top;
    }
    return top;
}

/* Every element of an output on a rank that is no sum: the bits of the whole run. Averaged ones
 * within rounding. */
static void check_part(const trial *t, uint32_t o, uint32_t rank, const ds_tensor *got)
{
    const ds_tensor want = t->whole->out[o];
    const dsi_part part = dsi_placement_part(&t->mesh, &t->out[o], want.meta.shape, rank);
    const dsi_part all = dsi_part_whole(want.meta.shape);
    const size_t element = ds_dtype_bytes(want.meta.dtype);
    const int64_t n = part.slots;
    assert_true(ds_shape_count(got->meta.shape) == n);
    const ds_tensor cut = {calloc((size_t)n + 1, element), {want.meta.dtype, got->meta.shape}};
    dsi_part_copy(&all, want.data, &part, cut.data, element);
    if (t->times[o] == 1.0 && memcmp(cut.data, got->data, (size_t)part.count * element) != 0) {
        fail_msg("%s: output %u of rank %u has other bits than the whole run", t->label, o, rank);
    }
    for (int64_t e = part.count; e < n; ++e) { /* padding: a zero, of either sign */
        assert_true(op_element(got, e) == 0.0);
    }
    for (int64_t e = 0; t->times[o] != 1.0 && e < n; ++e) {
        const double w = op_element(&cut, e);
        if (!(fabs(op_element(got, e) / t->times[o] - w) <= tolerance(t) * largest(&want))) {
            fail_msg("%s: output %u of rank %u: element %lld is %g, expected %g", t->label, o, rank,
                     (long long)e, op_element(got, e) / t->times[o], w);
        }
    }
    free(cut.data);
}

/* Whether an element is the log of a sum: cross_entropy_join adds what it is the log of. */
static bool is_log(const trial *t, uint32_t o, int64_t e)
{
    return t->rule.op == &dsi_op_linear_cross_entropy_part && o == 0 && e % 2 == 0;
}

/* Whether ranks hold sums; then adds up what they have. A mean over rows is weighted by the rows
 * that each rank counted. */
static void check_sum(const trial *t, uint32_t o, const op_operands *ranks)
{
    const ds_tensor want = t->whole->out[o];
    const bool weighted = (t->rule.flags & DS_PLACE_MEAN_ROWS) != 0 && t->times[o] != 1.0 &&
                          want.meta.shape.n_dims == 0;
    const int64_t n = ds_shape_count(want.meta.shape);
    const ds_tensor sum = {calloc((size_t)n, sizeof(double)), {DS_DTYPE_F64, want.meta.shape}};
    const ds_tensor size = {calloc((size_t)n, sizeof(double)), {DS_DTYPE_F64, want.meta.shape}};
    const dsi_part all = dsi_part_whole(want.meta.shape);
    for (uint32_t rank = 0; rank < t->mesh.n_ranks; ++rank) {
        const dsi_part part = dsi_placement_part(&t->mesh, &t->out[o], want.meta.shape, rank);
        const double copies = /* ranks with the same addend, by replication */
            (double)t->mesh.n_ranks / (double)sum_group(t, &t->out[o], rank).size;
        int64_t *where = calloc((size_t)n + 1, sizeof *where);
        int64_t *places = calloc((size_t)n + 1, sizeof *places);
        for (int64_t e = 0; e < n; ++e) {
            places[e] = e;
        }
        dsi_part_copy(&all, places, &part, where, sizeof *where);
        bool cut = false;
        for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
            cut = cut || t->out[o].on[a].kind == DSI_SHARD;
        }
        const double weight = weighted ? op_element(&ranks[rank].out[2], 0) * t->times[o] : 1.0;
        for (int64_t e = 0; e < part.count; ++e) {
            const double term = op_element(&ranks[rank].out[o], e);
            const double x =
                (is_log(t, o, where[e]) ? exp(term) : term) * weight / (cut ? 1.0 : copies);
            ((double *)sum.data)[where[e]] += x;
            ((double *)size.data)[where[e]] += fabs(x);
        }
        free(where);
        free(places);
    }
    const double top = largest(&want);
    const double count = weighted ? op_element(&t->whole->out[2], 0) : 1.0;
    for (int64_t e = 0; e < n; ++e) {
        const double all_terms = op_element(&sum, e) / t->times[o] / (count > 0 ? count : 1.0);
        const double got = is_log(t, o, e) ? log(all_terms) : all_terms;
        const double scale = is_log(t, o, e)
                                 ? fabs(got)
                                 : op_element(&size, e) / t->times[o] / (count > 0 ? count : 1.0);
        const double w = op_element(&want, e);
        if (!(fabs(got - w) <= tolerance(t) * (scale + top) + 2e-7)) { /* f16's smallest */
            fail_msg("%s: output %u: the sum over ranks of element %lld is %.9g, expected %.9g",
                     t->label, o, (long long)e, got, w);
        }
    }
    free(sum.data);
    free(size.data);
    ++n_sums;
}

/* Exact sums in bins: joined, the number of the whole run. */
static void check_exact(const trial *t, uint32_t o, const op_operands *ranks)
{
    const ds_tensor *want = &t->whole->out[o];
    const uint32_t sums = dsi_placement_partial_axes(&t->out[o]);
    for (int64_t at = 0; at < ds_shape_count(want->meta.shape); at += DSI_EXACT_WIDE) {
        dsi_exact_bins got = {{0.0}};
        dsi_exact_bins whole = {{0.0}};
        dsi_exact_bins_join(&whole, (const double *)want->data + at);
        for (uint32_t rank = 0; rank < t->mesh.n_ranks; ++rank) {
            const dsi_coords coords = dsi_mesh_coords(&t->mesh, rank);
            bool first = true; /* of those that have the same */
            for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
                first = first && ((sums >> a & 1u) != 0 || coords.at[a] == 0);
            }
            if (first) {
                dsi_exact_bins_join(&got, (const double *)ranks[rank].out[o].data + at);
            }
        }
        if (dsi_exact_bins_total(got.at) != dsi_exact_bins_total(whole.at)) {
            fail_msg("%s: output %u: the exact sum is %.17g, expected %.17g", t->label, o,
                     dsi_exact_bins_total(got.at), dsi_exact_bins_total(whole.at));
        }
    }
    ++n_sums;
}

/* The largest of the ranks' scalars is the whole run's. */
static void check_max(const trial *t, uint32_t o, const op_operands *ranks)
{
    double most = -INFINITY;
    assert_int_equal(t->whole->out[o].meta.shape.n_dims, 0);
    for (uint32_t rank = 0; rank < t->mesh.n_ranks; ++rank) {
        most = fmax(most, op_element(&ranks[rank].out[o], 0));
    }
    if (most != op_element(&t->whole->out[o], 0)) {
        fail_msg("%s: output %u: the largest of the ranks' is %.9g, expected %.9g", t->label, o,
                 most, op_element(&t->whole->out[o], 0));
    }
}

static void run_trial(const trial *t)
{
    op_operands ranks[MOST_RANKS];
    op_case locals[MOST_RANKS];
    char texts[MOST_RANKS][TEXT];
    double attrs[MOST_RANKS][64];
    for (uint32_t r = 0; r < t->mesh.n_ranks; ++r) {
        run_rank(t, r, &ranks[r], &locals[r], texts[r], attrs[r]);
    }
    for (uint32_t o = 0; o < t->rule.n_out; ++o) {
        if (t->whole->out[o].data == NULL) {
            continue;
        }
        if (dsi_placement_partial_axes(&t->out[o]) != 0) {
            if (dsi_rule_terms(&t->rule) == DSI_TERMS_MAX) {
                check_max(t, o, ranks);
            } else if (dsi_rule_terms(&t->rule) == DSI_TERMS_EXACT &&
                       (t->rule.flags & DS_PLACE_ADDS_ALL) != 0 &&
                       ds_shape_count(t->whole->out[o].meta.shape) % DSI_EXACT_WIDE == 0) {
                check_exact(t, o, ranks);
            } else {
                check_sum(t, o, ranks);
            }
            continue;
        }
        for (uint32_t r = 0; r < t->mesh.n_ranks; ++r) {
            check_part(t, o, r, &ranks[r].out[o]);
        }
    }
    for (uint32_t r = 0; r < t->mesh.n_ranks; ++r) {
        op_operands_destroy(&ranks[r]);
    }
    ++n_run;
}

static void take(trial *t, dsi_axis axis, const dsi_strategy *s)
{
    for (uint32_t i = 0; i < t->rule.n_in; ++i) {
        t->need[i].on[axis] = s->in[i];
        t->times_in[i] *= (s->averaged_in >> i & 1u) != 0 ? (double)t->mesh.size[axis] : 1.0;
    }
    for (uint32_t o = 0; o < t->rule.n_out; ++o) {
        t->out[o].on[axis] = s->out[o];
        t->times[o] *= (s->averaged >> o & 1u) != 0 ? (double)t->mesh.size[axis] : 1.0;
    }
    dsi_rule_case_take(&t->rule, &t->mesh, axis, s);
    const size_t n = strlen(t->label);
    (void)snprintf(t->label + n, sizeof t->label - n, ", %s %s%c", dsi_axis_name(axis),
                   s->linear           ? "linear"
                   : s->letter != '\0' ? "cut "
                                       : "replicate",
                   s->letter != '\0' ? s->letter : ' ');
}

static dsi_place_policy all_agreed(void)
{
    dsi_place_policy policy = dsi_place_policy_default();
    policy.mean = policy.own = ~0u;
    return policy;
}

/* Whether it is one of those that are there for operands in so many blocks. */
static bool is_in_blocks(const dsi_strategy *s, uint32_t blocks)
{
    bool any = false;
    for (uint32_t i = 0; i < DS_MAX_IN; ++i) {
        any = any || s->in[i].blocks == blocks;
    }
    return any && blocks > 0;
}

/* Runs all strategies on the axes from the k-th on. */
static void each_strategy(trial *t, const dsi_axis *axes, uint32_t n_axes)
{
    if (n_axes == 0) {
        run_trial(t);
        return;
    }
    const dsi_place_policy policy = all_agreed();
    dsi_strategy list[DSI_RULE_STRATEGIES];
    static const uint32_t forms[] = {0, 1, 2, 3, DSI_PADDED};
    for (uint32_t k = 0; k < sizeof forms / sizeof forms[0]; ++k) {
        const uint32_t blocks = forms[k];
        const uint32_t n = dsi_rule_strategies(&t->rule, &t->mesh, axes[0], &policy, blocks, list);
        for (uint32_t i = 0; i < n; ++i) {
            if (blocks == 0 || is_in_blocks(&list[i], blocks)) {
                trial next = *t;
                take(&next, axes[0], &list[i]);
                each_strategy(&next, axes + 1, n_axes - 1);
            }
        }
    }
}

static bool is_small(const op_operands *o)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < o->sig.n_in; ++i) {
        n += o->in[i].data == NULL ? 0 : ds_shape_count(o->in_meta[i].shape);
    }
    return n <= MOST_ELEMENTS;
}

static void run_case(const op_case *c, ds_dtype act, const uint32_t *size, const dsi_axis *axes,
                     uint32_t n_axes)
{
    op_operands whole;
    CHECK_OK(ctx, op_operands_create(ctx, c, act, &whole));
    if (is_small(&whole)) {
        trial t = {.c = c, .act = act, .whole = &whole};
        CHECK_OK(ctx, op_operands_run(ctx, &whole, op_reference(&whole.sig), false));
        for (uint32_t i = 0; i < DS_MAX_IN; ++i) {
            t.times[i < DS_MAX_OUT ? i : 0] = t.times_in[i] = 1.0;
        }
        CHECK_OK(ctx, dsi_mesh_of(ctx, size, &t.mesh));
        dsi_rule_case_make(c->op, c->attrs, whole.in_meta, whole.sig.n_in, whole.out_meta,
                           whole.sig.n_out, &t.rule);
        (void)snprintf(t.label, sizeof t.label, "%s (%s) %s", c->op->name, c->label,
                       ds_dtype_name(act));
        each_strategy(&t, axes, n_axes);
    }
    op_operands_destroy(&whole);
}

/* What the harness's table lacks for rules: sizes that divide. */
#define RESHAPE(...)                                                                               \
    &(const dsi_reshape_attrs)                                                                     \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define CE  (&(const dsi_ce_attrs){.ignore_index = -100})
#define LCE (&(const dsi_linear_ce_attrs){.ce.ignore_index = -100})
static const op_case more_cases[] = {
    {.op = &dsi_op_linear,
     .label = "small, bias, residual",
     .in = "act[2,6,12] act[18,12] act[18] act[2,6,18]",
     .attrs = &(const dsi_linear_attrs){.transposed = 0}},
    {.op = &dsi_op_reshape,
     .label = "joins",
     .in = "act[4,6,12]",
     .attrs = RESHAPE(.n_dims = 2, .dims = {24, 12})},
    {.op = &dsi_op_reshape,
     .label = "splits",
     .in = "act[24,12]",
     .attrs = RESHAPE(.n_dims = 3, .dims = {4, 6, 12})},
    {.op = &dsi_op_reshape,
     .label = "heads",
     .in = "act[4,6,12]",
     .attrs = RESHAPE(.n_dims = 4, .dims = {4, 6, 6, 2})},
    {.op = &dsi_op_reshape,
     .label = "mixes",
     .in = "act[6,12]",
     .attrs = RESHAPE(.n_dims = 2, .dims = {12, 6})},
    {.op = &dsi_op_attention,
     .label = "six heads",
     .in = "act[6,5,48] act[6,5,48] act[6,5,48]",
     .attrs =
         &(const dsi_attention_attrs){
             .n_heads = 6, .n_kv_heads = 6, .head_dim = 8, .causal = 1, .scale = 0.3}},
    {.op = &dsi_op_linear_cross_entropy,
     .label = "rows",
     .in = "act[12,16] act[20,16] i32[12]<20m",
     .attrs = LCE},
    {.op = &dsi_op_linear_cross_entropy,
     .label = "rows, keeps",
     .in = "act[12,16] act[20,16] i32[12]<20m",
     .attrs = &(const dsi_linear_ce_attrs){.ce.ignore_index = -100, .keep = 1}},
    {.op = &dsi_op_linear_cross_entropy_dx,
     .label = "rows",
     .in = "stat[]=1.5 act[20,16] stat[12,20]~2 i32[12]<20m stat[12] stat[]",
     .attrs = CE,
     .loose = 4,
     .forward = &(const op_forward){&dsi_op_cross_entropy, CE, 2, {2, 3}, {-1, 4, 5}}},
    {.op = &dsi_op_linear_cross_entropy_dw,
     .label = "rows, adds",
     .in = "stat[]=1.5 act[12,16] stat[12,20]~2 i32[12]<20m stat[12] stat[] f32[20,16]~0.1",
     .attrs = CE,
     .loose = 4,
     .forward = &(const op_forward){&dsi_op_cross_entropy, CE, 2, {2, 3}, {-1, 4, 5}}},
    {.op = &dsi_op_linear_cross_entropy_backward,
     .label = "rows, adds",
     .in = "stat[]=1.5 act[12,16] act[20,16] i32[12]<20m stat[12] stat[] f32[20,16]~0.1",
     .attrs = &(const dsi_ce_backward_attrs){.ce.ignore_index = -100},
     .loose = 4,
     .forward =
         &(const op_forward){&dsi_op_linear_cross_entropy, LCE, 3, {1, 2, 3}, {-1, 4, 5, -1}}},
    {.op = &dsi_op_layer_norm_backward,
     .label = "small, residual",
     .in = "act[6,10] act[6,10] act[10] stat[6] stat[6] act[6,10]",
     .attrs = &(const dsi_norm_backward_attrs){.has_bias = 1},
     .loose = 2,
     .forward =
         &(const op_forward){
             &dsi_op_layer_norm, &(const dsi_norm_attrs){.eps = 1e-5}, 2, {1, 2}, {-1, 3, 4}}},
    {.op = &dsi_op_mean_all, .label = "even", .in = "act[6,12]"},
    {.op = NULL},
};

/* Rules of custom operators are read and run as those of the built-in ones. */
static const op_case own_cases[] = {
    {.op = &own_scale, .label = "own", .in = "f32[6,4,12] f32[12]", .flags = OP_F32},
    {.op = &own_scale_dw, .label = "own", .in = "f32[6,4,12] f32[6,4,12]", .flags = OP_F32},
    {.op = &own_plain, .label = "no rule", .in = "f32[6,4,12] f32[12]", .flags = OP_F32},
    {.op = NULL},
};

/* Such a weight is cut between panels of 16 rows, in files (test_serve_ranks), not by elements. */
static bool has_blocks(const op_case *c)
{
    return strstr(c->in, " q") != NULL;
}

static void run_table(const op_case *table, const uint32_t *size, const dsi_axis *axes,
                      uint32_t n_axes, uint32_t n_dtypes)
{
    for (const op_case *c = table; c->op != NULL; ++c) {
        for (uint32_t d = 0; op_case_dtype(c, d) != DS_DTYPE_NONE && d < n_dtypes && !has_blocks(c);
             ++d) {
            run_case(c, op_case_dtype(c, d), size, axes, n_axes);
        }
    }
}

static void test_one_axis(void **state)
{
    (void)state;
    static const dsi_axis axes[1] = {DSI_AXIS_TP};
    for (uint32_t n = 2; n <= 3; ++n) {
        const uint32_t size[DSI_AXIS_COUNT] = {1, 1, 1, 1, 1, n};
        run_table(op_cases, size, axes, 1, n == 2 ? 2 : 1);
        run_table(more_cases, size, axes, 1, 2);
        const uint32_t before = n_run;
        const uint32_t sums = n_sums;
        run_table(own_cases, size, axes, 1, 1);
        /* scale: replicated, three dims of x, a sum in x, one in w; dw: five and a sum each way;
         * without a rule: replicated. In two or three blocks: dims of 4, 6 and 12 where 2·ranks or
         * 3·ranks divide them */
        assert_int_equal(n_run - before, n == 2 ? 21 : 15);
        assert_true(n_sums > sums);
    }
    print_message("%u strategies, %u sums over ranks\n", n_run, n_sums);
    assert_true(n_run > 500 && n_sums > 100);
}

static void test_two_axes(void **state)
{
    (void)state;
    static const dsi_axis axes[2] = {DSI_AXIS_DPS, DSI_AXIS_TP};
    const uint32_t size[DSI_AXIS_COUNT] = {1, 1, 2, 1, 1, 2};
    run_table(op_cases, size, axes, 2, 1);
    run_table(more_cases, size, axes, 2, 1);
    run_table(own_cases, size, axes, 2, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_axis),
        cmocka_unit_test(test_two_axes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
