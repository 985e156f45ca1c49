/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of linear with a weight in blocks, whose arithmetic is stated in
 * block_linear.h, and of embedding_blocks. */
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
    *inverse_out = finite && top >= BLOCK_LEAST ? 127.0f / top : 0.0f;
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
        const int parts = dsi_block_parts(s.type);
        int32_t sum[2] = {0};
        const int64_t to = block_x_index(&s, block / s.n_blocks, block % s.n_blocks);
        int8_t *q = x.q + to * DSI_BLOCK;
        x.scale[to] = block_scale(&call->in[0], at, &inverse);
        for (int64_t i = 0; i < DSI_BLOCK; ++i) {
            const float v = ref_get(&call->in[0], at + i) * inverse;
            q[i] = (int8_t)(isnan(x.scale[to]) ? 0 : (int)rintf(v));
            sum[i * parts / DSI_BLOCK] += q[i];
        }
        for (int part = 0; part < parts; ++part) {
            x.correct[to * parts + part] = block_correction(s.type, sum[part]);
        }
    }
}

static float dot(const block_shape *s, const ds_tensor *w, const block_x *x, int64_t row, int64_t o)
{
    const int parts = dsi_block_parts(s->type);
    const int64_t n = DSI_BLOCK / parts;
    const uint8_t *panel =
        (const uint8_t *)w->data + (size_t)(o / DSI_BLOCK_ROWS) * dsi_panel_bytes(s->type, s->k);
    const int64_t r = o % DSI_BLOCK_ROWS;
    float y = 0.0f;
    for (int64_t b = 0; b < s->n_blocks; ++b) {
        const int64_t at = block_x_index(s, row, b);
        for (int part = 0; part < parts; ++part) {
            int32_t sum = 0;
            for (int64_t i = part * n; i < (part + 1) * n; ++i) {
                sum += dsi_block_value(s->type, panel, b, r, i) * x->q[at * DSI_BLOCK + i];
            }
            const float scale = dsi_block_scale(s->type, panel, b, r, part);
            y = fmaf(scale * x->scale[at], (float)sum, y);
        }
        if (dsi_block_has_minimum(s->type)) {
            const float minimum = dsi_block_minimum(s->type, panel, b, r);
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

/* ---- embedding_blocks ------------------------------------------------------------------------ */

static void block_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_dtype type = call->in[0].meta.dtype;
    const int64_t c = ds_shape_last(call->in[0].meta.shape);
    const int parts = dsi_block_parts(type);
    const int32_t *ids = call->in[1].data;
    (void)slot;
    for (int64_t t = begin; t < end; ++t) {
        const int64_t r = ids[t] % DSI_BLOCK_ROWS;
        const uint8_t *panel = (const uint8_t *)call->in[0].data +
                               (size_t)(ids[t] / DSI_BLOCK_ROWS) * dsi_panel_bytes(type, c);
        for (int64_t b = 0; b < c / DSI_BLOCK; ++b) {
            const float scale[2] = {dsi_block_scale(type, panel, b, r, 0),
                                    dsi_block_scale(type, panel, b, r, parts - 1)};
            const float minimum = dsi_block_minimum(type, panel, b, r);
            for (int64_t i = 0; i < DSI_BLOCK; ++i) {
                const float q = (float)dsi_block_value(type, panel, b, r, i);
                ref_set(&call->out[0], t * c + b * DSI_BLOCK + i,
                        scale[i * parts / DSI_BLOCK] * q + minimum);
            }
        }
    }
}

static ds_status embedding_blocks_run(const ds_kernel_call *call)
{
    const int64_t n = ds_shape_count(call->in[1].meta.shape);
    const int64_t n_rows = call->in[0].meta.shape.dims[0];
    const int32_t *ids = call->in[1].data;
    for (int64_t t = 0; t < n; ++t) {
        if (ids[t] < 0 || ids[t] >= n_rows) {
            return ds_fail(
                call->ctx, DS_ERR_ARG,
                "embedding_blocks: id[%lld] is %d, but the table has %lld rows (ids 0 to "
                "%lld)",
                (long long)t, ids[t], (long long)n_rows, (long long)n_rows - 1);
        }
    }
    dsi_ref_for(call, n, block_rows);
    return DS_OK;
}

static bool embedding_blocks_supports(const ds_kernel_sig *sig)
{
    return dsi_is_blocks(sig->in[0].dtype) && sig->out[0].dtype != DS_DTYPE_F64;
}

static const ds_kernel embedding_blocks_kernel = {.version = DS_OP_VERSION,
                                                  .name = "ref",
                                                  .op = "embedding_blocks",
                                                  .needs = DS_ISA_REF,
                                                  .supports = embedding_blocks_supports,
                                                  .run = embedding_blocks_run};
static const ds_kernel block_linear_kernel = {.version = DS_OP_VERSION,
                                              .name = "ref",
                                              .op = "linear",
                                              .needs = DS_ISA_REF,
                                              .supports = block_linear_supports,
                                              .work_bytes = block_linear_work,
                                              .run = block_linear_run};
const ds_kernel *const DSI_REF(block_linear)[] = {&block_linear_kernel, &embedding_blocks_kernel,
                                                  NULL};
