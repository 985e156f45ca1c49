/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints written behind training by an engine: what is written is what there was at the save,
 * steps run meanwhile, a second save waits for the first, `latest` moves last, a failure of the
 * writing shows once at the next call on every rank, destruction waits; 1 to 3 ranks, each stage.
 * labels: threads */
#include "accel/cpu/cpu_features.h"
#include "common/engine_hash.h"
#include "common/parity.h"
#include "common/rank_threads.h"
#include "common/scratch.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- a disk that waits or fails; only writing behind training syncs, as the folder exists ---- */

static atomic_bool held, failing;

static void pause_a_little(void)
{
    const struct timespec t = {.tv_nsec = 1000000};
    (void)nanosleep(&t, NULL);
}

int fsync(int fd)
{
    while (atomic_load(&held)) {
        pause_a_little();
    }
    if (atomic_load(&failing)) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

/* ---- one rank ---- */

typedef struct setting {
    const char *dir;
    uint32_t stage;
    ds_dtype dtype;
    size_t limit; /* of the copy's memory */
} setting;

typedef struct rank {
    ds_ctx *ctx;
    dsi_comm *comm; /* NULL: one rank */
    const setting *set;
    ds_engine *engine;
    parity_case model;
} rank;

static ds_status make_engine(rank *r)
{
    const setting *s = r->set;
    dsi_engine_spec spec = parity_spec(&r->model, s->dtype, dsi_cpu_isa());
    spec.save_behind = true;
    spec.save_host_bytes = s->limit;
    spec.zero = (dsi_zero_spec){.stage = s->stage,
                                .reduce_each = true,
                                .comm_dtype = spec.train.comm_dtype,
                                .reduce_bucket = 5000,
                                .gather_bucket = 5000};
    const ds_engine_params params = {.model = r->model.model,
                                     .seq_length = r->model.n_seq,
                                     .weights = r->model.folder,
                                     .comm = r->comm};
    return dsi_engine_create(r->ctx, &params, &spec, &r->engine);
}

static void step(rank *r)
{
    CHECK_OK(r->ctx, ds_engine_forward(r->engine, &r->model.batch));
    CHECK_OK(r->ctx, ds_engine_backward(r->engine));
    CHECK_OK(r->ctx, ds_engine_step(r->engine));
}

static uint64_t hash(const rank *r)
{
    uint64_t value = 0;
    CHECK_OK(r->ctx, engine_hash(r->ctx, r->engine, &value));
    return value;
}

static ds_status save(rank *r, const char *tag)
{
    return ds_engine_save_checkpoint(r->engine, r->set->dir, tag, "{\"cursor\": 3}");
}

/* All ranks see the flag before and after it changes. */
static void set_flag(const rank *r, atomic_bool *flag, bool value)
{
    if (r->comm != NULL) {
        CHECK_OK(r->ctx, dsi_comm_barrier(r->comm, "before the flag"));
    }
    atomic_store(flag, value);
    if (r->comm != NULL) {
        CHECK_OK(r->ctx, dsi_comm_barrier(r->comm, "after the flag"));
    }
}

static bool is_there(const rank *r, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", r->set->dir, name);
    return access(path, F_OK) == 0;
}

static void check_latest(const rank *r, const char *tag)
{
    char path[4096];
    char text[64] = "";
    (void)snprintf(path, sizeof path, "%s/latest", r->set->dir);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    (void)fclose(file);
    assert_string_equal(text, tag);
}

/* ---- what a rank does ---- */

static void writes_what_there_was(rank *r)
{
    step(r);
    const uint64_t first = hash(r);
    set_flag(r, &held, true);
    CHECK_OK(r->ctx, save(r, "first"));
    assert_int_equal(ds_engine_checkpoint_poll(r->engine), DS_IN_PROGRESS);
    step(r);
    step(r);
    assert_int_equal(ds_engine_checkpoint_poll(r->engine), DS_IN_PROGRESS);
    assert_false(is_there(r, "first") || is_there(r, "latest"));
    const uint64_t second = hash(r);
    assert_true(first != second);
    set_flag(r, &held, false);
    CHECK_OK(r->ctx, save(r, "second")); /* waits for the first */
    assert_true(is_there(r, "first"));
    step(r);
    CHECK_OK(r->ctx, ds_engine_checkpoint_wait(r->engine));
    check_latest(r, "second");
    const ds_engine_save_info info = ds_engine_checkpoint_info(r->engine);
    assert_true(info.behind && info.n_saves == 2 && info.copy_bytes > 0);
    assert_true(info.stall_seconds > 0 && info.write_seconds > 0);
    char *cursor = NULL;
    CHECK_OK(r->ctx, ds_engine_load_checkpoint(r->engine, r->set->dir, "first", &cursor));
    assert_int_equal(ds_engine_global_steps(r->engine), 1);
    assert_non_null(strstr(cursor, "3"));
    free(cursor);
    assert_true(hash(r) == first);
    step(r);
    step(r);
    assert_true(hash(r) == second); /* what went on beside the writing is what would have been */
    CHECK_OK(r->ctx, ds_engine_load_checkpoint(r->engine, r->set->dir, NULL, NULL));
    assert_true(hash(r) == second);
}

static void failures_show_at_the_next_call(rank *r)
{
    set_flag(r, &failing, true);
    CHECK_OK(r->ctx, save(r, "third"));
    CHECK_FAILS(r->ctx, ds_engine_checkpoint_wait(r->engine), DS_ERR_IO, "Input/output error");
    CHECK_OK(r->ctx, ds_engine_checkpoint_wait(r->engine)); /* told once */
    CHECK_OK(r->ctx, save(r, "third"));
    CHECK_FAILS(r->ctx, save(r, "fourth"), DS_ERR_IO, "Input/output error");
    set_flag(r, &failing, false);
    step(r);
    check_latest(r, "second");
    assert_false(is_there(r, "third") || is_there(r, "fourth"));
    CHECK_OK(r->ctx, save(r, "fifth"));
    CHECK_OK(r->ctx, ds_engine_load_checkpoint(r->engine, r->set->dir, NULL, NULL)); /* waits */
    check_latest(r, "fifth");
}

static ds_status run_rank(dsi_comm *comm, void *arg)
{
    rank r = {.comm = comm, .ctx = comm->ctx, .set = arg};
    parity_open(r.ctx, "gpt2", &r.model);
    const ds_status made = make_engine(&r);
    if (made == DS_OK) {
        writes_what_there_was(&r);
        failures_show_at_the_next_call(&r);
        CHECK_OK(r.ctx, save(&r, "last"));
    }
    ds_engine_destroy(&r.engine); /* waits */
    parity_close(&r.model);
    return made;
}

static void on_ranks(uint32_t n, setting *set, ds_status want, rank_results *results)
{
    set->dir = scratch_make();
    assert_int_equal(rank_threads_run(n, NULL, run_rank, set, results), want);
    if (want == DS_OK) {
        rank r = {.set = set};
        check_latest(&r, "last");
        assert_int_equal(scratch_count(set->dir), 5); /* four checkpoints and latest */
    } else {
        assert_int_equal(scratch_count(set->dir), 0);
    }
    scratch_remove((char *)(uintptr_t)set->dir);
}

static void each_stage_and_rank(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; ++n) {
        for (uint32_t stage = 0; stage <= 3; ++stage) {
            setting set = {.stage = stage, .dtype = stage == 1 ? DS_DTYPE_F32 : DS_DTYPE_BF16};
            on_ranks(n, &set, DS_OK, NULL);
        }
    }
}

