/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters against PEFT (test/golden/adapter): ten steps of AdamW from a folder that PEFT wrote,
 * the folder that comes out, merging, generation; what a frozen model does not have; fields of
 * adapter_config.json that are refused by name.
 * labels: slow */
#include "common/check.h"
#include "common/scratch.h"
#include "exec/exec.h"
#include "train/engine.h"

#include <deepspeed/data.h>
#include <deepspeed/infer.h>
#include <deepspeed/safetensors.h>
#include <deepspeed/unmerge.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 10, ROWS = 4, SEQ = 48, PATH_BYTES = 1024, MOST_TOKENS = 261 };

#define GOLDEN DS_SOURCE_DIR "/test/golden/adapter/"

static const struct {
    const char *name, *model;
} cases[] = {{"lora", "llama"},
             {"rslora", "llama"},
             {"saved", "llama"},
             {"conv1d", "gpt2"},
             {"dora", "llama"},
             {"dora_conv1d", "gpt2"},
             {"table", "llama"},
             {"untied", "gpt2"},
             {"untied_both", "gpt2"},
             {"resized", "llama"},
             {"lora_table", "llama"},
             {"lora_tables", "gpt2"},
             {"experts_mixtral", "mixtral"},
             {"experts_qwen3_moe", "qwen3_moe"},
             {"experts_olmoe", "olmoe"},
             {"experts_gpt_oss", "gpt_oss"},
             {"head", "llama"},
             {"head_tied", "gpt2"},
             {"head_dora", "llama"},
             {"router_mixtral", "mixtral"},
             {"router_qwen3_moe", "qwen3_moe"},
             {"router_gpt_oss", "gpt_oss"}};
enum { CASES = sizeof cases / sizeof cases[0] };

static const char config_text[] =
    "{\"train_micro_batch_size_per_gpu\": 4, \"gradient_clipping\": 0.0, \"optimizer\": {\"type\": "
    "\"AdamW\", \"params\": {\"lr\": 1e-2, \"eps\": 1e-5, \"weight_decay\": 0.0}}}";

static ds_ctx *ctx;

/* A model, the rows, and an engine that trains an adapter (NULL: the model) of it. */
typedef struct run {
    ds_model *model;
    ds_adapter *adapter;
    ds_tokenizer *tokenizer;
    ds_dataset *data;
    ds_loader *loader;
    ds_engine *engine;
} run;

static const char *path_of(char *text, const char *a, const char *b)
{
    (void)snprintf(text, PATH_BYTES, GOLDEN "%s%s", a, b);
    return text;
}

static void open_model(const char *family, ds_model **model)
{
    char path[PATH_BYTES], name[64];
    (void)snprintf(name, sizeof name, "models/%s", family);
    CHECK_OK(ctx, ds_model_from_config(ctx, path_of(path, name, "/config.json"), model));
}

