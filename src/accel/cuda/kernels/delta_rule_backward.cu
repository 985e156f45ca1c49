/* SPDX-License-Identifier: Apache-2.0 */
/* delta_rule's gradient: a block has a head of values. The states of a chunk are made again from
 * the one that is kept, into the block's work; then it goes back over the chunk's positions. An
 * element of a state, and of its gradient, is one thread's alone. What each head of values adds to
 * the unit queries and keys that it shares with others is left for delta_rule_units, which adds
 * them in order. */
#include "accel/cuda/kernels/delta_tile.h"

enum { STRIPS = DSC_DELTA_DIM / 32 };

typedef struct back_shared {
    float q[DSC_DELTA_DIM], k[DSC_DELTA_DIM], dy[DSC_DELTA_DIM];
    float error[DSC_DELTA_DIM], du[DSC_DELTA_DIM];
    float sums[DSC_DELTA_WARPS][DSC_DELTA_DIM + 1];
    float parts[32];
} back_shared;

/* A block's head, and its room in the work: states (CHUNK+1,D,V), errors (CHUNK,V), ds (D,V). */
typedef struct back {
    int64_t b, head, size; /* size: of a state */
    float *states, *errors, *ds;
} back;

DSC_INLINE back back_of(const dsc_delta_args *a, int64_t item)
{
    back k = {item / a->heads, item % a->heads, a->key_dim * a->value_dim, NULL, NULL, NULL};
    const int64_t errors = (int64_t)DSC_DELTA_CHUNK * a->value_dim;
    k.states = a->work + blockIdx.x * ((DSC_DELTA_CHUNK + 2) * k.size + errors);
    k.ds = k.states + (DSC_DELTA_CHUNK + 1) * k.size;
    k.errors = k.ds + k.size;
    return k;
}

/* Each warp's sums of the columns, one behind the other; a barrier before they are added. */
DSC_INLINE void put_sums(const dsc_delta_args *a, const float sums[STRIPS], back_shared *m)
{
    for (int g = 0; g < STRIPS; ++g) {
        const int64_t j = threadIdx.x % 32 + 32 * g;
        if (j < a->value_dim) {
            m->sums[threadIdx.x / 32][j] = sums[g];
        }
    }
}

DSC_INLINE float add_sums(const back_shared *m)
{
    float sum = 0.0f;
    for (int w = 0; w < DSC_DELTA_WARPS; ++w) {
        sum += m->sums[w][threadIdx.x];
    }
    return sum;
}

/* Units of position t, and where its head of keys is. */
DSC_INLINE void take_units(const dsc_delta_args *a, int act, const back *w, int64_t t,
                           back_shared *m)
{
    const int64_t at = key_at(a, w->b, t, w->head / (a->heads / a->key_heads));
    (void)take_unit(a, a->q, act, at, a->scale, m->q, m->parts);
    (void)take_unit(a, a->k, act, at, 1.0f, m->k, m->parts);
}

/* State and error of position from + i again, and the state behind it. */
DSC_INLINE void again(const dsc_delta_args *a, int act, const back *w, int64_t from, int64_t i,
                      back_shared *m)
{
    const int64_t gate = gate_at(a, w->b, from + i, w->head);
    const float decay = decay_at(a, w->b, from + i, w->head);
    const bool begins = is_begin(a, w->b, from + i);
    const float beta = dsc_get(a->beta, act, gate);
    float *s = w->states + i * w->size;
    float sums[STRIPS] = {0.0f};
    take_units(a, act, w, from + i, m);
    __syncthreads();
    for (int64_t c = threadIdx.x / 32; c < a->key_dim; c += DSC_DELTA_WARPS) {
        for (int g = 0; g < STRIPS; ++g) {
            const int64_t j = threadIdx.x % 32 + 32 * g;
            if (j < a->value_dim) {
                const float x = begins ? 0.0f : s[c * a->value_dim + j] * decay;
                s[c * a->value_dim + j] = x;
                sums[g] += x * m->k[c];
            }
        }
    }
    put_sums(a, sums, m);
    __syncthreads();
    if (threadIdx.x < a->value_dim) {
        const float v = dsc_get(a->v, act, gate * a->value_dim + threadIdx.x);
        const float error = v - add_sums(m);
        m->error[threadIdx.x] = error;
        w->errors[i * a->value_dim + threadIdx.x] = error;
    }
    __syncthreads();
    for (int64_t c = threadIdx.x / 32; c < a->key_dim; c += DSC_DELTA_WARPS) {
        for (int64_t j = threadIdx.x % 32; j < a->value_dim; j += 32) {
            const int64_t e = c * a->value_dim + j;
            s[w->size + e] = s[e] + m->k[c] * (beta * m->error[j]);
        }
    }
}

