/* SPDX-License-Identifier: Apache-2.0 */
/* paged_write: rows of x to positions of a cell. A thread an element; into codes a warp a head. A
 * slot below 0 is none; one behind the cell is reported, and left out. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/paged.h"

enum { MOST_CODE = 127, SCALE_BYTES = 4 };

DSC_INLINE bool is_slot(const dsc_paged_write_args *a, int64_t token, bool report)
{
    const int64_t slot = a->slots[token];
    if ((slot < -1 || slot >= a->n_slots) && report) {
        dsc_report(a->fault, a->call, token, slot, a->n_slots);
    }
    return slot >= 0 && slot < a->n_slots;
}

DSC_INLINE void write_all(const dsc_paged_write_args *a)
{
    for (int64_t i = dsc_index(); i < a->n_tokens * a->columns; i += dsc_stride()) {
        const int64_t token = i / a->columns;
        if (!is_slot(a, token, i % a->columns == 0)) {
            continue;
        }
        const int64_t at = a->slots[token] * a->columns + i % a->columns;
        if (a->x_dtype != a->cell_dtype) {
            dsc_set(a->cell, a->cell_dtype, at, dsc_get(a->x, a->x_dtype, i));
        } else if (a->x_dtype == DSC_F32) {
            ((uint32_t *)a->cell)[at] = ((const uint32_t *)a->x)[i];
        } else {
            ((uint16_t *)a->cell)[at] = ((const uint16_t *)a->x)[i];
        }
    }
}

/* The head that begins at x's element `at`, to its codes and behind them its scale. */
DSC_INLINE void write_codes(const dsc_paged_write_args *a, int act, int64_t at, int8_t *codes)
{
    const uint32_t lane = threadIdx.x % 32;
    float most = 0.0f;
    float odd = 0.0f; /* 1: a value is not finite */
    for (int64_t c = lane; c < a->head_dim; c += 32) {
        const float size = fabsf(dsc_get(a->x, act, at + c));
        odd = size < INFINITY ? odd : 1.0f;
        most = size > most ? size : most;
    }
    odd = dsc_warp_max(odd);
    most = dsc_warp_max(most);
    const float scale = odd > 0.0f ? dsc_from_bf16(0x7fc0u) : most / (float)MOST_CODE;
    for (int64_t c = lane; c < a->head_dim; c += 32) {
        const float q = scale > 0.0f ? rintf(dsc_get(a->x, act, at + c) / scale) : 0.0f;
        codes[c] = (int8_t)(q > (float)MOST_CODE    ? MOST_CODE
                            : q < -(float)MOST_CODE ? -MOST_CODE
                                                    : (int)q);
    }
    if (lane < SCALE_BYTES) {
        codes[a->head_dim + lane] = (int8_t)(uint8_t)(dsc_float_bits(scale) >> (8 * lane));
    }
}

DSC_INLINE void paged_write_codes_body(const dsc_paged_write_args *a, int act)
{
    const int64_t n_heads = a->columns / a->head_dim;
    const int64_t each = a->head_dim + SCALE_BYTES;
    for (int64_t i = dsc_index() / 32; i < a->n_tokens * n_heads; i += dsc_stride() / 32) {
        const int64_t token = i / n_heads;
        const int64_t head = i % n_heads;
        if (is_slot(a, token, head == 0 && threadIdx.x % 32 == 0)) {
            write_codes(a, act, token * a->columns + head * a->head_dim,
                        (int8_t *)a->cell + (a->slots[token] * n_heads + head) * each);
        }
    }
}

DSC_KERNEL(paged_write, dsc_paged_write_args, write_all(a))
DSC_KERNEL_ACT(paged_write_codes, dsc_paged_write_args)
