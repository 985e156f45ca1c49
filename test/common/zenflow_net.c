/* SPDX-License-Identifier: Apache-2.0 */
/* See zenflow_net.h. */
#include "common/zenflow_net.h"

#include "accel/cpu/cpu_features.h"
#include "comm/sim.h"
#include "common/check.h"
#include "common/small_run.h"
#include "op/ops.h"
#include "train/engine_same.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    BATCH = ZENFLOW_BATCH,
    N_IN = ZENFLOW_N_IN,
    HIDDEN = ZENFLOW_HIDDEN,
    N_OUT = ZENFLOW_N_OUT,
    STEPS = ZENFLOW_STEPS,
    MAX_RANKS = ZENFLOW_MAX_RANKS
};

/* The network of make_zenflow.py, with PyTorch's names. */
static void trace_mlp(ds_nn *nn, const void *config)
{
    const zenflow_mlp *c = config;
    const int64_t n = ds_nn_trace(nn)->batch;
    const ds_linear_params first = {.n_out = HIDDEN, .bias = c->bias, .init_std = 0.3};
    const ds_linear_params last = {.n_out = N_OUT, .bias = c->bias, .init_std = 0.3};
    const ds_value in = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(n, N_IN));
    const ds_value y = ds_nn_input(nn, "y", DS_DTYPE_F32, ds_shape_2d(n, N_OUT));
    const ds_value x = ds_nn_cast(nn, in, ds_nn_trace(nn)->dtype);
    const ds_value before = ds_nn_linear(nn, "0", x, &first);
    const ds_value hidden = ds_nn_apply(nn, &dsi_op_tanh, NULL, &before, 1);
    const ds_value out = ds_nn_cast(nn, ds_nn_linear(nn, "2", hidden, &last), DS_DTYPE_F32);
    const ds_value wrong = ds_nn_sub(nn, out, y);
    ds_nn_output(nn, "loss", ds_nn_mean_all(nn, ds_nn_mul(nn, wrong, wrong)));
}

static dsi_engine_spec make_spec(const zenflow_setting *s)
{
    dsi_engine_spec spec = {.train = {.dtype = s->dtype,
                                      .comm_dtype = s->dtype,
                                      .accumulate_dtype = DS_DTYPE_F32,
                                      .state_dtype = DS_DTYPE_F32,
                                      .master = s->dtype != DS_DTYPE_F32,
                                      .batch = BATCH,
                                      .seq_length = 1,
                                      .accumulation = s->accumulation > 0 ? s->accumulation : 1,
                                      .optimizer = DS_OPTIMIZER_ADAM,
                                      .eps = 1e-15,
                                      .decoupled_decay = !s->coupled_decay,
                                      .max_norm = s->max_norm,
                                      .zenflow = s->zenflow},
                            .zero = {.stage = s->stage,
                                     .reduce_each = true,
                                     .comm_dtype = s->dtype,
                                     .reduce_bucket = 200,
                                     .gather_bucket = 200,
                                     .persistence_threshold = 17,
                                     .model_persistence = INT64_MAX,
                                     .max_live = 200,
                                     .max_reuse_distance = 200},
                            .offload = s->offload,
                            .reserved_cores = s->reserved,
                            .lr = 1e-2,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .weight_decay = 0.05,
                            .decay_all = true,
                            .bias_correction = true,
                            .loss_scale = dsi_loss_scale_none(),
                            .schedule = ds_schedule_default(DS_SCHEDULE_NONE),
                            .seed = 11,
                            .isa = dsi_cpu_isa()};
    return spec;
}

ds_engine *zenflow_open_engine(ds_ctx *ctx, const zenflow_setting *s, ds_model *model,
                               ds_comm *comm)
{
    const dsi_engine_spec spec = make_spec(s);
    const ds_engine_params params = {.model = model, .seq_length = 1, .seed = 5, .comm = comm};
    ds_engine *engine = NULL;
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
    return engine;
}

ds_model *zenflow_open_model(ds_ctx *ctx, const zenflow_mlp *config)
{
    const ds_model_info info = {.architecture = "mlp"};
    ds_model *model = NULL;
    CHECK_OK(ctx, ds_model_custom(ctx, &info, trace_mlp, config, &model));
    return model;
}

/* Forward and backward on rows that differ from rank to rank. */
void zenflow_run_batch(ds_ctx *ctx, ds_engine *engine, const float *x, const float *y)
{
    const ds_named_tensor tensors[2] = {
        {"x", {(void *)x, {DS_DTYPE_F32, ds_shape_2d(BATCH, N_IN)}}},
        {"y", {(void *)y, {DS_DTYPE_F32, ds_shape_2d(BATCH, N_OUT)}}}};
    const ds_batch batch = {tensors, 2};
    CHECK_OK(ctx, ds_engine_forward(engine, &batch));
    CHECK_OK(ctx, ds_engine_backward(engine));
}

dsi_zenflow_spec zenflow_steps_of(int64_t update, int64_t select, int64_t warm_up)
{
    return (dsi_zenflow_spec){.on = true,
                              .ratio = 0.25,
                              .auto_ratio = 0.99,
                              .update_every = update,
                              .select_every = select,
                              .warm_up = warm_up};
}

