/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of decay, delta_rule and delta_rule_step, whose items are heads of samples, of
 * paged_delta_rule, whose items are tokens of heads, and of their gradients, whose items are heads,
 * and heads of queries and keys. */
#include "accel/cpu/ref/ref_documents.h"
#include "op/ops.h"

#include <string.h>

#ifdef DSI_REF_F64
#define r_log1p log1p
#else
#define r_log1p log1pf
#endif

/* ---- decay ---------------------------------------------------------------------------------- */
static real softplus(real x)
{
    return x > R(20.0) ? x : r_log1p(r_exp(x));
}

static void decay_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_tensor *a = &call->in[0];
    const int64_t h = ds_shape_last(a->meta.shape);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const real x = ref_get(a, i) + ref_get(&call->in[2], i % h);
        ref_set(&call->out[0], i, -r_exp(ref_get(&call->in[1], i % h)) * softplus(x));
    }
}

static ds_status decay_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), decay_heads);
    return DS_OK;
}

static void decay_backward_heads(const ds_kernel_call *call, int64_t begin, int64_t end,
                                 uint32_t slot)
{
    const ds_tensor *a = &call->in[1];
    const int64_t h = ds_shape_last(a->meta.shape);
    const int64_t rows = ds_shape_rows(a->meta.shape);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const real rate = -r_exp(ref_get(&call->in[2], i));
        real da_log = R(0.0);
        real ddt = R(0.0);
        for (int64_t row = 0; row < rows; ++row) {
            const real x = ref_get(a, row * h + i) + ref_get(&call->in[3], i);
            const real dg = ref_get(&call->in[0], row * h + i);
            const real da = dg * rate / (R(1.0) + r_exp(-x));
            ref_set(&call->out[0], row * h + i, da);
            da_log += dg * rate * softplus(x);
            ddt += da;
        }
        ref_set(&call->out[1], i, da_log);
        ref_set(&call->out[2], i, ddt);
    }
}

static ds_status decay_backward_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_last(call->in[1].meta.shape), decay_backward_heads);
    return DS_OK;
}

/* ---- one head, position by position ----------------------------------------------------------
 */
typedef struct layout {
    const dsi_delta_attrs *a;
    const ds_tensor *q, *k, *v, *g, *beta;
    const int32_t *first; /* NULL: absent */
    int64_t b, t, d, w;   /* d, w: width of a head of keys, of values */
    int64_t group;        /* heads of values a head of keys */
    int64_t n_chunks;
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
                    .g = &call->in[at + 3],
                    .beta = &call->in[at + 4],
                    .first = ref_has(call, first) ? call->in[first].data : NULL,
                    .b = v[0],
                    .t = v[1],
                    .d = a->key_dim,
                    .w = v[2] / a->n_heads,
                    .group = a->n_heads / a->n_key_heads,
                    .n_chunks = (v[1] + DSI_DELTA_CHUNK - 1) / DSI_DELTA_CHUNK};
}

static int64_t key_at(const layout *l, int64_t b, int64_t t, int64_t head)
{
    return ((b * l->t + t) * l->a->n_key_heads + head) * l->d;
}

static int64_t gate_at(const layout *l, int64_t b, int64_t t, int64_t head)
{
    return (b * l->t + t) * l->a->n_heads + head;
}

/* n elements of x from index at, divided by their length, times scale; returns what they were
 * divided by, as a factor without scale. */
static real take_unit(const layout *l, const ds_tensor *x, int64_t at, real scale, real *unit)
{
    real squares = R(0.0);
    for (int64_t i = 0; i < l->d; ++i) {
        unit[i] = ref_get(x, at + i);
        squares += unit[i] * unit[i];
    }
    const real factor = R(1.0) / r_sqrt(squares + (real)l->a->eps);
    for (int64_t i = 0; i < l->d; ++i) {
        unit[i] = unit[i] * factor * scale;
    }
    return factor;
}

static bool begins(const layout *l, int64_t b, int64_t t)
{
    return l->first != NULL && l->first[b * l->t + t] == t;
}

/* The state S (D,V) ahead of what position t adds. */
static void decay_state(const layout *l, int64_t b, int64_t t, int64_t head, real *s)
{
    const real factor = begins(l, b, t) ? R(0.0) : r_exp(ref_get(l->g, gate_at(l, b, t, head)));
    for (int64_t i = 0; i < l->d * l->w; ++i) {
        s[i] = begins(l, b, t) ? R(0.0) : s[i] * factor;
    }
}

/* Sᵀx, each sum in the order of D. */
static void read_state(const layout *l, const real *s, const real *x, real *out)
{
    for (int64_t j = 0; j < l->w; ++j) {
        out[j] = R(0.0);
    }
    for (int64_t i = 0; i < l->d; ++i) {
        for (int64_t j = 0; j < l->w; ++j) {
            out[j] += s[i * l->w + j] * x[i];
        }
    }
}