/* weights NULL: drawn. */
static ds_status start_engine(run *r, const char *weights)
{
    ds_config *config = NULL;
    CHECK_OK(ctx,
             ds_config_load_text(ctx, "test", config_text, strlen(config_text), NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    const ds_engine_params params = {.model = r->model,
                                     .config = config,
                                     .seq_length = SEQ,
                                     .seed = 3,
                                     .weights = weights,
                                     .adapter = r->adapter};
    const ds_status status = ds_initialize(ctx, &params, &r->engine);
    ds_config_destroy(&config);
    return status;
}

static void open_engine(run *r, const char *family)
{
    char folder[PATH_BYTES], name[64];
    (void)snprintf(name, sizeof name, "models/%s", family);
    CHECK_OK(ctx, start_engine(r, path_of(folder, name, "")));
}

/* adapter: taken over. */
static void open_run(run *r, const char *family, ds_adapter *adapter)
{
    static const char *const files[] = {GOLDEN "rows.jsonl"};
    *r = (run){.adapter = adapter};
    open_model(family, &r->model);
    CHECK_OK(ctx, ds_adapter_fit(adapter, &r->model));
    CHECK_OK(ctx, ds_tokenizer_open(ctx, "bytes", &r->tokenizer));
    const ds_dataset_params data = {
        .files = files, .n_files = 1, .tokenizer = r->tokenizer, .seq_length = SEQ};
    CHECK_OK(ctx, ds_dataset_open(ctx, &data, &r->data));
    const ds_loader_params loader = {.batch = ROWS, .seq_length = SEQ};
    CHECK_OK(ctx, ds_loader_create(ctx, r->data, &loader, &r->loader));
    open_engine(r, family);
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

static ds_adapter *opened(const char *name, const char *which)
{
    char path[PATH_BYTES];
    ds_adapter *adapter = NULL;
    CHECK_OK(ctx, ds_adapter_open(ctx, path_of(path, name, which), &adapter));
    return adapter;
}

static double step(run *r)
{
    ds_loader_batch b;
    CHECK_OK(ctx, ds_loader_next(r->loader, &b));
    const ds_named_tensor tensors[] = {{"input_ids", b.input_ids},
                                       {"targets", b.targets},
                                       {"positions", b.positions},
                                       {"first", b.first}};
    const ds_batch batch = {tensors, 4};
    CHECK_OK(ctx, ds_engine_forward(r->engine, &batch));
    const double loss = ds_engine_loss(r->engine);
    CHECK_OK(ctx, ds_engine_backward(r->engine));
    CHECK_OK(ctx, ds_engine_step(r->engine));
    return loss;
}

/* A module's own weight, which PEFT writes beside an adapter on an embedding. */
static bool is_base(const char *name)
{
    const char *at = strstr(name, ".base_layer.");
    return at != NULL && strncmp(at, ".base_layer.lora_", strlen(".base_layer.lora_")) != 0;
}

/* The largest difference of the tensors of `want` and those of the same names in `got`. */
static double difference(const char *got_path, const char *want_path, bool all)
{
    ds_safetensors *got = NULL;
    ds_safetensors *want = NULL;
    double most = 0.0;
    CHECK_OK(ctx, ds_safetensors_open(ctx, got_path, &got));
    CHECK_OK(ctx, ds_safetensors_open(ctx, want_path, &want));
    assert_true(ds_safetensors_count(want) > 0);
    size_t n = 0;
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        const ds_safetensor *b = ds_safetensors_at(want, i);
        if (is_base(b->name) || strstr(b->name, ".original_module.") ||
            strstr(b->name, ".modules_to_save.")) { /* what PEFT writes beside an adapter */
            continue;
        }
        ++n;
        const ds_safetensor *a = ds_safetensors_find(got, b->name);
        assert_non_null(a);
        assert_true(ds_shape_equal(a->meta.shape, b->meta.shape));
        assert_int_equal(a->meta.dtype, DS_DTYPE_F32);
        const float *x = a->data, *y = b->data;
        for (int64_t k = 0; k < ds_shape_count(b->meta.shape); ++k) {
            const double d = fabs((double)x[k] - (double)y[k]);
            most = d > most ? d : most;
        }
    }
    assert_true(!all || ds_safetensors_count(got) == n);
    ds_safetensors_close(&got);
    ds_safetensors_close(&want);
    return most;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void ten_steps_as_peft(void **state)
{
    json_t *steps = json_load_file(GOLDEN "steps.json", 0, NULL);
    assert_non_null(steps);
    (void)state;
    for (size_t i = 0; i < CASES; ++i) {
        char *out = scratch_make();
        char path[PATH_BYTES];
        run r;
        const json_t *losses = json_object_get(steps, cases[i].name);
        open_run(&r, cases[i].model, opened(cases[i].name, "/start"));
        CHECK_OK(ctx, ds_engine_save_adapter(r.engine, out)); /* as it was read */
        assert_true(difference(scratch_path(out, "adapter_model.safetensors"),
                               path_of(path, cases[i].name, "/start/adapter_model.safetensors"),
                               true) == 0.0);
        for (size_t s = 0; s < STEPS; ++s) {
            const double want = json_real_value(json_array_get(losses, s));
            assert_true(fabs(step(&r) - want) < 1e-5);
        }
        CHECK_OK(ctx, ds_engine_save_adapter(r.engine, out));
        assert_true(difference(scratch_path(out, "adapter_model.safetensors"),
                               path_of(path, cases[i].name, "/end/adapter_model.safetensors"),
                               true) < 2e-5);
        ds_adapter *again = NULL;
        CHECK_OK(ctx, ds_adapter_open(ctx, out, &again));
        ds_adapter_destroy(&again);
        close_run(&r);
        scratch_remove(out);
    }
    json_decref(steps);
}

/* One that is trained beside others that are active and frozen: as PEFT's set_adapter of a list. */
static void beside_frozen(void **state)
{
    static const struct {
        const char *name, *model, *start, *frozen[2];
    } several[] = {
        {"several/beside_lora", "llama", "lora/start", {"combined/more", "rslora/end"}},
        {"several/beside_dora", "llama", "dora/start", {"combined/more", NULL}},
        {"several/beside_table", "llama", "head/start", {"lora_table/end", "head/end"}},
        {"several/beside_conv1d", "gpt2", "conv1d/start", {"conv1d/end", NULL}},
        {"several/beside_experts", "mixtral", "experts_mixtral/start", {"experts_mixtral/end"}},
    };
    json_t *steps = json_load_file(GOLDEN "several/steps.json", 0, NULL);
    assert_non_null(steps);
    (void)state;
    for (size_t i = 0; i < sizeof several / sizeof several[0]; ++i) {
        char *out = scratch_make();
        char path[PATH_BYTES];
        run r;
        const json_t *losses = json_object_get(steps, strchr(several[i].name, '/') + 1);
        ds_adapter *adapter = opened(several[i].start, "");
        for (size_t k = 0; k < 2 && several[i].frozen[k] != NULL; ++k) {
            CHECK_OK(ctx, ds_adapter_add_frozen(adapter, path_of(path, several[i].frozen[k], "")));
        }
        open_run(&r, several[i].model, adapter);
        for (size_t s = 0; s < STEPS; ++s) {
            const double want = json_real_value(json_array_get(losses, s));
            assert_true(fabs(step(&r) - want) < 1e-5);
        }
        CHECK_OK(ctx, ds_engine_save_adapter(r.engine, out));
        assert_true(difference(scratch_path(out, "adapter_model.safetensors"),
                               path_of(path, several[i].name, "/end/adapter_model.safetensors"),
                               true) < 2e-5);
        close_run(&r);
        scratch_remove(out);
    }
    json_decref(steps);
}

/* What modules_to_save means is trained beside frozen adapters, too. */
static void saved_beside_frozen(void **state)
{
    char path[PATH_BYTES];
    static float before[256 * 16], after[256 * 16];
    run r;
    ds_adapter *adapter = opened("saved/start", "");
    (void)state;
    CHECK_OK(ctx, ds_adapter_add_frozen(adapter, path_of(path, "combined/more", "")));
    open_run(&r, "llama", adapter);
    CHECK_OK(ctx, ds_engine_get(r.engine, DS_CELL_PARAM, "lm_head.weight", before, 256 * 16));
    (void)step(&r);
    CHECK_OK(ctx, ds_engine_get(r.engine, DS_CELL_PARAM, "lm_head.weight", after, 256 * 16));
    assert_memory_not_equal(before, after, sizeof before);
    close_run(&r);
}

/* A resume wants the same ones; what is no part of this is refused. */
static void frozen_refused(void **state)
{
    static const struct {
        const char *folder, *words;
    } unlike[] = {{"dora/end", "\"use_dora\": an adapter that is frozen beside another"},
                  {"saved/end", "\"modules_to_save\": an adapter that is frozen beside another"}};
    char *out = scratch_make();
    char path[PATH_BYTES], model[PATH_BYTES];
    run r;
    ds_adapter *adapter = opened("lora/start", "");
    (void)state;
    for (size_t i = 0; i < 2; ++i) {
        CHECK_FAILS(ctx, ds_adapter_add_frozen(adapter, path_of(path, unlike[i].folder, "")),
                    DS_ERR_UNSUPPORTED, unlike[i].words);
    }
    CHECK_OK(ctx, ds_adapter_add_frozen(adapter, path_of(path, "combined/more", "")));
    const ds_adapter_merge_params merge = {.model_folder = path_of(model, "models/llama", ""),
                                           .folder = scratch_path(out, "merged")};
    CHECK_FAILS(ctx, ds_adapter_merge(ctx, adapter, &merge), DS_ERR_UNSUPPORTED, "combine them");
    open_run(&r, "llama", adapter);
    (void)step(&r);
    CHECK_OK(ctx, ds_engine_save_checkpoint(r.engine, scratch_path(out, "save"), "first", NULL));
    CHECK_OK(ctx, ds_engine_load_checkpoint(r.engine, scratch_path(out, "save"), "first", NULL));
    close_run(&r);
    open_run(&r, "llama", opened("lora/start", ""));
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(r.engine, scratch_path(out, "save"), "first", NULL),
                DS_ERR_ARG, "--frozen_adapters");
    close_run(&r);
    scratch_remove(out);
}

/* The model's tensors come back byte for byte, and no others. */
static void unmerges(const char *model, const char *merged, const char *again)
{
    ds_safetensors *want = NULL;
    ds_safetensors *got = NULL;
    CHECK_FAILS(ctx, ds_unmerge(ctx, merged, again), DS_ERR_NOT_FOUND, "ds_unmerge.safetensors");
    CHECK_OK(ctx, ds_unmerge_keep(ctx, model, merged));
    CHECK_OK(ctx, ds_unmerge(ctx, merged, again));
    CHECK_FAILS(ctx, ds_unmerge(ctx, merged, merged), DS_ERR_ARG, "which is read");
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, model, &want));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, again, &got));
    assert_int_equal(ds_safetensors_count(got), ds_safetensors_count(want));
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        const ds_safetensor *a = ds_safetensors_at(want, i);
        const ds_safetensor *b = ds_safetensors_find(got, a->name);
        assert_non_null(b);
        assert_true(a->meta.dtype == b->meta.dtype && ds_shape_equal(a->meta.shape, b->meta.shape));
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    ds_safetensors_close(&got);
    ds_safetensors_close(&want);
    ds_model *read = NULL;
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/config.json", again);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &read));
    ds_model_destroy(&read);
    char kept[PATH_BYTES]; /* beside other weights than those that it is of */
    (void)snprintf(kept, sizeof kept, "%s/ds_unmerge.safetensors", merged);
    (void)snprintf(path, sizeof path, "%s/ds_unmerge.safetensors", again);
    assert_int_equal(rename(kept, path), 0);
    CHECK_FAILS(ctx, ds_unmerge(ctx, again, merged), DS_ERR_FORMAT, "changed since");
}

