/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernel of linear with a weight in blocks. The arithmetic is stated in block_linear.h.
 */
#include "accel/cpu/block_linear.h"

static float block_scale(const ds_tensor *x, int64_t at, float *inverse_out)
{
    float top = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < DSI_BLOCK; ++i) {
        const float v = fabsf(ref_get(x, at + i));
        finite = finite && isfinite(v);
        top = v > top ? v : top;
    }
    *inverse_out = finite && top > 0.0f ? 127.0f / top : 0.0f;
    return finite ? top / 127.0f : NAN;
}

/* Rows of x as bytes. */
static void round_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const block_shape s = block_shape_of(call->sig);
    const block_x x = block_x_at(&s, call->work);
    (void)slot;
    for (int64_t block = begin * s.n_blocks; block < end * s.n_blocks; ++block) {
        float inverse = 0.0f;
        const int64_t at = block * DSI_BLOCK;
        int32_t sum = 0;
        x.scale[block] = block_scale(&call->in[0], at, &inverse);
        for (int64_t i = 0; i < DSI_BLOCK; ++i) {
            const float v = ref_get(&call->in[0], at + i) * inverse;
            x.q[at + i] = (int8_t)(isnan(x.scale[block]) ? 0 : (int)rintf(v));
            sum += x.q[at + i];
        }
        x.correct[block] = block_correction(s.type, sum);
    }
}

static float f16_at(const uint8_t *at)
{
    return dsi_f16_to_f32((uint16_t)(at[0] | at[1] << 8));
}

static float dot(const block_shape *s, const ds_tensor *w, const block_x *x, int64_t row, int64_t o)
{
    const int64_t each = dsi_block_bytes(s->type) * DSI_BLOCK_ROWS;
    const uint8_t *panel =
        (const uint8_t *)w->data + (size_t)(o / DSI_BLOCK_ROWS) * dsi_panel_bytes(s->type, s->k);
    const int64_t r = o % DSI_BLOCK_ROWS;
    float y = 0.0f;
    for (int64_t b = 0; b < s->n_blocks; ++b) {
        const uint8_t *block = panel + b * each;
        const int64_t at = row * s->n_blocks + b;
        int32_t sum = 0;
        for (int64_t i = 0; i < DSI_BLOCK; ++i) {
            sum += dsi_block_value(s->type, block, r, i) * x->q[row * s->k + b * DSI_BLOCK + i];
        }
        y = fmaf(f16_at(block + 2 * r) * x->scale[at], (float)sum, y);
        if (dsi_block_has_minimum(s->type)) {
            const float minimum = f16_at(block + 2 * (DSI_BLOCK_ROWS + r));
            y = fmaf(minimum * x->scale[at], (float)x->correct[at], y);
        }
    }
    return y;
}

static void columns(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const block_shape s = block_shape_of(call->sig);
    const block_x x = block_x_at(&s, call->work);
    (void)slot;
    for (int64_t o = begin; o < end; ++o) {
        for (int64_t row = 0; row < s.m; ++row) {
            block_linear_finish(call, row * s.n + o, o, dot(&s, &call->in[1], &x, row, o));
        }
    }
}

static size_t block_linear_work(const ds_kernel_sig *sig)
{
    const block_shape s = block_shape_of(sig);
    return block_x_bytes(&s);
}

static ds_status block_linear_run(const ds_kernel_call *call)
{
    const block_shape s = block_shape_of(call->sig);
    dsi_ref_for(call, s.m, round_rows);
    dsi_ref_for(call, s.n, columns);
    return DS_OK;
}

static const ds_kernel block_linear_kernel = {.version = DS_OP_VERSION,
                                              .name = "ref",
                                              .op = "linear",
                                              .needs = DS_ISA_REF,
                                              .supports = block_linear_supports,
                                              .work_bytes = block_linear_work,
                                              .run = block_linear_run};
const ds_kernel *const DSI_REF(block_linear)[] = {&block_linear_kernel, NULL};
