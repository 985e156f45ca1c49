/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA on T5 (SEQ_2_SEQ_LM) against PEFT (test/golden/adapter, make_pairs.py): ten steps of AdamW
 * from a folder that PEFT wrote, the folder that comes out, merging, generation; what is refused.
 */
#include "common/check.h"
#include "common/scratch.h"
#include "train/engine.h"

#include <deepspeed/infer.h>
#include <deepspeed/safetensors.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 10, PATH_BYTES = 1024, LENGTH = 40, MOST_NEW = 64 };

#define GOLDEN DS_SOURCE_DIR "/test/golden/"

static const struct {
    const char *name, *model;
} cases[] = {{"t5_lora", "t5"},
             {"t5_all", "t5_untied"},
             {"t5_saved", "t5_untied"},
             {"t5_dora", "t5"},
             {"t5_shared", "t5_shared"}};
enum { CASES = sizeof cases / sizeof cases[0] };

static const char config_text[] =
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.0, \"optimizer\": {\"type\": "
    "\"AdamW\", \"params\": {\"lr\": 1e-3, \"eps\": 1e-5, \"weight_decay\": 0.0}}}";

static ds_ctx *ctx;

typedef struct run {
    ds_model *model;
    ds_adapter *adapter;
    ds_safetensors *batch;
    ds_engine *engine;
    char weights[PATH_BYTES]; /* the model's folder */
} run;

static ds_adapter *opened(const char *name, const char *which)
{
    char path[PATH_BYTES];
    ds_adapter *adapter = NULL;
    (void)snprintf(path, sizeof path, GOLDEN "adapter/%s/%s", name, which);
    CHECK_OK(ctx, ds_adapter_open(ctx, path, &adapter));
    return adapter;
}

static ds_status begin(run *r, const char *model, ds_adapter *adapter)
{
    char path[PATH_BYTES];
    ds_config *config = NULL;
    *r = (run){.adapter = adapter};
    (void)snprintf(r->weights, sizeof r->weights, GOLDEN "t5/%s", model);
    (void)snprintf(path, sizeof path, GOLDEN "t5/%s/config.json", model);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &r->model));
    (void)snprintf(path, sizeof path, GOLDEN "t5/%s/golden.safetensors", model);
    CHECK_OK(ctx, ds_safetensors_open(ctx, path, &r->batch));
    CHECK_OK(ctx,
             ds_config_load_text(ctx, "test", config_text, strlen(config_text), NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    const ds_engine_params params = {.model = r->model,
                                     .config = config,
                                     .seq_length = LENGTH,
                                     .weights = r->weights,
                                     .adapter = adapter};
    const ds_status status = ds_initialize(ctx, &params, &r->engine);
    ds_config_destroy(&config);
    return status;
}

static void end(run *r)
{
    ds_engine_destroy(&r->engine);
    ds_adapter_destroy(&r->adapter);
    ds_safetensors_close(&r->batch);
    ds_model_destroy(&r->model);
}

static double step(run *r)
{
    static const char *const names[][2] = {{"input_ids", "tokens"},
                                           {"labels", "targets"},
                                           {"positions", "positions"},
                                           {"first", "first"}};
    ds_named_tensor tensors[4];
    for (size_t i = 0; i < 4; ++i) {
        const ds_safetensor *t = ds_safetensors_find(r->batch, names[i][1]);
        assert_non_null(t);
        tensors[i] = (ds_named_tensor){names[i][0], {(void *)(uintptr_t)t->data, t->meta}};
    }
    const ds_batch batch = {tensors, 4};
    CHECK_OK(ctx, ds_engine_forward(r->engine, &batch));
    const double loss = ds_engine_loss(r->engine);
    CHECK_OK(ctx, ds_engine_backward(r->engine));
    CHECK_OK(ctx, ds_engine_step(r->engine));
    return loss;
}

/* The largest difference of the tensors of `want` and those of the same names in `got`. */
static double difference(const char *got_path, const char *want_path)
{
    ds_safetensors *got = NULL;
    ds_safetensors *want = NULL;
    double most = 0.0;
    CHECK_OK(ctx, ds_safetensors_open(ctx, got_path, &got));
    CHECK_OK(ctx, ds_safetensors_open(ctx, want_path, &want));
    assert_true(ds_safetensors_count(want) > 0);
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        const ds_safetensor *b = ds_safetensors_at(want, i);
        const ds_safetensor *a = ds_safetensors_find(got, b->name);
        assert_non_null(a);
        assert_true(ds_shape_equal(a->meta.shape, b->meta.shape));
        for (int64_t k = 0; k < ds_shape_count(b->meta.shape); ++k) {
            const double d =
                fabs((double)((const float *)a->data)[k] - (double)((const float *)b->data)[k]);
            most = d > most ? d : most;
        }
    }
    ds_safetensors_close(&got);
    ds_safetensors_close(&want);
    return most;
}

static json_t *golden_of(const char *name)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, GOLDEN "adapter/%s/golden.json", name);
    json_t *golden = json_load_file(path, 0, NULL);
    assert_non_null(golden);
    return golden;
}

