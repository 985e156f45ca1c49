/* SPDX-License-Identifier: Apache-2.0 */
/* Experts in FP8 against what transformers reads (test/golden/fp8_experts): an expert a tensor,
 * stacked as its classes have them, plain stacks; every bit of weights and logits. An adapter
 * merged into such a folder, against PEFT. What is refused. */
#include "base/half.h"
#include "ckpt/model_weights.h"
#include "common/check.h"
#include "common/golden.h"
#include "common/scratch.h"

#include <deepspeed/adapter.h>
#include <deepspeed/infer.h>
#include <deepspeed/unmerge.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 1024, VOCAB = 48, EXPERTS = 3 };

static ds_ctx *ctx;

static const char *golden(const char *name, char path[PATH_BYTES])
{
    golden_path(path, PATH_BYTES, "fp8_experts/%s", name);
    return path;
}

static ds_status open_model(const char *folder, ds_model **model)
{
    char path[PATH_BYTES + 16];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    return ds_model_from_config(ctx, path, model);
}

static ds_status logits_of(const char *folder, ds_dtype dtype, float out[VOCAB])
{
    static const uint32_t prompt[] = {3, 14, 15, 9, 26, 5, 35, 8, 9, 7};
    ds_model *model = NULL;
    ds_generator *generator = NULL;
    int64_t n = 0;
    CHECK_OK(ctx, open_model(folder, &model));
    const ds_generator_params params = {.model = model, .weights = folder, .dtype = dtype};
    const ds_status status = ds_generator_create(ctx, &params, &generator);
    if (status >= 0) {
        CHECK_OK(ctx, ds_generator_prompt(generator, prompt, sizeof prompt / sizeof prompt[0]));
        memcpy(out, ds_generator_logits(generator, &n), VOCAB * sizeof *out);
        assert_int_equal(n, VOCAB);
    }
    ds_generator_destroy(&generator);
    ds_model_destroy(&model);
    return status;
}

/* The parameter that a stored tensor is a part of; false: it is not the first of them. */
static bool cell_of(const ds_safetensor *t, char name[PATH_BYTES], ds_shape *shape)
{
    const char *at = strstr(t->name, ".experts.");
    *shape = t->meta.shape;
    (void)snprintf(name, PATH_BYTES, "%s", t->name);
    if (at == NULL) {
        return true;
    }
    const char *rest = strchr(at + 9, '.');
    (void)snprintf(name, PATH_BYTES, "%.*s.experts.*%s", (int)(at - t->name), t->name, rest);
    *shape = ds_shape_3d(EXPERTS, t->meta.shape.dims[0], t->meta.shape.dims[1]);
    return at[9] == '0';
}

static void same_weights(const char *folder, const char *plain)
{
    ds_safetensors *stored = NULL, *real = NULL;
    ds_model *model = NULL;
    ds_cells *cells = NULL;
    dsi_weights *weights = NULL;
    CHECK_OK(ctx, open_model(folder, &model));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, folder, &stored));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, plain, &real));
    CHECK_OK(ctx, ds_cells_create(ctx, 256, &cells));
    for (size_t i = 0; i < ds_safetensors_count(real); ++i) {
        char name[PATH_BYTES];
        ds_cell_info cell = {.name = name, .kind = DS_CELL_PARAM, .of = DS_NONE};
        ds_cell c = 0;
        cell.meta.dtype = DS_DTYPE_F32;
        if (cell_of(ds_safetensors_at(real, i), name, &cell.meta.shape)) {
            CHECK_OK(ctx, ds_cells_add(cells, &cell, &c));
        }
    }
    CHECK_OK(ctx, dsi_weights_match(ctx, model, cells, stored, false, &weights));
    assert_int_equal(dsi_weights_are_unpacked(weights), strstr(folder, "real") == NULL);
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        const dsi_weight weight = dsi_weights_of(weights, c);
        const int64_t count = ds_shape_count(cell->meta.shape);
        const int64_t n = strchr(cell->name, '*') != NULL ? EXPERTS : 1;
        float *got = malloc((size_t)count * sizeof *got);
        assert_non_null(got);
        CHECK_OK(ctx, dsi_weight_read(ctx, &weight, 0, count, DS_DTYPE_F32, got));
        for (int64_t e = 0; e < n; ++e) {
            char name[PATH_BYTES];
            const char *star = strchr(cell->name, '*');
            (void)snprintf(name, sizeof name, "%s", cell->name);
            if (star != NULL) {
                (void)snprintf(name, sizeof name, "%.*s%d%s", (int)(star - cell->name), cell->name,
                               (int)e, star + 1);
            }
            const ds_safetensor *t = ds_safetensors_find(real, name);
            assert_non_null(t);
            assert_memory_equal(got + e * count / n, t->data, t->bytes);
            if (dsi_weights_origin(weights, c, e) == DSI_WEIGHT_UNPACKED) { /* a part has no room
                                                                               for the whole */
                const ds_safetensor *part = weight.parts[e];
                assert_in_range(malloc_usable_size((void *)(uintptr_t)part->data), part->bytes,
                                part->bytes + 256);
            }
        }
        free(got);
    }
    dsi_weights_destroy(&weights);
    ds_cells_destroy(&cells);
    ds_safetensors_close(&stored);
    ds_safetensors_close(&real);
    ds_model_destroy(&model);
}

