/* SPDX-License-Identifier: Apache-2.0 */
/* delta_rule, delta_rule_step, paged_delta_rule and delta_rule_backward: a head's state by slabs of
 * columns, which do not depend on each other. A slab's running sums stay in registers while a
 * position goes over the rows of the state. What a position gives depends on it and the state
 * before alone, so that steps and prompts have the same bits. */
#include "accel/cpu/ref/ref_documents.h"
#include "accel/cpu/simd/simd_kernel.h"

#include <math.h>
#include <string.h>

enum { CHUNK = DSI_DELTA_CHUNK, SLAB = VF_WIDTH == 16 ? 8 : 4 };

typedef struct layout {
    const dsi_delta_attrs *a;
    const ds_tensor *q, *k, *v;
    const float *g;
    const ds_tensor *beta;
    const int32_t *first; /* NULL: absent */
    size_t b, t, h, hk, d, w;
    size_t n_chunks;
} layout;

/* q at input `at`, then k, v, g, beta; first at input `first`. */
static layout layout_of(const ds_kernel_call *call, uint32_t at, uint32_t first)
{
    const dsi_delta_attrs *a = call->sig->attrs;
    const int64_t *v = call->in[at + 2].meta.shape.dims;
    return (layout){.a = a,
                    .q = &call->in[at],
                    .k = &call->in[at + 1],
                    .v = &call->in[at + 2],
                    .g = call->in[at + 3].data,
                    .beta = &call->in[at + 4],
                    .first = ref_has(call, first) ? call->in[first].data : NULL,
                    .b = (size_t)v[0],
                    .t = (size_t)v[1],
                    .h = (size_t)a->n_heads,
                    .hk = (size_t)a->n_key_heads,
                    .d = (size_t)a->key_dim,
                    .w = (size_t)(v[2] / a->n_heads),
                    .n_chunks = (size_t)(v[1] + CHUNK - 1) / CHUNK};
}

static layout sig_layout(const ds_kernel_sig *sig, uint32_t at)
{
    const dsi_delta_attrs *a = sig->attrs;
    return (layout){.h = (size_t)a->n_heads,
                    .hk = (size_t)a->n_key_heads,
                    .d = (size_t)a->key_dim,
                    .w = (size_t)(ds_shape_last(sig->in[at + 2].shape) / a->n_heads)};
}

static bool begins(const layout *l, size_t b, size_t t)
{
    return l->first != NULL && l->first[b * l->t + t] == (int32_t)t;
}

/* d elements of x from `at` on, divided by their length, times scale; what they were divided by, as
 * a factor. */
static float take_unit(const layout *l, const ds_tensor *x, size_t at, float scale, float *unit)
{
    const ds_dtype type = x->meta.dtype;
    vf squares = vf_zero();
    for (size_t i = 0; i < l->d; i += VF_WIDTH) {
        const size_t n = l->d - i < VF_WIDTH ? l->d - i : VF_WIDTH;
        const vf part = vf_get_upto(x->data, type, at + i, n);
        squares = vf_fma(part, part, squares);
        vf_store_n(unit + i, part, n);
    }
    const float factor = 1.0f / sqrtf(vf_sum(squares) + (float)l->a->eps);
    for (size_t i = 0; i < l->d; ++i) {
        unit[i] *= factor * scale;
    }
    return factor;
}

/* Positions of one head from `from` on. */
typedef struct run {
    const layout *l;
    size_t b, head, from, n;
    const float *q, *k; /* (n,D) units; q: times scale */
} run;

static size_t gate_at(const run *r, size_t i)
{
    return (r->b * r->l->t + r->from + i) * r->l->h + r->head;
}

static float beta_of(const run *r, size_t i)
{
    return ref_get(r->l->beta, (int64_t)gate_at(r, i));
}

DSI_INLINE vf get(const float *p, size_t last)
{
    return last == VF_WIDTH ? vf_load(p) : vf_load_n(p, last);
}

DSI_INLINE void put(float *p, vf x, size_t last)
{
    if (last == VF_WIDTH) {
        vf_store(p, x);
    } else {
        vf_store_n(p, x, last);
    }
}

