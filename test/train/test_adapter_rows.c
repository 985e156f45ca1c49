/* SPDX-License-Identifier: Apache-2.0 */
/* Several adapters that are trained in one run, each on its own rows, against PEFT
 * (test/golden/adapter/rows): ten steps with adapter_names; how tokens are marked with the data set
 * that they are from; checkpoints; what is refused. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/data.h>
#include <deepspeed/engine.h>
#include <deepspeed/safetensors.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 10, ROWS = 4, SEQ = 48, PATH_BYTES = 1024, MOST = 3 };

#define GOLDEN DS_SOURCE_DIR "/test/golden/adapter/"

static const char config_text[] =
    "{\"train_micro_batch_size_per_gpu\": 4, \"gradient_clipping\": 0.0, \"optimizer\": {\"type\": "
    "\"AdamW\", \"params\": {\"lr\": 1e-2, \"eps\": 1e-5, \"weight_decay\": 0.0}}}";

static const char *const names[MOST] = {"a0", "a1", "a2"};

static ds_ctx *ctx;

/* Which adapter each of the rows of rows.jsonl is of; -1: none. */
static const struct {
    const char *name, *model, *start[MOST];
    uint32_t n;
    int32_t row[ROWS];
} cases[] = {
    {"linear", "llama", {"lora/start", "rslora/start", "combined/more"}, 3, {1, 0, -1, 1}},
    {"table_head", "llama", {"head/start", "lora_table/start"}, 2, {0, 1, 1, 0}},
    {"conv1d", "gpt2", {"conv1d/start", "conv1d/end"}, 2, {1, 0, 0, -1}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* The rows, and an engine that trains adapters of a model. */
typedef struct run {
    ds_model *model;
    ds_adapter *adapter;
    ds_tokenizer *tokenizer;
    ds_dataset *data;
    ds_loader *loader;
    ds_engine *engine;
    int32_t adapters[ROWS * SEQ];
} run;

static ds_adapter *opened(const char *name)
{
    char path[PATH_BYTES];
    ds_adapter *adapter = NULL;
    (void)snprintf(path, sizeof path, GOLDEN "%s", name);
    CHECK_OK(ctx, ds_adapter_open(ctx, path, &adapter));
    return adapter;
}

static ds_status start_engine(run *r, const char *family, const ds_preference *preference)
{
    ds_config *config = NULL;
    char path[2 * PATH_BYTES], folder[PATH_BYTES];
    (void)snprintf(folder, sizeof folder, GOLDEN "models/%s", family);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &r->model));
    CHECK_OK(ctx, ds_adapter_fit(r->adapter, &r->model));
    CHECK_OK(ctx,
             ds_config_load_text(ctx, "test", config_text, strlen(config_text), NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    const ds_engine_params params = {.model = r->model,
                                     .config = config,
                                     .seq_length = SEQ,
                                     .weights = folder,
                                     .adapter = r->adapter,
                                     .preference = preference};
    const ds_status status = ds_initialize(ctx, &params, &r->engine);
    ds_config_destroy(&config);
    return status;
}

static void open_run(run *r, size_t which)
{
    static const char *const files[] = {GOLDEN "rows.jsonl"};
    ds_adapter *all[MOST] = {NULL};
    *r = (run){0};
    for (uint32_t k = 0; k < cases[which].n; ++k) {
        all[k] = opened(cases[which].start[k]);
    }
    CHECK_OK(ctx, ds_adapter_train_several(all, names, cases[which].n));
    assert_null(all[1]);
    r->adapter = all[0];
    CHECK_OK(ctx, ds_tokenizer_open(ctx, "bytes", &r->tokenizer));
    const ds_dataset_params data = {
        .files = files, .n_files = 1, .tokenizer = r->tokenizer, .seq_length = SEQ};
    CHECK_OK(ctx, ds_dataset_open(ctx, &data, &r->data));
    const ds_loader_params loader = {.batch = ROWS, .seq_length = SEQ};
    CHECK_OK(ctx, ds_loader_create(ctx, r->data, &loader, &r->loader));
    for (size_t i = 0; i < ROWS * SEQ; ++i) {
        r->adapters[i] = cases[which].row[i / SEQ];
    }
    CHECK_OK(ctx, start_engine(r, cases[which].model, NULL));
}

static void close_run(run *r)
{
    ds_engine_destroy(&r->engine);
    ds_adapter_destroy(&r->adapter);
    ds_loader_destroy(&r->loader);
    ds_dataset_close(&r->data);
    ds_tokenizer_close(&r->tokenizer);
    ds_model_destroy(&r->model);
}

/* n: of the inputs; the last are the adapters. */
static ds_status forward(run *r, uint32_t n)
{
    ds_loader_batch b;
    CHECK_OK(ctx, ds_loader_next(r->loader, &b));
    const ds_named_tensor tensors[] = {
        {"input_ids", b.input_ids},
        {"targets", b.targets},
        {"positions", b.positions},
        {"first", b.first},
        {"adapters", {r->adapters, {DS_DTYPE_I32, ds_shape_2d(ROWS, SEQ)}}}};
    const ds_batch batch = {tensors, n};
    return ds_engine_forward(r->engine, &batch);
}

static double step(run *r)
{
    CHECK_OK(ctx, forward(r, 5));
    const double loss = ds_engine_loss(r->engine);
    CHECK_OK(ctx, ds_engine_backward(r->engine));
    CHECK_OK(ctx, ds_engine_step(r->engine));
    return loss;
}

/* The largest difference of the matrices in two folders; other tensors of `want` are the model's.
 */
static double difference(const char *got_folder, const char *want_folder)
{
    char path[2 * PATH_BYTES];
    ds_safetensors *got = NULL, *want = NULL;
    double most = 0.0;
    size_t n = 0;
    (void)snprintf(path, sizeof path, "%s/adapter_model.safetensors", got_folder);
    CHECK_OK(ctx, ds_safetensors_open(ctx, path, &got));
    (void)snprintf(path, sizeof path, "%s/adapter_model.safetensors", want_folder);
    CHECK_OK(ctx, ds_safetensors_open(ctx, path, &want));
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        const ds_safetensor *b = ds_safetensors_at(want, i);
        if (strstr(b->name, ".lora_") == NULL) {
            continue;
        }
        const ds_safetensor *a = ds_safetensors_find(got, b->name);
        assert_non_null(a);
        assert_true(ds_shape_equal(a->meta.shape, b->meta.shape));
        for (int64_t k = 0; k < ds_shape_count(b->meta.shape); ++k) {
            const double d =
                (double)((const float *)a->data)[k] - (double)((const float *)b->data)[k];
            most = fmax(most, fabs(d));
        }
        ++n;
    }
    assert_int_equal(ds_safetensors_count(got), n);
    ds_safetensors_close(&got);
    ds_safetensors_close(&want);
    return most;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void ten_steps_as_peft(void **state)
{
    json_t *steps = json_load_file(GOLDEN "rows/steps.json", 0, NULL);
    assert_non_null(steps);
    (void)state;
    for (size_t i = 0; i < CASES; ++i) {
        char *out = scratch_make();
        char got[2 * PATH_BYTES], want[2 * PATH_BYTES];
        run r;
        open_run(&r, i);
        const json_t *losses = json_object_get(steps, cases[i].name);
        for (size_t s = 0; s < STEPS; ++s) {
            assert_true(fabs(step(&r) - json_real_value(json_array_get(losses, s))) < 1e-5);
        }
        CHECK_OK(ctx, ds_engine_save_adapter(r.engine, out));
        for (uint32_t k = 0; k < cases[i].n; ++k) {
            ds_adapter *again = NULL;
            (void)snprintf(got, sizeof got, "%s/%s", out, names[k]);
            (void)snprintf(want, sizeof want, GOLDEN "rows/%s/%s", cases[i].name, names[k]);
            assert_true(difference(got, want) < 2e-5);
            CHECK_OK(ctx, ds_adapter_open(ctx, got, &again));
            ds_adapter_destroy(&again);
        }
        close_run(&r);
        scratch_remove(out);
    }
    json_decref(steps);
}

/* An adapter that no row names has no gradient, and the others learn as if it were not there. */
static void none_of_its_rows(void **state)
{
    char *out = scratch_make();
    char got[2 * PATH_BYTES], want[2 * PATH_BYTES];
    run r;
    (void)state;
    open_run(&r, 0);
    for (size_t i = 0; i < ROWS * SEQ; ++i) {
        r.adapters[i] = r.adapters[i] == 1 ? 7 : r.adapters[i]; /* of no adapter */
    }
    (void)step(&r);
    CHECK_OK(ctx, ds_engine_save_adapter(r.engine, out));
    for (uint32_t k = 0; k < MOST; ++k) {
        (void)snprintf(got, sizeof got, "%s/%s", out, names[k]);
        (void)snprintf(want, sizeof want, GOLDEN "%s", cases[0].start[k]);
        assert_true((difference(got, want) == 0.0) == (k != 0));
    }
    close_run(&r);
    scratch_remove(out);
}

static void write_rows(const char *path, const char *word, int n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < n; ++i) {
        (void)fprintf(f, "{\"prompt\": \"%s\", \"completion\": \"%s%s\"}\n", word, word,
                      i % 2 ? word : "");
    }
    assert_int_equal(fclose(f), 0);
}

/* Each token's number is that of its data set, also where samples of several share a row. */
static void tokens_know_their_source(void **state)
{
    char *out = scratch_make();
    char path[2][2 * PATH_BYTES];
    const char *files[2] = {path[0], path[1]};
    ds_tokenizer *tokenizer = NULL;
    ds_dataset *data[2] = {NULL};
    ds_loader *loader = NULL;
    ds_loader_batch b;
    uint32_t seen[3] = {0};
    uint32_t shared = 0;
    (void)state;
    CHECK_OK(ctx, ds_tokenizer_open(ctx, "bytes", &tokenizer));
    for (uint32_t i = 0; i < 2; ++i) {
        (void)snprintf(path[i], sizeof path[i], "%s",
                       scratch_path(out, i == 0 ? "a.jsonl" : "b.jsonl"));
        write_rows(path[i], i == 0 ? "aaa" : "bb", 9);
        const ds_dataset_params params = {
            .files = &files[i], .n_files = 1, .tokenizer = tokenizer, .seq_length = 16};
        CHECK_OK(ctx, ds_dataset_open(ctx, &params, &data[i]));
    }
    const ds_loader_params params = {.batch = 2, .seq_length = 16, .shuffle = true, .seed = 5};
    CHECK_OK(ctx, ds_loader_create_mixed(ctx, (const ds_dataset *const *)data, NULL, 2, &params,
                                         &loader));
    for (int i = 0; i < 6; ++i) {
        CHECK_OK(ctx, ds_loader_next(loader, &b));
        assert_non_null(b.sources);
        const int32_t *source = b.sources->data, *id = b.input_ids.data, *at = b.positions.data;
        for (int64_t k = 0; k < ds_shape_count(b.sources->meta.shape); ++k) {
            const int32_t want = id[k] == 'a' ? 0 : id[k] == 'b' ? 1 : -1;
            if (want >= 0) { /* others are an end of text, or padding */
                assert_int_equal(source[k], want);
            }
            assert_true(source[k] >= -1 && source[k] < 2);
            seen[source[k] + 1] += 1;
            shared += k % 16 > 0 && at[k] == 0 && source[k] >= 0 && source[k] != source[k - 1];
        }
    }
    assert_true(seen[0] > 0 && seen[1] > 0 && seen[2] > 0 && shared > 0);
    ds_loader_destroy(&loader);
    CHECK_OK(ctx, ds_loader_create(ctx, data[0], &params, &loader));
    CHECK_OK(ctx, ds_loader_next(loader, &b));
    assert_null(b.sources);
    ds_loader_destroy(&loader);
    ds_dataset_close(&data[0]);
    ds_dataset_close(&data[1]);
    ds_tokenizer_close(&tokenizer);
    scratch_remove(out);
}

/* A resume goes on with the bits of the run, and wants the same adapters in the same order. */
static void resumed(void **state)
{
    char *out = scratch_make();
    char got[2 * PATH_BYTES], want[2 * PATH_BYTES];
    run r;
    (void)state;
    open_run(&r, 1);
    (void)step(&r);
    CHECK_OK(ctx, ds_engine_save_checkpoint(r.engine, scratch_path(out, "save"), "first", NULL));
    (void)step(&r);
    CHECK_OK(ctx, ds_engine_save_adapter(r.engine, scratch_path(out, "whole")));
    close_run(&r);
    open_run(&r, 1);
    CHECK_OK(ctx, ds_engine_load_checkpoint(r.engine, scratch_path(out, "save"), "first", NULL));
    (void)step(&r);
    CHECK_OK(ctx, ds_engine_save_adapter(r.engine, scratch_path(out, "parts")));
    for (uint32_t k = 0; k < 2; ++k) {
        (void)snprintf(got, sizeof got, "%s/parts/%s", out, names[k]);
        (void)snprintf(want, sizeof want, "%s/whole/%s", out, names[k]);
        assert_true(difference(got, want) == 0.0);
    }
    close_run(&r);
    r = (run){.adapter = opened("head/start")};
    CHECK_OK(ctx, start_engine(&r, "llama", NULL));
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(r.engine, scratch_path(out, "save"), "first", NULL),
                DS_ERR_ARG, "--adapters");
    close_run(&r);
    scratch_remove(out);
}

