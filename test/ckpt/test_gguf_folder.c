/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files as model folders: tensors are those that the file was made of, in every layout; ids
 * are those of the tokenizer that it was made of; the folder generates. What is not known is
 * refused. Blocks of a file stay what they are, for the rows that the folder has. */
#include "ckpt/gguf_blocks.h"
#include "common/check.h"
#include "common/scratch.h"
#include "io/file.h"
#include "io/gguf.h"

#include <deepspeed/gguf.h>
#include <deepspeed/infer.h>
#include <deepspeed/safetensors.h>
#include <deepspeed/tokenizer.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN DS_SOURCE_DIR "/test/golden/gguf/"

static ds_ctx *ctx;
static const char *const names[] = {"llama", "qwen2", "qwen3", "gpt2"};
enum { N_NAMES = sizeof names / sizeof names[0], PATH_BYTES = 512 };

static void same_tensors(const char *name, const char *folder)
{
    char path[PATH_BYTES];
    ds_safetensors *want = NULL;
    ds_safetensors *got = NULL;
    (void)snprintf(path, sizeof path, GOLDEN "%s.safetensors", name);
    CHECK_OK(ctx, ds_safetensors_open(ctx, path, &want));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, folder, &got));
    assert_int_equal(ds_safetensors_count(got), ds_safetensors_count(want));
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        const ds_safetensor *a = ds_safetensors_at(want, i);
        const ds_safetensor *b = ds_safetensors_find(got, a->name);
        if (b == NULL || !ds_shape_equal(a->meta.shape, b->meta.shape) ||
            memcmp(a->data, b->data, a->bytes) != 0) {
            fail_msg("%s: %s differs", name, a->name);
        }
    }
    ds_safetensors_close(&want);
    ds_safetensors_close(&got);
}

static void same_ids(const char *name, const char *folder)
{
    char path[PATH_BYTES];
    json_error_t error;
    ds_tokenizer *tokenizer = NULL;
    ds_tokenizer_scratch *scratch = NULL;
    (void)snprintf(path, sizeof path, GOLDEN "%s.ids.json", name);
    json_t *root = json_load_file(path, 0, &error);
    assert_non_null(root);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tokenizer));
    CHECK_OK(ctx, ds_tokenizer_scratch_create(tokenizer, 0, &scratch));
    size_t i;
    json_t *one;
    json_array_foreach(root, i, one)
    {
        const json_t *ids = json_array_get(one, 0);
        const json_t *text = json_array_get(one, 1);
        ds_tokens tokens;
        CHECK_OK(ctx, ds_tokenizer_encode(tokenizer, scratch, json_string_value(text),
                                          json_string_length(text), 0, &tokens));
        bool same = tokens.n == json_array_size(ids);
        for (size_t k = 0; same && k < tokens.n; ++k) {
            same = tokens.ids[k] == (uint32_t)json_integer_value(json_array_get(ids, k));
        }
        if (!same) {
            fail_msg("%s: ids of \"%s\" differ", name, json_string_value(text));
        }
    }
    json_decref(root);
    ds_tokenizer_scratch_destroy(&scratch);
    ds_tokenizer_close(&tokenizer);
}

static void generates(const char *folder)
{
    static const uint32_t prompt[] = {5, 6, 7};
    char path[2 * PATH_BYTES];
    ds_model *model = NULL;
    ds_generator *generator = NULL;
    uint32_t id = 0;
    const ds_sampling greedy = {0};
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &model));
    const ds_generator_params params = {.model = model, .weights = folder, .max_length = 16};
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
    CHECK_OK(ctx, ds_generator_prompt(generator, prompt, 3));
    CHECK_OK(ctx, ds_generator_next(generator, &greedy, &id));
    ds_generator_destroy(&generator);
    ds_model_destroy(&model);
}

