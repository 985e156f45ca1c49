/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters on encoders with classes, against PEFT (test/golden/encoder/adapter): the folder as it
 * was read, ten steps of AdamW, the folder that comes out, classes by an encoder at work; fresh
 * ones; what is refused. */
#include "accel/cpu/cpu_features.h"
#include "common/parity.h"
#include "common/scratch.h"

#include <deepspeed/encoder.h>
#include <deepspeed/safetensors.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 10, PATH_BYTES = 1024 };

#define GOLDEN DS_SOURCE_DIR "/test/golden/encoder/adapter/"

static const char *const variants[] = {"bert_sequence", "bert_token",          "roberta_sequence",
                                       "roberta_token", "modernbert_sequence", "modernbert_token"};
enum { VARIANTS = sizeof variants / sizeof *variants };

static ds_ctx *ctx;

static ds_adapter *opened(const char *name, const char *which)
{
    char path[PATH_BYTES];
    ds_adapter *adapter = NULL;
    (void)snprintf(path, sizeof path, GOLDEN "%s/%s", name, which);
    CHECK_OK(ctx, ds_adapter_open(ctx, path, &adapter));
    return adapter;
}

/* The largest difference of the tensors of two folders of the same names. */
static double difference(const char *folder, const char *name, const char *which)
{
    char path[PATH_BYTES];
    ds_safetensors *got = NULL;
    ds_safetensors *want = NULL;
    double most = 0.0;
    (void)snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    CHECK_OK(ctx, ds_safetensors_open(ctx, path, &got));
    (void)snprintf(path, sizeof path, GOLDEN "%s/%s/adapter_model.safetensors", name, which);
    CHECK_OK(ctx, ds_safetensors_open(ctx, path, &want));
    assert_int_equal(ds_safetensors_count(got), ds_safetensors_count(want));
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        const ds_safetensor *b = ds_safetensors_at(want, i);
        const ds_safetensor *a = ds_safetensors_find(got, b->name);
        assert_non_null(a);
        assert_int_equal(a->bytes, b->bytes);
        for (size_t k = 0; k < b->bytes / sizeof(float); ++k) {
            most = fmax(most, fabs((double)((const float *)a->data)[k] -
                                   (double)((const float *)b->data)[k]));
        }
    }
    ds_safetensors_close(&got);
    ds_safetensors_close(&want);
    return most;
}

static ds_engine *engine_of(const parity_case *p, const ds_adapter *adapter)
{
    dsi_engine_spec spec = parity_spec(p, DS_DTYPE_F32, DSI_NEEDS_AMX);
    spec.train.adapter = adapter;
    spec.train.eps =
        1e-5; /* as the goldens were made: less would make much of gradients of nothing */
    return parity_engine(ctx, p, &spec);
}

static void ten_steps_as_peft(void **state)
{
    json_t *all = json_load_file(GOLDEN "losses.json", 0, NULL);
    (void)state;
    assert_non_null(all);
    for (size_t i = 0; i < VARIANTS; ++i) {
        parity_case p;
        char *out = scratch_make();
        const json_t *losses = json_object_get(all, variants[i]);
        parity_open_encoder(ctx, variants[i], &p);
        ds_adapter *adapter = opened(variants[i], "start");
        ds_engine *engine = engine_of(&p, adapter);
        double worst = 0.0;
        CHECK_OK(ctx, ds_engine_save_adapter(engine, out));
        assert_true(difference(out, variants[i], "start") == 0.0);
        for (size_t step = 0; step < STEPS; ++step) {
            const double want = json_real_value(json_array_get(losses, step));
            CHECK_OK(ctx, ds_engine_forward(engine, &p.batch));
            worst = fmax(worst, fabs(ds_engine_loss(engine) - want));
            CHECK_OK(ctx, ds_engine_backward(engine));
            CHECK_OK(ctx, ds_engine_step(engine));
        }
        CHECK_OK(ctx, ds_engine_save_adapter(engine, out));
        const double weights = difference(out, variants[i], "end");
        print_message("%-20s losses %.1e, weights %.1e\n", variants[i], worst, weights);
        assert_true(worst < 1e-5);
        assert_true(weights < 2e-5);
        ds_engine_destroy(&engine);
        ds_adapter_destroy(&adapter);
        parity_close(&p);
        scratch_remove(out);
    }
    json_decref(all);
}

static double logits_off(const ds_tensor *rows, const json_t *want)
{
    double worst = 0.0;
    for (size_t k = 0; k < json_array_size(want); ++k) {
        const double one = json_real_value(json_array_get(want, k));
        worst =
            fmax(worst, fabs((double)((const float *)rows->data)[k] - one) / fmax(1.0, fabs(one)));
    }
    return worst;
}