/* Calls FN(…, N) on columns j.. of w: slabs of SLAB vectors, then vectors, the last of fewer. */
#define BY_SLABS(w, FN, ...)                                                                       \
    do {                                                                                           \
        size_t j_ = 0;                                                                             \
        for (; j_ + SLAB * VF_WIDTH <= (w); j_ += SLAB * VF_WIDTH) {                               \
            FN(__VA_ARGS__, j_, SLAB, VF_WIDTH);                                                   \
        }                                                                                          \
        for (; j_ + VF_WIDTH <= (w); j_ += VF_WIDTH) {                                             \
            FN(__VA_ARGS__, j_, 1, VF_WIDTH);                                                      \
        }                                                                                          \
        if (j_ < (w)) {                                                                            \
            FN(__VA_ARGS__, j_, 1, (w)-j_);                                                        \
        }                                                                                          \
    } while (0)

/* ---- forward -------------------------------------------------------------------------------- */
/* Columns j.. of one position: vectors n, the last of `last` lanes. */
DSI_INLINE void forward_slab(const run *r, size_t i, float *s, const ds_tensor *y, size_t j, int n,
                             size_t last)
{
    const layout *l = r->l;
    const float *q = r->q + i * l->d;
    const float *k = r->k + i * l->d;
    const size_t value = gate_at(r, i) * l->w + j;
    const vf beta = vf_set(beta_of(r, i));
    const bool fresh = begins(l, r->b, r->from + i);
    const vf g = vf_set(fresh ? 1.0f : expf(l->g[gate_at(r, i)]));
    vf u[SLAB];
    vf sum[SLAB];
    for (int c = 0; c < n; ++c) {
        sum[c] = vf_zero();
        u[c] = vf_zero();
    }
    for (size_t row = 0; row < l->d; ++row) {
        float *at = s + row * l->w + j;
        for (int c = 0; c < n; ++c) {
            if (fresh) {
                put(at + c * VF_WIDTH, vf_zero(), last);
            }
            u[c] = vf_fma(get(at + c * VF_WIDTH, last), vf_set(k[row]), u[c]);
        }
    }
    for (int c = 0; c < n; ++c) {
        const vf v = vf_get_upto(l->v->data, l->v->meta.dtype, value + (size_t)c * VF_WIDTH, last);
        u[c] = vf_mul(beta, vf_sub(v, vf_mul(g, u[c])));
    }
    for (size_t row = 0; row < l->d; ++row) {
        float *at = s + row * l->w + j;
        for (int c = 0; c < n; ++c) {
            const vf x = vf_fma(vf_set(k[row]), u[c], vf_mul(g, get(at + c * VF_WIDTH, last)));
            put(at + c * VF_WIDTH, x, last);
            sum[c] = vf_fma(x, vf_set(q[row]), sum[c]);
        }
    }
    for (int c = 0; c < n; ++c) {
        vf_put_upto(y->data, y->meta.dtype, value + (size_t)c * VF_WIDTH, sum[c], last);
    }
}

DSI_INLINE void forward_columns(const run *r, float *s, const ds_tensor *y, size_t j, int n,
                                size_t last)
{
    for (size_t i = 0; i < r->n; ++i) {
        forward_slab(r, i, s, y, j, n, last);
    }
}

/* n positions, at most CHUNK; units: room for 2·CHUNK·D. */
static void forward_run(const layout *l, size_t b, size_t head, size_t from, size_t n, float *s,
                        float *units, const ds_tensor *y)
{
    float *q = units;
    float *k = units + CHUNK * l->d;
    const run r = {l, b, head, from, n, q, k};
    for (size_t i = 0; i < n; ++i) {
        const size_t at = ((b * l->t + from + i) * l->hk + head / (l->h / l->hk)) * l->d;
        (void)take_unit(l, l->q, at, (float)l->a->scale, q + i * l->d);
        (void)take_unit(l, l->k, at, 1.0f, k + i * l->d);
    }
    BY_SLABS(l->w, forward_columns, &r, s, y);
}

static int64_t forward_room(const layout *l)
{
    return (int64_t)(l->d * l->w + 2 * CHUNK * l->d);
}

static size_t forward_work(const ds_kernel_sig *sig)
{
    const layout l = sig_layout(sig, 0);
    return ref_slot_bytes(sig, forward_room(&l));
}

static void delta_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 0, 5);
    float *s = ref_slot(call, slot, forward_room(&l));
    const size_t size = l.d * l.w;
    for (size_t item = (size_t)begin; item < (size_t)end; ++item) {
        memset(s, 0, size * sizeof *s);
        for (size_t from = 0; from < l.t; from += CHUNK) {
            float *kept = (float *)call->out[1].data + (item * l.n_chunks + from / CHUNK) * size;
            memcpy(kept, s, size * sizeof *s);
            forward_run(&l, item / l.h, item % l.h, from, l.t - from < CHUNK ? l.t - from : CHUNK,
                        s, s + size, &call->out[0]);
        }
    }
}

