/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files that are written: a folder that goes into a file and back is the same byte for byte;
 * what has no word in a file is refused by its name, and what was there stays. The files that the
 * folders are made of were confirmed by transformers (make_gguf_models.py), the bytes of blocks by
 * PyPI's gguf (test_block_linear). */
#include "base/blocks.h"
#include "ckpt/gguf_model.h"
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/context.h>
#include <deepspeed/gguf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN DS_SOURCE_DIR "/test/golden/gguf/"

enum { PATH_BYTES = 512 };

static ds_ctx *ctx;

static void unpack(const char *file, const char *folder, ds_dtype dtype)
{
    const ds_gguf_params params = {.file = file, .folder = folder, .dtype = dtype};
    CHECK_OK(ctx, ds_gguf_to_folder(ctx, &params));
}

static void pack(const char *from, const char *file, const char *type)
{
    const ds_gguf_write_params params = {.source = from, .file = file, .type = type};
    CHECK_OK(ctx, ds_gguf_write(ctx, &params));
}

static void same_file(const char *a, const char *b, const char *name)
{
    char path[2 * PATH_BYTES];
    size_t n = 0;
    size_t m = 0;
    (void)snprintf(path, sizeof path, "%s/%s", a, name);
    char *x = scratch_read(path, &n);
    (void)snprintf(path, sizeof path, "%s/%s", b, name);
    char *y = scratch_read(path, &m);
    if (n != m || memcmp(x, y, n) != 0) {
        fail_msg("%s differs between %s and %s", name, a, b);
    }
    free(x);
    free(y);
}

static void there_and_back(void **state)
{
    static const char *const names[] = {"llama", "qwen2", "qwen3", "gpt2"};
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        char *scratch = scratch_make();
        char from[PATH_BYTES];
        char first[PATH_BYTES];
        char second[PATH_BYTES];
        char file[PATH_BYTES];
        char again[PATH_BYTES];
        (void)snprintf(from, sizeof from, GOLDEN "%s.gguf", names[i]);
        (void)snprintf(first, sizeof first, "%s/first", scratch);
        (void)snprintf(second, sizeof second, "%s/second", scratch);
        (void)snprintf(file, sizeof file, "%s/written.gguf", scratch);
        (void)snprintf(again, sizeof again, "%s/again.gguf", scratch);
        unpack(from, first, DS_DTYPE_F32);
        pack(first, file, "f32");
        unpack(file, second, DS_DTYPE_F32);
        for (size_t k = 0; k < sizeof files / sizeof *files; ++k) {
            same_file(first, second, files[k]);
        }
        /* a file of a file is the same but for the label, which is there already */
        pack(file, again, "f32");
        unpack(again, second, DS_DTYPE_F32);
        for (size_t k = 0; k < sizeof files / sizeof *files; ++k) {
            same_file(first, second, files[k]);
        }
        scratch_remove(scratch);
    }
}

/* Types of a file of llama_k.gguf's model, and the bytes of what stays. */
static void types(void **state)
{
    static const struct {
        const char *type;
        const char *table, *q, *v, *down, *o;
    } rows[] = {
        {"q4_k_m", "Q6_K", "Q4_K", "Q6_K", "Q8_0", "Q5_0"},
        {"q4_k", "Q6_K", "Q4_K", "Q4_K", "Q5_0", "Q5_0"},
        {"q5_k", "Q6_K", "Q5_K", "Q5_K", "Q5_1", "Q5_1"},
        {"q6_k", "Q6_K", "Q6_K", "Q6_K", "Q8_0", "Q8_0"},
        {"q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0"},
        {"q5_1", "Q6_K", "Q5_1", "Q5_1", "Q5_1", "Q5_1"},
        {"bf16", "BF16", "BF16", "BF16", "BF16", "BF16"},
    };
    char *scratch = scratch_make();
    char file[PATH_BYTES];
    dsi_gguf *from = NULL;
    (void)state;
    (void)snprintf(file, sizeof file, "%s/out.gguf", scratch);
    CHECK_OK(ctx, dsi_gguf_open(ctx, GOLDEN "llama_k.gguf", &from));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        const char *const want[][2] = {
            {"token_embd.weight", rows[i].table},    {"blk.0.attn_q.weight", rows[i].q},
            {"blk.0.attn_v.weight", rows[i].v},      {"blk.0.ffn_down.weight", rows[i].down},
            {"blk.0.attn_output.weight", rows[i].o}, {"output_norm.weight", "F32"}};
        dsi_gguf *to = NULL;
        pack(GOLDEN "llama_k.gguf", file, rows[i].type);
        CHECK_OK(ctx, dsi_gguf_open(ctx, file, &to));
        assert_int_equal(dsi_gguf_n_tensors(to), dsi_gguf_n_tensors(from));
        for (size_t k = 0; k < sizeof want / sizeof *want; ++k) {
            const dsi_gguf_tensor *a = dsi_gguf_tensor_find(from, want[k][0]);
            const dsi_gguf_tensor *b = dsi_gguf_tensor_find(to, want[k][0]);
            assert_string_equal(b->type->name, want[k][1]);
            if (a->type == b->type) { /* no quantizer gives these blocks */
                assert_int_equal(a->bytes, b->bytes);
                assert_memory_equal(a->data, b->data, a->bytes);
            }
        }
        dsi_gguf_close(&to);
    }
    dsi_gguf_close(&from);
    scratch_remove(scratch);
}

