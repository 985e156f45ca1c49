/* SPDX-License-Identifier: Apache-2.0 */
/* causal_conv, its gradient, and its forms that go on from a cell: a thread an element, or a
 * channel of a run of tokens; of the weight's gradient 32 channels a block, whose eight warps take
 * positions in turns. */
#include "accel/cuda/kernels/document.h"
#include "accel/cuda/kernels/recurrence.h"

DSC_INLINE int64_t document_of(const dsc_conv_args *a, int64_t row)
{
    const int64_t first = a->first != NULL ? a->first[row] : 0;
    return first > 0 ? first : 0;
}

DSC_INLINE void causal_conv_body(const dsc_conv_args *a, int act)
{
    for (int64_t at = dsc_index(); at < a->n_batch * a->length * a->channels; at += dsc_stride()) {
        const int64_t row = at / a->channels;
        const int64_t c = at % a->channels;
        const int64_t t = row % a->length;
        const int64_t first = document_of(a, row);
        float sum = 0.0f;
        if (c == 0) {
            dsc_check_first(a->fault, a->call, a->first, row, a->length);
        }
        for (int64_t j = 0; j < a->k; ++j) {
            const int64_t back = a->k - 1 - j;
            if (t - back >= first) {
                sum += dsc_get(a->w, a->w_dtype, c * a->k + j) *
                       dsc_get(a->x, act, at - back * a->channels);
            }
        }
        dsc_set(a->y, act, at, sum);
    }
}

DSC_INLINE void causal_conv_dx_body(const dsc_conv_args *a, int act)
{
    for (int64_t at = dsc_index(); at < a->n_batch * a->length * a->channels; at += dsc_stride()) {
        const int64_t row = at / a->channels;
        const int64_t c = at % a->channels;
        const int64_t s = row % a->length;
        float sum = 0.0f;
        if (c == 0) {
            dsc_check_first(a->fault, a->call, a->first, row, a->length);
        }
        for (int64_t j = 0; j < a->k; ++j) {
            const int64_t ahead = a->k - 1 - j;
            if (s + ahead < a->length && document_of(a, row + ahead) <= s) {
                sum += dsc_get(a->w, a->w_dtype, c * a->k + j) *
                       dsc_get(a->dy, act, at + ahead * a->channels);
            }
        }
        dsc_set(a->dx, act, at, sum);
    }
}

/* Tap j of channels 32·strip and on. */
DSC_INLINE void dw_strip(const dsc_conv_args *a, int act, int64_t strip, int64_t j,
                         float sums[8][33])
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const int64_t c = strip * 32 + lane;
    const int64_t back = a->k - 1 - j;
    float sum = 0.0f;
    for (int64_t row = warp; row < a->n_batch * a->length && c < a->channels; row += 8) {
        if (row % a->length - back >= document_of(a, row)) {
            sum += dsc_get(a->dy, act, row * a->channels + c) *
                   dsc_get(a->x, act, (row - back) * a->channels + c);
        }
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && c < a->channels) {
        for (uint32_t w = 1; w < 8; ++w) {
            sum += sums[w][lane];
        }
        dsc_set(a->dw, a->dw_dtype, c * a->k + j, sum);
    }
    __syncthreads();
}

DSC_INLINE void causal_conv_dw_body(const dsc_conv_args *a, int act)
{
    __shared__ float sums[8][33];
    const int64_t strips = (a->channels + 31) / 32;
    for (int64_t i = blockIdx.x; i < strips * a->k; i += gridDim.x) {
        dw_strip(a, act, i / a->k, i % a->k, sums);
    }
}

/* ---- what goes on from a cell -----------------------------------------------------------------
 */

/* Rows of x that go on from one row of the cell, which counts for nothing where they begin. */
typedef struct run {
    int64_t row, n; /* of x */
    int64_t held;   /* of the cell */
    bool begins;
} run;

/* Position t of a run, below 0 in the cell. */
DSC_INLINE float before(const dsc_conv_args *a, int act, const run *r, int64_t t, int64_t c)
{
    if (t >= 0) {
        return dsc_get(a->x, act, (r->row + t) * a->channels + c);
    }
    return r->begins ? 0.0f
                     : dsc_get(a->cell, a->cell_dtype,
                               (r->held * (a->k - 1) + t + a->k - 1) * a->channels + c);
}

DSC_INLINE void run_channel(const dsc_conv_args *a, int act, const run *r, int64_t c)
{
    for (int64_t t = 0; t < r->n; ++t) {
        float sum = 0.0f;
        for (int64_t j = 0; j < a->k; ++j) {
            sum += dsc_get(a->w, a->w_dtype, c * a->k + j) * before(a, act, r, t - a->k + 1 + j, c);
        }
        dsc_set(a->y, act, (r->row + t) * a->channels + c, sum);
    }
    for (int64_t i = 0; i < a->k - 1; ++i) { /* in this order: the cell is both in and out */
        const float x = before(a, act, r, r->n - a->k + 1 + i, c);
        dsc_set(a->cell, a->cell_dtype, (r->held * (a->k - 1) + i) * a->channels + c, x);
    }
}

DSC_INLINE void causal_conv_step_body(const dsc_conv_args *a, int act)
{
    for (int64_t i = dsc_index(); i < a->n_batch * a->channels; i += dsc_stride()) {
        const int64_t b = i / a->channels;
        const int64_t c = i % a->channels;
        run r = {b * a->length, 0, b, false};
        if (dsc_check_step(a->fault, a->call, a->offset, a->last, b, a->length)) {
            r.n = a->last[b] + 1;
            r.begins = a->offset[b] == 0;
            run_channel(a, act, &r, c);
        }
        for (int64_t t = r.n; t < a->length; ++t) {
            dsc_set(a->y, act, (r.row + t) * a->channels + c, 0.0f);
        }
    }
}

/* A thread a channel of a token: that of the first token of a run does all of it. */
DSC_INLINE void paged_causal_conv_body(const dsc_conv_args *a, int act)
{
    for (int64_t i = dsc_index(); i < a->length * a->channels; i += dsc_stride()) {
        const int64_t t = i / a->channels;
        const int64_t n = dsc_run_at(a->fault, a->call, a->sequence, a->position, t, a->length,
                                     a->n_cells);
        if (n > 0) {
            const run r = {t, n, a->sequence[t], a->position[t] == 0};
            run_channel(a, act, &r, i % a->channels);
        } else if (a->sequence[t] < 0) {
            dsc_set(a->y, act, i, 0.0f);
        }
    }
}

DSC_KERNEL_ACT(causal_conv, dsc_conv_args)
DSC_KERNEL_ACT(causal_conv_dx, dsc_conv_args)
DSC_KERNEL_ACT(causal_conv_dw, dsc_conv_args)
DSC_KERNEL_ACT(causal_conv_step, dsc_conv_args)
DSC_KERNEL_ACT(paged_causal_conv, dsc_conv_args)
