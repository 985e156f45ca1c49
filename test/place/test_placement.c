/* SPDX-License-Identifier: Apache-2.0 */
/* Placements and parts: what each rank holds, spelled out; copies and extents against a walk over
 * every element; text that reads back; what is refused. */
#include "base/rng.h"
#include "common/check.h"
#include "place/placement.h"

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

enum { MOST = 1024 }; /* elements of a tensor */

/* Row-major indices of the elements of a part in memory order, the plain way. */
static int64_t list_elements(const dsi_part *part, ds_shape shape, int64_t *list)
{
    const int64_t n = ds_shape_count(shape);
    int64_t in_box = 0;
    int64_t count = 0;
    for (int64_t e = 0; e < n; ++e) {
        int64_t rest = e;
        bool inside = true;
        for (uint32_t d = shape.n_dims; d-- > 0;) {
            const int64_t at = rest % shape.dims[d];
            rest /= shape.dims[d];
            const bool cut = part->blocks > 0 && part->block_dim == d;
            const int64_t along = cut ? part->lengths[d] / part->blocks : part->lengths[d];
            bool in_any = false;
            for (uint32_t b = 0; b < (cut ? part->blocks : 1); ++b) {
                const int64_t begin = part->offset[d] + b * part->block_stride;
                in_any = in_any || (at >= begin && at < begin + along);
            }
            inside = inside && in_any;
        }
        if (inside) {
            if (in_box >= part->begin && in_box < part->begin + part->count) {
                list[count++] = e;
            }
            ++in_box;
        }
    }
    return count;
}

/* "0,1|2,3": elements of each rank; a dot for each padding slot. */
static void describe(const dsi_mesh *mesh, const dsi_placement *p, ds_shape shape, dsi_buf *buf)
{
    for (uint32_t rank = 0; rank < mesh->n_ranks; ++rank) {
        int64_t list[MOST];
        const dsi_part part = dsi_placement_part(mesh, p, shape, rank);
        const int64_t n = list_elements(&part, shape, list);
        assert_int_equal(n, part.count);
        dsi_buf_puts(buf, rank == 0 ? "" : "|");
        for (int64_t i = 0; i < part.slots; ++i) {
            const char *comma = i == 0 ? "" : ",";
            if (i < n) {
                dsi_buf_printf(buf, "%s%lld", comma, (long long)list[i]);
            } else {
                dsi_buf_printf(buf, "%s.", comma);
            }
        }
    }
}

