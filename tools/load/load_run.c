/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the requests and takes their times: one thread over all connections. See load.h. */
#include "load/load.h"

#include "base/clock.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 1 << 16, TEXT_CEILING = 1 << 28, MOST_SAMPLES = 1 << 28 };

typedef struct client {
    dsi_link link;               /* its fd -1: none */
    bool busy, reused, answered; /* a request runs; on a connection that had one; bytes came */
    load_http http;
    dsi_buf text; /* of the request */
    size_t n_sent;
    size_t result; /* its number */
    double newest; /* when its newest text came; 0: none yet */
    bool done;     /* [DONE] was there, or it was no stream */
} client;

typedef struct loop {
    ds_ctx *ctx;
    const load_options *o;
    const load_target *target;
    load_work *work;
    load_run *run;
    client *clients;
    struct pollfd *polls;
    dsi_buf body;
    char *scratch;
    size_t scratch_size;
    double start;
    int64_t next;       /* request */
    load_request due;   /* that one */
    bool has_due, ends; /* no further requests */
    ds_status status;   /* of this machine */
    client *now;        /* whose bytes are read */
    double came;        /* when they came */
} loop;

static volatile sig_atomic_t interrupted;

static void on_signal(int signal)
{
    (void)signal;
    interrupted = 1;
}

static double now(const loop *l)
{
    return dsi_clock_seconds() - l->start;
}

static bool sample(loop *l, load_samples *s, double value)
{
    if (s->n == s->capacity) {
        const size_t more = s->capacity > 0 ? 2 * s->capacity : 4096;
        float *bigger = more <= MOST_SAMPLES ? realloc(s->items, more * sizeof *bigger) : NULL;
        if (bigger == NULL) {
            l->status = ds_fail(l->ctx, DS_ERR_NOMEM, "no memory for %zu times", more);
            return false;
        }
        s->items = bigger;
        s->capacity = more;
    }
    s->items[s->n++] = (float)value;
    return true;
}

/* ---- a request's end ---- */

static void hang_up(client *c)
{
    dsi_link_close(&c->link);
}

static void end(loop *l, client *c, const char *error)
{
    load_result *r = &l->run->results[c->result];
    r->status = c->http.status;
    if (r->last <= 0) {
        r->last = now(l);
    }
    if (error != NULL && !r->failed) {
        r->failed = true;
        (void)snprintf(r->error, sizeof r->error, "%s", error);
    }
    if (r->failed || c->http.closes) {
        hang_up(c);
    }
    c->busy = false;
}

/* ---- reading ---- */

static bool take_frame(void *user, const char *text, size_t n)
{
    loop *l = user;
    client *c = l->now;
    load_result *r = &l->run->results[c->result];
    load_frame frame;
    if (n == 6 && memcmp(text, "[DONE]", 6) == 0) {
        c->done = true;
        return true;
    }
    if (n + 1 > l->scratch_size) {
        char *bigger = realloc(l->scratch, 2 * n + 1);
        if (bigger == NULL) {
            l->status = ds_fail(l->ctx, DS_ERR_NOMEM, "no memory for an answer");
            return false;
        }
        l->scratch = bigger;
        l->scratch_size = 2 * n + 1;
    }
    if (load_frame_read(l->ctx, text, n, l->scratch, &frame) < 0) {
        r->failed = true;
        (void)snprintf(r->error, sizeof r->error, "%s", ds_ctx_error(l->ctx));
        return false;
    }
    if (frame.has_error) {
        r->failed = true;
        (void)snprintf(r->error, sizeof r->error, "%s", frame.error);
    }
    if (frame.has_usage) {
        r->n_prompt = frame.n_prompt;
        r->n_cached = frame.n_cached;
        r->n_output = frame.n_output;
    }
    if (frame.has_text) {
        const double t = l->came;
        r->first = r->first > 0 ? r->first : t;
        r->last = t;
        if (!sample(l, &l->run->frames, t) ||
            (c->newest > 0 && !sample(l, &l->run->gaps, t - c->newest))) {
            return false;
        }
        c->newest = t;
    }
    return true;
}

