/* SPDX-License-Identifier: Apache-2.0 */
/* Offload on a disk that misbehaves: short and slow transfers change nothing, an error or no answer
 * ends the step with its reason, leaves an engine that refuses to go on or be saved, and the last
 * checkpoint is whole.
 * labels: slow */
#include "common/aio_shim.h"
#include "common/engine_hash.h"
#include "common/parity.h"
#include "common/scratch.h"
#include "common/small_run.h"

#include <stdio.h>
#include <string.h>

enum { STEPS = 4, SAVED = 2 };

static ds_ctx *ctx;
static char *folder;              /* of the scratch file and of checkpoints */
static uint32_t n_broken, n_late; /* of errors: that broke the engine; that came behind the step */
static const ds_aio_backend backends[] = {DS_AIO_AUTO, DS_AIO_THREADS};

static dsi_engine_spec make_spec(const parity_case *p, ds_aio_backend backend)
{
    dsi_engine_spec spec = parity_spec(p, DS_DTYPE_BF16, DS_ISA_REF);
    spec.offload = small_away(folder, DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
    spec.offload.aio.backend = backend;
    spec.train.accumulation = 2;
    return spec;
}

static ds_status steps(ds_engine *engine, const parity_case *p, int n)
{
    for (int i = 0; i < 2 * n; ++i) {
        DS_TRY(ds_engine_forward(engine, &p->batch));
        DS_TRY(ds_engine_backward(engine));
        DS_TRY(ds_engine_step(engine));
    }
    return DS_OK;
}

static uint64_t hash_of(ds_engine *engine)
{
    uint64_t hash = 0;
    CHECK_OK(ctx, engine_hash(ctx, engine, &hash));
    return hash;
}

/* All steps without a fault. */
static uint64_t undisturbed(const parity_case *p, ds_aio_backend backend)
{
    const dsi_engine_spec spec = make_spec(p, backend);
    ds_engine *engine = parity_engine(ctx, p, &spec);
    CHECK_OK(ctx, steps(engine, p, STEPS));
    const uint64_t hash = hash_of(engine);
    ds_engine_destroy(&engine);
    return hash;
}

static void short_transfers_change_nothing(void **state)
{
    parity_case p;
    (void)state;
    parity_open(ctx, "llama3", &p);
    for (int b = 0; b < 2; ++b) {
        const uint64_t whole = undisturbed(&p, backends[b]);
        shim.most = 4096;
        assert_true(undisturbed(&p, backends[b]) == whole);
        shim_clear();
    }
    parity_close(&p);
}

static void slow_transfers_change_nothing(void **state)
{
    parity_case p;
    (void)state;
    parity_open(ctx, "llama3", &p);
    for (int b = 0; b < 2; ++b) {
        const uint64_t quick = undisturbed(&p, backends[b]);
        shim.pause = 200;
        assert_true(undisturbed(&p, backends[b]) == quick);
        shim_clear();
    }
    parity_close(&p);
}

static void refuses_all(ds_engine *engine, const parity_case *p)
{
    const char *says = "load a checkpoint";
    CHECK_FAILS(ctx, ds_engine_forward(engine, &p->batch), DS_ERR_STATE, says);
    CHECK_FAILS(ctx, ds_engine_backward(engine), DS_ERR_STATE, says);
    CHECK_FAILS(ctx, ds_engine_step(engine), DS_ERR_STATE, says);
    CHECK_FAILS(ctx, ds_engine_eval_batch(engine, &p->batch, NULL, NULL), DS_ERR_STATE, says);
    CHECK_FAILS(ctx, ds_engine_save_checkpoint(engine, folder, "broken", NULL), DS_ERR_STATE, says);
    CHECK_FAILS(ctx, ds_engine_save_16bit_model(engine, folder, NULL), DS_ERR_STATE, says);
}

/* The transfer number `at` from the last checkpoint on fails. Returns whether there was one. */
static bool fail_at(const parity_case *p, ds_aio_backend backend, int at, int reason, uint64_t want)
{
    const dsi_engine_spec spec = make_spec(p, backend);
    ds_engine *engine = parity_engine(ctx, p, &spec);
    CHECK_OK(ctx, steps(engine, p, SAVED));
    CHECK_OK(ctx, ds_engine_save_checkpoint(engine, folder, NULL, NULL));
    shim.reason = reason;
    shim.countdown = at;
    shim.n_failures = 1;
    uint64_t hash = 0;
    ds_status status = steps(engine, p, STEPS - SAVED);
    if (status >= 0) { /* what the last step has left under way */
        status = engine_hash(ctx, engine, &hash);
        n_late += status < 0 ? 1 : 0;
    }
    const bool fired = shim.n_fired == 1;
    shim_clear();
    assert_int_equal(status, fired ? DS_ERR_IO : DS_OK);
    if (fired) {
        assert_non_null(strstr(ds_ctx_error(ctx), strerror(reason)));
        assert_non_null(strstr(ds_ctx_error(ctx), "offloaded "));
        if (dsi_engine_check_whole(engine, "this") < 0) {
            ++n_broken;
            refuses_all(engine, p);
        }
        CHECK_OK(ctx, ds_engine_load_checkpoint(engine, folder, NULL, NULL));
        CHECK_OK(ctx, steps(engine, p, STEPS - SAVED));
    }
    assert_true(hash_of(engine) == want);
    ds_engine_destroy(&engine);
    return fired;
}

static void an_error_loses_nothing(void **state)
{
    static const int reasons[] = {EIO, ENOSPC};
    parity_case p;
    (void)state;
    parity_open(ctx, "llama3", &p);
    for (int b = 0; b < 2; ++b) {
        const uint64_t want = undisturbed(&p, backends[b]);
        uint32_t n = 0;
        n_broken = n_late = 0;
        for (int at = 1; fail_at(&p, backends[b], at, reasons[n % 2], want); at += 97) {
            ++n;
        }
        print_message("%s: %u places of an error, %u of them broke the engine\n",
                      b == 1 ? "threads" : "auto", n, n_broken);
        assert_true(n > 10 && n_broken > 5 && n_broken < n && n_late > 0);
    }
    parity_close(&p);
}

/* The transfer number `at` of a forward phase fails, and those behind it, which may be of states
 * that it brings: whoever waits for them is told of the first. Both may try again, and the update
 * has what was on disk. Returns whether there was such a transfer. */
static bool fail_ahead(const parity_case *p, ds_aio_backend backend, int at, uint64_t want)
{
    dsi_engine_spec spec = make_spec(p, backend);
    spec.train.accumulation = 1;
    spec.train.keep_nonfinite = true;
    ds_engine *engine = parity_engine(ctx, p, &spec);
    CHECK_OK(ctx, steps(engine, p, 1));
    (void)hash_of(engine); /* waits for what that has left under way */
    shim.reason = EIO;
    shim.countdown = at;
    shim.n_failures = 3;
    const ds_status forward = ds_engine_forward(engine, &p->batch);
    ds_status status = forward;
    if (forward >= 0) {
        status = ds_engine_eval_batch(engine, &p->batch, NULL, NULL);
        n_late += status < 0 ? 1 : 0;
        assert_true(status >= 0 || strstr(ds_ctx_error(ctx), "(swap_in of ") != NULL);
    }
    const bool fired = shim.n_fired > 0;
    shim_clear();
    assert_int_equal(status, fired ? DS_ERR_IO : DS_OK);
    if (forward < 0) {
        CHECK_OK(ctx, ds_engine_forward(engine, &p->batch));
    }
    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_OK(ctx, ds_engine_step(engine));
    assert_true(hash_of(engine) == want);
    ds_engine_destroy(&engine);
    return fired;
}

static void what_was_to_be_there_comes_again(void **state)
{
    parity_case p;
    (void)state;
    parity_open(ctx, "llama3", &p);
    for (int b = 0; b < 2; ++b) {
        dsi_engine_spec spec = make_spec(&p, backends[b]);
        spec.train.accumulation = 1;
        spec.train.keep_nonfinite = true;
        ds_engine *engine = parity_engine(ctx, &p, &spec);
        CHECK_OK(ctx, steps(engine, &p, 1));
        CHECK_OK(ctx, ds_engine_forward(engine, &p.batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
        const uint64_t want = hash_of(engine);
        ds_engine_destroy(&engine);
        n_late = 0;
        int at = 1;
        while (fail_ahead(&p, backends[b], at, want)) {
            at += 7;
        }
        print_message("%d places of an error, %u of them told by an evaluation\n", at / 7, n_late);
        assert_true(n_late > 3);
    }
    parity_close(&p);
}

/* A step ends, with the name of what it waited for; the engine, too. */
static void stuck_at(const parity_case *p, ds_aio_backend backend, int at, uint64_t want)
{
    dsi_engine_spec spec = make_spec(p, backend);
    const double patience = 0.5;
    spec.offload.patience = patience;
    ds_engine *engine = parity_engine(ctx, p, &spec);
    CHECK_OK(ctx, steps(engine, p, SAVED));
    CHECK_OK(ctx, ds_engine_save_checkpoint(engine, folder, NULL, NULL));
    const double waited = ds_engine_disk_wait(engine);
    shim.stuck_at = at;
    CHECK_FAILS(ctx, steps(engine, p, STEPS - SAVED), DS_ERR_IO, "the disk does not answer");
    assert_true(ds_engine_disk_wait(engine) >= waited + patience);
    assert_non_null(strstr(ds_ctx_error(ctx), "(swap_"));
    assert_non_null(strstr(ds_ctx_error(ctx), ".weight"));
    assert_non_null(strstr(ds_ctx_error(ctx), folder));
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(engine, folder, NULL, NULL), DS_ERR_IO,
                "still does not answer");
    shim_clear();
    CHECK_OK(ctx, ds_engine_load_checkpoint(engine, folder, NULL, NULL));
    CHECK_OK(ctx, steps(engine, p, STEPS - SAVED));
    assert_true(hash_of(engine) == want);
    ds_engine_destroy(&engine);
}

static void no_answer_loses_nothing(void **state)
{
    parity_case p;
    (void)state;
    parity_open(ctx, "llama3", &p);
    for (int b = 0; b < 2; ++b) {
        const uint64_t want = undisturbed(&p, backends[b]);
        stuck_at(&p, backends[b], 40, want);
        stuck_at(&p, backends[b], 301, want);
    }
    parity_close(&p);
}

/* A checkpoint that cannot be read to its end leaves an engine that must not be used. */
static void half_a_load_is_no_engine(void **state)
{
    parity_case p;
    (void)state;
    parity_open(ctx, "llama3", &p);
    const dsi_engine_spec spec = make_spec(&p, DS_AIO_AUTO);
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    CHECK_OK(ctx, ds_engine_save_checkpoint(engine, folder, NULL, NULL));
    shim.reason = EIO; /* of the scratch file, into which the states are loaded */
    shim.countdown = 5;
    shim.n_failures = 1;
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(engine, folder, NULL, NULL), DS_ERR_IO,
                strerror(EIO));
    shim_clear();
    refuses_all(engine, &p);
    CHECK_OK(ctx, ds_engine_load_checkpoint(engine, folder, NULL, NULL));
    CHECK_OK(ctx, steps(engine, &p, 1));
    ds_engine_destroy(&engine);
    parity_close(&p);
}

/* Of a test that failed, too: or the next one waits for the disk of that. */
static int clear_shim(void **state)
{
    (void)state;
    shim_clear();
    return 0;
}

static void keep_quiet(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

static int set_up(void **state)
{
    const ds_ctx_params params = {.n_threads = 1, .log = keep_quiet};
    (void)state;
    folder = scratch_make();
    return ds_ctx_create(&params, &ctx);
}

static int tear_down(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    scratch_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(short_transfers_change_nothing, clear_shim),
        cmocka_unit_test_teardown(slow_transfers_change_nothing, clear_shim),
        cmocka_unit_test_teardown(an_error_loses_nothing, clear_shim),
        cmocka_unit_test_teardown(what_was_to_be_there_comes_again, clear_shim),
        cmocka_unit_test_teardown(no_answer_loses_nothing, clear_shim),
        cmocka_unit_test_teardown(half_a_load_is_no_engine, clear_shim),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
