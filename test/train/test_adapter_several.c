/* SPDX-License-Identifier: Apache-2.0 */
/* Several adapters of one model against PEFT (test/golden/adapter/several, combined/svd): merged
 * one after the other, and the largest singular values of their sum. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/adapter.h>
#include <deepspeed/safetensors.h>
#include <deepspeed/unmerge.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 1024, MOST = 3 };

#define GOLDEN DS_SOURCE_DIR "/test/golden/adapter/"

static ds_ctx *ctx;

static ds_adapter *opened(const char *name)
{
    char path[PATH_BYTES];
    ds_adapter *adapter = NULL;
    (void)snprintf(path, sizeof path, GOLDEN "%s", name);
    CHECK_OK(ctx, ds_adapter_open(ctx, path, &adapter));
    return adapter;
}

static const ds_safetensor *find(const ds_safetensors *st, const char *name)
{
    const ds_safetensor *t = ds_safetensors_find(st, name);
    assert_non_null(t);
    assert_int_equal(t->meta.dtype, DS_DTYPE_F32);
    return t;
}

/* The largest difference of `got` and `want`, or where that has none, `base`, of all tensors. */
static double difference(const char *got_path, const char *want_path, const char *base_path)
{
    ds_safetensors *got = NULL, *want = NULL, *base = NULL;
    double most = 0.0;
    CHECK_OK(ctx, ds_safetensors_open(ctx, got_path, &got));
    CHECK_OK(ctx, ds_safetensors_open(ctx, want_path, &want));
    CHECK_OK(ctx, ds_safetensors_open(ctx, base_path, &base));
    assert_int_equal(ds_safetensors_count(got), ds_safetensors_count(base));
    for (size_t i = 0; i < ds_safetensors_count(base); ++i) {
        const ds_safetensor *b = ds_safetensors_at(base, i);
        const ds_safetensor *w = ds_safetensors_find(want, b->name);
        const ds_safetensor *g = find(got, b->name);
        const float *x = g->data, *y = w != NULL ? w->data : b->data;
        assert_true(ds_shape_equal(g->meta.shape, b->meta.shape));
        for (int64_t k = 0; k < ds_shape_count(b->meta.shape); ++k) {
            most = fmax(most, fabs((double)x[k] - (double)y[k]));
        }
    }
    ds_safetensors_close(&got);
    ds_safetensors_close(&want);
    ds_safetensors_close(&base);
    return most;
}

static void same_folder(const char *a_path, const char *b_path)
{
    ds_safetensors *a = NULL, *b = NULL;
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, a_path, &a));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, b_path, &b));
    assert_int_equal(ds_safetensors_count(a), ds_safetensors_count(b));
    for (size_t i = 0; i < ds_safetensors_count(a); ++i) {
        const ds_safetensor *one = ds_safetensors_at(a, i);
        const ds_safetensor *other = ds_safetensors_find(b, one->name);
        assert_non_null(other);
        assert_int_equal(one->bytes, other->bytes);
        assert_memory_equal(one->data, other->data, one->bytes);
    }
    ds_safetensors_close(&a);
    ds_safetensors_close(&b);
}

