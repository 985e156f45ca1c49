/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as they come out of a quantized format: the operations of base/quantize.c one by one, so
 * that the bits are the processor's. A weight is measured by blocks, of which each has eight lanes
 * by index and a thread a lane; the blocks of a group are joined in order by one thread. With 2
 * bits both are done again for what is above the threshold that the first time gave. Rows of
 * activations need minima and maxima alone. */
#include "accel/cuda/kernels/device_random.h"
#include "accel/cuda/kernels/fake_quant.h"

DSC_INLINE float smaller(float a, float b)
{
    return a < b ? a : b;
}

DSC_INLINE float larger(float a, float b)
{
    return a > b ? a : b;
}

DSC_INLINE dsc_quant_part nothing(void)
{
    dsc_quant_part part;
    part.low = dsc_bits_float(0x7f800000u);
    part.high = -part.low;
    part.sum = 0.0;
    part.kept = 0.0;
    part.n_kept = 0.0;
    return part;
}

DSC_INLINE bool is_on(const dsc_quant_args *a)
{
    return a->control[DSC_QUANT_ON] != 0.0f;
}

DSC_INLINE int bits_of(const dsc_quant_args *a)
{
    return (int)a->control[DSC_QUANT_BITS];
}

/* Element i of the flat (O,I) weight. */
DSC_INLINE int64_t stored(const dsc_quant_args *a, int64_t i)
{
    return a->transposed == 0 ? i : i % a->ins * a->outs + i / a->ins;
}

/* Lane l of a block: its elements l, l + 8, … */
DSC_INLINE dsc_quant_part lane_of(const dsc_quant_args *a, int64_t block, int64_t l)
{
    const int64_t first = block % a->each * DSC_QUANT_BLOCK;
    const int64_t left = a->in_group - first;
    const int64_t n = left < DSC_QUANT_BLOCK ? left : DSC_QUANT_BLOCK;
    const int64_t group = block / a->each;
    dsc_quant_part part = nothing();
    for (int64_t i = l; i < n; i += DSC_QUANT_LANES) {
        const float x = dsc_get(a->x, a->dtype, stored(a, group * a->in_group + first + i));
        if (a->kept != 0) {
            const bool counts = fabsf(x) > a->scales[group].threshold;
            part.kept += counts ? (double)fabsf(x) : 0.0;
            part.n_kept += counts ? 1.0 : 0.0;
        } else {
            part.low = smaller(x, part.low);
            part.high = larger(x, part.high);
            part.sum += (double)fabsf(x);
        }
    }
    return part;
}

#define ADD_LANES(lane, what)                                                                      \
    ((((lane)[0].what + (lane)[4].what) + ((lane)[2].what + (lane)[6].what)) +                     \
     (((lane)[1].what + (lane)[5].what) + ((lane)[3].what + (lane)[7].what)))

DSC_INLINE void fake_quant_measure_all(const dsc_quant_args *a)
{
    __shared__ dsc_quant_part lanes[DSC_QUANT_THREADS];
    const int64_t at_once = DSC_QUANT_THREADS / DSC_QUANT_LANES;
    const int64_t n_blocks = a->groups * a->each;
    if (!is_on(a) || (a->kept != 0 && bits_of(a) != 2)) {
        return;
    }
    for (int64_t base = blockIdx.x * at_once; base < n_blocks; base += gridDim.x * at_once) {
        const int64_t block = base + threadIdx.x / DSC_QUANT_LANES;
        const uint32_t l = threadIdx.x % DSC_QUANT_LANES;
        if (block < n_blocks) {
            lanes[threadIdx.x] = lane_of(a, block, l);
        }
        __syncwarp();
        if (block < n_blocks && l == 0) {
            const dsc_quant_part *lane = lanes + threadIdx.x;
            dsc_quant_part *part = a->parts + block;
            *part = nothing();
            for (int i = 0; i < DSC_QUANT_LANES; ++i) {
                part->low = smaller(lane[i].low, part->low);
                part->high = larger(lane[i].high, part->high);
            }
            part->sum = ADD_LANES(lane, sum);
            part->kept = ADD_LANES(lane, kept);
            part->n_kept = ADD_LANES(lane, n_kept);
        }
        __syncwarp();
    }
}