static void too_large_a_copy_is_refused(void **state)
{
    rank_results results;
    (void)state;
    for (uint32_t n = 1; n <= 2; ++n) {
        setting set = {.stage = 2, .dtype = DS_DTYPE_BF16, .limit = 1000};
        on_ranks(n, &set, DS_ERR_LIMIT, &results);
        assert_non_null(strstr(results.message[n - 1], "the copy of a checkpoint takes"));
    }
}

/* ---- a transport that lets one thread in: the simulator without twins ---- */

static const dsi_transport *simulator;
static dsi_transport network;

static ds_status no_twin(dsi_comm *comm, ds_ctx *ctx, dsi_comm **comm_out)
{
    (void)ctx;
    (void)comm_out;
    return ds_fail(comm->ctx, DS_ERR_UNSUPPORTED, "MPI was begun for one thread");
}

static ds_status split_network(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out)
{
    DS_TRY(simulator->split(comm, color, key, comm_out));
    (*comm_out)->transport = &network;
    return DS_OK;
}

static ds_status run_on_network(dsi_comm *comm, void *arg)
{
    rank r = {.comm = comm, .ctx = comm->ctx, .set = arg};
    comm->transport = &network;
    parity_open(r.ctx, "gpt2", &r.model);
    const ds_status made = make_engine(&r);
    ds_engine_destroy(&r.engine);
    parity_close(&r.model);
    comm->transport = simulator;
    return made;
}

static ds_status look_at_simulator(dsi_comm *comm, void *arg)
{
    (void)arg;
    simulator = comm->transport;
    return DS_OK;
}

static void a_transport_of_one_thread_is_refused(void **state)
{
    rank_results results;
    setting set = {.stage = 1, .dtype = DS_DTYPE_F32};
    (void)state;
    assert_int_equal(rank_threads_run(1, NULL, look_at_simulator, NULL, NULL), DS_OK);
    network = *simulator;
    network.split = split_network;
    network.twin = no_twin;
    assert_int_equal(rank_threads_run(2, NULL, run_on_network, &set, &results), DS_ERR_UNSUPPORTED);
    assert_non_null(strstr(results.message[1], "datastates_ckpt (checkpoint.writer.decoupled): MPI "
                                               "was begun for one thread; or set it to false"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_stage_and_rank),
        cmocka_unit_test(too_large_a_copy_is_refused),
        cmocka_unit_test(a_transport_of_one_thread_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
