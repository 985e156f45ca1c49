/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of quantized blocks. Items are blocks, so that no two threads write one; what a
 * block becomes depends on its numbers alone. */
#include "accel/cpu/block_row.h"
#include "accel/cpu/ref/ref_real.h"

/* ---- to blocks ------------------------------------------------------------------------------- */

/* n elements of x, 0 behind its end. */
static void load(const ds_tensor *x, int64_t at, int64_t n, float *out)
{
    const int64_t left = ds_shape_count(x->meta.shape) - at;
    const int64_t there = left < 0 ? 0 : left < n ? left : n;
    for (int64_t i = 0; i < there; ++i) {
        out[i] = ref_get(x, at + i);
    }
    for (int64_t i = there; i < n; ++i) {
        out[i] = 0.0f;
    }
}

static void quantize_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    const int64_t n_blocks = dsi_blocks_count(a);
    const int64_t row_bytes = dsi_blocks_row_bytes(a);
    float x[DSI_BLOCKS_MOST];
    int8_t q[DSI_BLOCKS_MOST];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t r = i / n_blocks;
        const block_at at = block_find(a, i % n_blocks);
        uint8_t *row = (uint8_t *)call->out[0].data + r * row_bytes;
        float scale = 0.0f;
        load(&call->in[0], r * a->width + at.first, at.n, x);
        block_quantize(a->bits, x, at.n, q, &scale);
        block_put(a, &at, q, scale, row);
    }
}

static ds_status quantize_blocks_run(const ds_kernel_call *call)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    dsi_ref_for(call, a->n_rows * dsi_blocks_count(a), quantize_range);
    return DS_OK;
}

/* ---- and back -------------------------------------------------------------------------------- */

static void dequantize_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    const int64_t n_blocks = dsi_blocks_count(a);
    const int64_t row_bytes = dsi_blocks_row_bytes(a);
    float x[DSI_BLOCKS_MOST];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t r = i / n_blocks;
        const block_at at = block_find(a, i % n_blocks);
        const int64_t first = r * a->width + at.first;
        block_unpack(a, (const uint8_t *)call->in[0].data + r * row_bytes, &at, 0, at.n, x);
        for (int64_t k = 0; k < at.n && first + k < a->count; ++k) {
            ref_set(&call->out[0], first + k, x[k]);
        }
    }
}

static ds_status dequantize_blocks_run(const ds_kernel_call *call)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    dsi_ref_for(call, a->n_rows * dsi_blocks_count(a), dequantize_range);
    return DS_OK;
}

/* ---- with an error --------------------------------------------------------------------------- */

static void with_error_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    const ds_tensor *unit_is = ref_in(call, 2);
    const float unit = unit_is != NULL ? *(const float *)unit_is->data : 1.0f;
    const int64_t n_blocks = dsi_blocks_count(a);
    dsi_blocks_attrs kept = *a;
    float y[DSI_BLOCKS_MOST];
    float e[DSI_BLOCKS_MOST];
    int8_t q[DSI_BLOCKS_MOST];
    kept.bits = 8;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t r = i / n_blocks;
        const block_at at = block_find(a, i % n_blocks);
        const block_at error_at = block_find(&kept, i % n_blocks);
        const int64_t error_row = r * dsi_blocks_row_bytes(&kept);
        float scale = 0.0f;
        load(&call->in[0], r * a->width + at.first, at.n, y);
        block_unpack(&kept, (const uint8_t *)call->in[1].data + error_row, &error_at, 0, at.n, e);
        for (int64_t k = 0; k < at.n; ++k) {
            e[k] *= unit;
            y[k] += e[k];
        }
        block_quantize(a->bits, y, at.n, q, &scale);
        block_put(a, &at, q, scale, (uint8_t *)call->out[0].data + r * dsi_blocks_row_bytes(a));
        block_lose(a, y, q, at.n, scale, e);
        for (int64_t k = 0; k < at.n; ++k) {
            e[k] /= unit;
        }
        block_quantize(kept.bits, e, at.n, q, &scale);
        block_put(&kept, &error_at, q, scale, (uint8_t *)call->out[1].data + error_row);
    }
}

static ds_status quantize_with_error_run(const ds_kernel_call *call)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    dsi_ref_for(call, a->n_rows * dsi_blocks_count(a), with_error_range);
    return DS_OK;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void sum_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    const float factor = (float)a->factor;
    float level[BLOCK_LEVELS + 1][BLOCK_CHUNK];
    (void)slot;
    for (int64_t b = begin; b < end; ++b) {
        const block_at at = block_find(a, b);
        for (int64_t i = 0; i < at.n; i += BLOCK_CHUNK) {
            const int64_t n = at.n - i < BLOCK_CHUNK ? at.n - i : BLOCK_CHUNK;
            block_add_rows(a, call->in[0].data, &at, i, n, level);
            for (int64_t k = 0; k < n; ++k) {
                ref_set(&call->out[0], at.first + i + k, level[BLOCK_LEVELS][k] * factor);
            }
        }
    }
}

static ds_status dequantize_sum_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, dsi_blocks_count(call->sig->attrs), sum_range);
    return DS_OK;
}

#define BLOCKS_KERNEL(op_name)                                                                     \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .run = op_name##_run}

BLOCKS_KERNEL(quantize_blocks);
BLOCKS_KERNEL(quantize_with_error);
BLOCKS_KERNEL(dequantize_blocks);
BLOCKS_KERNEL(dequantize_sum);

const ds_kernel *const DSI_REF(blocks)[] = {&quantize_blocks_kernel, &quantize_with_error_kernel,
                                            &dequantize_blocks_kernel, &dequantize_sum_kernel,
                                            NULL};