dsi_offload_spec zenflow_away(int how, const char *folder)
{
    const dsi_residency there = how % 2 == 0 ? DSI_RESIDENCY_HOST : DSI_RESIDENCY_DISK;
    dsi_offload_spec spec = small_away(folder, there, how >= 2 ? there : DSI_RESIDENCY_DEVICE);
    spec.chosen = how >= 2 ? DSI_RESIDENCY_HOST : DSI_RESIDENCY_DEVICE;
    spec.threshold = 17;
    spec.how.chunk = 100;
    return spec;
}

void zenflow_fill_batch(int step, int rank, float *x, float *y)
{
    uint32_t seed = (uint32_t)(step * 977 + rank * 131 + 5);
    for (int i = 0; i < BATCH * (N_IN + N_OUT); ++i) {
        seed = seed * 1664525u + 1013904223u;
        const float value = (float)(seed >> 8) / 8388608.0f - 1.0f;
        *(i < BATCH * N_IN ? &x[i] : &y[i - BATCH * N_IN]) =
            i < BATCH * N_IN ? value * (0.2f + 0.1f * (float)((i * 7) % N_IN)) : value;
    }
}

/* Weights, all moments, what waits, and which columns are chosen. */
uint64_t zenflow_hash(ds_ctx *own, ds_engine *engine)
{
    static const ds_cell_kind kinds[] = {DS_CELL_PARAM, DS_CELL_EXP_AVG, DS_CELL_EXP_AVG_SQ,
                                         DS_CELL_WAITING, DS_CELL_CHOSEN};
    float data[HIDDEN * N_IN];
    uint64_t hash = 0;
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *info = ds_cells_get(engine->cells, c);
        bool wanted = false;
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
            wanted = wanted || info->kind == kinds[k];
        }
        wanted = wanted && (info->kind != DS_CELL_WAITING || engine->zenflow.waiting > 0);
        const size_t n = (size_t)ds_shape_count(info->meta.shape);
        if (wanted && info->meta.dtype != DS_DTYPE_I32 && info->meta.dtype != DS_DTYPE_F64) {
            CHECK_OK(own, ds_engine_get(engine, info->kind, info->name, data, n));
            hash = XXH3_64bits_withSeed(data, n * sizeof *data, hash);
            if (info->kind == DS_CELL_PARAM) { /* as forward passes see it */
                CHECK_OK(own, dsi_engine_get_cell(engine, c, data));
                hash = XXH3_64bits_withSeed(data, n * sizeof *data, hash);
            }
        } else if (wanted) {
            hash = XXH3_64bits_withSeed(dsi_exec_host_view(engine->exec, c),
                                        ds_meta_bytes(info->meta), hash);
        }
    }
    return hash;
}

static void *run_rank(void *arg)
{
    zenflow_job *job = arg;
    const zenflow_setting *s = job->s;
    const zenflow_mlp config = {s->bias};
    float x[BATCH * N_IN];
    float y[BATCH * N_OUT];
    ds_model *model = zenflow_open_model(job->ctx, &config);
    ds_engine *engine = zenflow_open_engine(job->ctx, s, model, job->comm);
    if (s->resume != NULL) {
        CHECK_OK(job->ctx, ds_engine_load_checkpoint(engine, s->resume, NULL, NULL));
    }
    const int accumulation = (int)engine->spec.train.accumulation;
    const int first = (int)ds_engine_global_steps(engine);
    const int last = first + (s->steps > 0 ? s->steps : STEPS);
    for (int step = first; step < last; ++step) {
        for (int i = 0; i < accumulation; ++i) {
            zenflow_fill_batch(step * accumulation + i, (int)ds_comm_rank(job->comm), x, y);
            zenflow_run_batch(job->ctx, engine, x, y);
            CHECK_OK(job->ctx, ds_engine_step(engine));
        }
        if (s->finishes) {
            CHECK_OK(job->ctx, dsi_zenflow_finish(engine));
        }
        if (s->save_each != NULL && step + 1 < last) {
            CHECK_OK(job->ctx, ds_engine_save_checkpoint(engine, s->save_each, "each", NULL));
        }
    }
    if (s->save != NULL) {
        CHECK_OK(job->ctx, ds_engine_save_checkpoint(engine, s->save, "here", NULL));
    }
    job->bytes = ds_engine_planned_bytes(engine);
    job->hash = zenflow_hash(job->ctx, engine);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return NULL;
}

zenflow_job zenflow_run_all(const zenflow_setting *s)
{
    zenflow_job jobs[MAX_RANKS] = {{0}};
    ds_ctx *ctxs[MAX_RANKS];
    dsi_comm *comms[MAX_RANKS] = {NULL};
    pthread_t threads[MAX_RANKS];
    const ds_ctx_params params = {.level = DS_LOG_ERROR,
                                  .n_threads = s->threads > 0 ? s->threads : 1};
    for (uint32_t i = 0; i < s->n_ranks; ++i) {
        assert_int_equal(ds_ctx_create(&params, &ctxs[i]), DS_OK);
    }
    CHECK_OK(ctxs[0], dsi_comm_sim_create(ctxs, s->n_ranks, NULL, comms));
    for (uint32_t i = 0; i < s->n_ranks; ++i) {
        jobs[i] = (zenflow_job){.s = s, .ctx = ctxs[i], .comm = comms[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &jobs[i]), 0);
    }
    for (uint32_t i = 0; i < s->n_ranks; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        dsi_comm_destroy(&comms[i]);
    }
    for (uint32_t i = 0; i < s->n_ranks; ++i) {
        assert_true(jobs[i].hash == jobs[0].hash);
        ds_ctx_destroy(&ctxs[i]);
    }
    return jobs[0];
}
