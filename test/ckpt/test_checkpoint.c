/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: what is saved comes back, whatever the cut; tags, leftovers, lists; wrong slices and
 * states are refused. */
#include "common/check.h"
#include "common/cut_save.h"
#include "common/scratch.h"

#include "base/half.h"
#include "ckpt/ckpt_internal.h"
#include <deepspeed/checkpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void saves_and_loads(void **state)
{
    char *dir = scratch_make();
    const char *save_dir = scratch_path(dir, "deep/er");
    CHECK_OK(*state, cut_save(*state, save_dir, NULL, 3));
    CHECK_OK(*state, cut_save(*state, save_dir, NULL, 12));
    size_t n = 0;
    char *latest = scratch_read(scratch_path(save_dir, "latest"), &n);
    assert_string_equal(latest, "global_step12");
    free(latest);
    assert_int_equal(scratch_count(save_dir), 3);
    assert_int_equal(scratch_count(scratch_path(save_dir, "global_step3")), 2);
    ds_checkpoint *c = NULL;
    for (int step = 3; step <= 12; step += 9) {
        CHECK_OK(*state,
                 ds_checkpoint_open(*state, save_dir, step == 3 ? "global_step3" : NULL, &c));
        const ds_checkpoint_info *info = ds_checkpoint_get_info(c);
        assert_true(info->step == (uint64_t)step && info->tokens == (uint64_t)step * 1024 &&
                    info->samples == (uint64_t)step * 8 && info->n_shards == 1);
        assert_string_equal(info->optimizer, "adamw");
        assert_int_equal(ds_checkpoint_count(c), 6);
        cut_save_check(*state, c, "param", step);
        cut_save_check(*state, c, "master", step);
        cut_save_check(*state, c, "exp_avg", step);
        float bias[4];
        CHECK_OK(*state, ds_checkpoint_read(c, ds_checkpoint_find(c, "param", "b.half"), NULL,
                                            DS_DTYPE_F32, bias));
        assert_true(bias[0] == 1.0f && bias[3] == dsi_bf16_to_f32((uint16_t)step));
        CHECK_OK(*state, ds_checkpoint_read(c, ds_checkpoint_find(c, "param", "scalar"), NULL,
                                            DS_DTYPE_F32, bias));
        assert_true(bias[0] == cut_save_value(step, 1));
        assert_null(ds_checkpoint_find(c, "param", "none"));
        assert_null(ds_checkpoint_at(c, 6));
        CHECK_OK(*state, ds_checkpoint_verify(c));
        ds_checkpoint_close(&c);
    }
    scratch_remove(dir);
}

static void states_come_back(void **state)
{
    char *dir = scratch_make();
    ds_checkpoint *c = NULL;
    CHECK_OK(*state, cut_save(*state, dir, "a", 1));
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, "a", &c));
    const char *random = ds_checkpoint_state(c, "random");
    assert_non_null(strstr(random, "9223372036854775807"));
    assert_true(strtod(strstr(random, "0.1"), NULL) == 0.1);
    assert_true(strtod(strstr(ds_checkpoint_state(c, "config"), "2.5"), NULL) == 2.5e-300);
    assert_string_equal(ds_checkpoint_state(c, "data"), "null");
    assert_null(ds_checkpoint_state(c, "absent"));
    assert_string_equal(ds_checkpoint_state_name(c, 1), "config");
    assert_null(ds_checkpoint_state_name(c, 3));
    ds_checkpoint_close(&c);
    scratch_remove(dir);
}

