/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds of a job: how long it runs, what its tasks use, and the file that ends it. Called by
 * supervise.c.
 *
 * Memory is looked at ten times a second: private memory of a task and of all its descendants, and
 * its part of what is shared among tasks. A single large request meets RLIMIT_DATA before
 * (launch_node.c).
 */
#include "launch/supervise_impl.h"

#include "base/clock.h"
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_SECONDS 0.1

enum { DEEPEST = 16, MOST_CHILDREN = 512, MIB = 1024 * 1024 };

double dsi_limits_wait(const dsi_job *job)
{
    const dsi_limits *limits = &job->params->limits;
    const double now = dsi_clock_seconds();
    double wait = -1;
    if (limits->seconds > 0) {
        const double left = job->started + limits->seconds - now;
        wait = left > 0 ? left : 0;
    }
    if (limits->rank_bytes > 0 || limits->done_file != NULL) {
        const double look = job->next_look > now ? job->next_look - now : 0;
        wait = wait < 0 || look < wait ? look : wait;
    }
    return wait;
}

/* The kibibytes after "NAME:" in a line of /proc/PID/status; 0 when it is another line. */
static size_t kib_of(const char *line, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(line, name, n) == 0 && line[n] == ':' ? (size_t)strtoull(line + n + 1, NULL, 10)
                                                         : 0;
}

static size_t own_bytes(pid_t pid, size_t n_sharing)
{
    char line[256];
    size_t kib = 0;
    (void)snprintf(line, sizeof line, "/proc/%ld/status", (long)pid);
    FILE *file = fopen(line, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        kib += kib_of(line, "RssAnon") + kib_of(line, "RssShmem") / n_sharing;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return kib * 1024;
}

/* Of a process and its descendants. */
static size_t tree_bytes(pid_t pid, size_t n_sharing, int depth)
{
    char line[64];
    long child;
    size_t bytes = own_bytes(pid, n_sharing);
    (void)snprintf(line, sizeof line, "/proc/%ld/task/%ld/children", (long)pid, (long)pid);
    FILE *file = depth < DEEPEST ? fopen(line, "re") : NULL;
    for (int i = 0; file != NULL && i < MOST_CHILDREN && fscanf(file, "%ld", &child) == 1; ++i) {
        bytes += tree_bytes((pid_t)child, n_sharing, depth + 1);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return bytes;
}

static bool too_much(dsi_job *job)
{
    const size_t most = job->params->limits.rank_bytes;
    for (size_t i = 0; i < job->n_started; ++i) {
        const dsi_running *running = &job->tasks[i];
        const size_t bytes = running->alive ? tree_bytes(running->process.pid, job->n, 0) : 0;
        job->peak_bytes = bytes > job->peak_bytes ? bytes : job->peak_bytes;
        if (most > 0 && bytes > most) {
            ds_log(job->ctx, DS_LOG_ERROR,
                   "%s uses %zu MiB of memory, more than --rank_memory allows, %zu MiB; killing "
                   "the job",
                   running->task->label, bytes / MIB, most / MIB);
            return true;
        }
    }
    return false;
}

static dsi_limit limits_reached(dsi_job *job)
{
    const dsi_limits *limits = &job->params->limits;
    const double now = dsi_clock_seconds();
    if (limits->seconds > 0 && now >= job->started + limits->seconds) {
        ds_log(job->ctx, DS_LOG_ERROR, "the job still runs after %g s; ending it", limits->seconds);
        return DSI_LIMIT_TIME;
    }
    if ((limits->rank_bytes == 0 && limits->done_file == NULL) || now < job->next_look) {
        return DSI_LIMIT_NONE;
    }
    job->next_look = now + LOOK_SECONDS;
    if (!job->params->ways && too_much(job)) {
        return DSI_LIMIT_MEMORY;
    }
    return limits->done_file != NULL && access(limits->done_file, F_OK) == 0 ? DSI_LIMIT_DONE
                                                                             : DSI_LIMIT_NONE;
}

void dsi_limits_check(dsi_job *job)
{
    const bool waits = job->stop == DSI_STOP_SIGNAL && job->deadline == 0;
    if (job->stop != DSI_STOP_NONE && !waits) {
        return; /* it is ending, and has a deadline */
    }
    const dsi_limit limit = limits_reached(job);
    if (limit == DSI_LIMIT_NONE) {
        return;
    }
    job->limit = limit;
    dsi_job_stop(job, DSI_STOP_LIMIT, SIGTERM, job->params->grace);
    if (limit == DSI_LIMIT_MEMORY) {
        dsi_job_kill(job); /* it would go on growing */
    }
}