static void all_of(const char *file, ds_dtype dtype)
{
    ds_safetensors *st = NULL;
    CHECK_OK(ctx, ds_safetensors_open(ctx, file, &st));
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        assert_int_equal(ds_safetensors_at(st, i)->meta.dtype, dtype);
    }
    ds_safetensors_close(&st);
}

static void merged_as_peft(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; ++i) {
        char *out = scratch_make();
        char model[PATH_BYTES], name[64], want[PATH_BYTES];
        ds_adapter *adapter = opened(cases[i].name, "/end");
        (void)snprintf(name, sizeof name, "models/%s", cases[i].model);
        ds_adapter_merge_params params = {.model_folder = path_of(model, name, ""),
                                          .folder = scratch_path(out, "merged")};
        CHECK_OK(ctx, ds_adapter_merge(ctx, adapter, &params));
        assert_true(difference(scratch_path(out, "merged/model.safetensors"),
                               path_of(want, cases[i].name, "/merged.safetensors"), false) < 1e-6);
        unmerges(params.model_folder, params.folder, scratch_path(out, "again"));
        params.folder = params.model_folder; /* what is read is not written */
        CHECK_FAILS(ctx, ds_adapter_merge(ctx, adapter, &params), DS_ERR_ARG, "which is read");
        params.folder = scratch_path(out, "half");
        params.dtype = DS_DTYPE_BF16;
        CHECK_OK(ctx, ds_adapter_merge(ctx, adapter, &params));
        all_of(scratch_path(out, "half/model.safetensors"), DS_DTYPE_BF16);
        ds_adapter_destroy(&adapter);
        scratch_remove(out);
    }
}

