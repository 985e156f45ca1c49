/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of an engine: what its calls run, in order. Forward, backward and step are one
 * program, a micro-batch round its ring; evaluation is another over the same cells. Overflow skip,
 * clipping (the phase norm), accumulation and early updates stand in it; ZenFlow and 1-bit
 * optimizers bring pieces of their own. */
#include "train/engine_actions.h"
#include "train/engine_pipe.h"
#include "train/run_trace.h"

#include <math.h>

/* ---- backward -------------------------------------------------------------------------------- */

static ds_status write_scalar(ds_engine *engine, ds_cell cell, double value)
{
    return cell != DS_NONE ? dsi_exec_write_real(engine->exec, cell, value) : DS_OK;
}

static ds_status count_targets(void *user)
{
    return dsi_engine_add_targets(user);
}
static const dsi_program_action count_targets_action = {"count_targets", count_targets};

static ds_status seed_loss(void *user)
{
    ds_engine *engine = user;
    return write_scalar(engine, engine->own.loss_seed, dsi_engine_loss_seed(engine));
}
static const dsi_program_action seed_loss_action = {"seed_loss", seed_loss};

static bool is_first_micro(const void *user)
{
    return ((const ds_engine *)user)->micro_step == 0;
}
static const dsi_program_test first_micro = {"first_micro_batch", is_first_micro};

static ds_status clear_gradients(void *user)
{
    ds_engine *engine = user;
    const double begin = dsi_run_trace_begin(engine);
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        if (ds_cells_get(engine->local, c)->kind == DS_CELL_GRAD) {
            DS_TRY(dsi_exec_clear(engine->exec, c));
        }
    }
    dsi_run_trace_end(engine, DSI_HOST_CLEAR, begin);
    return DS_OK;
}
static const dsi_program_action clear_gradients_action = {"clear_gradients", clear_gradients};

static ds_status count_micro(void *user)
{
    ((ds_engine *)user)->micro_step += 1;
    return DS_OK;
}
static const dsi_program_action count_micro_action = {"count_micro_batch", count_micro};

/* ---- step ------------------------------------------------------------------------------------ */

/* Rates and the factor of gradients: what updates read next to gradients and states. */
static ds_status write_update_numbers(void *user)
{
    ds_engine *engine = user;
    DS_TRY(write_scalar(engine, engine->own.inverse_scale, dsi_engine_inverse_scale(engine)));
    return dsi_engine_write_hyper(engine, engine->own.hyper, dsi_engine_updates(engine) + 1);
}
static const dsi_program_action update_numbers = {"write_update_numbers", write_update_numbers};

static ds_status begin_step(void *user)
{
    ds_engine *engine = user;
    engine->at_boundary = ds_engine_is_accumulation_boundary(engine);
    engine->forced_boundary = -1;
    engine->applied = false;
    return DS_OK;
}
static const dsi_program_action begin_step_action = {"begin_step", begin_step};

static bool is_at_boundary(const void *user)
{
    return ((const ds_engine *)user)->at_boundary;
}
static const dsi_program_test at_boundary = {"at_boundary", is_at_boundary};

/* Gradients that are not finite, and yet applied. */
static void count_kept(ds_engine *engine)
{
    engine->applied = true;
    dsi_engine_count_nonfinite(engine, isfinite(engine->grad_norm));
    if (!isfinite(engine->grad_norm)) {
        engine->grad_norm = -1.0;
        ds_log(engine->ctx, DS_LOG_WARN,
               "step %llu: a gradient is not finite, and is applied "
               "(bf16.check_grad_overflow is false)",
               (unsigned long long)engine->global_steps + 1);
    }
}

static ds_status judge(ds_engine *engine, const char *norm_name, const char *top_name)
{
    double top = 0.0;
    DS_TRY(dsi_exec_real(engine->exec, engine->train_id, norm_name, &engine->grad_norm));
    if (engine->spec.train.keep_nonfinite) {
        count_kept(engine);
        return DS_OK;
    }
    DS_TRY(dsi_exec_real(engine->exec, engine->train_id, top_name, &top));
    engine->applied = isfinite(top) && isfinite(engine->grad_norm);
    dsi_engine_count_nonfinite(engine, engine->applied);
    return DS_OK;
}

static ds_status judge_gradients(void *user)
{
    return judge(user, "grad_norm", "grad_top");
}
static const dsi_program_action judge_gradients_action = {"judge_gradients", judge_gradients};

static ds_status judge_own(void *user)
{
    return judge(user, "own_norm", "own_top");
}
static const dsi_program_action judge_own_action = {"judge_own_gradients", judge_own};