DSC_INLINE dsc_quant_scale scale_of(const dsc_quant_part *part, int64_t n, int bits, int asymmetric)
{
    dsc_quant_scale s;
    const float mean = n > 0 ? (float)(part->sum / (double)n) : 0.0f;
    s.bits = bits;
    s.step = 0.0f;
    s.zero = 0.0f;
    s.low = 0.0f;
    s.high = 0.0f;
    s.threshold = bits == 2 ? 0.7f * mean : 0.0f;
    s.level = bits == 1 ? mean : 0.0f;
    if (bits != 1 && bits != 2) {
        const float levels = (float)ldexp(1.0, bits);
        const float top = larger(fabsf(part->low), fabsf(part->high));
        s.step = (asymmetric != 0 ? part->high - part->low : 2.0f * top) / levels;
        s.zero = asymmetric != 0 && s.step > 0.0f ? rintf(part->low / s.step) * s.step : 0.0f;
        s.low = asymmetric != 0 ? 0.0f : -levels * 0.5f;
        s.high = s.low + levels - 1.0f;
    }
    return s;
}

/* A thread a group. */
DSC_INLINE void fake_quant_scales_all(const dsc_quant_args *a)
{
    if (!is_on(a) || (a->kept != 0 && bits_of(a) != 2)) {
        return;
    }
    for (int64_t g = dsc_index(); g < a->groups; g += dsc_stride()) {
        dsc_quant_part all = nothing();
        for (int64_t i = 0; i < a->each; ++i) {
            const dsc_quant_part *next = a->parts + g * a->each + i;
            all.low = smaller(next->low, all.low);
            all.high = larger(next->high, all.high);
            all.sum += next->sum;
            all.kept += next->kept;
            all.n_kept += next->n_kept;
        }
        if (a->kept != 0) {
            a->scales[g].level = all.n_kept > 0.0 ? (float)(all.kept / all.n_kept) : 0.0f;
        } else {
            a->scales[g] = scale_of(&all, a->in_group, bits_of(a), a->asymmetric);
        }
    }
}

DSC_INLINE float quantized(const dsc_quant_scale *s, float x, float noise)
{
    if (s->bits > 2 && s->step > 0.0f) {
        float index = (x - s->zero) / s->step + noise;
        index = index < s->low ? s->low : index;
        index = index > s->high ? s->high : index;
        return ((index + 12582912.0f) - 12582912.0f) * s->step + s->zero; /* 1.5·2^23 */
    }
    if (s->bits > 2 || x != x) { /* all alike, or not numbers */
        return x;
    }
    const float threshold = s->bits == 2 ? s->threshold : 0.0f;
    const float up = x > threshold ? s->level : 0.0f;
    const float down = x < -threshold ? s->level : 0.0f;
    return up - down;
}

DSC_INLINE void fake_quant_body(const dsc_quant_args *a, int act)
{
    const bool on = is_on(a);
    const float mix = a->control[DSC_QUANT_MIX];
    const bool noisy = on && a->stochastic != 0 && bits_of(a) > 2;
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const int64_t at = stored(a, i);
        const float x = dsc_get(a->x, act, at);
        float value = x;
        if (on) {
            const float noise = noisy ? dsc_random_unit((uint64_t)a->draw[0], a->site,
                                                        (uint32_t)a->draw[1], (uint64_t)i) -
                                            0.5f
                                      : 0.0f;
            const float y = quantized(a->scales + i / a->in_group, x, noise);
            value = mix != 0.0f ? mix * x + (1.0f - mix) * y : y;
        }
        dsc_set(a->y, act, at, value);
    }
}

/* A block a row. */
DSC_INLINE void fake_quant_rows_body(const dsc_quant_args *a, int act)
{
    __shared__ float parts[32];
    const bool on = *a->control != 0.0f;
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        dsc_quant_part part = nothing();
        for (int64_t i = threadIdx.x; on && i < a->columns; i += blockDim.x) {
            const float x = dsc_get(a->x, act, row * a->columns + i);
            part.low = smaller(x, part.low);
            part.high = larger(x, part.high);
        }
        part.low = -dsc_block_max(-part.low, parts);
        part.high = dsc_block_max(part.high, parts);
        const dsc_quant_scale scale = scale_of(&part, a->columns, a->bits, a->asymmetric);
        for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
            const float x = dsc_get(a->x, act, row * a->columns + i);
            dsc_set(a->y, act, row * a->columns + i, on ? quantized(&scale, x, 0.0f) : x);
        }
    }
}

DSC_KERNEL(fake_quant_measure, dsc_quant_args, fake_quant_measure_all(a))
DSC_KERNEL(fake_quant_scales, dsc_quant_args, fake_quant_scales_all(a))
DSC_KERNEL_ACT(fake_quant, dsc_quant_args)
DSC_KERNEL_ACT(fake_quant_rows, dsc_quant_args)
