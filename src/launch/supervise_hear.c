/* SPDX-License-Identifier: Apache-2.0 */
/* What the launcher hears while a job runs: signals, lines of the launcher that started this one
 * (control), and of processes that wait for nodes (notice). See supervise_impl.h. */
#include "launch/supervise_impl.h"

#include "base/clock.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* ---- signals --------------------------------------------------------------------------------- */

static void on_stop_key(dsi_job *job)
{
    for (size_t i = 0; i < job->n_started; ++i) {
        dsi_process_signal(&job->tasks[i].process, SIGSTOP);
    }
    (void)raise(SIGSTOP); /* here until somebody continues the launcher */
    for (size_t i = 0; i < job->n_started; ++i) {
        dsi_process_signal(&job->tasks[i].process, SIGCONT);
    }
}

static void on_end_signal(dsi_job *job, int signal)
{
    char name[32];
    job->signalled = true;
    if (job->stop != DSI_STOP_SIGNAL && job->stop != DSI_STOP_LOST) {
        const bool is_first = job->params->control < 0 && !job->params->quiet;
        ds_log(job->ctx, is_first ? DS_LOG_WARN : DS_LOG_OBJECT,
               "%s: forwarded; waiting for %zu to end (once more: kill)",
               dsi_signal_name(signal, name, sizeof name), job->n_alive);
        if (job->stop == DSI_STOP_NONE) { /* a job that has a goal of its own has nothing to save */
            const bool waits = job->params->limits.done_file == NULL;
            dsi_job_stop(job, DSI_STOP_SIGNAL, signal, waits ? -1 : job->params->grace);
        } else {
            dsi_job_tell(job, signal); /* a failure is ending it already: its deadline stays */
        }
    } else if (!job->killing && signal != SIGHUP) { /* of a closed terminal there are two */
        dsi_job_kill(job);
    }
}

static void on_signal(dsi_job *job, int signal)
{
    switch (signal) {
    case SIGINT:
    case SIGTERM:
    case SIGHUP:
        on_end_signal(job, signal);
        break;
    case SIGUSR1:
    case SIGUSR2:
        for (size_t i = 0; i < job->n; ++i) {
            if (job->tasks[i].alive) {
                dsi_job_forward(job, &job->tasks[i], signal);
            }
        }
        break;
    case SIGTSTP:
        on_stop_key(job);
        break;
    default: /* SIGCHLD: reaped in the loop */
        break;
    }
}

void dsi_job_read_signals(dsi_job *job)
{
    struct signalfd_siginfo info;
    while (read(job->signals, &info, sizeof info) == sizeof info) {
        on_signal(job, (int)info.ssi_signo);
    }
}

/* ---- reports of ranks ---- */

void dsi_job_read_reports(dsi_job *job)
{
    dsi_launcher_note note;
    while (job->params->ranks && dsi_launcher_hear(job->params->reports, &note)) {
        size_t i = 0;
        while (i < job->n && job->tasks[i].task->rank != note.rank) {
            ++i;
        }
        if (i < job->n && note.coords[0] != '\0') {
            dsi_running *running = &job->tasks[i];
            (void)snprintf(running->coords, sizeof running->coords, " (%s)", note.coords);
        } else if (i < job->n && note.seconds <= 0.0) {
            job->tasks[i].missed = true;
        } else if (i < job->n) {
            job->tasks[i].awaited = note.seconds;
        } else if (note.coords[0] == '\0') {
            job->elsewhere = note;
        }
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void on_line(dsi_job *job, const char *line, bool is_notice)
{
    int number = 0;
    if (!is_notice && sscanf(line, "signal %d", &number) == 1 && number > 0 && number < NSIG) {
        on_signal(job, number);
        return;
    }
    char label[256];
    char what[8];
    char text[96];
    if (!is_notice || sscanf(line, "%255s %7s %d", label, what, &number) != 3) {
        return;
    }
    if (strcmp(what, "pid") == 0 && number > 1) {
        dsi_job_add_relay(job, (pid_t)number);
    } else if (strcmp(what, "awaits") == 0 && number >= 0 && job->stop == DSI_STOP_NONE) {
        job->awaited = true;
        job->awaited_rank = (uint32_t)number;
    } else if (strcmp(what, "code") == 0 && job->stop == DSI_STOP_NONE) {
        char node[sizeof "node " + sizeof label];
        job->notice_code = number;
        memcpy(job->notice_label, label, sizeof label);
        (void)snprintf(node, sizeof node, "node %s", label);
        dsi_report_way(job, node, dsi_way_end(number, text, sizeof text), "; ending the others");
        dsi_job_stop(job, DSI_STOP_FAILED, SIGTERM, job->params->grace);
    }
}

/* Returns false at the end of the descriptor. */
static bool read_lines(dsi_job *job, int fd, bool is_notice)
{
    char data[4096];
    const ssize_t n = read(fd, data, sizeof data);
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR;
    }
    for (ssize_t i = 0; i < n; ++i) {
        if (data[i] != '\n') {
            dsi_buf_putc(&job->lines, data[i]);
            continue;
        }
        on_line(job, dsi_buf_text(&job->lines), is_notice);
        dsi_buf_clear(&job->lines);
    }
    return n > 0;
}

void dsi_job_read_control(dsi_job *job)
{
    if (!read_lines(job, job->params->control, false) && job->stop != DSI_STOP_LOST) {
        if (job->stop == DSI_STOP_NONE) {
            ds_log(job->ctx, DS_LOG_ERROR, "the launcher that started this node is gone; ending");
        }
        const double left = job->deadline;
        dsi_job_stop(job, DSI_STOP_LOST, SIGTERM, job->params->grace);
        job->deadline = left != 0 && left < job->deadline ? left : job->deadline;
    }
}

void dsi_job_read_notice(dsi_job *job)
{
    (void)read_lines(job, job->params->notice, true);
}
