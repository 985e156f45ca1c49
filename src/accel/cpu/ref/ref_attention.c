/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of attention and attention_backward.
 *
 * A head's keys and values are copied out as reals first, keys (and in the backward pass values)
 * also transposed, so that the sums over the head dimension of several keys run side by side, each
 * in its own order.
 */
#include "accel/cpu/ref/ref_real.h"
#include "base/rng.h"
#include "op/alibi.h"
#include "op/ops.h"

/* Where the parts of one operand set lie. */
typedef struct layout {
    const dsi_attention_attrs *a;
    const ds_tensor *q, *k, *v;  /* the same tensor when packed */
    int64_t q_stride, kv_stride; /* elements a token */
    int64_t k_at, v_at;          /* first element of k and v in a token */
    int64_t n_batch, n_queries, n_keys;
    int64_t d, group;          /* head dim; query heads a kv head */
    int64_t head0, row0, key0; /* which of all heads, queries and keys these are */
    int64_t all_heads, all_rows, all_keys;
    const int32_t *end; /* NULL: absent */
} layout;

/* numbers: where heads, rows, keys and end are. */
static layout layout_of(const ds_kernel_call *call, uint32_t at, uint32_t numbers)
{
    const dsi_attention_attrs *a = call->sig->attrs;
    const int64_t *dims = call->in[at].meta.shape.dims;
    const bool packed = a->packed != 0;
    layout l = {.a = a,
                .q = &call->in[at],
                .k = &call->in[packed ? at : at + 1],
                .v = &call->in[packed ? at : at + 2],
                .q_stride = dims[2],
                .n_batch = dims[0],
                .n_queries = dims[1],
                .d = a->head_dim,
                .group = a->n_heads / a->n_kv_heads};
    const ds_tensor *heads = ref_in(call, numbers);
    const ds_tensor *rows = ref_in(call, numbers + 1);
    const ds_tensor *keys = ref_in(call, numbers + 2);
    l.n_keys = l.k->meta.shape.dims[1];
    l.all_keys = keys != NULL ? a->all_keys : l.n_keys;
    l.key0 = keys != NULL ? ((const int32_t *)keys->data)[0] : 0;
    l.head0 = heads != NULL ? ((const int32_t *)heads->data)[0] : 0;
    l.row0 = rows != NULL ? ((const int32_t *)rows->data)[0] : 0;
    const ds_tensor *end = ref_in(call, numbers + 3);
    l.end = end != NULL ? end->data : NULL;
    l.all_heads = heads != NULL ? a->all_heads : a->n_heads;
    l.all_rows = rows != NULL ? l.all_keys : l.n_queries;
    l.kv_stride = l.k->meta.shape.dims[2];
    l.k_at = packed ? a->n_heads * l.d : 0;
    l.v_at = packed ? (a->n_heads + a->n_kv_heads) * l.d : 0;
    return l;
}

/* Element index of query (b,i), head h, in a (B,Tq,·) tensor with `stride` elements a token. */
static int64_t query_at(const layout *l, int64_t stride, int64_t b, int64_t i, int64_t h)
{
    return (b * l->n_queries + i) * stride + h * l->d;
}

static int64_t key_at(const layout *l, int64_t b, int64_t j, int64_t kv)
{
    return (b * l->n_keys + j) * l->kv_stride + kv * l->d;
}

/* Keys [first,last) that query i of sample b sees. */
typedef struct span {
    int64_t first, last;
} span;

static int64_t position_of(const layout *l, const ds_tensor *offset, int64_t b, int64_t i)
{
    return l->row0 - l->key0 + (offset != NULL ? ((const int32_t *)offset->data)[b] + i : i);
}

/* From where position biases count, among the keys: see attn_origin(). */
static int64_t origin_of(const layout *l, const ds_tensor *first, const ds_tensor *offset,
                         int64_t b, int64_t i)
{
    if (l->a->alibi_rounded == 0) {
        return position_of(l, offset, b, i);
    }
    return (first != NULL ? ((const int32_t *)first->data)[b * l->n_queries + i] : 0) - l->key0;
}

