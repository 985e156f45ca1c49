/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of route, its gradient, group_rows and group_sizes. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

#include <string.h>

/* ---- route: items are tokens -------------------------------------------------------------------
 */
/* Of one token; all of E but `left`. */
typedef struct choice {
    real *score;  /* of each expert, the weight of a chosen one */
    real *chance; /* score + bias: what is chosen by */
    real *left;   /* 1: may be chosen */
} choice;

static size_t route_work(const ds_kernel_sig *sig)
{
    return ref_slot_bytes(sig, 3 * ds_shape_last(sig->in[0].shape));
}

static real sigmoid(real x)
{
    return R(1.0) / (R(1.0) + r_exp(-x));
}

static void softmax(const ds_tensor *logits, int64_t at, int64_t n, real *out)
{
    real top = -(real)INFINITY;
    real sum = R(0.0);
    for (int64_t e = 0; e < n; ++e) {
        out[e] = ref_get(logits, at + e);
        top = out[e] > top ? out[e] : top;
    }
    for (int64_t e = 0; e < n; ++e) {
        out[e] = r_exp(out[e] - top);
        sum += out[e];
    }
    for (int64_t e = 0; e < n; ++e) {
        out[e] = out[e] / sum;
    }
}

static void scores(const dsi_route_attrs *a, const ds_tensor *logits, int64_t at, int64_t n,
                   real *out)
{
    if (a->score == DSI_SCORE_SOFTMAX) {
        softmax(logits, at, n, out);
        return;
    }
    for (int64_t e = 0; e < n; ++e) {
        out[e] = sigmoid(ref_get(logits, at + e));
    }
}

/* The largest of value[begin,end) where left is not 0, the first of equal ones. */
static int64_t largest(const real *value, const real *left, int64_t begin, int64_t end)
{
    int64_t best = -1;
    for (int64_t e = begin; e < end; ++e) {
        if (left[e] != R(0.0) && (best < 0 || value[e] > value[best])) {
            best = e;
        }
    }
    return best;
}

static real group_score(const dsi_route_attrs *a, const choice *c, int64_t begin, int64_t end)
{
    const int64_t first = largest(c->chance, c->left, begin, end);
    if (a->group_by == DSI_GROUP_MAX || end - begin < 2) {
        return c->chance[first];
    }
    c->left[first] = R(0.0);
    const int64_t second = largest(c->chance, c->left, begin, end);
    c->left[first] = R(1.0);
    return c->chance[first] + c->chance[second];
}

/* Whether group g is among the top_groups: how many are before it. */
static bool is_kept(const dsi_route_attrs *a, const choice *c, int64_t g, int64_t each)
{
    const real own = group_score(a, c, g * each, (g + 1) * each);
    int64_t before = 0;
    for (int64_t other = 0; other < a->n_groups; ++other) {
        const real score = group_score(a, c, other * each, (other + 1) * each);
        before += other != g && (score > own || (score == own && other < g)) ? 1 : 0;
    }
    return before < a->top_groups;
}

/* Leaves the experts of the best groups, once all are judged. At most 64 groups: a bit each. */
static void keep_groups(const dsi_route_attrs *a, choice *c, int64_t n)
{
    const int64_t each = n / a->n_groups;
    uint64_t kept = 0;
    for (int64_t g = 0; g < a->n_groups; ++g) {
        kept |= is_kept(a, c, g, each) ? (uint64_t)1 << g : 0;
    }
    for (int64_t e = 0; e < n; ++e) {
        c->left[e] = (kept >> (e / each)) & 1 ? R(1.0) : R(0.0);
    }
}

static void route_token(const ds_kernel_call *call, int64_t token, choice *c)
{
    const dsi_route_attrs *a = call->sig->attrs;
    const ds_tensor *logits = &call->in[0];
    const ds_tensor *bias = ref_in(call, 1);
    const ds_tensor *noisy = ref_in(call, 2);
    const int64_t n = ds_shape_last(logits->meta.shape);
    int32_t *experts = (int32_t *)call->out[1].data + token * a->n_chosen;
    real sum = a->score == DSI_SCORE_SIGMOID ? R(1e-20) : R(0.0);
    scores(a, logits, token * n, n, c->score);
    for (int64_t e = 0; e < n; ++e) {
        /* softmax keeps the order, but rounds unequal logits to equal scores */
        const bool plain = bias == NULL && a->score == DSI_SCORE_SOFTMAX && a->n_groups <= 1;
        c->chance[e] = plain          ? ref_get(logits, token * n + e)
                       : bias != NULL ? c->score[e] + ref_get(bias, e)
                                      : c->score[e];
        c->left[e] = R(1.0);
    }
    if (a->n_groups > 1) {
        keep_groups(a, c, n);
    }
    for (int64_t j = 0; j < a->n_chosen; ++j) {
        for (int64_t e = 0; noisy != NULL && j == a->noisy_from && e < n; ++e) {
            c->chance[e] = ref_get(noisy, token * n + e);
        }
        experts[j] = (int32_t)largest(c->chance, c->left, 0, n);
        c->left[experts[j]] = R(0.0);
        sum += c->score[experts[j]];
    }
    for (int64_t j = 0; j < a->n_chosen; ++j) {
        const real score = c->score[experts[j]];
        ref_set(&call->out[0], token * a->n_chosen + j,
                (a->normalise != 0 ? score / sum : score) * (real)a->factor);
    }
}

