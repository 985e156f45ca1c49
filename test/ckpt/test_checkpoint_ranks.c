/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of N ranks: any cut that is saved loads on any other, bit for bit; what one rank
 * cannot do fails the save on all and leaves the checkpoint before it.
 * labels: threads */
#include "common/check.h"
#include "common/rank_saves.h"
#include "common/rank_threads.h"
#include "common/scratch.h"

#include "io/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint32_t sizes[] = {1, 2, 3, 4, 8};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

static ds_status save_job(dsi_comm *comm, void *arg)
{
    return rank_save_run(comm->ctx, comm, arg);
}

static size_t file_bytes(const char *dir, const char *tag, uint32_t rank, uint32_t size)
{
    char name[256];
    struct stat st;
    (void)snprintf(name, sizeof name, "%s/%s/ds_shard_%05u_of_%05u.safetensors", dir, tag, rank,
                   size);
    assert_int_equal(stat(name, &st), 0);
    return (size_t)st.st_size;
}

static void loads_on_any_ranks(void **state)
{
    char *dir = scratch_make();
    for (size_t i = 0; i < N_SIZES; ++i) {
        rank_save save = {.dir = dir, .step = sizes[i] * 10};
        assert_int_equal(rank_threads_run(sizes[i], NULL, save_job, &save, NULL), DS_OK);
        ds_checkpoint *c = NULL;
        CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
        assert_int_equal(ds_checkpoint_get_info(c)->n_shards, sizes[i]);
        CHECK_OK(*state, ds_checkpoint_verify(c));
        for (size_t k = 0; k < N_SIZES; ++k) {
            for (uint32_t r = 0; r < sizes[k]; ++r) {
                CHECK_OK(*state, rank_save_check(*state, c, save.step, 1, r, sizes[k]));
            }
        }
        ds_checkpoint_close(&c);
    }
    scratch_remove(dir);
}

/* The shards of a save of 8 ranks differ by less than a tenth, headers included. */
static void shards_are_balanced(void **state)
{
    char *dir = scratch_make();
    rank_save save = {.dir = dir, .tag = "t", .step = 1, .scale = 50};
    assert_int_equal(rank_threads_run(8, NULL, save_job, &save, NULL), DS_OK);
    size_t low = SIZE_MAX;
    size_t high = 0;
    for (uint32_t r = 0; r < 8; ++r) {
        const size_t n = file_bytes(dir, "t", r, 8);
        low = n < low ? n : low;
        high = n > high ? n : high;
    }
    assert_true(high - low < high / 10);
    ds_checkpoint *c = NULL;
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    CHECK_OK(*state, rank_save_check(*state, c, 1, 50, 0, 1));
    ds_checkpoint_close(&c);
    scratch_remove(dir);
}

/* After a failed save: nothing but the checkpoint of step 1 and `latest`. */
static void only_the_first_is_there(ds_ctx *ctx, const char *dir)
{
    ds_checkpoint *c = NULL;
    CHECK_OK(ctx, ds_checkpoint_open(ctx, dir, NULL, &c));
    CHECK_OK(ctx, ds_checkpoint_verify(c));
    CHECK_OK(ctx, rank_save_check(ctx, c, 1, 1, 0, 1));
    ds_checkpoint_close(&c);
    assert_int_equal(scratch_count(dir), 2);
}

static char *with_first(void)
{
    char *dir = scratch_make();
    rank_save save = {.dir = dir, .step = 1};
    assert_int_equal(rank_threads_run(3, NULL, save_job, &save, NULL), DS_OK);
    return dir;
}

static void one_rank_fails(void **state)
{
    char *dir = with_first();
    for (uint32_t r = 0; r < 4; ++r) {
        rank_save save = {.dir = dir, .step = 2, .fail_rank = r, .fail_at = 1};
        rank_results results;
        char who[32];
        (void)snprintf(who, sizeof who, "rank %u on ", r);
        (void)rank_threads_run(4, NULL, save_job, &save, &results);
        for (uint32_t k = 0; k < 4; ++k) {
            assert_int_equal(results.status[k], DS_ERR_DEVICE);
            assert_non_null(strstr(results.message[k], who));
        }
        only_the_first_is_there(*state, dir);
    }
    scratch_remove(dir);
}

