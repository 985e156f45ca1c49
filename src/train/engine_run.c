/* SPDX-License-Identifier: Apache-2.0 */
/* Runs an engine: forward, backward, step, and what is built of them. */
#include "op/ops.h"
#include "train/engine.h"
#include "train/half_copy.h"
#include "train/memory_report.h"
#include "train/run_trace.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 256 };

static const char *state_name(dsi_engine_state state)
{
    static const char *const names[] = {"idle", "forward done, backward expected",
                                        "backward done, step expected"};
    return names[state];
}

static ds_status wrong_state(const ds_engine *engine, const char *call)
{
    return ds_fail(engine->ctx, DS_ERR_STATE, "%s is not allowed in this state: %s", call,
                   state_name(engine->state));
}

ds_status dsi_engine_check_whole(const ds_engine *engine, const char *call)
{
    return engine->broken || dsi_exec_has_lost(engine->exec)
               ? ds_fail(engine->ctx, DS_ERR_STATE,
                         "%s is not allowed: an earlier call failed while it changed the engine's "
                         "states; load a checkpoint",
                         call)
               : DS_OK;
}

/* In the right state, and whole. */
static ds_status expect(const ds_engine *engine, dsi_engine_state state, const char *call)
{
    DS_TRY(dsi_engine_check_whole(engine, call));
    return engine->state == state ? DS_OK : wrong_state(engine, call);
}

/* Copies one tensor into the input cell PREFIX/NAME. */
static ds_status write_input(ds_engine *engine, const char *prefix, const ds_named_tensor *named)
{
    char path[NAME_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", prefix, named->name);
    const ds_cell cell = ds_cells_find(engine->cells, DS_CELL_INPUT, path);
    if (cell == DS_NONE) {
        return ds_fail(engine->ctx, DS_ERR_ARG, "the model has no %s input named %s", prefix,
                       named->name);
    }
    const ds_meta want = ds_cells_get(engine->cells, cell)->meta;
    const ds_meta got = named->tensor.meta;
    if (got.dtype != want.dtype || !ds_shape_equal(got.shape, want.shape) ||
        named->tensor.data == NULL) {
        char a[160];
        char b[160];
        return ds_fail(engine->ctx, DS_ERR_SHAPE, "input %s: expected %s, got %s", named->name,
                       ds_meta_text(want, a, sizeof a), ds_meta_text(got, b, sizeof b));
    }
    memcpy(dsi_exec_cell(engine->exec, cell), named->tensor.data, ds_meta_bytes(want));
    return DS_OK;
}

/* Every input of the prefix is in the batch, the random state apart. */
static ds_status check_complete(const ds_engine *engine, const char *prefix, const ds_batch *batch)
{
    const size_t n = strlen(prefix);
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        if (cell->kind != DS_CELL_INPUT || strncmp(cell->name, prefix, n) != 0 ||
            cell->name[n] != '/' || strcmp(cell->name + n, "/rng") == 0) {
            continue;
        }
        bool found = false;
        for (uint32_t i = 0; i < batch->n_tensors && !found; ++i) {
            found = strcmp(batch->tensors[i].name, cell->name + n + 1) == 0;
        }
        if (!found) {
            return ds_fail(engine->ctx, DS_ERR_ARG, "the batch lacks the input %s",
                           cell->name + n + 1);
        }
    }
    return DS_OK;
}

static ds_status write_batch(ds_engine *engine, const char *prefix, const ds_batch *batch)
{
    DS_TRY(check_complete(engine, prefix, batch));
    for (uint32_t i = 0; i < batch->n_tensors; ++i) {
        DS_TRY(write_input(engine, prefix, &batch->tensors[i]));
    }
    return DS_OK;
}

static void write_scalar(ds_engine *engine, ds_cell cell, double value)
{
    if (cell != DS_NONE) {
        *(float *)dsi_exec_cell(engine->exec, cell) = (float)value;
    }
}

/* {seed, step, first global sample of the micro-batch, 0}. */
static void write_rng(ds_engine *engine)
{
    if (engine->rng[0] != DS_NONE) {
        int64_t *rng = dsi_exec_cell(engine->exec, engine->rng[0]);
        const int64_t batch = engine->spec.train.batch;
        rng[0] = (int64_t)engine->spec.seed;
        rng[1] = (int64_t)engine->global_steps;
        const int64_t rank = ds_comm_rank(engine->comm);
        const int64_t size = ds_comm_size(engine->comm);
        rng[2] = (int64_t)engine->global_samples + (engine->micro_step * size + rank) * batch;
    }
}

