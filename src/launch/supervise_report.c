/* SPDX-License-Identifier: Apache-2.0 */
/* What the user reads when a job fails: who, where, why, and its last lines. See supervise.h. */
#include "launch/supervise_impl.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

bool dsi_running_failed(const dsi_running *running)
{
    return !running->alive && (running->wait_status != 0 || running->absent);
}

int dsi_running_code(const dsi_running *running)
{
    if (running->absent || running->awaited > 0) {
        return EXIT_FAILURE;
    }
    return WIFSIGNALED(running->wait_status) ? 128 + WTERMSIG(running->wait_status)
                                             : WEXITSTATUS(running->wait_status);
}

/* "was killed by SIGSEGV (signal 11)", "ended with exit code 3". */
static void describe_end(const dsi_running *running, dsi_buf *buf)
{
    char name[32];
    if (running->absent) {
        dsi_buf_puts(buf, "exited with code 0 before it joined the others, which wait for it");
        return;
    }
    if (running->awaited > 0) {
        dsi_buf_printf(buf, "never joined the others, which gave up after %g s", running->awaited);
        return;
    }
    if (WIFSIGNALED(running->wait_status)) {
        const int signal = WTERMSIG(running->wait_status);
        dsi_buf_printf(buf, "was killed by %s (signal %d%s)",
                       dsi_signal_name(signal, name, sizeof name), signal,
                       WCOREDUMP(running->wait_status) ? ", core dumped" : "");
        return;
    }
    const int code = WEXITSTATUS(running->wait_status);
    dsi_buf_printf(buf, "ended with exit code %d", code);
    if (code > 128 && code < 128 + NSIG && sigabbrev_np(code - 128) != NULL) {
        dsi_buf_printf(buf, " (as after %s)", dsi_signal_name(code - 128, name, sizeof name));
    }
}

static void log_lines(ds_ctx *ctx, const char *text)
{
    while (*text != '\0') {
        const size_t n = strcspn(text, "\n");
        ds_log(ctx, DS_LOG_ERROR, "%.*s", (int)n, text);
        text += n + (text[n] == '\n' ? 1 : 0);
    }
}

const char *dsi_way_end(int code, char *text, size_t size)
{
    enum { SSH_FAILED = 255 };
    if (code == SSH_FAILED) {
        (void)snprintf(text, size,
                       "was not reached, or the connection broke (ssh's exit code 255)");
    } else {
        (void)snprintf(text, size, "failed with exit code %d", code);
    }
    return text;
}

/* A rank of another host is named ahead of the one here that waited for it. */
static void write_elsewhere(const dsi_job *job, dsi_buf *buf)
{
    if (job->elsewhere.seconds > 0) {
        dsi_buf_printf(buf, "rank %u, of another host, never joined the others within %g s: ",
                       job->elsewhere.rank, job->elsewhere.seconds);
    }
}

/* The end of a node's report is read by the launcher that started the node's. */
#define END_FORMAT     "---- exit code %d ----\n"
#define AWAITED_FORMAT "---- exit code %d: rank %u of another host never joined ----"

bool dsi_report_awaited(const dsi_output *output, uint32_t *rank_out)
{
    dsi_buf buf = dsi_buf_make(2 * DSI_TAIL_BYTES);
    bool found = false;
    dsi_output_tail(output, "", &buf);
    for (const char *at = dsi_buf_text(&buf); at != NULL && !found; at = strstr(at, "---- exit")) {
        int code = 0;
        int end = 0;
        found = sscanf(at, AWAITED_FORMAT "%n", &code, rank_out, &end) == 2 && end > 0;
        at += *at != '\0' ? 1 : 0;
    }
    dsi_buf_free(&buf);
    return found;
}

void dsi_report_way(const dsi_job *job, const char *node, const char *how, const char *then)
{
    const dsi_hosts *hosts = job->params->hosts;
    const char *host =
        job->awaited && hosts != NULL ? dsi_hosts_of_rank(hosts, job->awaited_rank) : NULL;
    if (host != NULL) {
        ds_log(job->ctx, DS_LOG_ERROR, "rank %u on %s never joined the others: %s %s%s",
               job->awaited_rank, host, node, how, then);
    } else {
        ds_log(job->ctx, DS_LOG_ERROR, "%s %s%s", node, how, then);
    }
}

