/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files: every type that is read has the bits of PyPI's `gguf`; entries of every kind; cut and
 * changed files are refused or read, and nothing beyond them is. A file and a word of the command
 * line: the types of that file alone (test/long). */
#include "common/check.h"
#include "common/golden.h"
#include "common/scratch.h"
#include "io/file.h"
#include "io/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;
static const char *file; /* given */

static const char *golden(void)
{
    return file != NULL ? file : DS_SOURCE_DIR "/test/golden/io/gguf_blocks.gguf";
}

static float *values_of(const dsi_gguf *g, const dsi_gguf_tensor *t)
{
    const int64_t rows = t->shape.dims[0];
    float *out = calloc((size_t)ds_shape_count(t->shape), sizeof *out);
    assert_non_null(out);
    assert_int_equal(t->shape.n_dims, 2);
    for (int64_t r = 0; r < rows; ++r) { /* a row at a time: places are right too */
        CHECK_OK(ctx, dsi_gguf_read_rows(g, t, r, 1, out + r * t->shape.dims[1]));
    }
    return out;
}

static void types(void **state)
{
    (void)state;
    dsi_gguf *g = NULL;
    unsigned n_read = 0;
    CHECK_OK(ctx, dsi_gguf_open(ctx, golden(), &g));
    for (uint32_t i = 0; i < 64; ++i) {
        const dsi_gguf_type *type = dsi_gguf_type_find(i);
        char name[32];
        if (type == NULL) {
            continue;
        }
        (void)snprintf(name, sizeof name, "%s.values", type->name);
        const dsi_gguf_tensor *blocks = dsi_gguf_tensor_find(g, type->name);
        const dsi_gguf_tensor *values = dsi_gguf_tensor_find(g, name);
        if (type->read == NULL) {
            assert_null(blocks);
            continue;
        }
        assert_non_null(blocks);
        assert_non_null(values);
        assert_int_equal(blocks->type->id, type->id);
        assert_true(ds_shape_equal(blocks->shape, values->shape));
        float *got = values_of(g, blocks);
        float *want = values_of(g, values);
        const size_t n = (size_t)ds_shape_count(values->shape);
        for (size_t e = 0; e < n; ++e) {
            if (memcmp(&got[e], &want[e], sizeof *got) != 0) {
                fail_msg("%s: element %zu is %.9g, expected %.9g", type->name, e, got[e], want[e]);
            }
        }
        ++n_read;
        free(got);
        free(want);
    }
    assert_int_equal(n_read, 19);
    dsi_gguf_close(&g);
}

static double number(const dsi_gguf *g, const char *key)
{
    const dsi_gguf_entry *e = dsi_gguf_find(g, key);
    assert_non_null(e);
    return dsi_gguf_number(e, 0);
}

static void entries(void **state)
{
    (void)state;
    dsi_gguf *g = NULL;
    CHECK_OK(ctx, dsi_gguf_open(ctx, golden(), &g));
    assert_true(number(g, "a.u8") == 200.0 && number(g, "a.i8") == -100.0);
    assert_true(number(g, "a.u16") == 60000.0 && number(g, "a.i16") == -30000.0);
    assert_true(number(g, "a.u32") == 4e9 && number(g, "a.i32") == -2e9);
    assert_true(number(g, "a.u64") == 0x1p40 && number(g, "a.i64") == -0x1p40);
    assert_true(number(g, "a.f32") == 0.5 && number(g, "a.f64") == 0.1);
    assert_true(number(g, "a.bool") == 1.0);
    assert_true(dsi_gguf_text_is(dsi_gguf_find(g, "a.text")->texts[0], "Gr\u00fc\u00dfe"));
    const dsi_gguf_entry *texts = dsi_gguf_find(g, "a.texts");
    assert_int_equal(texts->n, 3);
    assert_true(dsi_gguf_text_is(texts->texts[2], "three") && texts->texts[1].n == 0);
    const dsi_gguf_entry *numbers = dsi_gguf_find(g, "a.numbers");
    assert_true(numbers->n == 3 && dsi_gguf_number(numbers, 1) == -1.0);
    assert_null(dsi_gguf_find(g, "a.none"));
    dsi_gguf_close(&g);
}

