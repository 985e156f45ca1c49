/* SPDX-License-Identifier: Apache-2.0 */
/* fork and exec with everything that makes a child go away with its parent. See process.h. */
#include "launch/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

const char *dsi_signal_name(int signal, char *text, size_t size)
{
    const char *name = sigabbrev_np(signal);
    if (name != NULL) {
        (void)snprintf(text, size, "SIG%s", name);
    } else {
        (void)snprintf(text, size, "signal %d", signal);
    }
    return text;
}

/* A folder of this executable, "" when unknown. */
static void own_folder(char *text, size_t size)
{
    const ssize_t n = readlink("/proc/self/exe", text, size - 1);
    text[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(text, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
}

/* ---- finding the program --------------------------------------------------------------------- */

static bool is_executable(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

static char *in_folder(const char *folder, size_t n, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%.*s/%s", (int)n, n > 0 ? folder : ".", name) < 0) {
        return NULL;
    }
    if (!is_executable(path)) {
        free(path);
        return NULL;
    }
    return path;
}

static char *on_path(const char *name)
{
    const char *folders = getenv("PATH");
    char *found = NULL;
    while (folders != NULL && found == NULL) {
        const size_t n = strcspn(folders, ":");
        found = in_folder(folders, n, name);
        folders = folders[n] == ':' ? folders + n + 1 : NULL;
    }
    return found;
}

static ds_status find_by_path(ds_ctx *ctx, const char *name, char **path_out)
{
    if (is_executable(name)) {
        *path_out = strdup(name);
        return *path_out != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for a path");
    }
    struct stat info;
    if (stat(name, &info) < 0) {
        return ds_fail(ctx, DS_ERR_NOT_FOUND, "%s: expected a program, found nothing: %s", name,
                       strerror(errno));
    }
    const char *dot = strrchr(name, '.');
    if (dot != NULL && strcmp(dot, ".py") == 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s: expected a program, found a Python script that is not executable; "
                       "name its interpreter: deepspeed … python3 %s",
                       name, name);
    }
    return ds_fail(ctx, DS_ERR_ARG, "%s: expected an executable file, found %s", name,
                   S_ISDIR(info.st_mode) ? "a folder" : "one that may not be executed; chmod +x?");
}

ds_status dsi_program_find(ds_ctx *ctx, const char *name, char **path_out)
{
    if (strchr(name, '/') != NULL) {
        return find_by_path(ctx, name, path_out);
    }
    char own[4096];
    own_folder(own, sizeof own);
    char *path = NULL;
    if (strncmp(name, "ds_", 3) == 0 && own[0] != '\0') {
        path = in_folder(own, strlen(own), name);
    }
    path = path != NULL ? path : on_path(name);
    if (path == NULL) {
        return ds_fail(ctx, DS_ERR_NOT_FOUND,
                       "expected a program, found no '%s' in PATH or beside this launcher%s", name,
                       is_executable(name) ? "; there is one in this folder: write ./ before it"
                                           : "");
    }
    *path_out = path;
    return DS_OK;
}

/* ---- the child, between fork and exec: only calls that are safe there ------------------------ */

typedef struct child_ends {
    int in, out, err;
    int report; /* errno goes here when exec fails; closed by exec */
} child_ends;

static void child_stop(const child_ends *ends, int error)
{
    const ssize_t n = write(ends->report, &error, sizeof error);
    _exit(n == sizeof error ? 127 : 126);
}

static void child_signals(bool ignores_end)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    struct sigaction hangup = {0};
    const bool stays = sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    for (int i = 1; i < NSIG; ++i) {
        (void)signal(i, i == SIGHUP && stays ? SIG_IGN : SIG_DFL); /* nohup is the job's too */
    }
    for (size_t i = 0; ignores_end && i < sizeof ends / sizeof ends[0]; ++i) {
        (void)signal(ends[i], SIG_IGN);
    }
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static void child_bind(const dsi_command *command, const child_ends *ends)
{
    if (command->cpus != NULL && sched_setaffinity(0, command->cpus_bytes, command->cpus) < 0) {
        child_stop(ends, errno);
    }
    if (command->memory_node >= 0) {
        enum { BIND = 2, BITS = 1024 };
        unsigned long mask[BITS / (8 * sizeof(unsigned long))] = {0};
        const size_t width = 8 * sizeof mask[0];
        mask[(size_t)command->memory_node / width] |= 1ul << ((size_t)command->memory_node % width);
        if (syscall(SYS_set_mempolicy, BIND, mask, (unsigned long)BITS) < 0) {
            child_stop(ends, errno);
        }
    }
    if (command->data_bytes > 0) {
        const struct rlimit limit = {command->data_bytes, command->data_bytes};
        if (setrlimit(RLIMIT_DATA, &limit) < 0 && errno != EPERM) { /* a lower one is in force */
            child_stop(ends, errno);
        }
    }
}

static void child_run(const dsi_command *command, const child_ends *ends, pid_t parent)
{
    (void)setpgid(0, 0);
    child_signals(command->ignores_end);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(126); /* the launcher is gone already */
    }
    if (dup2(ends->in, 0) < 0 || dup2(ends->out, 1) < 0 || dup2(ends->err, 2) < 0) {
        child_stop(ends, errno);
    }
    child_bind(command, ends);
    (void)execve(command->program, command->argv->items, command->env->items);
    child_stop(ends, errno);
}

