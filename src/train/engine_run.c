/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of an engine: forward, backward, step, and what is built of them. What they do stands
 * in engine_program.c. */
#include "train/engine_pipe.h"
#include "train/memory_report.h"

#include <string.h>

ds_status dsi_engine_check_whole(const ds_engine *engine, const char *call)
{
    return engine->broken || dsi_exec_has_lost(engine->exec)
               ? ds_fail(engine->ctx, DS_ERR_STATE,
                         "%s is not allowed: an earlier call failed while it changed the engine's "
                         "states; load a checkpoint",
                         call)
               : DS_OK;
}

/* The call is awaited, and the engine whole. */
static ds_status expect(const ds_engine *engine, dsi_engine_call call, const char *name)
{
    const dsi_engine_call awaited = dsi_engine_awaits(engine);
    static const char *const done[] = {[DSI_CALL_FORWARD] = "idle",
                                       [DSI_CALL_BACKWARD] = "forward done",
                                       [DSI_CALL_STEP] = "backward done"};
    DS_TRY(dsi_engine_check_whole(engine, name));
    if (engine->pipe != NULL) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "%s is not allowed with pipeline.stages %u: the schedule has the order of "
                       "micro-batches; call ds_engine_train_batch",
                       name, engine->pipe->n_stages);
    }
    return awaited == call
               ? DS_OK
               : ds_fail(engine->ctx, DS_ERR_STATE,
                         "%s is not allowed in this state: %s, %s expected", name, done[awaited],
                         dsi_program_awaits(&engine->training, engine->at)->name);
}

ds_status ds_engine_forward(ds_engine *engine, const ds_batch *batch)
{
    DS_TRY(expect(engine, DSI_CALL_FORWARD, "ds_engine_forward"));
    dsi_engine_see_memory(engine, "Engine before forward");
    engine->call = (dsi_engine_args){.batch = batch};
    DS_TRY(dsi_engine_call_program(engine, DSI_CALL_FORWARD));
    DS_TRY(dsi_engine_add_preference(engine, false));
    dsi_engine_see_memory(engine, "Engine after forward");
    return DS_OK;
}

ds_status ds_engine_backward(ds_engine *engine)
{
    return ds_engine_backward_outputs(engine, NULL, 0);
}

ds_status ds_engine_backward_outputs(ds_engine *engine, const ds_named_tensor *gradients,
                                     uint32_t n_gradients)
{
    DS_TRY(expect(engine, DSI_CALL_BACKWARD, "ds_engine_backward"));
    dsi_engine_see_memory(engine, "Engine before backward");
    engine->call = (dsi_engine_args){.gradients = gradients, .n_gradients = n_gradients};
    DS_TRY(dsi_engine_call_program(engine, DSI_CALL_BACKWARD));
    dsi_engine_see_memory(engine, "Engine after backward");
    return DS_OK;
}

bool ds_engine_is_accumulation_boundary(const ds_engine *engine)
{
    if (engine->forced_boundary >= 0) {
        return engine->forced_boundary == 1;
    }
    const bool complete = engine->pipe != NULL || dsi_engine_awaits(engine) == DSI_CALL_STEP;
    const int64_t done = engine->micro_step + (complete ? 0 : 1);
    return done % engine->spec.train.accumulation == 0;
}

ds_status ds_engine_step(ds_engine *engine)
{
    DS_TRY(expect(engine, DSI_CALL_STEP, "ds_engine_step"));
    dsi_engine_see_memory(engine, "Engine before step");
    DS_TRY(dsi_engine_call_program(engine, DSI_CALL_STEP));
    dsi_engine_see_memory(engine, "Engine after step");
    return DS_OK;
}

/* The newest micro-batch's loss, as often as it counts. */
static ds_status add_loss(ds_engine *engine, double *sum)
{
    double loss = 0.0;
    const double count = engine->spec.average == DS_AVERAGE_TARGETS ? engine->count : 1.0;
    if (engine->own.loss_seed == DS_NONE) {
        return DS_OK;
    }
    DS_TRY(dsi_exec_real(engine->exec, engine->train_id, "loss", &loss));
    *sum += loss * count;
    return DS_OK;
}

/* All micro-batches in the order of the schedule. */
static ds_status train_pipeline(ds_engine *engine, ds_batch_fn next, void *user, double *sum)
{
    DS_TRY(dsi_engine_check_whole(engine, "ds_engine_train_batch"));
    engine->call = (dsi_engine_args){0};
    engine->pipe->next = next;
    engine->pipe->user = user;
    DS_TRY(dsi_engine_call_program(engine, DSI_CALL_FORWARD));
    *sum = engine->pipe->loss;
    return DS_OK;
}