static span visible(const layout *l, const ds_tensor *first, const ds_tensor *offset, int64_t b,
                    int64_t i)
{
    const int64_t position = position_of(l, offset, b, i);
    span s = {0, l->n_keys};
    if (l->a->causal != 0 && position + 1 < s.last) {
        s.last = position + 1;
    }
    if (l->a->window > 0 && position - l->a->window + 1 > s.first) {
        s.first = position - l->a->window + 1;
    }
    if (l->a->window > 0 && position + l->a->window < s.last) {
        s.last = position + l->a->window;
    }
    if (first != NULL) {
        const int64_t lowest = ((const int32_t *)first->data)[b * l->n_queries + i] - l->key0;
        s.first = lowest > s.first ? lowest : s.first;
    }
    if (l->end != NULL && l->end[b * l->n_queries + i] - l->key0 < s.last) {
        s.last = l->end[b * l->n_queries + i] - l->key0;
    }
    if (s.last < s.first) {
        s.last = s.first;
    }
    return s;
}

/* What probability (b,h,i,j) is multiplied with: 0 or 1/(1-p). */
static real dropout_factor(const layout *l, const ds_tensor *rng, int64_t b, int64_t h, int64_t i,
                           int64_t j)
{
    const int64_t *r = rng->data;
    const int64_t head = (r[2] + b) * l->all_heads + l->head0 + h;
    const uint64_t element =
        (uint64_t)((head * l->all_rows + l->row0 + i) * l->all_keys + l->key0 + j);
    const uint32_t word =
        dsi_rng_u32((uint64_t)r[0], (uint32_t)l->a->site, (uint32_t)r[1], element);
    return dsi_rng_unit(word) >= (float)l->a->dropout ? R(1.0) / (R(1.0) - (real)l->a->dropout)
                                                      : R(0.0);
}

/* rows (T,D) and, when not NULL, columns (D,T) of one head of k or v. */
static void copy_head(const layout *l, const ds_tensor *t, int64_t at, int64_t b, int64_t kv,
                      real *rows, real *columns)
{
    for (int64_t j = 0; j < l->n_keys; ++j) {
        const int64_t from = key_at(l, b, j, kv) + at;
        for (int64_t c = 0; c < l->d; ++c) {
            rows[j * l->d + c] = ref_get(t, from + c);
            if (columns != NULL) {
                columns[c * l->n_keys + j] = rows[j * l->d + c];
            }
        }
    }
}

/* out[j] = Σ over c of x[c]·columns[c][j], for the span. */
static void dots(const layout *l, const real *x, const real *columns, span s, real *out)
{
    for (int64_t j = s.first; j < s.last; ++j) {
        out[j] = R(0.0);
    }
    for (int64_t c = 0; c < l->d; ++c) {
        const real *column = columns + c * l->n_keys;
        for (int64_t j = s.first; j < s.last; ++j) {
            out[j] += x[c] * column[j];
        }
    }
}

/* q·k to the score of head h, `distance` the key's position less origin_of the query; turn_out: the
 * score's derivative by scale·q·k. */
static real score_of(const layout *l, real product, int64_t h, int64_t distance, real *turn_out)
{
    const real cap = (real)l->a->cap;
    real score = product * (real)l->a->scale;
    *turn_out = R(1.0);
    if (cap > R(0.0)) {
        const real t = r_tanh(score / cap);
        score = cap * t;
        *turn_out = R(1.0) - t * t;
    }
    if (l->a->alibi > 0.0) {
        const double slope = dsi_alibi_slope(l->a->alibi, l->all_heads, l->head0 + h);
        score = l->a->alibi_rounded != 0
                    ? score + (real)l->a->scale * (real)dsi_alibi_bias(slope, distance)
                    : score + (real)slope * (real)distance;
    }
    return score;
}

/* ---- forward: items are (sample, kv head) -------------------------------------------------------
 */
static int64_t forward_reals(const layout *l)
{
    return 3 * l->n_keys * l->d + l->n_keys + 2 * l->d;
}

