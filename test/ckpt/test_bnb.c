/* SPDX-License-Identifier: Apache-2.0 */
/* Folders that transformers saved with bitsandbytes against the same dequantized by bitsandbytes
 * (test/golden/bnb/make.py): every bit of every weight, tokens as transformers', training's first
 * weights, a file of GGUF; what is refused. */
#include "ckpt/model_weights.h"
#include "common/check.h"
#include "common/golden.h"
#include "common/scratch.h"

#include <deepspeed/deepspeed.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 1024, MOST_IDS = 32 };

static const char *const folders[] = {"nf4", "nf4_nested", "fp4", "int8"};
enum { N_FOLDERS = sizeof folders / sizeof folders[0] };

static const char *golden(const char *name, const char *file, char path[PATH_BYTES])
{
    golden_path(path, PATH_BYTES, "bnb/%s%s", name, file);
    return path;
}

/* ---- every weight ---- */

static void every_bit(void **state)
{
    ds_ctx *ctx = *state;
    for (size_t k = 0; k < N_FOLDERS; ++k) {
        ds_safetensors *stored = NULL;
        ds_safetensors *real = NULL;
        ds_model *model = NULL;
        ds_cells *cells = NULL;
        dsi_weights *weights = NULL;
        char path[PATH_BYTES];
        CHECK_OK(ctx, ds_model_from_config(ctx, golden(folders[k], "/config.json", path), &model));
        CHECK_OK(ctx, ds_safetensors_open_folder(ctx, golden(folders[k], "", path), &stored));
        CHECK_OK(ctx, ds_safetensors_open_folder(ctx, golden(folders[k], "/plain", path), &real));
        CHECK_OK(ctx, ds_cells_create(ctx, 64, &cells));
        for (size_t i = 0; i < ds_safetensors_count(real); ++i) {
            const ds_safetensor *t = ds_safetensors_at(real, i);
            const ds_cell_info cell = {
                .name = t->name, .kind = DS_CELL_PARAM, .meta = t->meta, .of = DS_NONE};
            ds_cell c = 0;
            CHECK_OK(ctx, ds_cells_add(cells, &cell, &c));
        }
        CHECK_OK(ctx, dsi_weights_match(ctx, model, cells, stored, false, &weights));
        assert_true(dsi_weights_are_unpacked(weights));
        for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
            const ds_safetensor *t = ds_safetensors_find(real, ds_cells_get(cells, c)->name);
            const dsi_weight weight = dsi_weights_of(weights, c);
            void *got = malloc(t->bytes);
            assert_non_null(got);
            assert_int_equal(weight.parts[0]->meta.dtype, t->meta.dtype);
            CHECK_OK(ctx, dsi_weight_read(ctx, &weight, 0, ds_shape_count(t->meta.shape),
                                          t->meta.dtype, got));
            assert_memory_equal(got, t->data, t->bytes);
            free(got);
        }
        dsi_weights_destroy(&weights);
        ds_cells_destroy(&cells);
        ds_safetensors_close(&stored);
        ds_safetensors_close(&real);
        ds_model_destroy(&model);
    }
}

/* ---- whole models ---- */

static ds_status open_generator(ds_ctx *ctx, const char *folder, ds_dtype dtype, ds_model **model,
                                ds_generator **generator)
{
    char path[PATH_BYTES + 16];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    DS_TRY(ds_model_from_config(ctx, path, model));
    const ds_generator_params params = {.model = *model, .weights = folder, .dtype = dtype};
    return ds_generator_create(ctx, &params, generator);
}

static size_t read_ids(const json_t *list, uint32_t ids[MOST_IDS])
{
    const size_t n = json_array_size(list);
    assert_in_range(n, 1, MOST_IDS);
    for (size_t i = 0; i < n; ++i) {
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    }
    return n;
}

