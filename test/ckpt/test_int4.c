/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of GPTQ, AWQ and compressed-tensors against the same as real numbers, made by the
 * packages' formulas in torch (test/golden/int4/make.py), likewise those of eight bits: every bit
 * of every weight, and of the logits; what is refused. */
#include "base/blocks.h"
#include "base/half.h"
#include "ckpt/int4_blocks.h"
#include "ckpt/model_weights.h"
#include "common/check.h"
#include "common/golden.h"
#include "common/scratch.h"

#include <deepspeed/serve.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 1024, VOCAB = 48 };
static bool keeps; /* whether the next generators keep blocks */

static const char *golden(const char *name, char path[PATH_BYTES])
{
    golden_path(path, PATH_BYTES, "int4/%s", name);
    return path;
}

static ds_status open_generator(ds_ctx *ctx, const char *folder, ds_dtype dtype, ds_model **model,
                                ds_generator **generator)
{
    char path[PATH_BYTES + 16];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    DS_TRY(ds_model_from_config(ctx, path, model));
    const ds_generator_params params = {
        .model = *model, .weights = folder, .dtype = dtype, .keep_blocks = keeps};
    return ds_generator_create(ctx, &params, generator);
}

static ds_dtype logits_of(ds_ctx *ctx, const char *folder, ds_dtype asked, float out[VOCAB])
{
    static const uint32_t prompt[] = {3, 14, 15, 9, 26, 5, 35, 8, 9, 7};
    ds_model *model = NULL;
    ds_generator *generator = NULL;
    int64_t n = 0;
    CHECK_OK(ctx, open_generator(ctx, folder, asked, &model, &generator));
    CHECK_OK(ctx, ds_generator_prompt(generator, prompt, sizeof prompt / sizeof prompt[0]));
    const float *logits = ds_generator_logits(generator, &n);
    assert_int_equal(n, VOCAB);
    memcpy(out, logits, VOCAB * sizeof *out);
    const ds_dtype dtype = ds_generator_dtype(generator);
    ds_generator_destroy(&generator);
    ds_model_destroy(&model);
    return dtype;
}

/* Each weight that the model asks for, as the files have it in real numbers. */
static void same_weights(ds_ctx *ctx, const char *folder, const char *plain)
{
    ds_safetensors *packed = NULL;
    ds_safetensors *real = NULL;
    ds_model *model = NULL;
    ds_cells *cells = NULL;
    dsi_weights *weights = NULL;
    char path[PATH_BYTES + 16];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &model));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, folder, &packed));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, plain, &real));
    CHECK_OK(ctx, ds_cells_create(ctx, 64, &cells));
    for (size_t i = 0; i < ds_safetensors_count(real); ++i) {
        const ds_safetensor *t = ds_safetensors_at(real, i);
        const ds_cell_info cell = {
            .name = t->name, .kind = DS_CELL_PARAM, .meta = t->meta, .of = DS_NONE};
        ds_cell c = 0;
        CHECK_OK(ctx, ds_cells_add(cells, &cell, &c));
    }
    CHECK_OK(ctx, dsi_weights_match(ctx, model, cells, packed, false, &weights));
    assert_true(dsi_weights_are_unpacked(weights));
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_safetensor *t = ds_safetensors_find(real, ds_cells_get(cells, c)->name);
        const dsi_weight weight = dsi_weights_of(weights, c);
        const int64_t count = ds_shape_count(t->meta.shape);
        void *got = malloc(t->bytes);
        assert_non_null(got);
        CHECK_OK(ctx, dsi_weight_read(ctx, &weight, 0, count, t->meta.dtype, got));
        assert_memory_equal(got, t->data, t->bytes);
        free(got);
    }
    dsi_weights_destroy(&weights);
    ds_cells_destroy(&cells);
    ds_safetensors_close(&packed);
    ds_safetensors_close(&real);
    ds_model_destroy(&model);
}

