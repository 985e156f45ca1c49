/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and single shards out of checkpoints of many ranks: the same bytes whatever the ranks.
 *
 * `test_checkpoint_export write DIR RANKS` makes a save folder for shell tests; `write_large DIR
 * RANKS TENSORS MB` one with so many masters and moments of so many megabytes each. */
#include "common/check.h"
#include "common/rank_saves.h"
#include "common/rank_threads.h"
#include "common/scratch.h"

#include <deepspeed/safetensors.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_status save_job(dsi_comm *comm, void *arg)
{
    return rank_save_run(comm->ctx, comm, arg);
}

static ds_checkpoint *saved(ds_ctx *ctx, const char *dir, uint32_t ranks)
{
    ds_checkpoint *c = NULL;
    rank_save save = {.dir = dir, .step = 4, .scale = 3};
    assert_int_equal(rank_threads_run(ranks, NULL, save_job, &save, NULL), DS_OK);
    CHECK_OK(ctx, ds_checkpoint_open(ctx, dir, NULL, &c));
    return c;
}

static void same_weights_from_any_ranks(void **state)
{
    static const uint32_t ranks[] = {1, 2, 3, 8};
    char *dir = scratch_make();
    char out[4][256];
    for (size_t i = 0; i < 4; ++i) {
        char folder[256];
        (void)snprintf(folder, sizeof folder, "%s/save%zu", dir, i);
        (void)snprintf(out[i], sizeof out[i], "%s/deep/out%zu", dir, i);
        ds_checkpoint *c = saved(*state, folder, ranks[i]);
        const ds_checkpoint_export_params params = {.folder = out[i]};
        ds_checkpoint_export_info info;
        CHECK_OK(*state, ds_checkpoint_export(c, &params, &info));
        /* masters h.0.w, h.0.b, one, none; params scalar, wte, wpe, empty have no state */
        assert_int_equal(info.n_trained, 4);
        assert_int_equal(info.n_frozen, 4);
        ds_checkpoint_close(&c);
        if (i > 0) {
            char a[300];
            char b[300];
            (void)snprintf(a, sizeof a, "%s/model.safetensors", out[i]);
            (void)snprintf(b, sizeof b, "%s/model.safetensors", out[0]);
            scratch_same(a, b);
        }
    }
    scratch_remove(dir);
}

static void weights_are_those_of_the_checkpoint(void **state)
{
    char *dir = scratch_make();
    const char *out = scratch_path(dir, "out");
    ds_checkpoint *c = saved(*state, dir, 3);
    const ds_checkpoint_export_params params = {.folder = out, .max_shard_bytes = 100000};
    CHECK_OK(*state, ds_checkpoint_export(c, &params, NULL));
    ds_safetensors *st = NULL;
    CHECK_OK(*state, ds_safetensors_open_folder(*state, out, &st));
    assert_int_equal(ds_safetensors_count(st), 8);
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *got = ds_safetensors_at(st, i);
        const ds_checkpoint_tensor *t = ds_checkpoint_find(c, "master", got->name);
        t = t != NULL ? t : ds_checkpoint_find(c, "param", got->name);
        float *want = malloc(got->bytes + 4);
        CHECK_OK(*state, ds_checkpoint_read(c, t, NULL, DS_DTYPE_F32, want));
        assert_int_equal(got->meta.dtype, DS_DTYPE_F32);
        assert_true(ds_shape_equal(got->meta.shape, t->meta.shape));
        assert_memory_equal(got->data != NULL ? got->data : want, want, got->bytes);
        free(want);
    }
    ds_safetensors_close(&st);
    ds_checkpoint_close(&c);
    scratch_remove(dir);
}

