/* SPDX-License-Identifier: Apache-2.0 */
/* The global norm: the same bits for any split and any order of the elements, right to rounding,
 * and defined when something is not finite. On every kernel of this machine. */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/exact_bins.h"
#include "base/rng.h"
#include "common/check.h"
#include "op/harness.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 20011, ORDERS = 24 };

/* Runs one operator on tensors as they are; `index` counts kernels, best first. */
static bool run_op(ds_ctx *ctx, const ds_op *op, const void *attrs, const ds_tensor *in,
                   uint32_t n_in, const ds_tensor *out, uint32_t n_out, uint32_t index)
{
    ds_meta in_meta[DS_MAX_IN];
    ds_meta out_meta[DS_MAX_OUT];
    for (uint32_t i = 0; i < n_in; ++i) {
        in_meta[i] = in[i].meta;
    }
    for (uint32_t i = 0; i < n_out; ++i) {
        out_meta[i] = out[i].meta;
    }
    const ds_kernel_sig sig = {op, attrs, n_in, n_out, in_meta, out_meta, ds_ctx_n_threads(ctx)};
    const ds_kernel *kernel = dsi_cpu_kernel_at(&sig, dsi_cpu_isa(), index);
    if (kernel == NULL) {
        return false;
    }
    const size_t bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
    void *work = aligned_alloc(64, bytes / 64 * 64 + 64);
    assert_non_null(work);
    const ds_kernel_call call = {ctx, &sig, in, out, work};
    CHECK_OK(ctx, kernel->run(&call));
    free(work);
    return true;
}

static ds_tensor floats(float *data, int64_t n)
{
    return (ds_tensor){data, {DS_DTYPE_F32, ds_shape_1d(n)}};
}

static ds_tensor number(float *data)
{
    return (ds_tensor){data, {DS_DTYPE_F32, {0}}};
}

static ds_tensor pair(double *data)
{
    return (ds_tensor){data, {DS_DTYPE_F64, ds_shape_1d(2)}};
}

static bool sum_squares(ds_ctx *ctx, float *x, int64_t n, float *top, double *parts, uint32_t index)
{
    const ds_tensor in[2] = {floats(x, n), number(top)};
    const ds_tensor out = pair(parts);
    return run_op(ctx, &dsi_op_sum_squares, NULL, in, 2, &out, 1, index);
}

static bool abs_max(ds_ctx *ctx, float *x, int64_t n, float *top, uint32_t index)
{
    const ds_tensor in = floats(x, n);
    const ds_tensor out = number(top);
    return run_op(ctx, &dsi_op_abs_max, NULL, &in, 1, &out, 1, index);
}

static float norm_of(ds_ctx *ctx, double *parts, float *top, float inverse_scale, double max_norm,
                     float *factor)
{
    float norm = -1.0f;
    const dsi_clip_attrs attrs = {.max_norm = max_norm};
    const ds_tensor in[3] = {pair(parts), number(top), number(&inverse_scale)};
    const ds_tensor out[2] = {number(&norm), number(factor)};
    assert_true(run_op(ctx, &dsi_op_clip_factor, &attrs, in, 3, out, 2, 0));
    return norm;
}

/* Magnitudes over 40 binary orders, so that a plain sum depends on the order. */
static void fill(float *x)
{
    for (int i = 0; i < N; ++i) {
        const int exponent = (int)(dsi_rng_u32(3, 1, 0, (uint64_t)i) % 40) - 30;
        x[i] = ldexpf(dsi_rng_normal(3, 2, (uint64_t)i), exponent);
    }
}

static void shuffle(float *x, uint32_t order)
{
    for (int i = N - 1; i > 0; --i) {
        const uint64_t j = dsi_rng_below(5, order, (uint64_t)i, (uint64_t)i + 1);
        const float t = x[i];
        x[i] = x[j];
        x[j] = t;
    }
}

/* Sums x in n_parts pieces of unequal length, two levels of sum_parts. */
static void sum_in_parts(ds_ctx *ctx, float *x, float *top, uint32_t order, uint32_t n_parts,
                         uint32_t index, double *total)
{
    double parts[16][2];
    ds_tensor in[16];
    int64_t at = 0;
    for (uint32_t p = 0; p < n_parts; ++p) {
        const int64_t left = N - at;
        const int64_t n =
            p + 1 < n_parts ? (int64_t)dsi_rng_below(9, order, p, (uint64_t)left + 1) : left;
        assert_true(sum_squares(ctx, x + at, n, top, parts[p], index));
        in[p] = pair(parts[p]);
        at += n;
    }
    double half[2][2];
    const ds_tensor halves[2] = {pair(half[0]), pair(half[1])};
    const uint32_t cut = 1 + order % (n_parts - 1);
    assert_true(run_op(ctx, &dsi_op_sum_parts, NULL, in, cut, &halves[0], 1, 0));
    assert_true(run_op(ctx, &dsi_op_sum_parts, NULL, in + cut, n_parts - cut, &halves[1], 1, 0));
    const ds_tensor out = pair(total);
    assert_true(run_op(ctx, &dsi_op_sum_parts, NULL, halves, 2, &out, 1, 0));
}

