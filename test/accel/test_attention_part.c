/* SPDX-License-Identifier: Apache-2.0 */
/* attention_part and its gradient: a ring of parts, all in one tensor, against attention by its
 * definition in double precision: lengths that are odd, two to four parts, in halves and not,
 * windows, documents, grouped heads, position biases, dropout; every kernel of this machine, one
 * and three threads with the same bits.
 *
 * Each element of a result is a sum; the oracle gives with it the sum of its terms' magnitudes, A.
 * In fp32 (u = 2^-24) a score of d products is off by d·u of its magnitude, at most S here, so a
 * probability by a factor 1 + d·S·u; a sum of n terms adds n·u, each of the merges of 2·parts runs
 * some 8·u. A gradient has two such factors. So: (2·d·S + n + 16·parts)·u·A. In bf16 what a pair of
 * runs gives is rounded once and probabilities in tiles as well, u = 2^-9: 8·u·A covers those, the
 * result's own rounding, and y's in the gradient. */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/half.h"
#include "base/rng.h"
#include "common/check.h"
#include "ir/graph.h"
#include "op/alibi.h"
#include "op/isa.h"
#include "op/ops.h"
#include "op/sequence_order.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    int b, parts, each, h, kv, d;
    int halves, window, documents, any_order, sinks; /* any_order: documents end within a row */
    double alibi, dropout;
    int rounded; /* alibi_rounded */
    ds_dtype type;
} shape;

static const shape shapes[] = {
    /* b parts each h kv d */
    {2, 2, 7, 2, 1, 8, .type = DS_DTYPE_F32},
    {2, 2, 7, 2, 1, 8, .halves = 1, .type = DS_DTYPE_F32},
    {1, 3, 11, 3, 3, 16, .halves = 1, .type = DS_DTYPE_F32},
    {1, 3, 11, 4, 2, 16, .halves = 1, .documents = 1, .type = DS_DTYPE_F32},
    {1, 4, 9, 4, 2, 16, .window = 5, .type = DS_DTYPE_F32},
    {2, 4, 9, 4, 1, 16, .halves = 1, .window = 13, .documents = 1, .type = DS_DTYPE_F32},
    {1, 4, 1, 2, 2, 8, .halves = 1, .type = DS_DTYPE_F32},
    {1, 2, 70, 2, 1, 24, .halves = 1, .type = DS_DTYPE_F32},
    {2, 3, 5, 3, 3, 8, .halves = 1, .alibi = 8.0, .type = DS_DTYPE_F32},
    {2, 4, 9, 6, 3, 8, .halves = 1, .documents = 1, .alibi = 7.0, .rounded = 1,
     .type = DS_DTYPE_F32},
    {1, 3, 8, 2, 2, 8, .any_order = 1, .type = DS_DTYPE_F32},
    {2, 3, 8, 2, 1, 8, .any_order = 1, .documents = 1, .type = DS_DTYPE_F32},
    {1, 3, 9, 2, 2, 8, .any_order = 1, .documents = 1, .window = 4, .type = DS_DTYPE_F32},
    {1, 4, 8, 2, 2, 16, .any_order = 1, .window = 3, .type = DS_DTYPE_F32},
    {2, 3, 7, 4, 2, 8, .halves = 1, .sinks = 1, .type = DS_DTYPE_F32},
    {1, 2, 20, 2, 1, 16, .any_order = 1, .documents = 1, .sinks = 1, .type = DS_DTYPE_BF16},
    {2, 2, 8, 2, 1, 8, .halves = 1, .dropout = 0.3, .type = DS_DTYPE_F32},
    {2, 3, 5, 2, 1, 8, .halves = 1, .dropout = 0.3, .type = DS_DTYPE_F32},
    {1, 2, 33, 2, 1, 32, .halves = 1, .type = DS_DTYPE_BF16},
    {1, 4, 20, 4, 2, 64, .halves = 1, .documents = 1, .type = DS_DTYPE_BF16},
    {1, 3, 24, 2, 1, 32, .dropout = 0.2, .type = DS_DTYPE_BF16},
    {1, 2, 9, 2, 1, 16, .halves = 1, .type = DS_DTYPE_F16},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };
