/* SPDX-License-Identifier: Apache-2.0 */
/* Where the operands of attention lie and which keys a query sees: plain C that the fast kernels of
 * every instruction set share.
 *
 * Invariants:
 *  1. The visible keys of a query are one range [first,last), as in the reference kernel.
 *  2. Everything here depends on the signature, and on `first` and `offset`, never on threads.
 */
#ifndef DSI_ACCEL_CPU_ATTN_SHAPE_H
#define DSI_ACCEL_CPU_ATTN_SHAPE_H

#include "op/alibi.h"
#include "op/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ATTN_MOST_HEAD_DIM = 1024 };

typedef struct attn_shape {
    const dsi_attention_attrs *a;
    ds_dtype type;
    int64_t n_batch, n_queries, n_keys, n_heads, n_kv;
    int64_t d, group;                      /* head dim; query heads a kv head */
    int64_t q_stride, kv_stride, y_stride; /* elements a token */
    int64_t k_at, v_at;                    /* first element of k and v in a token */
    bool bends;                            /* scores are capped or biased before the softmax */
    double factor; /* of scores in the softmax: scale, or 1 where they were bent, with it */
} attn_shape;

static inline bool attn_bends(const dsi_attention_attrs *a)
{
    return a->cap > 0.0 || a->alibi > 0.0;
}

/* at: index of q (or packed) among the inputs: 0 forward, 1 backward. */
static inline attn_shape attn_shape_of(const ds_kernel_sig *sig, uint32_t at)
{
    const dsi_attention_attrs *a = sig->attrs;
    const bool is_packed = a->packed != 0;
    const int64_t *q = sig->in[at].shape.dims;
    const int64_t *k = sig->in[is_packed ? at : at + 1].shape.dims;
    attn_shape s = {.a = a,
                    .type = sig->in[at].dtype,
                    .n_batch = q[0],
                    .n_queries = q[1],
                    .n_keys = k[1],
                    .n_heads = a->n_heads,
                    .n_kv = a->n_kv_heads,
                    .d = a->head_dim,
                    .group = a->n_heads / a->n_kv_heads,
                    .q_stride = q[2],
                    .kv_stride = k[2],
                    .y_stride = a->n_heads * a->head_dim,
                    .bends = attn_bends(a),
                    .factor = attn_bends(a) ? 1.0 : a->scale};
    s.k_at = is_packed ? s.n_heads * s.d : 0;
    s.v_at = is_packed ? (s.n_heads + s.n_kv) * s.d : 0;
    return s;
}

/* The operands of one call. k and v point at their first element, also when packed. */
typedef struct attn_data {
    const char *q, *k, *v;
    const int32_t *first, *offset, *end; /* NULL: absent */
    const int64_t *rng;                  /* NULL: no dropout */
    int64_t head0, row0, key0;           /* numbers of the first head, query and key among all */
    int64_t all_heads, all_rows, all_keys;
} attn_data;

static inline const void *attn_input(const ds_kernel_call *call, uint32_t i)
{
    return i < call->sig->n_in && call->in[i].meta.dtype != DS_DTYPE_NONE ? call->in[i].data : NULL;
}

static inline int64_t attn_first_number(const int32_t *numbers)
{
    return numbers != NULL ? numbers[0] : 0;
}

/* first_at, rng_at: where those inputs stand, and behind rng heads, rows, keys and end; offset_at
 * 0: none. */
static inline attn_data attn_data_of(const ds_kernel_call *call, const attn_shape *s, uint32_t at,
                                     uint32_t first_at, uint32_t offset_at, uint32_t rng_at)
{
    const bool is_packed = s->a->packed != 0;
    const int64_t each = (int64_t)ds_dtype_bytes(s->type);
    const char *q = call->in[at].data;
    const char *k = is_packed ? q : call->in[at + 1].data;
    const char *v = is_packed ? q : call->in[at + 2].data;
    const int32_t *heads = attn_input(call, rng_at + 1);
    const int32_t *rows = attn_input(call, rng_at + 2);
    const int32_t *keys = attn_input(call, rng_at + 3);
    const int64_t all_keys = keys != NULL ? s->a->all_keys : s->n_keys;
    return (attn_data){.q = q,
                       .k = k + s->k_at * each,
                       .v = v + s->v_at * each,
                       .first = attn_input(call, first_at),
                       .offset = offset_at != 0 ? attn_input(call, offset_at) : NULL,
                       .end = attn_input(call, rng_at + 4),
                       .rng = s->a->dropout > 0.0 ? attn_input(call, rng_at) : NULL,
                       .head0 = attn_first_number(heads),
                       .row0 = attn_first_number(rows),
                       .key0 = attn_first_number(keys),
                       .all_heads = heads != NULL ? s->a->all_heads : s->n_heads,
                       .all_rows = rows != NULL ? all_keys : s->n_queries,
                       .all_keys = all_keys};
}