/* Turns scores into probabilities and returns their log-sum-exp. */
static real softmax_span(real *p, span s)
{
    real top = -(real)INFINITY;
    for (int64_t j = s.first; j < s.last; ++j) {
        top = p[j] > top ? p[j] : top;
    }
    real sum = R(0.0);
    for (int64_t j = s.first; j < s.last; ++j) {
        p[j] = r_exp(p[j] - top);
        sum += p[j];
    }
    for (int64_t j = s.first; j < s.last; ++j) {
        p[j] = p[j] / sum;
    }
    return s.last > s.first ? top + r_log(sum) : -(real)INFINITY;
}

typedef struct forward {
    layout l;
    real *k_columns, *v_rows, *p, *q, *y;
} forward;

static void attend(const ds_kernel_call *call, const forward *f, int64_t b, int64_t h, int64_t i)
{
    const layout *l = &f->l;
    const span s = visible(l, ref_in(call, 3), ref_in(call, 4), b, i);
    const real *q = ref_row(l->q, query_at(l, l->q_stride, b, i, h), l->d, f->q);
    dots(l, q, f->k_columns, s, f->p);
    const int64_t origin = origin_of(l, ref_in(call, 3), ref_in(call, 4), b, i);
    for (int64_t j = s.first; j < s.last; ++j) {
        real turn;
        f->p[j] = score_of(l, f->p[j], h, j - origin, &turn);
    }
    const real lse = softmax_span(f->p, s);
    for (int64_t c = 0; c < l->d; ++c) {
        f->y[c] = R(0.0);
    }
    for (int64_t j = s.first; j < s.last; ++j) {
        real p = f->p[j];
        if (l->a->dropout > 0.0) {
            p = p * dropout_factor(l, &call->in[5], b, h, i, j);
        }
        for (int64_t c = 0; c < l->d; ++c) {
            f->y[c] += p * f->v_rows[j * l->d + c];
        }
    }
    const int64_t at = query_at(l, l->a->n_heads * l->d, b, i, h);
    for (int64_t c = 0; c < l->d; ++c) {
        ref_set(&call->out[0], at + c, f->y[c]);
    }
    ref_set(&call->out[1], (b * l->a->n_heads + h) * l->n_queries + i, lse);
}

static void attention_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    forward f = {.l = layout_of(call, 0, 6)};
    const layout *l = &f.l;
    real *k_rows = ref_slot(call, slot, forward_reals(l));
    f.k_columns = k_rows + l->n_keys * l->d;
    f.v_rows = f.k_columns + l->n_keys * l->d;
    f.p = f.v_rows + l->n_keys * l->d;
    f.q = f.p + l->n_keys;
    f.y = f.q + l->d;
    for (int64_t item = begin; item < end; ++item) {
        const int64_t b = item / l->a->n_kv_heads;
        const int64_t kv = item % l->a->n_kv_heads;
        copy_head(l, l->k, l->k_at, b, kv, k_rows, f.k_columns);
        copy_head(l, l->v, l->v_at, b, kv, f.v_rows, NULL);
        for (int64_t h = kv * l->group; h < (kv + 1) * l->group; ++h) {
            for (int64_t i = 0; i < l->n_queries; ++i) {
                attend(call, &f, b, h, i);
            }
        }
    }
}

/* The layout from metas alone, for the size of the workspace. */
static layout layout_of_sig(const ds_kernel_sig *sig, uint32_t at)
{
    ds_tensor tensors[DS_MAX_IN] = {{0}};
    for (uint32_t i = 0; i < sig->n_in; ++i) {
        tensors[i].meta = sig->in[i];
    }
    const ds_kernel_call call = {.sig = sig, .in = tensors};
    return layout_of(&call, at, at == 0 ? 6 : 8);
}

static size_t attention_work(const ds_kernel_sig *sig)
{
    const layout l = layout_of_sig(sig, 0);
    return ref_slot_bytes(sig, forward_reals(&l));
}

static ds_status attention_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0, 6);
    dsi_ref_for(call, l.n_batch * l.a->n_kv_heads, attention_heads);
    return DS_OK;
}

/* ---- backward: dy, q, k, v, y, lse, [first], [rng]; items are (sample, kv head)
 * ------------------ */
static int64_t backward_reals(const layout *l)
{
    return 6 * l->n_keys * l->d + 2 * l->n_keys + 4 * l->d;
}

