/* SPDX-License-Identifier: Apache-2.0 */
/* The relay thread: sends requests to replicas, passes their answers on, moves what a replica lost.
 * See balance.h. */
#include "balance.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { TICK_MS = 50, OUT_CEILING = 512 << 20, MOST_LOST = 2 };

void relay_wake(balance *b)
{
    const uint64_t one = 1;
    const ssize_t n = write(b->wake, &one, sizeof one);
    (void)n; /* it is awake already */
}

void ask_release(ask *a)
{
    if (--a->holders > 0) {
        return;
    }
    a->b->n_asks -= 1;
    visit_free(a->visit);
    dsi_buf_free(&a->sent);
    dsi_buf_free(&a->out);
    call_free(&a->call);
    free(a);
}

void ask_wake(ask *a)
{
    if (a->suspended && (a->done || (a->begun && a->streams))) {
        a->suspended = false;
        MHD_resume_connection(a->connection);
    }
}

void ask_leave(ask *a)
{
    if (a->at != NULL) {
        a->at->n_running -= 1;
        a->at = NULL;
    }
    call_stop(&a->call);
    a->call.place = CALL_NONE;
}

void ask_fail(ask *a, unsigned status, const char *code, const char *message)
{
    api_error e;
    ask_leave(a);
    (void)api_fail(&e, status, code, "", "%s", message);
    e.type = status < 500 ? e.type : "server_error";
    a->done = true;
    if (a->streams && a->out.size > a->n_whole) { /* the begin of a frame */
        a->out.size = a->n_whole;
        a->out.data[a->n_whole] = '\0';
    }
    if (!a->begun || !a->streams) {
        a->begun = true;
        a->streams = false;
        a->status = status;
        (void)snprintf(a->type, sizeof a->type, "application/json");
        a->ignored[0] = '\0';
        dsi_buf_clear(&a->out);
        api_error_print(&e, &a->out);
    } else if (a->of_response) {
        dsi_buf_printf(&a->out,
                       "event: error\ndata: {\"type\":\"error\",\"code\":\"%s\",\"param\":null,"
                       "\"message\":",
                       e.type);
        put_clean(&a->out, e.message, strlen(e.message));
        dsi_buf_puts(&a->out, "}\n\n");
    } else {
        dsi_buf_puts(&a->out, "data: ");
        api_error_print(&e, &a->out);
        dsi_buf_putc(&a->out, '\n');
    }
    a->n_whole = a->out.size;
    ask_wake(a);
}

/* ---- from a replica ---- */
static void take_head(void *user, const char *line)
{
    ask *a = user;
    static const struct {
        const char *name;
        size_t at, size;
    } kept[] = {{"Content-Type:", offsetof(ask, type), sizeof a->type},
                {"X-Ignored-Fields:", offsetof(ask, ignored), sizeof a->ignored},
                {"X-Request-Id:", offsetof(ask, request_id), sizeof a->request_id}};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; ++i) {
        const size_t n = strlen(kept[i].name);
        if (strncasecmp(line, kept[i].name, n) == 0) {
            (void)snprintf((char *)a + kept[i].at, kept[i].size, "%s",
                           line + n + strspn(line + n, " \t"));
        }
    }
}

/* Where the last empty line ends, behind `from`; `from`: there is none. None ends within the first
 * `seen` bytes but behind `from`. */
static size_t end_of_frames(const dsi_buf *out, size_t from, size_t seen)
{
    for (size_t i = out->size; i > from && i > seen; --i) {
        const char *end = out->data + i;
        if (end[-1] == '\n' &&
            ((i > 1 && end[-2] == '\n') || (i > 2 && end[-2] == '\r' && end[-3] == '\n'))) {
            return i;
        }
    }
    return from;
}

/* Whether a line of whole frames, n bytes, is the last that a stream has. */
static bool has_end(const char *text, size_t n)
{
    static const char *const ends[] = {"data: [DONE]", "event: response.completed",
                                       "event: response.incomplete"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i) {
        const char *at = memmem(text, n, ends[i], strlen(ends[i]));
        if (at != NULL && (at == text || at[-1] == '\n')) {
            return true;
        }
    }
    return false;
}

