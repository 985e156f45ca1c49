/* SPDX-License-Identifier: Apache-2.0 */
/* The engine thread: takes queued jobs, runs steps, gives ids to jobs, sees who is gone. */
#include "front.h"

#include "base/clock.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_POLLED = 4096 };

typedef struct engine {
    front *f;
    ds_serve_event *events;
    struct pollfd *polled;
    job **of_poll;
} engine;

static void submit(engine *e, job *j)
{
    front *f = e->f;
    j->server = f->server;
    for (size_t i = 0; i < j->n_choices && !j->done; ++i) {
        choice *c = &j->choices[i];
        if (f->server == NULL) {
            continue; /* of an encoder: see encode_one */
        }
        if (j->embeds) {
            const uint64_t own = j->request.adapter;
            if (ds_serve_embed(f->server, c->ids, c->n_ids, f->sentence.pool,
                               own != 0 ? lora_slot_now(f, own) : 0, &c->uid) < 0) {
                job_fail(j, MHD_HTTP_BAD_REQUEST, "invalid_request_error", ds_ctx_error(f->ctx));
            }
            continue;
        }
        if (j->request.beams != NULL && i % j->n_of_each != 0) {
            continue; /* of the search of the first of the prompt */
        }
        ds_serve_request r = j->request;
        r.ids = c->ids;
        r.n = c->n_ids;
        const int64_t positions = front_positions(f, r.n);
        if (j->most_together > 0 && r.max_new_tokens > j->most_together - positions) {
            r.max_new_tokens = j->most_together - positions;
        }
        r.adapter = r.adapter != 0 ? lora_slot_now(f, r.adapter) : 0;
        /* the first of several is the one that the seed gives alone */
        r.sampling.seed += (uint64_t)(i % j->n_of_each) * 0x9e3779b97f4a7c15u;
        if (ds_serve_submit(f->server, &r, &c->uid) < 0) {
            job_fail(j, MHD_HTTP_BAD_REQUEST, "invalid_request_error", ds_ctx_error(f->ctx));
        }
    }
}

static void wake_client(job *j)
{
    if (j->suspended && (j->done || (j->streams && j->out.size > j->n_sent))) {
        j->suspended = false;
        MHD_resume_connection(j->connection);
    }
}

static void cancel_all(engine *e, job *j)
{
    for (size_t i = 0; i < j->n_choices; ++i) {
        choice *c = &j->choices[i];
        if (c->uid != 0 && c->finish == NULL) {
            (void)ds_serve_cancel(j->server, c->uid);
            e->f->metrics.n_finished_cancelled += 1;
        }
        c->uid = 0;
    }
}

/* Takes what was queued; lets go of what ended. With the lock. */
static void tidy(engine *e)
{
    front *f = e->f;
    while (f->queued != NULL) {
        job *j = f->queued;
        f->queued = j->next;
        f->queued_end = f->queued != NULL ? f->queued_end : &f->queued;
        j->arrived = j->arrived > 0.0 ? j->arrived : dsi_clock_seconds();
        j->next = e->f->running;
        e->f->running = j;
        if (!j->gone) {
            submit(e, j);
        }
    }
    for (job **at = &e->f->running; *at != NULL;) {
        job *j = *at;
        if (!j->gone && !j->done) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        cancel_all(e, j);
        wake_client(j);
        job_release(j);
    }
}

/* Clients that wait and have closed their connection. With the lock: a connection that is suspended
 * is nobody else's. */