/* The answer is whole: what is wrong with it. */
static const char *judge(const client *c, const load_result *r, char *text, size_t n)
{
    if (c->http.status != 200) {
        (void)snprintf(text, n, "status %d", c->http.status);
        return text;
    }
    return c->http.events && !c->done ? "the stream ended without [DONE]"
           : !c->http.events          ? "no stream: Content-Type is not text/event-stream"
           : r->n_output == 0         ? "the stream says no usage"
                                      : NULL;
}

static void finish(loop *l, client *c)
{
    char text[32];
    const load_result *r = &l->run->results[c->result];
    end(l, c, judge(c, r, text, sizeof text));
}

static void reconnect(loop *l, client *c);

static void closed(loop *l, client *c, const char *why)
{
    if (c->reused && !c->answered) {
        reconnect(l, c); /* closed while it was idle: no fault of this request */
        return;
    }
    const bool whole = load_http_end(&c->http, take_frame, l);
    hang_up(c);
    if (whole) {
        finish(l, c);
    } else {
        end(l, c, why);
    }
}

static void receive_some(loop *l, client *c)
{
    static char bytes[READ_BYTES];
    l->now = c;
    const ssize_t n = dsi_link_recv(&c->link, bytes, sizeof bytes);
    l->came = now(l);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        closed(l, c,
               n < 0 ? dsi_link_why(&c->link, errno) : "the server closed before the answer's end");
        return;
    }
    c->answered = true;
    if (!load_http_feed(&c->http, bytes, (size_t)n, take_frame, l)) {
        end(l, c, c->http.error != NULL ? c->http.error : "an answer that cannot be read");
    } else if (c->http.place == LOAD_HTTP_DONE) {
        finish(l, c);
    }
}

static void receive(loop *l, client *c)
{
    do {
        receive_some(l, c);
    } while (c->busy && dsi_link_pending(&c->link));
}

/* ---- sending ---- */

static void push(loop *l, client *c)
{
    while (c->n_sent < c->text.size) {
        const ssize_t n =
            dsi_link_send(&c->link, c->text.data + c->n_sent, c->text.size - c->n_sent);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (n < 0 && c->answered) {
            return; /* an answer before the end of the body: read it */
        }
        if (n < 0) {
            closed(l, c, dsi_link_why(&c->link, errno));
            return;
        }
        c->n_sent += (size_t)n;
    }
}

static void reconnect(loop *l, client *c)
{
    hang_up(c);
    c->reused = false;
    c->n_sent = 0;
    if (!load_connect(l->target, &c->link)) {
        end(l, c, strerror(errno));
        return;
    }
    push(l, c);
}

static bool keep(loop *l, const load_result *r)
{
    load_run *run = l->run;
    if (run->n == run->capacity) {
        const size_t more = run->capacity > 0 ? 2 * run->capacity : 1024;
        load_result *bigger = realloc(run->results, more * sizeof *bigger);
        if (bigger == NULL) {
            l->status = ds_fail(l->ctx, DS_ERR_NOMEM, "no memory for %zu results", more);
            return false;
        }
        run->results = bigger;
        run->capacity = more;
    }
    run->results[run->n++] = *r;
    return true;
}

static void begin(loop *l, client *c)
{
    const double t = now(l);
    const bool scheduled = l->o->rate > 0 || l->o->trace != NULL;
    const load_result r = {.due = scheduled ? l->due.due : t, .sent = t, .asked = l->due.output};
    c->result = l->run->n;
    if (!keep(l, &r)) {
        return;
    }
    dsi_buf_clear(&c->text);
    load_work_put(l->work, l->next - 1, &l->due, &l->body, &c->text);
    l->has_due = false;
    load_http_begin(&c->http);
    c->busy = true;
    c->reused = c->link.fd >= 0;
    c->answered = c->done = false;
    c->newest = 0;
    c->n_sent = 0;
    if (c->text.failed) {
        end(l, c, "a prompt that is too long for this program");
    } else if (c->reused) {
        push(l, c);
    } else {
        reconnect(l, c);
    }
}

/* ---- the loop ---- */

static void look_ahead(loop *l)
{
    if (!l->has_due && !l->ends && l->next < l->work->n) {
        load_work_next(l->work, l->next++, &l->due);
        l->has_due = true;
    }
    const bool over =
        l->o->duration > 0 && fmax(now(l), l->has_due ? l->due.due : 0) >= l->o->duration;
    if (over || interrupted) {
        l->has_due = false;
        l->ends = true;
    }
}