/* What quantized gradients have lost: of a step that is skipped it is of no use, and it begins anew
 * now and then. Behind the count of the step. */
static bool is_end_of_errors(const void *user)
{
    const ds_engine *engine = user;
    return !engine->applied ||
           dsi_engine_updates(engine) % engine->spec.train.loco.reset_every == 0;
}
static const dsi_program_test errors_end = {"errors_end", is_end_of_errors};

static bool is_applied(const void *user)
{
    return ((const ds_engine *)user)->applied;
}
static const dsi_program_test gradients_finite = {"gradients_applied", is_applied};

static bool is_skipped(const void *user)
{
    return !((const ds_engine *)user)->applied;
}
static const dsi_program_test step_skipped = {"step_skipped", is_skipped};

static ds_status count_skip(void *user)
{
    ds_engine *engine = user;
    engine->grad_norm = -1.0;
    engine->skipped_steps += 1;
    ds_log(engine->ctx, DS_LOG_WARN, "step %llu skipped: a gradient is not finite (loss scale %g)",
           (unsigned long long)engine->global_steps + 1, engine->spec.loss_scale.scale);
    return DS_OK;
}
static const dsi_program_action count_skip_action = {"count_skip", count_skip};

static ds_status count_step(void *user)
{
    ds_engine *engine = user;
    const dsi_train_spec *t = &engine->spec.train;
    const uint64_t batches =
        (uint64_t)engine->micro_step * dsi_mesh_data_size(&engine->spec.zero.mesh);
    engine->global_steps += 1;
    engine->global_samples += batches * (uint64_t)t->batch;
    engine->global_tokens += batches * (uint64_t)(dsi_train_rows(t) * t->seq_length);
    engine->micro_step = 0;
    return dsi_loss_scale_update(engine->ctx, &engine->spec.loss_scale, !engine->applied);
}
static const dsi_program_action count_step_action = {"count_step", count_step};

/* May fail on one rank: the step is done. */
static ds_status report_step(void *user)
{
    ds_engine *engine = user;
    dsi_engine_report_times(engine);
    DS_TRY(dsi_engine_report_flops(engine));
    return dsi_engine_measure_step(engine);
}
static const dsi_program_action report_step_action = {"report_step", report_step};

/* ---- the programs ---------------------------------------------------------------------------- */

static bool is_joined(const ds_engine *engine)
{
    const dsi_train_spec *t = &engine->spec.train;
    return dsi_accel_chosen(&engine->spec.accel)->graphs != NULL && engine->pipe == NULL &&
           !t->zenflow.on && !t->onebit.on && !t->loco.on &&
           engine->spec.average != DS_AVERAGE_TARGETS;
}

/* With joined phases what the host writes for a step stands before all of it; where it would be
 * written otherwise, it is again, if it has changed since. */
static void add_numbers_ahead(const ds_engine *engine, dsi_program *p)
{
    dsi_program_do(p, &seed_loss_action);
    dsi_program_do(p, &update_numbers);
    if (engine->spec.train.accumulation > 1) {
        dsi_program_if(p, &first_micro);
        dsi_program_do(p, &clear_gradients_action);
        dsi_program_end(p);
    }
}

static void add_forward(const ds_engine *engine, dsi_program *p)
{
    dsi_program_await(p, DSI_CALL_FORWARD, "forward");
    if (engine->compression != NULL) {
        dsi_program_do(p, &dsi_engine_write_compression);
    }
    dsi_program_do(p, &dsi_engine_load_batch);
    if (is_joined(engine)) {
        add_numbers_ahead(engine, p);
    }
    dsi_program_run(p, DSI_PLAN_TRAIN, DS_PHASE_FORWARD, 0);
}

void dsi_engine_add_backward(const ds_engine *engine, dsi_program *p,
                             const dsi_engine_backward *how)
{
    if (engine->spec.average == DS_AVERAGE_TARGETS && how->of_loss) {
        dsi_program_do(p, &count_targets_action);
    }
    if (how->more != NULL) {
        dsi_program_do(p, how->more);
    }
    dsi_program_do(p, &seed_loss_action);
    if (engine->spec.train.accumulation > 1 && how->may_be_first) {
        dsi_program_if(p, &first_micro);
        dsi_program_do(p, &clear_gradients_action);
        dsi_program_end(p);
    }
    if (dsi_train_is_early(&engine->spec.train) || engine->spec.train.speculative) {
        dsi_program_do(p, &update_numbers);
    }
    if (engine->spec.train.speculative) {
        dsi_program_do(p, &dsi_engine_note_numbers);
    }
    dsi_program_run(p, DSI_PLAN_TRAIN, how->phase, how->slot);
    if (how->ends) {
        dsi_program_do(p, &count_micro_action);
    }
}