static bool take_body(void *user, const char *text, size_t n)
{
    ask *a = user;
    a->status = (unsigned)a->call.http.status;
    a->streams = a->call.http.events && a->status == MHD_HTTP_OK;
    a->begun = a->begun || a->streams; /* of another one nothing is passed on before it is whole */
    dsi_buf_append(&a->out, text, n);
    if (a->streams && !a->out.failed) {
        const size_t before = a->n_whole;
        a->n_whole = end_of_frames(&a->out, before, a->n_seen);
        a->n_seen = a->out.size;
        a->ended = a->ended || has_end(a->out.data + before, a->n_whole - before);
    }
    return !a->out.failed;
}

/* ---- to a replica ---- */
static void put_request(ask *a, const replica *r)
{
    dsi_buf *text = &a->call.text;
    dsi_buf_free(text);
    *text = dsi_buf_make(a->sent.size + (64u << 10));
    dsi_buf_printf(text, "%s %s HTTP/1.1\r\nHost: %s:%s\r\n", a->method, a->path, r->host, r->port);
    if (r->key[0] != '\0') {
        dsi_buf_printf(text, "Authorization: Bearer %s\r\n", r->key);
    }
    dsi_buf_printf(text,
                   "Content-Type: application/json\r\nContent-Length: %zu\r\n"
                   "Connection: close\r\n\r\n",
                   a->sent.size);
    dsi_buf_append(text, a->sent.data, a->sent.size);
}

static void no_replica(ask *a)
{
    balance *b = a->b;
    char message[512];
    const replica *one = NULL;
    for (size_t i = 0; i < b->n; ++i) {
        const replica *r = &b->replicas[i];
        const bool may_have = r->models == NULL || replica_has(r, a->model);
        one = may_have && r->why[0] != '\0' ? r : one;
    }
    (void)snprintf(message, sizeof message, "no replica of this model is up%s%.240s%s%.200s%s",
                   one != NULL ? " (" : "", one != NULL ? one->label : "", one != NULL ? ": " : "",
                   one != NULL ? one->why : "", one != NULL ? ")" : "");
    ask_fail(a, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, message);
}

void ask_send(ask *a, size_t k)
{
    replica *r = &a->b->replicas[k];
    a->at = r;
    r->n_running += 1;
    r->n_taken += 1;
    dsi_buf_clear(&a->out);
    a->n_whole = a->n_seen = 0;
    a->ended = false;
    a->type[0] = a->ignored[0] = a->request_id[0] = '\0';
    put_request(a, r);
    a->call.take = take_body;
    a->call.header = take_head;
    a->call.user = a;
    call_begin(&a->call, r->address, r->trust, replica_tls_name(r));
}

/* Sends it to the replica that is best now. */
static void dispatch(ask *a)
{
    balance *b = a->b;
    route_view views[BALANCE_MOST];
    size_t cached = 0;
    for (size_t i = 0; i < b->n; ++i) {
        const replica *r = &b->replicas[i];
        views[i] = (route_view){.may = !a->tried[i] && replica_serves(r, a->model),
                                .n_running = r->n_running,
                                .n_taken = r->n_taken};
    }
    const size_t k = route_pick(b->prefixes, views, b->n, &a->marks, &cached);
    if (k == SIZE_MAX) {
        no_replica(a);
        return;
    }
    b->n_prefix += cached > 0;
    route_remember(b->prefixes, &a->marks, k);
    a->tried[k] = true;
    ask_send(a, k);
}

static bool has_another(const ask *a)
{
    for (size_t i = 0; i < a->b->n; ++i) {
        const replica *r = &a->b->replicas[i];
        if (!a->tried[i] && replica_serves(r, a->model)) {
            return true;
        }
    }
    return false;
}

