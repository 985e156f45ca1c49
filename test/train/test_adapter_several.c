/* SPDX-License-Identifier: Apache-2.0 */
/* Several adapters of one model against PEFT (test/golden/adapter/several, combined/svd, sparse):
 * merged one after the other, the largest singular values of their sum, and sums of which a part of
 * the elements stays. */
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

/* Of q_proj, which the first two and the third adapter have: zeros, and the sum of magnitudes. */
static void facts(const char *path, double *zeros_out, double *size_out)
{
    ds_safetensors *st = NULL;
    double n = 0.0;
    *zeros_out = *size_out = 0.0;
    CHECK_OK(ctx, ds_safetensors_open(ctx, path, &st));
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *t = ds_safetensors_at(st, i);
        const float *x = t->data;
        for (int64_t k = 0; strstr(t->name, "q_proj") && k < ds_shape_count(t->meta.shape); ++k) {
            *zeros_out += x[k] == 0.0f;
            *size_out += fabs((double)x[k]);
            n += 1.0;
        }
    }
    *zeros_out /= n;
    *size_out /= n;
    ds_safetensors_close(&st);
}

/* What PEFT draws from torch's generator is drawn otherwise here: as many elements stay, as large.
 */
static void parts_as_peft(void **state)
{
    static const struct {
        const char *name;
        ds_adapter_combination way;
        double density;
        uint64_t majority;
        bool drawn;
    } cases[] = {
        {"prune", DS_ADAPTER_MAGNITUDE_PRUNE, 0.4, 0, false},
        {"ties", DS_ADAPTER_TIES, 0.7, DS_MAJORITY_TOTAL, false},
        {"ties_frequency", DS_ADAPTER_TIES, 0.7, DS_MAJORITY_FREQUENCY, false},
        {"dare_linear", DS_ADAPTER_DARE_LINEAR, 0.6, 0, true},
        {"dare_ties", DS_ADAPTER_DARE_TIES, 0.6, 0, true},
    };
    static const double weights[MOST] = {0.75, -1.5, 0.5};
    ds_adapter *a[MOST] = {opened("lora/end"), opened("combined/more"), opened("lora/start")};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char *out = scratch_make();
        char want[PATH_BYTES], got[2 * PATH_BYTES];
        const ds_adapter_combine_params p = {.adapters = (const ds_adapter *const *)a,
                                             .n_adapters = MOST,
                                             .weights = weights,
                                             .combination = cases[i].way,
                                             .density = cases[i].density,
                                             .majority = cases[i].majority,
                                             .folder = scratch_path(out, "made")};
        (void)snprintf(want, sizeof want, GOLDEN "sparse/%s/adapter_model.safetensors",
                       cases[i].name);
        (void)snprintf(got, sizeof got, "%s/adapter_model.safetensors", p.folder);
        CHECK_OK(ctx, ds_adapter_combine(ctx, &p));
        if (!cases[i].drawn) {
            assert_true(difference(got, want, want) < 1e-6);
        } else {
            double zeros[2], sizes[2];
            facts(got, &zeros[0], &sizes[0]);
            facts(want, &zeros[1], &sizes[1]);
            assert_true(zeros[0] > 0.0 && fabs(zeros[0] - zeros[1]) < 0.1);
            assert_true(fabs(sizes[0] / sizes[1] - 1.0) < 0.2);
        }
        scratch_remove(out);
    }
    for (size_t i = 0; i < MOST; ++i) {
        ds_adapter_destroy(&a[i]);
    }
}

/* Of one adapter: each element is 0, or as large as before over the density; so many stay; another
 * seed lets others stay. */