/* Any part can be read from any cut. */
static void reads_parts(void **state)
{
    static const struct {
        ds_extent extent;
    } parts[] = {
        {{.flat = true, .begin = 0, .count = 1}},  {{.flat = true, .begin = 4, .count = 13}},
        {{.flat = true, .begin = 29, .count = 1}}, {{.flat = true, .begin = 30, .count = 0}},
        {{.offset = {0, 0}, .lengths = {6, 5}}},   {{.offset = {2, 0}, .lengths = {3, 5}}},
        {{.offset = {1, 1}, .lengths = {4, 2}}},   {{.offset = {5, 4}, .lengths = {1, 1}}},
        {{.offset = {0, 3}, .lengths = {6, 0}}},
    };
    static const char *const kinds[] = {"param", "master", "exp_avg"};
    char *dir = scratch_make();
    ds_checkpoint *c = NULL;
    CHECK_OK(*state, cut_save(*state, dir, "a", 2));
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; ++p) {
        for (size_t k = 0; k < 3; ++k) {
            const ds_extent *e = &parts[p].extent;
            const ds_checkpoint_tensor *t = ds_checkpoint_find(c, kinds[k], "w");
            float out[CUT_COUNT + 1];
            double wide[CUT_COUNT];
            size_t at = 0;
            out[ds_extent_count(e, t->meta.shape)] = -77.0f;
            CHECK_OK(*state, ds_checkpoint_read(c, t, e, DS_DTYPE_F32, out));
            CHECK_OK(*state, ds_checkpoint_read(c, t, e, DS_DTYPE_F64, wide));
            for (int i = 0; i < CUT_COUNT; ++i) {
                const int64_t row = i / CUT_COLUMNS;
                const int64_t column = i % CUT_COLUMNS;
                const bool inside =
                    e->flat ? i >= e->begin && i < e->begin + e->count
                            : row >= e->offset[0] && row < e->offset[0] + e->lengths[0] &&
                                  column >= e->offset[1] && column < e->offset[1] + e->lengths[1];
                if (inside) {
                    assert_true(out[at] == cut_save_value(2, i) &&
                                wide[at] == (double)cut_save_value(2, i));
                    ++at;
                }
            }
            assert_int_equal(at, ds_extent_count(e, t->meta.shape));
            assert_true(out[at] == -77.0f);
        }
    }
    const ds_extent outside = ds_extent_flat(29, 2);
    const ds_extent far =
        ds_extent_box(2, (const int64_t[]){INT64_MAX, 0}, (const int64_t[]){2, INT64_MAX});
    float out[CUT_COUNT];
    const ds_checkpoint_tensor *t = ds_checkpoint_find(c, "param", "w");
    CHECK_FAILS(*state, ds_checkpoint_read(c, t, &outside, DS_DTYPE_F32, out), DS_ERR_SHAPE,
                "'param/w' was asked for that lies outside of f32[6,5]");
    CHECK_FAILS(*state, ds_checkpoint_read(c, t, &far, DS_DTYPE_F32, out), DS_ERR_SHAPE, "outside");
    CHECK_FAILS(*state, ds_checkpoint_read(c, t, NULL, DS_DTYPE_I32, out), DS_ERR_SHAPE,
                "cannot be read as i32");
    ds_checkpoint_close(&c);
    scratch_remove(dir);
}

static void replaces_a_tag(void **state)
{
    for (int exchange = 0; exchange < 2; ++exchange) {
        char *dir = scratch_make();
        ds_checkpoint *c = NULL;
        CHECK_OK(*state, cut_save(*state, dir, "best", 1));
        ds_checkpoint_writer *w = NULL;
        const ds_checkpoint_params params = {.dir = dir, .tag = "best", .step = 2};
        CHECK_OK(*state, ds_checkpoint_writer_create(*state, &params, &w));
        CHECK_OK(*state, dsi_ckpt_commit(&w, exchange == 1));
        assert_null(w);
        CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
        assert_true(ds_checkpoint_get_info(c)->step == 2 && ds_checkpoint_count(c) == 0);
        ds_checkpoint_close(&c);
        assert_int_equal(scratch_count(dir), 2);
        scratch_remove(dir);
    }
}

/* A kill between the two renames of the slow replacement: the old one is found and healed. */
static void survives_a_half_replacement(void **state)
{
    char *dir = scratch_make();
    ds_checkpoint *c = NULL;
    ds_checkpoint_entry *list = NULL;
    size_t n = 0;
    CHECK_OK(*state, cut_save(*state, dir, "best", 1));
    assert_int_equal(rename(scratch_path(dir, "best"), scratch_path(dir, ".best.ds_old")), 0);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    cut_save_check(*state, c, "param", 1);
    ds_checkpoint_close(&c);
    CHECK_OK(*state, ds_checkpoint_list(*state, dir, &list, &n));
    assert_true(n == 1 && list[0].whole && list[0].latest);
    assert_string_equal(list[0].tag, "best");
    ds_checkpoint_list_free(list, n);
    CHECK_OK(*state, cut_save(*state, dir, "next", 2));
    assert_int_equal(access(scratch_path(dir, "best"), F_OK), 0);
    assert_int_equal(scratch_count(dir), 3);
    scratch_remove(dir);
}

static void cleans_leftovers_but_not_living_saves(void **state)
{
    char *dir = scratch_make();
    ds_checkpoint_writer *living = NULL;
    const ds_checkpoint_params params = {.dir = dir, .tag = "living"};
    CHECK_OK(*state, ds_checkpoint_writer_create(*state, &params, &living));
    assert_int_equal(mkdir(scratch_path(dir, ".global_step9.ds_tmp.0123abcd"), 0777), 0);
    scratch_write(scratch_path(dir, ".global_step9.ds_tmp.0123abcd/part"), "x", 1);
    scratch_write(scratch_path(dir, ".latest.ds_tmp.89abcdef"), "x", 1);
    scratch_write(scratch_path(dir, ".not.ds_tmp.ours"), "x", 1);
    CHECK_OK(*state, cut_save(*state, dir, "a", 1));
    assert_int_equal(access(scratch_path(dir, ".not.ds_tmp.ours"), F_OK), 0);
    assert_int_equal(scratch_count(dir), 4); /* a, latest, the living one, the foreign file */
    CHECK_OK(*state, ds_checkpoint_writer_commit(&living));
    assert_int_equal(access(scratch_path(dir, "living/ds_manifest.json"), F_OK), 0);
    CHECK_OK(*state, ds_checkpoint_writer_create(*state, &params, &living));
    ds_checkpoint_writer_abort(&living);
    ds_checkpoint_writer_abort(&living);
    assert_int_equal(scratch_count(dir), 4);
    scratch_remove(dir);
}

