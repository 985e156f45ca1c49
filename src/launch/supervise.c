/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher's loop: starts the tasks, watches them to their end, and says how it was. See
 * supervise.h. */
#include "launch/supervise_impl.h"

#include "base/clock.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define IDLE_SECONDS  0.1 /* an unfinished line is shown after it */
#define DRAIN_SECONDS 0.3 /* outputs that a stray descendant holds open are read this long */

/* 0, or the errno that stopped it. */
static int send_control_line(const dsi_running *running)
{
    const char *line = running->task->control_line;
    const int error = dsi_write_all(running->process.control, line, strlen(line));
    return error != 0 ? error : dsi_write_all(running->process.control, "\n", 1);
}

static ds_status start_one(dsi_job *job, size_t i)
{
    const dsi_task *task = &job->params->tasks[i];
    dsi_running *running = &job->tasks[i];
    running->task = task;
    running->oom_how = dsi_buf_make(1024);
    DS_TRY(dsi_output_open(job->ctx, &job->terminal, task->prefix, task->shown, task->log_path,
                           &running->output));
    running->started = dsi_clock_seconds();
    const ds_status status = dsi_process_start(job->ctx, &task->command, &running->process);
    if (status < 0) {
        dsi_output_close(&running->output);
        return status;
    }
    running->alive = true;
    ++job->n_alive;
    ++job->n_started;
    dsi_guard_add(&job->guard, running->process.pid);
    const int error = task->control_line != NULL ? send_control_line(running) : 0;
    if (error != 0 && error != EPIPE) { /* a pipe nobody reads: how the task ends says more */
        return ds_fail(job->ctx, DS_ERR_IO, "%s: it did not read its first line: %s", task->label,
                       strerror(error));
    }
    return DS_OK;
}

static ds_status start_all(dsi_job *job)
{
    for (size_t i = 0; i < job->n; ++i) {
        DS_TRY(start_one(job, i));
    }
    return DS_OK;
}

static int poll_timeout(const dsi_job *job)
{
    double seconds = IDLE_SECONDS;
    bool unfinished = false;
    for (size_t i = 0; i < job->n_started; ++i) {
        const dsi_output *output = &job->tasks[i].output;
        unfinished = unfinished || (output->prefix[0] == '\0' && output->shown &&
                                    (output->line[0].size > output->line_shown[0] ||
                                     output->line[1].size > output->line_shown[1]));
    }
    if (!unfinished) {
        seconds = job->deadline != 0 ? job->deadline - dsi_clock_seconds() : -1;
    }
    const double look = dsi_limits_wait(job);
    if (look >= 0 && (seconds < 0 || look < seconds) && job->deadline == 0) {
        seconds = look;
    }
    return seconds < 0 ? (job->deadline != 0 ? 0 : -1) : (int)(seconds * 1000) + 1;
}

static void loop(dsi_job *job, struct pollfd *fds)
{
    while (job->n_alive > 0 && !job->gave_up) {
        nfds_t n = dsi_outputs_poll(job, fds);
        const nfds_t own = n;
        const bool lost = job->stop == DSI_STOP_LOST;
        fds[n++] = (struct pollfd){.fd = job->signals, .events = POLLIN};
        fds[n++] = (struct pollfd){.fd = lost ? -1 : job->params->control, .events = POLLIN};
        fds[n++] = (struct pollfd){.fd = job->params->notice, .events = POLLIN};
        fds[n++] =
            (struct pollfd){.fd = job->params->ranks ? job->params->reports : -1, .events = POLLIN};
        const int ready = poll(fds, n, poll_timeout(job));
        if (ready > 0) {
            dsi_outputs_read(job, fds);
            if (fds[own].revents != 0) {
                dsi_job_read_signals(job);
            }
            if (fds[own + 1].revents != 0) {
                dsi_job_read_control(job);
            }
            if (fds[own + 2].revents != 0) {
                dsi_job_read_notice(job);
            }
            if (fds[own + 3].revents != 0) {
                dsi_job_read_reports(job);
            }
        } else if (ready == 0) {
            for (size_t i = 0; i < job->n_started; ++i) {
                dsi_output_idle(&job->tasks[i].output);
            }
        }
        dsi_job_reap(job);
        if (job->n_alive > 0) {
            dsi_limits_check(job);
        }
        if (job->deadline != 0 && job->n_alive > 0 && dsi_clock_seconds() >= job->deadline) {
            dsi_job_at_deadline(job);
        }
    }
}

static void drain(dsi_job *job, struct pollfd *fds)
{
    const double end = dsi_clock_seconds() + DRAIN_SECONDS;
    while (dsi_outputs_open(job) && dsi_clock_seconds() < end) {
        if (poll(fds, dsi_outputs_poll(job, fds), 10) > 0) {
            dsi_outputs_read(job, fds);
        }
        if (dsi_job_kill_strays(job)) {
            dsi_job_reap(job);
        }
    }
    while (!job->gave_up && dsi_job_kill_strays(job) && dsi_clock_seconds() < end) {
        dsi_job_reap(job);
        (void)usleep(1000);
    }
    for (size_t i = 0; i < job->n_started; ++i) {
        dsi_output_finish(&job->tasks[i].output);
    }
}

