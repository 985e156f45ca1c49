/* SPDX-License-Identifier: Apache-2.0 */
/* How tasks end, and which of them is the cause. See supervise_impl.h. */
#include "launch/supervise_impl.h"

#include "base/clock.h"
#include "launch/absent.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ENDING_SECONDS 2.0  /* a large process takes this long to end, at most */
#define ABSENT_SECONDS 0.5  /* one that told a rank why it fails ends this much later, at most */
#define SAYING_SECONDS 0.05 /* a message comes so much later than what it made end, at most */

static dsi_running *find_running(dsi_job *job, pid_t pid)
{
    for (size_t i = 0; i < job->n_started; ++i) {
        if (job->tasks[i].process.pid == pid) {
            return &job->tasks[i];
        }
    }
    return NULL; /* a stray descendant, or the guard */
}

/* The task in whose place the process stood. */
static void on_stand_in_end(dsi_job *job, pid_t pid, int wait_status)
{
    for (size_t i = 0; i < job->n_started; ++i) {
        if (job->tasks[i].stand_in == pid) {
            job->tasks[i].stand_in = 0;
            job->tasks[i].absent =
                job->tasks[i].absent ||
                (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == DSI_ABSENT_TAKEN);
        }
    }
}

static void on_end(dsi_job *job, dsi_running *running, int wait_status)
{
    running->alive = false;
    running->wait_status = wait_status;
    running->ended = dsi_clock_seconds();
    --job->n_alive;
    (void)dsi_running_pump(running, 0);
    (void)dsi_running_pump(running, 1);
    if (WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL && !running->killed) {
        running->oom = dsi_oom_killed(&job->oom, "", running->process.pid, &running->oom_how);
    }
    if (job->params->ranks && wait_status == 0 && job->n_alive > 0 && job->stop == DSI_STOP_NONE) {
        running->stand_in = dsi_absent_start(running->task, job->params->host);
    }
}

static void on_change(dsi_job *job, pid_t pid, int wait_status)
{
    dsi_running *running = find_running(job, pid);
    char name[32];
    if (running == NULL) {
        if (WIFEXITED(wait_status) || WIFSIGNALED(wait_status)) {
            on_stand_in_end(job, pid, wait_status);
        }
        return;
    }
    if (WIFSTOPPED(wait_status)) {
        if (!running->stopped && WSTOPSIG(wait_status) != SIGTRAP) {
            ds_log(job->ctx, DS_LOG_WARN,
                   "%s (process %ld) was stopped by %s; kill -CONT %ld lets it "
                   "go on",
                   running->task->label, (long)pid,
                   dsi_signal_name(WSTOPSIG(wait_status), name, sizeof name), (long)pid);
        }
        running->stopped = true;
    } else if (WIFCONTINUED(wait_status)) {
        running->stopped = false;
    } else if (running->alive) {
        on_end(job, running, wait_status);
    }
}

/* How likely a task is the cause when several failed together. */
static int weight(const dsi_running *running)
{
    if (running->absent || running->awaited > 0) {
        return 2;
    }
    return !running->alive && WIFSIGNALED(running->wait_status) ? 1 : 0;
}

/* Marks those for which others waited in vain. */
static void mark_absent(dsi_job *job)
{
    dsi_job_read_reports(job);
    for (size_t i = 0; i < job->n; ++i) {
        dsi_running *running = &job->tasks[i];
        running->absent =
            running->absent || (running->missed && !running->alive && running->wait_status == 0);
    }
}

static bool any_failed(const dsi_job *job)
{
    for (size_t i = 0; i < job->n; ++i) {
        if (job->tasks[i].process.pid != 0 && dsi_running_failed(&job->tasks[i])) {
            return true;
        }
    }
    return false;
}

void dsi_job_find_first(dsi_job *job)
{
    size_t best = job->n;
    const bool failed = any_failed(job); /* a rank for which others wait is not, before they end */
    if (failed) {
        mark_absent(job);
    }
    for (size_t i = 0; i < job->n && failed; ++i) {
        const dsi_running *running = &job->tasks[i];
        if (running->process.pid == 0 || (!dsi_running_failed(running) && running->awaited <= 0)) {
            continue;
        }
        if (best == job->n || weight(running) > weight(&job->tasks[best])) {
            best = i;
        }
    }
    job->first = best;
}

/* A process that has changed, 0 when there is none. One that ended takes the rest of its group
 * along before its number can be given to another. */