static void as_transformers(void **state)
{
    static const char *const names[] = {"each", "stacked", "powers", "mixtral", "real"};
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        char folder[PATH_BYTES];
        char plain[PATH_BYTES + 8];
        (void)golden(names[i], folder);
        (void)snprintf(plain, sizeof plain, "%s/plain", folder);
        same_weights(folder, plain);
        for (size_t k = 0; k < 2; ++k) {
            float a[VOCAB];
            float b[VOCAB];
            CHECK_OK(ctx, logits_of(folder, dtypes[k], a));
            CHECK_OK(ctx, logits_of(plain, dtypes[k], b));
            assert_memory_equal(a, b, sizeof a);
        }
    }
}

/* A file of a golden folder in another, with `to` in the place of the first `from`. */
static void copy_changed(const char *name, const char *file, const char *folder, const char *from,
                         const char *to)
{
    char path[PATH_BYTES], inside[PATH_BYTES];
    size_t n = 0;
    (void)snprintf(inside, sizeof inside, "%s/%s", name, file);
    char *text = scratch_read(golden(inside, path), &n);
    const size_t m = strlen(from), k = strlen(to);
    char *made = malloc(n + k + 1);
    size_t at = 0;
    assert_non_null(made);
    while (at + m <= n && (m == 0 || memcmp(text + at, from, m) != 0)) {
        at = m == 0 ? n + 1 : at + 1;
    }
    const bool found = at + m <= n;
    assert_true(found || m == 0);
    at = found ? at : n;
    memcpy(made, text, at);
    memcpy(made + at, to, found ? k : 0);
    memcpy(made + at + (found ? k : 0), text + at + (found ? m : 0), n - at - (found ? m : 0));
    if (found && strstr(file, ".safetensors") != NULL) { /* the header's bytes stand in front */
        uint64_t header;
        memcpy(&header, made, sizeof header);
        header += k - m;
        memcpy(made, &header, sizeof header);
    }
    scratch_write(scratch_path(folder, file), made, n + (found ? k - m : 0));
    free(made);
    free(text);
}

/* A tensor that is missing or of another shape, and fields. */
static void refused(void **state)
{
    static const struct {
        const char *file, *from, *to, *words;
    } cases[] = {
        {"model.safetensors", "down_proj_scale_inv", "down_proj_scale_inx",
         "down_proj_scale_inv is missing"},
        {"model.safetensors", "experts.down_proj\"", "experts.down_prox\"",
         "experts.0.down_proj.weight is missing"},
        /* as compressed-tensors packs a module's weight, had it three dims */
        {"model.safetensors", "experts.down_proj\"", "experts.down_proj.weight_packed\"",
         "down_proj.weight_packed: a stack of experts that no class of transformers has"},
        {"model.safetensors", "experts.gate_up_proj\"", "experts.gate_up_proj_packed\"",
         "gate_up_proj_packed: a stack of experts"},
        {"config.json", "\"dynamic\"", "\"static\"", "activation_scheme"},
        {"config.json", "\"activation_scheme\"", "\"expert_dtype\": \"fp4\", \"activation_scheme\"",
         "expert_dtype"},
        {"config.json", "\"quant_method\": \"fp8\"", "\"quant_method\": \"fbgemm_fp8\"",
         "weight_scale is missing"},
        {"config.json", "\"weight_block_size\": [", "\"weight_block_size\": [8, 8], \"was\": [",
         "_scale_inv"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char *out = scratch_make();
        float a[VOCAB];
        const bool config = strcmp(cases[i].file, "config.json") == 0;
        copy_changed("stacked", config ? "model.safetensors" : "config.json", out, "", "");
        copy_changed("stacked", cases[i].file, out, cases[i].from, cases[i].to);
        assert_true(logits_of(out, DS_DTYPE_F32, a) < 0);
        if (strstr(ds_ctx_error(ctx), cases[i].words) == NULL) {
            fail_msg("%s", ds_ctx_error(ctx));
        }
        scratch_remove(out);
    }
}

static void same_model(const char *a_path, const char *b_path)
{
    ds_safetensors *a = NULL, *b = NULL;
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, a_path, &a));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, b_path, &b));
    assert_int_equal(ds_safetensors_count(a), ds_safetensors_count(b));
    for (size_t i = 0; i < ds_safetensors_count(a); ++i) {
        const ds_safetensor *one = ds_safetensors_at(a, i);
        const ds_safetensor *other = ds_safetensors_find(b, one->name);
        assert_non_null(other);
        assert_true(one->meta.dtype == other->meta.dtype && one->bytes == other->bytes);
        assert_memory_equal(one->data, other->data, one->bytes);
    }
    ds_safetensors_close(&a);
    ds_safetensors_close(&b);
}