static void ten_steps_as_peft(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; ++i) {
        char *out = scratch_make();
        char want[PATH_BYTES];
        json_t *golden = golden_of(cases[i].name);
        run r;
        CHECK_OK(ctx, begin(&r, cases[i].model, opened(cases[i].name, "start")));
        CHECK_OK(ctx, ds_engine_save_adapter(r.engine, out)); /* as it was read */
        (void)snprintf(want, sizeof want, GOLDEN "adapter/%s/start/adapter_model.safetensors",
                       cases[i].name);
        assert_true(difference(scratch_path(out, "adapter_model.safetensors"), want) == 0.0);
        for (size_t s = 0; s < STEPS; ++s) {
            const double loss =
                json_real_value(json_array_get(json_object_get(golden, "losses"), s));
            const double got = step(&r);
            if (!(fabs(got - loss) < 1e-5 * fabs(loss))) {
                fail_msg("%s: loss of step %zu: %.8f, PEFT has %.8f", cases[i].name, s, got, loss);
            }
        }
        CHECK_OK(ctx, ds_engine_save_adapter(r.engine, out));
        (void)snprintf(want, sizeof want, GOLDEN "adapter/%s/end/adapter_model.safetensors",
                       cases[i].name);
        const double most = difference(scratch_path(out, "adapter_model.safetensors"), want);
        print_message("%s: weights after ten steps differ by %.1e\n", cases[i].name, most);
        assert_true(most < 2e-5);
        end(&r);
        json_decref(golden);
        scratch_remove(out);
    }
}

/* What greedy decoding makes of the source, n ids. */
static void generates(const ds_model *model, const char *weights, const ds_adapter *adapter,
                      const json_t *golden, uint32_t *made, size_t n)
{
    uint32_t ids[LENGTH];
    const json_t *source = json_object_get(golden, "source");
    const size_t n_source = json_array_size(source);
    const ds_generator_params params = {
        .model = model, .weights = weights, .max_length = LENGTH, .adapter = adapter};
    ds_generator *g = NULL;
    assert_true(n_source <= LENGTH);
    for (size_t i = 0; i < n_source; ++i) {
        ids[i] = (uint32_t)json_integer_value(json_array_get(source, i));
    }
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &g));
    CHECK_OK(ctx, ds_generator_prompt(g, ids, n_source));
    for (size_t i = 0; i < n; ++i) {
        CHECK_OK(ctx, ds_generator_next(g, &(ds_sampling){0}, &made[i]));
    }
    ds_generator_destroy(&g);
}

static void merged_and_generated_as_peft(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; ++i) {
        char *out = scratch_make();
        char model[PATH_BYTES];
        char want[PATH_BYTES + 16];
        uint32_t beside[MOST_NEW];
        uint32_t merged[MOST_NEW];
        uint32_t plain[MOST_NEW];
        json_t *golden = golden_of(cases[i].name);
        const json_t *greedy = json_object_get(golden, "greedy");
        const size_t n = json_array_size(greedy);
        ds_adapter *adapter = opened(cases[i].name, "end");
        ds_model *base = NULL;
        ds_model *own = NULL;
        (void)snprintf(model, sizeof model, GOLDEN "t5/%s", cases[i].model);
        (void)snprintf(want, sizeof want, GOLDEN "adapter/%s/merged.safetensors", cases[i].name);
        const ds_adapter_merge_params params = {.model_folder = model,
                                                .folder = scratch_path(out, "merged")};
        CHECK_OK(ctx, ds_adapter_merge(ctx, adapter, &params));
        assert_true(difference(scratch_path(out, "merged/model.safetensors"), want) < 1e-6);
        (void)snprintf(want, sizeof want, "%s/config.json", model);
        CHECK_OK(ctx, ds_model_from_config(ctx, want, &base));
        CHECK_OK(ctx, ds_model_from_config(ctx, scratch_path(out, "merged/config.json"), &own));
        assert_true(n > 0 && n <= MOST_NEW);
        generates(base, model, adapter, golden, beside, n);
        generates(own, params.folder, NULL, golden, merged, n);
        generates(base, model, NULL, golden, plain, n);
        for (size_t k = 0; k < n; ++k) {
            assert_int_equal(beside[k], json_integer_value(json_array_get(greedy, k)));
        }
        assert_memory_equal(beside, merged, n * sizeof *beside);
        assert_memory_not_equal(beside, plain, n * sizeof *beside);
        ds_model_destroy(&own);
        ds_model_destroy(&base);
        ds_adapter_destroy(&adapter);
        json_decref(golden);
        scratch_remove(out);
    }
}

static void is_refused(const ds_adapter_params *params, const char *text)
{
    ds_adapter *adapter = NULL;
    run r;
    CHECK_OK(ctx, ds_adapter_create(ctx, params, &adapter));
    CHECK_FAILS(ctx, begin(&r, "t5", adapter), DS_ERR_UNSUPPORTED, text);
    end(&r);
}

static void refuses_what_peft_does_not_do(void **state)
{
    static const char *const shared[] = {"shared"};
    static const char *const bias[] = {"relative_attention_bias"};
    static const char *const q[] = {"q"};
    (void)state;
    is_refused(&(ds_adapter_params){.rank = 2, .targets = shared, .n_targets = 1, .pairs = true},
               "which encoder and decoder share");
    is_refused(&(ds_adapter_params){.rank = 2,
                                    .targets = q,
                                    .n_targets = 1,
                                    .modules_to_save = shared,
                                    .n_modules_to_save = 1,
                                    .pairs = true},
               "which encoder and decoder share");
    is_refused(&(ds_adapter_params){.rank = 2, .targets = bias, .n_targets = 1, .pairs = true},
               "relative_attention_bias");
    is_refused(&(ds_adapter_params){.rank = 2, .targets = q, .n_targets = 1},
               "learns targets of sources (SEQ_2_SEQ_LM)");
}

static int set_up(void **state)
{
    const int made = check_set_up(state);
    ctx = *state;
    return made;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ten_steps_as_peft),
                                       cmocka_unit_test(merged_and_generated_as_peft),
                                       cmocka_unit_test(refuses_what_peft_does_not_do)};
    return cmocka_run_group_tests(tests, set_up, check_tear_down);
}
