/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of AdamW and AdEMAMix with states in 8 bits: docs/internals/optim.md, operation
 * by operation. An item is a block of 256 elements, so that nothing depends on how work is split.
 */
#include "accel/cpu/ref/ref_real.h"
#include "base/dynamic_map.h"
#include "op/ops.h"

enum { IN_PARAM, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE };
enum { OUT_PARAM, OUT_MASTER, OUT_STATE };
enum { FAST, SQUARE, SLOW, MOST_STATES };

/* States of the operator: their magnitudes are as many operands behind them. */
typedef struct states {
    uint32_t n;
    const float *maps[MOST_STATES];
    uint32_t in, out; /* the operands that are the first state before and behind */
    float values[MOST_STATES][DSI_8BIT_BLOCK]; /* of a block */
} states;

static states states_of(uint32_t n, uint32_t in, uint32_t out)
{
    return (states){.n = n,
                    .maps = {dsi_dynamic_map(true), dsi_dynamic_map(false), dsi_dynamic_map(true)},
                    .in = in,
                    .out = out};
}

/* The block of each state, in fp32. */
static void unpack(const ds_kernel_call *call, int64_t block, int64_t n, states *s)
{
    for (uint32_t k = 0; k < s->n; ++k) {
        const float size = ref_get(&call->in[s->in + s->n + k], block);
        const uint8_t *codes = (const uint8_t *)call->in[s->in + k].data + block * DSI_8BIT_BLOCK;
        for (int64_t i = 0; i < n; ++i) {
            s->values[k][i] = s->maps[k][codes[i]] * size;
        }
    }
}

static void pack(const ds_kernel_call *call, int64_t block, int64_t n, const states *s)
{
    for (uint32_t k = 0; k < s->n; ++k) {
        uint8_t *codes = (uint8_t *)call->out[s->out + k].data + block * DSI_8BIT_BLOCK;
        float size = 0.0f;
        for (int64_t i = 0; i < n; ++i) {
            size = fmaxf(size, fabsf(s->values[k][i]));
        }
        const float inverse = 1.0f / size;
        for (int64_t i = 0; i < n; ++i) {
            codes[i] = size > 0.0f ? dsi_dynamic_code(s->maps[k], s->values[k][i] * inverse) : 0;
        }
        ref_set(&call->out[s->out + s->n + k], block, size);
    }
}

/* The update's numbers; the last three are AdEMAMix's. */
typedef struct numbers {
    float b1, b2, lr, i1, i2, decay, eps, step, b3, alpha;
} numbers;

static numbers numbers_of(const float *hyper, double eps)
{
    const float lr = hyper[DSI_HYPER_LR];
    return (numbers){.b1 = hyper[DSI_HYPER_BETA1],
                     .b2 = hyper[DSI_HYPER_BETA2],
                     .lr = lr,
                     .i1 = 1.0f / hyper[DSI_HYPER_BIAS1],
                     .i2 = 1.0f / hyper[DSI_HYPER_BIAS2],
                     .decay = 1.0f - lr * hyper[DSI_HYPER_WEIGHT_DECAY],
                     .eps = (float)eps,
                     .step = -(lr / hyper[DSI_HYPER_BIAS1]),
                     .b3 = hyper[DSI_HYPER_BETA3],
                     .alpha = hyper[DSI_HYPER_ALPHA]};
}

/* Element i of the block: the states' next values, and where they lead. */
static float direction_of(const numbers *x, states *s, int64_t i, float g)
{
    float *m = &s->values[FAST][i];
    float *v = &s->values[SQUARE][i];
    *m = fmaf(x->b1, *m, (1.0f - x->b1) * g);
    *v = fmaf(x->b2, *v, (1.0f - x->b2) * (g * g));
    const float below = fmaf(sqrtf(*v), x->i2, x->eps);
    if (s->n <= SLOW) {
        return *m / below;
    }
    float *slow = &s->values[SLOW][i];
    *slow = fmaf(x->b3, *slow, (1.0f - x->b3) * g);
    return fmaf(x->alpha, *slow, *m * x->i1) / below;
}

static float next_of(const numbers *x, bool mixes, float p, float direction)
{
    return fmaf(mixes ? -x->lr : x->step, direction, p * x->decay);
}