/* A rank is lost at its n-th exchange, for every n until the save has no more. */
static void one_rank_is_lost(void **state)
{
    char *dir = with_first();
    int failed = 0;
    for (uint64_t at = 1; at < 100; ++at) {
        const dsi_comm_sim_options options = {.drop_rank = (uint32_t)(at % 3), .drop_at = at};
        rank_save save = {.dir = dir, .step = 2};
        rank_results results;
        const ds_status status = rank_threads_run(3, &options, save_job, &save, &results);
        ds_checkpoint *c = NULL;
        CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
        CHECK_OK(*state, ds_checkpoint_verify(c));
        const uint64_t step = ds_checkpoint_get_info(c)->step;
        CHECK_OK(*state, rank_save_check(*state, c, step, 1, 0, 1));
        ds_checkpoint_close(&c);
        if (status == DS_OK) {
            assert_int_equal(step, 2);
            break;
        }
        ++failed;
        for (uint32_t r = 0; r < 3; ++r) {
            assert_true(results.status[r] ==
                        (r == options.drop_rank ? DS_ERR_INTERRUPTED : DS_ERR_PEER));
        }
    }
    assert_true(failed > 10 && failed < 99);
    rank_save again = {.dir = dir, .step = 3};
    assert_int_equal(rank_threads_run(3, NULL, save_job, &again, NULL), DS_OK);
    assert_int_equal(scratch_count(dir), 4); /* steps 1, 2, 3 and `latest` */
    scratch_remove(dir);
}

/* ---- ranks that do not agree ---- */

typedef struct odd {
    const char *dir;
    ds_checkpoint_tag_validation validation;
    enum {
        OTHER_TAG,
        OTHER_STEP,
        GAP,
        TWICE,
        OTHER_SHAPE,
        OTHER_STATE,
        OTHER_REPLICATED,
        GIVES_UP,
        BAD_TAG
    } how;
} odd;

static ds_status odd_job(dsi_comm *comm, void *arg)
{
    const odd *o = arg;
    const bool last = comm->rank + 1 == comm->size;
    const float data[8] = {0};
    const ds_checkpoint_params params = {.dir = o->dir,
                                         .tag = last && o->how == OTHER_TAG ? "b"
                                                : last && o->how == BAD_TAG ? "../x"
                                                                            : "a",
                                         .step = last && o->how == OTHER_STEP ? 8 : 7,
                                         .tag_validation = o->validation};
    ds_checkpoint_writer *w = NULL;
    DS_TRY(dsi_checkpoint_writer_create_on(comm->ctx, &params, comm, &w));
    const ds_extent mine = ds_extent_flat(comm->rank * 4, 4);
    const ds_extent wrong = ds_extent_flat(o->how == TWICE ? 3 : 5, o->how == TWICE ? 5 : 3);
    const ds_checkpoint_slice cut = {
        .kind = "master",
        .name = "w",
        .meta = {DS_DTYPE_F32, ds_shape_1d(last && o->how == OTHER_SHAPE ? 9 : 8)},
        .extent = last && (o->how == GAP || o->how == TWICE) ? &wrong : &mine,
        .data = data};
    const ds_checkpoint_slice all = {.kind = "param",
                                     .name = last && o->how == OTHER_REPLICATED ? "q" : "p",
                                     .meta = {DS_DTYPE_F32, ds_shape_1d(8)},
                                     .data = data,
                                     .replicated = true};
    CHECK_OK(comm->ctx, ds_checkpoint_writer_add(w, &cut));
    CHECK_OK(comm->ctx, ds_checkpoint_writer_add(w, &all));
    CHECK_OK(comm->ctx,
             ds_checkpoint_writer_state(w, "random",
                                        last && o->how == OTHER_STATE ? "{\"a\":2}" : "{\"a\":1}"));
    if (last && o->how == GIVES_UP) {
        (void)ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory to copy");
        ds_checkpoint_writer_abort(&w);
        return DS_ERR_NOMEM;
    }
    return ds_checkpoint_writer_commit(&w);
}

