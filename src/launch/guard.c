/* SPDX-License-Identifier: Apache-2.0 */
/* Kills what a dead launcher left. See guard.h. */
#include "launch/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_GROUPS = 65536 };

/* Groups are sent as their number, or its negative when gone: atomic on a pipe. */
static void note(pid_t *groups, size_t *n, pid_t message)
{
    if (message > 0 && *n < MAX_GROUPS) {
        groups[(*n)++] = message;
        return;
    }
    for (size_t i = 0; i < *n; ++i) {
        if (groups[i] == -message) {
            groups[i] = groups[--*n];
            return;
        }
    }
}

static void keep_only(int fd)
{
    (void)dup2(fd, 0);
    const int null = open("/dev/null", O_RDWR);
    (void)dup2(null, 1);
    (void)dup2(null, 2);
    (void)close_range(3, ~0u, 0);
}

static void guard_run(int fd)
{
    pid_t groups[MAX_GROUPS];
    size_t n = 0;
    pid_t message;
    sigset_t all;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_NAME, "ds_guard");
    keep_only(fd);
    for (;;) {
        const ssize_t got = read(0, &message, sizeof message);
        if (got == sizeof message) {
            note(groups, &n, message);
        } else if (got >= 0 || errno != EINTR) {
            break;
        }
    }
    for (size_t i = 0; i < n; ++i) {
        (void)kill(-groups[i], SIGKILL);
    }
    _exit(0);
}

ds_status dsi_guard_start(ds_ctx *ctx, dsi_guard *guard_out)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) {
        return ds_fail(ctx, DS_ERR_IO, "no pipe for the guard: %s", strerror(errno));
    }
    const pid_t pid = fork();
    if (pid == 0) {
        (void)close(ends[1]);
        guard_run(ends[0]);
    }
    (void)close(ends[0]);
    if (pid < 0) {
        (void)close(ends[1]);
        return ds_fail(ctx, DS_ERR_IO, "the guard cannot be started: %s", strerror(errno));
    }
    *guard_out = (dsi_guard){.pid = pid, .pipe = ends[1]};
    return DS_OK;
}

static void send_message(const dsi_guard *guard, pid_t message)
{
    ssize_t n = 0;
    while (guard->pid > 0 && n != sizeof message) {
        n = write(guard->pipe, &message, sizeof message);
        if (n < 0 && errno != EINTR) {
            break; /* the guard is gone: what it guards dies with its parent only */
        }
    }
}

void dsi_guard_add(const dsi_guard *guard, pid_t group)
{
    send_message(guard, group);
}

void dsi_guard_remove(const dsi_guard *guard, pid_t group)
{
    send_message(guard, -group);
}

void dsi_guard_stop(dsi_guard *guard)
{
    if (guard->pid > 0) {
        (void)close(guard->pipe);
        while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    *guard = (dsi_guard){0};
}