/* v - Sᵀk: what the value differs by from what the state holds for its key. */
static void error_of(const layout *l, int64_t b, int64_t t, int64_t head, const real *s,
                     const real *k, real *error)
{
    read_state(l, s, k, error);
    for (int64_t j = 0; j < l->w; ++j) {
        error[j] = ref_get(l->v, gate_at(l, b, t, head) * l->w + j) - error[j];
    }
}

/* s += k·uᵀ with u = beta·error */
static void add_value(const layout *l, real beta, const real *k, const real *error, real *s)
{
    for (int64_t i = 0; i < l->d; ++i) {
        for (int64_t j = 0; j < l->w; ++j) {
            s[i * l->w + j] += k[i] * (beta * error[j]);
        }
    }
}

/* One position on; q, k (D) and error (V) are room. */
static void advance(const layout *l, int64_t b, int64_t t, int64_t head, real *s, real *room,
                    const ds_tensor *y)
{
    real *q = room;
    real *k = q + l->d;
    real *error = k + l->d;
    const int64_t at = key_at(l, b, t, head / l->group);
    take_unit(l, l->q, at, (real)l->a->scale, q);
    take_unit(l, l->k, at, R(1.0), k);
    decay_state(l, b, t, head, s);
    error_of(l, b, t, head, s, k, error);
    add_value(l, ref_get(l->beta, gate_at(l, b, t, head)), k, error, s);
    read_state(l, s, q, error);
    for (int64_t j = 0; j < l->w; ++j) {
        ref_set(y, gate_at(l, b, t, head) * l->w + j, error[j]);
    }
}

/* ---- delta_rule ----------------------------------------------------------------------------- */
static int64_t head_room(const layout *l)
{
    return l->d * l->w + 2 * l->d + l->w;
}

static layout sig_layout(const ds_kernel_sig *sig, uint32_t at)
{
    const dsi_delta_attrs *a = sig->attrs;
    return (layout){.a = a,
                    .d = a->key_dim,
                    .w = ds_shape_last(sig->in[at + 2].shape) / a->n_heads,
                    .group = a->n_heads / a->n_key_heads};
}

static size_t delta_work(const ds_kernel_sig *sig)
{
    const layout l = sig_layout(sig, 0);
    return ref_slot_bytes(sig, head_room(&l));
}

static void delta_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 0, 5);
    real *s = ref_slot(call, slot, head_room(&l));
    const int64_t size = l.d * l.w;
    for (int64_t item = begin; item < end; ++item) {
        memset(s, 0, (size_t)size * sizeof *s);
        for (int64_t t = 0; t < l.t; ++t) {
            const int64_t chunk = item * l.n_chunks + t / DSI_DELTA_CHUNK;
            for (int64_t i = 0; i < size && t % DSI_DELTA_CHUNK == 0; ++i) {
                ref_set(&call->out[1], chunk * size + i, s[i]);
            }
            advance(&l, item / l.a->n_heads, t, item % l.a->n_heads, s, s + size, &call->out[0]);
        }
    }
}

static ds_status delta_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0, 5);
    DS_TRY(ref_check_documents(call, l.first, l.b, l.t));
    dsi_ref_for(call, l.b * l.a->n_heads, delta_heads);
    return DS_OK;
}

static void step_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    real *room = ref_slot(call, slot, head_room(&l));
    for (int64_t item = begin; item < end; ++item) {
        const int64_t b = item / l.a->n_heads;
        const int64_t head = item % l.a->n_heads;
        real *s = (real *)call->out[1].data + item * l.d * l.w;
        if (((const int32_t *)call->in[6].data)[b] == 0) {
            memset(s, 0, (size_t)(l.d * l.w) * sizeof *s);
        }
        for (int64_t t = 0; t < l.t; ++t) {
            if (t <= ((const int32_t *)call->in[7].data)[b]) {
                advance(&l, b, t, head, s, room, &call->out[0]);
                continue;
            }
            for (int64_t j = 0; j < l.w; ++j) {
                ref_set(&call->out[0], gate_at(&l, b, t, head) * l.w + j, R(0.0));
            }
        }
    }
}

static ds_status step_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    DS_TRY(ref_check_step(call, 6, l.b, l.t));
    dsi_ref_for(call, l.b * l.a->n_heads, step_heads);
    return DS_OK;
}

