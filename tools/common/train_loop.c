/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop: steps, evaluations, checkpoints, interruption. */
#include "base/clock.h"
#include "common/train.h"

#include <deepspeed/checkpoint.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t
    n_signals; /* SIGINT, SIGTERM and SIGHUP seen; a handler can reach nothing else */

static volatile sig_atomic_t speaks; /* rank 0: the handler says that it was heard */

static void on_signal(int number)
{
    static const char heard[] = "\nends after this step; a second signal ends it at once\n";
    if (number == SIGHUP && n_signals > 0) { /* the shell and the kernel both send it when a */
        return;                              /* terminal is closed */
    }
    n_signals = n_signals + 1;
    if (n_signals > 1) {
        (void)signal(number, SIG_DFL);
        (void)raise(number);
    }
    if (speaks) {
        const int saved = errno;
        (void)!write(STDERR_FILENO, heard, sizeof heard - 1);
        errno = saved;
    }
}

static void catch_signals(bool is_speaker)
{
    struct sigaction action = {0};
    struct sigaction before = {0};
    speaks = is_speaker;
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) { /* no nohup */
        (void)sigaction(SIGHUP, &action, NULL);
    }
    (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of the write */
}

ds_batch train_batch_of(const train_run *run, const ds_loader_batch *batch,
                        ds_named_tensor *tensors)
{
    const ds_loader_task *task = batch->task;
    const bool encodes = ds_model_get_info(run->model)->encoder;
    uint32_t n = 0;
    tensors[n++] = (ds_named_tensor){"input_ids", batch->input_ids};
    tensors[n++] = (ds_named_tensor){"positions", batch->positions};
    tensors[n++] = (ds_named_tensor){"first", batch->first};
    if (task != NULL && task->labels.data != NULL) {
        tensors[n++] = (ds_named_tensor){"labels", task->labels};
    } else {
        tensors[n++] = (ds_named_tensor){encodes ? "labels" : "targets", batch->targets};
    }
    if (task != NULL && task->counted.data != NULL) {
        tensors[n++] = (ds_named_tensor){"counted", task->counted};
    }
    if (task != NULL && task->pool.data != NULL) {
        tensors[n++] = (ds_named_tensor){"pool", task->pool};
    }
    if (task != NULL && run->task_params.token_types != 0) {
        tensors[n++] = (ds_named_tensor){"token_type_ids", task->token_type_ids};
    }
    if (run->options->adapter.names.n > 0) {
        tensors[n++] = (ds_named_tensor){"adapters", *batch->sources};
    }
    return (ds_batch){tensors, n};
}

/* Passes micro-batches of one step to the engine and counts their tokens. */
typedef struct feeder {
    train_run *run;
    ds_named_tensor tensors[TRAIN_MOST_INPUTS];
    ds_preference_inputs inputs;
    uint64_t tokens;
} feeder;

/* The tensors of a loader's batch, for the engine. */
static ds_status inputs_of(feeder *f, const ds_loader_batch *rows, ds_batch *batch_out)
{
    if (!train_has_preference(f->run)) {
        *batch_out = train_batch_of(f->run, rows, f->tensors);
        return DS_OK;
    }
    DS_TRY(ds_engine_preference_batch(f->run->engine, rows, &f->inputs));
    *batch_out = f->inputs.batch;
    return DS_OK;
}

static ds_status feed(void *user, ds_batch *batch_out)
{
    feeder *f = user;
    ds_loader_batch batch;
    DS_TRY(ds_loader_next(f->run->train_loader, &batch));
    f->tokens += batch.n_tokens;
    return inputs_of(f, &batch, batch_out);
}

static ds_status one_step(train_run *run, train_report *report)
{
    feeder f = {.run = run};
    train_step step = {.lr = ds_engine_lr(run->engine),
                       .loss_scale = ds_engine_loss_scale(run->engine)};
    const double start = dsi_clock_seconds();
    const double waited = ds_engine_disk_wait(run->engine);
    DS_TRY(ds_engine_train_batch(run->engine, feed, &f, &step.loss));
    double tokens = (double)f.tokens;
    DS_TRY(train_preference_add(run, false, &tokens, &step.preference));
    step.seconds = dsi_clock_seconds() - start;
    step.disk_wait = ds_engine_disk_wait(run->engine) - waited;
    step.step = ds_engine_global_steps(run->engine);
    step.grad_norm = ds_engine_grad_norm(run->engine);
    step.applied = ds_engine_was_step_applied(run->engine);
    step.tokens = (uint64_t)tokens;
    train_report_step(report, &step);
    return DS_OK;
}

static ds_status evaluate(train_run *run, train_report *report)
{
    double sum = 0.0;
    double total = 0.0;
    feeder f = {.run = run};
    train_evaluation e = {.step = ds_engine_global_steps(run->engine)};
    (void)ds_engine_preference_sums(run->engine, true);
    ds_loader_rewind(run->eval_loader);
    for (;;) {
        ds_loader_batch batch;
        ds_batch view;
        double loss = 0.0;
        double count = 0.0;
        bool done = false;
        DS_TRY(ds_loader_next_once(run->eval_loader, &batch, &done));
        if (done) {
            break;
        }
        DS_TRY(inputs_of(&f, &batch, &view));
        DS_TRY(ds_engine_eval_batch(run->engine, &view, &loss, &count));
        sum += loss * count;
        total += count;
    }
    DS_TRY(ds_comm_sum(ds_engine_data_comm(run->engine), &sum, 1));
    DS_TRY(train_preference_add(run, true, &total, &e.preference));
    e.loss = total > 0.0 ? sum / total : 0.0;
    e.count = total;
    train_best_feed(run, e.step, e.loss, e.count);
    train_report_eval(report, &e);
    return DS_OK;
}