static void find_gone(engine *e)
{
    nfds_t n = 0;
    for (job *j = e->f->running; j != NULL && n < MOST_POLLED; j = j->next) {
        if (j->suspended && j->fd >= 0) {
            e->polled[n] = (struct pollfd){.fd = j->fd, .events = POLLRDHUP};
            e->of_poll[n++] = j;
        }
    }
    if (n == 0 || poll(e->polled, n, 0) <= 0) {
        return;
    }
    for (nfds_t i = 0; i < n; ++i) {
        if ((e->polled[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
            job *j = e->of_poll[i];
            j->gone = true;
            j->suspended = false;
            MHD_resume_connection(j->connection);
        }
    }
}

static choice *find_choice(engine *e, const ds_server *server, uint64_t uid, job **job_out)
{
    for (job *j = e->f->running; j != NULL; j = j->next) {
        for (size_t i = 0; i < j->n_choices && j->server == server; ++i) {
            if (j->choices[i].uid == uid) {
                *job_out = j;
                return &j->choices[i];
            }
        }
    }
    return NULL;
}

static void count_finish(front *f, const choice *c)
{
    if (c->finish != NULL && strcmp(c->finish, "length") == 0) {
        f->metrics.n_finished_length += 1;
    } else if (c->finish != NULL) {
        f->metrics.n_finished_stop += 1;
    }
}

static bool all_ended(const job *j)
{
    for (size_t i = 0; i < j->n_choices; ++i) {
        if (j->choices[i].finish == NULL) {
            return false;
        }
    }
    return true;
}

/* The best texts of a search, id by id, to the choices of its prompt. */
static void give_beams(job *j, choice *first, const ds_serve_event *event)
{
    for (size_t i = 0; i < j->n_of_each && !j->done; ++i) {
        const ds_beam *beam = &event->beams[i];
        choice *c = first + i;
        for (int64_t k = 0; k < beam->n && c->finish == NULL && !j->done; ++k) {
            bool stop = false;
            const ds_serve_event one = {.id = beam->ids[k],
                                        .n_cached = event->n_cached,
                                        .finish = k + 1 < beam->n ? DS_SERVE_GOES_ON
                                                  : beam->stopped ? DS_SERVE_STOP
                                                                  : DS_SERVE_LENGTH};
            job_take(j, c, &one, &stop);
        }
    }
}

static void give(engine *e, const ds_server *server, const ds_serve_event *event)
{
    job *j = NULL;
    choice *c = find_choice(e, server, event->uid, &j);
    bool stop = false;
    if (c == NULL || j->done) {
        return;
    }
    if (event->finish == DS_SERVE_ERROR) {
        e->f->metrics.n_finished_error += 1;
        c->uid = 0;
        job_fail(j, MHD_HTTP_INTERNAL_SERVER_ERROR, "server_error",
                 "the model's logits are not finite: its weights are spoiled, or too large for "
                 "the dtype");
        return;
    }
    if (j->embeds) {
        embed_take(j, c, event->vector);
    } else if (event->finish == DS_SERVE_BEAMS) {
        give_beams(j, c, event);
    } else {
        job_take(j, c, event, &stop);
    }
    if (stop) {
        (void)ds_serve_cancel(j->server, c->uid);
    }
    if (c->finish != NULL) {
        count_finish(e->f, c);
        c->uid = 0;
    }
    if (all_ended(j)) {
        job_end(j);
    }
    if (j->out.failed || c->text.failed || c->vector.failed || c->pending.failed ||
        c->logprobs.failed || c->prompt.failed) {
        j->done = false;
        job_fail(j, MHD_HTTP_INTERNAL_SERVER_ERROR, "server_error", "no memory for the answer");
    }
}

static void give_all(engine *e, const ds_server *server, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        give(e, server, &e->events[i]);
    }
    for (job *j = e->f->running; j != NULL; j = j->next) {
        wake_client(j);
    }
}

/* A step failed: nobody whose texts run there is served any more. */
static void break_all(engine *e, const ds_server *server, const ds_ctx *ctx)
{
    for (job *j = e->f->running; j != NULL; j = j->next) {
        if (j->server == server) {
            job_fail(j, MHD_HTTP_INTERNAL_SERVER_ERROR, "server_error", ds_ctx_error(ctx));
        }
    }
    e->f->broken = e->f->broken || server == e->f->server || e->f->comm != NULL;
    if (e->f->comm != NULL) { /* without its ranks it cannot serve again: the process ends */
        (void)kill(getpid(), SIGTERM);
    }
}

/* A document of an encoder, of the oldest job. Without the lock but to look and to give. */
static void encode_one(engine *e)
{
    front *f = e->f;
    job *j = f->running;
    while (j->next != NULL) {
        j = j->next;
    }
    size_t at = 0;
    while (at + 1 < j->n_choices && j->choices[at].finish != NULL) {
        ++at;
    }
    choice *c = &j->choices[at];
    const int64_t hidden = ds_encoder_width(f->encoder);
    float *pooled = malloc((size_t)hidden * sizeof *pooled);
    float *vector = NULL;
    ds_tensor rows;
    (void)pthread_mutex_unlock(&f->lock);
    ds_status status =
        pooled == NULL ? DS_ERR_NOMEM : ds_encoder_run(f->encoder, c->ids, c->n_ids, &rows);
    status = status < 0 ? status : ds_encoder_pool(f->encoder, f->sentence.pool, pooled);
    if (status >= 0) {
        vector = sentence_vector(&f->sentence, pooled, hidden);
        status = vector != NULL ? DS_OK : ds_fail(f->ctx, DS_ERR_NOMEM, "no memory for a vector");
    }
    free(pooled);
    (void)pthread_mutex_lock(&f->lock);
    bool finite = status >= 0;
    for (int64_t i = 0; finite && i < f->width; ++i) {
        finite = isfinite(vector[i]);
    }
    if (!finite) {
        job_fail(j, MHD_HTTP_INTERNAL_SERVER_ERROR, "server_error",
                 status < 0 ? ds_ctx_error(f->ctx) : "the model's numbers are not finite");
    } else {
        embed_take(j, c, vector);
        f->metrics.n_finished_stop += 1;
        f->metrics.stats.n_prompt_tokens += (int64_t)c->n_ids;
        f->metrics.stats.n_steps += 1;
    }
    if (all_ended(j)) {
        job_end(j);
    }
    free(vector);
    wake_client(j);
    find_gone(e);
}

/* A step of a server. With the lock, but for the step itself. */
static void step(engine *e, served *s)
{
    front *f = e->f;
    ds_server *server = s->server;
    size_t n = 0;
    f->beat += 1;
    (void)pthread_mutex_unlock(&f->lock);
    const double before = dsi_clock_seconds();
    ds_status status = ranks_turn_to(f, s);
    status = status < 0 ? status : ds_serve_step(server, e->events, &n);
    const double after = dsi_clock_seconds();
    (void)pthread_mutex_lock(&f->lock);
    f->metrics.step_seconds += after - before;
    if (status < 0) {
        break_all(e, server, s->ctx);
    } else {
        give_all(e, server, n);
    }
}

/* One turn: of the server in force, and of those before it while they have requests. */
static void turn(engine *e)
{
    front *f = e->f;
    step(e, f->in_force);
    for (served *s = f->ending; s != NULL; s = s->next) {
        step(e, s);
    }
    find_gone(e);
}

/* What the HTTP thread waits for. With the lock, but while it is done. */
static void obey(front *f)
{
    front_command *c = f->command;
    if (c == NULL || c->done) {
        return;
    }
    c->taken = true;
    (void)pthread_mutex_unlock(&f->lock);
    uint64_t now = c->folder == NULL ? lora_slot_now(f, c->id) : 0;
    ds_status status = ranks_turn_to(f, f->in_force);
    if (status >= 0) {
        status = c->folder != NULL ? ds_serve_adapter_load(f->server, c->folder, &now)
                                   : ds_serve_adapter_unload(f->server, now);
    }
    (void)pthread_mutex_lock(&f->lock);
    c->status = status;
    if (status >= 0 && c->folder != NULL) {
        c->id = lora_slot_add(f, c->folder, now);
    } else if (status >= 0) {
        lora_slot_remove(f, c->id);
    }
    if (status < 0) {
        (void)snprintf(c->error, sizeof c->error, "%s", ds_ctx_error(f->ctx));
    }
    c->done = true;
    (void)pthread_cond_signal(&f->answered);
}

/* With the lock. The other ranks see meanwhile that this one is there, and it that they are. */
static void wait_for_work(engine *e)
{
    front *f = e->f;
    struct timespec until;
    f->idle = f->command == NULL;
    if (f->comm == NULL || f->broken) {
        (void)pthread_cond_wait(&f->wake, &f->lock);
        return;
    }
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    if (pthread_cond_timedwait(&f->wake, &f->lock, &until) == ETIMEDOUT) {
        f->idle = false;
        turn(e);
    }
}

static void loop(engine *e)
{
    front *f = e->f;
    for (;;) {
        (void)pthread_mutex_lock(&f->lock);
        f->beat += 1;
        f->idle = false;
        tidy(e);
        obey(f);
        reload_take(f);
        if (f->server != NULL) {
            ds_serve_get_stats(f->server, &f->metrics.stats);
        }
        if (f->stop) {
            break;
        }
        if (e->f->running == NULL && f->queued == NULL) {
            wait_for_work(e);
        } else if (f->server == NULL) {
            encode_one(e);
        } else {
            turn(e);
        }
        (void)pthread_mutex_unlock(&f->lock);
    }
    tidy(e); /* what was queued meanwhile, too: no connection may stay suspended */
    for (job *j = e->f->running; j != NULL; j = j->next) {
        job_fail(j, MHD_HTTP_SERVICE_UNAVAILABLE, "server_error", "the server ends");
    }
    tidy(e);
    (void)pthread_mutex_unlock(&f->lock);
}

void *engine_run(void *opaque)
{
    front *f = opaque;
    engine e = {.f = f};
    const ds_serve_stats *s = &f->metrics.stats;
    e.events = calloc((size_t)(s->max_sequences * (1 + s->max_draft)), sizeof *e.events);
    e.polled = calloc(MOST_POLLED, sizeof *e.polled);
    e.of_poll = calloc(MOST_POLLED, sizeof *e.of_poll);
    if (e.events != NULL && e.polled != NULL && e.of_poll != NULL) {
        loop(&e);
    }
    free(e.events);
    free(e.polled);
    free(e.of_poll);
    return NULL;
}