/* What dy of one position says: of the state behind it, its query, the value that it adds (du). */
DSC_INLINE void back_read(const dsc_delta_args *a, const back *w, int64_t t, int64_t i, float beta,
                          back_shared *m)
{
    const float *s = w->states + i * w->size;
    const bool has = threadIdx.x < a->value_dim;
    const float own = has ? beta * m->error[threadIdx.x] * m->dy[threadIdx.x] : 0.0f;
    const float along = dsc_block_sum(own, m->parts); /* u·dy */
    float sums[STRIPS] = {0.0f};
    for (int64_t c = threadIdx.x / 32; c < a->key_dim; c += DSC_DELTA_WARPS) {
        float sum = 0.0f;
        for (int g = 0; g < STRIPS; ++g) {
            const int64_t j = threadIdx.x % 32 + 32 * g;
            if (j < a->value_dim) {
                const int64_t e = c * a->value_dim + j;
                const float d = w->ds[e] + m->q[c] * m->dy[j];
                sum += s[e] * m->dy[j];
                w->ds[e] = d;
                sums[g] += d * m->k[c];
            }
        }
        sum = dsc_warp_sum(sum);
        if (threadIdx.x % 32 == 0) {
            const int64_t part = ((w->b * a->heads + w->head) * a->length + t) * a->key_dim + c;
            a->dq_parts[part] = sum + m->k[c] * along;
        }
    }
    put_sums(a, sums, m);
}

/* What is then left: of its key, and of the state ahead of it, whose decay's gradient it returns in
 * every thread. */
DSC_INLINE float back_write(const dsc_delta_args *a, const back *w, int64_t t, int64_t i,
                            float beta, back_shared *m)
{
    const float *s = w->states + i * w->size;
    const float factor = decay_at(a, w->b, t, w->head);
    const bool begins = is_begin(a, w->b, t);
    float decay = 0.0f;
    for (int64_t c = threadIdx.x / 32; c < a->key_dim; c += DSC_DELTA_WARPS) {
        float sum = 0.0f;
        for (int64_t j = threadIdx.x % 32; j < a->value_dim; j += 32) {
            const int64_t e = c * a->value_dim + j;
            const float dm = -beta * m->du[j];
            sum += w->ds[e] * (beta * m->error[j]) + s[e] * dm;
            const float d = w->ds[e] + m->k[c] * dm;
            decay += d * s[e];
            w->ds[e] = begins ? 0.0f : d * factor;
        }
        sum = dsc_warp_sum(sum);
        if (threadIdx.x % 32 == 0) {
            const int64_t part = ((w->b * a->heads + w->head) * a->length + t) * a->key_dim + c;
            a->dk_parts[part] = sum;
        }
    }
    return dsc_block_sum(decay, m->parts);
}

/* Position from + i. */
DSC_INLINE void back_position(const dsc_delta_args *a, int act, const back *w, int64_t from,
                              int64_t i, back_shared *m)
{
    const int64_t t = from + i;
    const int64_t gate = gate_at(a, w->b, t, w->head);
    const int64_t value = gate * a->value_dim + threadIdx.x;
    const float beta = dsc_get(a->beta, act, gate);
    const bool has = threadIdx.x < a->value_dim;
    take_units(a, act, w, t, m);
    if (has) {
        m->error[threadIdx.x] = w->errors[i * a->value_dim + threadIdx.x];
        m->dy[threadIdx.x] = dsc_get(a->dy, act, value);
    }
    back_read(a, w, t, i, beta, m); /* its sum's barriers come before it reads others' */
    __syncthreads();
    float along = 0.0f;
    if (has) {
        const float du = add_sums(m);
        m->du[threadIdx.x] = du;
        dsc_set(a->dv, act, value, beta * du);
        along = du * m->error[threadIdx.x];
    }
    const float dbeta = dsc_block_sum(along, m->parts); /* and du is everybody's */
    const float dg = back_write(a, w, t, i, beta, m);
    if (threadIdx.x == 0) {
        dsc_set(a->dbeta, act, gate, dbeta);
        a->dg[gate] = dg;
    }
}

