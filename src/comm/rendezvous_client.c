/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous client: requests, and a thread that reads answers and notices and sends
 * heartbeats. See rendezvous.h and rendezvous_client.h. Called by net_world.c and the launcher. */
#include "comm/rendezvous_client.h"

#include "base/clock.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- bytes ---- */

static bool send_all(int fd, const uint8_t *data, size_t n)
{
    while (n > 0) {
        const ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) {
            return false;
        }
        data += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
    }
    return true;
}

bool rdv_send(dsi_rdv *rdv, const rdv_frame *frame)
{
    (void)pthread_mutex_lock(&rdv->write);
    rdv_frame_write(frame, &rdv->out, rdv->frame);
    const bool sent = send_all(rdv->fd, rdv->frame, rdv_frame_bytes(frame));
    (void)pthread_mutex_unlock(&rdv->write);
    return sent;
}

ds_status rdv_read(dsi_rdv *rdv, int milliseconds, rdv_frame *frame_out)
{
    memmove(rdv->read, rdv->read + rdv->handled_bytes, rdv->read_bytes - rdv->handled_bytes);
    rdv->read_bytes -= rdv->handled_bytes;
    rdv->handled_bytes = 0;
    for (;;) {
        size_t used;
        const ds_status status =
            rdv_frame_parse(rdv->read, rdv->read_bytes, DSI_RDV_VALUE_BYTES, frame_out, &used);
        if (status == DS_OK) {
            rdv->handled_bytes = used;
            return rdv_frame_authentic(&rdv->in, rdv->read, used) ? DS_OK : DS_ERR_FORMAT;
        }
        if (status < 0) {
            return status;
        }
        struct pollfd one = {.fd = rdv->fd, .events = POLLIN};
        const int ready = poll(&one, 1, milliseconds);
        if (ready <= 0) {
            return DS_IN_PROGRESS;
        }
        const ssize_t n =
            recv(rdv->fd, rdv->read + rdv->read_bytes, RDV_FRAME_BYTES - rdv->read_bytes, 0);
        if (n <= 0) {
            return n < 0 && errno == EINTR ? DS_IN_PROGRESS : DS_ERR_PEER;
        }
        rdv->read_bytes += (size_t)n;
    }
}

/* ---- the thread ---- */

static void set_failed(dsi_rdv *rdv, uint32_t rank, const char *text, size_t n)
{
    (void)pthread_mutex_lock(&rdv->state);
    if (!atomic_load(&rdv->failed)) {
        (void)snprintf(rdv->reason, sizeof rdv->reason, "%.*s", (int)n, text);
        rdv->failed_rank = rank;
        atomic_store(&rdv->failed, true);
    }
    (void)pthread_cond_broadcast(&rdv->answered);
    (void)pthread_mutex_unlock(&rdv->state);
}

static void on_frame(dsi_rdv *rdv, const rdv_frame *frame)
{
    if (frame->kind == RDV_NOTICE) {
        const size_t most = DSI_RDV_TEXT_BYTES - 1;
        set_failed(rdv, frame->rank, (const char *)frame->value,
                   frame->value_bytes < most ? frame->value_bytes : most);
        return;
    }
    (void)pthread_mutex_lock(&rdv->state);
    if (rdv->waiting && frame->serial == rdv->waiting_serial) {
        free(rdv->answer_value);
        rdv->answer = *frame;
        rdv->answer_value = malloc(frame->value_bytes + 1);
        if (rdv->answer_value != NULL) {
            memcpy(rdv->answer_value, frame->value, frame->value_bytes);
            rdv->answer_value[frame->value_bytes] = '\0';
        }
        rdv->has_answer = true;
        (void)pthread_cond_broadcast(&rdv->answered);
    }
    (void)pthread_mutex_unlock(&rdv->state);
}

static void send_beat(dsi_rdv *rdv)
{
    uint8_t value[8 + WHAT_BYTES];
    (void)pthread_mutex_lock(&rdv->state);
    const size_t n = strlen(rdv->what);
    const uint64_t sequence = rdv->sequence;
    for (size_t i = 0; i < 8; ++i) {
        value[i] = (uint8_t)(rdv->step >> (8 * i));
    }
    memcpy(value + 8, rdv->what, n);
    (void)pthread_mutex_unlock(&rdv->state);
    (void)rdv_send(rdv, &(rdv_frame){.kind = RDV_BEAT,
                                     .rank = rdv->rank,
                                     .number = sequence,
                                     .value = value,
                                     .value_bytes = 8 + n});
}