static ds_status read_scalar(ds_engine *engine, uint32_t id, const char *name, double *value_out)
{
    ds_tensor tensor;
    DS_TRY(dsi_exec_output(engine->exec, id, name, &tensor));
    *value_out = *(const float *)tensor.data;
    return DS_OK;
}

ds_status ds_engine_forward(ds_engine *engine, const ds_batch *batch)
{
    DS_TRY(expect(engine, DSI_ENGINE_IDLE, "ds_engine_forward"));
    dsi_engine_see_memory(engine, "Engine before forward");
    const double begin = dsi_run_trace_begin(engine);
    DS_TRY(write_batch(engine, "train", batch));
    write_rng(engine);
    dsi_run_trace_end(engine, DSI_HOST_BATCH, begin);
    DS_TRY(dsi_engine_run_phase(engine, DS_PHASE_FORWARD));
    if (engine->own.loss_seed != DS_NONE) {
        DS_TRY(read_scalar(engine, engine->train_id, "loss", &engine->loss));
    }
    if (engine->spec.average == DS_AVERAGE_TARGETS) {
        DS_TRY(read_scalar(engine, engine->train_id, "count", &engine->count));
    }
    engine->state = DSI_ENGINE_FORWARDED;
    dsi_engine_see_memory(engine, "Engine after forward");
    return DS_OK;
}

static ds_status clear_accumulators(ds_engine *engine)
{
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->local, c);
        if (cell->kind == DS_CELL_GRAD) {
            DS_TRY(dsi_exec_clear(engine->exec, c));
        }
    }
    return DS_OK;
}

/* What updates read beside gradients and states. */
static void write_update_numbers(ds_engine *engine)
{
    write_scalar(engine, engine->own.inverse_scale, dsi_engine_inverse_scale(engine));
    dsi_engine_write_hyper(engine, engine->own.hyper, dsi_engine_updates(engine) + 1);
}

static ds_status run_backward(ds_engine *engine)
{
    const int64_t accumulation = engine->spec.train.accumulation;
    dsi_engine_see_memory(engine, "Engine before backward");
    DS_TRY(dsi_engine_add_targets(engine));
    write_scalar(engine, engine->own.loss_seed, dsi_engine_loss_seed(engine));
    if (accumulation > 1 && engine->micro_step == 0) {
        const double begin = dsi_run_trace_begin(engine);
        DS_TRY(clear_accumulators(engine));
        dsi_run_trace_end(engine, DSI_HOST_CLEAR, begin);
    }
    if (dsi_train_is_early(&engine->spec.train)) {
        write_update_numbers(engine);
    }
    DS_TRY(dsi_engine_run_phase(engine, DS_PHASE_BACKWARD));
    engine->micro_step += 1;
    engine->state = DSI_ENGINE_ACCUMULATED;
    dsi_engine_see_memory(engine, "Engine after backward");
    return DS_OK;
}

ds_status ds_engine_backward(ds_engine *engine)
{
    return ds_engine_backward_outputs(engine, NULL, 0);
}

ds_status ds_engine_backward_outputs(ds_engine *engine, const ds_named_tensor *gradients,
                                     uint32_t n_gradients)
{
    DS_TRY(expect(engine, DSI_ENGINE_FORWARDED, "ds_engine_backward"));
    for (uint32_t i = 0; i < engine->spec.train.n_gradient_outputs; ++i) {
        char path[NAME_BYTES];
        (void)snprintf(path, sizeof path, "gradient/%s", engine->spec.train.gradient_outputs[i]);
        const ds_cell cell = ds_cells_find(engine->cells, DS_CELL_INPUT, path);
        memset(dsi_exec_cell(engine->exec, cell), 0,
               ds_meta_bytes(ds_cells_get(engine->cells, cell)->meta));
    }
    for (uint32_t i = 0; i < n_gradients; ++i) {
        DS_TRY(write_input(engine, "gradient", &gradients[i]));
        char path[NAME_BYTES];
        (void)snprintf(path, sizeof path, "gradient/%s", gradients[i].name);
        const ds_cell cell = ds_cells_find(engine->cells, DS_CELL_INPUT, path);
        dsi_half_copy(engine->ctx, dsi_exec_cell(engine->exec, cell),
                      gradients[i].tensor.meta.dtype, gradients[i].tensor.data,
                      gradients[i].tensor.meta.dtype,
                      (size_t)ds_shape_count(gradients[i].tensor.meta.shape),
                      (float)engine->spec.loss_scale.scale);
    }
    return run_backward(engine);
}

