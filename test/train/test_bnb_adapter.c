/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters trained beside folders that transformers saved with bitsandbytes: the losses that PEFT
 * has beside the same folders dequantized (test/golden/bnb/make_lora.py). */
#include "common/check.h"
#include "common/golden.h"

#include <deepspeed/adapter.h>
#include <deepspeed/deepspeed.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 1024, ROWS = 2, SEQ = 16, STEPS = 5 };

static const char config_text[] =
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.0, \"optimizer\": {\"type\": "
    "\"AdamW\", \"params\": {\"lr\": 1e-2, \"eps\": 1e-5, \"weight_decay\": 0.0}}}";

typedef struct rows {
    int32_t data[4][ROWS][SEQ];
    ds_named_tensor tensors[4];
} rows;

static ds_batch feed(const json_t *ids, rows *r)
{
    static const char *const names[4] = {"input_ids", "targets", "positions", "first"};
    const ds_meta meta = {DS_DTYPE_I32, ds_shape_2d(ROWS, SEQ)};
    for (size_t i = 0; i < ROWS; ++i) {
        const json_t *row = json_array_get(ids, i);
        assert_int_equal(json_array_size(row), SEQ);
        for (size_t t = 0; t < SEQ; ++t) {
            const json_t *next = json_array_get(row, t + 1);
            r->data[0][i][t] = (int32_t)json_integer_value(json_array_get(row, t));
            r->data[1][i][t] = next != NULL ? (int32_t)json_integer_value(next) : -100;
            r->data[2][i][t] = (int32_t)t;
            r->data[3][i][t] = 0;
        }
    }
    for (int k = 0; k < 4; ++k) {
        r->tensors[k] = (ds_named_tensor){names[k], {r->data[k], meta}};
    }
    return (ds_batch){r->tensors, 4};
}

static void steps_of(ds_ctx *ctx, const char *name)
{
    char folder[PATH_BYTES], path[PATH_BYTES];
    rows r;
    ds_model *model = NULL;
    ds_adapter *adapter = NULL;
    ds_config *config = NULL;
    ds_engine *engine = NULL;
    golden_path(path, sizeof path, "bnb/%s/lora/steps.json", name);
    json_t *want = json_load_file(path, 0, NULL);
    const json_t *losses = json_object_get(want, "losses");
    const ds_batch batch = feed(json_object_get(want, "ids"), &r);
    assert_int_equal(json_array_size(losses), STEPS);
    golden_path(folder, sizeof folder, "bnb/%s", name);
    golden_path(path, sizeof path, "bnb/%s/config.json", name);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &model));
    golden_path(path, sizeof path, "bnb/%s/lora", name);
    CHECK_OK(ctx, ds_adapter_open(ctx, path, &adapter));
    CHECK_OK(ctx,
             ds_config_load_text(ctx, "test", config_text, strlen(config_text), NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    const ds_engine_params params = {
        .model = model, .config = config, .seq_length = SEQ, .weights = folder, .adapter = adapter};
    CHECK_OK(ctx, ds_initialize(ctx, &params, &engine));
    for (size_t i = 0; i < STEPS; ++i) {
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        const double loss = ds_engine_loss(engine);
        const double expected = json_number_value(json_array_get(losses, i));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
        if (fabs(loss - expected) >= 1e-5 * expected) {
            fail_msg("%s, step %zu: %.9g, expected %.9g", name, i, loss, expected);
        }
    }
    ds_engine_destroy(&engine);
    ds_config_destroy(&config);
    ds_adapter_destroy(&adapter);
    ds_model_destroy(&model);
    json_decref(want);
}

static void steps_as_peft(void **state)
{
    static const char *const folders[] = {"nf4", "nf4_nested", "fp4", "int8"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; ++i) {
        steps_of(*state, folders[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_as_peft)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
