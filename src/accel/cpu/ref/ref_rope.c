/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of rope_table and rope.
 *
 * The frequencies follow transformers' modeling_rope_utils, which computes them in fp32 tensors
 * with fp64 scalars: powers are taken in fp64 and rounded to fp32, the rest is fp32, so that angles
 * at far positions agree. Scalings: linear, dynamic NTK, YaRN (arXiv 2309.00071), Llama 3.
 */
#include "accel/cpu/ref/ref_real.h"
#include "op/constants.h"
#include "op/ops.h"

#define PI 3.14159265358979323846

/* ---- rope_table, always fp32: workspace of D/2 inverse frequencies a range
 * -------------------------------- */
#ifndef DSI_REF_F64
static float power_of(double base, int64_t i, int64_t head_dim)
{
    return (float)pow((double)(float)base, (double)((float)(2 * i) / (float)head_dim));
}

static double dynamic_base(const dsi_rope_table_attrs *a, int64_t sequence)
{
    const double longest = (double)a->original_max_positions;
    const double length = (double)sequence > longest ? (double)sequence : longest;
    const double d = (double)a->head_dim;
    return a->theta * pow(a->factor * length / longest - (a->factor - 1.0), d / (d - 2.0));
}

static float llama3_frequency(const dsi_rope_table_attrs *a, float frequency)
{
    const float old = (float)a->original_max_positions;
    const float wavelength = (float)(2.0 * PI) / frequency;
    const float scaled = frequency / (float)a->factor;
    if (wavelength > (float)((double)a->original_max_positions / a->low_freq_factor)) {
        return scaled;
    }
    if (wavelength < (float)((double)a->original_max_positions / a->high_freq_factor)) {
        return frequency;
    }
    const float smooth = (old / wavelength - (float)a->low_freq_factor) /
                         (float)(a->high_freq_factor - a->low_freq_factor);
    return (1.0f - smooth) * scaled + smooth * frequency;
}

/* Index of the frequency that turns `rotations` times over the original context. */
static double yarn_index(const dsi_rope_table_attrs *a, double rotations)
{
    return (double)a->head_dim * log((double)a->original_max_positions / (rotations * 2.0 * PI)) /
           (2.0 * log(a->theta));
}

static float yarn_frequency(const dsi_rope_table_attrs *a, int64_t i)
{
    double low = yarn_index(a, a->beta_fast);
    double high = yarn_index(a, a->beta_slow);
    if (a->truncate != 0) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0.0 ? low : 0.0;
    high = high < (double)(a->head_dim - 1) ? high : (double)(a->head_dim - 1);
    if (low == high) {
        high += 0.001;
    }
    float ramp = ((float)i - (float)low) / (float)(high - low);
    ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
    const float power = power_of(a->theta, i, a->head_dim);
    const float kept = 1.0f - ramp;
    return 1.0f / ((float)a->factor * power) * (1.0f - kept) + 1.0f / power * kept;
}