static void folders(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_NAMES; ++i) {
        char file[PATH_BYTES];
        char out[PATH_BYTES];
        char *scratch = scratch_make();
        (void)snprintf(file, sizeof file, GOLDEN "%s.gguf", names[i]);
        (void)snprintf(out, sizeof out, "%s/out", scratch);
        const ds_gguf_params params = {.file = file, .folder = out, .dtype = DS_DTYPE_F32};
        CHECK_OK(ctx, ds_gguf_to_folder(ctx, &params));
        same_tensors(names[i], out);
        same_ids(names[i], out);
        generates(out);
        scratch_remove(scratch);
    }
}

/* A file with one text replaced by another of its length. */
static void refused(const char *name, const char *from, const char *to, ds_status status,
                    const char *words)
{
    char path[PATH_BYTES];
    char out[PATH_BYTES];
    dsi_map map;
    char *scratch = scratch_make();
    (void)snprintf(path, sizeof path, GOLDEN "%s.gguf", name);
    CHECK_OK(ctx, dsi_map_open(ctx, path, 0, &map));
    char *copy = malloc(map.size);
    assert_non_null(copy);
    memcpy(copy, map.data, map.size);
    char *at = memmem(copy, map.size, from, strlen(from));
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    (void)snprintf(path, sizeof path, "%s/f.gguf", scratch);
    (void)snprintf(out, sizeof out, "%s/out", scratch);
    CHECK_OK(ctx, dsi_file_replace(ctx, path, copy, map.size));
    const ds_gguf_params params = {.file = path, .folder = out};
    CHECK_FAILS(ctx, ds_gguf_to_folder(ctx, &params), status, words);
    FILE *none = fopen(out, "re"); /* nothing is left behind */
    assert_null(none);
    free(copy);
    dsi_map_close(&map);
    scratch_remove(scratch);
}

static void what_is_not_known(void **state)
{
    (void)state;
    refused("llama", "rope.freq_base", "rope.freq_bass", DS_ERR_UNSUPPORTED,
            "the field llama.rope.freq_bass is not supported");
    refused("llama", "ffn_gate.weight", "ffn_gape.weight", DS_ERR_UNSUPPORTED, "ffn_gape");
    refused("llama", "llama.context_length", "llama.context_lengxh", DS_ERR_UNSUPPORTED, "lengxh");
    refused("gpt2", "smollm", "smellm", DS_ERR_UNSUPPORTED, "tokenizer.ggml.pre is smellm");
    refused("gpt2", "output_norm.bias", "output_gorm.bias", DS_ERR_UNSUPPORTED, "output_gorm");
}

/* ---- blocks as the file has them ---- */
/* Every row of the folder is its block row's values; how many matrices there are. */
static int same_rows(const dsi_gguf_blocks *blocks, const ds_safetensors *st)
{
    const dsi_gguf_type *q4_1 = dsi_gguf_type_find(3);
    int n_matrices = 0;
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *t = ds_safetensors_at(st, i);
        const ds_meta meta = {DS_DTYPE_Q4_1, t->meta.shape};
        const ds_meta other = {DS_DTYPE_Q4_0, t->meta.shape};
        const int64_t k = ds_shape_last(meta.shape);
        float row[96];
        assert_true(k <= 96);
        assert_null(dsi_gguf_blocks_row(blocks, t->name, other, 0));
        if (dsi_gguf_blocks_row(blocks, t->name, meta, 0) == NULL) {
            continue;
        }
        ++n_matrices;
        for (int64_t r = 0; r < meta.shape.dims[0]; ++r) {
            q4_1->read(dsi_gguf_blocks_row(blocks, t->name, meta, r), (size_t)(k / 32), row);
            assert_memory_equal(row, (const float *)t->data + r * k, (size_t)k * sizeof *row);
        }
    }
    return n_matrices;
}

