/* SPDX-License-Identifier: Apache-2.0 */
/* Whole and local parameters, gradients and optimizer states, and gathered parameters: 1 to 3 ranks
 * and every stage against an engine of one rank; ranks that ask for different things get an error.
 * labels: threads */
#include "accel/cpu/cpu_features.h"
#include "common/parity.h"
#include "common/rank_threads.h"

#include <deepspeed/engine_states.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct setting {
    uint32_t stage;
    int64_t accumulation;
    ds_dtype dtype;
    double tolerance; /* of gradients, relative */
} setting;

typedef struct rank {
    ds_ctx *ctx;
    dsi_comm *comm; /* of size 1: one rank */
    const setting *set;
    parity_case model;
    ds_engine *engine, *one; /* one: a single rank, on its own */
    float *got, *want;       /* room for any parameter */
    uint32_t n_params;
    const ds_cell_info *params[256];
} rank;

static void make_engine(rank *r, dsi_comm *comm, ds_engine **engine_out)
{
    const char *const frozen[] = {"*.ln_f.bias"};
    dsi_engine_spec spec = parity_spec(&r->model, r->set->dtype, dsi_cpu_isa());
    spec.train.accumulation = r->set->accumulation;
    if (r->set->dtype == DS_DTYPE_F16) {
        spec.loss_scale = dsi_loss_scale_static(256.0);
    }
    spec.zero = (dsi_zero_spec){.stage = r->set->stage,
                                .reduce_each = r->set->accumulation == 1,
                                .comm_dtype = spec.train.comm_dtype,
                                .reduce_bucket = 5000,
                                .gather_bucket = 5000,
                                .persistence_threshold = 40,
                                .model_persistence = INT64_MAX};
    const ds_engine_params params = {.model = r->model.model,
                                     .seq_length = r->model.n_seq,
                                     .weights = r->model.folder,
                                     .frozen = frozen,
                                     .n_frozen = 1,
                                     .comm = comm};
    CHECK_OK(r->ctx, dsi_engine_create(r->ctx, &params, &spec, engine_out));
}

/* Every rank sees the same rows, so that means over ranks are those of one. */
static void backward(rank *r, ds_engine *engine)
{
    for (int64_t i = 0; i < r->set->accumulation; ++i) {
        CHECK_OK(r->ctx, ds_engine_forward(engine, &r->model.batch));
        CHECK_OK(r->ctx, ds_engine_backward(engine));
        if (i + 1 < r->set->accumulation) {
            CHECK_OK(r->ctx, ds_engine_step(engine));
        }
    }
}

static size_t count_of(const ds_cell_info *param)
{
    return (size_t)ds_shape_count(param->meta.shape);
}

static void same_bits(const float *got, const float *want, size_t n, const char *what)
{
    if (memcmp(got, want, n * sizeof *got) != 0) {
        fail_msg("%s differs", what);
    }
}

static void close_to(const float *got, const float *want, size_t n, double tolerance,
                     const char *what)
{
    const double apart = check_relative_difference(got, want, n);
    if (!(apart <= tolerance)) {
        fail_msg("%s differs by %g of the largest", what, apart);
    }
}

/* A pattern that every element tells. */
static void fill(float *data, size_t n, float base)
{
    for (size_t i = 0; i < n; ++i) {
        data[i] = base + (float)(i % 61) / 64.0f;
    }
}

/* This rank's part is that part of the whole, and the parts of all ranks are the whole. */
static void check_local(rank *r, ds_state_kind kind, const ds_cell_info *param, const float *whole)
{
    const bool partial =
        kind == DS_STATE_GRAD && r->set->stage < 2 && r->set->accumulation > 1 && r->comm->size > 1;
    int64_t begin = 0;
    int64_t count = 0;
    float *own = malloc((count_of(param) + 1) * sizeof *own);
    const char *state = kind == DS_STATE_OPTIMIZER ? "exp_avg" : NULL;
    if (partial) {
        CHECK_FAILS(r->ctx,
                    ds_engine_local_range(r->engine, kind, param->name, state, &begin, &count),
                    DS_ERR_UNSUPPORTED, "is not reduced before the step");
        free(own);
        return;
    }
    CHECK_OK(r->ctx, ds_engine_local_range(r->engine, kind, param->name, state, &begin, &count));
    const size_t n = (size_t)count;
    if (kind == DS_STATE_PARAM) {
        CHECK_OK(r->ctx, ds_engine_get_local_fp32_param(r->engine, param->name, own, n));
    } else if (kind == DS_STATE_GRAD) {
        CHECK_OK(r->ctx, ds_engine_get_local_grad(r->engine, param->name, own, n));
    } else {
        CHECK_OK(r->ctx,
                 ds_engine_get_local_optimizer_state(r->engine, param->name, state, own, n));
    }
    same_bits(own, whole + begin, n, "a local part");
    double sum = (double)n;
    CHECK_OK(r->ctx, ds_comm_sum(r->comm, &sum, 1));
    assert_true((size_t)sum == count_of(param) || n == count_of(param));
    free(own);
}