static void add_backward(const ds_engine *engine, dsi_program *p)
{
    dsi_program_await(p, DSI_CALL_BACKWARD, "backward");
    dsi_program_do(p, &dsi_engine_load_gradients);
    const dsi_engine_backward how = {.phase = DS_PHASE_BACKWARD,
                                     .of_loss = true,
                                     .may_be_first = !is_joined(engine),
                                     .ends = true};
    dsi_engine_add_backward(engine, p, &how);
}

/* Norm, or own_norm where ranks exchange signs; which of them, is the host's business. */
static void add_norm(const ds_engine *engine, dsi_program *p)
{
    const dsi_train_phases *phases = &engine->own.phases;
    const bool exchanges = phases->onebit.own_norm != DS_NONE;
    if (exchanges) {
        dsi_program_if(p, &dsi_onebit_by_mean);
    }
    dsi_program_run(p, DSI_PLAN_TRAIN, phases->norm, 0);
    dsi_program_do(p, &judge_gradients_action);
    if (exchanges) {
        dsi_program_end(p);
        dsi_program_if(p, &dsi_onebit_by_own);
        dsi_program_run(p, DSI_PLAN_TRAIN, phases->onebit.own_norm, 0);
        dsi_program_do(p, &judge_own_action);
        dsi_program_end(p);
    }
}

static void add_update(const ds_engine *engine, dsi_program *p)
{
    if (engine->spec.train.zenflow.on) {
        dsi_zenflow_program(engine, p);
    } else if (engine->spec.train.onebit.on) {
        dsi_onebit_program(engine, p);
    } else {
        dsi_program_run(p, DSI_PLAN_TRAIN, engine->own.phases.update, 0);
    }
}

/* Gradients are applied whatever they are, so that the host looks at the norm behind that. */
static bool judges_late(const ds_engine *engine)
{
    return is_joined(engine) && engine->spec.train.keep_nonfinite &&
           !engine->spec.train.speculative;
}

bool dsi_engine_judges_between(const ds_engine *engine)
{
    return is_joined(engine) && !judges_late(engine);
}

static void add_step(const ds_engine *engine, dsi_program *p)
{
    dsi_program_do(p, &begin_step_action);
    dsi_program_if(p, &at_boundary);
    dsi_program_do(p, &update_numbers);
    if (judges_late(engine)) {
        dsi_program_run(p, DSI_PLAN_TRAIN, engine->own.phases.norm, 0);
        add_update(engine, p);
        dsi_program_do(p, &judge_gradients_action);
    } else {
        add_norm(engine, p);
        if (engine->spec.train.speculative) {
            dsi_program_do(p, &dsi_engine_judge_updates);
        }
        dsi_program_if(p, &gradients_finite);
        add_update(engine, p);
        if (engine->pipe != NULL) {
            dsi_pipe_add_copies(engine, p);
        }
        dsi_program_end(p);
    }
    if (engine->spec.train.speculative) {
        dsi_engine_add_decision(engine, p);
    }
    dsi_program_if(p, &step_skipped);
    dsi_program_do(p, &count_skip_action);
    dsi_program_end(p);
    dsi_program_do(p, &count_step_action);
    if (engine->spec.train.loco.on) {
        dsi_program_if(p, &errors_end);
        dsi_program_do(p, &dsi_onebit_clear);
        dsi_program_end(p);
    }
    dsi_program_do(p, &report_step_action);
    dsi_program_end(p);
}

/* What runs one behind the other when a batch is trained by one call: micro-batches, the last of
 * which goes on to the norm, and, where the host has nothing to decide, to the updates. Where it
 * has, what it decides on is one piece: other updates, and that those ahead are accepted. */
ds_status dsi_engine_join_phases(ds_engine *engine)
{
    const dsi_train_phases *phases = &engine->own.phases;
    const ds_phase all[] = {DS_PHASE_FORWARD, DS_PHASE_BACKWARD, phases->norm, phases->update};
    const ds_phase decided[] = {phases->update, phases->accept};
    const dsi_plan *plan = engine->train_plan;
    const bool updates = plan->phase_begin[phases->update] < plan->phase_begin[phases->update + 1];
    if (!is_joined(engine)) {
        return DS_OK;
    }
    DS_TRY(dsi_exec_join(engine->exec, engine->train_id, all, 2));
    DS_TRY(dsi_exec_join(engine->exec, engine->train_id, all, 3));
    if (updates && engine->spec.train.speculative) {
        return dsi_exec_join(engine->exec, engine->train_id, decided, 2);
    }
    return updates && judges_late(engine) ? dsi_exec_join(engine->exec, engine->train_id, all, 4)
                                          : DS_OK;
}

