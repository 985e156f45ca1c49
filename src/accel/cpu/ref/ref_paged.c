/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of paged_write and paged_attention. */
#include "accel/cpu/paged_shape.h"
#include "accel/cpu/ref/ref_real.h"

#include <string.h>

/* One head to its codes and scale. */
static void write_codes(const ds_tensor *x, int64_t at, int64_t d, int8_t *codes)
{
    float most = 0.0f;
    for (int64_t c = 0; c < d; ++c) {
        const float size = fabsf((float)ref_get(x, at + c));
        most = size <= most ? most : size; /* a NaN stays */
        if (!isfinite(most)) {
            most = NAN;
            break;
        }
    }
    const float scale = most / (float)DSI_PAGED_MOST_CODE;
    for (int64_t c = 0; c < d; ++c) {
        const float q = scale > 0.0f ? rintf((float)ref_get(x, at + c) / scale) : 0.0f;
        codes[c] = (int8_t)fmaxf(fminf(q, DSI_PAGED_MOST_CODE), -DSI_PAGED_MOST_CODE);
    }
    memcpy(codes + d, &scale, sizeof scale);
}

/* Row t of x to position slot. */
static void write_row(const ds_kernel_call *call, int64_t t, int64_t slot)
{
    const ds_tensor *x = &call->in[1];
    const ds_tensor *cell = &call->out[0];
    const ds_dtype type = cell->meta.dtype;
    const int64_t width = cell->meta.shape.dims[2];
    const int64_t n = x->meta.shape.dims[2];
    const size_t bytes = (size_t)width * ds_dtype_bytes(type);
    char *row = (char *)cell->data + (size_t)slot * bytes;
    if (type == x->meta.dtype) {
        memcpy(row, (const char *)x->data + (size_t)t * bytes, bytes);
    } else if (type == DS_DTYPE_I8) {
        const int64_t d = ((const dsi_paged_write_attrs *)call->sig->attrs)->head_dim;
        const int64_t each = dsi_paged_head(type, d);
        for (int64_t h = 0; h < width / each; ++h) {
            write_codes(x, t * n + h * d, d, (int8_t *)row + h * each);
        }
    } else {
        for (int64_t c = 0; c < n; ++c) {
            ref_set(cell, slot * n + c, ref_get(x, t * n + c));
        }
    }
}

static ds_status paged_write_run(const ds_kernel_call *call)
{
    const int32_t *slots = call->in[2].data;
    const int64_t *cell = call->out[0].meta.shape.dims;
    const int64_t n_tokens = call->in[1].meta.shape.dims[1];
    for (int64_t t = 0; t < n_tokens; ++t) {
        if (slots[t] < -1 || slots[t] >= cell[0] * cell[1]) {
            return ds_fail(call->ctx, DS_ERR_LIMIT,
                           "paged_write: slot[%lld] is %d, but the cell holds %lld positions",
                           (long long)t, slots[t], (long long)(cell[0] * cell[1]));
        }
    }
    if (call->out[0].data != call->in[0].data) { /* of a cell that lives elsewhere, rarely */
        memcpy(call->out[0].data, call->in[0].data, ds_meta_bytes(call->out[0].meta));
    }
    for (int64_t t = 0; t < n_tokens; ++t) {
        if (slots[t] >= 0) {
            write_row(call, t, slots[t]);
        }
    }
    return DS_OK;
}

/* Element of key j of the table, kv head kv. */
static int64_t key_at(const paged_shape *s, const int32_t *table, int64_t j, int64_t kv)
{
    return (table[j / s->block] * s->block + j % s->block) * s->kv_stride + kv * s->kv_head;
}

/* Value c of the head that begins at element `at` of keys or values. */
static real cell_get(const paged_shape *s, const ds_tensor *cell, int64_t at, int64_t c)
{
    const int8_t *codes = (const int8_t *)cell->data + at;
    return s->kv_type == DS_DTYPE_I8 ? (real)((float)codes[c] * paged_scale(codes, s->d))
                                     : ref_get(cell, at + c);
}