static const int64_t rng_state[4] = {77, 3, 5, 0};

/* ---- data: everything in the order of positions ---------------------------------------------- */

typedef struct problem {
    const shape *s;
    int64_t t, width, kv_width;
    double *q, *k, *v, *dy;
    int32_t *first, *end;
    double *dlse;  /* (B,H,T), where the result's lse is read too */
    int32_t *rows; /* of place i in the order of parts: its position */
    double *y, *lse, *dq, *dk, *dv;
    double *y_a, *dq_a, *dk_a, *dv_a; /* magnitudes */
    double most_score;
} problem;

static double rounded(ds_dtype type, double x)
{
    return type == DS_DTYPE_F32    ? (double)(float)x
           : type == DS_DTYPE_BF16 ? (double)dsi_bf16_to_f32(dsi_f32_to_bf16((float)x))
                                   : (double)dsi_f16_to_f32(dsi_f32_to_f16((float)x));
}

static double *zeros(int64_t n)
{
    double *x = calloc((size_t)n, sizeof *x);
    assert_non_null(x);
    return x;
}

static double *numbers(int64_t n, ds_dtype type, uint64_t seed)
{
    double *x = zeros(n);
    for (int64_t i = 0; i < n; ++i) {
        x[i] = rounded(type, 2.0 * dsi_rng_unit(dsi_rng_u32(seed, 1, 0, (uint64_t)i)) - 1.0);
    }
    return x;
}

static bool sees(const problem *p, int64_t b, int64_t i, int64_t j)
{
    const shape *s = p->s;
    return (s->any_order != 0 || j <= i) &&
           (s->window == 0 || (i - j < s->window && j - i < s->window)) &&
           (p->first == NULL || j >= p->first[b * p->t + i]) &&
           (p->end == NULL || j < p->end[b * p->t + i]);
}

static double kept(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (p->s->dropout == 0.0) {
        return 1.0;
    }
    const int64_t element = (((rng_state[2] + b) * p->s->h + h) * p->t + i) * p->t + j;
    const uint32_t word =
        dsi_rng_u32((uint64_t)rng_state[0], 11, (uint32_t)rng_state[1], (uint64_t)element);
    return dsi_rng_unit(word) >= (float)p->s->dropout ? 1.0 / (1.0 - p->s->dropout) : 0.0;
}

static double scale_of(const shape *s)
{
    return 2.0 / sqrt((double)s->d);
}

static double bias_of(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const shape *s = p->s;
    const double slope = s->alibi > 0.0 ? dsi_alibi_slope(s->alibi, s->h, h) : 0.0;
    if (s->rounded == 0) {
        return slope * (double)(j - i);
    }
    return scale_of(s) * dsi_alibi_bias(slope, j - (p->first != NULL ? p->first[b * p->t + i] : 0));
}