void dsi_report_first(dsi_job *job)
{
    const dsi_running *running = &job->tasks[job->first];
    dsi_buf buf = dsi_buf_make(4096);
    char text[96];
    if (!job->params->ways) {
        write_elsewhere(job, &buf);
        dsi_buf_printf(&buf, "%s%s on %s ", running->task->label, running->coords,
                       job->params->host);
        describe_end(running, &buf);
    }
    const size_t n_others = job->n_alive - (running->alive ? 1 : 0);
    if (running->alive) {
        dsi_buf_puts(&buf, "; ending it");
    }
    if (n_others > 0) {
        dsi_buf_printf(&buf, running->alive ? " and the other %zu" : "; ending the other %zu",
                       n_others);
    }
    if (job->params->ways) {
        dsi_report_way(job, running->task->label,
                       dsi_way_end(dsi_running_code(running), text, sizeof text),
                       dsi_buf_text(&buf));
    } else {
        ds_log(job->ctx, DS_LOG_ERROR, "%s", dsi_buf_text(&buf));
    }
    dsi_buf_free(&buf);
}

static void write_cause(const dsi_running *running, dsi_buf *buf)
{
    if (running->oom) {
        dsi_buf_printf(buf, "  cause      the kernel ended it for want of memory; %s\n",
                       dsi_buf_text(&running->oom_how));
    } else if (WIFSIGNALED(running->wait_status) && WTERMSIG(running->wait_status) == SIGKILL) {
        dsi_buf_puts(buf,
                     "  cause      SIGKILL from outside this job; no sign that memory ran out\n");
    }
}

static void write_tail(const dsi_running *running, dsi_buf *buf)
{
    if (running->task->log_path != NULL) {
        dsi_buf_printf(buf, "  log        %s%s%s\n", running->task->log_path,
                       running->output.log_error != 0 ? " (not whole: " : "",
                       running->output.log_error != 0 ? strerror(running->output.log_error) : "");
    }
    const size_t before = buf->size;
    dsi_buf_printf(buf, "  last lines of %s:\n", running->task->label);
    const size_t heading = buf->size;
    dsi_output_tail(&running->output, "  | ", buf);
    if (buf->size == heading) {
        buf->size = before;
        dsi_buf_printf(buf, "  %s wrote nothing\n", running->task->label);
    }
}

/* The tasks that failed without having been told to end, besides the first. */
static void write_others(const dsi_job *job, dsi_buf *buf)
{
    size_t n_killed = 0;
    size_t n_told = 0;
    for (size_t i = 0; i < job->n; ++i) {
        const dsi_running *running = &job->tasks[i];
        n_told += i != job->first && running->told ? 1 : 0;
        n_killed += i != job->first && running->killed ? 1 : 0;
        if (i != job->first && dsi_running_failed(running) && !running->told) {
            dsi_buf_printf(buf, "  also       %s%s ", running->task->label, running->coords);
            describe_end(running, buf);
            dsi_buf_puts(buf, "\n");
        }
    }
    if (n_told > 0) {
        dsi_buf_printf(buf, "  others     %zu told to end by SIGTERM", n_told);
        dsi_buf_printf(buf, n_killed > 0 ? "; %zu still ran after %g s: killed\n" : "\n", n_killed,
                       job->params->grace);
    }
}

void dsi_report_end(dsi_job *job)
{
    const dsi_running *running = &job->tasks[job->first];
    dsi_buf buf = dsi_buf_make(1 << 16);
    dsi_buf_printf(&buf, "---- %s failed ----\n", running->task->label);
    dsi_buf_printf(&buf, "  who        %s%s, process %ld on %s\n", running->task->label,
                   running->coords, (long)running->process.pid, job->params->host);
    dsi_buf_puts(&buf, "  what       it ");
    describe_end(running, &buf);
    dsi_buf_printf(&buf, ", %.1f s after its start\n", running->ended - running->started);
    write_cause(running, &buf);
    write_others(job, &buf);
    write_tail(running, &buf);
    if (job->elsewhere.seconds > 0) {
        dsi_buf_printf(&buf, AWAITED_FORMAT "\n", dsi_running_code(running), job->elsewhere.rank);
    } else {
        dsi_buf_printf(&buf, END_FORMAT, dsi_running_code(running));
    }
    log_lines(job->ctx, dsi_buf_text(&buf));
    dsi_buf_free(&buf);
}