/* q·k to the score. */
static real score_of(const paged_shape *s, real product, real slope, int64_t j, int64_t position)
{
    const real cap = (real)s->a->cap;
    const real score = product * (real)s->a->scale;
    if (s->a->alibi_rounded != 0) {
        const real bias = (real)dsi_alibi_bias((double)slope, j);
        return (cap > R(0.0) ? cap * r_tanh(score / cap) : score) + (real)s->a->scale * bias;
    }
    return (cap > R(0.0) ? cap * r_tanh(score / cap) : score) + slope * (real)(j - position);
}

/* Head h of token t: scores into p, then y; its lse. */
static real attend(const ds_kernel_call *call, const paged_shape *s, int64_t t, int64_t h, real *p,
                   real *y)
{
    const paged_data x = paged_data_of(call);
    const int32_t *table = x.tables + x.sequence[t] * s->n_table;
    const int64_t last = x.positions[t] + 1;
    const int64_t first = paged_first(s, x.positions[t]);
    const int64_t q_at = t * s->q_stride + h * s->d;
    const int64_t kv = h / s->group;
    const real slope = (real)paged_slope(s, &x, h);
    real top = -(real)INFINITY;
    real sum = R(0.0);
    for (int64_t j = first; j < last; ++j) {
        const int64_t k_at = key_at(s, table, j, kv);
        real dot = R(0.0);
        for (int64_t c = 0; c < s->d; ++c) {
            dot += ref_get(&call->in[0], q_at + c) * cell_get(s, &call->in[1], k_at, c);
        }
        p[j] = score_of(s, dot, slope, j, x.positions[t]);
        p[j] += s->n_distances == 0
                    ? R(0.0)
                    : (real)x.bias[h * s->n_distances + paged_bias_at(s, x.positions[t] - j)];
        top = p[j] > top ? p[j] : top;
    }
    for (int64_t j = first; j < last; ++j) {
        p[j] = r_exp(p[j] - top);
        sum += p[j];
    }
    for (int64_t c = 0; c < s->d; ++c) {
        y[c] = R(0.0);
    }
    for (int64_t j = first; j < last; ++j) {
        const int64_t v_at = key_at(s, table, j, kv);
        for (int64_t c = 0; c < s->d; ++c) {
            y[c] += p[j] / sum * cell_get(s, &call->in[2], v_at, c);
        }
    }
    return top + r_log(sum);
}

static int64_t attend_reals(const ds_kernel_sig *sig)
{
    const paged_shape s = paged_shape_of(sig);
    return s.n_table * s.block + s.d;
}

static void attend_tokens(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const paged_shape s = paged_shape_of(call->sig);
    const int32_t *sequence = call->in[4].data;
    real *p = ref_slot(call, slot, attend_reals(call->sig));
    real *y = p + s.n_table * s.block;
    for (int64_t item = begin; item < end; ++item) {
        const int64_t t = item / s.a->n_heads;
        const int64_t h = item % s.a->n_heads;
        const real lse = sequence[t] >= 0 ? attend(call, &s, t, h, p, y) : -(real)INFINITY;
        ref_set(&call->out[1], h * s.n_tokens + t, lse);
        for (int64_t c = 0; c < s.d; ++c) {
            ref_set(&call->out[0], t * s.q_stride + h * s.d + c, sequence[t] >= 0 ? y[c] : R(0.0));
        }
    }
}

static size_t paged_attention_work(const ds_kernel_sig *sig)
{
    return ref_slot_bytes(sig, attend_reals(sig));
}

static ds_status paged_attention_run(const ds_kernel_call *call)
{
    const paged_shape s = paged_shape_of(call->sig);
    const paged_data x = paged_data_of(call);
    DS_TRY(paged_check(call, &s, &x));
    dsi_ref_for(call, s.n_tokens * s.a->n_heads, attend_tokens);
    return DS_OK;
}

REF_KERNEL(paged_write, paged_write_run, NULL);
REF_KERNEL(paged_attention, paged_attention_run, paged_attention_work);
const ds_kernel *const DSI_REF(paged)[] = {&paged_write_kernel, &paged_attention_kernel, NULL};
