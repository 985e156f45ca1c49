/* SPDX-License-Identifier: Apache-2.0 */
/* See shm_stray.h. */
#include "comm/shm_stray.h"

#include "base/clock.h"
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define LOOK_SECONDS 0.5 /* ranks of a job start within that, mostly */

shm_stray shm_stray_begin(const dsi_shm_params *params, const shm_job *job)
{
    shm_stray stray = {.at = {.rank = job->rank, .size = job->size, .socket = -1},
                       .card = params->card,
                       .usable = params->place != NULL && params->place[0] != '\0' &&
                                 params->card != NULL,
                       .next = dsi_clock_seconds() + LOOK_SECONDS};
    if (stray.usable) {
        const dsi_shm_params place = {.job = params->place};
        shm_note_name(&place, &stray.at);
    }
    return stray;
}

void shm_stray_end(shm_stray *stray)
{
    if (stray->at.socket >= 0) {
        (void)close(stray->at.socket);
    }
    stray->at.socket = -1;
}

/* Whether it is time, and the socket is there; a note then waits, or comes at the next look. */
static bool is_due(ds_ctx *ctx, shm_stray *stray)
{
    const struct timeval soon = {0, 1000};
    const double now = dsi_clock_seconds();
    if (!stray->usable || now < stray->next) {
        return false;
    }
    stray->next = now + LOOK_SECONDS;
    if (stray->at.socket < 0) {
        stray->usable =
            shm_note_open(ctx, &stray->at) == DS_OK &&
            setsockopt(stray->at.socket, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0;
    }
    return stray->usable;
}

static bool receive(const shm_stray *stray, shm_note *what)
{
    int fd = -1;
    const bool any = shm_note_receive(&stray->at, what, &fd);
    if (fd >= 0) {
        (void)close(fd);
    }
    return any;
}

/* The value of a line NAME=VALUE; *n_out: its length. */
static const char *value_in(const char *card, const char *name, size_t *n_out)
{
    const size_t n = strlen(name);
    *n_out = 0;
    while (*card != '\0') {
        const size_t line = strcspn(card, "\n");
        if (line > n && card[n] == '=' && strncmp(card, name, n) == 0) {
            *n_out = line - n - 1;
            return card + n + 1;
        }
        card += line + (card[line] == '\n');
    }
    return card;
}

/* A secret that a launcher drew is no other job's. */
static bool has_secret_of(const char *own, const char *other)
{
    size_t n = 0;
    size_t m = 0;
    const char *a = value_in(own, DSI_CARD_SECRET, &n);
    const char *b = value_in(other, DSI_CARD_SECRET, &m);
    return n > 0 && n == m && memcmp(a, b, n) == 0;
}

static ds_status on_stray(ds_ctx *ctx, shm_stray *stray, const shm_note *what)
{
    char text[512];
    if (!dsi_job_card_differs(stray->card, what->text, what->rank, text, sizeof text)) {
        return DS_OK; /* another attempt of this rank, or a job of its own */
    }
    if (has_secret_of(stray->card, what->text)) {
        shm_note answer = shm_note_make(&stray->at, NOTE_REFUSED, 0);
        const ds_status status = ds_fail(ctx, DS_ERR_PEER, "%s", text);
        (void)snprintf(answer.text, sizeof answer.text, "%s", text);
        (void)shm_note_send(&stray->at, what->rank, &answer, -1);
        return status;
    }
    if (!stray->told) {
        ds_log(ctx, DS_LOG_WARN,
               "a rank %u waits for the others at the same MASTER_ADDR and MASTER_PORT under "
               "another name; if it is of this job: %s",
               what->rank, text);
    }
    stray->told = true;
    return DS_OK;
}

ds_status shm_stray_look(ds_ctx *ctx, shm_stray *stray, const bool *came)
{
    shm_note what;
    if (!is_due(ctx, stray)) {
        return DS_OK;
    }
    while (receive(stray, &what)) {
        if (what.kind == NOTE_HELLO && what.size == stray->at.size && !came[what.rank]) {
            DS_TRY(on_stray(ctx, stray, &what));
        }
    }
    return DS_OK;
}

ds_status shm_stray_show(ds_ctx *ctx, shm_stray *stray)
{
    shm_note what;
    if (!is_due(ctx, stray)) {
        return DS_OK;
    }
    shm_note hello = shm_note_make(&stray->at, NOTE_HELLO, 0);
    (void)snprintf(hello.text, sizeof hello.text, "%s", stray->card);
    (void)shm_note_send(&stray->at, 0, &hello, -1);
    while (receive(stray, &what)) {
        if (what.kind == NOTE_REFUSED) {
            return ds_fail(ctx, DS_ERR_PEER, "%s", what.text);
        }
    }
    return DS_OK;
}