static void ranks_disagree(void **state)
{
    static const struct {
        odd o;
        ds_status status;
        const char *text;
    } cases[] = {
        {{.how = OTHER_TAG, .validation = DS_CHECKPOINT_TAG_FAIL},
         DS_ERR_PEER,
         "different tags: rank 0 'a', rank 1 'b'"},
        {{.how = OTHER_TAG}, DS_OK, ""},
        {{.how = OTHER_TAG, .validation = DS_CHECKPOINT_TAG_IGNORE}, DS_OK, ""},
        {{.how = OTHER_STEP}, DS_ERR_PEER, "rank 1 has done 8 steps"},
        {{.how = GAP}, DS_ERR_SHAPE, "'master/w' do not cover it"},
        {{.how = TWICE}, DS_ERR_SHAPE, "'master/w' has elements that are given twice"},
        {{.how = OTHER_SHAPE}, DS_ERR_SHAPE, "f32[8] by rank 0, f32[9] by rank 1"},
        {{.how = OTHER_STATE}, DS_ERR_ARG, "rank 1 gives another text for state 'random'"},
        {{.how = OTHER_REPLICATED}, DS_ERR_PEER, "rank 1 gives other replicated tensors"},
        {{.how = GIVES_UP}, DS_ERR_INTERRUPTED, "gave up saving checkpoint a: no memory to copy"},
        {{.how = BAD_TAG}, DS_ERR_ARG, "rank 1 on "},
    };
    char *dir = with_first();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        odd o = cases[i].o;
        rank_results results;
        o.dir = dir;
        (void)rank_threads_run(2, NULL, odd_job, &o, &results);
        if (results.status[0] != cases[i].status ||
            (cases[i].status < 0 && strstr(results.message[0], cases[i].text) == NULL)) {
            fail_msg("case %zu: %s: %s", i, ds_status_name(results.status[0]), results.message[0]);
        }
        if (cases[i].status == DS_OK) {
            ds_checkpoint *c = NULL;
            CHECK_OK(*state, ds_checkpoint_open(*state, dir, "a", &c));
            ds_checkpoint_close(&c);
            assert_int_equal(scratch_count(dir), 3);
            rank_save save = {.dir = dir, .step = 1};
            CHECK_OK(*state, rank_save_run(*state, NULL, &save));
            CHECK_OK(*state, dsi_folder_discard(*state, dir, "a"));
        } else {
            assert_true(results.status[1] < 0);
            only_the_first_is_there(*state, dir);
        }
    }
    scratch_remove(dir);
}

/* ---- loading on ranks ---- */

typedef struct load {
    const char *dir, *tag;
    const char *const *dirs;
    uint64_t step;
    bool swap; /* read what the last rank read, too */
} load;

static ds_status load_job(dsi_comm *comm, void *arg)
{
    const load *l = arg;
    ds_checkpoint *c = NULL;
    DS_TRY(dsi_checkpoint_open_on(comm->ctx, l->dirs != NULL ? l->dirs[comm->rank] : l->dir, l->tag,
                                  comm, &c));
    ds_status status = rank_save_check(comm->ctx, c, l->step, 1, comm->rank, comm->size);
    if (status == DS_OK && l->swap) {
        status = rank_save_check(comm->ctx, c, l->step, 1, 0, 1);
    }
    ds_checkpoint_close(&c);
    return status;
}

static void opens_on_ranks(void **state)
{
    char *dir = scratch_make();
    rank_save save = {.dir = dir, .step = 5};
    load l = {.dir = dir, .step = 5};
    (void)state;
    assert_int_equal(rank_threads_run(3, NULL, save_job, &save, NULL), DS_OK);
    for (size_t k = 0; k < N_SIZES; ++k) {
        assert_int_equal(rank_threads_run(sizes[k], NULL, load_job, &l, NULL), DS_OK);
    }
    l.tag = "global_step6";
    rank_results results;
    assert_int_equal(rank_threads_run(4, NULL, load_job, &l, &results), DS_ERR_NOT_FOUND);
    for (uint32_t r = 0; r < 4; ++r) {
        assert_non_null(strstr(results.message[r], "global_step6/ds_manifest.json"));
        assert_non_null(strstr(results.message[r], "--resume global_step5 loads it"));
    }
    scratch_remove(dir);
}

