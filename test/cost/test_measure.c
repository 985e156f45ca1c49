/* SPDX-License-Identifier: Apache-2.0 */
/* The fit on samples made from known rates; every operator that is measured, on small sizes. */
#include "common/check.h"
#include "cost/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

static int setup(void **state)
{
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    params.level = DS_LOG_ERROR;
    params.n_threads = 2;
    return ds_ctx_create(&params, &ctx);
}

static int teardown(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

/* Samples that follow the model are explained; where the grid lacks the halves, nearly. */
static void fits(void **state)
{
    (void)state;
    static const dsi_rate truths[] = {{0.75, 1.0, 64.0, 0.0, 128.0}, {0.5, 1.0, 20.0, 50.0, 300.0}};
    static const double limits[] = {1e-6, 0.02};
    static const int64_t sizes[][3] = {{4096, 768, 768}, {4096, 768, 3072}, {256, 256, 256},
                                       {512, 64, 4096},  {128, 2048, 64},   {64, 4096, 512}};
    enum { N = sizeof sizes / sizeof sizes[0] };
    for (int t = 0; t < 2; ++t) {
        dsi_device d = {.peak = {1e12, 1e12, 1e12}, .memory_bandwidth = 1e18};
        dsi_measure_sample samples[N];
        d.rates[DSI_PEAK_F32][DS_CLASS_LINEAR] = truths[t];
        for (int i = 0; i < N; ++i) {
            samples[i].work = (dsi_work){.op_class = DS_CLASS_LINEAR,
                                         .dtype = DS_DTYPE_F32,
                                         .m = sizes[i][0],
                                         .n = sizes[i][1],
                                         .k = sizes[i][2],
                                         .flops = 2e9};
            samples[i].seconds = dsi_time_work(&d, &samples[i].work);
        }
        d.rates[DSI_PEAK_F32][DS_CLASS_LINEAR] = dsi_measure_fit(samples, N, 1e12);
        d.rates[DSI_PEAK_F32][DS_CLASS_LINEAR].memory = 1.0;
        for (int i = 0; i < N; ++i) {
            const double ratio = dsi_time_work(&d, &samples[i].work) / samples[i].seconds;
            if (fabs(ratio - 1.0) > limits[t]) {
                fail_msg("truth %d, sample %d: ratio %.4f", t, i, ratio);
            }
        }
    }
}

static void every_class_runs(void **state)
{
    (void)state;
    static const dsi_measure_point points[] = {
        {DS_CLASS_LINEAR, 3, 64, 96, 32},       {DS_CLASS_LINEAR, 0, 64, 96, 32},
        {DS_CLASS_LINEAR_DW, 3, 64, 96, 32},    {DS_CLASS_LINEAR_DW, 0, 64, 96, 32},
        {DS_CLASS_LOSS, 0, 32, 100, 64},        {DS_CLASS_LOSS_BACKWARD, 0, 32, 100, 64},
        {DS_CLASS_ATTENTION, 2, 128, 32, 64},   {DS_CLASS_ATTENTION_BACKWARD, 2, 128, 32, 64},
        {DS_CLASS_NORM, 0, 32, 64, 0},          {DS_CLASS_NORM, 1, 32, 64, 0},
        {DS_CLASS_NORM_BACKWARD, 0, 32, 64, 0}, {DS_CLASS_NORM_BACKWARD, 1, 32, 64, 0},
        {DS_CLASS_ELEMENTWISE, 0, 32, 64, 0},   {DS_CLASS_ELEMENTWISE, 1, 32, 64, 0},
        {DS_CLASS_ELEMENTWISE, 2, 32, 64, 0},   {DS_CLASS_ELEMENTWISE, 3, 32, 64, 0},
        {DS_CLASS_EMBEDDING, 0, 32, 64, 100},   {DS_CLASS_EMBEDDING_BACKWARD, 0, 32, 64, 100},
        {DS_CLASS_REDUCE, 0, 1000, 0, 0},       {DS_CLASS_REDUCE, 1, 1000, 0, 0},
        {DS_CLASS_OPTIMIZER, 0, 1000, 0, 0},    {DS_CLASS_COPY, 0, 1000, 0, 0},
    };
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    for (size_t i = 0; i < sizeof points / sizeof points[0]; ++i) {
        for (int d = 0; d < 3; ++d) {
            dsi_measure_sample sample;
            dsi_measure_trial *trial = NULL;
            CHECK_OK(ctx, dsi_measure_open(ctx, &points[i], dtypes[d], &trial));
            CHECK_OK(ctx, dsi_measure_median(trial, 0.0, &sample));
            dsi_measure_close(&trial);
            assert_null(trial);
            assert_int_equal(sample.work.op_class, points[i].op_class);
            assert_int_equal(sample.work.dtype, dtypes[d]);
            assert_true(sample.seconds > 0.0 && sample.work.bytes > 0.0);
            if (dsi_op_class_is_model(points[i].op_class)) {
                assert_true(sample.work.flops > 0.0 && sample.work.m == points[i].m);
                assert_true(sample.work.n == points[i].n && sample.work.k == points[i].k);
            }
        }
    }
}

static double flops_of_products(const dsi_measure_point *points)
{
    double flops = 0.0;
    for (int i = 0; i < DSI_MEASURE_POINTS; ++i) {
        const dsi_measure_point *p = &points[i];
        flops += dsi_op_class_is_model(p->op_class)
                     ? 2.0 * (double)p->m * (double)p->n * (double)p->k
                     : 0.0;
    }
    return flops;
}

/* A slow processor takes rows from products, nothing from the rest, and no class loses a shape. */
static void fewer_rows_on_a_slow_processor(void **state)
{
    (void)state;
    dsi_measure_point fast[DSI_MEASURE_POINTS];
    dsi_measure_point slow[DSI_MEASURE_POINTS];
    dsi_measure_points(2e12, fast);
    dsi_measure_points(1e11, slow);
    assert_true(flops_of_products(slow) < 0.2 * flops_of_products(fast));
    for (int i = 0; i < DSI_MEASURE_POINTS; ++i) {
        assert_int_equal(fast[i].op_class, slow[i].op_class);
        assert_true(slow[i].m > 0 && slow[i].m <= fast[i].m);
        assert_true(slow[i].n <= fast[i].n && slow[i].k <= fast[i].k);
        if (!dsi_op_class_is_model(fast[i].op_class)) {
            assert_int_equal(fast[i].m, slow[i].m);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fits),
        cmocka_unit_test(every_class_runs),
        cmocka_unit_test(fewer_rows_on_a_slow_processor),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
