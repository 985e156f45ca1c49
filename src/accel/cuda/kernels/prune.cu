/* SPDX-License-Identifier: Apache-2.0 */
/* Masks of the largest, and weights under masks: the processor's results bit for bit
 * (base/quantize.h, accel/cpu/ref/ref_prune.c). The key of the last element that is kept is found
 * four bits at a time from counts, which are whole numbers and have no order; of those with that
 * key the first are kept, which are counted by runs of elements. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/prune.h"

/* A number that grows with x; NaN is the largest. */
DSC_INLINE uint32_t key_of(float x)
{
    const uint32_t bits = dsc_float_bits(x + 0.0f); /* -0 becomes 0 */
    if (x != x) {
        return 0xffffffffu;
    }
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/* Element (o,k) of w (O,I) where it is stored. */
DSC_INLINE int64_t stored(int32_t transposed, int64_t outs, int64_t ins, int64_t o, int64_t k)
{
    return transposed != 0 ? k * outs + o : o * ins + k;
}

/* A thread an element, or a row, whose sum has an order. */
DSC_INLINE void top_keys_all(const dsc_top_args *a)
{
    if (dsc_index() == 0) {
        a->state->count = a->keep;
        a->state->key = 0;
        a->state->known = 0;
    }
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        if (a->by == DSC_TOP_ROW) {
            double sum = 0.0;
            for (int64_t k = 0; k < a->ins; ++k) {
                const int64_t at = stored(a->transposed, a->outs, a->ins, i, k);
                sum += fabs((double)dsc_get(a->x, a->dtype, at));
            }
            a->keys[i] = key_of((float)sum);
        } else {
            const float x = dsc_get(a->x, a->dtype, i);
            a->keys[i] = key_of(a->by == DSC_TOP_MAGNITUDE ? fabsf(x) : x);
        }
    }
}

/* How many keys that begin with what is known go on with each digit. */
DSC_INLINE void top_counts_all(const dsc_top_args *a)
{
    __shared__ uint32_t counts[DSC_TOP_THREADS][DSC_TOP_DIGITS];
    const dsc_top_state state = *a->state;
    for (int d = 0; d < DSC_TOP_DIGITS; ++d) {
        counts[threadIdx.x][d] = 0;
    }
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const uint32_t key = a->keys[i];
        if ((key & state.known) == state.key) {
            ++counts[threadIdx.x][key >> a->shift & (DSC_TOP_DIGITS - 1)];
        }
    }
    __syncthreads();
    if (threadIdx.x < DSC_TOP_DIGITS) {
        int64_t sum = 0;
        for (uint32_t t = 0; t < blockDim.x; ++t) {
            sum += counts[t][threadIdx.x];
        }
        a->counts[(int64_t)blockIdx.x * DSC_TOP_DIGITS + threadIdx.x] = sum;
    }
}

/* One thread: the digit of the last one that is kept. */
DSC_INLINE void top_digit_all(const dsc_top_args *a)
{
    for (uint32_t digit = DSC_TOP_DIGITS; digit-- > 0;) {
        int64_t n = 0;
        for (uint32_t b = 0; b < a->n_blocks; ++b) {
            n += a->counts[(int64_t)b * DSC_TOP_DIGITS + digit];
        }
        if (n >= a->state->count) {
            a->state->key |= digit << a->shift;
            a->state->known |= (uint32_t)(DSC_TOP_DIGITS - 1) << a->shift;
            return;
        }
        a->state->count -= n;
    }
}

/* A thread a run: those with the last key in it. */
DSC_INLINE void top_equal_all(const dsc_top_args *a)
{
    const uint32_t last = a->state->key;
    for (int64_t r = dsc_index(); r < a->n_runs; r += dsc_stride()) {
        const int64_t end = (r + 1) * DSC_TOP_RUN < a->n ? (r + 1) * DSC_TOP_RUN : a->n;
        int64_t n = 0;
        for (int64_t i = r * DSC_TOP_RUN; i < end; ++i) {
            n += a->keys[i] == last ? 1 : 0;
        }
        a->equal[r] = n;
    }
}