/* One shard of many is damaged or gone: named, by whoever reads it, and by verify. */
static void one_shard_of_many(void **state)
{
    char *dir = scratch_make();
    rank_save save = {.dir = dir, .step = 5};
    ds_checkpoint *c = NULL;
    char *path = NULL;
    assert_int_equal(rank_threads_run(8, NULL, save_job, &save, NULL), DS_OK);
    assert_true(asprintf(&path, "%s/global_step5/ds_shard_00006_of_00008.safetensors", dir) > 0);
    size_t n = 0;
    char *bytes = scratch_read(path, &n);
    bytes[n - 5] ^= 4;
    scratch_write(path, bytes, n);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    CHECK_FAILS(*state, ds_checkpoint_verify(c), DS_ERR_CORRUPT, "ds_shard_00006_of_00008");
    ds_checkpoint_close(&c);
    load l = {.dir = dir, .step = 5, .swap = true};
    rank_results results;
    assert_int_equal(rank_threads_run(2, NULL, load_job, &l, &results), DS_ERR_CORRUPT);
    assert_non_null(strstr(results.message[0], "ds_shard_00006_of_00008"));
    bytes[n - 5] ^= 4;
    scratch_write(path, bytes, n - 1);
    CHECK_FAILS(*state, ds_checkpoint_open(*state, dir, NULL, &c), DS_ERR_CORRUPT,
                "ds_shard_00006_of_00008.safetensors has ");
    assert_int_equal(unlink(path), 0);
    CHECK_FAILS(*state, ds_checkpoint_open(*state, dir, NULL, &c), DS_ERR_NOT_FOUND,
                "ds_shard_00006_of_00008.safetensors: No such file");
    assert_int_equal(rank_threads_run(2, NULL, load_job, &l, &results), DS_ERR_NOT_FOUND);
    free(bytes);
    free(path);
    scratch_remove(dir);
}

/* Ranks 0 and 1 see one folder, ranks 2 and 3 another. */
static void folder_is_not_shared(void **state)
{
    char *root = scratch_make();
    char *dirs[4];
    for (int r = 0; r < 4; ++r) {
        assert_true(asprintf(&dirs[r], "%s/host%d", root, r / 2) > 0);
    }
    rank_save save = {.dirs = (const char *const *)dirs, .step = 5, .keep_last = 2};
    rank_results results;
    for (int i = 0; i < 4; ++i) {
        ++save.step;
        assert_int_equal(rank_threads_run(4, NULL, save_job, &save, NULL), DS_OK);
    }
    assert_int_equal(scratch_count(dirs[0]), 3); /* steps 8 and 9, `latest` */
    assert_int_equal(scratch_count(dirs[2]), 3);
    assert_int_equal(scratch_count(scratch_path(dirs[2], "global_step9")), 3);
    ds_checkpoint *c = NULL;
    CHECK_FAILS(*state, ds_checkpoint_open(*state, dirs[0], NULL, &c), DS_ERR_NOT_FOUND,
                "lacks 2 of its 4 shards: ds_shard_00002_of_00004.safetensors (on host ");
    save.fail_rank = 3; /* a host's failure leaves both as they were */
    save.fail_at = 1;
    ++save.step;
    assert_int_equal(rank_threads_run(4, NULL, save_job, &save, &results), DS_ERR_DEVICE);
    assert_int_equal(scratch_count(dirs[0]), 3);
    assert_int_equal(scratch_count(dirs[2]), 3);
    load l = {.dirs = (const char *const *)dirs, .step = 9, .swap = true};
    assert_int_equal(rank_threads_run(4, NULL, load_job, &l, &results), DS_ERR_NOT_FOUND);
    for (int r = 0; r < 2; ++r) { /* bring them together */
        char name[64];
        (void)snprintf(name, sizeof name, "global_step9/ds_shard_0000%d_of_00004.safetensors",
                       2 + r);
        size_t n = 0;
        char *bytes = scratch_read(scratch_path(dirs[2], name), &n);
        scratch_write(scratch_path(dirs[0], name), bytes, n);
        free(bytes);
    }
    l.dirs = NULL;
    l.dir = dirs[0];
    assert_int_equal(rank_threads_run(4, NULL, load_job, &l, NULL), DS_OK);
    rank_save other = {.dir = dirs[2], .step = 9};
    assert_int_equal(rank_threads_run(2, NULL, save_job, &other, NULL), DS_OK);
    l.dirs = (const char *const *)dirs;
    assert_int_equal(rank_threads_run(4, NULL, load_job, &l, &results), DS_ERR_PEER);
    assert_non_null(strstr(results.message[1], "rank 2 sees another manifest than rank 0"));
    for (int r = 0; r < 4; ++r) {
        free(dirs[r]);
    }
    scratch_remove(root);
}