static pid_t next_changed(dsi_job *job, int *wait_status)
{
    siginfo_t info = {.si_pid = 0};
    enum { EVENTS = WEXITED | WSTOPPED | WCONTINUED };
    if (waitid(P_ALL, 0, &info, EVENTS | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0) {
        return 0;
    }
    const bool ended =
        info.si_code != CLD_STOPPED && info.si_code != CLD_CONTINUED && info.si_code != CLD_TRAPPED;
    if (ended && find_running(job, info.si_pid) != NULL) {
        (void)kill(-info.si_pid, SIGKILL);
        dsi_guard_remove(&job->guard, info.si_pid);
    }
    const pid_t pid = waitpid(info.si_pid, wait_status, WNOHANG | WUNTRACED | WCONTINUED);
    return pid > 0 ? pid : 0;
}

int dsi_job_largest_code(const dsi_job *job)
{
    int largest = 0;
    for (size_t i = 0; i < job->n; ++i) {
        const int code = dsi_running_code(&job->tasks[i]);
        largest = dsi_running_failed(&job->tasks[i]) && code > largest ? code : largest;
    }
    return largest;
}

void dsi_job_name_failed(dsi_job *job)
{
    char text[96];
    for (size_t i = 0; i < job->n; ++i) {
        if (dsi_running_failed(&job->tasks[i])) {
            ds_log(job->ctx, DS_LOG_ERROR, "%s %s", job->tasks[i].task->label,
                   dsi_way_end(dsi_running_code(&job->tasks[i]), text, sizeof text));
        }
    }
}

static void take_ends(dsi_job *job)
{
    int wait_status;
    pid_t pid;
    while ((pid = next_changed(job, &wait_status)) > 0) {
        on_change(job, pid, wait_status);
    }
}

static bool any_ending(const dsi_job *job)
{
    for (size_t i = 0; i < job->n_started; ++i) {
        if (job->tasks[i].alive && dsi_process_is_ending(&job->tasks[i].process)) {
            return true;
        }
    }
    return false;
}

/* Whether a task that failed may have been told that another never came. */
static bool any_stand_in(const dsi_job *job)
{
    for (size_t i = 0; i < job->n_started; ++i) {
        if (job->tasks[i].stand_in != 0) {
            return true;
        }
    }
    return false;
}

/* A process that dies closes its connections before it can be waited for: one that noticed may have
 * ended first. Whoever is about to end is waited for before anybody is blamed; and whoever made the
 * others end has a moment to say why, before it is told to end too. */
static void find_cause(dsi_job *job)
{
    const double now = dsi_clock_seconds();
    const double end = now + ENDING_SECONDS;
    const double least_end = now + SAYING_SECONDS;
    const double absent_end = now + ABSENT_SECONDS;
    dsi_job_find_first(job);
    while (job->first < job->n && ((job->n_alive > 0 && dsi_clock_seconds() < least_end) ||
                                   (any_ending(job) && dsi_clock_seconds() < end) ||
                                   (any_stand_in(job) && dsi_clock_seconds() < absent_end))) {
        (void)usleep(1000);
        take_ends(job);
        dsi_job_find_first(job);
    }
}

void dsi_job_reap(dsi_job *job)
{
    take_ends(job);
    if (job->stop == DSI_STOP_NONE && !job->params->independent) {
        find_cause(job);
        if (job->first < job->n) {
            job->awaited = job->params->ways &&
                           dsi_report_awaited(&job->tasks[job->first].output, &job->awaited_rank);
            if (!job->params->quiet) {
                dsi_report_first(job);
            }
            dsi_job_stop(job, DSI_STOP_FAILED, SIGTERM, job->params->grace);
        }
    }
}

bool dsi_job_kill_strays(const dsi_job *job)
{
    char text[4096];
    (void)snprintf(text, sizeof text, "/proc/self/task/%ld/children", (long)getpid());
    const int fd = open(text, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    bool any = false;
    if (fd >= 0) {
        (void)close(fd);
    }
    text[n > 0 ? n : 0] = '\0';
    for (char *at = text; *at != '\0';) {
        const pid_t pid = (pid_t)strtol(at, &at, 10);
        if (pid > 1 && pid != job->guard.pid) {
            any = true;
            (void)kill(pid, SIGKILL);
        }
        at += strspn(at, " ");
    }
    return any;
}