static void compare_all(rank *r, bool grads)
{
    for (uint32_t i = 0; i < r->n_params; ++i) {
        const ds_cell_info *param = r->params[i];
        const size_t n = count_of(param);
        CHECK_OK(r->ctx, ds_engine_get_full_fp32_param(r->engine, param->name, r->got, n));
        CHECK_OK(r->ctx, ds_engine_get_full_fp32_param(r->one, param->name, r->want, n));
        close_to(r->got, r->want, n, grads ? 0.0 : r->set->tolerance, param->name);
        check_local(r, DS_STATE_PARAM, param, r->got);
        if (param->frozen) {
            CHECK_FAILS(r->ctx, ds_engine_get_full_grad(r->engine, param->name, r->got, n),
                        DS_ERR_NOT_FOUND, "is frozen");
            continue;
        }
        if (grads) {
            CHECK_OK(r->ctx, ds_engine_get_full_grad(r->engine, param->name, r->got, n));
            CHECK_OK(r->ctx, ds_engine_get_full_grad(r->one, param->name, r->want, n));
            close_to(r->got, r->want, n, r->set->tolerance, param->name);
            check_local(r, DS_STATE_GRAD, param, r->got);
        }
        CHECK_OK(r->ctx,
                 ds_engine_get_full_optimizer_state(r->engine, param->name, "exp_avg", r->got, n));
        check_local(r, DS_STATE_OPTIMIZER, param, r->got);
    }
}

/* Sets gradients, states and weights on both engines alike; both then take the same step. */
static void set_all(rank *r)
{
    for (uint32_t i = 0; i < r->n_params; ++i) {
        const ds_cell_info *param = r->params[i];
        const size_t n = count_of(param);
        fill(r->want, n, -0.5f + (float)i / 128.0f);
        CHECK_OK(r->ctx, ds_engine_set_full_fp32_param(r->engine, param->name, r->want, n));
        CHECK_OK(r->ctx, ds_engine_set_full_fp32_param(r->one, param->name, r->want, n));
        CHECK_OK(r->ctx, ds_engine_get_full_fp32_param(r->engine, param->name, r->got, n));
        same_bits(r->got, r->want, n, "a parameter that was set");
        if (param->frozen) {
            continue;
        }
        fill(r->want, n, 0.25f);
        CHECK_OK(r->ctx, ds_engine_set_full_optimizer_state(r->engine, param->name, "exp_avg_sq",
                                                            r->want, n));
        CHECK_OK(r->ctx,
                 ds_engine_set_full_optimizer_state(r->one, param->name, "exp_avg_sq", r->want, n));
        CHECK_OK(r->ctx, ds_engine_get_full_optimizer_state(r->engine, param->name, "exp_avg_sq",
                                                            r->got, n));
        same_bits(r->got, r->want, n, "a state that was set");
        fill(r->want, n, 0.0f); /* few bits: exact in every type */
        CHECK_OK(r->ctx, ds_engine_set_full_grad(r->engine, param->name, r->want, n));
        CHECK_OK(r->ctx, ds_engine_set_full_grad(r->one, param->name, r->want, n));
        CHECK_OK(r->ctx, ds_engine_get_full_grad(r->engine, param->name, r->got, n));
        close_to(r->got, r->want, n, 1e-6, "a gradient that was set");
    }
    CHECK_OK(r->ctx, ds_engine_step(r->engine));
    CHECK_OK(r->ctx, ds_engine_step(r->one));
    assert_true(ds_engine_was_step_applied(r->engine));
    compare_all(r, false);
}