/* What training begins with. */
static void trained_from(ds_ctx *ctx, const char *folder, float *out, size_t n)
{
    static const char text[] = "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"AdamW\", "
                               "\"params\": {\"lr\": 1e-3}}}";
    char path[PATH_BYTES + 16];
    ds_model *model = NULL;
    ds_config *config = NULL;
    ds_engine *engine = NULL;
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
}

static void like_real_numbers(void **state)
{
    static const char *const names[] = {
        "gptq",      "gptq_v2",      "awq",       "packed",      "packed_zero", "fp8",
        "fp8_whole", "fbgemm",       "float_row", "float_block", "int_row",     "int_group",
        "packed8",   "packed8_zero", "gptq_run",  "fp8_e8m0",    "fp8_mx"};
    static const ds_dtype dtypes[] = {DS_DTYPE_NONE, DS_DTYPE_F32, DS_DTYPE_BF16};
    ds_ctx *ctx = *state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        char folder[PATH_BYTES];
        char plain[PATH_BYTES + 8];
        float a[VOCAB];
        float b[VOCAB];
        float trained[2][32 * 64];
        (void)golden(names[i], folder);
        (void)snprintf(plain, sizeof plain, "%s/plain", folder);
        same_weights(ctx, folder, plain);
        for (size_t k = 0; k < sizeof dtypes / sizeof dtypes[0]; ++k) {
            const ds_dtype used = dtypes[k] == DS_DTYPE_NONE ? DS_DTYPE_F16 : dtypes[k];
            assert_int_equal(logits_of(ctx, folder, dtypes[k], a), used);
            assert_int_equal(logits_of(ctx, plain, used, b), used);
            assert_memory_equal(a, b, sizeof a);
        }
        trained_from(ctx, folder, trained[0], 32 * 64);
        trained_from(ctx, plain, trained[1], 32 * 64);
        assert_memory_equal(trained[0], trained[1], sizeof trained[0]);
    }
}

/* Of a row of blocks what the products read. */
static void read_row(ds_dtype type, const uint8_t *row, int64_t k, float *out)
{
    const int64_t bytes = dsi_block_bytes(type);
    for (int64_t i = 0; i < k; ++i) {
        const uint8_t *block = row + i / DSI_BLOCK * bytes;
        const int64_t at = i % DSI_BLOCK;
        const uint8_t *q = block + bytes - (type == DS_DTYPE_Q8_0 ? 32 : 16);
        uint16_t scale = 0;
        uint32_t fifth = 0;
        memcpy(&scale, block, sizeof scale);
        memcpy(&fifth, block + 2, type == DS_DTYPE_Q5_0 ? sizeof fifth : 0);
        const int nibble = q[at % 16] >> (at < 16 ? 0 : 4) & 15;
        const int value = type == DS_DTYPE_Q8_0   ? (int8_t)q[at]
                          : type == DS_DTYPE_Q4_0 ? nibble - 8
                                                  : (nibble | (int)(fifth >> at & 1u) << 4) - 16;
        out[i] = dsi_f16_to_f32(scale) * (float)value;
    }
}

/* Blocks are the values that the package rounds to fp16; how many matrices have `type`. */
static int same_blocks(ds_ctx *ctx, const char *folder, const char *plain, ds_dtype type)
{
    ds_model *model = NULL;
    ds_safetensors *real = NULL;
    dsi_int4_blocks *blocks = NULL;
    char path[PATH_BYTES + 16];
    int n = 0;
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &model));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, plain, &real));
    CHECK_OK(ctx, dsi_int4_blocks_open(ctx, model, folder, &blocks));
    for (size_t i = 0; i < ds_safetensors_count(real); ++i) {
        const ds_safetensor *t = ds_safetensors_at(real, i);
        const ds_dtype found = dsi_int4_blocks_type(blocks, t->name, t->meta.shape);
        for (int64_t r = 0; found != DS_DTYPE_NONE && r < t->meta.shape.dims[0]; ++r) {
            const int64_t k = t->meta.shape.dims[1];
            uint8_t row[128];
            float values[64];
            uint16_t rounded[64];
            dsi_int4_blocks_row(blocks, t->name, r, row);
            read_row(found, row, k, values);
            for (int64_t j = 0; j < k; ++j) {
                rounded[j] = dsi_f32_to_f16(values[j] + 0.0f); /* the package has no -0 */
            }
            assert_memory_equal(rounded, (const uint16_t *)t->data + r * k,
                                (size_t)k * sizeof *rounded);
        }
        n += found == type ? 1 : 0;
    }
    dsi_int4_blocks_close(&blocks);
    ds_safetensors_close(&real);
    ds_model_destroy(&model);
    return n;
}