static void generates(const ds_model *model, const char *weights, const ds_adapter *adapter,
                      ds_dtype dtype, float logits[MOST_TOKENS])
{
    static const uint32_t ids[] = {'o', 'n', 'e', ' ', 't', 'w', 'o', ' '};
    const ds_generator_params params = {
        .model = model, .weights = weights, .max_length = SEQ, .adapter = adapter, .dtype = dtype};
    ds_generator *g = NULL;
    int64_t n = 0;
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &g));
    CHECK_OK(ctx, ds_generator_prompt(g, ids, sizeof ids / sizeof ids[0]));
    const float *made = ds_generator_logits(g, &n);
    assert_int_equal(n, ds_model_get_info(model)->vocab_size);
    memcpy(logits, made, (size_t)n * sizeof *logits);
    ds_generator_destroy(&g);
}

/* Beside the model, merged into it, and by the engine that has it: the same text. In bf16, whose
 * weights are converted where those of fp32 lie in the files' maps, nearly. */
static void generation_has_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; ++i) {
        char *out = scratch_make();
        char model[PATH_BYTES], name[64];
        float beside[MOST_TOKENS] = {0}, merged[MOST_TOKENS] = {0}, plain[MOST_TOKENS] = {0};
        float half[MOST_TOKENS] = {0};
        run r;
        open_run(&r, cases[i].model, opened(cases[i].name, "/end"));
        (void)snprintf(name, sizeof name, "models/%s", cases[i].model);
        const ds_adapter_merge_params params = {.model_folder = path_of(model, name, ""),
                                                .folder = scratch_path(out, "merged")};
        CHECK_OK(ctx, ds_adapter_merge(ctx, r.adapter, &params));
        generates(r.model, model, r.adapter, DS_DTYPE_F32, beside);
        ds_model *own = NULL;
        CHECK_OK(ctx, ds_model_from_config(ctx, scratch_path(out, "merged/config.json"), &own));
        generates(own, params.folder, NULL, DS_DTYPE_F32, merged);
        ds_model_destroy(&own);
        generates(r.model, model, NULL, DS_DTYPE_F32, plain);
        generates(r.model, model, r.adapter, DS_DTYPE_BF16, half);
        assert_true(check_relative_difference(beside, merged, MOST_TOKENS) < 1e-5);
        assert_true(check_relative_difference(beside, plain, MOST_TOKENS) > 1e-3);
        assert_true(check_relative_difference(half, beside, MOST_TOKENS) < 0.02);
        const ds_generator_params live = {.engine = r.engine, .max_length = SEQ};
        ds_generator *g = NULL;
        int64_t n = 0;
        CHECK_OK(ctx, ds_generator_create(ctx, &live, &g));
        CHECK_OK(ctx, ds_generator_prompt(
                          g, (const uint32_t[]){'o', 'n', 'e', ' ', 't', 'w', 'o', ' '}, 8));
        const float *logits = ds_generator_logits(g, &n);
        assert_memory_equal(logits, beside, (size_t)n * sizeof *logits);
        ds_generator_destroy(&g);
        close_run(&r);
        scratch_remove(out);
    }
}

/* all-linear leaves out an output head of any name, in training and in generation. */
static void generation_leaves_the_head_out(void **state)
{
    const ds_adapter_params params = {.rank = 2};
    run r = {0};
    (void)state;
    CHECK_OK(ctx, ds_adapter_create(ctx, &params, &r.adapter));
    CHECK_OK(ctx,
             ds_model_from_config(
                 ctx, DS_SOURCE_DIR "/test/golden/model_config/gpt_neox/config.json", &r.model));
    CHECK_OK(ctx, ds_adapter_fit(r.adapter, &r.model));
    CHECK_OK(ctx, start_engine(&r, NULL));
    const ds_generator_params live = {.engine = r.engine, .max_length = SEQ};
    ds_generator *g = NULL;
    CHECK_OK(ctx, ds_generator_create(ctx, &live, &g));
    CHECK_OK(ctx, ds_generator_prompt(g, (const uint32_t[]){1, 2}, 2));
    ds_generator_destroy(&g);
    close_run(&r);
}

/* PEFT adapts one of the two: a tied model would have both. */
static void a_tied_table_is_refused(void **state)
{
    static const char *const targets[] = {"wte"};
    const ds_adapter_params params = {.rank = 2, .targets = targets, .n_targets = 1};
    char folder[PATH_BYTES];
    run r = {0};
    (void)state;
    CHECK_OK(ctx, ds_adapter_create(ctx, &params, &r.adapter));
    open_model("gpt2", &r.model);
    CHECK_FAILS(ctx, start_engine(&r, path_of(folder, "models/gpt2", "")), DS_ERR_UNSUPPORTED,
                "make the model untied (ds_adapter_fit)");
    close_run(&r);
}

