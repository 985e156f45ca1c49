/* The launcher's loop. See supervise.h. */
#include "launch/supervise_impl.h"

#include "base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define IDLE_SECONDS    0.1  /* an unfinished line is shown after it */
#define DRAIN_SECONDS   0.3  /* outputs that a stray descendant holds open are read this long */
#define ENDING_SECONDS  2.0  /* a large process takes this long to end, at most */
#define GIVE_UP_SECONDS 10.0 /* after SIGKILL */

/* ---- ending the job -------------------------------------------------------------------------- */

static void tell_relays(const dsi_job *job, int signal)
{
    for (size_t i = 0; i < job->n_relays; ++i) {
        (void)syscall(SYS_pidfd_send_signal, job->relays[i], signal, NULL, 0u);
    }
}

/* A process that told its number while it waits: the descriptor keeps naming it alone. */
static void add_relay(dsi_job *job, pid_t pid)
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

static void forward(const dsi_job *job, const dsi_running *running, int signal)
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
    forward(job, running, signal);
    dsi_process_signal(&running->process, SIGCONT); /* a stopped process cannot end itself */
}

static void tell_all(dsi_job *job, int signal)
{
    for (size_t i = 0; i < job->n; ++i) {
        if (job->tasks[i].alive) {
            tell(job, &job->tasks[i], signal);
        }
    }
}

static void kill_all(dsi_job *job)
{
    job->killing = true;
    job->deadline = dsi_clock_seconds() + GIVE_UP_SECONDS;
    tell_all(job, SIGKILL);
}

/* Ends all that is alive; grace < 0: waits as long as it takes. */
static void begin_stop(dsi_job *job, dsi_stop why, int signal, double grace)
{
    job->stop = why;
    job->stop_signal = signal;
    job->deadline = grace >= 0 ? dsi_clock_seconds() + grace : 0;
    tell_all(job, signal);
}

