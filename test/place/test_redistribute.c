/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of moves that redistribution finds, as text; and what it refuses. */
#include "common/check.h"
#include "place/redistribute.h"

#include <stdio.h>
#include <string.h>

static ds_ctx *ctx;

static int set_up(void **state)
{
    (void)state;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    return ds_ctx_create(&params, &ctx);
}

static int tear_down(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

static dsi_redistribution request(const char *mesh, const char *from, const char *to, ds_meta meta)
{
    dsi_redistribution r = {.name = "x", .meta = meta};
    CHECK_OK(ctx, dsi_mesh_parse(ctx, mesh, &r.mesh));
    CHECK_OK(ctx, dsi_placement_parse(ctx, from, &r.from));
    CHECK_OK(ctx, dsi_placement_parse(ctx, to, &r.to));
    return r;
}

static void test_moves(void **state)
{
    (void)state;
    const struct {
        const char *mesh, *from, *to;
        ds_shape shape;
        const char *text;
    } rows[] = {
        {"mesh(dps=4)", "R", "R", {1, {8}}, ""},
        {"mesh(ep=2,sp=3)",
         "ep:Pmax sp:Pmax",
         "sp:Pmax",
         {0, {0}},
         "all_reduce over (ep) of 2, 8 bytes\n"},
        {"mesh(dps=4)", "dps:P", "R", {1, {10}}, "all_reduce over (dps) of 4, 72 bytes\n"},
        {"mesh(dps=4)",
         "dps:P",
         "flat(dps)",
         {1, {10}},
         "reduce_scatter over (dps) of 4, 36 bytes\n"},
        {"mesh(dps=4)", "flat(dps)", "R", {1, {10}}, "all_gather over (dps) of 4, 36 bytes\n"},
        {"mesh(dps=4)", "R", "flat(dps)", {1, {10}}, "slice to flat(dps)\n"},
        {"mesh(dpr=2,dps=2)",
         "flat(dpr,dps)",
         "flat(dps)",
         {1, {10}},
         "pack for all_to_all over (dpr,dps) of 4\n"
         "all_to_all over (dpr,dps) of 4, 24 bytes\n"},
        {"mesh(dpr=2,dps=2)",
         "dpr:P dps:P",
         "flat(dps)",
         {1, {10}},
         "reduce_scatter over (dps) of 2, 20 bytes\n"
         "all_reduce over (dpr) of 2, 24 bytes\n"},
        {"mesh(dpr=2,dps=2)",
         "dpr:P dps:P",
         "flat(dpr,dps)",
         {1, {10}},
         "reduce_scatter over (dpr,dps) of 4, 36 bytes\n"},
        {"mesh(dps=2,ep=2)",
         "dps:P ep:P",
         "flat(ep,dps)",
         {1, {8}},
         "pack for reduce_scatter over (dps,ep) of 4, chunks of 2\n"
         "reduce_scatter over (dps,ep) of 4, chunks of 2, 24 bytes\n"},
        {"mesh(sp=2)",
         "sp:S(1)",
         "sp:S(2)",
         {3, {2, 4, 4}},
         "pack for all_to_all over (sp) of 2\n"
         "all_to_all over (sp) of 2, 32 bytes\n"
         "unpack for all_to_all over (sp) of 2\n"},
        {"mesh(sp=2)",
         "sp:S(2)",
         "sp:S(1)",
         {3, {2, 4, 4}},
         "pack for all_to_all over (sp) of 2\n"
         "all_to_all over (sp) of 2, 32 bytes\n"
         "unpack for all_to_all over (sp) of 2\n"},
        {"mesh(sp=2)", "sp:S(0)", "sp:S(1)", {2, {2, 4}}, "all_to_all over (sp) of 2, 8 bytes\n"},
        {"mesh(tp=2)", "tp:P", "tp:S(0)", {2, {4, 3}}, "reduce_scatter over (tp) of 2, 24 bytes\n"},
        {"mesh(tp=2)",
         "tp:P",
         "tp:S(1)",
         {2, {3, 4}},
         "pack for reduce_scatter over (tp) of 2, chunks of 6\n"
         "reduce_scatter over (tp) of 2, chunks of 6, 24 bytes\n"},
        {"mesh(tp=2)",
         "tp:S(1)",
         "R",
         {2, {3, 4}},
         "all_gather over (tp) of 2, chunks of 6, 24 bytes\n"
         "unpack for all_gather over (tp) of 2, chunks of 6\n"},
        {"mesh(tp=2)",
         "tp:S(1)",
         "R",
         {2, {3, 5}},
         "pack for all_gather over (tp) of 2, chunks of 9\n"
         "all_gather over (tp) of 2, chunks of 9, 36 bytes\n"
         "unpack for all_gather over (tp) of 2, chunks of 9\n"},
        {"mesh(tp=2)",
         "tp:S(0)",
         "R",
         {2, {5, 3}},
         "pack for all_gather over (tp) of 2, chunks of 9\n"
         "all_gather over (tp) of 2, chunks of 9, 36 bytes\n"
         "unpack for all_gather over (tp) of 2, chunks of 9\n"},
        {"mesh(tp=2)", "R", "tp:S(1)", {2, {3, 4}}, "slice to tp:S(1)\n"},
        {"mesh(tp=2)", "R", "tp:P", {1, {4}}, "mask over (tp) of 2\n"},
        {"mesh(dps=3)",
         "flat(dps;tensor@1)",
         "R",
         {1, {9}},
         "broadcast over (dps) of 3 from 1, 36 bytes\n"},
        {"mesh(dps=3)",
         "dps:P",
         "flat(dps;tensor@1)",
         {1, {9}},
         "reduce_scatter over (dps) of 3, 24 bytes\n"
         "all_to_all over (dps) of 3, 24 bytes\n"},
        {"mesh(dps=3)",
         "flat(dps)",
         "flat(dps;tensor@1)",
         {1, {9}},
         "all_to_all over (dps) of 3, 24 bytes\n"},
        {"mesh(dps=2,tp=2)",
         "dps:S(0) tp:P",
         "dps:S(0) tp:S(0)",
         {2, {8, 2}},
         "reduce_scatter over (tp) of 2, 16 bytes\n"},
        {"mesh(dps=2,tp=2)",
         "dps:P tp:S(0)",
         "dps:S(0) tp:S(0)",
         {2, {8, 2}},
         "reduce_scatter over (dps) of 2, 16 bytes\n"
         "all_to_all over (dps,tp) of 4, 16 bytes\n"},
        {"mesh(dps=2,tp=2)",
         "dps:P",
         "dps:S(0) tp:S(1)",
         {2, {4, 4}},
         "slice to dps:P tp:S(1)\n"
         "reduce_scatter over (dps) of 2, 16 bytes\n"},
        {"mesh(dps=2,tp=2)",
         "dps:P tp:S(0)",
         "tp:S(0) flat(dps)",
         {2, {4, 4}},
         "reduce_scatter over (dps) of 2, 16 bytes\n"},
        {"mesh(dps=2,tp=2)",
         "dps:S(0)",
         "tp:S(0)",
         {2, {4, 4}},
         "pack for all_to_all over (dps) of 2\n"
         "all_to_all over (dps) of 2, 32 bytes\n"},
        {"mesh(dps=2,tp=2)",
         "dps:S(0) tp:S(0)",
         "tp:S(0)",
         {2, {8, 2}},
         "pack for all_to_all over (dps,tp) of 4\n"
         "all_to_all over (dps,tp) of 4, 32 bytes\n"},
        {"mesh(dps=2,tp=2)",
         "dps:P tp:P",
         "dps:P",
         {1, {4}},
         "all_reduce over (tp) of 2, 16 bytes\n"},
        {"mesh(tp=2)", "dps:P tp:S(0)", "tp:S(0)", {1, {4}}, ""},
        /* a sum whose brackets would change is made whole */
        {"mesh(dps=2,tp=3)",
         "dps:P tp:P",
         "dps:P",
         {1, {4}},
         "all_reduce over (dps,tp) of 6, 40 bytes\n"
         "mask over (dps) of 2\n"},
        {"mesh(dps=2,tp=2)",
         "dps:P tp:P",
         "tp:P",
         {1, {4}},
         "all_reduce over (dps,tp) of 4, 24 bytes\n"
         "mask over (tp) of 2\n"},
        {"mesh(dps=2,tp=2)",
         "dps:P",
         "dps:P tp:P",
         {1, {4}},
         "all_reduce over (dps) of 2, 16 bytes\n"
         "mask over (dps,tp) of 4\n"},
    };
    int bad = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const ds_meta meta = {DS_DTYPE_F32, rows[i].shape};
        const dsi_redistribution r = request(rows[i].mesh, rows[i].from, rows[i].to, meta);
        dsi_moves moves;
        CHECK_OK(ctx, dsi_redistribute(ctx, &r, &moves));
        dsi_buf buf = dsi_buf_make(4096);
        dsi_moves_text(&moves, &buf);
        if (strcmp(dsi_buf_text(&buf), rows[i].text) != 0) {
            print_error("%s: %s -> %s\n  expected\n%s  got\n%s", rows[i].mesh, rows[i].from,
                        rows[i].to, rows[i].text, dsi_buf_text(&buf));
            ++bad;
        }
        dsi_buf_free(&buf);
    }
    assert_int_equal(bad, 0);
}