static void update_block(const ds_kernel_call *call, uint32_t n_states, int64_t block)
{
    const float factor = *(const float *)call->in[IN_FACTOR].data;
    const int64_t first = block * DSI_8BIT_BLOCK;
    const int64_t rest = ds_shape_count(call->in[IN_PARAM].meta.shape) - first;
    const int64_t n = rest < DSI_8BIT_BLOCK ? rest : DSI_8BIT_BLOCK;
    const dsi_optim_attrs *a = call->sig->attrs;
    const numbers x = numbers_of(call->in[IN_HYPER].data, a->eps);
    states s = states_of(n_states, IN_STATE, OUT_STATE);
    unpack(call, block, n, &s);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t at = first + i;
        const float p = ref_get(&call->in[ref_has(call, IN_MASTER) ? IN_MASTER : IN_PARAM], at);
        const float g = ref_get(&call->in[IN_GRAD], at) * factor;
        const float next = next_of(&x, n_states > SLOW, p, direction_of(&x, &s, i, g));
        ref_set(&call->out[OUT_PARAM], at, next);
        if (ref_out(call, OUT_MASTER) != NULL) {
            ref_set(&call->out[OUT_MASTER], at, next);
        }
    }
    pack(call, block, n, &s);
}

/* A block of a tensor whose parameter is cut. */
static void direct_block(const ds_kernel_call *call, uint32_t n_states, int64_t block)
{
    const dsi_optim_attrs *a = call->sig->attrs;
    const float factor = *(const float *)call->in[2].data;
    const int64_t first = block * DSI_8BIT_BLOCK;
    const int64_t rest = ds_shape_count(call->in[0].meta.shape) - first;
    const int64_t n = rest < DSI_8BIT_BLOCK ? rest : DSI_8BIT_BLOCK;
    const numbers x = numbers_of(call->in[1].data, a->eps);
    states s = states_of(n_states, 3, 1);
    unpack(call, block, n, &s);
    for (int64_t i = 0; i < n; ++i) {
        const float g = ref_get(&call->in[0], first + i) * factor;
        ref_set(&call->out[0], first + i, direction_of(&x, &s, i, g));
    }
    pack(call, block, n, &s);
}

static void two_direct(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    (void)slot;
    for (int64_t block = begin; block < end; ++block) {
        direct_block(call, SLOW, block);
    }
}

static void three_direct(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    (void)slot;
    for (int64_t block = begin; block < end; ++block) {
        direct_block(call, MOST_STATES, block);
    }
}

static void step_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_8bit_step_attrs *a = call->sig->attrs;
    const numbers x = numbers_of(call->in[IN_HYPER].data, 0.0);
    const ds_tensor *weight = &call->in[ref_has(call, IN_MASTER) ? IN_MASTER : IN_PARAM];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float u = ref_get(&call->in[IN_GRAD], i);
        const float next = next_of(&x, a->mixes != 0, ref_get(weight, i), u);
        ref_set(&call->out[OUT_PARAM], i, next);
        if (ref_out(call, OUT_MASTER) != NULL) {
            ref_set(&call->out[OUT_MASTER], i, next);
        }
    }
}

static void two_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    (void)slot;
    for (int64_t block = begin; block < end; ++block) {
        update_block(call, SLOW, block);
    }
}

static void three_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    (void)slot;
    for (int64_t block = begin; block < end; ++block) {
        update_block(call, MOST_STATES, block);
    }
}

static int64_t n_blocks(const ds_kernel_call *call)
{
    const int64_t n = ds_shape_count(call->in[IN_PARAM].meta.shape);
    return (n + DSI_8BIT_BLOCK - 1) / DSI_8BIT_BLOCK;
}

static ds_status adam_8bit_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, n_blocks(call), two_range);
    return DS_OK;
}

static ds_status ademamix_8bit_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, n_blocks(call), three_range);
    return DS_OK;
}

static ds_status adam_8bit_direction_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, n_blocks(call), two_direct);
    return DS_OK;
}

static ds_status ademamix_8bit_direction_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, n_blocks(call), three_direct);
    return DS_OK;
}

static ds_status adam_8bit_step_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[IN_PARAM].meta.shape), step_range);
    return DS_OK;
}

#define KERNEL(op_name)                                                                            \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .run = op_name##_run}

KERNEL(adam_8bit);
KERNEL(ademamix_8bit);
KERNEL(adam_8bit_direction);
KERNEL(ademamix_8bit_direction);
KERNEL(adam_8bit_step);

const ds_kernel *const DSI_REF(adam_8bit)[] = {
    &adam_8bit_kernel,      &ademamix_8bit_kernel,           &adam_8bit_direction_kernel,
    &adam_8bit_step_kernel, &ademamix_8bit_direction_kernel, NULL};