/* The frozen model has parameters and nothing else; A begins within its bounds, B at 0. */
static void what_a_fresh_one_has(void **state)
{
    static const char *const targets[] = {"q_proj", "mlp.up_proj"};
    const ds_adapter_params params = {.rank = 2, .targets = targets, .n_targets = 2};
    static const ds_cell_kind kinds[] = {DS_CELL_GRAD, DS_CELL_EXP_AVG, DS_CELL_EXP_AVG_SQ,
                                         DS_CELL_MASTER};
    ds_adapter *adapter = NULL;
    uint32_t n = 0;
    run r, whole;
    (void)state;
    CHECK_OK(ctx, ds_adapter_create(ctx, &params, &adapter));
    open_run(&r, "llama", adapter);
    open_run(&whole, "llama", NULL);
    for (ds_cell c = 0; c < ds_cells_count(r.engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(r.engine->cells, c);
        const bool own = strstr(cell->name, ".lora_") != NULL;
        for (size_t k = 0; cell->kind == DS_CELL_PARAM && k < 4; ++k) {
            const bool there = ds_cells_find(r.engine->cells, kinds[k], cell->name) != DS_NONE;
            assert_true(!there || own);
            assert_true(there || !own || kinds[k] == DS_CELL_MASTER);
        }
        if (cell->kind == DS_CELL_PARAM && own) {
            const float *data = dsi_exec_host_view(r.engine->exec, c);
            const bool is_a = strstr(cell->name, "lora_A") != NULL;
            float most = 0.0f;
            for (int64_t i = 0; i < ds_shape_count(cell->meta.shape); ++i) {
                most = fabsf(data[i]) > most ? fabsf(data[i]) : most;
            }
            assert_true(is_a ? most > 0.15f && most <= 0.25f : most == 0.0f); /* 1/√16 */
            ++n;
        }
    }
    assert_int_equal(n, 8);
    assert_true(ds_engine_planned_bytes(r.engine) < ds_engine_planned_bytes(whole.engine));
    assert_true(step(&r) == step(&whole)); /* B is 0 */
    CHECK_FAILS(ctx, ds_engine_save_16bit_model(r.engine, "/nowhere", NULL), DS_ERR_STATE,
                "ds_engine_save_adapter");
    CHECK_FAILS(ctx, ds_engine_save_adapter(whole.engine, "/nowhere"), DS_ERR_STATE,
                "trains no adapter");
    close_run(&r);
    close_run(&whole);
}

/* PiSSA, which changes the model's weights: ten steps, and what is saved merged into the model as
 * it is stored. A run that goes on begins alike. */
static void pissa_as_peft(void **state)
{
    static const struct {
        const char *name, *model, *targets[2];
        int64_t rank;
    } begun[] = {{"pissa", "llama", {"q_proj", "up_proj"}, 4},
                 {"pissa_conv1d", "gpt2", {"c_attn", "c_proj"}, 3}};
    json_t *steps = json_load_file(GOLDEN "steps.json", 0, NULL);
    (void)state;
    for (size_t i = 0; i < 2; ++i) {
        const ds_adapter_params params = {.method = DS_ADAPTER_PISSA,
                                          .rank = begun[i].rank,
                                          .alpha = 6.0,
                                          .targets = begun[i].targets,
                                          .n_targets = 2};
        char *out = scratch_make();
        char tag[] = "global_step4";
        char model[PATH_BYTES], name[64], want[PATH_BYTES];
        ds_adapter *adapter = NULL;
        run r, s;
        CHECK_OK(ctx, ds_adapter_create(ctx, &params, &adapter));
        open_run(&r, begun[i].model, adapter);
        CHECK_OK(ctx, ds_adapter_create(ctx, &params, &adapter));
        CHECK_FAILS(ctx, ds_adapter_pack_base(adapter, DS_PACKING_NF4), DS_ERR_UNSUPPORTED,
                    "PiSSA");
        open_run(&s, begun[i].model, adapter);
        for (size_t k = 0; k < STEPS; ++k) {
            const double loss =
                json_number_value(json_array_get(json_object_get(steps, begun[i].name), k));
            if (k == 4) {
                CHECK_OK(ctx, ds_engine_save_checkpoint(r.engine, out, tag, NULL));
                CHECK_OK(ctx, ds_engine_load_checkpoint(s.engine, out, tag, NULL));
            }
            const double got = step(&r);
            assert_true(k < 4 || step(&s) == got);
            if (fabs(got - loss) >= 1e-5) {
                fail_msg("%s, step %zu: %.9g, expected %.9g", begun[i].name, k, got, loss);
            }
        }
        CHECK_OK(ctx, ds_engine_save_adapter(r.engine, scratch_path(out, "tuned")));
        CHECK_OK(ctx, ds_adapter_open(ctx, scratch_path(out, "tuned"), &adapter));
        (void)snprintf(name, sizeof name, "models/%s", begun[i].model);
        const ds_adapter_merge_params how = {.model_folder = path_of(model, name, ""),
                                             .folder = scratch_path(out, "merged")};
        CHECK_OK(ctx, ds_adapter_merge(ctx, adapter, &how));
        assert_true(difference(scratch_path(out, "merged/model.safetensors"),
                               path_of(want, begun[i].name, "/merged.safetensors"), false) < 2e-5);
        ds_adapter_destroy(&adapter);
        close_run(&r);
        close_run(&s);
        scratch_remove(out);
    }
    json_decref(steps);
}

/* DoRA begins as the model is, also where that is packed, and nothing dropped is as no dropout. */
static void a_fresh_dora(void **state)
{
    static const char *const targets[] = {"q_proj", "down_proj", "c_attn"};
    static const char *const families[] = {"llama", "gpt2"};
    (void)state;
    for (size_t f = 0; f < 2; ++f) {
        run plain, dora[2], packed[2];
        open_run(&plain, families[f], NULL);
        for (size_t i = 0; i < 2; ++i) {
            const ds_adapter_params params = {.method = DS_ADAPTER_DORA,
                                              .rank = 2,
                                              .dropout = i == 1 ? 1e-9 : 0.0,
                                              .targets = &targets[f == 1 ? 2 : 0],
                                              .n_targets = f == 1 ? 1 : 2};
            const ds_adapter_params none = {
                .rank = 2, .targets = params.targets, .n_targets = params.n_targets};
            ds_adapter *a = NULL;
            CHECK_OK(ctx, ds_adapter_create(ctx, &params, &a));
            open_run(&dora[i], families[f], a);
            CHECK_OK(ctx, ds_adapter_create(ctx, i == 0 ? &params : &none, &a));
            CHECK_OK(ctx, ds_adapter_pack_base(a, DS_PACKING_NF4));
            open_run(&packed[i], families[f], a);
        }
        assert_true(fabs(step(&plain) - step(&dora[0])) < 1e-5);
        (void)step(&dora[1]);
        assert_true(fabs(step(&packed[0]) - step(&packed[1])) < 1e-5);
        for (int i = 0; i < 3; ++i) {
            assert_true(fabs(step(&dora[0]) - step(&dora[1])) < 1e-5);
        }
        close_run(&plain);
        for (size_t i = 0; i < 2; ++i) {
            close_run(&dora[i]);
            close_run(&packed[i]);
        }
    }
}

/* Three steps, saved, two more: as five. The checkpoint has no frozen weight; another model,
 * another adapter or none are refused. */
static void resumed(void **state)
{
    char *out = scratch_make();
    char tag[] = "global_step3";
    float a[64], b[64];
    static const char name[] = "model.layers.1.mlp.down_proj.lora_B.weight";
    ds_checkpoint *c = NULL;
    run r, s;
    (void)state;
    open_run(&r, "llama", opened("lora", "/start"));
    open_run(&s, "llama", opened("lora", "/start"));
    for (int i = 0; i < 3; ++i) {
        (void)step(&r);
    }
    CHECK_OK(ctx, ds_engine_save_checkpoint(r.engine, out, tag, NULL));
    CHECK_OK(ctx, ds_engine_load_checkpoint(s.engine, out, tag, NULL));
    for (int i = 0; i < 2; ++i) {
        (void)step(&r);
        (void)step(&s);
    }
    CHECK_OK(ctx, ds_engine_get(r.engine, DS_CELL_PARAM, name, a, 64));
    CHECK_OK(ctx, ds_engine_get(s.engine, DS_CELL_PARAM, name, b, 64));
    assert_memory_equal(a, b, sizeof a);
    CHECK_OK(ctx, ds_checkpoint_open(ctx, out, tag, &c));
    assert_null(ds_checkpoint_find(c, "param", "model.embed_tokens.weight"));
    assert_non_null(ds_checkpoint_find(c, "param", name));
    const ds_checkpoint_export_params export = {.folder = scratch_path(out, "model"),
                                                .model_folder = true};
    CHECK_FAILS(ctx, ds_checkpoint_export(c, &export, NULL), DS_ERR_UNSUPPORTED, "adapter");
    ds_checkpoint_close(&c);
    float table[256 * 16];
    CHECK_OK(ctx, ds_engine_get(s.engine, DS_CELL_PARAM, "model.norm.weight", table, 16));
    table[3] += 1.0f;
    CHECK_OK(ctx, ds_engine_set(s.engine, DS_CELL_PARAM, "model.norm.weight", table, 16));
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(s.engine, out, tag, NULL), DS_ERR_ARG,
                "another model");
    close_run(&s);
    open_run(&s, "llama", opened("rslora", "/start"));
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(s.engine, out, tag, NULL), DS_ERR_ARG,
                "was saved with the adapter");
    close_run(&s);
    open_run(&s, "llama", NULL);
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(s.engine, out, tag, NULL), DS_ERR_ARG,
                "holds an adapter alone");
    close_run(&s);
    close_run(&r);
    scratch_remove(out);
}