static void route_tokens(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t n = ds_shape_last(call->in[0].meta.shape);
    real *work = ref_slot(call, slot, 3 * n);
    choice c = {work, work + n, work + 2 * n};
    for (int64_t token = begin; token < end; ++token) {
        route_token(call, token, &c);
    }
}

static ds_status route_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_rows(call->in[0].meta.shape), route_tokens);
    return DS_OK;
}

/* ---- route_backward: items are tokens ----------------------------------------------------------
 */
static size_t route_backward_work(const ds_kernel_sig *sig)
{
    return ref_slot_bytes(sig, 2 * ds_shape_last(sig->in[1].shape));
}

/* d[e]: the gradient of each score, from those of the chosen weights. */
static void score_gradients(const ds_kernel_call *call, int64_t token, const real *s, real *d)
{
    const dsi_route_attrs *a = call->sig->attrs;
    const int64_t n = ds_shape_last(call->in[1].meta.shape);
    const int64_t at = token * a->n_chosen;
    const int32_t *experts = (const int32_t *)call->in[2].data + at;
    real sum = a->score == DSI_SCORE_SIGMOID ? R(1e-20) : R(0.0);
    real mean = R(0.0);
    for (int64_t e = 0; e < n; ++e) {
        d[e] = R(0.0);
    }
    for (int64_t j = 0; j < a->n_chosen; ++j) {
        sum += s[experts[j]];
    }
    for (int64_t j = 0; j < a->n_chosen; ++j) {
        mean += ref_get(&call->in[0], at + j) * (s[experts[j]] / sum);
    }
    for (int64_t j = 0; j < a->n_chosen; ++j) {
        const real g = ref_get(&call->in[0], at + j);
        d[experts[j]] = (a->normalise != 0 ? (g - mean) / sum : g) * (real)a->factor;
    }
}

static void route_backward_tokens(const ds_kernel_call *call, int64_t begin, int64_t end,
                                  uint32_t slot)
{
    const dsi_route_attrs *a = call->sig->attrs;
    const int64_t n = ds_shape_last(call->in[1].meta.shape);
    real *s = ref_slot(call, slot, 2 * n);
    real *d = s + n;
    for (int64_t token = begin; token < end; ++token) {
        scores(a, &call->in[1], token * n, n, s);
        score_gradients(call, token, s, d);
        real mean = R(0.0); /* softmax: of d, by s */
        for (int64_t e = 0; e < n; ++e) {
            mean += d[e] * s[e];
        }
        for (int64_t e = 0; e < n; ++e) {
            ref_set(&call->out[0], token * n + e,
                    a->score == DSI_SCORE_SOFTMAX ? s[e] * (d[e] - mean)
                                                  : s[e] * (R(1.0) - s[e]) * d[e]);
        }
    }
}

static ds_status check_experts(const ds_kernel_call *call, const ds_tensor *experts, int64_t n)
{
    const int32_t *id = experts->data;
    const int64_t count = ds_shape_count(experts->meta.shape);
    for (int64_t i = 0; i < count; ++i) {
        if (id[i] < 0 || id[i] >= n) {
            return ds_fail(call->ctx, DS_ERR_ARG, "%s: expert %lld is %d, but there are %lld",
                           call->sig->op->name, (long long)i, id[i], (long long)n);
        }
    }
    return DS_OK;
}

static ds_status route_backward_run(const ds_kernel_call *call)
{
    const int64_t n = ds_shape_last(call->in[1].meta.shape);
    DS_TRY(check_experts(call, &call->in[2], n));
    dsi_ref_for(call, ds_shape_rows(call->in[1].meta.shape), route_backward_tokens);
    return DS_OK;
}

/* ---- group_rows: one counting sort -------------------------------------------------------------
 */
/* An expert's next row; where not all pairs may be taken, also whether a pair is, and their order.
 */
static size_t group_rows_work(const ds_kernel_sig *sig)
{
    const dsi_group_attrs *a = sig->attrs;
    const size_t n_pairs = (size_t)ds_shape_count(sig->in[0].shape);
    return ((size_t)a->n_experts + (a->capacity > 0 ? 2 * n_pairs : 0)) * sizeof(int32_t);
}

