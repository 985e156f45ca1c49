/* Checkpoints: what is saved comes back, whatever the cut; every kind of damage is refused by name
 * with another checkpoint to load; killed saves leave the one before. */
#include "common/check.h"
#include "common/scratch.h"

#include "base/half.h"
#include "ckpt/ckpt_internal.h"
#include <deepspeed/checkpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { ROWS = 6, COLUMNS = 5, COUNT = ROWS * COLUMNS };

static float value(int step, int i)
{
    return (float)(step * 1000 + i) * 0.25f;
}

/* Saves two tensors, one of them in three slices of different cuts, and three states. */
static ds_status save(ds_ctx *ctx, const char *dir, const char *tag, int step)
{
    float whole[COUNT];
    float column[ROWS];
    float rest[COUNT];
    uint16_t half[4] = {0x3f80, 0, 0, (uint16_t)step};
    for (int i = 0; i < COUNT; ++i) {
        whole[i] = value(step, i);
    }
    for (int r = 0; r < ROWS; ++r) {
        column[r] = whole[r * COLUMNS];
        memcpy(rest + r * (COLUMNS - 1), whole + r * COLUMNS + 1, (COLUMNS - 1) * sizeof(float));
    }
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_2d(ROWS, COLUMNS)};
    const ds_extent first = ds_extent_flat(0, 7);
    const ds_extent last = ds_extent_flat(7, COUNT - 7);
    const ds_extent left = ds_extent_box(2, (const int64_t[]){0, 0}, (const int64_t[]){ROWS, 1});
    const ds_extent right =
        ds_extent_box(2, (const int64_t[]){0, 1}, (const int64_t[]){ROWS, COLUMNS - 1});
    const ds_checkpoint_slice slices[] = {
        {.kind = "param", .name = "w", .meta = meta, .data = whole},
        {.kind = "master", .name = "w", .meta = meta, .extent = &last, .data = whole + 7},
        {.kind = "master", .name = "w", .meta = meta, .extent = &first, .data = whole},
        {.kind = "exp_avg", .name = "w", .meta = meta, .extent = &right, .data = rest},
        {.kind = "exp_avg", .name = "w", .meta = meta, .extent = &left, .data = column},
        {.kind = "param", .name = "b.half", .meta = {DS_DTYPE_BF16, ds_shape_1d(4)}, .data = half},
        {.kind = "param", .name = "scalar", .meta = {DS_DTYPE_F32, {0}}, .data = whole + 1},
        {.kind = "param", .name = "empty", .meta = {DS_DTYPE_F32, ds_shape_1d(0)}},
    };
    ds_checkpoint_writer *w = NULL;
    const ds_checkpoint_params params = {.dir = dir,
                                         .tag = tag,
                                         .step = (uint64_t)step,
                                         .samples = (uint64_t)step * 8,
                                         .tokens = (uint64_t)step * 1024,
                                         .optimizer = "adamw"};
    DS_TRY(ds_checkpoint_writer_create(ctx, &params, &w));
    ds_status status = DS_OK;
    for (size_t i = 0; i < sizeof slices / sizeof slices[0]; ++i) {
        DS_TRY_GOTO(status, ds_checkpoint_writer_add(w, &slices[i]), undo);
    }
    DS_TRY_GOTO(status,
                ds_checkpoint_writer_state(w, "random",
                                           " { \"seed\": 9223372036854775807,\n \"x\": 0.1 } "),
                undo);
    DS_TRY_GOTO(status, ds_checkpoint_writer_state(w, "config", "{\"a\":[1,2.5e-300,\"\\u00e9\"]}"),
                undo);
    DS_TRY_GOTO(status, ds_checkpoint_writer_state(w, "data", "null"), undo);
    return ds_checkpoint_writer_commit(&w);
undo:
    ds_checkpoint_writer_abort(&w);
    return status;
}

