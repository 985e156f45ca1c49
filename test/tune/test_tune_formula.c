/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of model states by formula, in bytes a parameter, at each stage and under MiCS and hpZ. */
#include "common/check.h"
#include "tune/tune_impl.h"

#include <stdio.h>
#include <string.h>

static ds_ctx *ctx;

/* Bytes a parameter on eight ranks. zero: what the section has besides the stage. */
static double bytes_each(unsigned stage, const char *zero)
{
    char text[200];
    dsi_tune tune = {.ctx = ctx, .n_data_ranks = 8, .n_params = 1e6};
    dsi_prediction prediction;
    (void)snprintf(text, sizeof text,
                   "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}, "
                   "\"zero_optimization\": {\"stage\": %u%s}}",
                   stage, zero);
    assert_int_equal(
        ds_config_load_text(ctx, "t.json", text, strlen(text), NULL, &tune.options_config), DS_OK);
    const dsi_tune_candidate candidate = {.stage = stage, .micro_batch = 1, .accumulation = 1};
    assert_true(dsi_tune_formula(&tune, &candidate, &prediction));
    ds_config_destroy(&tune.options_config);
    return (double)prediction.need / tune.n_params;
}

static void near(double is, double should)
{
    assert_true(is > should - 1e-5 && is < should + 1e-5);
}

static void test_stages(void **state)
{
    (void)state;
    near(bytes_each(0, ""), 16.0);
    near(bytes_each(1, ""), 4.0 + 12.0 / 8);
    near(bytes_each(2, ""), 2.0 + 14.0 / 8);
    near(bytes_each(3, ""), 16.0 / 8);
}

static void test_groups(void **state)
{
    (void)state;
    near(bytes_each(3, ", \"mics_shard_size\": 2"), 16.0 / 2);
    near(bytes_each(3, ", \"mics_shard_size\": -1"), 16.0 / 8);
    near(bytes_each(3, ", \"zero_hpz_partition_size\": 4"), 16.0 / 8 + 2.0 / 4);
    near(bytes_each(3, ", \"zero_hpz_partition_size\": 1"), 16.0 / 8);
}

int main(void)
{
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stages),
                                       cmocka_unit_test(test_groups)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