static void lists_and_keeps(void **state)
{
    char *dir = scratch_make();
    ds_checkpoint_entry *list = NULL;
    size_t n = 0;
    for (int step = 1; step <= 5; ++step) {
        CHECK_OK(*state, cut_save(*state, dir, NULL, step * 7));
    }
    scratch_write(scratch_path(dir, "latest"), "global_step7\n", 13);
    assert_int_equal(mkdir(scratch_path(dir, "other"), 0777), 0);
    scratch_write(scratch_path(dir, "global_step28/ds_manifest.json"), "{}", 2);
    CHECK_OK(*state, ds_checkpoint_list(*state, dir, &list, &n));
    assert_int_equal(n, 5);
    assert_string_equal(list[0].tag, "global_step28");
    assert_true(!list[0].whole && !list[0].latest);
    assert_true(list[1].latest && list[1].whole && list[1].step == 7 && list[1].bytes > 0);
    assert_true(list[4].step == 35);
    ds_checkpoint_list_free(list, n);
    CHECK_OK(*state, ds_checkpoint_keep(*state, dir, 2));
    CHECK_OK(*state, ds_checkpoint_list(*state, dir, &list, &n));
    assert_int_equal(n, 3); /* the broken one, the latest, the newest */
    assert_string_equal(list[1].tag, "global_step7");
    assert_string_equal(list[2].tag, "global_step35");
    ds_checkpoint_list_free(list, n);
    assert_int_equal(scratch_count(dir), 5);
    CHECK_FAILS(*state, ds_checkpoint_keep(*state, dir, 0), DS_ERR_ARG, "at least one");
    scratch_remove(dir);
}

static void refuses_bad_slices(void **state)
{
    char *dir = scratch_make();
    float x[8] = {0};
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_2d(2, 4)};
    const ds_extent half = ds_extent_flat(0, 4);
    const ds_extent most = ds_extent_flat(3, 5);
    const ds_extent beyond = ds_extent_flat(4, 5);
    const ds_extent column = ds_extent_box(2, (const int64_t[]){0, 3}, (const int64_t[]){2, 1});
    const struct {
        ds_checkpoint_slice slices[2];
        ds_status add, commit;
        const char *text;
    } cases[] = {
        {{{.kind = "Param", .name = "w", .meta = meta, .data = x}}, DS_ERR_ARG, 0, "'Param/w'"},
        {{{.kind = "../x", .name = "w", .meta = meta, .data = x}}, DS_ERR_ARG, 0, "'../x/w'"},
        {{{.kind = "param", .name = "", .meta = meta, .data = x}}, DS_ERR_ARG, 0, "'param/'"},
        {{{.kind = "param", .name = "w", .meta = {DS_DTYPE_NONE, {0}}, .data = x}},
         DS_ERR_SHAPE,
         0,
         "cannot be stored"},
        {{{.kind = "param", .name = "w", .meta = meta, .extent = &beyond, .data = x}},
         DS_ERR_SHAPE,
         0,
         "lies outside of f32[2,4]"},
        {{{.kind = "param", .name = "w", .meta = meta, .extent = &half, .data = x}},
         DS_OK,
         DS_ERR_SHAPE,
         "the slices of tensor 'param/w' do not cover it"},
        {{{.kind = "param", .name = "w", .meta = meta, .extent = &half, .data = x},
          {.kind = "param", .name = "w", .meta = meta, .extent = &most, .data = x}},
         DS_OK,
         DS_ERR_SHAPE,
         "elements that are given twice"},
        {{{.kind = "param", .name = "w", .meta = meta, .extent = &column, .data = x},
          {.kind = "param", .name = "w", .meta = meta, .extent = &half, .data = x}},
         DS_OK,
         DS_ERR_SHAPE,
         "elements that are given twice"},
        {{{.kind = "param", .name = "w", .meta = meta, .data = x},
          {.kind = "param", .name = "w", .meta = {DS_DTYPE_F32, ds_shape_1d(8)}, .data = x}},
         DS_OK,
         DS_ERR_SHAPE,
         "different shapes"},
        {{{.kind = "param", .name = "w", .meta = meta}}, DS_OK, DS_ERR_ARG, "has no data"},
        {{{.kind = "param", .name = "w\xff", .meta = meta, .data = x}},
         DS_OK,
         DS_ERR_ARG,
         "cannot be the name"},
    };
    CHECK_OK(*state, cut_save(*state, dir, "a", 1));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        ds_checkpoint_writer *w = NULL;
        const ds_checkpoint_params params = {.dir = dir, .tag = "a"};
        CHECK_OK(*state, ds_checkpoint_writer_create(*state, &params, &w));
        if (cases[i].add != DS_OK) {
            CHECK_FAILS(*state, ds_checkpoint_writer_add(w, &cases[i].slices[0]), cases[i].add,
                        cases[i].text);
            ds_checkpoint_writer_abort(&w);
        } else {
            for (size_t k = 0; k < 2 && cases[i].slices[k].kind != NULL; ++k) {
                CHECK_OK(*state, ds_checkpoint_writer_add(w, &cases[i].slices[k]));
            }
            CHECK_FAILS(*state, ds_checkpoint_writer_commit(&w), cases[i].commit, cases[i].text);
        }
    }
    ds_checkpoint *c = NULL;
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c)); /* nothing lost */
    cut_save_check(*state, c, "param", 1);
    ds_checkpoint_close(&c);
    assert_int_equal(scratch_count(dir), 2);
    scratch_remove(dir);
}