typedef struct backward {
    layout l;
    real *k_rows, *k_columns, *v_rows, *v_columns; /* of the head */
    real *dk, *dv;                                 /* (T,D) */
    real *p, *dp;                                  /* a row of probabilities and its gradient */
    real *q, *dy, *dq, *y;
} backward;

static backward backward_of(const ds_kernel_call *call, uint32_t slot)
{
    backward w = {.l = layout_of(call, 1, 8)};
    const int64_t head = w.l.n_keys * w.l.d;
    w.k_rows = ref_slot(call, slot, backward_reals(&w.l));
    w.k_columns = w.k_rows + head;
    w.v_rows = w.k_columns + head;
    w.v_columns = w.v_rows + head;
    w.dk = w.v_columns + head;
    w.dv = w.dk + head;
    w.p = w.dv + head;
    w.dp = w.p + w.l.n_keys;
    w.q = w.dp + w.l.n_keys;
    w.dy = w.q + w.l.d;
    w.dq = w.dy + w.l.d;
    w.y = w.dq + w.l.d;
    return w;
}

/* Adds key j's share to dq, dk and dv. */
static void backward_key(const backward *w, int64_t j, const real *q, const real *dy, real p_used,
                         real ds)
{
    const int64_t d = w->l.d;
    for (int64_t c = 0; c < d; ++c) {
        w->dv[j * d + c] += p_used * dy[c];
        w->dq[c] += ds * w->k_rows[j * d + c];
        w->dk[j * d + c] += ds * q[c];
    }
}

static void backward_query(const ds_kernel_call *call, const backward *w, int64_t b, int64_t h,
                           int64_t i)
{
    const layout *l = &w->l;
    const span s = visible(l, ref_in(call, 6), NULL, b, i);
    const int64_t y_at = query_at(l, l->a->n_heads * l->d, b, i, h);
    const int64_t q_at = query_at(l, l->q_stride, b, i, h);
    const real *q = ref_row(l->q, q_at, l->d, w->q);
    const real *dy = ref_row(&call->in[0], y_at, l->d, w->dy);
    const real *y = ref_row(&call->in[4], y_at, l->d, w->y);
    const real scale = (real)l->a->scale;
    const int64_t origin = origin_of(l, ref_in(call, 6), NULL, b, i);
    const ds_tensor *dlse = ref_in(call, 12);
    const int64_t lse_at = (b * l->a->n_heads + h) * l->n_queries + i;
    const real lse = ref_get(&call->in[5], lse_at);
    real delta = R(0.0);
    for (int64_t c = 0; c < l->d; ++c) {
        delta += dy[c] * y[c];
        w->dq[c] = R(0.0);
    }
    delta -= dlse != NULL ? ref_get(dlse, lse_at) : R(0.0);
    dots(l, q, w->k_columns, s, w->p);
    dots(l, dy, w->v_columns, s, w->dp);
    for (int64_t j = s.first; j < s.last; ++j) {
        real turn;
        const real p = r_exp(score_of(l, w->p[j], h, j - origin, &turn) - lse);
        real dp = w->dp[j];
        real p_used = p;
        if (l->a->dropout > 0.0) {
            const real keep = dropout_factor(l, &call->in[7], b, h, i, j);
            p_used = p * keep;
            dp = dp * keep;
        }
        backward_key(w, j, q, dy, p_used, p * (dp - delta) * turn * scale);
    }
    for (int64_t c = 0; c < l->d; ++c) {
        ref_set(&call->out[0], q_at + c, w->dq[c]);
    }
}

static void store_head(const backward *w, const ds_tensor *t, int64_t at, int64_t b, int64_t kv,
                       const real *rows)
{
    for (int64_t j = 0; j < w->l.n_keys; ++j) {
        for (int64_t c = 0; c < w->l.d; ++c) {
            ref_set(t, key_at(&w->l, b, j, kv) + at + c, rows[j * w->l.d + c]);
        }
    }
}