void ask_lost(ask *a, const char *why)
{
    char message[512];
    balance *b = a->b;
    replica *r = a->at;
    a->n_lost += a->call.n_sent > 0;
    r->probe_due = 0; /* see at once what it has */
    if (a->visit != NULL) {
        visit_lost(a, why);
        return;
    }
    if (a->ended) { /* all of it is there */
        ask_leave(a);
        a->done = true;
        ask_wake(a);
        return;
    }
    if (!a->begun && a->n_lost < MOST_LOST && has_another(a)) {
        ask_leave(a);
        b->n_moved += 1;
        dispatch(a);
        return;
    }
    b->n_told += 1;
    (void)snprintf(message, sizeof message, "%.240s lost this request: %.200s", r->label, why);
    ask_fail(a, MHD_HTTP_BAD_GATEWAY, "replica_lost", message);
}

/* Its call ended, for good or bad. */
static void finish(ask *a)
{
    if (a->call.why[0] != '\0') {
        char why[BALANCE_WHY];
        replica *r = a->at;
        (void)snprintf(why, sizeof why, "%s", a->call.why);
        if (!a->call.reached && r->state == REPLICA_UP) {
            replica_fails(r, REPLICA_DOWN, why); /* this request, too */
        } else {
            ask_lost(a, why);
        }
        return;
    }
    if (a->visit != NULL) {
        visit_turn(a);
        return;
    }
    a->status = (unsigned)a->call.http.status;
    const bool full =
        a->status == MHD_HTTP_TOO_MANY_REQUESTS || a->status == MHD_HTTP_SERVICE_UNAVAILABLE;
    if (full && has_another(a)) {
        ask_leave(a);
        a->b->n_moved += 1;
        dispatch(a);
        return;
    }
    ask_leave(a);
    a->begun = a->done = true;
    a->n_whole = a->out.size;
    ask_wake(a);
}

static void turn(ask *a, short events)
{
    call_turn(&a->call, events);
    ask_wake(a);
    for (int i = 0; i < BALANCE_MOST && a->at != NULL && a->call.place == CALL_ENDED; ++i) {
        finish(a); /* what it is moved to may refuse at once */
    }
}

/* ---- the loop ---- */
/* A reload does not end half-way because nobody waits for it any more. */
static bool goes_on(const ask *a)
{
    return !a->done && (!a->gone || (a->visit != NULL && a->visit->kind == VISIT_RELOAD));
}

/* Takes what was queued; lets go of what ended. */
static void tidy(balance *b)
{
    while (b->queued != NULL) {
        ask *a = b->queued;
        b->queued = a->next;
        b->queued_end = b->queued != NULL ? b->queued_end : &b->queued;
        a->next = b->running;
        b->running = a;
        if (goes_on(a)) {
            if (a->visit != NULL) {
                visit_begin(a);
            } else {
                dispatch(a);
            }
            turn(a, 0);
        }
    }
    for (ask *a = b->running; a != NULL; a = a->next) {
        if (a->at != NULL && a->call.place == CALL_ENDED) { /* it was moved, and refused at once */
            turn(a, 0);
        }
    }
    for (ask **at = &b->running; *at != NULL;) {
        ask *a = *at;
        if (goes_on(a)) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        ask_leave(a);
        ask_wake(a);
        ask_release(a);
    }
}

typedef enum watch_kind {
    WATCH_WAKE,
    WATCH_CALL,
    WATCH_CLIENT,
    WATCH_PROBE,
    WATCH_OUT,
    WATCH_ERR
} watch_kind;

typedef struct watch {
    watch_kind kind;
    void *of;
} watch;

typedef struct relay {
    balance *b;
    struct pollfd *polled;
    watch *watches;
    size_t n, capacity;
} relay;

static void add(relay *l, int fd, short events, watch_kind kind, void *of)
{
    if (fd < 0 || l->n == l->capacity) {
        return;
    }
    l->polled[l->n] = (struct pollfd){.fd = fd, .events = events};
    l->watches[l->n++] = (watch){kind, of};
}

/* false: no memory; what is there is watched. */
static bool reserve(relay *l)
{
    const size_t wanted = 1 + 3 * l->b->n + 2 * (size_t)l->b->n_asks;
    if (wanted <= l->capacity) {
        return true;
    }
    const size_t capacity = 2 * wanted;
    struct pollfd *polled = realloc(l->polled, capacity * sizeof *polled);
    l->polled = polled != NULL ? polled : l->polled;
    watch *watches = realloc(l->watches, capacity * sizeof *watches);
    l->watches = watches != NULL ? watches : l->watches;
    l->capacity = polled != NULL && watches != NULL ? capacity : l->capacity;
    return polled != NULL && watches != NULL;
}