/* ---- the parent ------------------------------------------------------------------------------ */

enum { CONTROL, OUT, ERR, REPORT, N_PIPES };

typedef struct pipes {
    int ends[N_PIPES][2]; /* reading, writing; -1: closed */
    int null;             /* /dev/null */
} pipes;

static void close_end(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd);
        *fd = -1;
    }
}

static void close_pipes(pipes *p)
{
    for (int i = 0; i < N_PIPES; ++i) {
        close_end(&p->ends[i][0]);
        close_end(&p->ends[i][1]);
    }
    close_end(&p->null);
}

static bool open_pipes(pipes *p)
{
    memset(p, 0xff, sizeof *p); /* all -1 */
    for (int i = 0; i < N_PIPES; ++i) {
        if (pipe2(p->ends[i], O_CLOEXEC) < 0) {
            return false;
        }
    }
    p->null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return p->null >= 0 && fcntl(p->ends[OUT][0], F_SETFL, O_NONBLOCK) == 0 &&
           fcntl(p->ends[ERR][0], F_SETFL, O_NONBLOCK) == 0;
}

static int take_end(int *fd)
{
    const int taken = *fd;
    *fd = -1;
    return taken;
}

/* 0 when exec went well, else its errno. */
static int exec_result(int fd)
{
    int error = 0;
    ssize_t n;
    do {
        n = read(fd, &error, sizeof error);
    } while (n < 0 && errno == EINTR);
    return n == sizeof error ? error : 0;
}

ds_status dsi_process_start(ds_ctx *ctx, const dsi_command *command, dsi_process *process_out)
{
    pipes p;
    if (!open_pipes(&p)) {
        const int error = errno;
        close_pipes(&p);
        return ds_fail(ctx, DS_ERR_IO, "%s: no pipes for its output: %s", command->program,
                       strerror(error));
    }
    const child_ends ends = {.in = command->wants_control ? p.ends[CONTROL][0] : p.null,
                             .out = p.ends[OUT][1],
                             .err = p.ends[ERR][1],
                             .report = p.ends[REPORT][1]};
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
        child_run(command, &ends, parent);
    }
    const int fork_error = pid < 0 ? errno : 0;
    close_end(&p.ends[REPORT][1]);
    const int error = pid < 0 ? fork_error : exec_result(p.ends[REPORT][0]);
    if (error != 0) {
        close_pipes(&p);
        return ds_fail(ctx, DS_ERR_IO, "%s: cannot be started: %s%s", command->program,
                       strerror(error),
                       error == ENOEXEC ? " (a script needs a first line such as #!/bin/sh)" : "");
    }
    (void)setpgid(pid, pid);
    *process_out = (dsi_process){
        .pid = pid,
        .out = take_end(&p.ends[OUT][0]),
        .err = take_end(&p.ends[ERR][0]),
        .control = command->wants_control ? take_end(&p.ends[CONTROL][1]) : -1,
    };
    close_pipes(&p);
    return DS_OK;
}

void dsi_process_signal(const dsi_process *process, int signal)
{
    if (process->pid > 0) {
        (void)kill(-process->pid, signal);
    }
}

bool dsi_process_is_ending(const dsi_process *process)
{
    enum { PF_EXITING = 4 }; /* proc(5), stat: the kernel's flags of the process */
    const unsigned long killed = 1ul << (SIGKILL - 1); /* pending: it had no processor yet */
    char text[1024];
    (void)snprintf(text, sizeof text, "/proc/%ld/stat", (long)process->pid);
    const int fd = process->pid > 0 ? open(text, O_RDONLY | O_CLOEXEC) : -1;
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    text[n > 0 ? n : 0] = '\0';
    const char *name_end = strrchr(text, ')');
    char state = '?';
    unsigned flags = 0;
    unsigned long pending = 0; /* field 31 */
    return name_end != NULL &&
           sscanf(name_end + 1,
                  " %c %*d %*d %*d %*d %*d %u %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                  "%*s %*s %*s %*s %*s %*s %*s %*s %lu",
                  &state, &flags, &pending) == 3 &&
           (state == 'Z' || state == 'X' || (flags & PF_EXITING) != 0 || (pending & killed) != 0);
}

void dsi_process_close(dsi_process *process)
{
    close_end(&process->out);
    close_end(&process->err);
    close_end(&process->control);
}
