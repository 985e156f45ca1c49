/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of hosts that do not share the save folder: what one host lacks comes from another,
 * on the ranks that saved and on others; a lost or damaged shard is named on every rank.
 * labels: threads */
#include "ckpt/ckpt_pool.h"
#include "common/check.h"
#include "common/rank_saves.h"
#include "common/rank_threads.h"
#include "common/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEP = 7, SCALE = 3 };

/* Folders of two hosts with a save of four ranks, two on each; and the same saved as one. */
typedef struct folders {
    char *a, *b, *whole;
} folders;

static ds_status save_job(dsi_comm *comm, void *arg)
{
    return rank_save_run(comm->ctx, comm, arg);
}

static folders make_folders(ds_ctx *ctx)
{
    const folders f = {scratch_make(), scratch_make(), scratch_make()};
    const char *const dirs[] = {f.a, f.a, f.b, f.b};
    rank_save save = {.dirs = dirs, .tag = "t", .step = STEP, .scale = SCALE};
    assert_int_equal(rank_threads_run(4, NULL, save_job, &save, NULL), DS_OK);
    const rank_save one = {.dir = f.whole, .tag = "t", .step = STEP, .scale = SCALE};
    CHECK_OK(ctx, rank_save_run(ctx, NULL, &one));
    return f;
}

static void free_folders(folders *f)
{
    scratch_remove(f->a);
    scratch_remove(f->b);
    scratch_remove(f->whole);
}

typedef struct load {
    const char *const *dirs; /* of each rank */
    const char *whole;
} load;

/* What a rank wants of the i-th tensor: all, a cut, the last element, or nothing. */
static bool wanted(const ds_checkpoint_tensor *t, uint32_t rank, size_t i, ds_extent *extent_out)
{
    const int64_t count = ds_shape_count(t->meta.shape);
    switch ((rank + i) % 4) {
    case 0:
        *extent_out = ds_extent_whole(t->meta.shape);
        return true;
    case 1:
        *extent_out = ds_extent_flat(count / 3, count - count / 3 * 2);
        return true;
    case 2:
        *extent_out = ds_extent_flat(count > 0 ? count - 1 : 0, count > 0 ? 1 : 0);
        return true;
    default:
        return false;
    }
}

static ds_status compare(ds_ctx *ctx, dsi_ckpt_pool *pool, ds_checkpoint *c, ds_checkpoint *whole,
                         uint32_t rank)
{
    ds_status status = DS_OK;
    for (size_t i = 0; i < ds_checkpoint_count(c) && status == DS_OK; ++i) {
        const ds_checkpoint_tensor *t = ds_checkpoint_at(c, i);
        const ds_checkpoint_tensor *same = ds_checkpoint_find(whole, t->kind, t->name);
        ds_extent extent;
        const bool any = wanted(t, rank, i, &extent);
        const size_t bytes = ds_meta_bytes(t->meta);
        uint8_t *got = calloc(1, bytes + 8);
        uint8_t *want = calloc(1, bytes + 8);
        status = dsi_ckpt_pool_read(pool, t, any ? &extent : NULL, t->meta.dtype, got);
        if (status == DS_OK && any) {
            status = ds_checkpoint_read(whole, same, &extent, t->meta.dtype, want);
        }
        if (status == DS_OK && memcmp(got, want, bytes + 8) != 0) {
            status = ds_fail(ctx, DS_ERR_NUMERIC, "%s/%s differs", t->kind, t->name);
        }
        free(got);
        free(want);
    }
    return status;
}

static ds_status load_job(dsi_comm *comm, void *arg)
{
    const load *l = arg;
    ds_ctx *ctx = comm->ctx;
    ds_checkpoint *c = NULL;
    ds_checkpoint *whole = NULL;
    dsi_ckpt_pool *pool = NULL;
    DS_TRY(dsi_checkpoint_open_on(ctx, l->dirs[comm->rank], "t", comm, &c));
    ds_status status = ds_checkpoint_open(ctx, l->whole, "t", &whole);
    if (status >= 0) {
        status = dsi_ckpt_pool_open(ctx, c, comm, &pool);
    }
    if (status >= 0) {
        status = compare(ctx, pool, c, whole, comm->rank);
    }
    dsi_ckpt_pool_close(&pool);
    ds_checkpoint_close(&whole);
    ds_checkpoint_close(&c);
    return status;
}

static void loads_from_other_hosts(void **state)
{
    folders f = make_folders(*state);
    const char *const same[] = {f.a, f.a, f.b, f.b};
    const char *const other[] = {f.b, f.a, f.b};
    const char *const few[] = {f.a, f.b};
    const char *const shared[] = {f.whole, f.whole, f.whole};
    const struct {
        uint32_t size;
        const char *const *dirs;
    } cases[] = {{4, same}, {3, other}, {2, few}, {3, shared}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        load l = {cases[i].dirs, f.whole};
        rank_results results;
        const ds_status status = rank_threads_run(cases[i].size, NULL, load_job, &l, &results);
        if (status != DS_OK) {
            print_error("case %zu: %s\n", i, results.message[0]);
        }
        assert_int_equal(status, DS_OK);
    }
    free_folders(&f);
}

static void path_of(char *path, size_t n, const char *dir, int shard)
{
    (void)snprintf(path, n, "%s/t/ds_shard_%05d_of_00004.safetensors", dir, shard);
}

/* Every rank fails with `code` and names the shard. */
static void all_fail(const folders *f, ds_status code)
{
    const char *const dirs[] = {f->a, f->a, f->b, f->b};
    load l = {dirs, f->whole};
    rank_results results;
    (void)rank_threads_run(4, NULL, load_job, &l, &results);
    for (int r = 0; r < 4; ++r) {
        assert_int_equal(results.status[r], code);
        assert_non_null(strstr(results.message[r], "ds_shard_00003_of_00004"));
    }
}

static void a_shard_is_lost_or_damaged(void **state)
{
    folders f = make_folders(*state);
    char path[512];
    path_of(path, sizeof path, f.b, 3);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -16, SEEK_END), 0);
    assert_int_equal(fwrite("damaged!damaged!", 1, 16, file), 16);
    assert_int_equal(fclose(file), 0);
    all_fail(&f, DS_ERR_CORRUPT);
    assert_int_equal(unlink(path), 0);
    all_fail(&f, DS_ERR_NOT_FOUND);
    free_folders(&f);
}

/* A rank leaves at its n-th exchange, for every n: the others are told, nobody waits for ever. */
static void a_rank_is_lost(void **state)
{
    folders f = make_folders(*state);
    const char *const dirs[] = {f.a, f.a, f.b, f.b};
    int failed = 0;
    for (uint64_t at = 1; at < 400; at += 7) {
        const dsi_comm_sim_options options = {.drop_rank = (uint32_t)(at % 4), .drop_at = at};
        load l = {dirs, f.whole};
        failed += rank_threads_run(4, &options, load_job, &l, NULL) < 0;
    }
    assert_true(failed > 5);
    free_folders(&f);
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
        cmocka_unit_test(loads_from_other_hosts),
        cmocka_unit_test(a_shard_is_lost_or_damaged),
        cmocka_unit_test(a_rank_is_lost),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