static double mscale_of(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static float attention_factor(const dsi_rope_table_attrs *a)
{
    if (a->scaling != DSI_ROPE_YARN) {
        return 1.0f;
    }
    if (a->attention_factor >= 0.0) {
        return (float)a->attention_factor;
    }
    if (a->mscale != 0.0 && a->mscale_all_dim != 0.0) {
        return (float)(mscale_of(a->factor, a->mscale) / mscale_of(a->factor, a->mscale_all_dim));
    }
    return (float)mscale_of(a->factor, 1.0);
}

static float frequency_of(const dsi_rope_table_attrs *a, int64_t sequence, int64_t i)
{
    const double base = a->scaling == DSI_ROPE_DYNAMIC ? dynamic_base(a, sequence) : a->theta;
    const float plain = 1.0f / power_of(base, i, a->head_dim);
    switch (a->scaling) {
    case DSI_ROPE_LINEAR:
        return plain / (float)a->factor;
    case DSI_ROPE_YARN:
        return yarn_frequency(a, i);
    case DSI_ROPE_LLAMA3:
        return llama3_frequency(a, plain);
    default:
        return plain;
    }
}

static int64_t n_frequencies(const dsi_rope_table_attrs *a)
{
    return (a->head_dim + 1) / 2;
}

static size_t rope_table_work(const ds_kernel_sig *sig)
{
    const dsi_rope_table_attrs *a = sig->attrs;
    return dsi_ref_slots(sig) * (size_t)n_frequencies(a) * sizeof(float);
}

/* Whether each token has a length of its own. */
static bool is_of_tokens(const ds_kernel_call *call)
{
    return call->sig->n_in > 1 && call->in[1].data != NULL && call->in[1].meta.shape.n_dims == 2;
}

/* Length of the sequence that token n is of; see ops.h. */
static int64_t sequence_of(const ds_kernel_call *call, int64_t n)
{
    const int64_t t = call->in[0].meta.shape.dims[1];
    const int32_t *positions = call->in[0].data;
    const bool given = call->sig->n_in > 1 && call->in[1].data != NULL;
    if (given) {
        return ((const int32_t *)call->in[1].data)[is_of_tokens(call) ? n : n / t];
    }
    const int64_t end = (n / t + 1) * t;
    while (n + 1 < end && positions[n + 1] > positions[n]) {
        ++n;
    }
    return (int64_t)positions[n] + 1;
}

/* Whether token n is of another sequence, or length, than the one before it. */
static bool starts_sequence(const ds_kernel_call *call, int64_t n)
{
    const int32_t *positions = call->in[0].data;
    if (is_of_tokens(call)) {
        const int32_t *lengths = call->in[1].data;
        return lengths[n] != lengths[n - 1];
    }
    return n % call->in[0].meta.shape.dims[1] == 0 || positions[n] <= positions[n - 1];
}

static void rope_table_tokens(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_rope_table_attrs *a = call->sig->attrs;
    const int32_t *positions = call->in[0].data;
    const ds_tensor *divisors = ref_in(call, 2);
    const float factor = divisors != NULL ? (float)a->attention_factor : attention_factor(a);
    const int64_t half = n_frequencies(a);
    float *frequencies = (float *)call->work + slot * (size_t)half;
    float *table = call->out[0].data;
    for (int64_t n = begin; n < end; ++n) {
        if (n == begin || (a->scaling == DSI_ROPE_DYNAMIC && starts_sequence(call, n))) {
            const int64_t sequence = a->scaling == DSI_ROPE_DYNAMIC ? sequence_of(call, n) : 0;
            for (int64_t i = 0; i < half; ++i) {
                frequencies[i] = divisors != NULL ? 1.0f / (((const float *)divisors->data)[i] *
                                                            power_of(a->theta, i, a->head_dim))
                                                  : frequency_of(a, sequence, i);
            }
        }
        for (int64_t i = 0; i < half; ++i) {
            const float angle = (float)positions[n] * frequencies[i];
            table[n * 2 * half + i] = (float)cos((double)angle) * factor;
            table[n * 2 * half + half + i] = (float)sin((double)angle) * factor;
        }
    }
}

static ds_status rope_table_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), rope_table_tokens);
    return DS_OK;
}

static ds_status constants_run(const ds_kernel_call *call)
{
    const dsi_constants_attrs *a = call->sig->attrs;
    for (int64_t i = 0; i < a->n; ++i) {
        ((float *)call->out[0].data)[i] = (float)a->v[i];
    }
    return DS_OK;
}

REF_KERNEL(constants, constants_run, NULL);
REF_KERNEL(rope_table, rope_table_run, rope_table_work);
#endif

/* ---- rope: items are tokens
 * ------------------------------------------------------------------------ */
static void rope_tokens(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_rope_attrs *a = call->sig->attrs;
    const ds_tensor *x = &call->in[0];
    const ds_tensor *table = &call->in[1];
    const int64_t d = a->head_dim;
    const int64_t n_heads = ds_shape_last(x->meta.shape) / d;
    const int64_t rotary = ds_shape_last(table->meta.shape);
    const int64_t half = rotary / 2;
    (void)slot;
    for (int64_t item = begin * n_heads; item < end * n_heads; ++item) {
        const int64_t row = item / n_heads * rotary;
        for (int64_t i = 0; i < half; ++i) {
            const int64_t first = item * d + (a->pairs != 0 ? 2 * i : i);
            const int64_t second = first + (a->pairs != 0 ? 1 : half);
            const real c = ref_get(table, row + i);
            const real turn = ref_get(table, row + half + i);
            const real s = a->inverse != 0 ? -turn : turn;
            const real p = ref_get(x, first);
            const real q = ref_get(x, second);
            ref_set(&call->out[0], first, p * c - q * s);
            ref_set(&call->out[0], second, q * c + p * s);
        }
        for (int64_t i = rotary; i < d; ++i) {
            ref_set(&call->out[0], item * d + i, ref_get(x, item * d + i));
        }
    }
}

static ds_status rope_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_rows(call->in[0].meta.shape), rope_tokens);
    return DS_OK;
}

REF_KERNEL(rope, rope_run, NULL);
const ds_kernel *const DSI_REF(rope)[] = {
#ifndef DSI_REF_F64
    &constants_kernel, &rope_table_kernel,
#endif
    &rope_kernel, NULL};