/* Query i of head h of sample b, by definition. */
static void oracle_query(problem *p, int64_t b, int64_t h, int64_t i, double *w, double *dw)
{
    const shape *s = p->s;
    const int64_t kv = h / (s->h / s->kv);
    const double *q = p->q + (b * p->t + i) * p->width + h * s->d;
    const double *dy = p->dy + (b * p->t + i) * p->width + h * s->d;
    double *y = p->y + (b * p->t + i) * p->width + h * s->d;
    double top = -INFINITY;
    double sum = 0.0;
    double delta = 0.0;
    for (int64_t j = 0; j < p->t; ++j) {
        const double *k = p->k + (b * p->t + j) * p->kv_width + kv * s->d;
        double score = 0.0;
        for (int64_t c = 0; c < s->d; ++c) {
            score += q[c] * k[c] * scale_of(s);
        }
        score += bias_of(p, b, h, i, j);
        w[j] = sees(p, b, i, j) ? score : -INFINITY;
        top = w[j] > top ? w[j] : top;
        p->most_score =
            w[j] != -INFINITY && fabs(score) > p->most_score ? fabs(score) : p->most_score;
    }
    for (int64_t j = 0; j < p->t; ++j) {
        w[j] = exp(w[j] - top);
        sum += w[j];
    }
    p->lse[(b * s->h + h) * p->t + i] = top + log(sum);
    for (int64_t j = 0; j < p->t; ++j) {
        const double *v = p->v + (b * p->t + j) * p->kv_width + kv * s->d;
        w[j] /= sum;
        dw[j] = 0.0;
        for (int64_t c = 0; c < s->d; ++c) {
            const double keep = kept(p, b, h, i, j);
            y[c] += w[j] * keep * v[c];
            p->y_a[y - p->y + c] += w[j] * keep * fabs(v[c]);
            dw[j] += dy[c] * v[c] * keep;
            p->dv[(b * p->t + j) * p->kv_width + kv * s->d + c] += w[j] * keep * dy[c];
            p->dv_a[(b * p->t + j) * p->kv_width + kv * s->d + c] += w[j] * keep * fabs(dy[c]);
        }
        delta += w[j] * dw[j];
    }
    double size = 0.0; /* of dy·v and dy·y: d terms of either sign */
    for (int64_t c = 0; c < s->d; ++c) {
        size += 2.0 * fabs(dy[c]) / (1.0 - s->dropout);
    }
    for (int64_t j = 0; j < p->t; ++j) {
        const double dlse = p->dlse != NULL ? p->dlse[(b * s->h + h) * p->t + i] : 0.0;
        const double ds = w[j] * (dw[j] - delta + dlse) * scale_of(s);
        const double ds_a = w[j] * (size + fabs(dlse)) * scale_of(s);
        for (int64_t c = 0; c < s->d; ++c) {
            const int64_t at_k = (b * p->t + j) * p->kv_width + kv * s->d + c;
            const int64_t at_q = (b * p->t + i) * p->width + h * s->d + c;
            p->dq[at_q] += ds * p->k[at_k];
            p->dq_a[at_q] += ds_a * fabs(p->k[at_k]);
            p->dk[at_k] += ds * q[c];
            p->dk_a[at_k] += ds_a * fabs(q[c]);
        }
    }
}

static problem make_problem(const shape *s)
{
    problem p = {.s = s, .t = s->parts * s->each, .width = s->h * s->d, .kv_width = s->kv * s->d};
    const int64_t n_q = s->b * p.t * p.width;
    const int64_t n_kv = s->b * p.t * p.kv_width;
    double *w = zeros(p.t);
    double *dw = zeros(p.t);
    p.q = numbers(n_q, s->type, 1);
    p.k = numbers(n_kv, s->type, 2);
    p.v = numbers(n_kv, s->type, 3);
    p.dy = numbers(n_q, s->type, 4);
    p.first = s->documents != 0 ? calloc((size_t)(s->b * p.t), sizeof *p.first) : NULL;
    for (int64_t i = 0; i < s->b * p.t && p.first != NULL; ++i) {
        p.first[i] = (int32_t)(i % p.t / 10 * 10); /* a document every ten positions */
    }
    p.end =
        p.first != NULL && s->any_order != 0 ? calloc((size_t)(s->b * p.t), sizeof *p.end) : NULL;
    for (int64_t i = 0; i < s->b * p.t && p.end != NULL; ++i) {
        const int64_t end = i % p.t / 10 * 10 + 10;
        p.end[i] = (int32_t)(end < p.t ? end : p.t);
    }
    p.dlse = s->sinks != 0 ? numbers(s->b * s->h * p.t, DS_DTYPE_F32, 5) : NULL;
    p.rows = calloc((size_t)p.t, sizeof *p.rows);
    for (int64_t i = 0; i < s->parts * DSI_SEQUENCE_RUNS; ++i) {
        const dsi_sequence_run run =
            dsi_sequence_run_of(p.t, s->parts, s->halves != 0, i / 2, (int)(i % 2));
        for (int64_t k = 0; k < run.n; ++k) {
            p.rows[i / 2 * s->each + run.at + k] = (int32_t)(run.from + k);
        }
    }
    p.y = zeros(n_q), p.dq = zeros(n_q), p.y_a = zeros(n_q), p.dq_a = zeros(n_q);
    p.dk = zeros(n_kv), p.dv = zeros(n_kv), p.dk_a = zeros(n_kv), p.dv_a = zeros(n_kv);
    p.lse = zeros(s->b * s->h * p.t);
    for (int64_t n = 0; n < s->b * s->h * p.t; ++n) {
        oracle_query(&p, n / (s->h * p.t), n / p.t % s->h, n % p.t, w, dw);
    }
    free(w);
    free(dw);
    return p;
}