/* Merged in fp32 it is what PEFT makes of the dequantized model; without a dtype that rounded to
 * bf16. */
static void merged_as_peft(void **state)
{
    char *out = scratch_make();
    char model[PATH_BYTES], path[PATH_BYTES];
    ds_adapter *adapter = NULL;
    ds_safetensors *wide = NULL, *narrow = NULL, *want = NULL;
    (void)state;
    CHECK_OK(ctx, ds_adapter_open(ctx, golden("adapter", path), &adapter));
    ds_adapter_merge_params p = {.model_folder = golden("each", model),
                                 .folder = scratch_path(out, "wide"),
                                 .dtype = DS_DTYPE_F32};
    CHECK_OK(ctx, ds_adapter_merge(ctx, adapter, &p));
    p.folder = scratch_path(out, "narrow");
    p.dtype = DS_DTYPE_NONE;
    CHECK_OK(ctx, ds_adapter_merge(ctx, adapter, &p));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, scratch_path(out, "wide"), &wide));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, scratch_path(out, "narrow"), &narrow));
    CHECK_OK(ctx, ds_safetensors_open(ctx, golden("merged.safetensors", path), &want));
    assert_int_equal(ds_safetensors_count(wide), ds_safetensors_count(want));
    assert_int_equal(ds_safetensors_count(narrow), ds_safetensors_count(want));
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        const ds_safetensor *w = ds_safetensors_at(want, i);
        const ds_safetensor *a = ds_safetensors_find(wide, w->name);
        const ds_safetensor *b = ds_safetensors_find(narrow, w->name);
        assert_true(a != NULL && b != NULL && ds_shape_equal(a->meta.shape, w->meta.shape));
        assert_int_equal(a->meta.dtype, DS_DTYPE_F32);
        for (int64_t k = 0; k < ds_shape_count(w->meta.shape); ++k) {
            const float x = ((const float *)a->data)[k];
            assert_true(fabs((double)x - (double)((const float *)w->data)[k]) < 1e-6);
            assert_true(b->meta.dtype == DS_DTYPE_F32 ||
                        ((const uint16_t *)b->data)[k] == dsi_f32_to_bf16(x));
        }
    }
    ds_safetensors_close(&wide);
    ds_safetensors_close(&narrow);
    ds_safetensors_close(&want);
    CHECK_OK(ctx, ds_unmerge_keep(ctx, model, p.folder));
    CHECK_OK(ctx, ds_unmerge(ctx, p.folder, scratch_path(out, "again")));
    same_model(model, scratch_path(out, "again"));
    for (size_t i = 0; i < 2; ++i) { /* an expert each now, and undone */
        p = (ds_adapter_merge_params){.model_folder = golden(i == 0 ? "stacked" : "real", model),
                                      .folder = scratch_path(out, i == 0 ? "stack" : "slices")};
        CHECK_OK(ctx, ds_adapter_merge(ctx, adapter, &p));
        CHECK_OK(ctx, ds_unmerge_keep(ctx, model, p.folder));
        const char *again = scratch_path(out, i == 0 ? "restacked" : "rejoined");
        CHECK_OK(ctx, ds_unmerge(ctx, p.folder, again));
        same_model(model, again);
    }
    /* of Mixtral's the router, too, by its stored name */
    p = (ds_adapter_merge_params){.model_folder = golden("mixtral", model),
                                  .folder = scratch_path(out, "mixtral")};
    CHECK_OK(ctx, ds_adapter_merge(ctx, adapter, &p));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, p.folder, &wide));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, golden("mixtral/plain", path), &want));
    assert_int_equal(ds_safetensors_count(wide), ds_safetensors_count(want));
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        assert_non_null(ds_safetensors_find(wide, ds_safetensors_at(want, i)->name));
    }
    ds_safetensors_close(&wide);
    ds_safetensors_close(&want);
    ds_adapter_destroy(&adapter);
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
        cmocka_unit_test(as_transformers),
        cmocka_unit_test(refused),
        cmocka_unit_test(merged_as_peft),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
