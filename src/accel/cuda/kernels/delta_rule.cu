/* SPDX-License-Identifier: Apache-2.0 */
/* delta_rule and its forms that go on from a cell, position by position: a block has 32 columns of
 * the state of one head, a thread every eighth row of one of them in registers. Columns do not
 * meet, so that a position has the same bits however many are given at once. */
#include "accel/cuda/kernels/delta_tile.h"

typedef struct delta_shared {
    float q[DSC_DELTA_DIM], k[DSC_DELTA_DIM];
    float error[DSC_DELTA_WARPS][33], y[DSC_DELTA_WARPS][33];
    float parts[32];
} delta_shared;

/* A block's columns of one head's state. */
typedef struct columns {
    int64_t b, head, column; /* column: this thread's */
    bool has;                /* whether it is one */
} columns;

/* The grid's item as (.., head, 32 columns); returns what is before them. */
DSC_INLINE int64_t columns_of(const dsc_delta_args *a, int64_t item, columns *c)
{
    const int64_t strips = (a->value_dim + 31) / 32;
    c->column = item % strips * 32 + threadIdx.x % 32;
    c->has = c->column < a->value_dim;
    c->head = item / strips % a->heads;
    c->b = 0;
    return item / strips / a->heads;
}

/* Elements of the state at `from`, of so many that this thread has. */
DSC_INLINE void load_state(const dsc_delta_args *a, const columns *c, const float *from,
                           float s[DSC_DELTA_ROWS])
{
    DSC_UNROLL
    for (int r = 0; r < DSC_DELTA_ROWS; ++r) {
        const int64_t i = threadIdx.x / 32 + DSC_DELTA_WARPS * r;
        s[r] = from != NULL && c->has && i < a->key_dim ? from[i * a->value_dim + c->column] : 0.0f;
    }
}

DSC_INLINE void store_state(const dsc_delta_args *a, const columns *c,
                            const float s[DSC_DELTA_ROWS], float *to)
{
    DSC_UNROLL
    for (int r = 0; r < DSC_DELTA_ROWS; ++r) {
        const int64_t i = threadIdx.x / 32 + DSC_DELTA_WARPS * r;
        if (c->has && i < a->key_dim) {
            to[i * a->value_dim + c->column] = s[r];
        }
    }
}

/* Σ over the warps of this thread's column. */
DSC_INLINE float over_warps(float sums[DSC_DELTA_WARPS][33])
{
    float sum = 0.0f;
    for (int w = 0; w < DSC_DELTA_WARPS; ++w) {
        sum += sums[w][threadIdx.x % 32];
    }
    return sum;
}

/* One position on. */
DSC_INLINE void advance(const dsc_delta_args *a, int act, const columns *c, int64_t t,
                        float s[DSC_DELTA_ROWS], delta_shared *m)
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const int64_t gate = gate_at(a, c->b, t, c->head);
    const int64_t at = key_at(a, c->b, t, c->head / (a->heads / a->key_heads));
    const float decay = decay_at(a, c->b, t, c->head);
    const float beta = dsc_get(a->beta, act, gate);
    const bool begins = is_begin(a, c->b, t);
    (void)take_unit(a, a->q, act, at, a->scale, m->q, m->parts);
    (void)take_unit(a, a->k, act, at, 1.0f, m->k, m->parts);
    __syncthreads();
    float held = 0.0f;
    DSC_UNROLL
    for (int r = 0; r < DSC_DELTA_ROWS; ++r) {
        const int64_t i = warp + DSC_DELTA_WARPS * r;
        if (i < a->key_dim) {
            s[r] = begins ? 0.0f : s[r] * decay;
            held += s[r] * m->k[i];
        }
    }
    m->error[warp][lane] = held;
    __syncthreads();
    const float v = c->has ? dsc_get(a->v, act, gate * a->value_dim + c->column) : 0.0f;
    const float added = beta * (v - over_warps(m->error));
    float y = 0.0f;
    DSC_UNROLL
    for (int r = 0; r < DSC_DELTA_ROWS; ++r) {
        const int64_t i = warp + DSC_DELTA_WARPS * r;
        if (i < a->key_dim) {
            s[r] += m->k[i] * added;
            y += s[r] * m->q[i];
        }
    }
    m->y[warp][lane] = y;
    __syncthreads();
    if (warp == 0 && c->has) {
        dsc_set(a->y, act, gate * a->value_dim + c->column, over_warps(m->y));
    }
}