/* Merged, it is a model with this head, whose classes are those of PEFT's. */
static void merged_says(const ds_adapter *adapter, const ds_encoder_params *beside,
                        const uint32_t *ids, size_t n, const json_t *want)
{
    char *out = scratch_make();
    ds_model *model = NULL;
    ds_encoder *encoder = NULL;
    ds_tensor rows;
    const ds_adapter_merge_params params = {.model_folder = beside->weights, .folder = out};
    CHECK_OK(ctx, ds_adapter_merge(ctx, adapter, &params));
    CHECK_OK(ctx, ds_model_from_config(ctx, scratch_path(out, "config.json"), &model));
    assert_non_null(strstr(ds_model_config_text(model), "ForSequenceClassification"));
    const ds_encoder_params merged = {
        .model = model, .weights = out, .task = beside->task, .n_classes = beside->n_classes};
    CHECK_OK(ctx, ds_encoder_create(ctx, &merged, &encoder));
    CHECK_OK(ctx, ds_encoder_run(encoder, ids, n, &rows));
    assert_true(logits_off(&rows, want) < 2e-5);
    ds_encoder_destroy(&encoder);
    ds_model_destroy(&model);
    scratch_remove(out);
}

/* Of an adapter beside the model: the loss that its logits have is the first one of training. */
static void classes_at_work(void **state)
{
    (void)state;
    for (size_t i = 0; i < VARIANTS; i += 2) { /* classes of documents */
        parity_case p;
        ds_encoder *encoder = NULL;
        ds_tensor rows;
        uint32_t ids[64];
        float plain[16];
        size_t n = 0;
        parity_open_encoder(ctx, variants[i], &p);
        ds_adapter *adapter = opened(variants[i], "end");
        const int32_t *tokens = golden_i32(&p.golden, "tokens");
        const int32_t *first = golden_i32(&p.golden, "first");
        for (; n < (size_t)p.n_seq && first[n] == 0; ++n) {
            ids[n] = (uint32_t)tokens[n];
        }
        ds_encoder_params params = {
            .model = p.model, .weights = p.folder, .task = p.task, .n_classes = p.n_classes};
        CHECK_OK(ctx, ds_encoder_create(ctx, &params, &encoder));
        CHECK_OK(ctx, ds_encoder_run(encoder, ids, n, &rows));
        memcpy(plain, rows.data, (size_t)p.vocab * sizeof *plain);
        ds_encoder_destroy(&encoder);
        params.adapter = adapter;
        CHECK_OK(ctx, ds_encoder_create(ctx, &params, &encoder));
        CHECK_OK(ctx, ds_encoder_run(encoder, ids, n, &rows));
        json_t *all = json_load_file(GOLDEN "logits.json", 0, NULL);
        const json_t *want = json_object_get(all, variants[i]);
        assert_int_equal(json_array_size(want), p.vocab);
        const double worst = logits_off(&rows, want);
        print_message("%-20s logits %.1e\n", variants[i], worst);
        assert_true(worst < 2e-5);
        assert_memory_not_equal(plain, rows.data, (size_t)p.vocab * sizeof *plain);
        ds_encoder_destroy(&encoder);
        merged_says(adapter, &params, ids, n, want);
        json_decref(all);
        ds_encoder_destroy(&encoder);
        ds_adapter_destroy(&adapter);
        parity_close(&p);
    }
}

/* It trains the head that it saves, and is of one task. */
static void fresh_and_refused(void **state)
{
    parity_case p;
    char *out = scratch_make();
    (void)state;
    parity_open_encoder(ctx, "roberta_sequence", &p);
    const ds_adapter_params params = {.rank = 2, .task = DS_TASK_SEQUENCE_CLASSES};
    ds_adapter *adapter = NULL;
    CHECK_OK(ctx, ds_adapter_create(ctx, &params, &adapter));
    ds_engine *engine = engine_of(&p, adapter);
    CHECK_OK(ctx, ds_engine_save_adapter(engine, out));
    ds_engine_destroy(&engine);
    ds_adapter_destroy(&adapter);
    ds_safetensors *st = NULL;
    CHECK_OK(ctx, ds_safetensors_open(ctx, scratch_path(out, "adapter_model.safetensors"), &st));
    assert_non_null(ds_safetensors_find(st, "base_model.model.classifier.out_proj.weight"));
    assert_null(ds_safetensors_find(st, "base_model.model.classifier.dense.lora_A.weight"));
    ds_safetensors_close(&st);
    adapter = opened("roberta_token", "end");
    uint32_t task = 0, n_classes = 0;
    CHECK_OK(ctx, ds_adapter_task(adapter, &task, &n_classes));
    assert_int_equal(task, DS_TASK_TOKEN_CLASSES);
    assert_int_equal(n_classes, 3);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, DSI_NEEDS_AMX);
    spec.train.adapter = adapter;
    const ds_engine_params how = {.model = p.model, .seq_length = p.n_seq, .weights = p.folder};
    CHECK_FAILS(ctx, dsi_engine_create(ctx, &how, &spec, &engine), DS_ERR_UNSUPPORTED,
                "classes of tokens (TOKEN_CLS)");
    ds_adapter_destroy(&adapter);
    parity_close(&p);
    scratch_remove(out);
}

static int open_ctx(void **state)
{
    (void)state;
    ctx = check_ctx(2);
    return 0;
}

static int close_ctx(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_steps_as_peft),
        cmocka_unit_test(classes_at_work),
        cmocka_unit_test(fresh_and_refused),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