/* Element index of query (b,i), head h, in a tensor with `stride` elements a token. */
static inline int64_t attn_query_at(const attn_shape *s, int64_t stride, int64_t b, int64_t i,
                                    int64_t h)
{
    return (b * s->n_queries + i) * stride + h * s->d;
}

static inline int64_t attn_key_at(const attn_shape *s, int64_t b, int64_t j, int64_t kv)
{
    return (b * s->n_keys + j) * s->kv_stride + kv * s->d;
}

/* Index of (b,h,i) in lse. */
static inline int64_t attn_stat_at(const attn_shape *s, int64_t b, int64_t h, int64_t i)
{
    return (b * s->n_heads + h) * s->n_queries + i;
}

/* Where query i of sample b stands among the keys. */
static inline int64_t attn_position(const attn_data *x, int64_t b, int64_t i)
{
    return x->row0 - x->key0 + i + (x->offset != NULL ? x->offset[b] : 0);
}

static inline float attn_slope(const attn_shape *s, const attn_data *x, int64_t h)
{
    return s->a->alibi > 0.0 ? (float)dsi_alibi_slope(s->a->alibi, x->all_heads, x->head0 + h)
                             : 0.0f;
}

/* From where position biases count the keys of query i, among the keys: the query itself, or, of
 * rounded ones, the beginning of its document. */
static inline int64_t attn_origin(const attn_shape *s, const attn_data *x, int64_t b, int64_t i)
{
    if (s->a->alibi_rounded == 0) {
        return attn_position(x, b, i);
    }
    return (x->first != NULL ? x->first[b * s->n_queries + i] : 0) - x->key0;
}

/* Keys [first,last). */
typedef struct attn_span {
    int64_t first, last;
} attn_span;

static inline attn_span attn_visible(const attn_shape *s, const attn_data *x, int64_t b, int64_t i)
{
    const int64_t position = attn_position(x, b, i);
    attn_span v = {0, s->n_keys};
    if (s->a->causal != 0 && position + 1 < v.last) {
        v.last = position + 1;
    }
    if (s->a->window > 0 && position - s->a->window + 1 > v.first) {
        v.first = position - s->a->window + 1;
    }
    if (s->a->window > 0 && position + s->a->window < v.last) {
        v.last = position + s->a->window;
    }
    if (x->first != NULL && x->first[b * s->n_queries + i] - x->key0 > v.first) {
        v.first = x->first[b * s->n_queries + i] - x->key0;
    }
    if (x->end != NULL && x->end[b * s->n_queries + i] - x->key0 < v.last) {
        v.last = x->end[b * s->n_queries + i] - x->key0;
    }
    if (v.last < v.first) {
        v = (attn_span){0, 0};
    }
    return v;
}

/* What a block of queries sees: any_* covers every visible key, all_* is seen by every query. */
typedef struct attn_reach {
    int64_t any_first, any_last, all_first, all_last;
} attn_reach;

static inline attn_reach attn_reach_none(void)
{
    return (attn_reach){INT64_MAX, 0, 0, INT64_MAX};
}

static inline void attn_reach_add(attn_reach *r, attn_span v)
{
    if (v.first < v.last) {
        r->any_first = v.first < r->any_first ? v.first : r->any_first;
        r->any_last = v.last > r->any_last ? v.last : r->any_last;
    }
    r->all_first = v.first > r->all_first ? v.first : r->all_first;
    r->all_last = v.last < r->all_last ? v.last : r->all_last;
}

/* Spans of queries [i,i+n) of sample b into first[] and last[], `lanes` entries: those past n
 * repeat the last query. */
