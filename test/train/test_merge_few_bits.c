/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters merged into folders of GPTQ, AWQ, compressed-tensors and bitsandbytes: the bytes of the
 * same merged into the folder in real numbers, which PEFT confirms
 * (test/golden/int4/make_merged.py, test/golden/bnb/make_lora.py); what is kept of the folder. */
#include "common/check.h"
#include "common/golden.h"
#include "common/scratch.h"

#include <deepspeed/adapter.h>
#include <deepspeed/safetensors.h>
#include <deepspeed/unmerge.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 1024 };

static ds_ctx *ctx;

/* Both folders have the same tensors, of that dtype where they were merged. */
static void same_tensors(const char *a, const char *b, ds_dtype dtype)
{
    ds_safetensors *got = NULL;
    ds_safetensors *want = NULL;
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, a, &got));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, b, &want));
    assert_int_equal(ds_safetensors_count(got), ds_safetensors_count(want));
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        const ds_safetensor *y = ds_safetensors_at(want, i);
        const ds_safetensor *x = ds_safetensors_find(got, y->name);
        assert_non_null(x);
        assert_int_equal(x->meta.dtype, y->meta.dtype);
        assert_true(ds_shape_equal(x->meta.shape, y->meta.shape));
        assert_memory_equal(x->data, y->data, y->bytes);
        assert_true(dtype == DS_DTYPE_NONE || y->meta.dtype == dtype);
    }
    ds_safetensors_close(&got);
    ds_safetensors_close(&want);
}

/* Nothing is said of four bits any longer. */
static void plain_config(const char *folder)
{
    char path[PATH_BYTES + 16];
    size_t n = 0;
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    char *text = scratch_read(path, &n);
    assert_null(strstr(text, "quantization_config"));
    free(text);
}

static void merge(const char *lora, const char *model, const char *folder, ds_dtype dtype)
{
    char path[PATH_BYTES];
    ds_adapter *adapter = NULL;
    golden_path(path, sizeof path, "%s", lora);
    const ds_adapter_merge_params params = {
        .model_folder = model, .folder = folder, .dtype = dtype};
    CHECK_OK(ctx, ds_adapter_open(ctx, path, &adapter));
    CHECK_OK(ctx, ds_adapter_merge(ctx, adapter, &params));
    ds_adapter_destroy(&adapter);
}

/* A folder in few bits, and the adapter of it. */
typedef struct stored {
    const char *name, *lora;
} stored;

static const stored all[] = {
    {"int4/gptq", "int4/lora"},     {"int4/gptq_v2", "int4/lora"},
    {"int4/gptq_run", "int4/lora"}, {"int4/awq", "int4/lora"},
    {"int4/packed", "int4/lora"},   {"int4/packed_zero", "int4/lora"},
    {"int4/packed8", "int4/lora"},  {"int4/packed8_zero", "int4/lora"},
    {"bnb/nf4", "bnb/nf4/lora"},    {"bnb/nf4_nested", "bnb/nf4_nested/lora"},
    {"bnb/fp4", "bnb/fp4/lora"},    {"bnb/int8", "bnb/int8/lora"},
};

static void like_real_numbers(void **state)
{
    static const ds_dtype dtypes[] = {DS_DTYPE_NONE, DS_DTYPE_F32, DS_DTYPE_BF16};
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        char model[PATH_BYTES], plain[PATH_BYTES];
        golden_path(model, sizeof model, "%s", all[i].name);
        golden_path(plain, sizeof plain, "%s/plain", all[i].name);
        for (size_t k = 0; k < sizeof dtypes / sizeof dtypes[0]; ++k) {
            char *out = scratch_make();
            char a[PATH_BYTES], b[PATH_BYTES], c[PATH_BYTES];
            (void)snprintf(a, sizeof a, "%s/a", out);
            (void)snprintf(b, sizeof b, "%s/b", out);
            (void)snprintf(c, sizeof c, "%s/c", out);
            merge(all[i].lora, model, a, dtypes[k]);
            merge(all[i].lora, plain, b, dtypes[k]);
            if (k > 0 || strcmp(all[i].name, "bnb/int8") != 0) { /* f32, written as bf16 */
                same_tensors(a, b, dtypes[k]);
            }
            plain_config(a);
            if (k == 0) { /* and what was stored comes back */
                CHECK_OK(ctx, ds_unmerge_keep(ctx, model, a));
                CHECK_OK(ctx, ds_unmerge(ctx, a, c));
                same_tensors(c, model, DS_DTYPE_NONE);
            }
            scratch_remove(out);
        }
    }
}

static void merged_as_peft(const stored *s, size_t n)
{
    char *out = scratch_make();
    char model[PATH_BYTES], path[PATH_BYTES], folder[PATH_BYTES];
    ds_safetensors *got = NULL;
    ds_safetensors *want = NULL;
    (void)snprintf(folder, sizeof folder, "%s/merged", out);
    golden_path(model, sizeof model, "%s", s->name);
    golden_path(path, sizeof path, "%s/merged.safetensors", s->lora);
    merge(s->lora, model, folder, DS_DTYPE_F32);
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, folder, &got));
    CHECK_OK(ctx, ds_safetensors_open(ctx, path, &want));
    assert_int_equal(ds_safetensors_count(want), n);
    for (size_t i = 0; i < n; ++i) {
        const ds_safetensor *y = ds_safetensors_at(want, i);
        const ds_safetensor *x = ds_safetensors_find(got, y->name);
        assert_non_null(x);
        assert_true(ds_shape_equal(x->meta.shape, y->meta.shape));
        for (int64_t k = 0; k < ds_shape_count(y->meta.shape); ++k) {
            assert_true(fabsf(((const float *)x->data)[k] - ((const float *)y->data)[k]) < 1e-6f);
        }
    }
    ds_safetensors_close(&got);
    ds_safetensors_close(&want);
    scratch_remove(out);
}

static void as_peft(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        if (strcmp(all[i].name, "int4/gptq_v2") == 0 || strncmp(all[i].name, "bnb/", 4) == 0) {
            merged_as_peft(&all[i], strcmp(all[i].name, "bnb/nf4_nested") == 0 ? 1 : 2);
        }
    }
}

int main(void)
{
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(like_real_numbers),
                                       cmocka_unit_test(as_peft)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
