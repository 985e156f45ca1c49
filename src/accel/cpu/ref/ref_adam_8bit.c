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
    float values[MOST_STATES][DSI_8BIT_BLOCK]; /* of a block */
} states;

/* The block of each state, in fp32. */
static void unpack(const ds_kernel_call *call, int64_t block, int64_t n, states *s)
{
    for (uint32_t k = 0; k < s->n; ++k) {
        const float size = ref_get(&call->in[IN_STATE + s->n + k], block);
        const uint8_t *codes =
            (const uint8_t *)call->in[IN_STATE + k].data + block * DSI_8BIT_BLOCK;
        for (int64_t i = 0; i < n; ++i) {
            s->values[k][i] = s->maps[k][codes[i]] * size;
        }
    }
}

static void pack(const ds_kernel_call *call, int64_t block, int64_t n, const states *s)
{
    for (uint32_t k = 0; k < s->n; ++k) {
        uint8_t *codes = (uint8_t *)call->out[OUT_STATE + k].data + block * DSI_8BIT_BLOCK;
        float size = 0.0f;
        for (int64_t i = 0; i < n; ++i) {
            size = fmaxf(size, fabsf(s->values[k][i]));
        }
        const float inverse = 1.0f / size;
        for (int64_t i = 0; i < n; ++i) {
            codes[i] = size > 0.0f ? dsi_dynamic_code(s->maps[k], s->values[k][i] * inverse) : 0;
        }
        ref_set(&call->out[OUT_STATE + s->n + k], block, size);
    }
}

/* The update's numbers; the last three are AdEMAMix's. */
typedef struct numbers {
    float b1, b2, lr, i1, i2, decay, eps, step, b3, alpha;
} numbers;

static numbers numbers_of(const ds_kernel_call *call)
{
    const dsi_optim_attrs *a = call->sig->attrs;
    const float *hyper = call->in[IN_HYPER].data;
    const float lr = hyper[DSI_HYPER_LR];
    return (numbers){.b1 = hyper[DSI_HYPER_BETA1],
                     .b2 = hyper[DSI_HYPER_BETA2],
                     .lr = lr,
                     .i1 = 1.0f / hyper[DSI_HYPER_BIAS1],
                     .i2 = 1.0f / hyper[DSI_HYPER_BIAS2],
                     .decay = 1.0f - lr * hyper[DSI_HYPER_WEIGHT_DECAY],
                     .eps = (float)a->eps,
                     .step = -(lr / hyper[DSI_HYPER_BIAS1]),
                     .b3 = hyper[DSI_HYPER_BETA3],
                     .alpha = hyper[DSI_HYPER_ALPHA]};
}

/* Element i of the block: the states' next values, and that of the parameter. */
static float next_of(const numbers *x, states *s, int64_t i, float p, float g)
{
    float *m = &s->values[FAST][i];
    float *v = &s->values[SQUARE][i];
    *m = fmaf(x->b1, *m, (1.0f - x->b1) * g);
    *v = fmaf(x->b2, *v, (1.0f - x->b2) * (g * g));
    const float below = fmaf(sqrtf(*v), x->i2, x->eps);
    if (s->n <= SLOW) {
        return fmaf(x->step, *m / below, p * x->decay);
    }
    float *slow = &s->values[SLOW][i];
    *slow = fmaf(x->b3, *slow, (1.0f - x->b3) * g);
    return fmaf(-x->lr, fmaf(x->alpha, *slow, *m * x->i1) / below, p * x->decay);
}

static void update_block(const ds_kernel_call *call, uint32_t n_states, int64_t block)
{
    const float factor = *(const float *)call->in[IN_FACTOR].data;
    const int64_t first = block * DSI_8BIT_BLOCK;
    const int64_t rest = ds_shape_count(call->in[IN_PARAM].meta.shape) - first;
    const int64_t n = rest < DSI_8BIT_BLOCK ? rest : DSI_8BIT_BLOCK;
    const numbers x = numbers_of(call);
    states s = {.n = n_states,
                .maps = {dsi_dynamic_map(true), dsi_dynamic_map(false), dsi_dynamic_map(true)}};
    unpack(call, block, n, &s);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t at = first + i;
        const float p = ref_get(&call->in[ref_has(call, IN_MASTER) ? IN_MASTER : IN_PARAM], at);
        const float g = ref_get(&call->in[IN_GRAD], at) * factor;
        const float next = next_of(&x, &s, i, p, g);
        ref_set(&call->out[OUT_PARAM], at, next);
        if (ref_out(call, OUT_MASTER) != NULL) {
            ref_set(&call->out[OUT_MASTER], at, next);
        }
    }
    pack(call, block, n, &s);
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

static const ds_kernel adam_8bit_kernel = {.version = DS_OP_VERSION,
                                           .name = "ref",
                                           .op = "adam_8bit",
                                           .needs = DS_ISA_REF,
                                           .run = adam_8bit_run};
static const ds_kernel ademamix_8bit_kernel = {.version = DS_OP_VERSION,
                                               .name = "ref",
                                               .op = "ademamix_8bit",
                                               .needs = DS_ISA_REF,
                                               .run = ademamix_8bit_run};

const ds_kernel *const DSI_REF(adam_8bit)[] = {&adam_8bit_kernel, &ademamix_8bit_kernel, NULL};
