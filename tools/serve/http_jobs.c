/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for texts and vectors: jobs in, answers and streams out. See http.h.
 *
 * A connection that waits for the engine is suspended: its socket is nobody's then but the engine
 * thread's, which sees whether the client is still there.
 */
#include "http.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

bool http_may_begin(front *f, api_error *e)
{
    (void)pthread_mutex_lock(&f->lock);
    const bool over = f->door.draining || f->broken;
    const bool hangs = watch_hangs(f);
    const bool full = f->n_jobs >= f->options->max_waiting + f->metrics.stats.max_sequences;
    (void)pthread_mutex_unlock(&f->lock);
    if (over) {
        return api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "the server ends");
    }
    if (hangs) {
        return api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, "engine_hangs", "", "the engine hangs");
    }
    return !full || api_fail(e, MHD_HTTP_TOO_MANY_REQUESTS, "queue_full", "",
                             "too many requests wait (--max_waiting %lld)",
                             (long long)f->options->max_waiting);
}

/* What a stream sends next. Called by the HTTP thread alone. */
static ssize_t read_stream(void *opaque, uint64_t at, char *to, size_t room)
{
    job *j = opaque;
    front *f = j->f;
    ssize_t n = 0;
    (void)at;
    (void)pthread_mutex_lock(&f->lock);
    const size_t left = j->out.size - j->n_sent;
    if (left > 0) {
        n = (ssize_t)(left < room ? left : room);
        memcpy(to, j->out.data + j->n_sent, (size_t)n);
        j->n_sent += (size_t)n;
        if (j->n_sent == j->out.size) { /* a long text does not grow what is kept */
            dsi_buf_clear(&j->out);
            j->n_sent = 0;
        }
    } else if (j->done) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (j->gone) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else {
        j->suspended = true;
        MHD_suspend_connection(j->connection);
    }
    (void)pthread_mutex_unlock(&f->lock);
    return n;
}

void http_drop(void *waits)
{
    job *j = waits;
    front *f = j->f;
    (void)pthread_mutex_lock(&f->lock);
    j->gone = true;
    j->suspended = false;
    job_release(j);
    (void)pthread_cond_signal(&f->wake);
    (void)pthread_mutex_unlock(&f->lock);
}

job *http_make_job(exchange *x, const char *kind)
{
    front *f = front_of(x);
    job *j = calloc(1, sizeof *j);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (j == NULL) {
        return NULL;
    }
    j->f = f;
    j->connection = x->connection;
    j->fd = info != NULL ? (int)info->connect_fd : -1;
    j->holders = 1;
    j->out = dsi_buf_make(512u << 20);
    j->arrived = dsi_clock_seconds();
    (void)pthread_mutex_lock(&f->lock);
    f->n_jobs += 1;
    (void)snprintf(j->id, sizeof j->id, "%s-%llx%06llx", kind, (unsigned long long)f->created,
                   (unsigned long long)++f->last_job);
    (void)pthread_mutex_unlock(&f->lock);
    return j;
}

static enum MHD_Result begin_stream(exchange *x)
{
    const job *j = x->waits;
    struct MHD_Response *response = reply_stream(read_stream, x->waits, "text/event-stream");
    if (response != NULL) {
        (void)MHD_add_response_header(response, "X-Request-Id", j->id);
    }
    return reply_response(x, MHD_HTTP_OK, response);
}

/* Reads the body of a job; that of a response becomes one of a chat first. */
static bool read_job(exchange *x, job *j, json_t *body, bool of_chat, api_error *e)
{
    if (j->embeds) {
        return embed_read(front_of(x), body, j, &x->ignored, e);
    }
    if (front_of(x)->server == NULL) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, "unsupported", "model",
                        "the model is an encoder: it gives no text; ask /v1/embeddings");
    }
    if (j->of_mii) {
        json_t *completion = mii_body(body, j->model_asked, j, &x->ignored, e);
        const bool fine =
            completion != NULL && api_read(front_of(x), completion, false, j, &x->ignored, e);
        json_decref(completion);
        return fine;
    }
    if (!j->of_response) {
        return api_read(front_of(x), body, of_chat, j, &x->ignored, e);
    }
    j->echoed = dsi_buf_make((size_t)front_of(x)->options->max_body * 8);
    json_t *chat = response_body(body, &j->echoed, &x->ignored, e);
    const bool ok = chat != NULL && api_read(front_of(x), chat, true, j, &x->ignored, e);
    json_decref(chat);
    return ok;
}

/* kind: how its id begins; name: of the model, where the path says it. */
static enum MHD_Result begin_job(exchange *x, const char *kind, const char *name)
{
    front *f = front_of(x);
    api_error e = {0};
    if (!http_may_begin(f, &e)) {
        return reply_error(x, &e);
    }
    json_t *body = door_json(x, &e);
    if (body == NULL) {
        return reply_error(x, &e);
    }
    job *j = http_make_job(x, kind);
    if (j != NULL) {
        j->of_response = strcmp(kind, "resp") == 0;
        j->embeds = strcmp(kind, "embd") == 0;
        j->of_mii = strcmp(kind, "mii") == 0;
        j->model_asked = name;
    }
    const bool ok = j != NULL && read_job(x, j, body, strcmp(kind, "chatcmpl") == 0, &e);
    json_decref(body);
    door_drop_body(x);
    if (!ok) {
        if (j != NULL) {
            http_drop(j);
        }
        return reply_error(x, &e);
    }
    x->waits = j;
    (void)pthread_mutex_lock(&f->lock);
    if (f->stop) {
        (void)pthread_mutex_unlock(&f->lock);
        return reply_refusal(x, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "the server ends");
    }
    j->holders = 2;
    j->next = NULL;
    *f->queued_end = j;
    f->queued_end = &j->next;
    f->idle = false;
    if (!j->streams) {
        j->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    (void)pthread_cond_signal(&f->wake);
    (void)pthread_mutex_unlock(&f->lock);
    return j->streams ? begin_stream(x) : MHD_YES;
}

/* A connection that waited for its whole text. */
enum MHD_Result http_resume(exchange *x)
{
    job *j = x->waits;
    front *f = j->f;
    (void)pthread_mutex_lock(&f->lock);
    const bool done = j->done;
    const bool gone = j->gone;
    const unsigned status = j->status;
    dsi_buf text = j->out;
    if (done) {
        j->out = dsi_buf_make(0);
    } else if (!gone) {
        j->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    (void)pthread_mutex_unlock(&f->lock);
    if (!done) {
        return gone ? MHD_NO : MHD_YES;
    }
    struct MHD_Response *response = reply_whole(&text, "application/json");
    if (response != NULL) {
        (void)MHD_add_response_header(response, "X-Request-Id", j->id);
    }
    return reply_response(x, status, response);
}

enum MHD_Result http_chat(exchange *x, const char *behind)
{
    (void)behind;
    return begin_job(x, "chatcmpl", NULL);
}

enum MHD_Result http_completion(exchange *x, const char *behind)
{
    (void)behind;
    return begin_job(x, "cmpl", NULL);
}

enum MHD_Result http_embeddings(exchange *x, const char *behind)
{
    (void)behind;
    return begin_job(x, "embd", NULL);
}

enum MHD_Result http_response(exchange *x, const char *behind)
{
    (void)behind;
    return begin_job(x, "resp", NULL);
}

enum MHD_Result http_mii(exchange *x, const char *behind)
{
    return begin_job(x, "mii", behind);
}