static void free_problem(problem *p)
{
    double *all[] = {p->q,  p->k,  p->v,   p->dy,   p->y,    p->lse, p->dq,
                     p->dk, p->dv, p->y_a, p->dq_a, p->dk_a, p->dv_a};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        free(all[i]);
    }
    free(p->first);
    free(p->end);
    free(p->dlse);
    free(p->rows);
}

/* ---- the ring -------------------------------------------------------------------------------- */

/* (B,T,width) in the order of parts, as the type. */
static ds_tensor in_order(const problem *p, const double *x, int64_t width)
{
    const shape *s = p->s;
    ds_tensor t = {NULL, {s->type, ds_shape_3d(s->b, p->t, width)}};
    t.data = calloc((size_t)(s->b * p->t * width), ds_dtype_bytes(s->type));
    for (int64_t i = 0; i < s->b * p->t * width; ++i) {
        const int64_t row = i / width;
        const float value = (float)x[(row / p->t * p->t + p->rows[row % p->t]) * width + i % width];
        if (s->type == DS_DTYPE_F32) {
            ((float *)t.data)[i] = value;
        } else {
            ((uint16_t *)t.data)[i] =
                s->type == DS_DTYPE_BF16 ? dsi_f32_to_bf16(value) : dsi_f32_to_f16(value);
        }
    }
    return t;
}

static ds_tensor empty(ds_dtype dtype, ds_shape dims)
{
    ds_tensor t = {NULL, {dtype, dims}};
    t.data = calloc((size_t)ds_shape_count(dims), ds_dtype_bytes(dtype));
    assert_non_null(t.data);
    return t;
}

static double element(const ds_tensor *t, int64_t i)
{
    return t->meta.dtype == DS_DTYPE_F32    ? (double)((const float *)t->data)[i]
           : t->meta.dtype == DS_DTYPE_BF16 ? dsi_bf16_to_f32(((const uint16_t *)t->data)[i])
                                            : dsi_f16_to_f32(((const uint16_t *)t->data)[i]);
}

/* Each part in the place of the next, in every sample: what a shift does to ranks' parts. */
static void turn(const problem *p, ds_tensor *x)
{
    const size_t part =
        (size_t)(p->s->each * x->meta.shape.dims[2]) * ds_dtype_bytes(x->meta.dtype);
    const size_t n = (size_t)p->s->parts;
    char *copy = malloc(part * n);
    assert_non_null(copy);
    for (int b = 0; b < p->s->b; ++b) {
        char *at = (char *)x->data + (size_t)b * n * part;
        memcpy(copy, at, part * n);
        for (size_t i = 0; i < n; ++i) {
            memcpy(at + (i + 1) % n * part, copy + i * part, part);
        }
    }
    free(copy);
}