static void begin_due(loop *l)
{
    for (int64_t i = 0; i < l->o->clients && l->status == DS_OK; ++i) {
        look_ahead(l);
        if (!l->has_due || l->due.due > now(l)) {
            return;
        }
        if (!l->clients[i].busy) {
            begin(l, &l->clients[i]);
        }
    }
}

/* Milliseconds until something must be done without an event. */
static int patience(const loop *l, int64_t n_busy)
{
    double seconds = 0.25;
    if (l->has_due && n_busy < l->o->clients) {
        seconds = fmin(seconds, l->due.due - now(l));
    }
    return seconds <= 0 ? 0 : (int)ceil(seconds * 1e3);
}

static int64_t set_polls(loop *l)
{
    int64_t n_busy = 0;
    for (int64_t i = 0; i < l->o->clients; ++i) {
        const client *c = &l->clients[i];
        const bool sends = c->busy && c->n_sent < c->text.size;
        l->polls[i] = (struct pollfd){.fd = c->busy ? c->link.fd : -1,
                                      .events = dsi_link_events(&c->link, true, sends)};
        n_busy += c->busy;
    }
    return n_busy;
}

static void serve_events(loop *l)
{
    const double t = now(l);
    for (int64_t i = 0; i < l->o->clients && l->status == DS_OK; ++i) {
        client *c = &l->clients[i];
        const short events = l->polls[i].fd >= 0 ? l->polls[i].revents : 0;
        const int fd = c->link.fd;
        const bool opens = !c->link.ready; /* the handshake goes on with whatever comes */
        if (c->busy && (opens ? events != 0 : (events & POLLOUT) != 0)) {
            push(l, c);
        }
        if (c->busy && c->link.fd == fd && !opens && (events & (POLLIN | POLLHUP | POLLERR)) != 0) {
            receive(l, c);
        }
        const load_result *r = &l->run->results[c->result];
        if (c->busy && t - r->sent > (double)l->o->timeout_seconds) {
            end(l, c, "no answer within --timeout_seconds");
        }
    }
}

static ds_status run_loop(loop *l)
{
    for (;;) {
        begin_due(l);
        const int64_t n_busy = set_polls(l);
        if (l->status < 0 || (n_busy == 0 && !l->has_due)) {
            return l->status;
        }
        const int n = poll(l->polls, (nfds_t)l->o->clients, patience(l, n_busy));
        if (n < 0 && errno != EINTR) {
            return ds_fail(l->ctx, DS_ERR_IO, "poll: %s", strerror(errno));
        }
        if (n >= 0) {
            serve_events(l);
        }
    }
}

static ds_status prepare(loop *l)
{
    l->clients = calloc((size_t)l->o->clients, sizeof *l->clients);
    l->polls = calloc((size_t)l->o->clients, sizeof *l->polls);
    if (l->clients == NULL || l->polls == NULL) {
        return ds_fail(l->ctx, DS_ERR_NOMEM, "no memory for %lld clients",
                       (long long)l->o->clients);
    }
    for (int64_t i = 0; i < l->o->clients; ++i) {
        l->clients[i].link.fd = -1;
        l->clients[i].text = dsi_buf_make(TEXT_CEILING);
    }
    l->body = dsi_buf_make(TEXT_CEILING);
    return DS_OK;
}

ds_status load_run_all(ds_ctx *ctx, const load_options *o, const load_target *target,
                       load_work *work, load_run *run)
{
    loop l = {.ctx = ctx, .o = o, .target = target, .work = work, .run = run};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction before;
    ds_status status = prepare(&l);
    (void)sigaction(SIGINT, &action, &before);
    l.start = dsi_clock_seconds();
    status = status == DS_OK ? run_loop(&l) : status;
    run->seconds = now(&l);
    run->interrupted = interrupted != 0;
    (void)sigaction(SIGINT, &before, NULL);
    for (int64_t i = 0; l.clients != NULL && i < o->clients; ++i) {
        hang_up(&l.clients[i]);
        load_http_free(&l.clients[i].http);
        dsi_buf_free(&l.clients[i].text);
    }
    dsi_buf_free(&l.body);
    free(l.scratch);
    free(l.clients);
    free(l.polls);
    return status;
}

void load_run_free(load_run *run)
{
    free(run->results);
    free(run->frames.items);
    free(run->gaps.items);
    *run = (load_run){0};
}