/* ---- refusals ---- */

/* A folder of llama.gguf in the scratch directory whose config.json has `field` in front. */
static void make_folder(const char *scratch, const char *field, char folder[PATH_BYTES])
{
    char path[2 * PATH_BYTES];
    size_t n = 0;
    (void)snprintf(folder, PATH_BYTES, "%s/folder", scratch);
    unpack(GOLDEN "llama.gguf", folder, DS_DTYPE_F32);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    char *config = scratch_read(path, &n);
    char *changed = malloc(n + 512);
    const int m = snprintf(changed, n + 512, "{%s%s", field, strchr(config, '{') + 1);
    scratch_write(path, changed, (size_t)m);
    free(config);
    free(changed);
}

static void refused(const char *field, const char *type, ds_status status, const char *says)
{
    char *scratch = scratch_make();
    char folder[PATH_BYTES];
    char file[PATH_BYTES];
    size_t n = 0;
    make_folder(scratch, field, folder);
    (void)snprintf(file, sizeof file, "%s/out.gguf", scratch);
    scratch_write(file, "old", 3);
    const ds_gguf_write_params params = {.source = folder, .file = file, .type = type};
    const ds_status got = ds_gguf_write(ctx, &params);
    if (got != status || strstr(ds_ctx_error(ctx), says) == NULL) {
        fail_msg("%s: expected \"%s\", found %d: %s", field, says, got, ds_ctx_error(ctx));
    }
    char *old = scratch_read(file, &n);
    assert_int_equal(n, 3); /* what was there stays */
    free(old);
    scratch_remove(scratch);
}

/* What is no part of what a model computes is no reason to refuse it; and Llama 3's positions of
 * several models. */
static void what_is_taken(void **state)
{
    static const char *const fields[][2] = {
        {"\"initializer_range\": 0.5, \"use_cache\": false,", ""},
        {"\"initializer_range\": 0.1,\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": "
         "8.0, "
         "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
         "\"original_max_position_embeddings\": 8192},",
         "\"factor\": 8.0"},
        {"\"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", "
         "\"factor\": 7.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
         "\"original_max_position_embeddings\": 8192},",
         "\"factor\": 7.0"},
        {"\"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", "
         "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
         "\"original_max_position_embeddings\": 65536},",
         "\"original_max_position_embeddings\": 65536"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; ++i) {
        char *scratch = scratch_make();
        char folder[PATH_BYTES];
        char file[PATH_BYTES];
        char back[PATH_BYTES];
        char path[2 * PATH_BYTES];
        size_t n = 0;
        make_folder(scratch, fields[i][0], folder);
        (void)snprintf(file, sizeof file, "%s/out.gguf", scratch);
        (void)snprintf(back, sizeof back, "%s/back", scratch);
        pack(folder, file, "f32");
        unpack(file, back, DS_DTYPE_F32);
        same_file(folder, back, "model.safetensors");
        (void)snprintf(path, sizeof path, "%s/config.json", back);
        char *config = scratch_read(path, &n);
        if (strstr(config, fields[i][1]) == NULL) {
            fail_msg("%s is not in %s", fields[i][1], config);
        }
        free(config);
        scratch_remove(scratch);
    }
}

static void what_has_no_word(void **state)
{
    (void)state;
    refused("", "q3_k", DS_ERR_ARG, "the type q3_k is not written");
    refused("\"mlp_bias\": true,", "q8_0", DS_ERR_UNSUPPORTED, "config.json: \"mlp_bias\": a GGUF");
    refused("\"initializer_range\": 0.3, \"mlp_bias\": true,", "q8_0", DS_ERR_UNSUPPORTED,
            "config.json: \"mlp_bias\": a GGUF");
    refused("\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2.0},", "q8_0",
            DS_ERR_UNSUPPORTED, "rotary positions of the type \"dynamic\"");
    refused(
        "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 2.0, "
        "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192},",
        "q8_0", DS_ERR_UNSUPPORTED, "\"rope_scaling\": the type llama3");
}

int main(void)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 2;
    params.level = DS_LOG_WARN;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(types),
        cmocka_unit_test(what_is_taken),
        cmocka_unit_test(what_has_no_word),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