bool ds_engine_is_accumulation_boundary(const ds_engine *engine)
{
    if (engine->forced_boundary >= 0) {
        return engine->forced_boundary == 1;
    }
    const int64_t done = engine->micro_step + (engine->state == DSI_ENGINE_ACCUMULATED ? 0 : 1);
    return done % engine->spec.train.accumulation == 0;
}

int64_t dsi_engine_updates(const ds_engine *engine)
{
    return (int64_t)(engine->global_steps - engine->skipped_steps);
}

static void current_rates(const ds_engine *engine, int group, double *lr, double *momentum)
{
    const dsi_engine_spec *spec = &engine->spec;
    const bool other = group == DSI_GROUP_NO_DECAY && spec->has_groups;
    const ds_schedule_point point = ds_schedule_at(
        other ? &spec->schedule_no_decay : &spec->schedule, spec->lr, dsi_engine_updates(engine));
    *lr = point.lr;
    *momentum = point.has_momentum ? point.momentum : engine->spec.beta1;
    if (engine->forced_lr >= 0.0) {
        *lr = engine->forced_lr;
    }
}

double ds_engine_lr(const ds_engine *engine)
{
    double lr = 0.0;
    double momentum = 0.0;
    current_rates(engine, DSI_GROUP_DECAY, &lr, &momentum);
    return lr;
}

double ds_engine_momentum(const ds_engine *engine)
{
    double lr = 0.0;
    double momentum = 0.0;
    current_rates(engine, DSI_GROUP_DECAY, &lr, &momentum);
    return momentum;
}

void dsi_engine_write_hyper(ds_engine *engine, const ds_cell cells[2], int64_t update)
{
    const dsi_engine_spec *spec = &engine->spec;
    const double t = (double)update;
    for (int group = 0; group < 2; ++group) {
        double lr = 0.0;
        double beta1 = 0.0;
        current_rates(engine, group, &lr, &beta1);
        float *hyper = dsi_exec_cell(engine->exec, cells[group]);
        hyper[DSI_HYPER_LR] = (float)lr;
        hyper[DSI_HYPER_BETA1] = (float)beta1;
        hyper[DSI_HYPER_BETA2] = (float)spec->beta2;
        hyper[DSI_HYPER_WEIGHT_DECAY] =
            group == DSI_GROUP_DECAY || spec->decay_all ? (float)spec->weight_decay : 0.0f;
        /* of the rounded betas, which the kernels use: 1 - 0.999 is off by 1e-5 of itself in fp32
         */
        const double b1 = (double)hyper[DSI_HYPER_BETA1];
        const double b2 = (double)hyper[DSI_HYPER_BETA2];
        hyper[DSI_HYPER_BIAS1] = spec->bias_correction ? (float)(1.0 - pow(b1, t)) : 1.0f;
        hyper[DSI_HYPER_BIAS2] = spec->bias_correction ? (float)sqrt(1.0 - pow(b2, t)) : 1.0f;
        hyper[DSI_HYPER_FIRST] = dsi_engine_updates(engine) == 0 ? 1.0f : 0.0f;
        hyper[DSI_HYPER_SPARE] = 0.0f;
    }
}

/* Whether the gradients are such that the step is not skipped. */
static ds_status is_applicable(ds_engine *engine, bool *applicable_out)
{
    double top = 0.0;
    DS_TRY(read_scalar(engine, engine->train_id, "grad_norm", &engine->grad_norm));
    if (engine->spec.train.keep_nonfinite) {
        *applicable_out = true;
        dsi_engine_count_nonfinite(engine, isfinite(engine->grad_norm));
        if (!isfinite(engine->grad_norm)) {
            engine->grad_norm = -1.0;
            ds_log(engine->ctx, DS_LOG_WARN,
                   "step %llu: a gradient is not finite, and is applied "
                   "(bf16.check_grad_overflow is false)",
                   (unsigned long long)engine->global_steps + 1);
        }
        return DS_OK;
    }
    DS_TRY(read_scalar(engine, engine->train_id, "grad_top", &top));
    *applicable_out = isfinite(top) && isfinite(engine->grad_norm);
    dsi_engine_count_nonfinite(engine, *applicable_out);
    return DS_OK;
}

