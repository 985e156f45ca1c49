/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_linear and its gradient of the weights, for rows sorted by expert: the tiles of linear.cu
 * and linear_dw.cu, a row having the bits that those kernels give it. Which tile is whose only the
 * offsets say, which the host does not read: a grid has as many as there may be. Offsets that do
 * not ascend within the rows are reported; what is computed by them stays within the rows. */
#include "accel/cuda/kernels/experts.h"
#include "accel/cuda/kernels/linear_dw_tile.h"
#include "accel/cuda/kernels/linear_tile.h"

DSC_INLINE int64_t end_of(const int32_t *offsets, int64_t s, int64_t begin, int64_t rows)
{
    const int64_t end = offsets[s + 1];
    return end < begin ? begin : end > rows ? rows : end;
}

/* By one thread. */
DSC_INLINE void check_offsets(const int32_t *offsets, int64_t n, int64_t rows, dsc_fault *fault,
                              uint64_t call)
{
    for (int64_t i = 0; i < n; ++i) {
        const int64_t least = i > 0 ? offsets[i - 1] : 0;
        const int64_t most = i > 0 ? rows : 0;
        if (offsets[i] < least || offsets[i] > most) {
            dsc_report(fault, call, i, offsets[i], most + 1);
        }
    }
}

/* Rows of one segment in tile `tile` of so many rows each. */
typedef struct part_of_rows {
    int64_t begin, end; /* of the segment; both 0: there is no such tile */
    int64_t segment, first_row;
} part_of_rows;

DSC_INLINE part_of_rows find_tile(const dsc_grouped_args *a, int64_t tile, int64_t rows)
{
    part_of_rows p = {0, 0, 0, 0};
    for (int64_t s = 0; s <= a->n_segments; ++s) {
        p.begin = p.end;
        p.end = s < a->n_segments ? end_of(a->offsets, s, p.begin, a->linear.rows) : a->linear.rows;
        p.segment = s;
        p.first_row = tile * rows;
        if (p.first_row < p.end - p.begin) {
            return p;
        }
        tile -= (p.end - p.begin + rows - 1) / rows;
    }
    p.begin = p.end = 0;
    return p;
}

/* The product of one segment, as `linear` has it. Without an expert nothing is summed. */
DSC_INLINE dsc_linear_args product_of(const dsc_grouped_args *a, int act, const part_of_rows *p)
{
    const int64_t size = act == DSC_F32 ? 4 : 2;
    const int64_t y_size = a->linear.y_dtype == DSC_F32 ? 4 : 2;
    const int64_t expert = p->segment % a->n_experts;
    dsc_linear_args own = a->linear;
    own.rows = p->end - p->begin;
    own.n_in = p->segment < a->n_segments ? own.n_in : 0;
    own.x = (const char *)own.x + p->begin * a->linear.n_in * size;
    own.w = (const char *)own.w + expert * a->linear.n_in * own.n_out * size;
    own.y = (char *)own.y + p->begin * own.n_out * y_size;
    return own;
}

DSC_INLINE void check_grouped(const dsc_grouped_args *a)
{
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
        check_offsets(a->offsets, a->n_segments + 1, a->linear.rows, a->fault, a->call);
    }
}

DSC_INLINE void grouped_linear_body(const dsc_grouped_args *a, int act)
{
    __shared__ plain_tile xs;
    __shared__ plain_tile ws;
    const part_of_rows p = find_tile(a, blockIdx.y, DSC_PLAIN_TILE);
    const dsc_linear_args own = product_of(a, act, &p);
    check_grouped(a);
    if (p.begin < p.end) {
        plain_tile_of(&own, act, NULL, p.first_row, (int64_t)blockIdx.x * DSC_PLAIN_TILE, xs, ws);
    }
}

DSC_KERNEL_ACT(grouped_linear, dsc_grouped_args)

DSC_INLINE void grouped_linear_mma_body(const dsc_grouped_args *a, int act)
{
    __shared__ DSC_ALIGN(16) mma_tile xs[2];
    __shared__ DSC_ALIGN(16) mma_tile ws[2];
    const part_of_rows p = find_tile(a, blockIdx.y, DSC_MMA_TILE);
    const dsc_linear_args own = product_of(a, act, &p);
    check_grouped(a);
    if (p.begin < p.end) {
        mma_tile_of(&own, act, NULL, p.first_row, (int64_t)blockIdx.x * DSC_MMA_TILE, xs, ws);
    }
}

DSC_KERNEL(grouped_linear_mma_bf16, dsc_grouped_args, grouped_linear_mma_body(a, DSC_BF16))
DSC_KERNEL(grouped_linear_mma_f16, dsc_grouped_args, grouped_linear_mma_body(a, DSC_F16))

/* ---- the gradient of the weights ----------------------------------------------------------- */

enum { LEVELS = 17 };

/* Element of dw of one source's rows, 4096 of them at a time. */
DSC_INLINE float sum_segment(const dsc_grouped_dw_args *a, int act, int64_t s, float before,
                             plain_tile xs, plain_tile ds)
{
    const int64_t rows = a->linear.rows;
    int64_t begin = a->offsets[s];
    begin = begin < 0 ? 0 : begin > rows ? rows : begin;
    const int64_t end = end_of(a->offsets, s, begin, rows);
    for (; begin < end; begin += DSC_GROUPED_SUM) {
        const int64_t last = end - begin < DSC_GROUPED_SUM ? end : begin + DSC_GROUPED_SUM;
        before += plain_dw_of(&a->linear, act, begin, last, xs, ds);
    }
    return before;
}

/* Sources are added in the canonical order: partial sums of aligned blocks of them, the largest
 * first, as a counter carries. */
DSC_INLINE float sum_of_sources(const dsc_grouped_dw_args *a, int act, int64_t expert, float before,
                                plain_tile xs, plain_tile ds)
{
    float parts[LEVELS];
    uint32_t n = 0;
    if (a->n_sources == 1) {
        return sum_segment(a, act, expert, before, xs, ds);
    }
    for (int64_t source = 0; source < a->n_sources; ++source) {
        float value = sum_segment(a, act, source * a->n_experts + expert, 0.0f, xs, ds);
        for (int64_t bits = source; (bits & 1) != 0; bits >>= 1) {
            value = parts[--n] + value;
        }
        parts[n++] = value;
    }
    float sum = parts[--n];
    while (n > 0) {
        sum = parts[--n] + sum;
    }
    return before + sum;
}

/* blockIdx.x: columns of dy, blockIdx.y: columns of x, blockIdx.z: experts. */
DSC_INLINE void grouped_linear_dw_body(const dsc_grouped_dw_args *a, int act)
{
    __shared__ plain_tile xs;
    __shared__ plain_tile ds;
    const dsc_linear_dw_args *l = &a->linear;
    const int64_t expert = blockIdx.z;
    const int64_t at = expert * l->n_in * l->n_out + dw_at(l);
    const bool in = is_in_dw(l);
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) {
        check_offsets(a->offsets, a->n_sources * a->n_experts + 1, l->rows, a->fault, a->call);
    }
    const float before = in && l->dw_in != NULL ? l->dw_in[at] : 0.0f;
    const float sum = sum_of_sources(a, act, expert, before, xs, ds);
    if (in) {
        ((float *)l->dw)[at] = sum;
    }
}

DSC_KERNEL_ACT(grouped_linear_dw, dsc_grouped_dw_args)