static void set_local(rank *r)
{
    const ds_cell_info *param = r->params[0];
    const size_t n = count_of(param);
    int64_t begin = 0;
    int64_t count = 0;
    fill(r->want, n, 3.0f);
    CHECK_OK(r->ctx,
             ds_engine_local_range(r->engine, DS_STATE_PARAM, param->name, NULL, &begin, &count));
    const ds_status status =
        ds_engine_set_local_fp32_param(r->engine, param->name, r->want + begin, (size_t)count);
    if (r->comm->size > 1 && r->set->stage < 3) {
        assert_int_equal(status, DS_ERR_UNSUPPORTED);
        assert_non_null(strstr(ds_ctx_error(r->ctx), "set the full one"));
    } else {
        CHECK_OK(r->ctx, status);
        CHECK_OK(r->ctx, ds_engine_get_full_fp32_param(r->engine, param->name, r->got, n));
        same_bits(r->got, r->want, n, "a parameter set part by part");
    }
    CHECK_OK(r->ctx, ds_engine_local_range(r->engine, DS_STATE_OPTIMIZER, param->name, "exp_avg",
                                           &begin, &count));
    if (r->comm->size == 1 || r->set->stage > 0) {
        CHECK_OK(r->ctx, ds_engine_set_local_optimizer_state(r->engine, param->name, "exp_avg",
                                                             r->want + begin, (size_t)count));
        CHECK_OK(r->ctx,
                 ds_engine_get_full_optimizer_state(r->engine, param->name, "exp_avg", r->got, n));
        same_bits(r->got, r->want, n, "a state set part by part");
    }
}

/* ---- gathered parameters ---- */

static void gathered(rank *r)
{
    const uint32_t last = r->comm->size - 1;
    const char *const names[2] = {r->params[1]->name, r->params[2]->name};
    const char *const second[1] = {names[1]};
    ds_gathered *g = NULL;
    ds_gathered *other = NULL;
    size_t n = 0;
    CHECK_OK(r->ctx, ds_engine_gather(r->engine, names, 2, last, &g));
    CHECK_FAILS(r->ctx, ds_engine_gather(r->engine, second, 1, -1, &other), DS_ERR_STATE,
                "is gathered already");
    float *data = ds_gathered_data(g, 1, &n);
    assert_true(n == count_of(r->params[2]) && ds_gathered_data(g, 2, NULL) == NULL);
    CHECK_OK(r->ctx, ds_engine_get_full_fp32_param(r->engine, names[1], r->want, n));
    same_bits(data, r->want, n, "a gathered parameter");
    fill(data, n, r->comm->rank == last ? 1.5f : 99.0f); /* only the modifier's counts */
    fill(r->want, n, 1.5f);
    CHECK_OK(r->ctx, ds_gathered_end(&g));
    assert_null(g);
    CHECK_OK(r->ctx, ds_engine_get_full_fp32_param(r->engine, names[1], r->got, n));
    same_bits(r->got, r->want, n, "what the modifier wrote");

    CHECK_OK(r->ctx, ds_engine_gather(r->engine, second, 1, -1, &g));
    CHECK_OK(r->ctx, ds_gathered_end(&g));
    CHECK_OK(r->ctx, ds_engine_gather(r->engine, second, 1, -1, &g));
    if (r->comm->rank == last) {
        ds_gathered_data(g, 0, NULL)[0] = 7.0f;
    }
    const ds_status status = ds_gathered_end(&g);
    assert_int_equal(status, r->comm->rank == last ? DS_ERR_STATE : DS_ERR_PEER);
    CHECK_OK(r->ctx, ds_engine_get_full_fp32_param(r->engine, names[1], r->got, n));
    same_bits(r->got, r->want, n, "a parameter that nobody may modify");

    CHECK_OK(r->ctx, ds_engine_gather(r->engine, second, 1, 0, &g));
    backward(r, r->engine);
    CHECK_OK(r->ctx, ds_engine_step(r->engine));
    CHECK_FAILS(r->ctx, ds_gathered_end(&g), DS_ERR_STATE, "steps were taken");
    CHECK_OK(r->ctx, ds_gathered_end(&g)); /* NULL */
}

/* ---- wrong calls ---- */