DSC_INLINE void delta_rule_back_body(const dsc_delta_args *a, int act)
{
    __shared__ back_shared m;
    for (int64_t item = blockIdx.x; item < a->n_batch * a->heads; item += gridDim.x) {
        const back w = back_of(a, item);
        for (int64_t c = threadIdx.x / 32; c < a->key_dim; c += DSC_DELTA_WARPS) {
            for (int64_t j = threadIdx.x % 32; j < a->value_dim; j += 32) {
                w.ds[c * a->value_dim + j] = 0.0f;
            }
        }
        for (int64_t chunk = a->n_chunks - 1; chunk >= 0; --chunk) {
            const int64_t from = chunk * DSC_DELTA_CHUNK;
            const int64_t rest = a->length - from;
            const int64_t n = rest < DSC_DELTA_CHUNK ? rest : DSC_DELTA_CHUNK;
            const float *kept = a->states + (item * a->n_chunks + chunk) * w.size;
            for (int64_t c = threadIdx.x / 32; c < a->key_dim; c += DSC_DELTA_WARPS) {
                for (int64_t j = threadIdx.x % 32; j < a->value_dim; j += 32) {
                    w.states[c * a->value_dim + j] = kept[c * a->value_dim + j];
                }
            }
            for (int64_t i = 0; i < n; ++i) {
                again(a, act, &w, from, i, &m);
            }
            for (int64_t i = n - 1; i >= 0; --i) {
                back_position(a, act, &w, from, i, &m);
            }
        }
    }
}

/* The gradient of x by that of its unit, times scale: what the heads of values add, in order. */
DSC_INLINE void give_unit(const dsc_delta_args *a, int act, const void *x, const float *parts_of,
                          int64_t b, int64_t t, int64_t key_head, float scale, float *unit,
                          float parts[32], void *dx)
{
    const int64_t group = a->heads / a->key_heads;
    const int64_t at = key_at(a, b, t, key_head);
    const bool has = threadIdx.x < a->key_dim;
    const float factor = take_unit(a, x, act, at, scale, unit, parts);
    float d = 0.0f;
    for (int64_t h = key_head * group; h < (key_head + 1) * group && has; ++h) {
        d += parts_of[((b * a->heads + h) * a->length + t) * a->key_dim + threadIdx.x];
    }
    const float own = has ? unit[threadIdx.x] : 0.0f;
    const float along = dsc_block_sum(d * own, parts);
    if (has) {
        dsc_set(dx, act, at + threadIdx.x, factor * (scale * d - own * along / scale));
    }
}

/* A block a head of keys at a position. */
DSC_INLINE void delta_rule_units_body(const dsc_delta_args *a, int act)
{
    __shared__ float unit[DSC_DELTA_DIM];
    __shared__ float parts[32];
    for (int64_t i = blockIdx.x; i < a->n_batch * a->length * a->key_heads; i += gridDim.x) {
        const int64_t head = i % a->key_heads;
        const int64_t t = i / a->key_heads % a->length;
        const int64_t b = i / a->key_heads / a->length;
        if (head == 0 && threadIdx.x == 0) {
            dsc_check_first(a->fault, a->call, a->first, b * a->length + t, a->length);
        }
        give_unit(a, act, a->q, a->dq_parts, b, t, head, a->scale, unit, parts, a->dq);
        give_unit(a, act, a->k, a->dk_parts, b, t, head, 1.0f, unit, parts, a->dk);
    }
}

DSC_KERNEL_ACT(delta_rule_back, dsc_delta_args)
DSC_KERNEL_ACT(delta_rule_units, dsc_delta_args)