/* sum: of their losses, if asked for. Those of targets weigh by counts that a step forgets; others
 * are looked at behind it, so that it may be launched with the rest. */
static ds_status train_micro_batches(ds_engine *engine, ds_batch_fn next, void *user, bool sums,
                                     double *sum)
{
    const bool weighed = engine->spec.average == DS_AVERAGE_TARGETS;
    for (int64_t i = 0; i < engine->spec.train.accumulation; ++i) {
        ds_batch batch = {0};
        DS_TRY(next(user, &batch));
        DS_TRY(ds_engine_forward(engine, &batch));
        DS_TRY(ds_engine_backward(engine));
        DS_TRY(sums && weighed ? add_loss(engine, sum) : DS_OK);
        DS_TRY(ds_engine_step(engine));
        DS_TRY(sums && !weighed ? add_loss(engine, sum) : DS_OK);
    }
    return DS_OK;
}

ds_status ds_engine_train_batch(ds_engine *engine, ds_batch_fn next, void *user, double *loss_out)
{
    const bool weighed = engine->spec.average == DS_AVERAGE_TARGETS;
    double sum = 0.0;
    if (engine->pipe != NULL) {
        DS_TRY(train_pipeline(engine, next, user, &sum));
    }
    if (engine->pipe == NULL) {
        DS_TRY(dsi_exec_hold(engine->exec, true));
        const ds_status status = train_micro_batches(engine, next, user, loss_out != NULL, &sum);
        const ds_status released = dsi_exec_hold(engine->exec, false);
        DS_TRY(status);
        DS_TRY(released);
    }
    if (loss_out != NULL) {
        const double micro_batches =
            (double)engine->spec.train.accumulation * dsi_mesh_data_size(&engine->spec.zero.mesh);
        DS_TRY(engine->pipe == NULL ? ds_comm_sum(engine->data_comm, &sum, 1) : DS_OK);
        *loss_out = !weighed                     ? sum / micro_batches
                    : engine->step_targets > 0.0 ? sum / engine->step_targets
                                                 : 0.0;
    }
    return DS_OK;
}

/* Of an evaluation what the last stage says, on all stages. */
static ds_status eval_of_last(ds_engine *engine, double *loss_out, double *count_out)
{
    static const char *const names[2] = {"loss", "count"};
    double values[4] = {0.0}; /* and which of them there are */
    double *const out[2] = {loss_out, count_out};
    for (int i = 0; i < 2; ++i) {
        if (dsi_plan_find_output(engine->eval_plan, names[i]) != NULL) {
            DS_TRY(dsi_exec_real(engine->exec, engine->eval_id, names[i], &values[i]));
            values[2 + i] = 1.0;
        }
    }
    DS_TRY(dsi_pipe_share(engine, values, 4));
    for (int i = 0; i < 2; ++i) {
        if (out[i] != NULL && values[2 + i] == 0.0) {
            return ds_fail(engine->ctx, DS_ERR_NOT_FOUND, "the model has no output named %s",
                           names[i]);
        }
        if (out[i] != NULL) {
            *out[i] = values[i];
        }
    }
    return DS_OK;
}

ds_status ds_engine_eval_batch(ds_engine *engine, const ds_batch *batch, double *loss_out,
                               double *count_out)
{
    double value = 0.0;
    DS_TRY(dsi_engine_check_whole(engine, "ds_engine_eval_batch"));
    engine->call = (dsi_engine_args){.batch = batch};
    DS_TRY(dsi_engine_set_average(engine, true));
    const ds_status status = dsi_engine_call_program(engine, DSI_CALL_EVALUATE);
    DS_TRY(dsi_engine_set_average(engine, false));
    DS_TRY(status);
    DS_TRY(dsi_engine_add_preference(engine, true));
    if (engine->pipe != NULL) {
        return eval_of_last(engine, loss_out, count_out);
    }
    if (loss_out != NULL) {
        DS_TRY(dsi_exec_real(engine->exec, engine->eval_id, "loss", &value));
        *loss_out = value;
    }
    if (count_out != NULL) {
        DS_TRY(dsi_exec_real(engine->exec, engine->eval_id, "count", &value));
        *count_out = value;
    }
    return DS_OK;
}

ds_status ds_engine_output(ds_engine *engine, const char *name, ds_tensor *tensor_out)
{
    DS_TRY(expect(engine, DSI_CALL_BACKWARD, "ds_engine_output"));
    return dsi_exec_output(engine->exec, engine->train_id, name, tensor_out);
}

ds_status ds_engine_eval_output(ds_engine *engine, const char *name, ds_tensor *tensor_out)
{
    DS_TRY(dsi_engine_check_whole(engine, "ds_engine_eval_output"));
    return dsi_exec_output(engine->exec, engine->eval_id, name, tensor_out);
}