static void wrong_calls(rank *r)
{
    const ds_cell_info *param = r->params[0];
    const size_t n = count_of(param);
    CHECK_FAILS(r->ctx, ds_engine_get_full_grad(r->engine, param->name, r->got, n), DS_ERR_STATE,
                "between ds_engine_backward and ds_engine_step");
    CHECK_FAILS(r->ctx, ds_engine_get_full_fp32_param(r->engine, "no.such", r->got, n),
                DS_ERR_NOT_FOUND, "there is no parameter named no.such");
    CHECK_FAILS(r->ctx,
                ds_engine_get_full_optimizer_state(r->engine, param->name, "step", r->got, n),
                DS_ERR_ARG, "has no optimizer state \"step\"; it has: exp_avg, exp_avg_sq");
    CHECK_FAILS(r->ctx, ds_engine_get_full_fp32_param(r->engine, param->name, r->got, n + 1),
                DS_ERR_SHAPE, "expected room for");
    if (r->comm->size == 1) {
        return;
    }
    const bool odd = r->comm->rank == 1;
    CHECK_FAILS(r->ctx,
                ds_engine_get_full_fp32_param(r->engine, r->params[odd ? 1 : 2]->name, r->got,
                                              count_of(r->params[odd ? 1 : 2])),
                DS_ERR_PEER, "rank 1 would get the parameter");
    const ds_status status =
        ds_engine_get_full_fp32_param(r->engine, param->name, r->got, odd ? n - 1 : n);
    assert_int_equal(status, odd ? DS_ERR_SHAPE : DS_ERR_PEER);
    CHECK_OK(r->ctx, ds_engine_get_full_fp32_param(r->engine, param->name, r->want, n));
    fill(r->got, n, odd ? 5.0f : 6.0f);
    CHECK_FAILS(r->ctx, ds_engine_set_full_fp32_param(r->engine, param->name, r->got, n),
                DS_ERR_PEER, "rank 1 gives other values than rank 0");
    CHECK_OK(r->ctx, ds_engine_get_full_fp32_param(r->engine, param->name, r->got, n));
    same_bits(r->got, r->want, n, "a parameter after a refused call");
}

/* The same of the pair in engine.h. */
static void wrong_plain_calls(rank *r)
{
    const ds_cell_info *param = r->params[0];
    const size_t n = count_of(param);
    const bool odd = r->comm->rank == 1;
    CHECK_FAILS(r->ctx, ds_engine_get(r->engine, DS_CELL_EXP_AVG, "no.such", r->got, n),
                DS_ERR_NOT_FOUND, "there is no exp_avg named no.such");
    CHECK_OK(r->ctx, ds_engine_get(r->engine, DS_CELL_PARAM, param->name, r->want, n));
    if (r->comm->size == 1) {
        return;
    }
    const ds_cell_kind kind = odd ? DS_CELL_EXP_AVG : DS_CELL_EXP_AVG_SQ;
    CHECK_FAILS(r->ctx, ds_engine_get(r->engine, kind, param->name, r->got, n), DS_ERR_PEER,
                "rank 1 would get exp_avg of ");
    if (odd) {
        CHECK_FAILS(r->ctx, ds_engine_set(r->engine, DS_CELL_PARAM, param->name, r->want, n),
                    DS_ERR_PEER, "rank 1 would set param of ");
    } else {
        CHECK_FAILS(r->ctx, ds_engine_get(r->engine, DS_CELL_PARAM, param->name, r->got, n),
                    DS_ERR_PEER, "rank 1 would set param of ");
    }
    fill(r->got, n, odd ? 5.0f : 6.0f);
    CHECK_FAILS(r->ctx, ds_engine_set(r->engine, DS_CELL_PARAM, param->name, r->got, n),
                DS_ERR_PEER, "rank 1 gives other values than rank 0");
    CHECK_OK(r->ctx, ds_engine_get(r->engine, DS_CELL_PARAM, param->name, r->got, n));
    same_bits(r->got, r->want, n, "a parameter after a refused call");
    const char *const both[] = {r->params[0]->name, r->params[odd ? 2 : 1]->name};
    ds_gathered *g = NULL;
    CHECK_FAILS(r->ctx, ds_engine_gather(r->engine, both, 2, 0, &g), DS_ERR_PEER,
                r->params[2]->name);
    assert_non_null(strstr(ds_ctx_error(r->ctx), "rank 1 would gather 2 parameters for rank 0"));
    assert_null(g);
}

