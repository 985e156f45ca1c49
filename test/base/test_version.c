/* SPDX-License-Identifier: Apache-2.0 */
/* The version is one, and reserved words that are not zero are refused by whoever takes the struct.
 */
#include "common/check.h"

#include <deepspeed/deepspeed.h>
#include <stdio.h>

static void versions_are_one(void **state)
{
    char text[32];
    (void)state;
    (void)snprintf(text, sizeof text, "%d.%d.%d", DS_VERSION_MAJOR, DS_VERSION_MINOR,
                   DS_VERSION_PATCH);
    assert_string_equal(ds_version_text(), text);
    assert_string_equal(DS_VERSION_TEXT, text);
    assert_int_equal(ds_version(), DS_VERSION);
    assert_true(DS_VERSION_OF(1, 2, 3) == 10203 &&
                DS_VERSION_OF(0, 10, 0) > DS_VERSION_OF(0, 9, 9));
}

/* Each with one word set: the name of the struct is in the error. */
static void newer_fields_are_refused(void **state)
{
    ds_ctx *ctx = *state;
    ds_generator *generator = NULL;
    ds_engine *engine = NULL;
    ds_config *config = NULL;
    ds_model *model = NULL;
    ds_dataset *dataset = NULL;
    const ds_ctx_params c = {.reserved = {[7] = 1}};
    ds_ctx *second = NULL;
    assert_int_equal(ds_ctx_create(&c, &second), DS_ERR_ARG);
    assert_null(second);
    const ds_engine_params e = {.reserved = {1}};
    CHECK_FAILS(ctx, ds_initialize(ctx, &e, &engine), DS_ERR_ARG, "ds_engine_params: its reserved");
    const ds_generator_params g = {.reserved = {1}};
    CHECK_FAILS(ctx, ds_generator_create(ctx, &g, &generator), DS_ERR_ARG, "ds_generator_params");
    const ds_config_params f = {.reserved = {[3] = 1}};
    CHECK_FAILS(ctx, ds_config_load_text(ctx, "f", "{}", 2, &f, &config), DS_ERR_ARG,
                "ds_config_params");
    CHECK_OK(ctx, ds_config_load_text(ctx, "f", "{train_batch_size: 1}", 21, NULL, &config));
    const ds_trainer_values t = {.reserved = {[15] = 1}};
    CHECK_FAILS(ctx, ds_config_resolve(config, 1, &t), DS_ERR_ARG, "ds_trainer_values");
    ds_config_destroy(&config);
    const ds_model_info m = {.architecture = "own", .reserved = {1}};
    CHECK_FAILS(ctx, ds_model_custom(ctx, &m, NULL, NULL, &model), DS_ERR_ARG, "ds_model_info");
    const ds_dataset_params d = {.reserved = {1}};
    CHECK_FAILS(ctx, ds_dataset_open(ctx, &d, &dataset), DS_ERR_ARG, "ds_dataset_params");
    ds_schedule_params s = ds_schedule_default(DS_SCHEDULE_WARMUP);
    CHECK_OK(ctx, ds_schedule_check(ctx, &s));
    s.reserved[0] = 1;
    CHECK_FAILS(ctx, ds_schedule_check(ctx, &s), DS_ERR_ARG, "ds_schedule_params");
}

int main(void)
{
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_are_one),
        cmocka_unit_test_prestate(newer_fields_are_refused, ctx),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
