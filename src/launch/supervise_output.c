/* SPDX-License-Identifier: Apache-2.0 */
/* What the tasks of a job print: read without waiting, fed to the terminal and their logs
 * (output.h). See supervise_impl.h. */
#include "launch/supervise_impl.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

bool dsi_running_pump(dsi_running *running, int stream)
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

nfds_t dsi_outputs_poll(const dsi_job *job, struct pollfd *fds)
{
    nfds_t n = 0;
    for (size_t i = 0; i < job->n_started; ++i) {
        fds[n++] = (struct pollfd){.fd = job->tasks[i].process.out, .events = POLLIN};
        fds[n++] = (struct pollfd){.fd = job->tasks[i].process.err, .events = POLLIN};
    }
    return n;
}

void dsi_outputs_read(dsi_job *job, const struct pollfd *fds)
{
    for (size_t i = 0; i < job->n_started; ++i) {
        dsi_running *running = &job->tasks[i];
        bool any = false;
        for (int stream = 0; stream < 2; ++stream) {
            if (fds == NULL || fds[2 * i + (size_t)stream].revents != 0) {
                any = dsi_running_pump(running, stream) || any;
            }
        }
        warn_of_log(job, running);
    }
}

bool dsi_outputs_open(const dsi_job *job)
{
    for (size_t i = 0; i < job->n_started; ++i) {
        if (job->tasks[i].process.out >= 0 || job->tasks[i].process.err >= 0) {
            return true;
        }
    }
    return false;
}