static void stays_in_blocks(void **state)
{
    enum { LINEAR = 7 };
    static const struct {
        const char *name;
        ds_dtype type; /* of all linear layers; NONE: real numbers */
    } rows[] = {{"gptq", DS_DTYPE_NONE},        {"gptq_v2", DS_DTYPE_NONE},
                {"gptq_run", DS_DTYPE_Q5_0},    {"awq_run", DS_DTYPE_Q5_0},
                {"packed_run", DS_DTYPE_Q4_0},  {"packed_zero", DS_DTYPE_Q5_0},
                {"packed8_run", DS_DTYPE_Q8_0}, {"packed8_zero", DS_DTYPE_NONE}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        char folder[PATH_BYTES];
        char plain[PATH_BYTES + 8];
        char path[PATH_BYTES + 16];
        float kept[VOCAB];
        float real[VOCAB];
        float most = 0.0f;
        ds_model *model = NULL;
        ds_serve_needs needs[2];
        (void)golden(rows[i].name, folder);
        (void)snprintf(plain, sizeof plain, "%s/plain", folder);
        if (rows[i].type != DS_DTYPE_NONE) {
            assert_int_equal(same_blocks(*state, folder, plain, rows[i].type), LINEAR);
        }
        /* products round what they read to bytes: within 3 % of the largest logit */
        keeps = true;
        (void)logits_of(*state, folder, DS_DTYPE_F32, kept);
        keeps = false;
        (void)logits_of(*state, plain, DS_DTYPE_F32, real);
        for (int k = 0; k < VOCAB; ++k) {
            most = fabsf(real[k]) > most ? fabsf(real[k]) : most;
        }
        for (int k = 0; k < VOCAB; ++k) {
            assert_true(fabsf(kept[k] - real[k]) <= 0.03f * most);
        }
        assert_int_equal(memcmp(kept, real, sizeof kept) == 0, rows[i].type == DS_DTYPE_NONE);
        /* and so are they planned */
        (void)snprintf(path, sizeof path, "%s/config.json", folder);
        CHECK_OK(*state, ds_model_from_config(*state, path, &model));
        for (int k = 0; k < 2; ++k) {
            const ds_serve_params params = {.source = {.model = model,
                                                       .weights = folder,
                                                       .dtype = DS_DTYPE_F16,
                                                       .keep_blocks = k == 1}};
            CHECK_OK(*state, ds_serve_plan(*state, &params, &needs[k]));
        }
        assert_int_equal(needs[1].weights < needs[0].weights, rows[i].type != DS_DTYPE_NONE);
        ds_model_destroy(&model);
    }
}

/* A folder of the golden weights whose config.json has `to` in the place of `from`. */
static void refused(ds_ctx *ctx, const char *name, const char *from, const char *to,
                    ds_status status, const char *message)
{
    char *folder = scratch_make();
    char path[PATH_BYTES];
    char text[4096];
    size_t n = 0;
    ds_model *model = NULL;
    ds_generator *generator = NULL;
    char file[PATH_BYTES];
    (void)snprintf(file, sizeof file, "%s/config.json", name);
    char *config = scratch_read(golden(file, path), &n);
    const char *at = strstr(config, from);
    assert_non_null(at);
    (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - config), config, to,
                   at + strlen(from));
    scratch_write(scratch_path(folder, "config.json"), text, strlen(text));
    free(config);
    (void)snprintf(file, sizeof file, "%s/model.safetensors", name);
    char *weights = scratch_read(golden(file, path), &n);
    scratch_write(scratch_path(folder, "model.safetensors"), weights, n);
    free(weights);
    CHECK_FAILS(ctx, open_generator(ctx, folder, DS_DTYPE_NONE, &model, &generator), status,
                message);
    ds_model_destroy(&model);
    scratch_remove(folder);
}