static void run(ds_ctx *ctx, const ds_op *op, ds_isa isa, const dsi_attention_part_attrs *attrs,
                const ds_tensor *in, uint32_t n_in, const ds_tensor *out, uint32_t n_out)
{
    ds_meta metas[DS_MAX_IN + DS_MAX_OUT];
    ds_meta inferred[DS_MAX_OUT];
    for (uint32_t i = 0; i < n_in; ++i) {
        metas[i] = in[i].meta;
    }
    for (uint32_t o = 0; o < n_out; ++o) {
        metas[n_in + o] = out[o].meta;
    }
    CHECK_OK(ctx, dsi_graph_infer(ctx, op, attrs, metas, n_in, inferred));
    for (uint32_t o = 0; o < n_out; ++o) {
        assert_true(inferred[o].dtype == out[o].meta.dtype &&
                    ds_shape_equal(inferred[o].shape, out[o].meta.shape));
    }
    const ds_kernel_sig sig = {.op = op,
                               .attrs = attrs,
                               .n_in = n_in,
                               .n_out = n_out,
                               .in = metas,
                               .out = metas + n_in,
                               .n_threads = ds_ctx_n_threads(ctx)};
    const ds_kernel *kernel = dsi_cpu_kernel_choose(&sig, isa);
    assert_non_null(kernel);
    void *work = aligned_alloc(64, kernel->work_bytes(&sig) / 64 * 64 + 64);
    const ds_kernel_call call = {ctx, &sig, in, out, work};
    CHECK_OK(ctx, kernel->run(&call));
    free(work);
}

/* y, lse, dq, dk, dv: in the order of parts. */
typedef struct results {
    ds_tensor out[5];
} results;