static void logits_of(const char *folder, ds_dtype quantize, const char *gguf, float logits[48])
{
    static const uint32_t prompt[] = {5, 6, 7, 40};
    char path[2 * PATH_BYTES];
    ds_model *model = NULL;
    ds_generator *generator = NULL;
    int64_t n = 0;
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &model));
    const ds_generator_params params = {
        .model = model, .weights = folder, .quantize = quantize, .gguf = gguf};
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
    CHECK_OK(ctx, ds_generator_prompt(generator, prompt, 4));
    memcpy(logits, ds_generator_logits(generator, &n), 48 * sizeof *logits);
    assert_int_equal(n, 48);
    ds_generator_destroy(&generator);
    const ds_generator_params alone = {.model = model, .gguf = GOLDEN};
    assert_int_equal(ds_generator_create(ctx, &alone, &generator), DS_ERR_ARG);
    assert_non_null(strstr(ds_ctx_error(ctx), "go with weights alone"));
    ds_model_destroy(&model);
}

static double distance(const float *a, const float *b)
{
    double sum = 0.0;
    for (int i = 0; i < 48; ++i) {
        sum += (double)(a[i] - b[i]) * (double)(a[i] - b[i]);
    }
    return sqrt(sum);
}

/* Rounding the values again would move them. */
static void blocks_stay(void **state)
{
    static const char file[] = GOLDEN "llama_q4_1.gguf";
    char out[PATH_BYTES];
    float real[48];
    float kept[48];
    float rounded[48];
    float own[48];
    static const float zero[48];
    dsi_gguf_blocks *blocks = NULL;
    ds_safetensors *st = NULL;
    char *scratch = scratch_make();
    (void)state;
    (void)snprintf(out, sizeof out, "%s/out", scratch);
    const ds_gguf_params params = {
        .file = file, .folder = out, .dtype = DS_DTYPE_F32, .no_tokenizer = true};
    CHECK_OK(ctx, ds_gguf_to_folder(ctx, &params));
    CHECK_OK(ctx, dsi_gguf_blocks_open(ctx, file, &blocks));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, out, &st));
    assert_int_equal(same_rows(blocks, st), 8); /* four of attention, three behind, one output */
    ds_safetensors_close(&st);
    dsi_gguf_blocks_close(&blocks);
    logits_of(out, DS_DTYPE_NONE, NULL, real);
    logits_of(out, DS_DTYPE_Q4_1, file, kept);
    logits_of(out, DS_DTYPE_Q4_1, NULL, rounded);
    logits_of(out, DS_DTYPE_NONE, file, own);
    assert_memory_equal(own, kept, sizeof own); /* all of it is of one type */
    /* inputs are rounded to bytes: about a hundredth */
    assert_true(distance(kept, real) < 0.03 * distance(real, zero));
    assert_true(distance(kept, real) < 0.5 * distance(rounded, real));
    scratch_remove(scratch);
}

/* Each matrix in its own type there, the embedding that is the output too; what has no blocks stays
 * real. Kept blocks are nearer to their values than any rounding of them. */