static void refusals(void **state)
{
    ds_ctx *ctx = *state;
    refused(ctx, "gptq", "\"bits\": 4", "\"bits\": 8", DS_ERR_UNSUPPORTED,
            "quantization_config.bits: 4 alone");
    refused(ctx, "gptq", "\"checkpoint_format\": \"gptq\"", "\"checkpoint_format\": \"marlin\"",
            DS_ERR_UNSUPPORTED, "checkpoint_format");
    refused(ctx, "awq", "\"version\": \"gemm\"", "\"version\": \"gemv\"", DS_ERR_UNSUPPORTED,
            "version");
    refused(ctx, "awq", "\"zero_point\": true", "\"zero_point\": false", DS_ERR_UNSUPPORTED,
            "zero_point");
    refused(ctx, "gptq", "\"quant_method\": \"gptq\"", "\"quant_method\": \"hqq\"",
            DS_ERR_UNSUPPORTED, "quantization_config");
    /* the second format has zero points of 15, which the first cannot say */
    refused(ctx, "gptq_v2", "\"checkpoint_format\": \"gptq_v2\"", "\"checkpoint_format\": \"gptq\"",
            DS_ERR_UNSUPPORTED, "save the model as");
    refused(ctx, "packed", "\"num_bits\": 4", "\"num_bits\": 3", DS_ERR_UNSUPPORTED, "num_bits");
    refused(ctx, "packed", "\"input_activations\": null",
            "\"input_activations\": {\"num_bits\": 8}", DS_ERR_UNSUPPORTED, "input_activations");
    refused(ctx, "packed", "\"type\": \"int\"", "\"type\": \"int\", \"actorder\": \"group\"",
            DS_ERR_UNSUPPORTED, "actorder");
    refused(ctx, "packed", "\"format\": \"pack-quantized\"", "\"format\": \"int-quantized\"",
            DS_ERR_UNSUPPORTED, "num_bits: 8 alone");
    refused(ctx, "packed", "\"format\": \"pack-quantized\"", "\"format\": \"nvfp4-pack-quantized\"",
            DS_ERR_UNSUPPORTED, "format");
    refused(ctx, "fp8", "\"fmt\": \"e4m3\"", "\"fmt\": \"e5m2\"", DS_ERR_UNSUPPORTED, "fmt");
    refused(ctx, "fp8", "\"activation_scheme\": \"dynamic\"", "\"activation_scheme\": \"static\"",
            DS_ERR_UNSUPPORTED, "activation_scheme");
    refused(ctx, "fp8_whole/plain", "\"model_type\": \"llama\"",
            "\"model_type\": \"llama\", \"quantization_config\": {\"quant_method\": \"fp8\"}",
            DS_ERR_UNSUPPORTED, "the weights are plain");
    refused(ctx, "fp8_whole", "\"weight_block_size\": null", "\"weight_block_size\": [16, 0]",
            DS_ERR_UNSUPPORTED, "weight_block_size");
    refused(ctx, "fp8_whole", "\"weight_block_size\": null", "\"weight_block_size\": [16, 16]",
            DS_ERR_SHAPE, "weight_scale_inv");
    refused(ctx, "fp8", "\"quant_method\": \"fp8\"", "\"quant_method\": \"fbgemm_fp8\"",
            DS_ERR_NOT_FOUND, "weight_scale is missing");
    refused(ctx, "float_row", "\"dynamic\": true", "\"dynamic\": false", DS_ERR_UNSUPPORTED,
            "input_activations");
    refused(ctx, "float_block", "\"strategy\": \"block\"", "\"strategy\": \"tensor_group\"",
            DS_ERR_UNSUPPORTED, "strategy");
    refused(ctx, "int_group", "\"num_bits\": 8", "\"num_bits\": 4", DS_ERR_UNSUPPORTED, "num_bits");
    refused(ctx, "int_row", "\"type\": \"int\"", "\"type\": \"float\"", DS_ERR_SHAPE,
            "q_proj.weight");
    refused(ctx, "packed", "\"kv_cache_scheme\": null", "\"kv_cache_scheme\": {\"num_bits\": 8}",
            DS_ERR_UNSUPPORTED, "kv_cache_scheme");
    refused(ctx, "gptq", "\"quant_method\": \"gptq\"", "\"quant_method\": \"awq\"", DS_ERR_SHAPE,
            "none of a matrix");
}

