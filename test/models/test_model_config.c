/* SPDX-License-Identifier: Apache-2.0 */
/* models/model: config.json that names no model. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/model.h>
#include <string.h>

static ds_ctx *ctx;

static void refuses_model_types(void **state)
{
    static const struct {
        const char *text;
        ds_status status;
        const char *says;
    } cases[] = {
        {"{\"model_type\": \"\"}", DS_ERR_UNSUPPORTED, "model_type \"\" is not known"},
        {"{\"model_type\": \" \"}", DS_ERR_UNSUPPORTED, "is not known"},
        {"{\"model_type\": \"llam\"}", DS_ERR_UNSUPPORTED, "is not known"},
        {"{\"model_type\": \"llama mistral\"}", DS_ERR_UNSUPPORTED, "is not known"},
        {"{\"model_type\": 3}", DS_ERR_FORMAT, "must be a string"},
        {"{\"vocab_size\": 3}", DS_ERR_FORMAT, "\"model_type\" is missing"},
        {"[]", DS_ERR_FORMAT, "must hold an object"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 135027}", DS_ERR_LIMIT,
         "n_layer 135027 is above 1024"},
        {"{\"model_type\": \"llama\", \"num_hidden_layers\": 1025}", DS_ERR_LIMIT,
         "num_hidden_layers 1025 is above 1024"},
    };
    char *folder = scratch_make();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        ds_model *model = NULL;
        scratch_write(scratch_path(folder, "config.json"), cases[i].text, strlen(cases[i].text));
        CHECK_FAILS(ctx, ds_model_from_config(ctx, scratch_path(folder, "config.json"), &model),
                    cases[i].status, cases[i].says);
    }
    ds_model *model = NULL;
    CHECK_FAILS(ctx, ds_model_from_config(ctx, scratch_path(folder, "none.json"), &model),
                DS_ERR_NOT_FOUND, "unable to open ");
    assert_null(strstr(ds_ctx_error(ctx), ":-1"));
    scratch_remove(folder);
}

int main(void)
{
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    const struct CMUnitTest tests[] = {cmocka_unit_test(refuses_model_types)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