void *rdv_run(void *opaque)
{
    dsi_rdv *rdv = opaque;
    double next = 0.0;
    for (;;) {
        rdv_frame frame;
        const ds_status status = rdv_read(rdv, BEAT_MILLISECONDS, &frame);
        if (status == DS_OK) {
            on_frame(rdv, &frame);
        }
        (void)pthread_mutex_lock(&rdv->state);
        const bool leaving = rdv->leaving;
        rdv->closed = rdv->closed || status < 0;
        (void)pthread_mutex_unlock(&rdv->state);
        if (leaving) {
            return NULL;
        }
        if (status < 0) {
            char text[DSI_RDV_TEXT_BYTES];
            const int n =
                snprintf(text, sizeof text, "the rendezvous at %s %s", rdv->where,
                         status == DS_ERR_PEER
                             ? "closed the connection: the rank or launcher that held it has ended"
                             : "sent what is not of this job");
            set_failed(rdv, UINT32_MAX, text, (size_t)n);
            return NULL;
        }
        if (dsi_clock_seconds() >= next) {
            send_beat(rdv);
            next = dsi_clock_seconds() + 1e-3 * BEAT_MILLISECONDS;
        }
    }
}

/* ---- requests ---- */

static struct timespec until_time(double seconds)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    const double most = seconds < 1e8 ? seconds : 1e8;
    until.tv_sec += (time_t)most;
    until.tv_nsec += (long)((most - (double)(time_t)most) * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return until;
}

/* Sends and waits for the answer; DS_IN_PROGRESS: time passed. With `heed`, a failure of the job
 * ends the wait. The answer's value is passed to the caller, who frees it (zero byte after it). */
static ds_status exchange(dsi_rdv *rdv, rdv_frame *request, double timeout, bool heed,
                          rdv_frame *answer_out, uint8_t **value_out)
{
    (void)pthread_mutex_lock(&rdv->state);
    request->serial = ++rdv->serial;
    rdv->waiting = true;
    rdv->has_answer = false;
    rdv->waiting_serial = request->serial;
    (void)pthread_mutex_unlock(&rdv->state);
    (void)rdv_send(rdv, request);
    const struct timespec until = until_time(timeout);
    ds_status status = DS_OK;
    (void)pthread_mutex_lock(&rdv->state);
    while (!rdv->has_answer && status == DS_OK) {
        if (rdv->closed || (heed && atomic_load(&rdv->failed))) {
            status = DS_ERR_PEER;
        } else if (pthread_cond_timedwait(&rdv->answered, &rdv->state, &until) == ETIMEDOUT) {
            status = rdv->has_answer ? DS_OK : DS_IN_PROGRESS;
        }
    }
    rdv->waiting = false;
    if (status == DS_OK) {
        *answer_out = rdv->answer;
        *value_out = rdv->answer_value;
        rdv->answer_value = NULL;
    }
    (void)pthread_mutex_unlock(&rdv->state);
    if (status < 0) {
        return ds_fail(rdv->ctx, DS_ERR_PEER, "%s",
                       rdv->reason[0] != '\0' ? rdv->reason : "the rendezvous is gone");
    }
    if (status == DS_OK && *value_out == NULL) {
        return ds_fail(rdv->ctx, DS_ERR_NOMEM, "no memory for an answer of the rendezvous");
    }
    if (status == DS_OK && answer_out->kind == RDV_ERROR) {
        (void)ds_fail(rdv->ctx, DS_ERR_STATE, "rendezvous, \"%.*s\": %s", (int)request->key_bytes,
                      request->key, (const char *)*value_out);
        free(*value_out);
        *value_out = NULL;
        return DS_ERR_STATE;
    }
    return status;
}

static ds_status check_key(dsi_rdv *rdv, const char *key)
{
    size_t n = 0;
    while (key[n] > 0x20 && key[n] < 0x7f) {
        ++n;
    }
    if (n == 0 || key[n] != '\0' || n > DSI_RDV_KEY_BYTES) {
        return ds_fail(rdv->ctx, DS_ERR_ARG,
                       "rendezvous key \"%s\": 1 to %d printable characters without a space", key,
                       (int)DSI_RDV_KEY_BYTES);
    }
    return DS_OK;
}