static void excludes_frozen(void **state)
{
    char *dir = scratch_make();
    const char *out = scratch_path(dir, "out");
    ds_checkpoint *c = saved(*state, dir, 3);
    const ds_checkpoint_export_params params = {.folder = out, .exclude_frozen = true};
    CHECK_OK(*state, ds_checkpoint_export(c, &params, NULL));
    ds_safetensors *st = NULL;
    CHECK_OK(*state, ds_safetensors_open_folder(*state, out, &st));
    assert_int_equal(ds_safetensors_count(st), 4);
    assert_null(ds_safetensors_find(st, "wte"));
    ds_safetensors_close(&st);
    ds_checkpoint_export_params model = {.folder = out, .model_folder = true};
    CHECK_FAILS(*state, ds_checkpoint_export(c, &model, NULL), DS_ERR_NOT_FOUND,
                "does not hold its model's config.json");
    ds_checkpoint_close(&c);
    scratch_remove(dir);
}

static void one_shard_of_many(void **state)
{
    char *dir = scratch_make();
    char many[256];
    char one[256];
    char got[300];
    (void)snprintf(many, sizeof many, "%s/many", dir);
    (void)snprintf(one, sizeof one, "%s/one", dir);
    (void)snprintf(got, sizeof got, "%s/got", dir);
    ds_checkpoint *c = saved(*state, many, 8);
    ds_checkpoint *alone = saved(*state, one, 1);
    CHECK_OK(*state, ds_checkpoint_consolidate(c, got));
    static const char *const files[] = {"ds_manifest.json", "ds_shard_00000_of_00001.safetensors"};
    for (size_t i = 0; i < 2; ++i) {
        char a[400];
        char b[400];
        (void)snprintf(a, sizeof a, "%s/global_step4/%s", got, files[i]);
        (void)snprintf(b, sizeof b, "%s/global_step4/%s", one, files[i]);
        scratch_same(a, b);
    }
    ds_checkpoint_close(&alone);
    ds_checkpoint_close(&c);
    scratch_remove(dir);
}

/* ---- folders for shell tests ---- */

typedef struct large {
    const char *dir;
    int tensors;
    int64_t count;
} large;

static ds_status fill_large(void *user, size_t offset, void *data, size_t n)
{
    (void)user;
    for (size_t i = 0; i < n / sizeof(float); ++i) {
        ((float *)data)[i] = (float)((offset / sizeof(float) + i) % 65521);
    }
    return DS_OK;
}

static ds_status save_large(dsi_comm *comm, void *arg)
{
    static const char *const kinds[] = {"master", "exp_avg"};
    const large *l = arg;
    const int64_t slice = (l->count + comm->size - 1) / comm->size;
    const int64_t begin = slice * comm->rank;
    const ds_extent extent =
        ds_extent_flat(begin, l->count - begin < slice ? l->count - begin : slice);
    const ds_checkpoint_params params = {.dir = l->dir, .step = 1};
    ds_checkpoint_writer *w = NULL;
    DS_TRY(dsi_checkpoint_writer_create_on(comm->ctx, &params, comm, &w));
    for (int i = 0; i < 2 * l->tensors; ++i) {
        char name[32];
        (void)snprintf(name, sizeof name, "layer.%d.weight", i / 2);
        const ds_checkpoint_slice s = {.kind = kinds[i % 2],
                                       .name = name,
                                       .meta = {DS_DTYPE_F32, ds_shape_1d(l->count)},
                                       .extent = &extent,
                                       .fill = fill_large};
        CHECK_OK(comm->ctx, ds_checkpoint_writer_add(w, &s));
    }
    return ds_checkpoint_writer_commit(&w);
}

static int write_folder(int argc, char **argv)
{
    const uint32_t ranks = (uint32_t)strtoul(argv[3], NULL, 10);
    if (strcmp(argv[1], "write_large") == 0 && argc == 6) {
        large l = {argv[2], atoi(argv[4]), atoll(argv[5]) * 250000};
        return rank_threads_run(ranks, NULL, save_large, &l, NULL) < 0;
    }
    rank_save save = {.dir = argv[2], .step = 2};
    return rank_threads_run(ranks, NULL, save_job, &save, NULL) < 0;
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_weights_from_any_ranks),
        cmocka_unit_test(weights_are_those_of_the_checkpoint),
        cmocka_unit_test(excludes_frozen),
        cmocka_unit_test(one_shard_of_many),
    };
    if (argc > 3) {
        return write_folder(argc, argv);
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