static void any_elements(void **state)
{
    char *out = scratch_make();
    char path[2][2 * PATH_BYTES];
    ds_adapter *a = opened("lora/end");
    ds_safetensors *st[2] = {NULL}, *whole = NULL;
    double kept = 0.0, n = 0.0, same = 0.0;
    (void)state;
    for (uint64_t seed = 0; seed < 2; ++seed) {
        (void)snprintf(path[seed], sizeof path[seed], "%s/%u", out, (unsigned)seed);
        const ds_adapter_combine_params p = {.adapters = (const ds_adapter *const *)&a,
                                             .n_adapters = 1,
                                             .combination = DS_ADAPTER_DARE_LINEAR,
                                             .density = 0.3,
                                             .seed = seed,
                                             .folder = path[seed]};
        CHECK_OK(ctx, ds_adapter_combine(ctx, &p));
        (void)snprintf(path[seed] + strlen(path[seed]), 64, "/adapter_model.safetensors");
        CHECK_OK(ctx, ds_safetensors_open(ctx, path[seed], &st[seed]));
    }
    CHECK_OK(ctx, ds_safetensors_open(ctx, GOLDEN "lora/end/adapter_model.safetensors", &whole));
    for (size_t i = 0; i < ds_safetensors_count(whole); ++i) {
        const ds_safetensor *t = ds_safetensors_at(whole, i);
        const float *x = t->data, *y = find(st[0], t->name)->data, *z = find(st[1], t->name)->data;
        const double root = sqrt(2.0); /* of alpha over rank, in A and in B */
        for (int64_t k = 0; k < ds_shape_count(t->meta.shape); ++k) {
            const double want = (double)x[k] * root / 0.3;
            assert_true(y[k] == 0.0f || fabs((double)y[k] - want) <= 1e-6 * fabs(want));
            kept += y[k] != 0.0f;
            same += (y[k] != 0.0f) == (z[k] != 0.0f);
            n += 1.0;
        }
    }
    assert_true(fabs(kept / n - 0.3) < 4.0 * sqrt(0.3 * 0.7 / n));
    assert_true(fabs(same / n - (0.09 + 0.49)) < 4.0 * sqrt(0.25 / n));
    ds_safetensors_close(&whole);
    ds_safetensors_close(&st[0]);
    ds_safetensors_close(&st[1]);
    ds_adapter_destroy(&a);
    scratch_remove(out);
}

static void parts_refused(void **state)
{
    static const struct {
        ds_adapter_combination way;
        double density;
        uint64_t majority, seed;
        const char *words;
    } cases[] = {
        {DS_ADAPTER_TIES, 0.0, 0, 0, "density is 0"},
        {DS_ADAPTER_TIES, 1.5, 0, 0, "density is 1.5"},
        {DS_ADAPTER_DARE_LINEAR, -0.5, 0, 0, "density is -0.5"},
        {DS_ADAPTER_LINEAR, 0.5, 0, 0, "density means nothing"},
        {DS_ADAPTER_MAGNITUDE_PRUNE, 0.5, 1, 0, "majority means nothing"},
        {DS_ADAPTER_TIES, 0.5, 0, 3, "seed means nothing"},
        {DS_ADAPTER_TIES, 0.5, 2, 0, "no majority 2"},
        {(ds_adapter_combination)7, 0.5, 0, 0, "a combination"},
    };
    ds_adapter *a[2] = {opened("lora/end"), opened("combined/rslora_list")};
    ds_adapter_combine_params p = {.adapters = (const ds_adapter *const *)a,
                                   .folder = "/nowhere/a"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        p.n_adapters = 1;
        p.combination = cases[i].way;
        p.density = cases[i].density;
        p.majority = cases[i].majority;
        p.seed = cases[i].seed;
        CHECK_FAILS(ctx, ds_adapter_combine(ctx, &p), DS_ERR_ARG, cases[i].words);
    }
    p = (ds_adapter_combine_params){.adapters = p.adapters,
                                    .n_adapters = 2,
                                    .combination = DS_ADAPTER_TIES,
                                    .density = 0.5,
                                    .folder = "/nowhere/a"};
    CHECK_FAILS(ctx, ds_adapter_combine(ctx, &p), DS_ERR_ARG, "adapters of one rank");
    ds_adapter_destroy(&a[0]);
    ds_adapter_destroy(&a[1]);
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
        cmocka_unit_test(merged_as_peft), cmocka_unit_test(weighted),
        cmocka_unit_test(refused),        cmocka_unit_test(singular_values_as_peft),
        cmocka_unit_test(parts_as_peft),  cmocka_unit_test(any_elements),
        cmocka_unit_test(parts_refused),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