ds_status dsi_engine_make_programs(ds_engine *engine)
{
    const dsi_program_plan plans[] = {[DSI_PLAN_TRAIN] = {"train", engine->train_plan},
                                      [DSI_PLAN_EVAL] = {"eval", engine->eval_plan}};
    dsi_program *train = &engine->training;
    dsi_program *eval = &engine->evaluation;
    *train = (dsi_program){.name = "training", .n_plans = 1, .n_slots = 1, .plans = {plans[0]}};
    if (engine->pipe != NULL) {
        train->n_slots = engine->pipe->n_slots;
        train->parts = engine->pipe->parts;
        train->messages = engine->pipe->train.names;
        train->n_messages = engine->pipe->train.n;
        dsi_program_await_once(train, DSI_CALL_FORWARD, "train_batch");
        DS_TRY(dsi_pipe_add_batch(engine, train));
    } else {
        add_forward(engine, train);
        add_backward(engine, train);
        dsi_program_await_once(train, DSI_CALL_STEP, "step");
    }
    add_step(engine, train);
    *eval = (dsi_program){
        .name = "evaluation", .n_plans = 2, .n_slots = 1, .plans = {plans[0], plans[1]}};
    dsi_program_await(eval, DSI_CALL_EVALUATE, "evaluate");
    if (engine->compression != NULL) {
        dsi_program_do(eval, &dsi_engine_write_compression);
    }
    dsi_program_do(eval, &dsi_engine_load_eval_batch);
    if (engine->pipe != NULL) {
        eval->messages = engine->pipe->eval.names;
        eval->n_messages = engine->pipe->eval.n;
        eval->parts.n_chunks = engine->pipe->parts.n_chunks;
        DS_TRY(dsi_pipe_add_evaluation(engine, eval));
    } else {
        dsi_program_run(eval, DSI_PLAN_EVAL, DS_PHASE_FORWARD, 0);
    }
    DS_TRY(dsi_program_check(engine->ctx, train));
    return dsi_program_check(engine->ctx, eval);
}

static ds_status run_phase(void *user, const dsi_instr *instr)
{
    ds_engine *engine = user;
    const dsi_plan *plan = instr->plan == DSI_PLAN_TRAIN ? engine->train_plan : engine->eval_plan;
    const bool micro = dsi_phase_is_micro(&plan->phases, instr->phase);
    dsi_exec_set_slot(engine->exec, micro ? instr->slot : 0);
    return instr->plan == DSI_PLAN_TRAIN
               ? dsi_engine_run_phase(engine, instr->phase)
               : dsi_exec_run(engine->exec, engine->eval_id, instr->phase);
}

static ds_status start_phase(void *user, const dsi_instr *instr)
{
    ds_engine *engine = user;
    DS_TRY(dsi_exec_start(engine->exec, engine->train_id));
    engine->phases_run |= 1u << instr->phase;
    return DS_OK;
}

static ds_status train_message(void *user, const dsi_instr *instr)
{
    ds_engine *engine = user;
    return dsi_pipe_message(engine, &engine->pipe->train, instr);
}

static ds_status eval_message(void *user, const dsi_instr *instr)
{
    ds_engine *engine = user;
    return dsi_pipe_message(engine, &engine->pipe->eval, instr);
}

ds_status dsi_engine_call_program(ds_engine *engine, dsi_engine_call call)
{
    const bool evaluates = call == DSI_CALL_EVALUATE;
    const dsi_program_client client = {engine, run_phase, start_phase,
                                       evaluates ? eval_message : train_message};
    dsi_program_at once = 0;
    if (evaluates) {
        return dsi_program_call(engine->ctx, &engine->evaluation, &client, call, &once);
    }
    const ds_status status =
        dsi_program_call(engine->ctx, &engine->training, &client, call, &engine->at);
    /* Updates have run, and nobody has decided on them. */
    engine->broken = engine->broken || (status < 0 && call == DSI_CALL_STEP && engine->undecided);
    return status;
}

dsi_engine_call dsi_engine_awaits(const ds_engine *engine)
{
    return (dsi_engine_call)dsi_program_awaits(&engine->training, engine->at)->call;
}