static inline attn_reach attn_spans(const attn_shape *s, const attn_data *x, int64_t b, int64_t i,
                                    int64_t n, int64_t lanes, int32_t *first, int32_t *last)
{
    attn_reach reach = attn_reach_none();
    for (int64_t lane = 0; lane < lanes; ++lane) {
        const attn_span v = attn_visible(s, x, b, i + (lane < n ? lane : n - 1));
        attn_reach_add(&reach, v);
        first[lane] = (int32_t)v.first;
        last[lane] = (int32_t)v.last;
    }
    if (reach.any_first > reach.any_last) {
        reach.any_first = reach.any_last;
    }
    return reach;
}

/* No query of the block has a masked key in [begin,end). */
static inline bool attn_unmasked(const attn_reach *r, int64_t begin, int64_t end)
{
    return begin >= r->all_first && end <= r->all_last;
}

static inline int64_t attn_round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static inline int64_t attn_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The part of a kernel's supports() that all share. */
static inline bool attn_shape_fits(const ds_kernel_sig *sig, uint32_t at)
{
    const dsi_attention_attrs *a = sig->attrs;
    return a->head_dim <= ATTN_MOST_HEAD_DIM && a->scale > 0.0 &&
           ds_shape_count(sig->in[at].shape) > 0 &&
           (a->packed != 0 || ds_shape_count(sig->in[at + 1].shape) > 0) &&
           sig->in[at].shape.dims[1] < INT32_MAX / 2;
}

/* ---- work ------------------------------------------------------------------------------------ */
/* Lays out a workspace: base NULL only measures. */
typedef struct attn_carver {
    char *base;
    size_t bytes;
} attn_carver;

static inline void *attn_carve(attn_carver *c, size_t bytes)
{
    void *at = c->base != NULL ? c->base + c->bytes : NULL;
    c->bytes += (bytes + 63) / 64 * 64;
    return at;
}

/* Tasks: kv heads of all samples × chunks of queries (or keys). */
typedef struct attn_split {
    int64_t n_heads, n_chunks, length;
} attn_split;

/* Few heads for many threads: chunks of whole blocks, so that there are some four tasks a thread.
 */
static inline attn_split attn_split_of(const attn_shape *s, uint32_t n_threads, int64_t block)
{
    const int64_t heads = s->n_batch * s->n_kv;
    const int64_t wanted = 4 * (int64_t)n_threads;
    const int64_t blocks = (s->n_queries + block - 1) / block;
    const int64_t chunks =
        n_threads == 1 || heads >= wanted ? 1 : attn_min(blocks, (wanted + heads - 1) / heads);
    const int64_t length = (blocks + chunks - 1) / chunks * block;
    return (attn_split){heads, (s->n_queries + length - 1) / length, length};
}

/* Queries [begin,end) of kv head `head` (sample·n_kv + kv); later chunks, which see more, first. */
static inline void attn_range(const attn_split *p, int64_t n_queries, uint32_t task,
                              int64_t *head_out, int64_t *begin_out, int64_t *end_out)
{
    const int64_t chunk = p->n_chunks - 1 - (int64_t)task / p->n_heads;
    *head_out = (int64_t)task % p->n_heads;
    *begin_out = chunk * p->length;
    *end_out = attn_min(n_queries, *begin_out + p->length);
}

/* Query heads of a task where a query reads all keys: all of a group share what is made of its
 * keys; of fewer groups than keep the threads busy a divisor. Sums are of one head: the bits are
 * the same.
 */
static inline int64_t attn_heads_each(int64_t group, int64_t n_groups, uint32_t n_threads)
{
    const int64_t wanted = n_threads > 1 ? 2 * (int64_t)n_threads : 1;
    int64_t parts = 1;
    while (parts < group && (group % parts != 0 || n_groups * parts < wanted)) {
        ++parts;
    }
    return group / parts;
}

/* A workspace a thread: the pool must have no more threads than the signature said. */
static inline ds_status attn_check_threads(const ds_kernel_call *call)
{
    const uint32_t n = ds_ctx_n_threads(call->ctx);
    if (n > call->sig->n_threads) {
        return ds_fail(call->ctx, DS_ERR_ARG,
                       "%s: the context has %u threads, but the kernel was planned for %u",
                       call->sig->op->name, n, call->sig->n_threads);
    }
    return DS_OK;
}

#endif