/* A field of adapter_config.json, as JSON, and words of the error. */
static const struct {
    const char *key, *value, *words;
} refused[] = {
    {"use_dora", "true", "lora_magnitude_vector is missing"},
    {"use_dora", "2", "\"use_dora\""},
    {"lora_bias", "true", "\"lora_bias\""},
    {"bias", "\"all\"", "\"bias\""},
    {"target_parameters", "[\"self_attn.q_proj.weight\"]", "leave it out of one"},
    {"target_parameters", "[\"input_layernorm.weight\"]", "no matrix of experts"},
    {"target_parameters", "[\"embed_tokens.weight\"]", "an embedding"},
    {"target_parameters", "\"experts.gate_up_proj\"", "a list of names"},
    {"layer_replication", "[[0, 2]]", "\"layer_replication\""},
    {"trainable_token_indices", "[1]", "\"trainable_token_indices\""},
    {"megatron_config", "{\"a\": 1}", "\"megatron_config\""},
    {"alora_invocation_tokens", "[1]", "\"alora_invocation_tokens\""},
    {"alora_invocation_tokens", "[]", "\"alora_invocation_tokens\""},
    {"kasa_config", "{}", "\"kasa_config\""},
    {"velora_config", "{}", "\"velora_config\""},
    {"arrow_config", "{}", "\"arrow_config\""},
    {"use_bdlora", "{}", "\"use_bdlora\""},
    {"monteclora_config", "{}", "\"monteclora_config\""},
    {"of_a_newer_version", "1", "\"of_a_newer_version\""},
    {"init_lora_weights", "\"pissa\"", "\"init_lora_weights\""},
    {"peft_type", "\"IA3\"", "\"peft_type\""},
    {"task_type", "\"SEQ_CLS\"", "are of encoders"},
    {"task_type", "\"SEQ_2_SEQ_LM\"", "its task_type is SEQ_2_SEQ_LM, and llama learns no targets"},
    {"task_type", "\"QUESTION_ANS\"", "\"task_type\""},
    {"r", "0", "\"r\""},
    {"r", "\"8\"", "\"r\""},
    {"lora_dropout", "1.0", "\"lora_dropout\""},
    {"target_modules", "null", "\"target_modules\""},
    {"target_modules", "[]", "\"target_modules\""},
    {"target_modules", "\"(\"", "target_modules"},
    {"target_modules", "[\"q_proj\", \"norm\"]", "model.norm"},
    {"target_modules", "[\"q_proj\", \"mlp\"]", "mlp"},
    {"target_modules", "[\"q_proj\", \"lm_head\"]", "lm_head"},
    {"target_modules", "[\"q_proj\", \"embed_tokens\"]", "embed_tokens"},
    {"target_modules", "[\"no_such\"]", "target_modules"},
    {"target_modules", "[\"q_proj\", \"v_proj\"]", "down_proj"}, /* A tensor is left over */
    {"target_modules", "[\"q_proj\", \"v_proj\", \"down_proj\", \"o_proj\"]",
     "o_proj"},           /* lacks one */
    {"r", "3", "lora_A"}, /* another shape */
    {"modules_to_save", "[\"no_such\"]", "no_such"},
    {"layers_pattern", "\"layers\"", "layers_pattern"},
    {"rank_pattern", "{\"q_proj\": 0}", "rank_pattern"},
};

