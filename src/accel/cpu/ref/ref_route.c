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
static size_t group_rows_work(const ds_kernel_sig *sig)
{
    const dsi_group_attrs *a = sig->attrs;
    return (size_t)a->n_experts * sizeof(int32_t);
}

static void group_rows_all(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_group_attrs *a = call->sig->attrs;
    const int32_t *experts = call->in[0].data;
    int32_t *place = call->out[0].data;
    int32_t *offsets = call->out[1].data;
    int32_t *next = call->work; /* an expert's next row */
    const int64_t n = ds_shape_count(call->in[0].meta.shape);
    const int64_t most = a->capacity > 0 && a->capacity < n ? a->capacity : n;
    (void)begin;
    (void)end;
    (void)slot;
    memset(next, 0, (size_t)a->n_experts * sizeof *next);
    for (int64_t i = 0; i < n; ++i) {
        next[experts[i]] += next[experts[i]] < most ? 1 : 0;
    }
    offsets[0] = 0;
    for (int64_t e = 0; e < a->n_experts; ++e) {
        offsets[e + 1] = offsets[e] + next[e];
        next[e] = offsets[e];
    }
    int32_t behind = offsets[a->n_experts];
    for (int64_t i = 0; i < n; ++i) {
        const int32_t e = experts[i];
        place[i] = next[e] < offsets[e + 1] ? next[e]++ : behind++;
    }
}

static ds_status group_rows_run(const ds_kernel_call *call)
{
    const dsi_group_attrs *a = call->sig->attrs;
    DS_TRY(check_experts(call, &call->in[0], a->n_experts));
    dsi_ref_serial(call, group_rows_all);
    return DS_OK;
}

static void group_sizes_all(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int32_t *offsets = call->in[0].data;
    (void)slot;
    for (int64_t e = begin; e < end; ++e) {
        ((float *)call->out[0].data)[e] = (float)((int64_t)offsets[e + 1] - offsets[e]);
    }
}

static ds_status group_sizes_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), group_sizes_all);
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

REF_KERNEL(expert_segments, expert_segments_run, NULL);
REF_KERNEL(route, route_run, route_work);
REF_KERNEL(route_backward, route_backward_run, route_backward_work);
REF_KERNEL(group_rows, group_rows_run, group_rows_work);
REF_KERNEL(group_sizes, group_sizes_run, NULL);
const ds_kernel *const DSI_REF(route)[] = {&route_kernel,           &route_backward_kernel,
                                           &group_rows_kernel,      &group_sizes_kernel,
                                           &expert_segments_kernel, NULL};