static void greedy_as_transformers(void **state)
{
    ds_ctx *ctx = *state;
    for (size_t k = 0; k < N_FOLDERS; ++k) {
        char path[PATH_BYTES];
        uint32_t prompt[MOST_IDS], want[MOST_IDS];
        json_error_t error;
        json_t *root = json_load_file(golden(folders[k], "/greedy.json", path), 0, &error);
        const size_t n_prompt = read_ids(json_object_get(root, "prompt"), prompt);
        const size_t n = read_ids(json_object_get(root, "greedy"), want);
        ds_model *model = NULL;
        ds_generator *generator = NULL;
        CHECK_OK(ctx, open_generator(ctx, golden(folders[k], "", path), DS_DTYPE_F32, &model,
                                     &generator));
        CHECK_OK(ctx, ds_generator_prompt(generator, prompt, n_prompt));
        for (size_t i = 0; i < n; ++i) {
            const ds_sampling sampling = {0};
            uint32_t id = 0;
            CHECK_OK(ctx, ds_generator_next(generator, &sampling, &id));
            assert_int_equal(id, want[i]);
        }
        ds_generator_destroy(&generator);
        ds_model_destroy(&model);
        json_decref(root);
    }
}

/* What training begins with. */
static float *trained_from(ds_ctx *ctx, const char *folder, size_t n)
{
    static const char text[] = "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"AdamW\", "
                               "\"params\": {\"lr\": 1e-3}}}";
    char path[PATH_BYTES + 16];
    ds_model *model = NULL;
    ds_config *config = NULL;
    ds_engine *engine = NULL;
    float *out = calloc(n, sizeof *out);
    assert_non_null(out);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &model));
    CHECK_OK(ctx, ds_config_load_text(ctx, "test", text, strlen(text), NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    const ds_engine_params params = {
        .model = model, .config = config, .seq_length = 16, .weights = folder};
    CHECK_OK(ctx, ds_initialize(ctx, &params, &engine));
    CHECK_OK(ctx,
             ds_engine_get(engine, DS_CELL_PARAM, "model.layers.0.mlp.down_proj.weight", out, n));
    ds_engine_destroy(&engine);
    ds_config_destroy(&config);
    ds_model_destroy(&model);
    return out;
}

static void trains_from_real_numbers(void **state)
{
    static const size_t sizes[N_FOLDERS] = {33 * 37, 40 * 52, 40 * 50, 36 * 50}; /* down_proj */
    for (size_t k = 0; k < N_FOLDERS; ++k) {
        char path[PATH_BYTES];
        float *a = trained_from(*state, golden(folders[k], "", path), sizes[k]);
        float *b = trained_from(*state, golden(folders[k], "/plain", path), sizes[k]);
        assert_memory_equal(a, b, sizes[k] * sizeof *a);
        free(a);
        free(b);
    }
}

/* ---- refusals ---- */

/* A file with `to` in the place of the first `from`: of the same length in weights. */
static char *replaced(const char *data, size_t n, const char *from, const char *to, size_t *n_out)
{
    const size_t k = strlen(from);
    size_t at = 0;
    while (at + k <= n && memcmp(data + at, from, k) != 0) {
        ++at;
    }
    assert_true(at + k <= n);
    *n_out = n - k + strlen(to);
    char *out = malloc(*n_out + 1);
    assert_non_null(out);
    memcpy(out, data, at);
    memcpy(out + at, to, strlen(to));
    memcpy(out + at + strlen(to), data + at + k, n - at - k);
    return out;
}

typedef struct change {
    const char *folder, *file, *from, *to;
    ds_status status;
    const char *message;
} change;

static void refused(ds_ctx *ctx, const change *c)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    char *folder = scratch_make();
    ds_model *model = NULL;
    ds_generator *generator = NULL;
    for (size_t i = 0; i < 2; ++i) {
        char path[PATH_BYTES];
        char file[64];
        size_t n = 0;
        (void)snprintf(file, sizeof file, "/%s", files[i]);
        char *data = scratch_read(golden(c->folder, file, path), &n);
        if (strcmp(files[i], c->file) == 0) {
            char *other = replaced(data, n, c->from, c->to, &n);
            free(data);
            data = other;
        }
        scratch_write(scratch_path(folder, files[i]), data, n);
        free(data);
    }
    CHECK_FAILS(ctx, open_generator(ctx, folder, DS_DTYPE_NONE, &model, &generator), c->status,
                c->message);
    ds_model_destroy(&model);
    scratch_remove(folder);
}

