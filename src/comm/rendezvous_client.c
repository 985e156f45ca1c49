/* The rendezvous client: one connection, one thread that reads answers and notices and sends
 * heartbeats. See rendezvous.h.
 *
 * Called by net_open.c and the launcher. Locks: `requests` is held for a whole request; `write` for
 * the bytes of one frame; `state` guards what the reader and the callers share. Order: requests,
 * then write or state, never both of these.
 */
#include "base/clock.h"
#include "comm/rendezvous_frame.h"
#include "comm/rendezvous_socket.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { BEAT_MILLISECONDS = 500, WHAT_BYTES = 96, ASK_SECONDS = 5 };

struct dsi_rdv {
    ds_ctx *ctx;
    uint32_t rank, size;
    int fd;
    char where[RDV_ADDRESS_BYTES];
    pthread_t thread;
    pthread_mutex_t requests, write, state;
    pthread_cond_t answered;
    rdv_channel in, out;
    uint8_t *read; /* RDV_FRAME_BYTES; the reader's, and join's before it */
    size_t read_bytes, handled_bytes;
    uint8_t *frame; /* RDV_FRAME_BYTES; under `write` */
    uint8_t serial; /* under `requests` */
    /* under `state` */
    bool waiting, has_answer, leaving, closed;
    uint8_t waiting_serial;
    rdv_frame answer; /* value in answer_value */
    uint8_t *answer_value;
    uint64_t step, sequence;
    char what[WHAT_BYTES];
    char reason[DSI_RDV_TEXT_BYTES];
    uint32_t failed_rank;
    atomic_bool failed;
};

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

static bool send_frame(dsi_rdv *rdv, const rdv_frame *frame)
{
    (void)pthread_mutex_lock(&rdv->write);
    rdv_frame_write(frame, &rdv->out, rdv->frame);
    const bool sent = send_all(rdv->fd, rdv->frame, rdv_frame_bytes(frame));
    (void)pthread_mutex_unlock(&rdv->write);
    return sent;
}

/* Reads until a whole frame is there, at most until `milliseconds` have passed without a byte.
 * DS_IN_PROGRESS: time passed. ERR_PEER: closed. ERR_FORMAT: not ours. The frame lies in rdv->read
 * until the next call. */
static ds_status read_frame(dsi_rdv *rdv, int milliseconds, rdv_frame *frame_out)
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
    (void)send_frame(rdv, &(rdv_frame){.kind = RDV_BEAT,
                                       .rank = rdv->rank,
                                       .number = sequence,
                                       .value = value,
                                       .value_bytes = 8 + n});
}