static void refused_by_name(void **state)
{
    char *out = scratch_make();
    char model[PATH_BYTES], path[PATH_BYTES];
    size_t n = 0;
    (void)state;
    char *weights = scratch_read(path_of(path, "lora/start/", "adapter_model.safetensors"), &n);
    scratch_write(scratch_path(out, "adapter_model.safetensors"), weights, n);
    free(weights);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
        json_t *config =
            json_load_file(path_of(path, "lora/start/", "adapter_config.json"), 0, NULL);
        json_t *value = json_loads(refused[i].value, JSON_DECODE_ANY, NULL);
        assert_non_null(value);
        (void)json_object_set_new(config, refused[i].key, value);
        (void)json_dump_file(config, scratch_path(out, "adapter_config.json"), 0);
        json_decref(config);
        ds_adapter *adapter = NULL;
        ds_status status = ds_adapter_open(ctx, out, &adapter);
        const ds_adapter_merge_params params = {.model_folder = path_of(model, "models/llama", ""),
                                                .folder = scratch_path(out, "merged")};
        status = status < 0 ? status : ds_adapter_merge(ctx, adapter, &params);
        if (status >= 0 || strstr(ds_ctx_error(ctx), refused[i].words) == NULL) {
            fail_msg("%s: %s: %s", refused[i].key, refused[i].value,
                     status >= 0 ? "accepted" : ds_ctx_error(ctx));
        }
        ds_adapter_destroy(&adapter);
    }
    scratch_remove(out);
}

/* Of a model with experts: attention's layers, the experts' matrices and the routers', by PEFT's
 * names alone. */