/* Whether pair i comes before pair j where an expert takes the first so many. */
static bool comes_first(const ds_kernel_call *call, int64_t i, int64_t j)
{
    const dsi_group_attrs *a = call->sig->attrs;
    const int64_t k = ds_shape_last(call->in[0].meta.shape);
    if (a->take == DSI_TAKE_CHOICES && i % k != j % k) {
        return i % k < j % k;
    }
    if (a->take == DSI_TAKE_SCORES) {
        const real x = ref_get(&call->in[1], i);
        const real y = ref_get(&call->in[1], j);
        return x > y || (x == y && i < j);
    }
    return i < j;
}

/* Sinks order[at] in a heap of n whose root comes last. */
static void sink(const ds_kernel_call *call, int32_t *order, int64_t at, int64_t n)
{
    for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        child += child + 1 < n && comes_first(call, order[child], order[child + 1]) ? 1 : 0;
        if (!comes_first(call, order[at], order[child])) {
            return;
        }
        const int32_t held = order[at];
        order[at] = order[child];
        order[child] = held;
        at = child;
    }
}

/* All pairs, the first to be taken first. */
static void order_pairs(const ds_kernel_call *call, int32_t *order)
{
    const int64_t n = ds_shape_count(call->in[0].meta.shape);
    for (int64_t i = 0; i < n; ++i) {
        order[i] = (int32_t)i;
    }
    for (int64_t i = n / 2; i-- > 0;) {
        sink(call, order, i, n);
    }
    for (int64_t left = n; left-- > 1;) {
        const int32_t last = order[0];
        order[0] = order[left];
        order[left] = last;
        sink(call, order, 0, left);
    }
}

/* taken[i]: whether pair i is among the first pairs of its expert, `capacity` at most. count: of
 * each expert, 0 at first. order: room for all pairs. */
static void take_pairs(const ds_kernel_call *call, int32_t *count, int32_t *taken, int32_t *order)
{
    const dsi_group_attrs *a = call->sig->attrs;
    const int32_t *experts = call->in[0].data;
    const int64_t n = ds_shape_count(call->in[0].meta.shape);
    order_pairs(call, order);
    for (int64_t at = 0; at < n; ++at) {
        const int32_t e = experts[order[at]];
        taken[order[at]] = count[e] < a->capacity ? 1 : 0;
        count[e] += taken[order[at]];
    }
}

static void group_rows_all(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_group_attrs *a = call->sig->attrs;
    const int32_t *experts = call->in[0].data;
    int32_t *place = call->out[0].data;
    int32_t *offsets = call->out[1].data;
    int32_t *next = call->work; /* an expert's next row */
    const int64_t n = ds_shape_count(call->in[0].meta.shape);
    int32_t *taken = a->capacity > 0 ? next + a->n_experts : NULL;
    (void)begin;
    (void)end;
    (void)slot;
    memset(next, 0, (size_t)a->n_experts * sizeof *next);
    if (taken != NULL) {
        take_pairs(call, next, taken, taken + n);
    }
    for (int64_t i = 0; i < n && taken == NULL; ++i) {
        next[experts[i]] += 1;
    }
    offsets[0] = 0;
    for (int64_t e = 0; e < a->n_experts; ++e) {
        offsets[e + 1] = offsets[e] + next[e];
        next[e] = offsets[e];
    }
    int32_t behind = offsets[a->n_experts];
    for (int64_t i = 0; i < n; ++i) {
        const int32_t e = experts[i];
        place[i] = taken == NULL || taken[i] != 0 ? next[e]++ : behind++;
    }
}

static ds_status group_rows_run(const ds_kernel_call *call)
{
    const dsi_group_attrs *a = call->sig->attrs;
    DS_TRY(check_experts(call, &call->in[0], a->n_experts));
    if (a->parts > 1) {
        return ds_fail(call->ctx, DS_ERR_INTERNAL, "%s: parts are of a logical graph",
                       call->sig->op->name);
    }
    dsi_ref_serial(call, group_rows_all);
    return DS_OK;
}

static void group_sizes_all(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int32_t *offsets = call->in[0].data;
    (void)slot;
    for (int64_t e = begin; e < end; ++e) {
        const int64_t n = ds_shape_count(call->in[0].meta.shape);
        const int64_t each = ds_shape_count(call->out[0].meta.shape) + 1;
        int64_t size = 0;
        for (int64_t at = e; at < n; at += each) {
            size += (int64_t)offsets[at + 1] - offsets[at];
        }
        ((float *)call->out[0].data)[e] = (float)size;
    }
}

static ds_status group_sizes_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), group_sizes_all);
    return DS_OK;
}

/* ---- kept_weights: items are tokens ------------------------------------------------------------
 */