static ds_status delta_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0, 5);
    DS_TRY(ref_check_documents(call, l.first, (int64_t)l.b, (int64_t)l.t));
    dsi_ref_for(call, (int64_t)(l.b * l.h), delta_heads);
    return DS_OK;
}

static void clear_row(const layout *l, size_t b, size_t head, size_t t, const ds_tensor *y)
{
    const size_t each = ds_dtype_bytes(y->meta.dtype);
    memset((char *)y->data + ((b * l->t + t) * l->h + head) * l->w * each, 0, l->w * each);
}

static void step_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    float *units = ref_slot(call, slot, forward_room(&l));
    for (size_t item = (size_t)begin; item < (size_t)end; ++item) {
        const size_t b = item / l.h;
        const size_t n = (size_t)((const int32_t *)call->in[7].data)[b] + 1;
        float *s = (float *)call->out[1].data + item * l.d * l.w;
        if (((const int32_t *)call->in[6].data)[b] == 0) {
            memset(s, 0, l.d * l.w * sizeof *s);
        }
        for (size_t from = 0; from < n; from += CHUNK) {
            forward_run(&l, b, item % l.h, from, n - from < CHUNK ? n - from : CHUNK, s, units,
                        &call->out[0]);
        }
        for (size_t t = n; t < l.t; ++t) {
            clear_row(&l, b, item % l.h, t, &call->out[0]);
        }
    }
}

static ds_status step_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    DS_TRY(ref_check_step(call, 6, (int64_t)l.b, (int64_t)l.t));
    dsi_ref_for(call, (int64_t)(l.b * l.h), step_heads);
    return DS_OK;
}

/* Items: tokens of a head; what begins a run does all of it. */
static void paged_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    const int32_t *sequence = call->in[6].data;
    const int64_t n_tokens = (int64_t)l.t;
    float *units = ref_slot(call, slot, forward_room(&l));
    for (int64_t item = begin; item < end; ++item) {
        const size_t head = (size_t)(item / n_tokens);
        const int64_t t = item % n_tokens;
        if (sequence[t] < 0) {
            clear_row(&l, 0, head, (size_t)t, &call->out[0]);
        }
        if (!ref_begins_run(sequence, t)) {
            continue;
        }
        const size_t stop = (size_t)(t + ref_run_length(sequence, t, n_tokens));
        float *s = (float *)call->out[1].data + ((size_t)sequence[t] * l.h + head) * l.d * l.w;
        if (((const int32_t *)call->in[7].data)[t] == 0) {
            memset(s, 0, l.d * l.w * sizeof *s);
        }
        for (size_t from = (size_t)t; from < stop; from += CHUNK) {
            forward_run(&l, 0, head, from, stop - from < CHUNK ? stop - from : CHUNK, s, units,
                        &call->out[0]);
        }
    }
}

static ds_status paged_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    DS_TRY(ref_check_tokens(call, 6, call->in[5].meta.shape.dims[0], (int64_t)l.t));
    dsi_ref_for(call, (int64_t)(l.h * l.t), paged_heads);
    return DS_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */
/* Of a head of keys: see the reference kernel. */
typedef struct room {
    float *ds, *states, *q, *k, *dq, *dk, *error;
    float q_factor[CHUNK], k_factor[CHUNK];
} room;

static int64_t backward_room(const layout *l)
{
    return (int64_t)((l->h / l->hk + CHUNK) * l->d * l->w + 4 * CHUNK * l->d + CHUNK * l->w);
}

static void room_at(const layout *l, float *at, room *m)
{
    m->ds = at;
    m->states = m->ds + l->h / l->hk * l->d * l->w;
    m->q = m->states + CHUNK * l->d * l->w;
    m->k = m->q + CHUNK * l->d;
    m->dq = m->k + CHUNK * l->d;
    m->dk = m->dq + CHUNK * l->d;
    m->error = m->dk + CHUNK * l->d;
}

static size_t backward_work(const ds_kernel_sig *sig)
{
    const layout l = sig_layout(sig, 1);
    return ref_slot_bytes(sig, backward_room(&l));
}

