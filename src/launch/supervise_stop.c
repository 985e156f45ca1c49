/* SPDX-License-Identifier: Apache-2.0 */
/* How a job is ended: by forwarding signals to its tasks, then, after a deadline, by SIGKILL. See
 * supervise_impl.h. */
#include "launch/supervise_impl.h"

#include "base/clock.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GIVE_UP_SECONDS 10.0 /* after SIGKILL */

static void tell_relays(const dsi_job *job, int signal)
{
    for (size_t i = 0; i < job->n_relays; ++i) {
        (void)syscall(SYS_pidfd_send_signal, job->relays[i], signal, NULL, 0u);
    }
}

void dsi_job_add_relay(dsi_job *job, pid_t pid)
{
    int *relays = realloc(job->relays, (job->n_relays + 1) * sizeof *relays);
    const int fd = relays != NULL ? (int)syscall(SYS_pidfd_open, pid, 0u) : -1;
    job->relays = relays != NULL ? relays : job->relays;
    if (fd >= 0) {
        job->relays[job->n_relays++] = fd;
        if (job->stop != DSI_STOP_NONE) { /* it came late */
            (void)syscall(SYS_pidfd_send_signal, fd, job->killing ? SIGKILL : SIGTERM, NULL, 0u);
        }
    }
}

void dsi_job_forward(const dsi_job *job, const dsi_running *running, int signal)
{
    char line[32];
    if (running->process.control >= 0 && signal != SIGKILL) {
        const int n = snprintf(line, sizeof line, "signal %d\n", signal);
        if (write(running->process.control, line, (size_t)n) == n) {
            return; /* the node's launcher forwards it */
        }
    }
    if (running->task->relays) {
        tell_relays(job, signal);
    }
    if (!running->task->relays || signal == SIGKILL) {
        dsi_process_signal(&running->process, signal);
    }
}

/* Tells it to end. */
static void tell(const dsi_job *job, dsi_running *running, int signal)
{
    running->told = true;
    running->killed = running->killed || signal == SIGKILL;
    dsi_job_forward(job, running, signal);
    dsi_process_signal(&running->process, SIGCONT); /* a stopped process cannot end itself */
}

void dsi_job_tell(dsi_job *job, int signal)
{
    for (size_t i = 0; i < job->n; ++i) {
        if (job->tasks[i].alive) {
            tell(job, &job->tasks[i], signal);
        }
    }
}

void dsi_job_kill(dsi_job *job)
{
    job->killing = true;
    job->deadline = dsi_clock_seconds() + GIVE_UP_SECONDS;
    dsi_job_tell(job, SIGKILL);
}

void dsi_job_stop(dsi_job *job, dsi_stop why, int signal, double grace)
{
    job->stop = why;
    job->stop_signal = signal;
    job->deadline = grace >= 0 ? dsi_clock_seconds() + grace : 0;
    dsi_job_tell(job, signal);
}

void dsi_job_at_deadline(dsi_job *job)
{
    if (!job->killing) {
        dsi_job_kill(job);
        return;
    }
    for (size_t i = 0; i < job->n; ++i) {
        if (job->tasks[i].alive) {
            ds_log(
                job->ctx, DS_LOG_ERROR,
                "%s (process %ld) does not end %g s after SIGKILL: the kernel holds it, often for "
                "a disk or device that does not answer",
                job->tasks[i].task->label, (long)job->tasks[i].process.pid, GIVE_UP_SECONDS);
        }
    }
    job->gave_up = true;
}