static void contradictions(void **state)
{
#define CONFIG  "config.json"
#define WEIGHTS "model.safetensors"
    static const change changes[] = {
        {"nf4", CONFIG, "\"load_in_4bit\": true", "\"load_in_4bit\": false", DS_ERR_UNSUPPORTED,
         "quantization_config.load_in_4bit"},
        {"nf4", CONFIG, "\"load_in_8bit\": false", "\"load_in_8bit\": true", DS_ERR_UNSUPPORTED,
         "quantization_config.load_in_4bit"},
        {"nf4", CONFIG, "_quant_type\": \"nf4\"", "_quant_type\": \"int4\"", DS_ERR_UNSUPPORTED,
         "bnb_4bit_quant_type"},
        {"nf4", CONFIG, "\"uint8\"", "\"bfloat16\"", DS_ERR_UNSUPPORTED, "bnb_4bit_quant_storage"},
        {"int8", CONFIG, "fp16_weight\": false", "fp16_weight\": true", DS_ERR_UNSUPPORTED,
         "llm_int8_has_fp16_weight"},
        /* JSON beside the codes */
        {"nf4", WEIGHTS, "\"blocksize\": 64", "\"blocksize\": 32", DS_ERR_SHAPE, "absmax is f32"},
        {"nf4", WEIGHTS, "\"blocksize\": 64", "\"blocksize\": 63", DS_ERR_UNSUPPORTED,
         "\"blocksize\" must be"},
        {"nf4", WEIGHTS, "{\"quant_type\"", "[\"quant_type\"", DS_ERR_FORMAT, "no JSON object"},
        {"nf4", WEIGHTS, "\"quant_type\": \"nf4\"", "\"quant_type\": \"fp4\"", DS_ERR_FORMAT,
         "\"quant_type\" must be"},
        {"nf4", WEIGHTS, "\"dtype\": \"bfloat16\"", "\"dtype\": \"bfloat61\"", DS_ERR_UNSUPPORTED,
         "\"dtype\" must be"},
        {"nf4", WEIGHTS, "\"shape\": [33, 37]", "\"shape\": [37, 33]", DS_ERR_SHAPE,
         "the model needs"},
        {"nf4", WEIGHTS, "\"shape\": [33, 37]", "\"shape\": [33, 38]", DS_ERR_SHAPE,
         "down_proj.weight is u8"},
        {"nf4", WEIGHTS, "\"shape\": [33, 37]", "\"shape\": [-3, 37]", DS_ERR_FORMAT,
         "\"shape\" must be"},
        {"nf4_nested", WEIGHTS, "\"nested_blocksize\": 256", "\"nested_blocksize\":  32",
         DS_ERR_SHAPE, "nested_absmax is f32"},
        {"nf4_nested", WEIGHTS, "\"nested_blocksize\": 256", "\"nested_blocksize\":   0",
         DS_ERR_FORMAT, "\"nested_blocksize\" must be"},
        {"nf4_nested", WEIGHTS, "\"nested_dtype\": \"float32\"", "\"nested_dtype\": \"float16\"",
         DS_ERR_UNSUPPORTED, "\"nested_dtype\" must be"},
        {"nf4_nested", WEIGHTS, "\"nested_offset\": ", "\"mested_offset\": ", DS_ERR_FORMAT,
         "\"nested_offset\" must be"},
        /* tensors that are others, or not there */
        {"nf4", WEIGHTS, "down_proj.weight.absmax\":{\"dtype\":\"F32\",\"shape\":[20]",
         "down_proj.weight.absmax\":{\"dtype\":\"F64\",\"shape\":[10]", DS_ERR_SHAPE,
         "absmax is f64"},
        {"nf4", WEIGHTS, "down_proj.weight\":{\"dtype\":\"U8\",\"shape\":[611,1]",
         "down_proj.weight\":{\"dtype\":\"U8\",\"shape\":[1,611]", DS_ERR_SHAPE,
         "down_proj.weight is u8"},
        {"nf4", WEIGHTS, "down_proj.weight.absmax", "down_proj.weight.absmix", DS_ERR_NOT_FOUND,
         "down_proj.weight.absmax is missing"},
        {"nf4", WEIGHTS, "down_proj.weight.quant_map", "down_proj.weight.quant_mip",
         DS_ERR_NOT_FOUND, "quant_map is missing"},
        {"nf4", WEIGHTS, "down_proj.weight.quant_state.bitsandbytes__nf4",
         "down_proj.weight.quant_state.bitsandbytes__af4", DS_ERR_NOT_FOUND,
         "quant_state.bitsandbytes__nf4 is missing"},
        {"nf4_nested", WEIGHTS, "down_proj.weight.nested_quant_map",
         "down_proj.weight.nested_quant_mip", DS_ERR_NOT_FOUND, "nested_quant_map is missing"},
        {"int8", WEIGHTS, "down_proj.SCB", "down_proj.SCA", DS_ERR_NOT_FOUND,
         "down_proj.SCB is missing"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; ++i) {
        refused(*state, &changes[i]);
    }
}

/* Byte `at` of a tensor is another. */
typedef struct bytes_change {
    const char *folder, *tensor;
    size_t at;
    unsigned char byte;
    ds_status status;
    const char *message;
} bytes_change;

static void wrong_bytes(void **state)
{
    static const bytes_change changes[] = {
        {"nf4", "quant_map", 3, 0x3f, DS_ERR_UNSUPPORTED, "bitsandbytes reads it as -1"},
        {"fp4", "quant_map", 15, 0xff, DS_ERR_UNSUPPORTED, "quant_map has"},
        {"nf4", "quant_state.bitsandbytes__nf4", 0, 0xff, DS_ERR_FORMAT, "no JSON object"},
        {"int8", "weight_format", 0, 1, DS_ERR_UNSUPPORTED, "weight_format: rows"},
    };
    ds_ctx *ctx = *state;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; ++i) {
        const bytes_change *c = &changes[i];
        char path[PATH_BYTES], name[PATH_BYTES];
        char *folder = scratch_make();
        size_t n = 0;
        ds_safetensors *st = NULL;
        ds_model *model = NULL;
        ds_generator *generator = NULL;
        char *config = scratch_read(golden(c->folder, "/config.json", path), &n);
        scratch_write(scratch_path(folder, "config.json"), config, n);
        free(config);
        char *weights = scratch_read(golden(c->folder, "/model.safetensors", path), &n);
        CHECK_OK(ctx, ds_safetensors_open_folder(ctx, golden(c->folder, "", path), &st));
        (void)snprintf(name, sizeof name, "model.layers.0.mlp.down_proj.%s%s",
                       strcmp(c->folder, "int8") == 0 ? "" : "weight.", c->tensor);
        const ds_safetensor *t = ds_safetensors_find(st, name);
        assert_non_null(t);
        weights[t->file_offset + c->at] = (char)c->byte;
        ds_safetensors_close(&st);
        scratch_write(scratch_path(folder, "model.safetensors"), weights, n);
        free(weights);
        CHECK_FAILS(ctx, open_generator(ctx, folder, DS_DTYPE_NONE, &model, &generator), c->status,
                    c->message);
        ds_model_destroy(&model);
        scratch_remove(folder);
    }
}

int main(void)
{
    ds_ctx *ctx = NULL;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(every_bit, ctx),
        cmocka_unit_test_prestate(greedy_as_transformers, ctx),
        cmocka_unit_test_prestate(trains_from_real_numbers, ctx),
        cmocka_unit_test_prestate(contradictions, ctx),
        cmocka_unit_test_prestate(wrong_bytes, ctx),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