/* Items: tokens of a head; what begins a run does all of it. */
static void paged_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    const int32_t *sequence = call->in[6].data;
    real *room = ref_slot(call, slot, head_room(&l));
    for (int64_t item = begin; item < end; ++item) {
        const int64_t head = item / l.t;
        const int64_t at = item % l.t;
        const int64_t n = ref_begins_run(sequence, at) ? ref_run_length(sequence, at, l.t) : 0;
        real *s = (real *)call->out[1].data +
                  (n > 0 ? (sequence[at] * l.a->n_heads + head) * l.d * l.w : 0);
        if (n > 0 && ((const int32_t *)call->in[7].data)[at] == 0) {
            memset(s, 0, (size_t)(l.d * l.w) * sizeof *s);
        }
        for (int64_t t = at; t < at + n; ++t) {
            advance(&l, 0, t, head, s, room, &call->out[0]);
        }
        for (int64_t j = 0; j < l.w && sequence[at] < 0; ++j) {
            ref_set(&call->out[0], gate_at(&l, 0, at, head) * l.w + j, R(0.0));
        }
    }
}

static ds_status paged_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    DS_TRY(ref_check_tokens(call, 6, call->in[5].meta.shape.dims[0], l.t));
    dsi_ref_for(call, l.a->n_heads * l.t, paged_heads);
    return DS_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */
/* Room of one head of keys: gradients of the states of its heads of values; the states of a chunk,
 * each ahead of what its position adds; units and their gradients of a chunk; a few rows. */
typedef struct room {
    real *ds, *states, *q, *k, *dq, *dk, *error, *du;
    real *q_factor, *k_factor;
} room;

enum { CHUNK = DSI_DELTA_CHUNK };

static int64_t room_size(const layout *l)
{
    return (l->group + CHUNK + 1) * l->d * l->w + 4 * CHUNK * l->d + CHUNK * l->w + l->w +
           2 * CHUNK;
}

static room room_at(const layout *l, real *at)
{
    room r = {.ds = at};
    r.states = r.ds + l->group * l->d * l->w;
    r.q = r.states + (CHUNK + 1) * l->d * l->w;
    r.k = r.q + CHUNK * l->d;
    r.dq = r.k + CHUNK * l->d;
    r.dk = r.dq + CHUNK * l->d;
    r.error = r.dk + CHUNK * l->d;
    r.du = r.error + CHUNK * l->w;
    r.q_factor = r.du + l->w;
    r.k_factor = r.q_factor + CHUNK;
    return r;
}

static size_t backward_work(const ds_kernel_sig *sig)
{
    const layout l = sig_layout(sig, 1);
    return ref_slot_bytes(sig, room_size(&l));
}

/* Positions from..from+n of one head of values: states and errors again. */
static void again(const layout *l, const ds_tensor *kept, int64_t b, int64_t from, int64_t n,
                  int64_t head, room *r)
{
    const int64_t size = l->d * l->w;
    const int64_t at = ((b * l->a->n_heads + head) * l->n_chunks + from / CHUNK) * size;
    for (int64_t i = 0; i < size; ++i) {
        r->states[i] = ref_get(kept, at + i);
    }
    for (int64_t i = 0; i < n; ++i) {
        real *s = r->states + i * size;
        const real *k = r->k + i * l->d;
        real *error = r->error + i * l->w;
        decay_state(l, b, from + i, head, s);
        error_of(l, b, from + i, head, s, k, error);
        memcpy(s + size, s, (size_t)size * sizeof *s);
        add_value(l, ref_get(l->beta, gate_at(l, b, from + i, head)), k, error, s + size);
    }
}

/* What dy of one position says: of the state behind it, its query, the value that it adds (du). */
static void back_read(const layout *l, const room *r, int64_t i, const ds_tensor *dy, int64_t value,
                      real beta, real *ds)
{
    const real *s = r->states + i * l->d * l->w;
    const real *q = r->q + i * l->d;
    const real *k = r->k + i * l->d;
    real along = R(0.0); /* u·dy */
    for (int64_t j = 0; j < l->w; ++j) {
        along += beta * r->error[i * l->w + j] * ref_get(dy, value + j);
        r->du[j] = R(0.0);
    }
    for (int64_t c = 0; c < l->d; ++c) {
        real sum = R(0.0);
        for (int64_t j = 0; j < l->w; ++j) {
            const real d = ref_get(dy, value + j);
            sum += s[c * l->w + j] * d;
            ds[c * l->w + j] += q[c] * d;
            r->du[j] += ds[c * l->w + j] * k[c];
        }
        r->dq[i * l->d + c] += sum + k[c] * along;
    }
}

/* What is then left: of its key, and of the state ahead of it, whose decay's gradient it returns.
 */
static real back_write(const layout *l, const room *r, int64_t i, real beta, real *ds)
{
    const real *s = r->states + i * l->d * l->w;
    const real *k = r->k + i * l->d;
    const real *error = r->error + i * l->w;
    real decay = R(0.0);
    for (int64_t c = 0; c < l->d; ++c) {
        real sum = R(0.0);
        for (int64_t j = 0; j < l->w; ++j) {
            const real dm = -beta * r->du[j];
            sum += ds[c * l->w + j] * (beta * error[j]) + s[c * l->w + j] * dm;
            ds[c * l->w + j] += k[c] * dm;
            decay += ds[c * l->w + j] * s[c * l->w + j];
        }
        r->dk[i * l->d + c] += sum;
    }
    return decay;
}