static void at_deadline(dsi_job *job)
{
    if (!job->killing) {
        kill_all(job);
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

/* ---- signals to the launcher ----------------------------------------------------------------- */

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
            begin_stop(job, DSI_STOP_SIGNAL, signal, waits ? -1 : job->params->grace);
        } else {
            tell_all(job, signal); /* a failure is ending it already: its deadline stays */
        }
    } else if (!job->killing) {
        kill_all(job);
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
                forward(job, &job->tasks[i], signal);
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

static void read_signals(dsi_job *job)
{
    struct signalfd_siginfo info;
    while (read(job->signals, &info, sizeof info) == sizeof info) {
        on_signal(job, (int)info.ssi_signo);
    }
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void check_limits(dsi_job *job)
{
    const bool waits = job->stop == DSI_STOP_SIGNAL && job->deadline == 0;
    if (job->stop != DSI_STOP_NONE && !waits) {
        return; /* it is ending, and has a deadline */
    }
    const dsi_limit limit = dsi_limits_reached(job);
    if (limit == DSI_LIMIT_NONE) {
        return;
    }
    job->limit = limit;
    begin_stop(job, DSI_STOP_LIMIT, SIGTERM, job->params->grace);
    if (limit == DSI_LIMIT_MEMORY) {
        kill_all(job); /* it would go on growing */
    }
}

/* ---- lines from the control and notice descriptors ------------------------------------------- */

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
        add_relay(job, (pid_t)number);
    } else if (strcmp(what, "code") == 0 && job->stop == DSI_STOP_NONE) {
        job->notice_code = number;
        memcpy(job->notice_label, label, sizeof label);
        ds_log(job->ctx, DS_LOG_ERROR, "node %s %s%s", label,
               dsi_way_end(number, text, sizeof text), "; ending the others");
        begin_stop(job, DSI_STOP_FAILED, SIGTERM, job->params->grace);
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

static void on_control(dsi_job *job)
{
    if (!read_lines(job, job->params->control, false) && job->stop != DSI_STOP_LOST) {
        if (job->stop == DSI_STOP_NONE) {
            ds_log(job->ctx, DS_LOG_ERROR, "the launcher that started this node is gone; ending");
        }
        const double left = job->deadline;
        begin_stop(job, DSI_STOP_LOST, SIGTERM, job->params->grace);
        job->deadline = left != 0 && left < job->deadline ? left : job->deadline;
    }
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* Reads what is there. Returns whether anything was. */
static bool pump(dsi_running *running, int stream)
{
    int *fd = stream == 0 ? &running->process.out : &running->process.err;
    char data[16384];
    bool any = false;
    while (*fd >= 0) {
        const ssize_t n = read(*fd, data, sizeof data);
        if (n > 0) {
            dsi_output_feed(&running->output, stream, data, (size_t)n);
            any = true;
            if (n < (ssize_t)sizeof data) {
                break;
            }
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            (void)close(*fd);
            *fd = -1;
        } else if (errno == EAGAIN) {
            break;
        }
    }
    return any;
}

static void warn_of_log(dsi_job *job, dsi_running *running)
{
    if (running->output.log_error > 0 && running->output.log >= 0) {
        ds_log(job->ctx, DS_LOG_ERROR, "%s: %s; the log of %s is not whole, the job goes on",
               running->task->log_path, strerror(running->output.log_error), running->task->label);
        (void)close(running->output.log);
        running->output.log = -1;
    }
}

/* ---- ends of processes ----------------------------------------------------------------------- */

static dsi_running *find_running(dsi_job *job, pid_t pid)
{
    for (size_t i = 0; i < job->n_started; ++i) {
        if (job->tasks[i].process.pid == pid) {
            return &job->tasks[i];
        }
    }
    return NULL; /* a stray descendant, or the guard */
}

static void on_end(dsi_job *job, dsi_running *running, int wait_status)
{
    running->alive = false;
    running->wait_status = wait_status;
    running->ended = dsi_clock_seconds();
    --job->n_alive;
    (void)pump(running, 0);
    (void)pump(running, 1);
    if (WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL && !running->killed) {
        running->oom = dsi_oom_killed(&job->oom, "", running->process.pid, &running->oom_how);
    }
}

static void on_change(dsi_job *job, pid_t pid, int wait_status)
{
    dsi_running *running = find_running(job, pid);
    char name[32];
    if (running == NULL) {
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

/* Of those that ended together, the one that a signal killed is the likelier cause. */
static void find_first(dsi_job *job)
{
    size_t best = job->n;
    for (size_t i = 0; i < job->n; ++i) {
        const dsi_running *running = &job->tasks[i];
        if (running->process.pid == 0 || !dsi_running_failed(running)) {
            continue;
        }
        const bool by_signal = WIFSIGNALED(running->wait_status);
        if (best == job->n || (by_signal && !WIFSIGNALED(job->tasks[best].wait_status))) {
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

static int largest_code(const dsi_job *job)
{
    int largest = 0;
    for (size_t i = 0; i < job->n; ++i) {
        const int code = dsi_running_code(&job->tasks[i]);
        largest = dsi_running_failed(&job->tasks[i]) && code > largest ? code : largest;
    }
    return largest;
}

static void name_failed(dsi_job *job)
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

/* A process that dies closes its connections before it can be waited for: one that noticed may have
 * ended first. Whoever is about to end is waited for before anybody is blamed. */
static void find_cause(dsi_job *job)
{
    const double end = dsi_clock_seconds() + ENDING_SECONDS;
    find_first(job);
    while (job->first < job->n && any_ending(job) && dsi_clock_seconds() < end) {
        (void)usleep(1000);
        take_ends(job);
        find_first(job);
    }
}

static void reap(dsi_job *job)
{
    take_ends(job);
    if (job->stop == DSI_STOP_NONE && !job->params->independent) {
        find_cause(job);
        if (job->first < job->n) {
            if (!job->params->quiet) {
                dsi_report_first(job);
            }
            begin_stop(job, DSI_STOP_FAILED, SIGTERM, job->params->grace);
        }
    }
}

/* Descendants that outlived their parents became the launcher's children. */
static bool kill_strays(const dsi_job *job)
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

/* ---- start, loop, end ------------------------------------------------------------------------ */

static bool send_control_line(const dsi_running *running)
{
    const char *line = running->task->control_line;
    const size_t n = strlen(line);
    return write(running->process.control, line, n) == (ssize_t)n &&
           write(running->process.control, "\n", 1) == 1;
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
    if (task->control_line != NULL && !send_control_line(running)) {
        return ds_fail(job->ctx, DS_ERR_IO, "%s: it did not read its first line: %s", task->label,
                       strerror(errno));
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

/* Adds the outputs of all tasks; returns their number. */
static nfds_t poll_outputs(const dsi_job *job, struct pollfd *fds)
{
    nfds_t n = 0;
    for (size_t i = 0; i < job->n_started; ++i) {
        fds[n++] = (struct pollfd){.fd = job->tasks[i].process.out, .events = POLLIN};
        fds[n++] = (struct pollfd){.fd = job->tasks[i].process.err, .events = POLLIN};
    }
    return n;
}

static void read_outputs(dsi_job *job, const struct pollfd *fds)
{
    for (size_t i = 0; i < job->n_started; ++i) {
        dsi_running *running = &job->tasks[i];
        bool any = false;
        for (int stream = 0; stream < 2; ++stream) {
            if (fds == NULL || fds[2 * i + (size_t)stream].revents != 0) {
                any = pump(running, stream) || any;
            }
        }
        warn_of_log(job, running);
    }
}

static bool outputs_open(const dsi_job *job)
{
    for (size_t i = 0; i < job->n_started; ++i) {
        if (job->tasks[i].process.out >= 0 || job->tasks[i].process.err >= 0) {
            return true;
        }
    }
    return false;
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
        nfds_t n = poll_outputs(job, fds);
        const nfds_t own = n;
        const bool lost = job->stop == DSI_STOP_LOST;
        fds[n++] = (struct pollfd){.fd = job->signals, .events = POLLIN};
        fds[n++] = (struct pollfd){.fd = lost ? -1 : job->params->control, .events = POLLIN};
        fds[n++] = (struct pollfd){.fd = job->params->notice, .events = POLLIN};
        const int ready = poll(fds, n, poll_timeout(job));
        if (ready > 0) {
            read_outputs(job, fds);
            if (fds[own].revents != 0) {
                read_signals(job);
            }
            if (fds[own + 1].revents != 0) {
                on_control(job);
            }
            if (fds[own + 2].revents != 0) {
                (void)read_lines(job, job->params->notice, true);
            }
        } else if (ready == 0) {
            for (size_t i = 0; i < job->n_started; ++i) {
                dsi_output_idle(&job->tasks[i].output);
            }
        }
        reap(job);
        if (job->n_alive > 0) {
            check_limits(job);
        }
        if (job->deadline != 0 && job->n_alive > 0 && dsi_clock_seconds() >= job->deadline) {
            at_deadline(job);
        }
    }
}

static void drain(dsi_job *job, struct pollfd *fds)
{
    const double end = dsi_clock_seconds() + DRAIN_SECONDS;
    while (outputs_open(job) && dsi_clock_seconds() < end) {
        if (poll(fds, poll_outputs(job, fds), 10) > 0) {
            read_outputs(job, fds);
        }
        if (kill_strays(job)) {
            reap(job);
        }
    }
    while (!job->gave_up && kill_strays(job) && dsi_clock_seconds() < end) {
        reap(job);
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
        outcome->exit_code = largest_code(job);
    } else if (outcome->interrupted) {
        find_first(job);
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
            begin_stop(job, DSI_STOP_SIGNAL, SIGKILL, 0);
        }
        loop(job, fds);
        drain(job, fds);
    }
    if (status >= 0 && job->stop == DSI_STOP_FAILED && job->first < job->n && !job->params->ways) {
        dsi_report_end(job);
    }
    if (status >= 0 && job->params->independent) {
        name_failed(job);
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
    static const int taken[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD};
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; ++i) {
        (void)sigaddset(&mask, taken[i]);
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