ds_status rdv_request(dsi_rdv *rdv, rdv_kind kind, const char *key, rdv_frame frame, double timeout,
                      bool heed, rdv_frame *answer_out, uint8_t **value_out)
{
    if (key != NULL) {
        DS_TRY(check_key(rdv, key));
        frame.key = key;
        frame.key_bytes = strlen(key);
    }
    frame.kind = kind;
    (void)pthread_mutex_lock(&rdv->requests);
    const ds_status status = exchange(rdv, &frame, timeout, heed, answer_out, value_out);
    (void)pthread_mutex_unlock(&rdv->requests);
    return status;
}

static ds_status no_answer(dsi_rdv *rdv, double timeout)
{
    return ds_fail(rdv->ctx, DS_ERR_PEER, "the rendezvous at %s does not answer within %g s",
                   rdv->where, timeout);
}

ds_status dsi_rdv_put(dsi_rdv *rdv, const char *key, const void *value, size_t n)
{
    if (n > DSI_RDV_VALUE_BYTES) {
        return ds_fail(rdv->ctx, DS_ERR_LIMIT, "rendezvous value \"%s\" of %zu bytes; at most %d",
                       key, n, (int)DSI_RDV_VALUE_BYTES);
    }
    rdv_frame answer;
    uint8_t *copy = NULL;
    const rdv_frame frame = {.value = value, .value_bytes = n};
    const ds_status status =
        rdv_request(rdv, RDV_PUT, key, frame, 4 * ASK_SECONDS, false, &answer, &copy);
    free(copy);
    return status == DS_IN_PROGRESS ? no_answer(rdv, 4 * ASK_SECONDS) : status;
}

ds_status dsi_rdv_status(dsi_rdv *rdv, uint32_t rank, double timeout, char *text_out)
{
    rdv_frame answer;
    uint8_t *text = NULL;
    const ds_status status =
        rdv_request(rdv, RDV_ASK, NULL, (rdv_frame){.rank = rank}, timeout, false, &answer, &text);
    if (status != DS_OK) {
        return status < 0 ? status : no_answer(rdv, timeout);
    }
    (void)snprintf(text_out, DSI_RDV_TEXT_BYTES, "%s", (const char *)text);
    free(text);
    return DS_OK;
}

/* ---- state ---- */

void dsi_rdv_beat(dsi_rdv *rdv, uint64_t step, uint64_t sequence, const char *what)
{
    const char *from = what != NULL ? what : "";
    const size_t n = strnlen(from, sizeof rdv->what - 1);
    (void)pthread_mutex_lock(&rdv->state);
    rdv->step = step;
    rdv->sequence = sequence;
    memcpy(rdv->what, from, n);
    rdv->what[n] = '\0';
    (void)pthread_mutex_unlock(&rdv->state);
}

static void send_abort(dsi_rdv *rdv, const char *reason, bool whole)
{
    const size_t n = strnlen(reason, DSI_RDV_TEXT_BYTES / 2);
    (void)rdv_send(rdv, &(rdv_frame){.kind = RDV_ABORT,
                                     .rank = rdv->rank,
                                     .number = whole ? 1 : 0,
                                     .value = (const uint8_t *)reason,
                                     .value_bytes = n});
}

void dsi_rdv_abort(dsi_rdv *rdv, const char *reason)
{
    send_abort(rdv, reason, false);
}

void dsi_rdv_abort_for(dsi_rdv *rdv, const char *text)
{
    send_abort(rdv, text, true);
}

bool dsi_rdv_failed(dsi_rdv *rdv, char *text_out, uint32_t *rank_out)
{
    if (!atomic_load_explicit(&rdv->failed, memory_order_acquire)) {
        return false;
    }
    (void)pthread_mutex_lock(&rdv->state);
    memcpy(text_out, rdv->reason, DSI_RDV_TEXT_BYTES);
    if (rank_out != NULL) {
        *rank_out = rdv->failed_rank;
    }
    (void)pthread_mutex_unlock(&rdv->state);
    return true;
}