/* dy: NULL in the forward pass. */
static void kept_token(const ds_kernel_call *call, int64_t token, const ds_tensor *dy)
{
    const dsi_kept_attrs *a = call->sig->attrs;
    const ds_tensor *in = call->in + (dy != NULL ? 1 : 0);
    const int64_t k = ds_shape_last(in[0].meta.shape);
    const int32_t *place = (const int32_t *)in[1].data + token * k;
    const int32_t end = ((const int32_t *)in[2].data)[ds_shape_count(in[2].meta.shape) - 1];
    real sum = R(0.0);
    real mean = R(0.0); /* of dy, by the weights */
    for (int64_t j = 0; j < k; ++j) {
        const real w = place[j] < end ? ref_get(&in[0], token * k + j) : R(0.0);
        sum += w;
        mean += dy != NULL ? ref_get(dy, token * k + j) * w : R(0.0);
    }
    const bool divides = a->normalise != 0 && sum > R(0.0);
    for (int64_t j = 0; j < k; ++j) {
        const int64_t at = token * k + j;
        const real d =
            dy != NULL ? ref_get(dy, at) - (divides ? mean / sum : R(0.0)) : ref_get(&in[0], at);
        ref_set(&call->out[0], at, place[j] >= end ? R(0.0) : divides ? d / sum : d);
    }
}

static void kept_tokens(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const bool backward = call->sig->op == &dsi_op_kept_weights_backward;
    (void)slot;
    for (int64_t token = begin; token < end; ++token) {
        kept_token(call, token, backward ? &call->in[0] : NULL);
    }
}

static ds_status kept_weights_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_rows(call->out[0].meta.shape), kept_tokens);
    return DS_OK;
}

/* ---- expert_segments ---------------------------------------------------------------------------
 */
static ds_status check_table(const ds_kernel_call *call)
{
    const dsi_expert_ranks_attrs *a = call->sig->attrs;
    const int32_t *table = call->in[0].data;
    const int64_t n = call->in[0].meta.shape.dims[1];
    const int64_t each = (n - 1) / a->n_ranks;
    int64_t total = 0;
    for (int64_t i = 0; i < a->n_ranks * n; ++i) {
        const int64_t least = i % n == 0 ? 0 : table[i - 1];
        if (table[i] < least || (i % n == 0 && table[i] != 0)) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "%s: the offset of expert %lld on rank %lld is %d, expected %s%lld",
                           call->sig->op->name, (long long)(i % n), (long long)(i / n), table[i],
                           i % n == 0 ? "" : "at least ", (long long)least);
        }
    }
    for (int64_t e = 0; e < n - 1; ++e) {
        total = e % each == 0 ? 0 : total;
        for (int64_t s = 0; s < a->n_ranks; ++s) {
            total += table[s * n + e + 1] - table[s * n + e];
        }
        if (total > a->n_rows) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "%s: with expert %lld a rank gets %lld rows, but there is room for %lld",
                           call->sig->op->name, (long long)e, (long long)total,
                           (long long)a->n_rows);
        }
    }
    return DS_OK;
}

static void expert_segments_all(const ds_kernel_call *call, int64_t begin, int64_t end,
                                uint32_t slot)
{
    const dsi_expert_ranks_attrs *a = call->sig->attrs;
    const int32_t *table = call->in[0].data;
    const int64_t n = call->in[0].meta.shape.dims[1];
    const int64_t each = (n - 1) / a->n_ranks; /* experts of a rank */
    (void)slot;
    for (int64_t rank = begin; rank < end; ++rank) {
        int32_t *to = (int32_t *)call->out[0].data + rank * n;
        to[0] = 0;
        for (int64_t g = 0; g < n - 1; ++g) {
            const int32_t *from = table + g / each * n + rank * each + g % each;
            to[g + 1] = to[g] + from[1] - from[0];
        }
    }
}

static ds_status expert_segments_run(const ds_kernel_call *call)
{
    const dsi_expert_ranks_attrs *a = call->sig->attrs;
    DS_TRY(check_table(call));
    dsi_ref_for(call, a->n_ranks, expert_segments_all);
    return DS_OK;
}

REF_KERNEL(kept_weights, kept_weights_run, NULL);
REF_KERNEL(kept_weights_backward, kept_weights_run, NULL);
REF_KERNEL(expert_segments, expert_segments_run, NULL);
REF_KERNEL(route, route_run, route_work);
REF_KERNEL(route_backward, route_backward_run, route_backward_work);
REF_KERNEL(group_rows, group_rows_run, group_rows_work);
REF_KERNEL(group_sizes, group_sizes_run, NULL);
const ds_kernel *const DSI_REF(route)[] = {&route_kernel,           &route_backward_kernel,
                                           &group_rows_kernel,      &group_sizes_kernel,
                                           &kept_weights_kernel,    &kept_weights_backward_kernel,
                                           &expert_segments_kernel, NULL};
