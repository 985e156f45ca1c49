/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernel of AdamW with states in 8 bits: docs/internals/optim.md, operation by operation.
 * An item is a block of 256 elements, so that nothing depends on how work is split. */
#include "accel/cpu/ref/ref_real.h"
#include "base/dynamic_map.h"
#include "op/ops.h"

enum { IN_PARAM, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE, IN_ABSMAX = IN_STATE + 2 };
enum { OUT_PARAM, OUT_MASTER, OUT_STATE, OUT_ABSMAX = OUT_STATE + 2 };

/* The block of a state, in fp32. */
static void unpack(const ds_kernel_call *call, uint32_t state, const float *map, int64_t block,
                   int64_t n, float *out)
{
    const float size = ref_get(&call->in[IN_ABSMAX + state], block);
    const uint8_t *codes =
        (const uint8_t *)call->in[IN_STATE + state].data + block * DSI_8BIT_BLOCK;
    for (int64_t i = 0; i < n; ++i) {
        out[i] = map[codes[i]] * size;
    }
}

static void pack(const ds_kernel_call *call, uint32_t state, const float *map, int64_t block,
                 int64_t n, const float *values)
{
    uint8_t *codes = (uint8_t *)call->out[OUT_STATE + state].data + block * DSI_8BIT_BLOCK;
    float size = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
        size = fmaxf(size, fabsf(values[i]));
    }
    const float inverse = 1.0f / size;
    for (int64_t i = 0; i < n; ++i) {
        codes[i] = size > 0.0f ? dsi_dynamic_code(map, values[i] * inverse) : 0;
    }
    ref_set(&call->out[OUT_ABSMAX + state], block, size);
}

static void adam_block(const ds_kernel_call *call, int64_t block)
{
    const float *const maps[2] = {dsi_dynamic_map(true), dsi_dynamic_map(false)};
    const dsi_optim_attrs *a = call->sig->attrs;
    const float *hyper = call->in[IN_HYPER].data;
    const float factor = *(const float *)call->in[IN_FACTOR].data;
    const float b1 = hyper[DSI_HYPER_BETA1], b2 = hyper[DSI_HYPER_BETA2];
    const float lr = hyper[DSI_HYPER_LR], i2 = 1.0f / hyper[DSI_HYPER_BIAS2];
    const float decay = 1.0f - lr * hyper[DSI_HYPER_WEIGHT_DECAY];
    const float step = -(lr / hyper[DSI_HYPER_BIAS1]), eps = (float)a->eps;
    const int64_t first = block * DSI_8BIT_BLOCK;
    const int64_t rest = ds_shape_count(call->in[IN_PARAM].meta.shape) - first;
    const int64_t n = rest < DSI_8BIT_BLOCK ? rest : DSI_8BIT_BLOCK;
    float m[DSI_8BIT_BLOCK], v[DSI_8BIT_BLOCK];
    unpack(call, 0, maps[0], block, n, m);
    unpack(call, 1, maps[1], block, n, v);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t at = first + i;
        const float p = ref_get(&call->in[ref_has(call, IN_MASTER) ? IN_MASTER : IN_PARAM], at);
        const float g = ref_get(&call->in[IN_GRAD], at) * factor;
        m[i] = fmaf(b1, m[i], (1.0f - b1) * g);
        v[i] = fmaf(b2, v[i], (1.0f - b2) * (g * g));
        const float u = m[i] / fmaf(sqrtf(v[i]), i2, eps);
        const float next = fmaf(step, u, p * decay);
        ref_set(&call->out[OUT_PARAM], at, next);
        if (ref_out(call, OUT_MASTER) != NULL) {
            ref_set(&call->out[OUT_MASTER], at, next);
        }
    }
    pack(call, 0, maps[0], block, n, m);
    pack(call, 1, maps[1], block, n, v);
}

static void blocks_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    (void)slot;
    for (int64_t block = begin; block < end; ++block) {
        adam_block(call, block);
    }
}

static ds_status adam_8bit_run(const ds_kernel_call *call)
{
    const int64_t n = ds_shape_count(call->in[IN_PARAM].meta.shape);
    dsi_ref_for(call, (n + DSI_8BIT_BLOCK - 1) / DSI_8BIT_BLOCK, blocks_range);
    return DS_OK;
}

static const ds_kernel adam_8bit_kernel = {.version = DS_OP_VERSION,
                                           .name = "ref",
                                           .op = "adam_8bit",
                                           .needs = DS_ISA_REF,
                                           .run = adam_8bit_run};

const ds_kernel *const DSI_REF(adam_8bit)[] = {&adam_8bit_kernel, NULL};