/* States ahead of what each position adds, and the errors of the values, of columns j... */
DSI_INLINE void again_columns(const run *r, const float *kept, room *m, size_t j, int n,
                              size_t last)
{
    const layout *l = r->l;
    const float *before = kept;
    vf u[SLAB];
    for (int c = 0; c < n; ++c) {
        u[c] = vf_zero();
    }
    for (size_t i = 0; i < r->n; ++i) {
        const float *k = m->k + i * l->d;
        const float *k_before = i > 0 ? k - l->d : k;
        float *s = m->states + i * l->d * l->w;
        const bool fresh = begins(l, r->b, r->from + i);
        const vf g = vf_set(expf(l->g[gate_at(r, i)]));
        const vf beta = vf_set(beta_of(r, i));
        vf sum[SLAB];
        for (int c = 0; c < n; ++c) {
            sum[c] = vf_zero();
        }
        for (size_t row = 0; row < l->d; ++row) {
            for (int c = 0; c < n; ++c) {
                const size_t at = row * l->w + j + (size_t)c * VF_WIDTH;
                const vf x =
                    fresh ? vf_zero()
                          : vf_mul(g, vf_fma(vf_set(k_before[row]), u[c], get(before + at, last)));
                put(s + at, x, last);
                sum[c] = vf_fma(x, vf_set(k[row]), sum[c]);
            }
        }
        for (int c = 0; c < n; ++c) {
            const size_t at = j + (size_t)c * VF_WIDTH;
            const vf v = vf_get_upto(l->v->data, l->v->meta.dtype, gate_at(r, i) * l->w + at, last);
            const vf error = vf_sub(v, sum[c]);
            put(m->error + i * l->w + at, error, last);
            u[c] = vf_mul(beta, error);
        }
        before = s;
    }
}

/* What is summed over all columns of a position. */
typedef struct sums {
    float decay, beta;
} sums;

DSI_INLINE void back_columns(const run *r, size_t i, room *m, float *ds, const ds_kernel_call *call,
                             sums *all, size_t j, int n, size_t last)
{
    const layout *l = r->l;
    const float *s = m->states + i * l->d * l->w + j;
    const size_t value = gate_at(r, i) * l->w + j;
    const ds_dtype type = l->v->meta.dtype;
    const float beta = beta_of(r, i);
    const bool fresh = begins(l, r->b, r->from + i);
    const vf factor = vf_set(fresh ? 0.0f : expf(l->g[gate_at(r, i)]));
    vf dy[SLAB];
    vf du[SLAB];
    vf u[SLAB];
    vf along = vf_zero();
    vf decay = vf_zero();
    vf dbeta = vf_zero();
    for (int c = 0; c < n; ++c) {
        dy[c] = vf_get_upto(call->in[0].data, type, value + (size_t)c * VF_WIDTH, last);
        u[c] = vf_mul(vf_set(beta), get(m->error + i * l->w + j + (size_t)c * VF_WIDTH, last));
        along = vf_fma(u[c], dy[c], along);
        du[c] = vf_zero();
    }
    const float u_dy = vf_sum(along);
    for (size_t row = 0; row < l->d; ++row) {
        const float k = m->k[i * l->d + row];
        const vf q = vf_set(m->q[i * l->d + row]);
        vf sum = vf_zero();
        for (int c = 0; c < n; ++c) {
            const size_t at = row * l->w + (size_t)c * VF_WIDTH;
            const vf x = vf_fma(q, dy[c], get(ds + j + at, last));
            put(ds + j + at, x, last);
            du[c] = vf_fma(x, vf_set(k), du[c]);
            sum = vf_fma(get(s + at, last), dy[c], sum);
        }
        m->dq[i * l->d + row] += vf_sum(sum) + k * u_dy;
    }
    for (int c = 0; c < n; ++c) {
        const size_t at = (size_t)c * VF_WIDTH;
        const vf dv = vf_mul(vf_set(beta), du[c]);
        vf_put_upto(call->out[2].data, type, value + at, dv, last);
        dbeta = vf_fma(du[c], get(m->error + i * l->w + j + at, last), dbeta);
        dy[c] = vf_neg(dv); /* from here on: the gradient of Sᵀk */
    }
    for (size_t row = 0; row < l->d; ++row) {
        const vf k = vf_set(m->k[i * l->d + row]);
        vf sum = vf_zero();
        for (int c = 0; c < n; ++c) {
            const size_t at = row * l->w + (size_t)c * VF_WIDTH;
            const vf state = get(s + at, last);
            const vf x = get(ds + j + at, last);
            sum = vf_fma(x, u[c], sum);
            sum = vf_fma(state, dy[c], sum);
            const vf ahead = vf_fma(k, dy[c], x);
            decay = vf_fma(ahead, state, decay);
            put(ds + j + at, fresh ? vf_zero() : vf_mul(ahead, factor), last);
        }
        m->dk[i * l->d + row] += vf_sum(sum);
    }
    all->decay += vf_sum(decay);
    all->beta += vf_sum(dbeta);
}

