/* Checkpoints of N ranks: any cut that is saved loads on any other, bit for bit; what one rank
 * cannot do fails the save on all and leaves the checkpoint before it.
 * labels: threads */
#include "common/check.h"
#include "common/rank_saves.h"
#include "common/rank_threads.h"
#include "common/scratch.h"

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
            CHECK_OK(*state, ds_checkpoint_keep(*state, dir, 1));
            rank_save save = {.dir = dir, .step = 1};
            CHECK_OK(*state, rank_save_run(*state, NULL, &save));
            CHECK_OK(*state, ds_checkpoint_keep(*state, dir, 1));
        } else {
            assert_true(results.status[1] < 0);
            only_the_first_is_there(*state, dir);
        }
    }
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
        cmocka_unit_test(ranks_disagree),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