/* Reports a save when it is written. wait: stays until it is; all ranks
 * call then, whatever each has seen. Else a failure that one rank sees first ends its run, and with
 * it the others'. */
static ds_status save_ended(train_run *run, train_report *report, bool wait)
{
    ds_status status = DS_OK;
    if (wait) {
        status = ds_engine_checkpoint_wait(run->engine);
    } else if (run->saving != 0) {
        status = ds_engine_checkpoint_poll(run->engine);
    }
    if (status != DS_OK || run->saving == 0) {
        return status == DS_IN_PROGRESS ? DS_OK : status;
    }
    const uint64_t step = run->saving;
    run->saving = 0;
    DS_TRY(train_output_saved(run));
    train_report_save(report, step);
    return DS_OK;
}

static ds_status save(train_run *run, train_report *report)
{
    char *cursor = NULL;
    DS_TRY(save_ended(run, report, true)); /* the one before */
    DS_TRY(train_best_saving(run, ds_engine_global_steps(run->engine)));
    DS_TRY(train_state_print(run, &cursor));
    ds_status status = ds_engine_save_checkpoint(run->engine, run->options->output, NULL, cursor);
    free(cursor);
    DS_TRY(status);
    run->saving = ds_engine_global_steps(run->engine);
    return save_ended(run, report, false);
}

/* Whether a signal reached any rank: all must stop at the same step. */
static ds_status was_interrupted(train_run *run, bool *interrupted_out)
{
    double seen = n_signals > 0 ? 1.0 : 0.0;
    DS_TRY(ds_comm_sum(run->comm, &seen, 1));
    *interrupted_out = seen > 0.0;
    return DS_OK;
}

static bool due(uint64_t step, int64_t interval)
{
    return interval > 0 && step % (uint64_t)interval == 0;
}

static ds_status save_if_finite(train_run *run, train_report *report, uint64_t *saved)
{
    const uint64_t step = ds_engine_global_steps(run->engine);
    if (train_is_finite(run)) {
        DS_TRY(save(run, report));
        *saved = step;
    } else {
        train_report_say(report, "step %llu is not saved: its gradients are not finite",
                         (unsigned long long)step);
    }
    return DS_OK;
}

/* What is done and what a signal asked. */
typedef struct progress {
    uint64_t first, saved, evaluated; /* steps */
    bool interrupted;
} progress;

/* The last evaluation and save. The order: a checkpoint holds what is known of the best step; else
 * the evaluation, which takes long, can wait. */
static ds_status end_steps(train_run *run, train_report *report, const progress *p)
{
    const uint64_t step = ds_engine_global_steps(run->engine);
    const bool best = train_best_is_asked(run->options);
    const bool evaluates = run->eval_loader != NULL && !p->interrupted && p->evaluated != step;
    char why[256];
    if (evaluates && best) {
        DS_TRY(evaluate(run, report));
    }
    if (run->options->output != NULL && p->saved != step) {
        DS_TRY(save(run, report));
    }
    if (evaluates && !best) {
        DS_TRY(evaluate(run, report));
    }
    DS_TRY(save_ended(run, report, true));
    train_best_stop_text(run, why, sizeof why);
    if (why[0] != '\0') {
        train_report_say(report, "step %llu  %s", (unsigned long long)step, why);
    }
    if (best && !p->interrupted && ds_comm_rank(run->comm) == 0) {
        train_metrics_best(run, step);
    }
    return DS_OK;
}

static ds_status after_step(train_run *run, train_report *report, progress *p)
{
    const train_options *o = run->options;
    const uint64_t step = ds_engine_global_steps(run->engine);
    train_trace_save(run, report, false);
    DS_TRY(save_ended(run, report, false));
    DS_TRY(train_check_finite(run, p->first, false));
    if (run->eval_loader != NULL && due(step, o->eval_interval)) {
        DS_TRY(evaluate(run, report));
        p->evaluated = step;
    }
    if (o->output != NULL && (due(step, o->save_interval) || train_best_needs_save(run, step))) {
        DS_TRY(save_if_finite(run, report, &p->saved));
    }
    return was_interrupted(run, &p->interrupted);
}

static ds_status steps(train_run *run, train_report *report, bool *interrupted_out)
{
    const uint64_t first = ds_engine_global_steps(run->engine);
    progress p = {.first = first, .saved = first, .evaluated = UINT64_MAX};
    if (first > 0 && run->best.newest == first) {
        p.evaluated = first; /* the checkpoint holds what came of it */
    }
    DS_TRY(was_interrupted(run, &p.interrupted));
    while (ds_engine_global_steps(run->engine) < run->total_steps && !p.interrupted &&
           !run->stops_early) {
        run->stepping = true;
        DS_TRY(one_step(run, report));
        run->stepping = false;
        DS_TRY(after_step(run, report, &p));
    }
    train_trace_save(run, report, true);
    DS_TRY(train_check_finite(run, first, true));
    p.interrupted = p.interrupted && !run->stops_early &&
                    ds_engine_global_steps(run->engine) < run->total_steps;
    *interrupted_out = p.interrupted;
    return end_steps(run, report, &p);
}

ds_status train_loop(train_run *run, bool *interrupted_out)
{
    train_report *report = NULL;
    char why[2048];
    catch_signals(ds_comm_rank(run->comm) == 0);
    DS_TRY(train_report_open(run, &report));
    const ds_status status = steps(run, report, interrupted_out);
    train_report_ended(report, status, *interrupted_out);
    (void)snprintf(why, sizeof why, "%s", status < 0 ? ds_ctx_error(run->ctx) : "");
    train_report_close(&report); /* may fail, too: the first failure is the run's */
    return status < 0 ? ds_fail(run->ctx, status, "%s", why) : DS_OK;
}