static void back_position(const ds_kernel_call *call, const run *r, size_t i, room *m, float *ds)
{
    sums all = {0.0f, 0.0f};
    BY_SLABS(r->l->w, back_columns, r, i, m, ds, call, &all);
    ((float *)call->out[3].data)[gate_at(r, i)] = all.decay;
    ref_set(&call->out[4], (int64_t)gate_at(r, i), all.beta);
}

/* The gradient of x by that of its unit, times scale. */
static void give_unit(const layout *l, const ds_tensor *dx, size_t at, const float *unit,
                      const float *d, float factor, float scale)
{
    vf along = vf_zero();
    for (size_t i = 0; i < l->d; i += VF_WIDTH) {
        const size_t n = l->d - i < VF_WIDTH ? l->d - i : VF_WIDTH;
        along = vf_fma(vf_load_n(d + i, n), vf_load_n(unit + i, n), along);
    }
    const vf back = vf_set(vf_sum(along) / scale);
    for (size_t i = 0; i < l->d; i += VF_WIDTH) { /* unit is times scale */
        const size_t n = l->d - i < VF_WIDTH ? l->d - i : VF_WIDTH;
        const vf x = vf_sub(vf_mul(vf_set(scale), vf_load_n(d + i, n)),
                            vf_mul(vf_load_n(unit + i, n), back));
        vf_put_upto(dx->data, dx->meta.dtype, at + i, vf_mul(vf_set(factor), x), n);
    }
}

static void back_chunk(const ds_kernel_call *call, const layout *l, size_t b, size_t from,
                       size_t key_head, room *m)
{
    const size_t n = l->t - from < CHUNK ? l->t - from : CHUNK;
    const size_t group = l->h / l->hk;
    const float scale = (float)l->a->scale;
    const size_t first = ((b * l->t + from) * l->hk + key_head) * l->d;
    for (size_t i = 0; i < n; ++i) {
        const size_t at = first + i * l->hk * l->d;
        m->q_factor[i] = take_unit(l, l->q, at, scale, m->q + i * l->d);
        m->k_factor[i] = take_unit(l, l->k, at, 1.0f, m->k + i * l->d);
    }
    memset(m->dq, 0, n * l->d * sizeof *m->dq);
    memset(m->dk, 0, n * l->d * sizeof *m->dk);
    for (size_t h = 0; h < group; ++h) {
        const run r = {l, b, key_head * group + h, from, n, m->q, m->k};
        const float *kept = (const float *)call->in[6].data +
                            ((b * l->h + r.head) * l->n_chunks + from / CHUNK) * l->d * l->w;
        BY_SLABS(l->w, again_columns, &r, kept, m);
        for (size_t i = n; i > 0; --i) {
            back_position(call, &r, i - 1, m, m->ds + h * l->d * l->w);
        }
    }
    for (size_t i = 0; i < n; ++i) {
        const size_t at = first + i * l->hk * l->d;
        give_unit(l, &call->out[0], at, m->q + i * l->d, m->dq + i * l->d, m->q_factor[i], scale);
        give_unit(l, &call->out[1], at, m->k + i * l->d, m->dk + i * l->d, m->k_factor[i], 1.0f);
    }
}

static void backward_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 1, 7);
    room m;
    room_at(&l, ref_slot(call, slot, backward_room(&l)), &m);
    for (size_t item = (size_t)begin; item < (size_t)end; ++item) {
        memset(m.ds, 0, l.h / l.hk * l.d * l.w * sizeof *m.ds);
        for (size_t chunk = l.n_chunks; chunk > 0; --chunk) {
            back_chunk(call, &l, item / l.hk, (chunk - 1) * CHUNK, item % l.hk, &m);
        }
    }
}

static ds_status backward_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 1, 7);
    DS_TRY(ref_check_documents(call, l.first, (int64_t)l.b, (int64_t)l.t));
    dsi_ref_for(call, (int64_t)(l.b * l.hk), backward_heads);
    return DS_OK;
}

static bool supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[0].dtype);
}

DSI_SIMD_KERNEL(delta_rule, supports, forward_work, delta_run);
DSI_SIMD_KERNEL(delta_rule_step, supports, forward_work, step_run);
DSI_SIMD_KERNEL(paged_delta_rule, supports, forward_work, paged_run);
DSI_SIMD_KERNEL(delta_rule_backward, supports, backward_work, backward_run);