static void test_parts(void **state)
{
    (void)state;
    const struct {
        const char *mesh, *placement;
        ds_shape shape;
        const char *parts;
    } rows[] = {
        {"mesh()", "R", {1, {3}}, "0,1,2"},
        {"mesh(dps=2)", "R", {1, {2}}, "0,1|0,1"},
        {"mesh(dps=2)", "dps:P", {1, {2}}, "0,1|0,1"},
        {"mesh(dps=2)", "dps:S(0)", {2, {3, 2}}, "0,1,2,3|4,5"},
        {"mesh(dps=2)", "dps:S(1)", {2, {2, 3}}, "0,1,3,4|2,5"},
        {"mesh(dps=4)", "dps:S(0)", {1, {5}}, "0,1|2,3|4|"},
        {"mesh(dps=4)", "flat(dps)", {1, {5}}, "0,1|2,3|4,.|.,."},
        {"mesh(dps=3)", "flat(dps)", {2, {2, 2}}, "0,1|2,3|.,."},
        {"mesh(dps=2)", "flat(dps)", {0, {0}}, "0|."},
        {"mesh(dps=3)", "flat(dps;tensor@1)", {1, {3}}, "|0,1,2|"},
        {"mesh(dps=2,tp=2)", "dps:S(0) tp:S(0)", {1, {5}}, "0,1|2|3|4"},
        {"mesh(dps=2,tp=2)", "dps:S(0) tp:S(1)", {2, {2, 2}}, "0|1|2|3"},
        {"mesh(dps=2,tp=2)", "tp:S(1) flat(dps)", {2, {3, 2}}, "0,2|1,3|4,.|5,."},
        {"mesh(dps=2,ep=2)", "flat(dps,ep)", {1, {4}}, "0|1|2|3"},
        {"mesh(dps=2,ep=2)", "flat(ep,dps)", {1, {4}}, "0|2|1|3"},
        {"mesh(dpr=2,dps=2)", "flat(dps)", {1, {3}}, "0,1|2,.|0,1|2,."},
        {"mesh(dps=2)", "dps:S(0)", {1, {0}}, "|"},
        {"mesh(tp=2)", "tp:S(0;3)", {1, {12}}, "0,1,4,5,8,9|2,3,6,7,10,11"},
        {"mesh(tp=2)", "tp:S(1;2)", {2, {2, 4}}, "0,2,4,6|1,3,5,7"},
        {"mesh(dps=2,tp=2)", "tp:S(1;2) flat(dps)", {2, {2, 4}}, "0,2|1,3|4,6|5,7"},
        {"mesh(sp=2,tp=2)", "sp:S(0;2) tp:S(0)", {1, {8}}, "0,1|4,5|2,3|6,7"},
        {"mesh(sp=2,tp=3)", "sp:S(1;3) tp:S(1)", {2, {2, 6}}, "0,6|2,8|4,10|1,7|3,9|5,11"},
        {"mesh(tp=2)", "tp:S(0;padded)", {2, {3, 2}}, "0,1,2,3|4,5,.,."},
        {"mesh(tp=2)", "tp:S(0;padded)", {1, {4}}, "0,1|2,3"},
        {"mesh(dps=2,tp=2)", "tp:S(0;padded) flat(dps)", {1, {5}}, "0,1|3,4|2,.|.,."},
        {"mesh(sp=2,tp=2)", "sp:S(1) tp:S(0;padded)", {2, {3, 2}}, "0,2|4,.|1,3|5,."},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        dsi_mesh mesh;
        dsi_placement p;
        dsi_buf buf = dsi_buf_make(4096);
        CHECK_OK(ctx, dsi_mesh_parse(ctx, rows[i].mesh, &mesh));
        CHECK_OK(ctx, dsi_placement_parse(ctx, rows[i].placement, &p));
        CHECK_OK(ctx, dsi_placement_check(ctx, &mesh, &p, rows[i].shape, "x"));
        dsi_placement_text(&p, &buf);
        assert_string_equal(dsi_buf_text(&buf), rows[i].placement);
        dsi_buf_clear(&buf);
        describe(&mesh, &p, rows[i].shape, &buf);
        assert_string_equal(dsi_buf_text(&buf), rows[i].parts);
        int64_t slots = 0;
        for (uint32_t rank = 0; rank < mesh.n_ranks; ++rank) {
            const dsi_part part = dsi_placement_part(&mesh, &p, rows[i].shape, rank);
            slots = part.slots > slots ? part.slots : slots;
        }
        assert_true(dsi_placement_slots(&mesh, &p, rows[i].shape) == slots);
        dsi_buf_free(&buf);
    }
}