static void check_whole(ds_ctx *ctx, ds_checkpoint *c, const char *kind, int step)
{
    float out[COUNT];
    const ds_checkpoint_tensor *t = ds_checkpoint_find(c, kind, "w");
    assert_non_null(t);
    CHECK_OK(ctx, ds_checkpoint_read(c, t, NULL, DS_DTYPE_F32, out));
    for (int i = 0; i < COUNT; ++i) {
        assert_true(out[i] == value(step, i));
    }
}

static void saves_and_loads(void **state)
{
    char *dir = scratch_make();
    const char *save_dir = scratch_path(dir, "deep/er");
    CHECK_OK(*state, save(*state, save_dir, NULL, 3));
    CHECK_OK(*state, save(*state, save_dir, NULL, 12));
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
        check_whole(*state, c, "param", step);
        check_whole(*state, c, "master", step);
        check_whole(*state, c, "exp_avg", step);
        float bias[4];
        CHECK_OK(*state, ds_checkpoint_read(c, ds_checkpoint_find(c, "param", "b.half"), NULL,
                                            DS_DTYPE_F32, bias));
        assert_true(bias[0] == 1.0f && bias[3] == dsi_bf16_to_f32((uint16_t)step));
        CHECK_OK(*state, ds_checkpoint_read(c, ds_checkpoint_find(c, "param", "scalar"), NULL,
                                            DS_DTYPE_F32, bias));
        assert_true(bias[0] == value(step, 1));
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
    CHECK_OK(*state, save(*state, dir, "a", 1));
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
    CHECK_OK(*state, save(*state, dir, "a", 2));
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; ++p) {
        for (size_t k = 0; k < 3; ++k) {
            const ds_extent *e = &parts[p].extent;
            const ds_checkpoint_tensor *t = ds_checkpoint_find(c, kinds[k], "w");
            float out[COUNT + 1];
            double wide[COUNT];
            size_t at = 0;
            out[ds_extent_count(e, t->meta.shape)] = -77.0f;
            CHECK_OK(*state, ds_checkpoint_read(c, t, e, DS_DTYPE_F32, out));
            CHECK_OK(*state, ds_checkpoint_read(c, t, e, DS_DTYPE_F64, wide));
            for (int i = 0; i < COUNT; ++i) {
                const int64_t row = i / COLUMNS;
                const int64_t column = i % COLUMNS;
                const bool inside =
                    e->flat ? i >= e->begin && i < e->begin + e->count
                            : row >= e->offset[0] && row < e->offset[0] + e->lengths[0] &&
                                  column >= e->offset[1] && column < e->offset[1] + e->lengths[1];
                if (inside) {
                    assert_true(out[at] == value(2, i) && wide[at] == (double)value(2, i));
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
    float out[COUNT];
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
        CHECK_OK(*state, save(*state, dir, "best", 1));
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
    CHECK_OK(*state, save(*state, dir, "best", 1));
    assert_int_equal(rename(scratch_path(dir, "best"), scratch_path(dir, ".best.ds_old")), 0);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    check_whole(*state, c, "param", 1);
    ds_checkpoint_close(&c);
    CHECK_OK(*state, ds_checkpoint_list(*state, dir, &list, &n));
    assert_true(n == 1 && list[0].whole && list[0].latest);
    assert_string_equal(list[0].tag, "best");
    ds_checkpoint_list_free(list, n);
    CHECK_OK(*state, save(*state, dir, "next", 2));
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
    CHECK_OK(*state, save(*state, dir, "a", 1));
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
        CHECK_OK(*state, save(*state, dir, NULL, step * 7));
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
    CHECK_OK(*state, save(*state, dir, "a", 1));
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
    check_whole(*state, c, "param", 1);
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

/* ---- damage ---- */

static void edit(const char *path, const char *from, const char *to, bool sign)
{
    size_t n = 0;
    char *text = scratch_read(path, &n);
    char *at = strstr(text, from);
    if (at == NULL) {
        fail_msg("%s does not contain %s", path, from);
        return;
    }
    char *out = malloc(n + strlen(to) + 1);
    const size_t head = (size_t)(at - text);
    memcpy(out, text, head);
    (void)sprintf(out + head, "%s%s", to, at + strlen(from));
    if (sign) { /* as somebody who knows the format would */
        char *tail = strstr(out, "\"checksum\"");
        (void)sprintf(tail, "\"checksum\": \"%016llx\"\n}\n",
                      (unsigned long long)XXH3_64bits(out, (size_t)(tail - out)));
    }
    scratch_write(path, out, strlen(out));
    free(out);
    free(text);
}

static void flip(const char *path, long from_end)
{
    size_t n = 0;
    char *data = scratch_read(path, &n);
    data[n - (size_t)from_end] ^= 0x10;
    scratch_write(path, data, n);
    free(data);
}

typedef enum damage {
    EDIT, /* manifest text */
    EDIT_SIGNED,
    CUT,   /* file to n bytes */
    FLIP,  /* a bit, n bytes before the end of file */
    GONE,  /* file is removed */
    LINK,  /* file becomes a link to its copy */
    WRITE, /* file gets this text */
    FOLDER /* file becomes a folder */
} damage;

#define MANIFEST "b/ds_manifest.json"
#define SHARD    "b/ds_shard_00000_of_00001.safetensors"

static const struct {
    damage damage;
    const char *file;
    const char *from, *to;
    long n;
    ds_status status;
    const char *text;
} damages[] = {
    {EDIT, MANIFEST, "\"step\": 2", "\"step\": 3", 0, DS_ERR_CORRUPT, "does not have its checksum"},
    {EDIT, MANIFEST, "\"checksum\"", "\"Checksum\"", 0, DS_ERR_CORRUPT, "checksum line"},
    {CUT, MANIFEST, NULL, NULL, 0, DS_ERR_CORRUPT, "cut short"},
    {CUT, MANIFEST, NULL, NULL, 200, DS_ERR_CORRUPT, "cut short"},
    {FLIP, MANIFEST, NULL, NULL, 300, DS_ERR_CORRUPT, "b/ds_manifest.json"},
    {GONE, MANIFEST, NULL, NULL, 0, DS_ERR_NOT_FOUND, "b/ds_manifest.json"},
    {LINK, MANIFEST, NULL, NULL, 0, DS_ERR_IO, "is a symbolic link"},
    {FOLDER, MANIFEST, NULL, NULL, 0, DS_ERR_IO, "it is a folder"},
    {EDIT_SIGNED, MANIFEST, "\"version\": 1", "\"version\": 2", 0, DS_ERR_UNSUPPORTED, "version 2"},
    {EDIT_SIGNED, MANIFEST, "\"ds_checkpoint\"", "\"other\"", 0, DS_ERR_FORMAT,
     "format or version"},
    {EDIT_SIGNED, MANIFEST, "\"step\": 2", "\"step\": -2", 0, DS_ERR_FORMAT, "step, samples"},
    {EDIT_SIGNED, MANIFEST, "\"step\": 2", "\"step\": 2.0", 0, DS_ERR_FORMAT, "step, samples"},
    {EDIT_SIGNED, MANIFEST, "\"step\": 2", "\"step\": 2, \"step\": 2", 0, DS_ERR_FORMAT,
     "duplicate"},
    {EDIT_SIGNED, MANIFEST, "\"tag\": \"b\"", "\"tag\": \"../b\"", 0, DS_ERR_FORMAT, "tag"},
    {EDIT_SIGNED, MANIFEST, "\"states\": {", "\"states\": [{", 0, DS_ERR_FORMAT,
     "ds_manifest.json:"},
    {EDIT_SIGNED, MANIFEST, "\"ds_shard_00000", "\"../a/ds_shard_00000", 0, DS_ERR_FORMAT,
     "found '../a/ds_shard"},
    {EDIT_SIGNED, MANIFEST, "\"ds_shard_00000_of", "\"/ds_shard_00000_of", 0, DS_ERR_FORMAT,
     "expected the name of a file in this folder"},
    {EDIT_SIGNED, MANIFEST, "\"ds_shard_00000_of", "\"ds_shard_00001_of", 0, DS_ERR_NOT_FOUND,
     "ds_shard_00001_of"},
    {EDIT_SIGNED, MANIFEST, "\"shape\": [6,5]", "\"shape\": [6,4611686018427387904]", 0,
     DS_ERR_FORMAT, "has a wrong dtype or shape"},
    {EDIT_SIGNED, MANIFEST, "\"shape\": [6,5]", "\"shape\": [6,6]", 0, DS_ERR_FORMAT,
     "leave a gap"},
    {EDIT_SIGNED, MANIFEST, "\"shape\": [6,5]", "\"shape\": [6,-5]", 0, DS_ERR_FORMAT, "wrong"},
    {EDIT_SIGNED, MANIFEST, "\"shape\": [6,5]", "\"shape\": [5,5]", 0, DS_ERR_FORMAT,
     "a slice of tensor 'exp_avg/w' is wrong"},
    {EDIT_SIGNED, MANIFEST, "\"dtype\": \"F32\"", "\"dtype\": \"F31\"", 0, DS_ERR_FORMAT,
     "wrong dtype"},
    {EDIT_SIGNED, MANIFEST, "\"dtype\": \"F32\"", "\"dtype\": \"I32\"", 0, DS_ERR_CORRUPT,
     "is not what the manifest lists"},
    {EDIT_SIGNED, MANIFEST, "\"flat\": [0,7]", "\"flat\": [1,7]", 0, DS_ERR_FORMAT, "overlap"},
    {EDIT_SIGNED, MANIFEST, "\"flat\": [0,7]", "\"flat\": [0,9223372036854775807]", 0,
     DS_ERR_FORMAT, "a slice of tensor 'master/w' is wrong"},
    {EDIT_SIGNED, MANIFEST, "\"shard\": 0", "\"shard\": 1", 0, DS_ERR_FORMAT, "a slice of tensor"},
    {EDIT_SIGNED, MANIFEST, "\"entry\": \"param/w\"", "\"entry\": \"param/v\"", 0, DS_ERR_CORRUPT,
     "lacks the tensor 'param/v'"},
    {EDIT_SIGNED, MANIFEST, "\"kind\": \"param\"", "\"kind\": \"aaa\"", 0, DS_ERR_FORMAT,
     "is twice or out of order"},
    {EDIT_SIGNED, MANIFEST, "\"tensors\": [", "\"tensors\": 5, \"x\": [", 0, DS_ERR_FORMAT,
     "tensors"},
    {GONE, SHARD, NULL, NULL, 0, DS_ERR_NOT_FOUND, "ds_shard_00000_of_00001.safetensors"},
    {CUT, SHARD, NULL, NULL, 1000, DS_ERR_CORRUPT, "has 1000 bytes, the manifest lists"},
    {CUT, SHARD, NULL, NULL, 0, DS_ERR_CORRUPT, "has 0 bytes"},
    {LINK, SHARD, NULL, NULL, 0, DS_ERR_IO, "is a symbolic link"},
    {FOLDER, SHARD, NULL, NULL, 0, DS_ERR_IO, "it is a folder"},
    {WRITE, "latest", "gone", NULL, 0, DS_ERR_NOT_FOUND, "gone/ds_manifest.json"},
    {WRITE, "latest", "", NULL, 0, DS_ERR_FORMAT, "expected the tag of a checkpoint"},
    {WRITE, "latest", "../../etc", NULL, 0, DS_ERR_FORMAT, "found '../../etc'"},
    {WRITE, "latest", "\x01\x02\xff", NULL, 0, DS_ERR_FORMAT, "expected the tag"},
    {GONE, "latest", NULL, NULL, 0, DS_ERR_NOT_FOUND, "has no file 'latest'"},
    {FOLDER, "latest", NULL, NULL, 0, DS_ERR_IO, "it is a folder"},
};

static void do_damage(const char *dir, size_t i)
{
    const char *path = scratch_path(dir, damages[i].file);
    const char *copy = scratch_path(dir, "copy");
    switch (damages[i].damage) {
    case EDIT:
    case EDIT_SIGNED:
        edit(path, damages[i].from, damages[i].to, damages[i].damage == EDIT_SIGNED);
        break;
    case CUT:
        assert_int_equal(truncate(path, damages[i].n), 0);
        break;
    case FLIP:
        flip(path, damages[i].n);
        break;
    case GONE:
        assert_int_equal(unlink(path), 0);
        break;
    case LINK:
        assert_int_equal(rename(path, copy), 0);
        assert_int_equal(symlink(copy, path), 0);
        break;
    case WRITE:
        scratch_write(path, damages[i].from, strlen(damages[i].from));
        break;
    case FOLDER:
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkdir(path, 0777), 0);
        break;
    }
}

static void refuses_every_damage(void **state)
{
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; ++i) {
        char *dir = scratch_make();
        ds_checkpoint *c = NULL;
        CHECK_OK(*state, save(*state, dir, "a", 1));
        CHECK_OK(*state, save(*state, dir, "b", 2));
        do_damage(dir, i);
        CHECK_FAILS(*state, ds_checkpoint_open(*state, dir, NULL, &c), damages[i].status,
                    damages[i].text);
        assert_null(c);
        const bool of_latest = strcmp(damages[i].file, "latest") == 0;
        if (strstr(ds_ctx_error(*state),
                   of_latest ? "--resume b loads it" : "--resume a loads it") == NULL) {
            fail_msg("no offer: %s", ds_ctx_error(*state));
        }
        CHECK_OK(*state, ds_checkpoint_open(*state, dir, "a", &c)); /* nothing else is lost */
        check_whole(*state, c, "param", 1);
        ds_checkpoint_close(&c);
        scratch_remove(dir);
    }
}

/* Damage of the data is found by the read of that tensor, and by verify. */
static void finds_flipped_data(void **state)
{
    char *dir = scratch_make();
    ds_checkpoint *c = NULL;
    float out[COUNT];
    CHECK_OK(*state, save(*state, dir, "a", 1));
    CHECK_OK(*state, save(*state, dir, "b", 2));
    flip(scratch_path(dir, SHARD), 3); /* the last tensor of the file: bf16, param/b.half */
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    check_whole(*state, c, "param", 2);
    CHECK_FAILS(
        *state,
        ds_checkpoint_read(c, ds_checkpoint_find(c, "param", "b.half"), NULL, DS_DTYPE_F32, out),
        DS_ERR_CORRUPT, "'param/b.half' does not have its checksum");
    CHECK_FAILS(*state, ds_checkpoint_verify(c), DS_ERR_CORRUPT, "param/b.half");
    assert_non_null(strstr(ds_ctx_error(*state), "--resume a loads it"));
    ds_checkpoint_close(&c);
    scratch_remove(dir);
}

/* A byte of the shard that belongs to no tensor: one of its header's metadata. */
static void verify_covers_the_whole_file(void **state)
{
    char *dir = scratch_make();
    ds_checkpoint *c = NULL;
    size_t n = 0;
    CHECK_OK(*state, save(*state, dir, "b", 2));
    const char *path = scratch_path(dir, SHARD);
    char *data = scratch_read(path, &n);
    char *format = strstr(data + 8, "\"pt\"");
    assert_non_null(format);
    format[1] = 'q';
    scratch_write(path, data, n);
    free(data);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    check_whole(*state, c, "param", 2);
    CHECK_FAILS(*state, ds_checkpoint_verify(c), DS_ERR_CORRUPT,
                "safetensors does not have its checksum");
    ds_checkpoint_close(&c);
    scratch_remove(dir);
}

static void offers_nothing_when_there_is_nothing(void **state)
{
    char *dir = scratch_make();
    ds_checkpoint *c = NULL;
    CHECK_FAILS(*state, ds_checkpoint_open(*state, dir, NULL, &c), DS_ERR_NOT_FOUND,
                "holds no other whole checkpoint");
    CHECK_FAILS(*state, ds_checkpoint_open(*state, scratch_path(dir, "none"), NULL, &c),
                DS_ERR_NOT_FOUND, "has no file 'latest'");
    CHECK_OK(*state, save(*state, dir, "a", 1));
    CHECK_OK(*state, save(*state, dir, "b", 2));
    CHECK_OK(*state, save(*state, dir, "c", 3));
    flip(scratch_path(dir, "b/ds_shard_00000_of_00001.safetensors"), 3);
    flip(scratch_path(dir, "c/ds_manifest.json"), 100);
    CHECK_FAILS(*state, ds_checkpoint_open(*state, dir, NULL, &c), DS_ERR_CORRUPT,
                "--resume a loads it"); /* b's data is broken too */
    scratch_remove(dir);
}

/* A tag that is a link to a folder elsewhere is replaced without touching that folder. */
static void does_not_follow_a_linked_tag(void **state)
{
    char *dir = scratch_make();
    char *elsewhere = scratch_make();
    CHECK_OK(*state, save(*state, elsewhere, "mine", 1));
    assert_int_equal(symlink(scratch_path(elsewhere, "mine"), scratch_path(dir, "t")), 0);
    CHECK_OK(*state, save(*state, dir, "t", 2));
    struct stat st;
    assert_int_equal(lstat(scratch_path(dir, "t"), &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(scratch_count(scratch_path(elsewhere, "mine")), 2);
    scratch_remove(elsewhere);
    scratch_remove(dir);
}

static void write_shard(ds_ctx *ctx, const char *path, const char *name, ds_shape shape,
                        const float *data, dsi_ckpt_shard *shard, uint64_t *digest_out)
{
    size_t n = 0;
    const ds_tensor_source source = {.name = name, .meta = {DS_DTYPE_F32, shape}, .data = data};
    CHECK_OK(ctx, ds_safetensors_write(ctx, path, &source, 1, NULL));
    char *file = scratch_read(path, &n);
    shard->bytes = n;
    shard->digest = XXH3_64bits(file, n);
    *digest_out = XXH3_64bits(data, ds_meta_bytes(source.meta));
    free(file);
}

/* As two ranks would save it: the left and the right columns of a matrix. */
static void write_two_shards(ds_ctx *ctx, const char *dir)
{
    float left[ROWS * 2];
    float right[ROWS * 3];
    for (int i = 0; i < COUNT; ++i) {
        const int row = i / COLUMNS;
        const int column = i % COLUMNS;
        *(column < 2 ? &left[row * 2 + column] : &right[row * 3 + column - 2]) = value(4, i);
    }
    dsi_ckpt_shard shards[2] = {{.file = "ds_shard_00000_of_00002.safetensors"},
                                {.file = "ds_shard_00001_of_00002.safetensors"}};
    dsi_ckpt_slice slices[2] = {
        {.shard = 0, .entry = "param/w#0", .extent = {.lengths = {ROWS, 2}}},
        {.shard = 1, .entry = "param/w#1", .extent = {.offset = {0, 2}, .lengths = {ROWS, 3}}}};
    ds_checkpoint_tensor tensor = {.kind = "param",
                                   .name = "w",
                                   .meta = {DS_DTYPE_F32, ds_shape_2d(ROWS, COLUMNS)},
                                   .n_slices = 2};
    const dsi_ckpt_manifest m = {.info = {.tag = "t", .step = 4, .optimizer = ""},
                                 .shards = shards,
                                 .n_shards = 2,
                                 .tensors = &tensor,
                                 .n_tensors = 1,
                                 .slices = slices,
                                 .n_slices = 2};
    assert_int_equal(mkdir(scratch_path(dir, "t"), 0777), 0);
    write_shard(ctx, scratch_path(dir, "t/ds_shard_00000_of_00002.safetensors"), "param/w#0",
                ds_shape_2d(ROWS, 2), left, &shards[0], &slices[0].digest);
    write_shard(ctx, scratch_path(dir, "t/ds_shard_00001_of_00002.safetensors"), "param/w#1",
                ds_shape_2d(ROWS, 3), right, &shards[1], &slices[1].digest);
    dsi_buf text = dsi_buf_make(1 << 20);
    CHECK_OK(ctx, dsi_ckpt_manifest_text(ctx, &m, &text));
    scratch_write(scratch_path(dir, "t/ds_manifest.json"), text.data, text.size);
    dsi_buf_free(&text);
}

static void reads_across_shards(void **state)
{
    char *dir = scratch_make();
    ds_checkpoint *c = NULL;
    float out[4];
    write_two_shards(*state, dir);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, "t", &c));
    assert_int_equal(ds_checkpoint_get_info(c)->n_shards, 2);
    check_whole(*state, c, "param", 4);
    const ds_extent middle = ds_extent_box(2, (const int64_t[]){2, 1}, (const int64_t[]){2, 2});
    CHECK_OK(*state, ds_checkpoint_read(c, ds_checkpoint_find(c, "param", "w"), &middle,
                                        DS_DTYPE_F32, out));
    assert_true(out[0] == value(4, 11) && out[1] == value(4, 12) && out[2] == value(4, 16) &&
                out[3] == value(4, 17));
    CHECK_OK(*state, ds_checkpoint_verify(c));
    ds_checkpoint_close(&c);
    flip(scratch_path(dir, "t/ds_shard_00001_of_00002.safetensors"), 3);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, "t", &c));
    const ds_extent left = ds_extent_box(2, (const int64_t[]){0, 0}, (const int64_t[]){2, 2});
    CHECK_OK(*state, ds_checkpoint_read(c, ds_checkpoint_find(c, "param", "w"), &left, DS_DTYPE_F32,
                                        out)); /* touches the sound shard only */
    CHECK_FAILS(
        *state,
        ds_checkpoint_read(c, ds_checkpoint_find(c, "param", "w"), &middle, DS_DTYPE_F32, out),
        DS_ERR_CORRUPT, "ds_shard_00001_of_00002.safetensors: the data of tensor");
    ds_checkpoint_close(&c);
    assert_int_equal(unlink(scratch_path(dir, "t/ds_shard_00001_of_00002.safetensors")), 0);
    CHECK_FAILS(*state, ds_checkpoint_open(*state, dir, "t", &c), DS_ERR_NOT_FOUND,
                "ds_shard_00001_of_00002");
    scratch_remove(dir);
}

/* What version 1 wrote must load as long as there is a version 1. The folder was made by this
 * program: test_checkpoint write FOLDER. */
static void loads_the_golden_checkpoint(void **state)
{
    ds_checkpoint *c = NULL;
    CHECK_OK(*state, ds_checkpoint_open(*state, DS_SOURCE_DIR "/test/golden/ckpt", "step2", &c));
    check_whole(*state, c, "param", 2);
    check_whole(*state, c, "master", 2);
    check_whole(*state, c, "exp_avg", 2);
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
        const bool failed = set_up(&ctx) < 0 || save(ctx, argv[2], "step2", 2) < 0;
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
        cmocka_unit_test(refuses_every_damage),
        cmocka_unit_test(finds_flipped_data),
        cmocka_unit_test(verify_covers_the_whole_file),
        cmocka_unit_test(offers_nothing_when_there_is_nothing),
        cmocka_unit_test(does_not_follow_a_linked_tag),
        cmocka_unit_test(reads_across_shards),
        cmocka_unit_test(loads_the_golden_checkpoint),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