static ds_status run_rank(dsi_comm *comm, void *arg)
{
    rank r = {.comm = comm, .ctx = comm->ctx, .set = arg};
    size_t most = 0;
    parity_open(r.ctx, "gpt2", &r.model);
    make_engine(&r, comm, &r.engine);
    make_engine(&r, NULL, &r.one);
    const ds_cells *cells = ds_engine_cells(r.engine);
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        if (cell->kind == DS_CELL_PARAM && r.n_params < 256) {
            r.params[r.n_params++] = cell;
            most = count_of(cell) > most ? count_of(cell) : most;
        }
    }
    r.got = malloc((most + 1) * sizeof *r.got);
    r.want = malloc((most + 1) * sizeof *r.want);
    assert_true(ds_engine_n_trainable(r.engine) < ds_engine_n_parameters(r.engine));
    wrong_calls(&r);
    wrong_plain_calls(&r);
    backward(&r, r.engine);
    backward(&r, r.one);
    compare_all(&r, true);
    set_all(&r);
    set_local(&r);
    gathered(&r);
    free(r.got);
    free(r.want);
    ds_engine_destroy(&r.engine);
    ds_engine_destroy(&r.one);
    parity_close(&r.model);
    return DS_OK;
}

static void ranks_and_stages(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; ++n) {
        for (uint32_t stage = 0; stage <= 3; ++stage) {
            setting set = {stage, 1, DS_DTYPE_F32, 1e-5};
            assert_int_equal(rank_threads_run(n, NULL, run_rank, &set, NULL), DS_OK);
        }
    }
}

static void accumulated_and_scaled(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage <= 3; ++stage) {
        setting sum = {stage, 2, DS_DTYPE_F32, 1e-5};
        setting scaled = {stage, 2, DS_DTYPE_F16, 2e-2};
        assert_int_equal(rank_threads_run(3, NULL, run_rank, &sum, NULL), DS_OK);
        assert_int_equal(rank_threads_run(2, NULL, run_rank, &scaled, NULL), DS_OK);
    }
}

/* ---- a rank that does not ask: it trains on, or leaves ---- */

typedef struct absence {
    setting set;
    bool leaves;
} absence;

static ds_status run_absent(dsi_comm *comm, void *arg)
{
    const absence *a = arg;
    rank r = {.comm = comm, .ctx = comm->ctx, .set = &a->set};
    parity_open(r.ctx, "gpt2", &r.model);
    make_engine(&r, comm, &r.engine);
    const ds_cells *cells = ds_engine_cells(r.engine);
    ds_cell c = 0;
    while (ds_cells_get(cells, c)->kind != DS_CELL_PARAM) {
        ++c;
    }
    const ds_cell_info *param = ds_cells_get(cells, c);
    ds_status status = DS_OK;
    r.got = malloc((count_of(param) + 1) * sizeof *r.got);
    if (comm->rank != 1) {
        status = ds_engine_get(r.engine, DS_CELL_PARAM, param->name, r.got, count_of(param));
    } else if (!a->leaves) {
        status = ds_engine_forward(r.engine, &r.model.batch);
        status = status < 0 ? status : ds_engine_backward(r.engine);
        status = status < 0 ? status : ds_engine_step(r.engine);
    }
    free(r.got);
    ds_engine_destroy(&r.engine);
    parity_close(&r.model);
    return status;
}

static void a_rank_does_not_ask(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage <= 3; ++stage) {
        for (int leaves = 0; leaves < 2; ++leaves) {
            absence a = {{stage, 1, DS_DTYPE_F32, 0.0}, leaves != 0};
            rank_results results;
            assert_int_equal(rank_threads_run(3, NULL, run_absent, &a, &results), DS_ERR_PEER);
            for (uint32_t k = 0; k < 3; k += 2) {
                assert_int_equal(results.status[k], DS_ERR_PEER);
                assert_non_null(strstr(results.message[k], "rank 1"));
                assert_non_null(strstr(results.message[k], "get param of "));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_and_stages),
        cmocka_unit_test(accumulated_and_scaled),
        cmocka_unit_test(a_rank_does_not_ask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