static void test_refused(void **state)
{
    (void)state;
    dsi_mesh mesh;
    CHECK_OK(ctx, dsi_mesh_parse(ctx, "mesh(dps=2,tp=2)", &mesh));
    const struct {
        const char *placement, *says;
    } rows[] = {
        {"dps:S(2)", "axis dps cuts dim 2, but the tensor has 2 dims"},
        {"dps:P flat(dps)", "w: placement dps:P flat(dps): an axis is flat and cut"},
        {"dps:S(0) flat(tp,dps)", "an axis is flat and cut"},
        {"flat(tp;tensor@2)", "not a rank of the flat group"},
        {"tp:S(1;padded)", "an axis has no kind that is known"},
        {"dps:S(0;4) tp:S(0)", "another axis cuts the dim"},
        {"dps:S(0) tp:S(0;padded)", "another axis cuts the dim"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        dsi_placement p;
        CHECK_OK(ctx, dsi_placement_parse(ctx, rows[i].placement, &p));
        CHECK_FAILS(ctx, dsi_placement_check(ctx, &mesh, &p, ds_shape_2d(4, 4), "w"), DS_ERR_SHAPE,
                    rows[i].says);
    }
    const char *const bad[] = {"",
                               " ",
                               "R ",
                               "RR",
                               "dps",
                               "dps:",
                               "dps:S",
                               "dps:S(8)",
                               "dps:S(0) dps:P",
                               "x:P",
                               "flat()",
                               "flat(dps,)",
                               "flat(dps,dps)",
                               "flat(dps) flat(tp)",
                               "flat(dps;tensor@)",
                               "flat(dps;tensor@1",
                               "dps:P  tp:P"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        dsi_placement p;
        CHECK_FAILS(ctx, dsi_placement_parse(ctx, bad[i], &p), DS_ERR_FORMAT, "wrong at");
    }
}

/* ---- random placements ----------------------------------------------------------------------- */

static uint64_t drawn;

static uint32_t draw(uint32_t n)
{
    return (uint32_t)dsi_rng_below(7, 0, drawn++, n);
}

static dsi_placement random_placement(const dsi_mesh *mesh, ds_shape shape)
{
    static const dsi_axis axes[2] = {DSI_AXIS_DPS, DSI_AXIS_TP};
    dsi_placement p = {0};
    dsi_axes flat = {0};
    for (uint32_t i = 0; i < 2; ++i) {
        switch (draw(4)) {
        case 0:
            p = dsi_shard(p, axes[i], draw(shape.n_dims));
            p.on[axes[i]].blocks = draw(2) == 0 ? 0 : (uint8_t)(2 + draw(2));
            if (p.on[axes[i]].dim == 0 && draw(2) == 0) {
                p.on[axes[i]].blocks = DSI_PADDED;
            }
            break;
        case 1:
            dsi_axes_add(&flat, axes[i]);
            break;
        case 2:
            p = dsi_partial(p, axes[i]);
            break;
        default:
            break;
        }
    }
    if (dsi_placement_check(ctx, mesh, &p, shape, "x") < 0) { /* not where they may be */
        p.on[DSI_AXIS_DPS].blocks = p.on[DSI_AXIS_TP].blocks = 0;
    }
    if (draw(4) == 0 && flat.n == 2) {
        flat = (dsi_axes){2, {DSI_AXIS_TP, DSI_AXIS_DPS}};
    }
    return draw(5) == 0 ? dsi_flat_owner(p, flat, 0) : dsi_flat(p, flat);
}

static void check_extents(const dsi_part *part, ds_shape shape, const int64_t *list)
{
    ds_extent extents[DSI_PART_MOST_EXTENTS];
    bool seen[MOST] = {false};
    const uint32_t n = dsi_part_extents(part, shape, extents);
    int64_t at = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const ds_extent *e = &extents[i];
        dsi_part piece = dsi_part_whole(shape);
        if (e->flat) {
            piece.flat = true;
            piece.begin = e->begin;
            piece.count = e->count;
        } else {
            memcpy(piece.offset, e->offset, sizeof piece.offset);
            memcpy(piece.lengths, e->lengths, sizeof piece.lengths);
            piece.count = ds_extent_count(e, shape);
        }
        int64_t own[MOST];
        const int64_t n_own = list_elements(&piece, shape, own);
        assert_true(at + n_own <= part->count);
        const dsi_part again = dsi_part_of_extent(e, shape);
        assert_true(dsi_part_common(&again, &piece) == n_own && again.count == n_own);
        if (part->blocks == 0) {
            assert_memory_equal(own, list + at, (size_t)n_own * sizeof own[0]);
        } else { /* each once: places of the part's memory that no extent had before */
            for (int64_t k = 0; k < n_own; ++k) {
                int64_t place = 0;
                while (place < part->count && list[place] != own[k]) {
                    ++place;
                }
                assert_true(place < part->count && !seen[place]);
                seen[place] = true;
            }
        }
        at += n_own;
    }
    assert_int_equal(at, part->count);
}