static void backward_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const backward w = backward_of(call, slot);
    const layout *l = &w.l;
    const bool packed = l->a->packed != 0;
    for (int64_t item = begin; item < end; ++item) {
        const int64_t b = item / l->a->n_kv_heads;
        const int64_t kv = item % l->a->n_kv_heads;
        copy_head(l, l->k, l->k_at, b, kv, w.k_rows, w.k_columns);
        copy_head(l, l->v, l->v_at, b, kv, w.v_rows, w.v_columns);
        for (int64_t i = 0; i < l->n_keys * l->d; ++i) {
            w.dk[i] = R(0.0);
            w.dv[i] = R(0.0);
        }
        for (int64_t h = kv * l->group; h < (kv + 1) * l->group; ++h) {
            for (int64_t i = 0; i < l->n_queries; ++i) {
                backward_query(call, &w, b, h, i);
            }
        }
        store_head(&w, &call->out[packed ? 0 : 1], l->k_at, b, kv, w.dk);
        store_head(&w, &call->out[packed ? 0 : 2], l->v_at, b, kv, w.dv);
    }
}

static size_t attention_backward_work(const ds_kernel_sig *sig)
{
    const layout l = layout_of_sig(sig, 1);
    return ref_slot_bytes(sig, backward_reals(&l));
}

static ds_status attention_backward_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 1, 8);
    dsi_ref_for(call, l.n_batch * l.a->n_kv_heads, backward_heads);
    return DS_OK;
}

/* ---- document_end -------------------------------------------------------------------------------
 */
static void document_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t length = call->in[0].meta.shape.dims[1];
    (void)slot;
    for (int64_t b = begin; b < end; ++b) {
        const int32_t *first = (const int32_t *)call->in[0].data + b * length;
        int32_t *out = (int32_t *)call->out[0].data + b * length;
        for (int64_t i = length - 1; i >= 0; --i) {
            const bool last = i + 1 == length || first[i + 1] != first[i];
            out[i] = last ? (int32_t)(i + 1) : out[i + 1];
        }
    }
}

static ds_status document_end_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, call->in[0].meta.shape.dims[0], document_rows);
    return DS_OK;
}

/* ---- filled_end, shift_labels ------------------------------------------------------------------
 */
static void filled_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t length = call->in[0].meta.shape.dims[1];
    const int64_t pad = ((const dsi_filled_attrs *)call->sig->attrs)->pad;
    (void)slot;
    for (int64_t b = begin; b < end; ++b) {
        const int32_t *first = (const int32_t *)call->in[0].data + b * length;
        const int32_t *ids = (const int32_t *)call->in[1].data + b * length;
        int32_t *out = (int32_t *)call->out[0].data + b * length;
        for (int64_t from = 0, to = 0; from < length; from = to) {
            int64_t filled = from;
            for (to = from; to < length && first[to] == first[from]; ++to) {
                filled += filled == to && ids[to] != pad ? 1 : 0;
            }
            for (int64_t i = from; i < to; ++i) {
                out[i] = (int32_t)filled;
            }
        }
    }
}

static void shifted_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_shift_labels_attrs *a = call->sig->attrs;
    const int64_t length = call->in[0].meta.shape.dims[1];
    (void)slot;
    for (int64_t at = begin * length; at < end * length; ++at) {
        const int32_t *labels = call->in[0].data;
        const int32_t *first = call->in[1].data;
        const bool begins = at % length == 0 || first[at] != first[at - 1];
        const int32_t before = begins ? (int32_t)a->start : labels[at - 1];
        ((int32_t *)call->out[0].data)[at] = before == -100 ? (int32_t)a->pad : before;
    }
}

static ds_status shift_labels_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, call->in[0].meta.shape.dims[0], shifted_rows);
    return DS_OK;
}

static ds_status filled_end_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, call->in[0].meta.shape.dims[0], filled_rows);
    return DS_OK;
}

REF_KERNEL(attention, attention_run, attention_work);
REF_KERNEL(attention_backward, attention_backward_run, attention_backward_work);
REF_KERNEL(document_end, document_end_run, NULL);
REF_KERNEL(filled_end, filled_end_run, NULL);
REF_KERNEL(shift_labels, shift_labels_run, NULL);
const ds_kernel *const DSI_REF(attention)[] = {&attention_kernel,    &attention_backward_kernel,
                                               &document_end_kernel, &filled_end_kernel,
                                               &shift_labels_kernel, NULL};