static char *path; /* of a file that is written again and again */

static ds_status open_bytes(const void *data, size_t n, dsi_gguf **gguf_out)
{
    FILE *out = fopen(path, "we");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
    return dsi_gguf_open(ctx, path, gguf_out);
}

/* What is accepted is read to its last element. */
static void use(const uint8_t *data, size_t n)
{
    dsi_gguf *g = NULL;
    if (open_bytes(data, n, &g) < 0) {
        return;
    }
    for (size_t i = 0; i < dsi_gguf_n_tensors(g); ++i) {
        const dsi_gguf_tensor *t = dsi_gguf_tensor_at(g, i);
        const int64_t row = t->shape.dims[t->shape.n_dims - 1];
        const int64_t rows = ds_shape_count(t->shape) / row;
        float *out = malloc((size_t)row * sizeof *out);
        for (int64_t r = 0; out != NULL && r < rows; ++r) {
            (void)dsi_gguf_read_rows(g, t, r, 1, out);
        }
        free(out);
    }
    dsi_gguf_close(&g);
}

static void cut_and_changed(void **state)
{
    (void)state;
    dsi_map map;
    uint64_t seed = 3;
    CHECK_OK(ctx, dsi_map_open(ctx, golden(), 0, &map));
    size_t head = 0; /* begin of the data: the lowest tensor */
    dsi_gguf *g = NULL;
    CHECK_OK(ctx, dsi_gguf_open(ctx, golden(), &g));
    size_t all = 0; /* tensors are aligned to 32, and are a multiple of that here or padded */
    for (size_t i = 0; i < dsi_gguf_n_tensors(g); ++i) {
        all += (dsi_gguf_tensor_at(g, i)->bytes + 31) / 32 * 32;
    }
    head = map.size - all;
    dsi_gguf_close(&g);
    for (size_t n = 0; n < head; n += 1 + n / 100) {
        dsi_gguf *none = NULL;
        assert_true(open_bytes(map.data, n, &none) < 0);
    }
    uint8_t *copy = malloc(map.size);
    for (int i = 0; i < 3000; ++i) {
        memcpy(copy, map.data, map.size);
        for (int k = 0; k < 1 + i % 3; ++k) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            copy[(seed >> 33) % head] = (uint8_t)(seed >> 20);
        }
        use(copy, map.size);
    }
    free(copy);
    dsi_map_close(&map);
}

static void refused(const void *data, size_t n, ds_status status, const char *words)
{
    dsi_gguf *g = NULL;
    CHECK_FAILS(ctx, open_bytes(data, n, &g), status, words);
}

static void bad_files(void **state)
{
    (void)state;
    refused("{\"a\": 1}", 8, DS_ERR_FORMAT, "is no GGUF file");
    refused("GGUF\0\0\0\3................", 24, DS_ERR_UNSUPPORTED, "big-endian");
    refused("GGUF\1\0\0\0................", 24, DS_ERR_UNSUPPORTED, "version 1");
    refused("GGUF\3\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, DS_ERR_FORMAT, "more tensors");
    refused("GGUF\3\0\0\0\0\0\0\0\0\0\0\0\377\377\377\377\377\377\377\377", 24, DS_ERR_FORMAT,
            "more entries");
}

int main(int argc, char **argv)
{
    file = argc > 1 ? argv[1] : NULL;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types),
        cmocka_unit_test(entries),
        cmocka_unit_test(cut_and_changed),
        cmocka_unit_test(bad_files),
    };
    char *folder = scratch_make();
    path = dsi_path_join(folder, "f.gguf");
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(path);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return failed;
}
