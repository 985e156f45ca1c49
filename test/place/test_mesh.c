/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh: sizes from numbers of a configuration, coordinates, groups, text, errors. */
#include "common/check.h"
#include "place/mesh.h"

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

static void expect_text(const dsi_mesh *mesh, const char *expected)
{
    dsi_buf buf = dsi_buf_make(4096);
    dsi_mesh_text(mesh, &buf);
    assert_string_equal(dsi_buf_text(&buf), expected);
    dsi_mesh again;
    CHECK_OK(ctx, dsi_mesh_parse(ctx, dsi_buf_text(&buf), &again));
    assert_memory_equal(mesh, &again, sizeof again);
    dsi_buf_free(&buf);
}

static void test_make(void **state)
{
    (void)state;
    const struct {
        dsi_mesh_params params;
        const char *text;
    } rows[] = {
        {{.world_size = 1}, "mesh()"},
        {{.world_size = 4}, "mesh(dps=4)"},
        {{.world_size = 8, .mics = 4}, "mesh(dpr=2,dps=4)"},
        {{.world_size = 8, .mics = 1}, "mesh(dpr=8)"},
        {{.world_size = 8, .hpz = 2}, "mesh(dpr=4,dps=2)"},
        {{.world_size = 8, .hpz = 64}, "mesh(dps=8)"},
        {{.world_size = 24, .pp = 3, .tp = 2}, "mesh(pp=3,dps=4,tp=2)"},
        {{.world_size = 16, .ep = 4, .tp = 2}, "mesh(dps=2,ep=4,tp=2)"},
        {{.world_size = 16, .ep = 2, .sp = 2, .mics = 8}, "mesh(dpr=2,dps=2,ep=2,sp=2)"},
        {{.world_size = 8, .sp = 2, .data_parallel = 4}, "mesh(dps=4,sp=2)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        dsi_mesh mesh;
        CHECK_OK(ctx, dsi_mesh_make(ctx, &rows[i].params, &mesh));
        assert_int_equal(mesh.n_ranks, rows[i].params.world_size);
        expect_text(&mesh, rows[i].text);
    }
}

static void test_refused(void **state)
{
    (void)state;
    const struct {
        dsi_mesh_params params;
        const char *names;
    } rows[] = {
        {{.world_size = 0}, "world size is 0"},
        {{.world_size = 6, .pp = 2, .tp = 2}, "pipeline.stages 2 x sequence_parallel_size 1 x "},
        {{.world_size = 8, .tp = 2, .data_parallel = 8}, "data_parallel_size is 8"},
        {{.world_size = 8, .ep = 3}, "expert_parallel.autoep_size is 3"},
        {{.world_size = 8, .mics = 3}, "mics_shard_size is 3, expected a divisor of 8"},
        {{.world_size = 8, .mics = 16}, "mics_shard_size is 16, expected a divisor of 8"},
        {{.world_size = 8, .hpz = 3}, "zero_hpz_partition_size is 3"},
        {{.world_size = 8, .ep = 4, .mics = 2}, "a multiple of 4"},
        {{.world_size = 8, .mics = 2, .hpz = 2}, "set at most one"},
        {{.world_size = 4, .pp = 65536, .sp = 65536, .tp = 65536}, "not divisible"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        dsi_mesh mesh;
        CHECK_FAILS(ctx, dsi_mesh_make(ctx, &rows[i].params, &mesh), DS_ERR_CONFIG, rows[i].names);
    }
}

/* Every group of every set of axes: its members agree, differ along its axes only, and the groups
 * are a partition of the ranks. */
static void test_groups(void **state)
{
    (void)state;
    const uint32_t size[DSI_AXIS_COUNT] = {2, 3, 2, 1, 2, 2};
    dsi_mesh mesh;
    CHECK_OK(ctx, dsi_mesh_of(ctx, size, &mesh));
    for (uint32_t mask = 0; mask < 1u << DSI_AXIS_COUNT; ++mask) {
        const dsi_axes axes = dsi_axes_of(mask);
        assert_int_equal(dsi_axes_mask(&axes), mask);
        const uint32_t n = dsi_axes_size(&mesh, &axes);
        for (uint32_t rank = 0; rank < mesh.n_ranks; ++rank) {
            const dsi_coords coords = dsi_mesh_coords(&mesh, rank);
            assert_int_equal(dsi_mesh_rank(&mesh, &coords), rank);
            const dsi_rank_group group = dsi_mesh_group(&mesh, &axes, rank);
            assert_int_equal(group.size, n);
            assert_true(group.color < mesh.n_ranks / n);
            assert_int_equal(dsi_mesh_peer(&mesh, &axes, rank, group.index), rank);
            for (uint32_t i = 0; i < n; ++i) {
                const uint32_t peer = dsi_mesh_peer(&mesh, &axes, rank, i);
                const dsi_rank_group theirs = dsi_mesh_group(&mesh, &axes, peer);
                assert_int_equal(theirs.color, group.color);
                assert_int_equal(theirs.index, i);
                assert_true(i == 0 || peer > dsi_mesh_peer(&mesh, &axes, rank, i - 1));
            }
        }
    }
    const dsi_axes inner = dsi_axes_of(1u << DSI_AXIS_SP | 1u << DSI_AXIS_TP);
    const dsi_axes apart = dsi_axes_of(1u << DSI_AXIS_DPR | 1u << DSI_AXIS_TP);
    const dsi_axes swapped = {2, {DSI_AXIS_TP, DSI_AXIS_SP}};
    assert_true(dsi_mesh_is_block(&mesh, &inner));
    assert_false(dsi_mesh_is_block(&mesh, &apart));
    assert_false(dsi_mesh_is_block(&mesh, &swapped));
    assert_int_equal(dsi_mesh_peer(&mesh, &swapped, 0, 1), 2);
}

/* Ranks of one model have the same samples; those of different ones all others, each once. */
static void test_samples(void **state)
{
    (void)state;
    static const char *const meshes[] = {"mesh()", "mesh(dps=4)", "mesh(tp=2)",
                                         "mesh(dpr=2,dps=3,tp=2)",
                                         "mesh(pp=2,dps=2,ep=2,sp=2,tp=2)"};
    for (size_t m = 0; m < sizeof meshes / sizeof meshes[0]; ++m) {
        dsi_mesh mesh;
        uint32_t seen[64] = {0};
        CHECK_OK(ctx, dsi_mesh_parse(ctx, meshes[m], &mesh));
        const uint32_t n = dsi_mesh_data_size(&mesh);
        const uint32_t copies = mesh.n_ranks / n;
        assert_int_equal(n, mesh.size[DSI_AXIS_DPR] * mesh.size[DSI_AXIS_DPS] *
                                mesh.size[DSI_AXIS_EP]);
        for (uint32_t rank = 0; rank < mesh.n_ranks; ++rank) {
            for (int64_t micro = 0; micro < 2; ++micro) {
                const int64_t first = dsi_mesh_first_sample(&mesh, rank, micro, 3);
                assert_true(first >= 0 && first % 3 == 0 && first / 3 < 2 * n);
                ++seen[first / 3];
            }
            dsi_coords at = dsi_mesh_coords(&mesh, rank); /* another rank of its model */
            at.at[DSI_AXIS_TP] = at.at[DSI_AXIS_SP] = at.at[DSI_AXIS_PP] = 0;
            assert_int_equal(dsi_mesh_data_rank(&mesh, rank),
                             dsi_mesh_data_rank(&mesh, dsi_mesh_rank(&mesh, &at)));
        }
        for (uint32_t i = 0; i < 2 * n; ++i) {
            assert_int_equal(seen[i], copies);
        }
    }
}

static void test_coordinates(void **state)
{
    (void)state;
    const struct {
        const char *mesh;
        uint32_t rank;
        const char *text;
    } rows[] = {
        {"mesh()", 0, ""},
        {"mesh(dps=8)", 5, ""},
        {"mesh(dpr=2,dps=2,ep=2)", 5, "dp 5, ep 1"},
        {"mesh(dps=4,tp=2)", 5, "dp 2, tp 1"},
        {"mesh(dpr=2,dps=2,tp=2)", 5, "dp 2, tp 1"},
        {"mesh(tp=2)", 1, "dp 0, tp 1"},
        {"mesh(pp=2,dps=2,ep=2,sp=2,tp=2)", 29, "dp 3, pp 1, ep 1, sp 0, tp 1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        dsi_mesh mesh;
        dsi_buf buf = dsi_buf_make(256);
        CHECK_OK(ctx, dsi_mesh_parse(ctx, rows[i].mesh, &mesh));
        dsi_mesh_coords_text(&mesh, rows[i].rank, &buf);
        assert_string_equal(dsi_buf_text(&buf), rows[i].text);
        dsi_buf_free(&buf);
    }
}

/* What collectives say of their axes: nothing where all ranks are data-parallel. */
static void test_labels(void **state)
{
    (void)state;
    const struct {
        const char *mesh;
        dsi_axes axes;
        int64_t code;
        const char *text;
    } rows[] = {
        {"mesh(dps=4)", dsi_axes_zero(true), 0, "dp"},
        {"mesh(dpr=2,dps=2)", dsi_axes_zero(true), 0, "dp"},
        {"mesh(dpr=2,dps=2)", dsi_axes_zero(false), 3, "dps"},
        {"mesh(dpr=2,dps=2)", {2, {DSI_AXIS_DPS, DSI_AXIS_DPR}}, 32, "dps,dpr"},
        {"mesh(dps=2,tp=2)", dsi_axes_zero(true), 3, "dps"},
        {"mesh(dps=2,tp=2)", {2, {DSI_AXIS_DPS, DSI_AXIS_TP}}, 36, "dps,tp"},
        {"mesh(tp=2)", {2, {DSI_AXIS_DPS, DSI_AXIS_TP}}, 6, "tp"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        dsi_mesh mesh;
        char text[DSI_AXES_LABEL];
        CHECK_OK(ctx, dsi_mesh_parse(ctx, rows[i].mesh, &mesh));
        const int64_t code = dsi_axes_code(&mesh, &rows[i].axes);
        assert_int_equal(code, rows[i].code);
        assert_string_equal(dsi_axes_label(code, text), rows[i].text);
    }
}

static void test_text_errors(void **state)
{
    (void)state;
    const char *const bad[] = {"",
                               "mesh",
                               "mesh(",
                               "mesh(dps=2",
                               "mesh(,)",
                               "mesh(dps=0)",
                               "mesh(dps=)",
                               "mesh(dps=2,)",
                               "mesh(x=2)",
                               "mesh(dps=2,dps=2)",
                               "mesh()x",
                               "mesh(dps=99999999999)",
                               "mesh(dps=1048576,tp=2)"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        dsi_mesh mesh;
        assert_true(dsi_mesh_parse(ctx, bad[i], &mesh) < 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_make),        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_groups),      cmocka_unit_test(test_samples),
        cmocka_unit_test(test_text_errors), cmocka_unit_test(test_coordinates),
        cmocka_unit_test(test_labels),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