static void refused(void **state)
{
    static const struct {
        const char *folder, *words;
    } unlike[] = {{"dora/start", "\"use_dora\""},
                  {"saved/start", "\"modules_to_save\""},
                  {"experts_mixtral/start", "\"target_parameters\""},
                  {"t5_lora/start", "\"task_type\""}};
    static const char *const wrong[][2] = {
        {"a", "a"}, {"a", ""}, {"a", "b/c"}, {"..", "b"}, {"a", NULL}};
    ds_adapter *two[2];
    char path[PATH_BYTES];
    run r;
    (void)state;
    for (size_t i = 0; i < sizeof unlike / sizeof unlike[0]; ++i) {
        two[0] = opened("lora/start");
        two[1] = opened(unlike[i].folder);
        CHECK_FAILS(ctx, ds_adapter_train_several(two, names, 2), DS_ERR_UNSUPPORTED,
                    unlike[i].words);
        ds_adapter_destroy(&two[0]);
        ds_adapter_destroy(&two[1]);
    }
    two[0] = opened("lora/start");
    two[1] = opened("lora/end");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        CHECK_FAILS(ctx, ds_adapter_train_several(two, wrong[i], 2), DS_ERR_ARG, "the name \"");
    }
    CHECK_FAILS(ctx, ds_adapter_train_several(two, names, 1), DS_ERR_ARG, "2 to 64");
    (void)snprintf(path, sizeof path, GOLDEN "combined/more");
    CHECK_OK(ctx, ds_adapter_train_several(two, names, 2));
    CHECK_FAILS(ctx, ds_adapter_add_frozen(two[0], path), DS_ERR_UNSUPPORTED,
                "frozen beside several");
    const ds_adapter_merge_params merge = {.model_folder = GOLDEN "models/llama",
                                           .folder = "/nowhere/merged"};
    CHECK_FAILS(ctx, ds_adapter_merge(ctx, two[0], &merge), DS_ERR_UNSUPPORTED,
                "each of tokens of its own");
    const ds_preference dpo = ds_preference_default(DS_PREFERENCE_SIGMOID);
    r = (run){.adapter = two[0]};
    assert_true(start_engine(&r, "llama", &dpo) < 0);
    if (strstr(ds_ctx_error(ctx), "beside a preference loss") == NULL) {
        fail_msg("%s", ds_ctx_error(ctx));
    }
    close_run(&r);
    open_run(&r, 1);
    assert_true(forward(&r, 4) < 0);
    assert_non_null(strstr(ds_ctx_error(ctx), "the batch lacks the input adapters"));
    close_run(&r);
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
        cmocka_unit_test(none_of_its_rows),
        cmocka_unit_test(tokens_know_their_source),
        cmocka_unit_test(resumed),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