static void watch_all(relay *l)
{
    balance *b = l->b;
    l->n = 0;
    (void)reserve(l);
    add(l, b->wake, POLLIN, WATCH_WAKE, NULL);
    for (size_t i = 0; i < b->n; ++i) {
        replica *r = &b->replicas[i];
        if (r->probe.place != CALL_NONE) {
            add(l, r->probe.link.fd, call_events(&r->probe), WATCH_PROBE, r);
        }
        if (r->own) {
            add(l, r->process.out, POLLIN, WATCH_OUT, r);
            add(l, r->process.err, POLLIN, WATCH_ERR, r);
        }
    }
    for (ask *a = b->running; a != NULL; a = a->next) {
        const bool behind = a->n_whole - a->n_out > BALANCE_AHEAD && a->begun;
        if (a->at != NULL && !behind) {
            add(l, a->call.link.fd, call_events(&a->call), WATCH_CALL, a);
        }
        if (a->suspended) {
            add(l, a->fd, POLLRDHUP, WATCH_CLIENT, a);
        }
    }
}

static void see_one(relay *l, size_t i)
{
    const short events = l->polled[i].revents;
    void *of = l->watches[i].of;
    ask *a = of;
    replica *r = of;
    uint64_t count = 0;
    switch (l->watches[i].kind) {
    case WATCH_WAKE:
        if (read(l->b->wake, &count, sizeof count) < 0) {
            return; /* nobody woke it */
        }
        return;
    case WATCH_CALL:
        if (a->at != NULL && a->call.link.fd == l->polled[i].fd) { /* it is where it was */
            turn(a, events);
        }
        return;
    case WATCH_CLIENT:
        if (a->suspended && (events & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
            a->gone = true;
            a->suspended = false;
            MHD_resume_connection(a->connection);
        }
        return;
    case WATCH_PROBE:
        if (r->probe.place != CALL_NONE && r->probe.link.fd == l->polled[i].fd) {
            probe_turn(r, events);
        }
        return;
    case WATCH_OUT:
        replica_hear(r, events, 0);
        return;
    case WATCH_ERR:
        replica_hear(r, 0, events);
        return;
    }
}

static void look_at_all(relay *l, double now)
{
    balance *b = l->b;
    bool settled = true;
    bool ended = true;
    for (size_t i = 0; i < b->n; ++i) {
        probe_tick(&b->replicas[i], now);
        replica_hear(&b->replicas[i], 0, 0);
        settled = settled && b->replicas[i].state != REPLICA_STARTS;
        ended = ended && b->replicas[i].state == REPLICA_ENDED && b->replicas[i].restart_due == 0.0;
    }
    for (ask *a = b->running; a != NULL; a = a->next) {
        if (a->visit != NULL && a->at != NULL) {
            visit_tick(a, now);
        }
    }
    b->settled = b->settled || settled;
    b->all_ended = ended;
}

static void loop(relay *l)
{
    balance *b = l->b;
    (void)pthread_mutex_lock(&b->lock);
    while (!b->stop) {
        tidy(b);
        watch_all(l);
        (void)pthread_mutex_unlock(&b->lock);
        const int n = poll(l->polled, l->n, TICK_MS);
        (void)pthread_mutex_lock(&b->lock);
        for (size_t i = 0; n > 0 && i < l->n; ++i) {
            if (l->polled[i].revents != 0) {
                see_one(l, i);
            }
        }
        look_at_all(l, dsi_clock_seconds());
    }
    tidy(b);
    for (ask *a = b->running; a != NULL; a = a->next) {
        ask_fail(a, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "the server ends");
    }
    tidy(b);
    (void)pthread_mutex_unlock(&b->lock);
}

void *relay_run(void *opaque)
{
    relay l = {.b = opaque};
    if (reserve(&l)) {
        loop(&l);
    }
    free(l.polled);
    free(l.watches);
    return NULL;
}