static void destroy(dsi_job *job)
{
    for (size_t i = 0; i < job->n_started; ++i) {
        dsi_process_close(&job->tasks[i].process);
        dsi_output_close(&job->tasks[i].output);
        dsi_buf_free(&job->tasks[i].oom_how);
    }
    dsi_guard_stop(&job->guard);
    dsi_oom_stop(&job->oom);
    for (size_t i = 0; i < job->n_relays; ++i) {
        (void)close(job->relays[i]);
    }
    free(job->relays);
    dsi_buf_free(&job->lines);
    if (job->signals >= 0) {
        (void)close(job->signals);
    }
    free(job->tasks);
}

static void fill_outcome(dsi_job *job, dsi_outcome *outcome)
{
    *outcome = (dsi_outcome){.first = job->first};
    (void)snprintf(outcome->label, sizeof outcome->label, "%s",
                   job->first < job->n ? job->tasks[job->first].task->label : job->notice_label);
    outcome->interrupted = job->stop == DSI_STOP_SIGNAL || job->stop == DSI_STOP_LOST;
    outcome->signalled = job->signalled;
    outcome->limit = job->limit;
    outcome->awaited = job->awaited;
    outcome->awaited_rank = job->awaited_rank;
    outcome->peak_bytes = job->peak_bytes;
    for (size_t i = 0; i < job->n; ++i) {
        outcome->no_memory = outcome->no_memory || job->tasks[i].oom;
    }
    if (job->stop == DSI_STOP_LIMIT) {
        static const int codes[] = {
            [DSI_LIMIT_TIME] = 124, [DSI_LIMIT_MEMORY] = 128 + SIGKILL, [DSI_LIMIT_DONE] = 0};
        outcome->exit_code = codes[job->limit];
    } else if (job->stop == DSI_STOP_FAILED && job->first < job->n) {
        outcome->exit_code = dsi_running_code(&job->tasks[job->first]);
    } else if (job->stop == DSI_STOP_FAILED) {
        outcome->exit_code = job->notice_code;
    } else if (job->params->independent && !outcome->interrupted) {
        outcome->exit_code = dsi_job_largest_code(job);
    } else if (outcome->interrupted) {
        dsi_job_find_first(job);
        outcome->exit_code = job->first < job->n || job->gave_up ? 128 + job->stop_signal : 0;
    }
}

static ds_status run(dsi_job *job)
{
    struct pollfd *fds = calloc(2 * job->n + 4, sizeof *fds);
    ds_status status = fds != NULL ? dsi_guard_start(job->ctx, &job->guard)
                                   : ds_fail(job->ctx, DS_ERR_NOMEM, "no memory for the job");
    if (status >= 0) {
        status = start_all(job);
        if (status < 0) {
            dsi_job_stop(job, DSI_STOP_SIGNAL, SIGKILL, 0);
        }
        loop(job, fds);
        drain(job, fds);
    }
    if (status >= 0 && job->stop == DSI_STOP_FAILED && job->first < job->n && !job->params->ways) {
        dsi_report_end(job);
    }
    if (status >= 0 && job->params->independent) {
        dsi_job_name_failed(job);
    }
    free(fds);
    return status;
}

ds_status dsi_supervise(ds_ctx *ctx, const dsi_supervise_params *params, dsi_outcome *outcome_out)
{
    dsi_job job = {.ctx = ctx,
                   .params = params,
                   .n = params->n_tasks,
                   .first = params->n_tasks,
                   .terminal = {.fd = {1, 2}},
                   .lines = dsi_buf_make(4096),
                   .started = dsi_clock_seconds(),
                   .tasks = calloc(params->n_tasks, sizeof *job.tasks)};
    for (int i = 0; params->terminal != NULL && i < 2; ++i) {
        job.terminal.fd[i] = params->terminal[i];
    }
    sigset_t mask, before;
    (void)sigemptyset(&mask);
    static const int taken[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD};
    struct sigaction hangup = {0};
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; ++i) {
        (void)sigaddset(&mask, taken[i]);
    }
    if (sigaction(SIGHUP, NULL, &hangup) != 0 || hangup.sa_handler != SIG_IGN) { /* no nohup */
        (void)sigaddset(&mask, SIGHUP);
    }
    (void)sigprocmask(SIG_BLOCK, &mask, &before);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    job.signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    dsi_oom_start(&job.oom, "");
    ds_status status;
    if (job.tasks == NULL || job.signals < 0) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory or descriptor for the job");
    } else {
        status = run(&job);
    }
    if (status >= 0) {
        fill_outcome(&job, outcome_out);
    }
    destroy(&job);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}