/* As many groups as group_size makes, and zero points where they are said. */
static void refused_groups(void **state)
{
    static const char size[] = "\"group_size\": 16";
    ds_ctx *ctx = *state;
    refused(ctx, "gptq", size, "\"group_size\": 32", DS_ERR_FORMAT, "group_size they are of 32");
    refused(ctx, "gptq", size, "\"group_size\": 8", DS_ERR_FORMAT, "group_size they are of 8");
    refused(ctx, "gptq", size, "\"group_size\": -1", DS_ERR_FORMAT, "group_size they are of 32");
    refused(ctx, "gptq_v2", size, "\"group_size\": 24", DS_ERR_FORMAT, "group_size they are of 24");
    refused(ctx, "gptq", size, "\"group_size\": 0", DS_ERR_UNSUPPORTED,
            "quantization_config.group_size");
    refused(ctx, "gptq", size, "\"group_size\": \"16\"", DS_ERR_UNSUPPORTED,
            "quantization_config.group_size");
    refused(ctx, "awq", size, "\"group_size\": 32", DS_ERR_FORMAT, "group_size they are of 32");
    refused(ctx, "awq", size, "\"q_group_size\": 64", DS_ERR_FORMAT, "group_size they are of 64");
    refused(ctx, "awq", "\"zero_point\": true", "\"zero_point\": 0", DS_ERR_UNSUPPORTED,
            "zero_point");
    refused(ctx, "packed", size, "\"group_size\": 32", DS_ERR_FORMAT, "group_size they are of 32");
    refused(ctx, "packed", "\"group\"", "\"channel\"", DS_ERR_UNSUPPORTED,
            "quantization_config.group_size");
    refused(ctx, "packed", size, "\"group_size\": null", DS_ERR_UNSUPPORTED,
            "quantization_config.group_size");
    refused(ctx, "packed", "\"group\"", "\"block\"", DS_ERR_UNSUPPORTED, "strategy");
    refused(ctx, "packed_zero", "\"channel\"", "\"group\", \"group_size\": 8", DS_ERR_FORMAT,
            "group_size they are of 8");
    refused(ctx, "packed8", size, "\"group_size\": 8", DS_ERR_FORMAT, "group_size they are of 8");
    refused(ctx, "packed", "\"symmetric\": true", "\"symmetric\": false", DS_ERR_FORMAT,
            "has no zero points");
    refused(ctx, "packed_zero", "\"symmetric\": false", "\"symmetric\": true", DS_ERR_FORMAT,
            "has its zero points");
    refused(ctx, "packed", "\"type\": \"int\"", "\"type\": \"int\", \"actorder\": \"dynamic\"",
            DS_ERR_UNSUPPORTED, "actorder");
    refused(ctx, "int_group", "\"type\": \"int\"", "\"type\": \"int\", \"actorder\": true",
            DS_ERR_UNSUPPORTED, "actorder");
}

/* test_int4 FOLDER: the weights of a folder that make.py wrote (test/long/int4_random.sh). */
int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    if (argc > 1) {
        char plain[PATH_BYTES + 8];
        (void)snprintf(plain, sizeof plain, "%s/plain", argv[1]);
        same_weights(ctx, argv[1], plain);
        ds_ctx_destroy(&ctx);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(like_real_numbers, ctx),
        cmocka_unit_test_prestate(stays_in_blocks, ctx),
        cmocka_unit_test_prestate(refusals, ctx),
        cmocka_unit_test_prestate(refused_groups, ctx),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
