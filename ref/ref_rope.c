/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions (Su et al. 2021, "RoFormer") with the scalings of transformers'
 * modeling_rope_utils. Powers and what depends on the configuration alone are fp64, then rounded;
 * frequencies and angles are fp32. See ref_ops.h. */
#include "ref/ref_ops.h"

#include <math.h>

static const double two_pi = 6.283185307179586;

/* theta^(2i/D) */
static float power_of(double theta, int64_t i, int64_t head_dim)
{
    return (float)pow((double)(float)theta, (double)((float)(2 * i) / (float)head_dim));
}

/* Positions shrunk by the factor. */
static float linear_frequency(const ref_rope *r, int64_t i)
{
    return 1.0f / power_of(r->theta, i, r->head_dim) / (float)r->factor;
}

/* A larger base once the sequence is longer than what the model was trained on. */
static float dynamic_frequency(const ref_rope *r, int64_t seq_length, int64_t i)
{
    const double longest = (double)r->original_max_positions;
    const double length = (double)seq_length > longest ? (double)seq_length : longest;
    const double d = (double)r->head_dim;
    const double stretch = r->factor * length / longest - (r->factor - 1.0);
    return 1.0f / power_of(r->theta * pow(stretch, d / (d - 2.0)), i, r->head_dim);
}

/* Channel whose wave turns `rotations` times over the original context. */
static double yarn_channel(const ref_rope *r, double rotations)
{
    return (double)r->head_dim * log((double)r->original_max_positions / (rotations * two_pi)) /
           (2.0 * log(r->theta));
}

/* YaRN (Peng et al. 2023, arXiv 2309.00071): fast channels kept, slow ones interpolated, a ramp
 * between. */
static float yarn_frequency(const ref_rope *r, int64_t i)
{
    double low = yarn_channel(r, r->beta_fast);
    double high = yarn_channel(r, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, (double)(r->head_dim - 1));
    if (low == high) {
        high += 0.001;
    }
    const float ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0.0f), 1.0f);
    const float kept = 1.0f - ramp;
    const float power = power_of(r->theta, i, r->head_dim);
    const float interpolated = 1.0f / ((float)r->factor * power);
    return interpolated * (1.0f - kept) + 1.0f / power * kept;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* What cosines and sines are multiplied with. */
static float attention_factor(const ref_rope *r)
{
    if (r->kind != REF_ROPE_YARN) {
        return 1.0f;
    }
    if (r->attention_factor >= 0.0) {
        return (float)r->attention_factor;
    }
    if (r->mscale != 0.0 && r->mscale_all_dim != 0.0) {
        return (float)(yarn_mscale(r->factor, r->mscale) /
                       yarn_mscale(r->factor, r->mscale_all_dim));
    }
    return (float)yarn_mscale(r->factor, 1.0);
}

/* Llama 3.1: short waves kept, long ones divided by the factor, a blend between. */
static float llama3_frequency(const ref_rope *r, int64_t i)
{
    const float plain = 1.0f / power_of(r->theta, i, r->head_dim);
    const float slowed = plain / (float)r->factor;
    const double context = (double)r->original_max_positions;
    const float wavelength = (float)two_pi / plain;
    if (wavelength > (float)(context / r->low_freq_factor)) {
        return slowed;
    }
    if (wavelength < (float)(context / r->high_freq_factor)) {
        return plain;
    }
    const float blend = ((float)context / wavelength - (float)r->low_freq_factor) /
                        (float)(r->high_freq_factor - r->low_freq_factor);
    return (1.0f - blend) * slowed + blend * plain;
}

static float frequency_of(const ref_rope *r, int64_t seq_length, int64_t i)
{
    switch (r->kind) {
    case REF_ROPE_LINEAR:
        return linear_frequency(r, i);
    case REF_ROPE_DYNAMIC:
        return dynamic_frequency(r, seq_length, i);
    case REF_ROPE_YARN:
        return yarn_frequency(r, i);
    case REF_ROPE_LLAMA3:
        return llama3_frequency(r, i);
    case REF_ROPE_DEFAULT:
        break;
    }
    return 1.0f / power_of(r->theta, i, r->head_dim);
}

/* The document of a row goes as far as positions rise. */
static int64_t document_length(const int32_t *positions, int64_t row, int64_t n)
{
    while (row + 1 < n && positions[row + 1] > positions[row]) {
        ++row;
    }
    return (int64_t)positions[row] + 1;
}

void ref_rope_table(float *cosines, float *sines, const int32_t *positions, const ref_rope *rope,
                    int64_t n)
{
    const int64_t half = rope->head_dim / 2;
    const float factor = attention_factor(rope);
    for (int64_t row = 0; row < n; ++row) {
        const int64_t length = document_length(positions, row, n);
        for (int64_t i = 0; i < half; ++i) {
            const float angle = (float)positions[row] * frequency_of(rope, length, i);
            cosines[row * half + i] = (float)cos((double)angle) * factor;
            sines[row * half + i] = (float)sin((double)angle) * factor;
        }
    }
}

void ref_rotate(float *y, const float *x, const float *cosines, const float *sines, int64_t n,
                int64_t h, int64_t d, bool inverse)
{
    const int64_t half = d / 2;
    for (int64_t head = 0; head < n * h; ++head) {
        for (int64_t i = 0; i < half; ++i) {
            const int64_t angle = head / h * half + i;
            const float cosine = cosines[angle];
            const float sine = inverse ? -sines[angle] : sines[angle];
            const float p = x[head * d + i];
            const float q = x[head * d + half + i];
            y[head * d + i] = p * cosine - q * sine;
            y[head * d + half + i] = q * cosine + p * sine;
        }
    }
}