static results go_round(ds_ctx *ctx, const problem *p, ds_isa isa)
{
    const shape *s = p->s;
    const ds_shape q_shape = ds_shape_3d(s->b, p->t, p->width);
    const ds_shape kv_shape = ds_shape_3d(s->b, p->t, p->kv_width);
    ds_tensor q = in_order(p, p->q, p->width);
    ds_tensor k = in_order(p, p->k, p->kv_width);
    ds_tensor v = in_order(p, p->v, p->kv_width);
    ds_tensor dy = in_order(p, p->dy, p->width);
    ds_tensor rows = {p->rows, {DS_DTYPE_I32, ds_shape_1d(p->t)}};
    ds_tensor keys = empty(DS_DTYPE_I32, ds_shape_1d(p->t));
    ds_tensor first = {NULL, {0}};
    ds_tensor ends = {NULL, {0}};
    ds_tensor dlse = {NULL, {0}};
    ds_tensor heads = empty(DS_DTYPE_I32, ds_shape_1d(s->h));
    const ds_tensor rng = {(void *)(uintptr_t)rng_state, {DS_DTYPE_I64, ds_shape_1d(4)}};
    const ds_tensor none = {NULL, {0}};
    ds_tensor y[2] = {empty(DS_DTYPE_F32, q_shape), empty(DS_DTYPE_F32, q_shape)};
    ds_tensor lse[2] = {empty(DS_DTYPE_F32, ds_shape_3d(s->b, s->h, p->t)),
                        empty(DS_DTYPE_F32, ds_shape_3d(s->b, s->h, p->t))};
    ds_tensor dq[2] = {empty(DS_DTYPE_F32, q_shape), empty(DS_DTYPE_F32, q_shape)};
    ds_tensor dk[2] = {empty(DS_DTYPE_F32, kv_shape), empty(DS_DTYPE_F32, kv_shape)};
    ds_tensor dv[2] = {empty(DS_DTYPE_F32, kv_shape), empty(DS_DTYPE_F32, kv_shape)};
    ds_tensor y_last = empty(s->type, q_shape);
    ds_tensor dq_last = empty(s->type, q_shape);
    dsi_attention_part_attrs attrs = {.n_heads = s->h,
                                      .n_kv_heads = s->kv,
                                      .head_dim = s->d,
                                      .causal = s->any_order == 0,
                                      .window = s->window,
                                      .scale = scale_of(s),
                                      .dropout = s->dropout,
                                      .site = 11,
                                      .all_heads = s->h,
                                      .alibi = s->alibi,
                                      .alibi_rounded = s->rounded,
                                      .all_keys = p->t,
                                      .part = s->each};
    if (p->first != NULL) {
        first = empty(DS_DTYPE_I32, ds_shape_2d(s->b, p->t));
    }
    for (int64_t i = 0; i < s->b * p->t && p->first != NULL; ++i) {
        ((int32_t *)first.data)[i] = p->first[i / p->t * p->t + p->rows[i % p->t]];
    }
    if (p->end != NULL) {
        ends = empty(DS_DTYPE_I32, ds_shape_2d(s->b, p->t));
    }
    for (int64_t i = 0; i < s->b * p->t && p->end != NULL; ++i) {
        ((int32_t *)ends.data)[i] = p->end[i / p->t * p->t + p->rows[i % p->t]];
    }
    if (p->dlse != NULL) {
        dlse = empty(DS_DTYPE_F32, ds_shape_3d(s->b, s->h, p->t));
    }
    for (int64_t i = 0; i < s->b * s->h * p->t && p->dlse != NULL; ++i) {
        ((float *)dlse.data)[i] = (float)p->dlse[i / p->t * p->t + p->rows[i % p->t]];
    }
    for (int32_t h = 0; h < s->h; ++h) {
        ((int32_t *)heads.data)[h] = h;
    }
    for (int step = 0; step < 2 * s->parts; ++step) {
        const int at = step % s->parts;
        const bool last = at == s->parts - 1;
        const int now = step % 2;
        const bool begins = at == 0;
        attrs.last = last;
        for (int64_t i = 0; i < p->t; ++i) {
            ((int32_t *)keys.data)[i] = p->rows[(i + (s->parts - at) * s->each) % p->t];
        }
        if (step < s->parts) {
            const ds_tensor in[11] = {q,
                                      k,
                                      v,
                                      rows,
                                      keys,
                                      first,
                                      s->dropout > 0.0 ? rng : none,
                                      heads,
                                      begins ? none : y[!now],
                                      begins ? none : lse[!now],
                                      ends};
            const ds_tensor out[2] = {last ? y_last : y[now], lse[now]};
            run(ctx, &dsi_op_attention_part, isa, &attrs, in, 11, out, 2);
            if (last) {
                memcpy(lse[0].data, lse[now].data,
                       (size_t)ds_shape_count(lse[0].meta.shape) * sizeof(float));
            }
        } else {
            const ds_tensor in[16] = {dy,
                                      q,
                                      k,
                                      v,
                                      y_last,
                                      lse[0],
                                      rows,
                                      keys,
                                      first,
                                      s->dropout > 0.0 ? rng : none,
                                      heads,
                                      begins ? none : dq[!now],
                                      begins ? none : dk[!now],
                                      begins ? none : dv[!now],
                                      ends,
                                      dlse};
            const ds_tensor out[3] = {last ? dq_last : dq[now], dk[now], dv[now]};
            run(ctx, &dsi_op_attention_part_backward, isa, &attrs, in, 16, out, 3);
            turn(p, &dk[now]);
            turn(p, &dv[now]);
        }
        turn(p, &k); /* behind the last step, home */
        turn(p, &v);
    }
    const int end = (2 * s->parts - 1) % 2;
    results r = {{y_last, lse[0], dq_last, dk[end], dv[end]}};
    ds_tensor rest[] = {ends,  dlse, q,    k,      v,     dy,    keys,     first,
                        heads, y[0], y[1], lse[1], dq[0], dq[1], dk[!end], dv[!end]};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; ++i) {
        free(rest[i].data);
    }
    return r;
}