static void merged_as_peft(void **state)
{
    static const struct {
        const char *name, *model, *adapters[MOST];
        uint32_t n;
    } cases[] = {
        {"lora_more_dora", "llama", {"lora/end", "combined/more", "dora/end"}, 3},
        {"dora_saved", "llama", {"dora/end", "saved/end"}, 2},
        {"table_head", "llama", {"lora_table/end", "head/end", "rslora/end"}, 3},
        {"conv1d", "gpt2", {"conv1d/end", "dora_conv1d/end"}, 2},
        {"experts", "mixtral", {"experts_mixtral/end", "experts_mixtral/start"}, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char *out = scratch_make();
        char model[PATH_BYTES], base[PATH_BYTES + 32], want[PATH_BYTES];
        ds_adapter *a[MOST] = {NULL};
        for (uint32_t k = 0; k < cases[i].n; ++k) {
            a[k] = opened(cases[i].adapters[k]);
        }
        (void)snprintf(model, sizeof model, GOLDEN "models/%s", cases[i].model);
        (void)snprintf(base, sizeof base, "%s/model.safetensors", model);
        (void)snprintf(want, sizeof want, GOLDEN "several/%s.safetensors", cases[i].name);
        ds_adapter_merge_params p = {.model_folder = model,
                                     .folder = scratch_path(out, "merged"),
                                     .others = (const ds_adapter *const *)a + 1,
                                     .n_others = cases[i].n - 1};
        CHECK_OK(ctx, ds_adapter_merge(ctx, a[0], &p));
        assert_true(difference(scratch_path(out, "merged/model.safetensors"), want, base) < 1e-6);
        CHECK_OK(ctx, ds_unmerge_keep(ctx, model, p.folder));
        CHECK_OK(ctx, ds_unmerge(ctx, p.folder, scratch_path(out, "again")));
        same_folder(model, scratch_path(out, "again"));
        for (uint32_t k = 0; k < cases[i].n; ++k) {
            ds_adapter_destroy(&a[k]);
        }
        scratch_remove(out);
    }
}

/* What is added and taken away again leaves the model, but for its rounding. */
static void weighted(void **state)
{
    char *out = scratch_make();
    ds_adapter *a = opened("lora/end"), *b = opened("lora/end");
    const double weights[2] = {1.5, -1.5};
    const ds_adapter_merge_params p = {.model_folder = GOLDEN "models/llama",
                                       .folder = scratch_path(out, "merged"),
                                       .others = (const ds_adapter *const *)&b,
                                       .n_others = 1,
                                       .weights = weights};
    static const char base[] = GOLDEN "models/llama/model.safetensors";
    (void)state;
    CHECK_OK(ctx, ds_adapter_merge(ctx, a, &p));
    assert_true(difference(scratch_path(out, "merged/model.safetensors"), base, base) < 1e-7);
    ds_adapter_destroy(&a);
    ds_adapter_destroy(&b);
    scratch_remove(out);
}

static void refused(void **state)
{
    static const struct {
        const char *first, *second, *words;
        double weight;
    } cases[] = {
        {"saved/end", "table/end", "lm_head.weight is trained by", 1.0},
        {"saved/end", "head/end", "modules_to_save: lm_head.weight", 1.0},
        {"lora/end", "dora/end", "\"use_dora\": it is merged as it is, and not 0.5 times", 0.5},
        {"lora/end", "saved/end", "\"modules_to_save\"", 0.5},
        {"lora/end", "conv1d/end", "means no layer of this model", 1.0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char *out = scratch_make();
        ds_adapter *a = opened(cases[i].first), *b = opened(cases[i].second);
        const double weights[2] = {1.0, cases[i].weight};
        const ds_adapter_merge_params p = {.model_folder = GOLDEN "models/llama",
                                           .folder = scratch_path(out, "merged"),
                                           .others = (const ds_adapter *const *)&b,
                                           .n_others = 1,
                                           .weights = weights};
        assert_true(ds_adapter_merge(ctx, a, &p) < 0);
        if (strstr(ds_ctx_error(ctx), cases[i].words) == NULL) {
            fail_msg("%s", ds_ctx_error(ctx));
        }
        ds_adapter_destroy(&a);
        ds_adapter_destroy(&b);
        scratch_remove(out);
    }
}

/* Element (o,i) of B·A. */
static double product_at(const ds_safetensor *a, const ds_safetensor *b, int64_t o, int64_t i)
{
    const float *x = a->data, *y = b->data;
    const int64_t rank = a->meta.shape.dims[0], n = a->meta.shape.dims[1];
    double sum = 0.0;
    for (int64_t k = 0; k < rank; ++k) {
        sum += (double)y[o * rank + k] * (double)x[k * n + i];
    }
    return sum;
}

/* Singular vectors may point either way: what A and B make together is compared. */
static void compare_products(const char *got_path, const char *want_path)
{
    static const char end[] = ".lora_A.weight";
    ds_safetensors *got = NULL, *want = NULL;
    CHECK_OK(ctx, ds_safetensors_open(ctx, got_path, &got));
    CHECK_OK(ctx, ds_safetensors_open(ctx, want_path, &want));
    assert_int_equal(ds_safetensors_count(got), ds_safetensors_count(want));
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        const char *name = ds_safetensors_at(want, i)->name;
        char b[PATH_BYTES];
        if (strstr(name, end) == NULL) {
            continue;
        }
        (void)snprintf(b, sizeof b, "%.*s.lora_B.weight", (int)(strlen(name) - strlen(end)), name);
        const ds_safetensor *of_b = find(want, b);
        assert_true(ds_shape_equal(find(got, b)->meta.shape, of_b->meta.shape));
        for (int64_t o = 0; o < of_b->meta.shape.dims[0]; ++o) {
            for (int64_t k = 0; k < find(want, name)->meta.shape.dims[1]; ++k) {
                assert_true(fabs(product_at(find(got, name), find(got, b), o, k) -
                                 product_at(find(want, name), of_b, o, k)) < 1e-6);
            }
        }
    }
    ds_safetensors_close(&got);
    ds_safetensors_close(&want);
}

static void singular_values_as_peft(void **state)
{
    static const char *const names[MOST] = {"lora/end", "combined/rslora_list", "combined/more"};
    static const double weights[MOST] = {0.75, 0.5, -1.5};
    char *out = scratch_make();
    ds_adapter *a[MOST];
    (void)state;
    for (size_t i = 0; i < MOST; ++i) {
        a[i] = opened(names[i]);
    }
    ds_adapter_combine_params p = {.adapters = (const ds_adapter *const *)a,
                                   .n_adapters = MOST,
                                   .weights = weights,
                                   .combination = DS_ADAPTER_SVD,
                                   .folder = scratch_path(out, "made")};
    CHECK_OK(ctx, ds_adapter_combine(ctx, &p));
    compare_products(scratch_path(out, "made/adapter_model.safetensors"),
                     GOLDEN "combined/svd/adapter_model.safetensors");
    p.combination = DS_ADAPTER_CAT;
    p.rank = 2;
    CHECK_FAILS(ctx, ds_adapter_combine(ctx, &p), DS_ERR_ARG, "DS_ADAPTER_SVD alone");
    for (size_t i = 0; i < MOST; ++i) {
        ds_adapter_destroy(&a[i]);
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
        cmocka_unit_test(merged_as_peft),
        cmocka_unit_test(weighted),
        cmocka_unit_test(refused),
        cmocka_unit_test(singular_values_as_peft),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