/* Thousands of slices are read in the time of the bytes. */
static void many_slices(void **state)
{
    enum { SLICES = 20000, COUNT = SLICES * 3 };
    char *dir = scratch_make();
    float *data = malloc(COUNT * sizeof *data);
    float *got = malloc(COUNT * sizeof *got);
    for (int i = 0; i < COUNT; ++i) {
        data[i] = (float)i;
    }
    const ds_checkpoint_params params = {.dir = dir, .tag = "t"};
    ds_checkpoint_writer *w = NULL;
    ds_checkpoint *c = NULL;
    CHECK_OK(*state, ds_checkpoint_writer_create(*state, &params, &w));
    for (int i = 0; i < SLICES; ++i) {
        const int k = (int)((int64_t)i * 7919 % SLICES); /* any order */
        const ds_extent extent = ds_extent_flat(k * 3, 3);
        const ds_checkpoint_slice slice = {.kind = "master",
                                           .name = "w",
                                           .meta = {DS_DTYPE_F32, ds_shape_2d(COUNT / 300, 300)},
                                           .extent = &extent,
                                           .data = data + k * 3};
        CHECK_OK(*state, ds_checkpoint_writer_add(w, &slice));
    }
    CHECK_OK(*state, ds_checkpoint_writer_commit(&w));
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    const ds_checkpoint_tensor *t = ds_checkpoint_find(c, "master", "w");
    for (int i = 0; i < COUNT; i += 5) {
        const ds_extent extent = ds_extent_flat(i, 5);
        CHECK_OK(*state, ds_checkpoint_read(c, t, &extent, DS_DTYPE_F32, got + i));
    }
    assert_memory_equal(data, got, COUNT * sizeof *data);
    memset(got, 0, COUNT * sizeof *got);
    for (int64_t column = 0; column < 300; column += 100) {
        const ds_extent box =
            ds_extent_box(2, (const int64_t[]){0, column}, (const int64_t[]){COUNT / 300, 100});
        CHECK_OK(*state, ds_checkpoint_read(c, t, &box, DS_DTYPE_F32, got));
        for (int i = 0; i < COUNT / 3; ++i) {
            assert_true(got[i] == (float)(i / 100 * 300 + column + i % 100));
        }
    }
    ds_checkpoint_close(&c);
    free(data);
    free(got);
    scratch_remove(dir);
}

static int set_up(void **state)
{
    const ds_ctx_params params = {.n_threads = 1, .world_size = 1};
    return ds_ctx_create(&params, (ds_ctx **)state);
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_on_any_ranks), cmocka_unit_test(shards_are_balanced),
        cmocka_unit_test(one_rank_fails),     cmocka_unit_test(one_rank_is_lost),
        cmocka_unit_test(ranks_disagree),     cmocka_unit_test(opens_on_ranks),
        cmocka_unit_test(one_shard_of_many),  cmocka_unit_test(folder_is_not_shared),
        cmocka_unit_test(many_slices),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