static void any_split_and_order_gives_the_same_bits(void **state)
{
    ds_ctx *ctx = *state;
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    fill(x);
    float top;
    assert_true(abs_max(ctx, x, N, &top, 0));
    double whole[2];
    float factor;
    assert_true(sum_squares(ctx, x, N, &top, whole, 0));
    const float norm = norm_of(ctx, whole, &top, 0.25f, 1.0, &factor);
    long double exact = 0.0L;
    for (int i = 0; i < N; ++i) {
        exact += (long double)x[i] * (long double)x[i];
    }
    assert_true(fabsl((long double)norm / (0.25L * sqrtl(exact)) - 1.0L) < 1e-7L);
    for (uint32_t order = 0; order < ORDERS; ++order) {
        shuffle(x, order);
        double again[2];
        for (uint32_t k = 0; sum_squares(ctx, x, N, &top, again, k); ++k) {
            assert_memory_equal(again, whole, sizeof whole);
            float other_factor;
            sum_in_parts(ctx, x, &top, order, 2 + order % 15, k, again);
            const float other = norm_of(ctx, again, &top, 0.25f, 1.0, &other_factor);
            assert_memory_equal(&other, &norm, sizeof norm);
            assert_memory_equal(&other_factor, &factor, sizeof factor);
        }
    }
    free(x);
}

/* A plain sum would fail the test above: the data is hard enough. */
static void a_plain_sum_depends_on_the_order(void **state)
{
    (void)state;
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    fill(x);
    double first = 0.0;
    double second = 0.0;
    for (int i = 0; i < N; ++i) {
        first += (double)x[i] * (double)x[i];
    }
    shuffle(x, 1);
    for (int i = 0; i < N; ++i) {
        second += (double)x[i] * (double)x[i];
    }
    assert_true(first != second);
    free(x);
}

/* ---- without top ---- */

static ds_tensor bins(double *data)
{
    return (ds_tensor){data, {DS_DTYPE_F64, ds_shape_1d(DSI_EXACT_WIDE)}};
}

static bool sum_bins(ds_ctx *ctx, float *x, int64_t n, double *out, uint32_t index)
{
    const ds_tensor in = floats(x, n);
    const ds_tensor result = bins(out);
    return run_op(ctx, &dsi_op_sum_squares, NULL, &in, 1, &result, 1, index);
}

static float norm_of_bins(ds_ctx *ctx, double *parts)
{
    const dsi_clip_attrs attrs = {.max_norm = 0.0};
    float inverse_scale = 1.0f;
    float norm;
    float factor;
    const ds_tensor in[3] = {bins(parts), {0}, number(&inverse_scale)};
    const ds_tensor out[2] = {number(&norm), number(&factor)};
    assert_true(run_op(ctx, &dsi_op_clip_factor, &attrs, in, 3, out, 2, 0));
    return norm;
}

/* Numbers of all magnitudes, so that a sum in double would round. */
static float *spread(void)
{
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < N; ++i) {
        const uint32_t r = dsi_rng_u32(3, 7, 0, (uint64_t)i);
        x[i] = ldexpf(1.0f + (float)(r & 0xffff) / 65536.0f, (int)(r >> 16 & 0x7f) - 90);
    }
    return x;
}