static void beside_experts(void **state)
{
    static const struct {
        const char *targets[2];
        ds_status want;
        const char *words;
    } cases_of[] = {{{"q_proj", "v_proj"}, DS_OK, ""},
                    {{"q_proj", "mlp.experts.gate_up_proj"}, DS_OK, ""},
                    {{"experts.gate_up_proj", "experts.down_proj"}, DS_OK, ""},
                    {{"q_proj", "mlp.gate.weight"}, DS_OK, ""},
                    {{"q_proj", "gate"}, DS_ERR_UNSUPPORTED, "name model.layers.0.mlp.gate.weight"},
                    {{NULL}, DS_ERR_UNSUPPORTED, "their router"},
                    {{"q_proj", "w1"}, DS_ERR_UNSUPPORTED, "experts.gate_up_proj"},
                    {{"q_proj", "experts.up_proj"}, DS_ERR_NOT_FOUND, "experts.up_proj"}};
    ds_model *model = NULL;
    ds_config *config = NULL;
    (void)state;
    CHECK_OK(ctx, ds_model_from_config(ctx, DS_SOURCE_DIR "/test/golden/parity/mixtral/config.json",
                                       &model));
    CHECK_OK(ctx,
             ds_config_load_text(ctx, "test", config_text, strlen(config_text), NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    for (size_t i = 0; i < sizeof cases_of / sizeof cases_of[0]; ++i) {
        const ds_adapter_params how = {.rank = 2,
                                       .targets = cases_of[i].targets,
                                       .n_targets = cases_of[i].targets[0] != NULL ? 2 : 0};
        ds_adapter *adapter = NULL;
        ds_engine *engine = NULL;
        CHECK_OK(ctx, ds_adapter_create(ctx, &how, &adapter));
        const ds_engine_params params = {
            .model = model, .config = config, .seq_length = SEQ, .adapter = adapter};
        if (cases_of[i].want < 0) {
            CHECK_FAILS(ctx, ds_initialize(ctx, &params, &engine), cases_of[i].want,
                        cases_of[i].words);
        } else {
            CHECK_OK(ctx, ds_initialize(ctx, &params, &engine));
        }
        ds_engine_destroy(&engine);
        ds_adapter_destroy(&adapter);
    }
    ds_config_destroy(&config);
    ds_model_destroy(&model);
}

/* Several as one, as PEFT's add_weighted_adapter makes it: the same tensors; and what does not go
 * together. */
static void combined_as_peft(void **state)
{
    static const struct {
        const char *name;
        ds_adapter_combination way;
        const char *adapters[3];
        double weights[3];
        uint32_t n;
    } made[] = {
        {"linear", DS_ADAPTER_LINEAR, {"lora/end", "combined/more"}, {0.75, -1.5}, 2},
        {"cat",
         DS_ADAPTER_CAT,
         {"lora/end", "combined/rslora_list", "combined/more"},
         {0.75, 0.5, -1.5},
         3},
        {"tables", DS_ADAPTER_CAT, {"lora_table/start", "lora/start"}, {1.0, 2.0}, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof made / sizeof made[0]; ++i) {
        char *out = scratch_make();
        char want[PATH_BYTES], model[PATH_BYTES];
        ds_adapter *adapters[3] = {NULL};
        for (uint32_t k = 0; k < made[i].n; ++k) {
            adapters[k] = opened(made[i].adapters[k], "");
        }
        ds_adapter_combine_params p = {.adapters = (const ds_adapter *const *)adapters,
                                       .n_adapters = made[i].n,
                                       .weights = made[i].weights,
                                       .combination = made[i].way,
                                       .folder = scratch_path(out, "made")};
        CHECK_OK(ctx, ds_adapter_combine(ctx, &p));
        (void)snprintf(want, sizeof want, GOLDEN "combined/%s/adapter_model.safetensors",
                       made[i].name);
        assert_true(difference(scratch_path(out, "made/adapter_model.safetensors"), want, true) <
                    1e-6);
        ds_adapter *again = NULL; /* it is one that fits the model */
        CHECK_OK(ctx, ds_adapter_open(ctx, p.folder, &again));
        const ds_adapter_merge_params merge = {.model_folder = path_of(model, "models/llama", ""),
                                               .folder = scratch_path(out, "merged")};
        CHECK_OK(ctx, ds_adapter_merge(ctx, again, &merge));
        ds_adapter_destroy(&again);
        p.folder = path_of(want, made[i].adapters[0], "");
        CHECK_FAILS(ctx, ds_adapter_combine(ctx, &p), DS_ERR_ARG, "that is read");
        for (uint32_t k = 0; k < made[i].n; ++k) {
            ds_adapter_destroy(&adapters[k]);
        }
        scratch_remove(out);
    }
    static const struct {
        const char *other, *words;
    } unlike[] = {{"rslora/end", "of rank 4"},
                  {"dora/end", "use_dora"},
                  {"saved/end", "modules_to_save"},
                  {"experts_mixtral/end", "target_parameters"},
                  {"combined/rslora_list", "take cat"}};
    char *out = scratch_make();
    for (size_t i = 0; i < sizeof unlike / sizeof unlike[0]; ++i) {
        ds_adapter *pair[2] = {opened("lora/end", ""), opened(unlike[i].other, "")};
        const ds_adapter_combine_params p = {.adapters = (const ds_adapter *const *)pair,
                                             .n_adapters = 2,
                                             .folder = scratch_path(out, "made")};
        assert_true(ds_adapter_combine(ctx, &p) < 0);
        assert_non_null(strstr(ds_ctx_error(ctx), unlike[i].words));
        ds_adapter_destroy(&pair[0]);
        ds_adapter_destroy(&pair[1]);
    }
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
        cmocka_unit_test(ten_steps_as_peft),       cmocka_unit_test(beside_frozen),
        cmocka_unit_test(saved_beside_frozen),     cmocka_unit_test(frozen_refused),
        cmocka_unit_test(merged_as_peft),          cmocka_unit_test(generation_has_it),
        cmocka_unit_test(what_a_fresh_one_has),    cmocka_unit_test(a_fresh_dora),
        cmocka_unit_test(pissa_as_peft),           cmocka_unit_test(resumed),
        cmocka_unit_test(refused_by_name),         cmocka_unit_test(generation_leaves_the_head_out),
        cmocka_unit_test(a_tied_table_is_refused), cmocka_unit_test(beside_experts),
        cmocka_unit_test(combined_as_peft),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
