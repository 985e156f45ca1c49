/* SPDX-License-Identifier: Apache-2.0 */
/* Values by their paths: each type, derived values, and what is asked for wrongly. */
#include "common/check.h"

#include <deepspeed/config.h>
#include <string.h>

static ds_config *load(ds_ctx *ctx)
{
    static const char text[] = "{\"train_batch_size\": 24, \"bf16\": {\"enabled\": \"auto\"}, "
                               "\"gradient_clipping\": 0.5,\n"
                               " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": "
                               "\"auto\", \"betas\": [0.8, 0.9]}}}";
    ds_config *config = NULL;
    CHECK_OK(ctx, ds_config_load_text(ctx, "ds.json", text, strlen(text), NULL, &config));
    return config;
}

static void gives_values(void **state)
{
    ds_ctx *ctx = *state;
    ds_config *config = load(ctx);
    const ds_trainer_values trainer = {
        .micro_batch = ds_known(4), .learning_rate = ds_known(3e-4), .bf16 = ds_known(1)};
    CHECK_OK(ctx, ds_config_resolve(config, 2, &trainer));
    int64_t whole = 0;
    double real = 0;
    bool truth = false;
    const char *text = NULL;
    CHECK_OK(ctx, ds_config_get_int(config, "gradient_accumulation_steps", &whole));
    assert_int_equal(whole, 3); /* 24 / (2 ranks of 4) */
    CHECK_OK(ctx, ds_config_get_bool(config, "bf16.enabled", &truth));
    assert_true(truth);
    CHECK_OK(ctx, ds_config_get_real(config, "optimizer.params.lr", &real));
    assert_true(real == 3e-4);
    CHECK_OK(ctx,
             ds_config_get_real(config, "train_batch_size", &real)); /* a whole number is one */
    assert_true(real == 24);
    CHECK_OK(ctx, ds_config_get_text(config, "optimizer.type", &text));
    assert_string_equal(text, "AdamW");
    ds_config_destroy(&config);
}

static void refuses_what_is_not_there(void **state)
{
    ds_ctx *ctx = *state;
    ds_config *config = load(ctx);
    int64_t whole = 77;
    const char *text = NULL;
    CHECK_FAILS(ctx, ds_config_get_int(config, "train_batch_size", &whole), DS_ERR_STATE,
                "before ds_config_resolve");
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    CHECK_FAILS(ctx, ds_config_get_int(config, "train_batch_sice", &whole), DS_ERR_NOT_FOUND,
                "did you mean \"train_batch_size\"?");
    CHECK_FAILS(ctx, ds_config_get_int(config, "gradient_clipping", &whole), DS_ERR_SHAPE,
                "gradient_clipping: expected a whole number, found 0.5");
    CHECK_FAILS(ctx, ds_config_get_text(config, "zero_optimization.stage", &text), DS_ERR_SHAPE,
                "expected a text, found 0");
    CHECK_FAILS(ctx, ds_config_get_text(config, "communication_data_type", &text), DS_ERR_SHAPE,
                "found null");
    assert_int_equal(whole, 77);
    assert_null(text);
    ds_config_destroy(&config);
}

int main(void)
{
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(gives_values, ctx),
        cmocka_unit_test_prestate(refuses_what_is_not_there, ctx),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
