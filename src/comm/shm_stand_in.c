/* SPDX-License-Identifier: Apache-2.0 */
/* What reports to ranks that wait that another of them ended and will not come. See shm.h; called
 * by comm_open.c in a process that the launcher starts for it. */
#include "comm/shm_note.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* For rank 0 those that say hello are answered; another's place tells rank 0, which answers. */
static void stand_in(shm_job *job, const shm_note *gone)
{
    const struct timespec pause = {0, 50000000};
    const uint32_t awaited = job->rank > 0 ? NOTE_REFUSED : NOTE_HELLO;
    uint32_t n = 0;
    shm_note what;
    int fd;
    while (job->rank > 0 && shm_note_send(job, 0, gone, -1) != 0) {
        (void)nanosleep(&pause, NULL);
    }
    for (;;) {
        const bool any = shm_note_receive(job, &what, &fd);
        if (any && fd >= 0) {
            (void)close(fd);
        }
        if (any && what.kind == awaited) {
            ++n;
            (void)(job->rank == 0 && shm_note_send(job, what.rank, gone, -1) == 0);
        }
        if (n > 0 && (!any || job->rank > 0 || n >= job->size)) {
            return;
        }
    }
}

ds_status dsi_shm_stand_in(ds_ctx *ctx, const dsi_shm_params *params, const char *text)
{
    shm_job job = {.rank = params->rank, .size = params->size, .socket = -1};
    shm_note_name(params, &job);
    ds_status status = shm_note_open(ctx, &job);
    if (status == DS_OK) {
        shm_note gone = shm_note_make(&job, NOTE_GONE, 0);
        (void)snprintf(gone.text, sizeof gone.text, "%s", text);
        stand_in(&job, &gone);
    }
    if (job.socket >= 0) {
        (void)close(job.socket);
    }
    return status;
}