static void test_refused(void **state)
{
    (void)state;
    const ds_dtype f32 = DS_DTYPE_F32;
    const struct {
        const char *mesh, *from, *to;
        ds_dtype dtype;
        size_t most_bytes;
        ds_status status;
        const char *says;
    } rows[] = {
        {"mesh(tp=2)", "tp:S(0)", "tp:P", f32, 0, DS_ERR_UNSUPPORTED,
         "x f32[4,6]: from tp:S(0) to tp:P: ambiguous"},
        {"mesh(tp=2)", "flat(tp)", "tp:P", f32, 0, DS_ERR_UNSUPPORTED, "replicate it first"},
        {"mesh(tp=2)", "tp:P", "R", DS_DTYPE_BOOL, 0, DS_ERR_UNSUPPORTED, "cast it before"},
        {"mesh(tp=2)", "tp:S(2)", "R", f32, 0, DS_ERR_SHAPE, "cuts dim 2"},
        {"mesh(tp=2)", "R", "tp:P flat(tp)", f32, 0, DS_ERR_SHAPE, "tp:P flat(tp)"},
        {"mesh(tp=2)", "tp:S(0)", "R", f32, 100, DS_ERR_LIMIT,
         "from tp:S(0) to R: a rank would hold 144 bytes at once, more than 100"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const ds_meta meta = {rows[i].dtype, ds_shape_2d(4, 6)};
        dsi_redistribution r = request(rows[i].mesh, rows[i].from, rows[i].to, meta);
        r.most_bytes = rows[i].most_bytes;
        dsi_moves moves;
        CHECK_FAILS(ctx, dsi_redistribute(ctx, &r, &moves), rows[i].status, rows[i].says);
    }
}

/* The splits that hold are those of the tree itself: adding each block first gives the same
 * bracket as the tree over all. Leaves of the outer tree are blocks of ranks. */
static void bracket(dsi_buf *buf, uint32_t low, uint32_t high, uint32_t block)
{
    if (high - low == 1) {
        if (block == 1) {
            dsi_buf_printf(buf, "%u", low);
        } else {
            bracket(buf, low * block, high * block, 1);
        }
        return;
    }
    uint32_t half = 1;
    while (half * 2 < high - low) {
        half *= 2;
    }
    dsi_buf_putc(buf, '(');
    bracket(buf, low, low + half, block);
    dsi_buf_putc(buf, '+');
    bracket(buf, low + half, high, block);
    dsi_buf_putc(buf, ')');
}

static void test_splits(void **state)
{
    (void)state;
    for (uint32_t outer = 2; outer <= 6; ++outer) {
        for (uint32_t inner = 2; inner <= 6; ++inner) {
            const uint32_t size[DSI_AXIS_COUNT] = {1, 1, outer, 1, 1, inner};
            dsi_mesh mesh;
            CHECK_OK(ctx, dsi_mesh_of(ctx, size, &mesh));
            dsi_buf all = dsi_buf_make(4096);
            dsi_buf blocks = dsi_buf_make(4096);
            bracket(&all, 0, outer * inner, 1);
            bracket(&blocks, 0, outer, inner);
            const uint32_t dps = 1u << DSI_AXIS_DPS;
            const uint32_t tp = 1u << DSI_AXIS_TP;
            assert_int_equal(dsi_sum_splits(&mesh, DS_DTYPE_F32, dps | tp, tp),
                             strcmp(dsi_buf_text(&all), dsi_buf_text(&blocks)) == 0);
            assert_false(dsi_sum_splits(&mesh, DS_DTYPE_F32, dps | tp, dps));
            assert_false(dsi_sum_splits(&mesh, DS_DTYPE_BF16, dps | tp, tp));
            assert_true(dsi_sum_splits(&mesh, DS_DTYPE_BF16, dps | tp, dps | tp));
            assert_true(dsi_sum_splits(&mesh, DS_DTYPE_I32, dps | tp, dps));
            dsi_buf_free(&all);
            dsi_buf_free(&blocks);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_splits),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