/* One block: how many there are before each run. */
DSC_INLINE void top_before_all(const dsc_top_args *a)
{
    __shared__ int64_t sums[DSC_TOP_THREADS];
    const int64_t each = (a->n_runs + DSC_TOP_THREADS - 1) / DSC_TOP_THREADS;
    const int64_t begin = threadIdx.x * each;
    const int64_t end = begin + each < a->n_runs ? begin + each : a->n_runs;
    int64_t sum = 0;
    for (int64_t r = begin; r < end; ++r) {
        sum += a->equal[r];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    int64_t before = 0;
    for (uint32_t t = 0; t < threadIdx.x; ++t) {
        before += sums[t];
    }
    for (int64_t r = begin; r < end; ++r) {
        const int64_t own = a->equal[r];
        a->equal[r] = before;
        before += own;
    }
}

/* A thread a run. Where all are kept, or none, no key was looked for. */
DSC_INLINE void top_mask_all(const dsc_top_args *a)
{
    const bool alike = a->keep == 0 || a->keep >= a->n;
    for (int64_t r = dsc_index(); r < a->n_runs; r += dsc_stride()) {
        const int64_t end = (r + 1) * DSC_TOP_RUN < a->n ? (r + 1) * DSC_TOP_RUN : a->n;
        int64_t before = alike ? 0 : a->equal[r];
        for (int64_t i = r * DSC_TOP_RUN; i < end; ++i) {
            bool kept = a->keep > 0;
            if (!alike) {
                const bool is_equal = a->keys[i] == a->state->key;
                kept = a->keys[i] > a->state->key || (is_equal && before < a->state->count);
                before += is_equal ? 1 : 0;
            }
            if (a->as_bytes != 0) {
                ((uint8_t *)a->mask)[i] = kept ? 1 : 0;
            } else {
                ((float *)a->mask)[i] = kept ? 1.0f : 0.0f;
            }
        }
    }
}

/* ---- masks of weights ------------------------------------------------------------------------ */

/* The element of the mask that element i of w has. */
DSC_INLINE int64_t mask_of(const dsc_mask_args *a, int64_t i)
{
    if (a->along == DSC_MASK_ELEMENTS) {
        return i;
    }
    const int64_t o = a->transposed != 0 ? i % a->outs : i / a->ins;
    const int64_t k = a->transposed != 0 ? i / a->outs : i % a->ins;
    return a->along == DSC_MASK_ROWS ? o : k / (a->ins / a->heads);
}

DSC_INLINE void mask_weight_body(const dsc_mask_args *a, int act)
{
    const bool on = *a->on != 0.0f;
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        float value = dsc_get(a->w, act, i);
        if (on) {
            const int64_t m = mask_of(a, i);
            value *= a->mask_dtype != 0 ? dsc_get(a->mask, a->mask_dtype, m)
                                        : (((const uint8_t *)a->mask)[m] != 0 ? 1.0f : 0.0f);
        }
        dsc_set(a->y, act, i, value);
    }
}

DSC_INLINE double product_at(const dsc_mask_args *a, int act, int64_t i)
{
    return (double)dsc_get(a->dy, act, i) * (double)dsc_get(a->w, act, i);
}

/* A thread an element of the mask: its sum has an order. */
DSC_INLINE void mask_scores_body(const dsc_mask_args *a, int act)
{
    const bool on = *a->on != 0.0f;
    const bool rows = a->along == DSC_MASK_ROWS;
    const int64_t width = rows ? a->ins : a->heads > 0 ? a->ins / a->heads : 1;
    for (int64_t m = dsc_index(); m < a->n_mask; m += dsc_stride()) {
        double sum = 0.0;
        if (a->along == DSC_MASK_ELEMENTS) {
            sum = product_at(a, act, m);
        } else {
            const int64_t from = rows ? 0 : m * width;
            for (int64_t o = rows ? m : 0; o < (rows ? m + 1 : a->outs); ++o) {
                for (int64_t k = from; k < from + width; ++k) {
                    sum += product_at(a, act, stored(a->transposed, a->outs, a->ins, o, k));
                }
            }
        }
        ((float *)a->y)[m] = on ? (float)sum : 0.0f;
    }
}

DSC_KERNEL(top_keys, dsc_top_args, top_keys_all(a))
DSC_KERNEL(top_counts, dsc_top_args, top_counts_all(a))
DSC_KERNEL(top_digit, dsc_top_args, top_digit_all(a))
DSC_KERNEL(top_equal, dsc_top_args, top_equal_all(a))
DSC_KERNEL(top_before, dsc_top_args, top_before_all(a))
DSC_KERNEL(top_mask, dsc_top_args, top_mask_all(a))
DSC_KERNEL_ACT(mask_weight, dsc_mask_args)
DSC_KERNEL_ACT(mask_scores, dsc_mask_args)