static void refuses_bad_states_and_tags(void **state)
{
    static const char *const tags[] = {"",   ".",       "..",     "a/b", "../a",
                                       "/a", ".hidden", "latest", "a\nb"};
    char *dir = scratch_make();
    ds_checkpoint_writer *w = NULL;
    ds_checkpoint *c = NULL;
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; ++i) {
        const ds_checkpoint_params params = {.dir = dir, .tag = tags[i]};
        CHECK_FAILS(*state, ds_checkpoint_writer_create(*state, &params, &w), DS_ERR_ARG,
                    "cannot be a checkpoint's tag");
        CHECK_FAILS(*state, ds_checkpoint_open(*state, dir, tags[i], &c), DS_ERR_ARG,
                    "is not the tag of a checkpoint");
    }
    assert_int_equal(scratch_count(dir), 0);
    const ds_checkpoint_params params = {.dir = dir, .tag = "a"};
    CHECK_OK(*state, ds_checkpoint_writer_create(*state, &params, &w));
    CHECK_FAILS(*state, ds_checkpoint_writer_state(w, "data", "{\"a\":}"), DS_ERR_ARG,
                "state 'data':1:6: ");
    CHECK_FAILS(*state, ds_checkpoint_writer_state(w, "data", "18446744073709551615"), DS_ERR_ARG,
                "state 'data'");
    CHECK_FAILS(*state, ds_checkpoint_writer_state(w, "Da ta", "1"), DS_ERR_ARG, "'Da ta'");
    CHECK_OK(*state, ds_checkpoint_writer_state(w, "data", "1"));
    CHECK_FAILS(*state, ds_checkpoint_writer_state(w, "data", "1"), DS_ERR_ARG, "given twice");
    ds_checkpoint_writer_abort(&w);
    scratch_remove(dir);
}

/* What version 1 wrote must load as long as there is a version 1. The folder was made by this
 * program: test_checkpoint write FOLDER. */
static void loads_the_golden_checkpoint(void **state)
{
    ds_checkpoint *c = NULL;
    CHECK_OK(*state, ds_checkpoint_open(*state, DS_SOURCE_DIR "/test/golden/ckpt", "step2", &c));
    cut_save_check(*state, c, "param", 2);
    cut_save_check(*state, c, "master", 2);
    cut_save_check(*state, c, "exp_avg", 2);
    assert_string_equal(ds_checkpoint_state(c, "data"), "null");
    CHECK_OK(*state, ds_checkpoint_verify(c));
    ds_checkpoint_close(&c);
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state);
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "write") == 0) {
        void *ctx = NULL;
        const bool failed = set_up(&ctx) < 0 || cut_save(ctx, argv[2], "step2", 2) < 0;
        (void)tear_down(&ctx);
        return failed;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves_and_loads),
        cmocka_unit_test(states_come_back),
        cmocka_unit_test(reads_parts),
        cmocka_unit_test(replaces_a_tag),
        cmocka_unit_test(survives_a_half_replacement),
        cmocka_unit_test(cleans_leftovers_but_not_living_saves),
        cmocka_unit_test(lists_and_keeps),
        cmocka_unit_test(refuses_bad_slices),
        cmocka_unit_test(refuses_bad_states_and_tags),
        cmocka_unit_test(loads_the_golden_checkpoint),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