static ds_status update(ds_engine *engine)
{
    write_update_numbers(engine);
    DS_TRY(dsi_engine_run_phase(engine, DS_PHASE_NORM));
    DS_TRY(is_applicable(engine, &engine->applied));
    if (engine->applied) {
        DS_TRY(engine->spec.train.zenflow.on ? dsi_zenflow_update(engine)
                                             : dsi_engine_run_phase(engine, DS_PHASE_UPDATE));
    } else {
        engine->grad_norm = -1.0;
        engine->skipped_steps += 1;
        ds_log(engine->ctx, DS_LOG_WARN,
               "step %llu skipped: a gradient is not finite (loss scale %g)",
               (unsigned long long)engine->global_steps + 1, engine->spec.loss_scale.scale);
    }
    engine->global_steps += 1;
    const uint64_t samples =
        (uint64_t)(engine->micro_step * engine->spec.train.batch) * ds_comm_size(engine->comm);
    engine->global_samples += samples;
    engine->global_tokens += samples * (uint64_t)engine->spec.train.seq_length;
    engine->micro_step = 0;
    DS_TRY(dsi_loss_scale_update(engine->ctx, &engine->spec.loss_scale, !engine->applied));
    dsi_engine_report_times(engine); /* what follows may fail on one rank: the step is done */
    DS_TRY(dsi_engine_report_flops(engine));
    return dsi_engine_measure_step(engine);
}

ds_status ds_engine_step(ds_engine *engine)
{
    DS_TRY(expect(engine, DSI_ENGINE_ACCUMULATED, "ds_engine_step"));
    dsi_engine_see_memory(engine, "Engine before step");
    const bool boundary = ds_engine_is_accumulation_boundary(engine);
    engine->state = DSI_ENGINE_IDLE;
    engine->forced_boundary = -1;
    engine->applied = false;
    if (boundary) {
        DS_TRY(update(engine));
    }
    dsi_engine_see_memory(engine, "Engine after step");
    return DS_OK;
}

ds_status ds_engine_train_batch(ds_engine *engine, ds_batch_fn next, void *user, double *loss_out)
{
    const bool weighed = engine->spec.average == DS_AVERAGE_TARGETS;
    double sum = 0.0;
    for (int64_t i = 0; i < engine->spec.train.accumulation; ++i) {
        ds_batch batch = {0};
        DS_TRY(next(user, &batch));
        DS_TRY(ds_engine_forward(engine, &batch));
        DS_TRY(ds_engine_backward(engine));
        sum += weighed ? engine->loss * engine->count : engine->loss;
        DS_TRY(ds_engine_step(engine));
    }
    if (loss_out != NULL) {
        DS_TRY(ds_comm_sum(engine->comm, &sum, 1));
        *loss_out =
            !weighed ? sum / (double)(engine->spec.train.accumulation * ds_comm_size(engine->comm))
            : engine->step_targets > 0.0 ? sum / engine->step_targets
                                         : 0.0;
    }
    return DS_OK;
}

ds_status ds_engine_eval_batch(ds_engine *engine, const ds_batch *batch, double *loss_out,
                               double *count_out)
{
    double value = 0.0;
    DS_TRY(dsi_engine_check_whole(engine, "ds_engine_eval_batch"));
    DS_TRY(write_batch(engine, "eval", batch));
    DS_TRY(dsi_exec_run(engine->exec, engine->eval_id, DS_PHASE_FORWARD));
    if (loss_out != NULL) {
        DS_TRY(read_scalar(engine, engine->eval_id, "loss", &value));
        *loss_out = value;
    }
    if (count_out != NULL) {
        DS_TRY(read_scalar(engine, engine->eval_id, "count", &value));
        *count_out = value;
    }
    return DS_OK;
}

ds_status ds_engine_output(ds_engine *engine, const char *name, ds_tensor *tensor_out)
{
    DS_TRY(expect(engine, DSI_ENGINE_FORWARDED, "ds_engine_output"));
    return dsi_exec_output(engine->exec, engine->train_id, name, tensor_out);
}