static void *read_on(void *opaque)
{
    dsi_rdv *rdv = opaque;
    double next = 0.0;
    for (;;) {
        rdv_frame frame;
        const ds_status status = read_frame(rdv, BEAT_MILLISECONDS, &frame);
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
 * ends the wait. The answer's value is handed to the caller, who frees it (zero byte after it). */
static ds_status exchange(dsi_rdv *rdv, rdv_frame *request, double timeout, bool heed,
                          rdv_frame *answer_out, uint8_t **value_out)
{
    (void)pthread_mutex_lock(&rdv->state);
    request->serial = ++rdv->serial;
    rdv->waiting = true;
    rdv->has_answer = false;
    rdv->waiting_serial = request->serial;
    (void)pthread_mutex_unlock(&rdv->state);
    (void)send_frame(rdv, request);
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

static ds_status request(dsi_rdv *rdv, rdv_kind kind, const char *key, rdv_frame frame,
                         double timeout, bool heed, rdv_frame *answer_out, uint8_t **value_out)
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
        request(rdv, RDV_PUT, key, frame, 4 * ASK_SECONDS, false, &answer, &copy);
    free(copy);
    return status == DS_IN_PROGRESS ? no_answer(rdv, 4 * ASK_SECONDS) : status;
}

ds_status dsi_rdv_get(dsi_rdv *rdv, const char *key, double timeout, void **value_out,
                      size_t *n_out)
{
    rdv_frame answer;
    uint8_t *copy = NULL;
    const bool now = timeout <= 0.0;
    const double patience = now ? 4 * ASK_SECONDS : timeout;
    const ds_status status =
        request(rdv, now ? RDV_GET : RDV_WAIT, key, (rdv_frame){0}, patience, !now, &answer, &copy);
    DS_TRY(status);
    if (status == DS_IN_PROGRESS) {
        return now ? no_answer(rdv, patience)
                   : ds_fail(rdv->ctx, DS_ERR_PEER,
                             "nobody has put \"%s\" into the rendezvous within %g s", key, timeout);
    }
    if (answer.kind == RDV_ABSENT) {
        free(copy);
        return DS_ERR_NOT_FOUND;
    }
    *value_out = copy;
    *n_out = answer.value_bytes;
    return DS_OK;
}

/* Who has not come to a meeting, as an error. */
static ds_status fail_missing(dsi_rdv *rdv, const char *name, double timeout)
{
    rdv_frame answer;
    uint8_t *text = NULL;
    const ds_status status =
        request(rdv, RDV_MISSING, name, (rdv_frame){0}, ASK_SECONDS, false, &answer, &text);
    if (status != DS_OK) {
        return status < 0 ? status : no_answer(rdv, ASK_SECONDS);
    }
    (void)ds_fail(rdv->ctx, DS_ERR_PEER, "\"%s\": rank %u waited %g s; missing: %s", name,
                  rdv->rank, timeout, (const char *)text);
    free(text);
    return DS_ERR_PEER;
}

ds_status dsi_rdv_barrier(dsi_rdv *rdv, const char *name, double timeout)
{
    rdv_frame answer;
    uint8_t *copy = NULL;
    const ds_status status =
        request(rdv, RDV_BARRIER, name, (rdv_frame){0}, timeout, true, &answer, &copy);
    free(copy);
    return status == DS_IN_PROGRESS ? fail_missing(rdv, name, timeout) : status;
}

ds_status dsi_rdv_status(dsi_rdv *rdv, uint32_t rank, double timeout, char *text_out)
{
    rdv_frame answer;
    uint8_t *text = NULL;
    const ds_status status =
        request(rdv, RDV_ASK, NULL, (rdv_frame){.rank = rank}, timeout, false, &answer, &text);
    if (status != DS_OK) {
        return status < 0 ? status : no_answer(rdv, timeout);
    }
    (void)snprintf(text_out, DSI_RDV_TEXT_BYTES, "%s", (const char *)text);
    free(text);
    return DS_OK;
}

/* ---- digests ---- */

enum { MAX_CHUNKS = 64 };

static ds_status put_text(dsi_rdv *rdv, const char *name, const char *text)
{
    char key[DSI_RDV_KEY_BYTES + 64];
    size_t left = strlen(text);
    for (uint32_t i = 0; i < MAX_CHUNKS; ++i) {
        const size_t n = left < DSI_RDV_VALUE_BYTES ? left : DSI_RDV_VALUE_BYTES;
        (void)snprintf(key, sizeof key, "%s/text/%u/%u", name, rdv->rank, i);
        DS_TRY(dsi_rdv_put(rdv, key, text, n));
        text += n;
        left -= n;
        if (n < DSI_RDV_VALUE_BYTES) {
            break;
        }
    }
    return DS_OK;
}

typedef struct line_at {
    const char *begin;
    int n;
} line_at;

static line_at cut_line(const char *text, size_t n)
{
    const char *end = memchr(text, '\n', n);
    const size_t length = end != NULL ? (size_t)(end - text) : n;
    return (line_at){text, (int)(length < 160 ? length : 160)};
}

/* "line 12: "a" and "b"" of the first place where two texts differ. */
static void describe_difference(dsi_rdv *rdv, const char *name, uint32_t usual, const char *mine,
                                double timeout, char *text_out, size_t text_bytes)
{
    char key[DSI_RDV_KEY_BYTES + 64];
    uint32_t line = 1;
    (void)snprintf(text_out, text_bytes,
                   "their texts are equal: the difference is in what the text does not show");
    for (uint32_t i = 0; i < MAX_CHUNKS; ++i) {
        void *chunk;
        size_t n;
        (void)snprintf(key, sizeof key, "%s/text/%u/%u", name, usual, i);
        if (dsi_rdv_get(rdv, key, timeout, &chunk, &n) < 0) {
            (void)snprintf(text_out, text_bytes, "rank %u's text did not come", usual);
            return;
        }
        const char *theirs = chunk;
        size_t at = 0;
        size_t begin = 0;
        while (at < n && mine[at] != '\0' && mine[at] == theirs[at]) {
            if (theirs[at++] == '\n') {
                ++line;
                begin = at;
            }
        }
        if (at < n || (n < DSI_RDV_VALUE_BYTES && mine[at] != '\0')) {
            const line_at a = cut_line(mine + begin, strlen(mine + begin));
            const line_at b = cut_line(theirs + begin, n - begin);
            (void)snprintf(text_out, text_bytes,
                           "line %u: rank %u has \"%.*s\", rank %u has \"%.*s\"", line, rdv->rank,
                           a.n, a.begin, usual, b.n, b.begin);
            free(chunk);
            return;
        }
        free(chunk);
        mine += n;
        if (n < DSI_RDV_VALUE_BYTES) {
            return;
        }
    }
}

/* The two ranks that differ find the line, all learn it. */
static ds_status fail_digest(dsi_rdv *rdv, const char *name, uint32_t usual, uint32_t differs,
                             const char *text, double timeout)
{
    char key[DSI_RDV_KEY_BYTES + 64];
    char found[DSI_RDV_TEXT_BYTES];
    void *line;
    size_t n;
    (void)snprintf(key, sizeof key, "%s/difference", name);
    if (rdv->rank == usual) {
        DS_TRY(put_text(rdv, name, text));
    } else if (rdv->rank == differs) {
        describe_difference(rdv, name, usual, text, timeout, found, sizeof found);
        DS_TRY(dsi_rdv_put(rdv, key, found, strlen(found)));
    }
    DS_TRY(dsi_rdv_get(rdv, key, timeout, &line, &n));
    (void)ds_fail(rdv->ctx, DS_ERR_PEER,
                  "\"%s\" differs: rank %u is the first that does not agree with rank %u; %.*s",
                  name, differs, usual, (int)n, (const char *)line);
    free(line);
    return DS_ERR_PEER;
}

ds_status dsi_rdv_digest(dsi_rdv *rdv, const char *name, uint64_t digest, const char *text,
                         double timeout)
{
    rdv_frame answer;
    uint8_t *copy = NULL;
    if (strlen(name) > DSI_RDV_KEY_BYTES - 40) {
        return ds_fail(rdv->ctx, DS_ERR_ARG, "the name of a digest has at most %d characters",
                       (int)DSI_RDV_KEY_BYTES - 40);
    }
    const ds_status status = request(rdv, RDV_DIGEST, name, (rdv_frame){.number = digest}, timeout,
                                     true, &answer, &copy);
    free(copy);
    DS_TRY(status);
    if (status == DS_IN_PROGRESS) {
        return fail_missing(rdv, name, timeout);
    }
    if (answer.number == 0) {
        return DS_OK;
    }
    return fail_digest(rdv, name, answer.rank, (uint32_t)(answer.number - 1), text, timeout);
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

void dsi_rdv_abort(dsi_rdv *rdv, const char *reason)
{
    const size_t n = strnlen(reason, DSI_RDV_TEXT_BYTES / 2);
    (void)send_frame(rdv, &(rdv_frame){.kind = RDV_ABORT,
                                       .rank = rdv->rank,
                                       .value = (const uint8_t *)reason,
                                       .value_bytes = n});
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

/* ---- join and leave ---- */

static void free_rdv(dsi_rdv *rdv)
{
    if (rdv->fd >= 0) {
        (void)close(rdv->fd);
    }
    (void)pthread_mutex_destroy(&rdv->requests);
    (void)pthread_mutex_destroy(&rdv->write);
    (void)pthread_mutex_destroy(&rdv->state);
    (void)pthread_cond_destroy(&rdv->answered);
    free(rdv->read);
    free(rdv->frame);
    free(rdv->answer_value);
    free(rdv);
}

/* Proves both sides to one another. DS_IN_PROGRESS: no answer, closed at once; try again. */
static ds_status greet(dsi_rdv *rdv, const dsi_rdv_options *options, int milliseconds)
{
    uint8_t value[RDV_NONCE_BYTES + RDV_PROOF_BYTES];
    uint8_t server_nonce[RDV_NONCE_BYTES];
    uint8_t proof[RDV_PROOF_BYTES];
    rdv_frame frame;
    ds_status status = read_frame(rdv, milliseconds, &frame);
    if (status == DS_IN_PROGRESS || status == DS_ERR_PEER) {
        return DS_IN_PROGRESS;
    }
    if (status < 0 || frame.kind != RDV_HELLO || frame.value_bytes != RDV_NONCE_BYTES) {
        return ds_fail(rdv->ctx, DS_ERR_CONFIG,
                       "what listens at %s is not the rendezvous of a job; MASTER_PORT is taken",
                       rdv->where);
    }
    memcpy(server_nonce, frame.value, sizeof server_nonce);
    if (getrandom(value, RDV_NONCE_BYTES, 0) != RDV_NONCE_BYTES) {
        return ds_fail(rdv->ctx, DS_ERR_IO, "no random numbers: %s", strerror(errno));
    }
    rdv_proof(options->secret, 'C', server_nonce, value, rdv->rank, rdv->size,
              value + RDV_NONCE_BYTES);
    (void)send_frame(rdv, &(rdv_frame){.kind = RDV_JOIN,
                                       .rank = rdv->rank,
                                       .number = rdv->size,
                                       .value = value,
                                       .value_bytes = sizeof value});
    status = read_frame(rdv, milliseconds, &frame);
    if (status == DS_IN_PROGRESS || status == DS_ERR_PEER) {
        return DS_IN_PROGRESS;
    }
    if (status == DS_OK && frame.kind == RDV_REFUSE) {
        return ds_fail(rdv->ctx, DS_ERR_CONFIG, "the rendezvous at %s refuses rank %u: %.*s",
                       rdv->where, rdv->rank, (int)frame.value_bytes, (const char *)frame.value);
    }
    rdv_proof(options->secret, 'S', server_nonce, value, rdv->rank, rdv->size, proof);
    if (status < 0 || frame.kind != RDV_WELCOME || frame.value_bytes != sizeof proof ||
        !rdv_same(proof, frame.value, sizeof proof)) {
        return ds_fail(rdv->ctx, DS_ERR_CONFIG,
                       "what listens at %s does not know the secret of this job (DS_JOB_SECRET)",
                       rdv->where);
    }
    rdv_proof(options->secret, 'K', server_nonce, value, rdv->rank, rdv->size, rdv->in.key);
    memcpy(rdv->out.key, rdv->in.key, sizeof rdv->out.key);
    rdv->in.proved = rdv->out.proved = true;
    return DS_OK;
}

static ds_status connect_and_greet(dsi_rdv *rdv, const dsi_rdv_options *options)
{
    char why[DSI_RDV_TEXT_BYTES] = "";
    const double begin = dsi_clock_seconds();
    long pause = 10000000; /* 10 ms, growing to 0.5 s */
    for (;;) {
        const double left = options->timeout - (dsi_clock_seconds() - begin);
        const double patience = left < 5.0 ? (left > 0.1 ? left : 0.1) : 5.0;
        ds_status status = rdv_connect(rdv->ctx, options, patience, &rdv->fd, why, sizeof why);
        if (status == DS_OK) {
            status = greet(rdv, options, (int)(patience * 1000.0));
            if (status == DS_IN_PROGRESS) {
                (void)close(rdv->fd);
                rdv->fd = -1;
                rdv->read_bytes = rdv->handled_bytes = 0;
                (void)snprintf(why, sizeof why, "it closes the connection or does not answer");
            }
        }
        if (status != DS_IN_PROGRESS) {
            return status;
        }
        if (dsi_clock_seconds() - begin > options->timeout) {
            return ds_fail(rdv->ctx, DS_ERR_PEER,
                           "rank %u cannot reach the rendezvous at %s within %g s (%s): is rank 0 "
                           "running, are MASTER_ADDR and MASTER_PORT right, is the port open?",
                           rdv->rank, rdv->where, options->timeout, why);
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
        pause = pause < 250000000 ? 2 * pause : 500000000;
    }
}

ds_status dsi_rdv_join(ds_ctx *ctx, const dsi_rdv_options *options, dsi_rdv **rdv_out)
{
    dsi_rdv *rdv = calloc(1, sizeof *rdv);
    if (rdv == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the rendezvous");
    }
    *rdv = (dsi_rdv){.ctx = ctx,
                     .rank = options->rank,
                     .size = options->size,
                     .fd = -1,
                     .in = {.direction = 'S'},
                     .out = {.direction = 'C'},
                     .read = malloc(RDV_FRAME_BYTES),
                     .frame = malloc(RDV_FRAME_BYTES)};
    (void)pthread_mutex_init(&rdv->requests, NULL);
    (void)pthread_mutex_init(&rdv->write, NULL);
    (void)pthread_mutex_init(&rdv->state, NULL);
    (void)pthread_cond_init(&rdv->answered, NULL);
    (void)snprintf(rdv->where, sizeof rdv->where, "%.50s port %u",
                   options->host != NULL ? options->host : "", options->port);
    ds_status status = DS_OK;
    if (rdv->read == NULL || rdv->frame == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory for the rendezvous");
    }
    if (status == DS_OK) {
        status = connect_and_greet(rdv, options);
    }
    if (status == DS_OK && pthread_create(&rdv->thread, NULL, read_on, rdv) != 0) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no thread for the rendezvous");
    }
    if (status != DS_OK) {
        free_rdv(rdv);
        return status;
    }
    *rdv_out = rdv;
    return DS_OK;
}

void dsi_rdv_leave(dsi_rdv **rdv_inout)
{
    dsi_rdv *rdv = rdv_inout != NULL ? *rdv_inout : NULL;
    if (rdv == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&rdv->state);
    rdv->leaving = true;
    (void)pthread_mutex_unlock(&rdv->state);
    (void)send_frame(rdv, &(rdv_frame){.kind = RDV_BYE, .rank = rdv->rank});
    (void)shutdown(rdv->fd, SHUT_WR);
    (void)pthread_join(rdv->thread, NULL);
    free_rdv(rdv);
    *rdv_inout = NULL;
}