/* Runs are the elements in their order, as few as there are gaps in the tensor. */
static void check_runs(const dsi_part *part, ds_shape shape, const int64_t *list)
{
    dsi_run run = {0};
    int64_t at = 0;
    while (dsi_part_next_run(part, shape, &run)) {
        assert_true(run.count > 0 && run.local == at && at + run.count <= part->count);
        assert_true(at == 0 || list[at] != list[at - 1] + 1 || shape.n_dims > 2);
        for (int64_t i = 0; i < run.count; ++i) {
            assert_int_equal(list[at + i], run.begin + i);
        }
        at += run.count;
    }
    assert_int_equal(at, part->count);
}

static void check_pair(const dsi_part *a, const dsi_part *b, ds_shape shape)
{
    int64_t in[MOST];
    int64_t want[MOST];
    int64_t got[MOST];
    int64_t packed[MOST];
    const int64_t n_a = list_elements(a, shape, in);
    const int64_t n_b = list_elements(b, shape, want);
    int64_t common = 0;
    int64_t begin = -1;
    bool range = true;
    for (int64_t i = 0; i < n_b; ++i) {
        int64_t j = 0;
        while (j < n_a && in[j] != want[i]) {
            ++j;
        }
        got[i] = -1;
        if (j == n_a) {
            want[i] = -1;
            continue;
        }
        begin = common == 0 ? i : begin;
        range = range && i == begin + common;
        ++common;
    }
    assert_int_equal(dsi_part_common(a, b), common);
    assert_int_equal(dsi_part_inside(a, b), common == n_a);
    int64_t at;
    const bool is_range = dsi_part_is_range(a, b, &at);
    assert_int_equal(is_range, common == n_a && range);
    assert_true(!is_range || n_a == 0 || at == begin);
    assert_int_equal(dsi_part_copy(a, in, b, got, sizeof got[0]), common);
    assert_memory_equal(got, want, (size_t)n_b * sizeof got[0]);
    memset(got, 0xff, sizeof got);
    assert_int_equal(dsi_part_pack(a, in, b, packed, sizeof got[0]), common);
    assert_int_equal(dsi_part_unpack(a, packed, b, got, sizeof got[0]), common);
    assert_memory_equal(got, want, (size_t)n_b * sizeof got[0]);
}

static void test_random(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 3000; ++round) {
        ds_shape shape = {.n_dims = 1 + draw(3)};
        for (uint32_t d = 0; d < shape.n_dims; ++d) {
            shape.dims[d] = d < 2 && draw(3) == 0 ? 12 : draw(7);
        }
        uint32_t size[DSI_AXIS_COUNT] = {1, 1, 1 + draw(4), 1, 1, 1 + draw(4)};
        dsi_mesh mesh;
        CHECK_OK(ctx, dsi_mesh_of(ctx, size, &mesh));
        const dsi_placement p = random_placement(&mesh, shape);
        const dsi_placement q = random_placement(&mesh, shape);
        CHECK_OK(ctx, dsi_placement_check(ctx, &mesh, &p, shape, "x"));
        const dsi_placement simple = dsi_placement_simplify(&mesh, &p);
        char text[DSI_PLACEMENT_TEXT];
        dsi_placement again;
        CHECK_OK(ctx, dsi_placement_parse(ctx, dsi_placement_str(&p, text), &again));
        assert_true(dsi_placement_equal(&p, &again));
        for (uint32_t rank = 0; rank < mesh.n_ranks; ++rank) {
            int64_t list[MOST];
            const dsi_part part = dsi_placement_part(&mesh, &p, shape, rank);
            const dsi_part same = dsi_placement_part(&mesh, &simple, shape, rank);
            list_elements(&part, shape, list);
            check_extents(&part, shape, list);
            check_runs(&part, shape, list);
            assert_int_equal(part.count, same.count);
            const uint32_t other = draw(mesh.n_ranks);
            const dsi_part theirs = dsi_placement_part(&mesh, &q, shape, other);
            check_pair(&part, &theirs, shape);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