static void types_of_the_file(void **state)
{
    static const char file[] = GOLDEN "llama_k.gguf";
    static const struct {
        const char *name;
        ds_dtype dtype;
        int64_t rows, columns;
    } want[] = {
        {"model.embed_tokens.weight", DS_DTYPE_Q6_K, 48, 256},
        {"model.layers.0.self_attn.q_proj.weight", DS_DTYPE_Q4_K, 64, 256},
        {"model.layers.0.self_attn.k_proj.weight", DS_DTYPE_Q5_K, 32, 256},
        {"model.layers.0.self_attn.v_proj.weight", DS_DTYPE_Q6_K, 32, 256},
        {"model.layers.0.self_attn.o_proj.weight", DS_DTYPE_Q5_0, 256, 64},
        {"model.layers.0.mlp.gate_proj.weight", DS_DTYPE_Q4_K, 64, 256},
        {"model.layers.0.mlp.up_proj.weight", DS_DTYPE_NONE, 64, 256},
        {"model.layers.0.mlp.down_proj.weight", DS_DTYPE_Q8_0, 256, 64},
        {"model.layers.0.mlp.down_proj.weight", DS_DTYPE_NONE, 64, 256}, /* of another shape */
        {"model.norm.weight", DS_DTYPE_NONE, 1, 256},
    };
    char out[PATH_BYTES];
    float real[48];
    float kept[48];
    float rounded[48];
    static const float zero[48];
    dsi_gguf_blocks *blocks = NULL;
    char *scratch = scratch_make();
    (void)state;
    (void)snprintf(out, sizeof out, "%s/out", scratch);
    const ds_gguf_params params = {
        .file = file, .folder = out, .dtype = DS_DTYPE_F32, .no_tokenizer = true};
    CHECK_OK(ctx, ds_gguf_to_folder(ctx, &params));
    CHECK_OK(ctx, dsi_gguf_blocks_open(ctx, file, &blocks));
    for (size_t i = 0; i < sizeof want / sizeof *want; ++i) {
        assert_int_equal(
            dsi_gguf_blocks_type(blocks, want[i].name, ds_shape_2d(want[i].rows, want[i].columns)),
            want[i].dtype);
    }
    dsi_gguf_blocks_close(&blocks);
    logits_of(out, DS_DTYPE_NONE, NULL, real);
    logits_of(out, DS_DTYPE_NONE, file, kept);
    logits_of(out, DS_DTYPE_Q4_K, NULL, rounded);
    print_message("kept %.5f, rounded to q4_k %.5f\n", distance(kept, real) / distance(real, zero),
                  distance(rounded, real) / distance(real, zero));
    assert_true(distance(kept, real) > 0.0);
    assert_true(distance(kept, real) < 0.03 * distance(real, zero));
    assert_true(distance(kept, real) < 0.7 * distance(rounded, real));
    scratch_remove(scratch);
}

/* A folder without what is in blocks beside its file: the bits of the whole folder, whether blocks
 * are taken as they are, rounded anew or read as real numbers (the table that is looked up). */
static void left_in_the_file(void **state)
{
    static const char *const files[] = {GOLDEN "llama_q4_1.gguf", GOLDEN "llama_k.gguf"};
    static const ds_dtype quantize[] = {DS_DTYPE_NONE, DS_DTYPE_Q4_1, DS_DTYPE_Q8_0};
    char *scratch = scratch_make();
    char out[2][PATH_BYTES];
    (void)state;
    for (int i = 0; i < 4; ++i) {
        const char *file = files[i / 2];
        (void)snprintf(out[i % 2], PATH_BYTES, "%s/%d", scratch, i);
        const ds_gguf_params params = {.file = file,
                                       .folder = out[i % 2],
                                       .dtype = DS_DTYPE_F32,
                                       .no_tokenizer = true,
                                       .blocks_stay = i % 2 == 1};
        CHECK_OK(ctx, ds_gguf_to_folder(ctx, &params));
        for (size_t q = 0; q < sizeof quantize / sizeof *quantize && i % 2 == 1; ++q) {
            float whole[48];
            float left[48];
            logits_of(out[0], quantize[q], file, whole);
            logits_of(out[1], quantize[q], file, left);
            assert_memory_equal(left, whole, sizeof left);
        }
    }
    char path[2 * PATH_BYTES];
    ds_model *model = NULL;
    ds_generator *generator = NULL;
    (void)snprintf(path, sizeof path, "%s/config.json", out[1]);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &model));
    const ds_generator_params alone = {.model = model, .weights = out[1]};
    CHECK_FAILS(ctx, ds_generator_create(ctx, &alone, &generator), DS_ERR_UNSUPPORTED,
                "stayed in the GGUF file");
    ds_model_destroy(&model);
    scratch_remove(scratch);
}

int main(void)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    params.level = DS_LOG_WARN;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders),          cmocka_unit_test(what_is_not_known),
        cmocka_unit_test(blocks_stay),      cmocka_unit_test(types_of_the_file),
        cmocka_unit_test(left_in_the_file),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