static void bins_hold_any_split_and_order(void **state)
{
    ds_ctx *ctx = *state;
    float *x = spread();
    double whole[DSI_EXACT_WIDE];
    assert_true(sum_bins(ctx, x, N, whole, 0));
    for (uint32_t order = 0; order < ORDERS; ++order) {
        double again[DSI_EXACT_WIDE];
        double halves[2][DSI_EXACT_WIDE];
        shuffle(x, order + 1);
        for (uint32_t k = 0; sum_bins(ctx, x, N, again, k); ++k) {
            assert_memory_equal(again, whole, sizeof whole);
        }
        const int64_t cut = 1 + (int64_t)(order * 811);
        assert_true(sum_bins(ctx, x, cut, halves[0], 0));
        assert_true(sum_bins(ctx, x + cut, N - cut, halves[1], 0));
        const ds_tensor in[2] = {bins(halves[0]), bins(halves[1])};
        const ds_tensor out = bins(again);
        assert_true(run_op(ctx, &dsi_op_sum_parts, NULL, in, 2, &out, 1, 0));
        dsi_exact_bins joined = {{0.0}};
        dsi_exact_bins_join(&joined, again); /* carries */
        assert_memory_equal(joined.at, whole, sizeof whole);
        assert_true(norm_of_bins(ctx, again) == norm_of_bins(ctx, whole));
    }
    long double sum = 0.0L;
    for (int i = 0; i < N; ++i) {
        sum += (long double)x[i] * (long double)x[i];
    }
    const float norm = norm_of_bins(ctx, whole);
    assert_true(fabsl((long double)norm - sqrtl(sum)) <= 1e-7L * sqrtl(sum));
    free(x);
}

static void bins_know_the_ends_of_the_range(void **state)
{
    ds_ctx *ctx = *state;
    static const float ends[] = {FLT_MAX, FLT_MIN, 0.0f, 1.0f, 3e-30f};
    for (uint32_t k = 0;; ++k) {
        for (uint32_t i = 0; i < sizeof ends / sizeof ends[0]; ++i) {
            float x[33] = {0};
            double out[DSI_EXACT_WIDE];
            x[7] = ends[i];
            if (!sum_bins(ctx, x, 33, out, k)) {
                return;
            }
            assert_true(norm_of_bins(ctx, out) == ends[i]);
            x[8] = NAN;
            assert_true(sum_bins(ctx, x, 33, out, k));
            assert_true(isnan(norm_of_bins(ctx, out)));
            x[8] = -INFINITY;
            assert_true(sum_bins(ctx, x, 33, out, k));
            assert_true(isinf(norm_of_bins(ctx, out)));
        }
    }
}

static void infinities_and_nans_are_defined(void **state)
{
    ds_ctx *ctx = *state;
    static const struct {
        float a, b;
        int kind; /* of the norm: 0 finite, 1 infinite, 2 NaN */
    } rows[] = {{1.0f, 2.0f, 0},       {INFINITY, 2.0f, 1}, {-INFINITY, 2.0f, 1},
                {NAN, 2.0f, 2},        {NAN, INFINITY, 2},  {INFINITY, -NAN, 2},
                {FLT_MAX, FLT_MAX, 1}, {0.0f, -0.0f, 0},    {1e-38f, 1e-38f, 0}};
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        float x[37] = {0};
        x[5] = rows[i].a;
        x[36] = rows[i].b;
        float top;
        for (uint32_t k = 0; abs_max(ctx, x, 37, &top, k); ++k) {
            assert_true(isnan(top) == (rows[i].kind == 2));
            double parts[2];
            float factor;
            assert_true(sum_squares(ctx, x, 37, &top, parts, 0));
            const float norm = norm_of(ctx, parts, &top, 1.0f, 1.0, &factor);
            assert_true(isnan(norm) == (rows[i].kind == 2));
            assert_true(isinf(norm) == (rows[i].kind == 1));
            assert_true(rows[i].kind == 0 || factor == 0.0f);
        }
    }
    float tops[3] = {1.0f, NAN, INFINITY};
    float top;
    const ds_tensor in[3] = {number(&tops[0]), number(&tops[1]), number(&tops[2])};
    const ds_tensor out = number(&top);
    assert_true(run_op(ctx, &dsi_op_max_of, NULL, in, 3, &out, 1, 0));
    assert_true(isnan(top));
}

static void clipping_follows_its_formula(void **state)
{
    ds_ctx *ctx = *state;
    double parts[2] = {16.0, 9.0}; /* norm 5 */
    float top = 3.0f;
    float factor;
    assert_true(norm_of(ctx, parts, &top, 0.5f, 1.0, &factor) == 2.5f);
    assert_true(factor == 0.5f * (1.0f / (2.5f + 1e-6f)));
    assert_true(norm_of(ctx, parts, &top, 0.5f, 3.0, &factor) == 2.5f && factor == 0.5f);
    assert_true(norm_of(ctx, parts, &top, 0.5f, 0.0, &factor) == 2.5f && factor == 0.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_and_order_gives_the_same_bits),
        cmocka_unit_test(a_plain_sum_depends_on_the_order),
        cmocka_unit_test(bins_hold_any_split_and_order),
        cmocka_unit_test(bins_know_the_ends_of_the_range),
        cmocka_unit_test(infinities_and_nans_are_defined),
        cmocka_unit_test(clipping_follows_its_formula),
    };
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