static void free_results(results *r)
{
    for (int o = 0; o < 5; ++o) {
        free(r->out[o].data);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static double tolerance(const problem *p, double magnitude)
{
    const shape *s = p->s;
    return s->type == DS_DTYPE_F32
               ? (2.0 * s->d * p->most_score + (double)p->t + 16.0 * s->parts) * 0x1p-24 * magnitude
           : s->type == DS_DTYPE_BF16 ? 8.0 * 0x1p-9 * magnitude
                                      : 8.0 * 0x1p-12 * magnitude + 0x1p-20;
}

static int compare(const problem *p, const char *name, const ds_tensor *got, const double *want,
                   const double *magnitude, int64_t width)
{
    int bad = 0;
    for (int64_t i = 0; i < ds_shape_count(got->meta.shape) && bad < 3; ++i) {
        const int64_t row = i / width;
        const int64_t at = (row / p->t * p->t + p->rows[row % p->t]) * width + i % width;
        const double x = element(got, i);
        if (!(fabs(x - want[at]) <= tolerance(p, magnitude[at]))) {
            print_error("shape %d, %s[%ld]: %.9g, expected %.9g, at most %.2g apart\n",
                        (int)(p->s - shapes), name, (long)at, x, want[at],
                        tolerance(p, magnitude[at]));
            ++bad;
        }
    }
    return bad;
}

static int check_lse(const problem *p, const ds_tensor *got)
{
    int bad = 0;
    const double most = p->s->type == DS_DTYPE_F32 ? tolerance(p, 1.0) : 0.03;
    for (int64_t i = 0; i < ds_shape_count(got->meta.shape); ++i) {
        const double want = p->lse[i / p->t * p->t + p->rows[i % p->t]];
        bad += !(fabs(element(got, i) - want) <= most * (1.0 + fabs(want)));
    }
    return bad;
}

static void a_ring_is_attention(void **state)
{
    (void)state;
    ds_ctx *one = check_ctx(1);
    ds_ctx *three = check_ctx(3);
    int bad = 0;
    for (int i = 0; i < N_SHAPES; ++i) {
        problem p = make_problem(&shapes[i]);
        for (uint32_t level = 0; level < DSI_ISA_LEVELS; ++level) {
            const ds_isa isa = dsi_isa_level(level);
            if ((isa & ~dsi_cpu_isa()) != 0) {
                continue;
            }
            results a = go_round(one, &p, isa);
            results b = go_round(three, &p, isa);
            bad += compare(&p, "y", &a.out[0], p.y, p.y_a, p.width);
            bad += check_lse(&p, &a.out[1]);
            bad += compare(&p, "dq", &a.out[2], p.dq, p.dq_a, p.width);
            bad += compare(&p, "dk", &a.out[3], p.dk, p.dk_a, p.kv_width);
            bad += compare(&p, "dv", &a.out[4], p.dv, p.dv_a, p.kv_width);
            for (int o = 0; o < 5; ++o) {
                bad +=
                    memcmp(a.out[o].data, b.out[o].data, (size_t)ds_meta_bytes(a.out[o].meta)) != 0;
            }
            free_results(&a);
            free_results(&b);
        }
        free_problem(&p);
    }
    ds_ctx_destroy(&one);
    ds_ctx_destroy(&three);
    assert_int_equal(bad, 0);
}

/* Each position once, and with halves as many visible pairs in each part, up to the odd one. */
static void parts_are_balanced(void **state)
{
    (void)state;
    for (int64_t parts = 1; parts <= 8; ++parts) {
        for (int64_t each = 1; each <= 9; ++each) {
            int64_t least = INT64_MAX;
            int64_t most = 0;
            uint8_t seen[72] = {0};
            for (int64_t part = 0; part < parts; ++part) {
                int64_t pairs = 0;
                for (int r = 0; r < DSI_SEQUENCE_RUNS; ++r) {
                    const dsi_sequence_run run =
                        dsi_sequence_run_of(parts * each, parts, true, part, r);
                    for (int64_t i = 0; i < run.n; ++i) {
                        ++seen[run.from + i];
                        pairs += run.from + i + 1;
                    }
                }
                least = pairs < least ? pairs : least;
                most = pairs > most ? pairs : most;
            }
            for (int64_t i = 0; i < parts * each; ++i) {
                assert_int_equal(seen[i], 1);
            }
            /* of an odd length the piece from the back is longer by one, so that the first part has
             * more: by parts - 1 positions of its last one, and of each of the others alike */
            assert_true(each % 2 == 0 ? least == most : most - least <= (parts - 1) * each);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_is_attention),
        cmocka_unit_test(parts_are_balanced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