/* Position from + i of one head of values. */
static void back_position(const ds_kernel_call *call, const layout *l, int64_t b, int64_t from,
                          int64_t i, int64_t head, const room *r, real *ds)
{
    const int64_t gate = gate_at(l, b, from + i, head);
    const real beta = ref_get(l->beta, gate);
    real dbeta = R(0.0);
    back_read(l, r, i, &call->in[0], gate * l->w, beta, ds);
    for (int64_t j = 0; j < l->w; ++j) {
        ref_set(&call->out[2], gate * l->w + j, beta * r->du[j]);
        dbeta += r->du[j] * r->error[i * l->w + j];
    }
    ref_set(&call->out[4], gate, dbeta);
    ref_set(&call->out[3], gate, back_write(l, r, i, beta, ds));
    const real factor = begins(l, b, from + i) ? R(0.0) : r_exp(ref_get(l->g, gate));
    for (int64_t j = 0; j < l->d * l->w; ++j) {
        ds[j] = begins(l, b, from + i) ? R(0.0) : ds[j] * factor;
    }
}

/* The gradient of x by that of its unit, times scale. */
static void give_unit(const layout *l, const ds_tensor *dx, int64_t at, const real *unit,
                      const real *d, real factor, real scale)
{
    real along = R(0.0);
    for (int64_t i = 0; i < l->d; ++i) {
        along += d[i] * unit[i];
    }
    for (int64_t i = 0; i < l->d; ++i) { /* unit is times scale */
        ref_set(dx, at + i, factor * (scale * d[i] - unit[i] * along / scale));
    }
}

static void back_chunk(const ds_kernel_call *call, const layout *l, int64_t b, int64_t from,
                       int64_t key_head, room *r)
{
    const int64_t n = from + CHUNK < l->t ? CHUNK : l->t - from;
    const real scale = (real)l->a->scale;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t at = key_at(l, b, from + i, key_head);
        r->q_factor[i] = take_unit(l, l->q, at, scale, r->q + i * l->d);
        r->k_factor[i] = take_unit(l, l->k, at, R(1.0), r->k + i * l->d);
    }
    memset(r->dq, 0, (size_t)(n * l->d) * sizeof *r->dq);
    memset(r->dk, 0, (size_t)(n * l->d) * sizeof *r->dk);
    for (int64_t h = 0; h < l->group; ++h) {
        const int64_t head = key_head * l->group + h;
        again(l, &call->in[6], b, from, n, head, r);
        for (int64_t i = n - 1; i >= 0; --i) {
            back_position(call, l, b, from, i, head, r, r->ds + h * l->d * l->w);
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        const int64_t at = key_at(l, b, from + i, key_head);
        give_unit(l, &call->out[0], at, r->q + i * l->d, r->dq + i * l->d, r->q_factor[i], scale);
        give_unit(l, &call->out[1], at, r->k + i * l->d, r->dk + i * l->d, r->k_factor[i], R(1.0));
    }
}

static void backward_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 1, 7);
    room r = room_at(&l, ref_slot(call, slot, room_size(&l)));
    for (int64_t item = begin; item < end; ++item) {
        memset(r.ds, 0, (size_t)(l.group * l.d * l.w) * sizeof *r.ds);
        for (int64_t chunk = l.n_chunks - 1; chunk >= 0; --chunk) {
            back_chunk(call, &l, item / l.a->n_key_heads, chunk * CHUNK, item % l.a->n_key_heads,
                       &r);
        }
    }
}

static ds_status backward_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 1, 7);
    DS_TRY(ref_check_documents(call, l.first, l.b, l.t));
    dsi_ref_for(call, l.b * l.a->n_key_heads, backward_heads);
    return DS_OK;
}

REF_KERNEL(decay, decay_run, NULL);
REF_KERNEL(decay_backward, decay_backward_run, NULL);
REF_KERNEL(delta_rule, delta_run, delta_work);
REF_KERNEL(delta_rule_backward, backward_run, backward_work);
REF_KERNEL(delta_rule_step, step_run, delta_work);
REF_KERNEL(paged_delta_rule, paged_run, delta_work);
const ds_kernel *const DSI_REF(delta_rule)[] = {&decay_kernel,
                                                &decay_backward_kernel,
                                                &delta_rule_kernel,
                                                &delta_rule_backward_kernel,
                                                &delta_rule_step_kernel,
                                                &paged_delta_rule_kernel,
                                                NULL};
