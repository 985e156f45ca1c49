/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW and AdEMAMix with states in 8 bits: a block has 256 elements, which share a magnitude, a
 * thread one of them. The operations of docs/internals/optim.md one by one, so that the bits are
 * the processor's. */
#include "accel/cuda/kernels/eight_bit.h"
#include "accel/cuda/kernels/update.h"

enum { FAST, SQUARE, SLOW, CELLS = 65535 };

/* The update's numbers; the last two are AdEMAMix's. */
typedef struct numbers {
    float b1, b2, lr, i1, i2, decay, eps, step, b3, alpha;
} numbers;

DSC_INLINE numbers numbers_of(const dsc_optimizer_args *a)
{
    const float *hyper = a->hyper;
    const float lr = hyper[DSC_HYPER_LR];
    const numbers x = {hyper[DSC_HYPER_BETA1],
                       hyper[DSC_HYPER_BETA2],
                       lr,
                       1.0f / hyper[DSC_HYPER_BIAS1],
                       1.0f / hyper[DSC_HYPER_BIAS2],
                       dsc_decay_of(a),
                       a->eps,
                       -(lr / hyper[DSC_HYPER_BIAS1]),
                       hyper[DSC_HYPER_BETA3],
                       hyper[DSC_HYPER_ALPHA]};
    return x;
}

DSC_INLINE float next_of(const numbers *x, bool mixes, float p, float direction)
{
    return fmaf(mixes ? -x->lr : x->step, direction, p * x->decay);
}

/* The code of x, as base/dynamic_map.h states it. */
DSC_INLINE uint8_t code_of(const float map[256], float x)
{
    const float at = (x + 1.0f) * 32767.5f + 0.5f;
    const int cell = at >= (float)CELLS ? CELLS : at > 0.0f ? (int)at : 0;
    const float middle = (float)cell * (2.0f / (float)CELLS) - 1.0f;
    uint32_t low = 0;
    uint32_t high = 255;
    while (low < high) {
        const uint32_t k = (low + high) / 2;
        if ((map[k] + map[k + 1]) * 0.5f < middle) {
            low = k + 1;
        } else {
            high = k;
        }
    }
    return (uint8_t)low;
}

/* The states' next values of one element, and where they lead. */
DSC_INLINE float direction_of(const numbers *x, int n_states, float g, float s[DSC_8BIT_STATES])
{
    s[FAST] = fmaf(x->b1, s[FAST], (1.0f - x->b1) * g);
    s[SQUARE] = fmaf(x->b2, s[SQUARE], (1.0f - x->b2) * (g * g));
    const float below = fmaf(sqrtf(s[SQUARE]), x->i2, x->eps);
    if (n_states <= SLOW) {
        return s[FAST] / below;
    }
    s[SLOW] = fmaf(x->b3, s[SLOW], (1.0f - x->b3) * g);
    return fmaf(x->alpha, s[SLOW], s[FAST] * x->i1) / below;
}

/* State k of a block's element i of n, as codes and their magnitude. */
DSC_INLINE void pack(const dsc_8bit_args *a, int k, int64_t block, bool has, float value,
                     const float map[256], float parts[32])
{
    const float size = dsc_block_max(has ? fmaxf(0.0f, fabsf(value)) : 0.0f, parts);
    const float inverse = 1.0f / size;
    if (has) {
        a->codes[k][block * DSC_8BIT_BLOCK + threadIdx.x] =
            size > 0.0f ? code_of(map, value * inverse) : 0;
    }
    if (threadIdx.x == 0) {
        a->sizes[k][block] = size;
    }
}

DSC_INLINE void eight_bit_block(const dsc_8bit_args *a, float maps[2][256], int64_t block,
                                float parts[32])
{
    const int64_t at = block * DSC_8BIT_BLOCK + threadIdx.x;
    const bool has = at < a->update.n;
    const numbers x = numbers_of(&a->update);
    float s[DSC_8BIT_STATES] = {0.0f, 0.0f, 0.0f};
    for (int k = 0; k < a->n_states && has; ++k) {
        s[k] = maps[k == SQUARE][a->codes_in[k][at]] * a->sizes_in[k][block];
    }
    if (has) {
        const float direction = direction_of(&x, a->n_states, dsc_grad_at(&a->update, at), s);
        if (a->direction != NULL) {
            a->direction[at] = direction;
        } else {
            const float p = dsc_param_at(&a->update, at);
            dsc_put_param(&a->update, at, next_of(&x, a->n_states > SLOW, p, direction));
        }
    }
    for (int k = 0; k < a->n_states; ++k) { /* the barriers of its maximum are behind all reads */
        pack(a, k, block, has, s[k], maps[k == SQUARE], parts);
    }
}

DSC_INLINE void eight_bit_all(const dsc_8bit_args *a)
{
    __shared__ float maps[2][256];
    __shared__ float parts[32];
    maps[0][threadIdx.x] = a->maps[0][threadIdx.x];
    maps[1][threadIdx.x] = a->maps[1][threadIdx.x];
    __syncthreads();
    for (int64_t block = blockIdx.x; block * DSC_8BIT_BLOCK < a->update.n; block += gridDim.x) {
        eight_bit_block(a, maps, block, parts);
    }
}

/* grad: the direction; a thread an element. */
DSC_INLINE void eight_bit_step_all(const dsc_8bit_step_args *a)
{
    const dsc_optimizer_args *u = &a->update;
    const numbers x = numbers_of(u);
    for (int64_t i = dsc_index(); i < u->n; i += dsc_stride()) {
        const float direction = dsc_get(u->grad, u->grad_dtype, i);
        dsc_put_param(u, i, next_of(&x, a->mixes != 0, dsc_param_at(u, i), direction));
    }
}

DSC_KERNEL(eight_bit, dsc_8bit_args, eight_bit_all(a))
DSC_KERNEL(eight_bit_step, dsc_8bit_step_args, eight_bit_step_all(a))