/* y is zeros at position t. */
DSC_INLINE void clear(const dsc_delta_args *a, int act, const columns *c, int64_t t)
{
    if (threadIdx.x / 32 == 0 && c->has) {
        dsc_set(a->y, act, gate_at(a, c->b, t, c->head) * a->value_dim + c->column, 0.0f);
    }
}

DSC_INLINE int64_t n_columns(const dsc_delta_args *a)
{
    return a->heads * ((a->value_dim + 31) / 32);
}

DSC_INLINE void delta_rule_body(const dsc_delta_args *a, int act)
{
    __shared__ delta_shared m;
    for (int64_t item = blockIdx.x; item < a->n_batch * n_columns(a); item += gridDim.x) {
        float s[DSC_DELTA_ROWS];
        columns c;
        const int64_t b = columns_of(a, item, &c);
        c.b = b;
        load_state(a, &c, NULL, s);
        for (int64_t t = 0; t < a->length; ++t) {
            if (threadIdx.x == 0) {
                dsc_check_first(a->fault, a->call, a->first, b * a->length + t, a->length);
            }
            if (t % DSC_DELTA_CHUNK == 0) {
                const int64_t chunk = (b * a->heads + c.head) * a->n_chunks + t / DSC_DELTA_CHUNK;
                store_state(a, &c, s, a->states + chunk * a->key_dim * a->value_dim);
            }
            advance(a, act, &c, t, s, &m);
        }
    }
}

DSC_INLINE void delta_rule_step_body(const dsc_delta_args *a, int act)
{
    __shared__ delta_shared m;
    for (int64_t item = blockIdx.x; item < a->n_batch * n_columns(a); item += gridDim.x) {
        float s[DSC_DELTA_ROWS];
        columns c;
        const int64_t b = columns_of(a, item, &c);
        float *held = a->cell + (b * a->heads + c.head) * a->key_dim * a->value_dim;
        const bool fits = dsc_check_step(a->fault, a->call, a->offset, a->last, b, a->length);
        const int64_t n = fits ? a->last[b] + 1 : 0;
        c.b = b;
        load_state(a, &c, fits && a->offset[b] == 0 ? NULL : held, s);
        for (int64_t t = 0; t < n; ++t) {
            advance(a, act, &c, t, s, &m);
        }
        store_state(a, &c, s, held);
        for (int64_t t = n; t < a->length; ++t) {
            clear(a, act, &c, t);
        }
    }
}

/* The block of the first token of a run does all of it. */
DSC_INLINE void paged_delta_rule_body(const dsc_delta_args *a, int act)
{
    __shared__ delta_shared m;
    for (int64_t item = blockIdx.x; item < a->length * n_columns(a); item += gridDim.x) {
        float s[DSC_DELTA_ROWS];
        columns c;
        const int64_t at = columns_of(a, item, &c);
        const int64_t n = dsc_run_at(a->fault, a->call, a->sequence, a->position, at, a->length,
                                     a->n_cells);
        if (n > 0) {
            float *held =
                a->cell + (a->sequence[at] * a->heads + c.head) * a->key_dim * a->value_dim;
            load_state(a, &c, a->position[at] == 0 ? NULL : held, s);
            for (int64_t t = at; t < at + n; ++t) {
                advance(a, act, &c, t, s, &m);
            }
            store_state(a, &c, s, held);
        } else if (a->sequence[at] < 0) {
            clear(a, act, &c, at);
        }
    }
}

DSC_KERNEL_ACT(delta_rule, dsc_delta_args)
DSC_KERNEL_ACT(delta_rule_step, dsc_delta_args)
DSC_KERNEL_ACT(paged_delta_rule, dsc_delta_args)
