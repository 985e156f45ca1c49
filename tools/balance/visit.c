/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that go to each replica in turn: /slots, and reloads. See balance.h.
 *
 * A reload goes on when its client is gone. Of another folder than that in force (`model`) all
 * replicas of a name have it in the end or none: where one cannot load it, those that could go
 * back. One that was out, or is started again, loads it before it is asked for anything. */
#include "balance.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { BODY_CEILING = 1 << 16 };

static visit *visit_of(ask *a)
{
    return a->visit;
}

/* The first model of a replica that is no adapter; "": unknown. */
static const char *base_of(const replica *r)
{
    size_t i = 0;
    json_t *one = NULL;
    json_array_foreach(r->models, i, one)
    {
        const char *id = json_string_value(json_object_get(one, "id"));
        if (id != NULL && json_object_get(one, "parent") == NULL) {
            return id;
        }
    }
    return "";
}

/* Whether it is meant, up or not. */
static bool is_meant(const ask *a, const replica *r)
{
    return (r->own || !a->visit->own_only) &&
           (a->model[0] == '\0' || strcmp(base_of(r), a->model) == 0);
}

/* The bytes of the replica's JSON; NULL: it is none. */
static json_t *answer_of(const ask *a)
{
    return json_loadb(dsi_buf_text(&a->out), a->out.size, 0, NULL);
}

static void put_body(ask *a, const char *path)
{
    dsi_buf_free(&a->sent);
    a->sent = dsi_buf_make(BODY_CEILING);
    if (a->visit->kind == VISIT_RELOAD) {
        dsi_buf_puts(&a->sent, path != NULL ? "{\"model\":" : "{}");
        if (path != NULL) {
            put_clean(&a->sent, path, strlen(path));
            dsi_buf_putc(&a->sent, '}');
        }
    }
}

/* ---- the end ---- */
static void keep_wanted(ask *a)
{
    balance *b = a->b;
    visit *v = visit_of(a);
    for (size_t i = 0; i < b->n; ++i) {
        replica *r = &b->replicas[i];
        if (!is_meant(a, r)) {
            continue;
        }
        r->stale = r->stale || v->was[i] == NULL; /* it was out */
        if (v->path != NULL) {
            free(r->wanted);
            r->wanted = strdup(v->path);
        }
    }
}

static void end_reload(ask *a)
{
    balance *b = a->b;
    visit *v = visit_of(a);
    b->reloads = false;
    if (v->why.size > 0) {
        ds_log(b->ctx, DS_LOG_WARN, "the replicas are not loaded anew: %s", dsi_buf_text(&v->why));
        ask_fail(a, v->status, "reload_failed", dsi_buf_text(&v->why));
        return;
    }
    keep_wanted(a);
    ds_log(b->ctx, DS_LOG_JOB, "%zu replicas are loaded anew", v->n_done);
    dsi_buf_printf(&a->out,
                   "{\"status\":\"ok\",\"replicas\":%zu,\"seconds\":%.3f,\"model\":", v->n_done,
                   dsi_clock_seconds() - v->began);
    if (v->path != NULL) {
        put_clean(&a->out, v->path, strlen(v->path));
    } else {
        dsi_buf_puts(&a->out, "null");
    }
    dsi_buf_puts(&a->out, "}\n");
}

static void end_visit(ask *a)
{
    visit *v = visit_of(a);
    ask_leave(a);
    dsi_buf_clear(&a->out);
    a->type[0] = a->ignored[0] = a->request_id[0] = '\0';
    a->status = MHD_HTTP_OK;
    if (v->kind == VISIT_RELOAD) {
        end_reload(a);
    } else {
        char *text = json_dumps(v->slots, JSON_COMPACT);
        dsi_buf_puts(&a->out, text != NULL ? text : "[]");
        dsi_buf_putc(&a->out, '\n');
        free(text);
    }
    a->begun = a->done = true;
    ask_wake(a);
}

/* ---- from one to the next ---- */
void visit_next(ask *a)
{
    balance *b = a->b;
    visit *v = visit_of(a);
    ask_leave(a);
    for (; v->next < b->n; ++v->next) {
        const replica *r = &b->replicas[v->next];
        if (r->state == REPLICA_UP && is_meant(a, r) && (!v->back || v->was[v->next] != NULL)) {
            put_body(a, v->back ? v->was[v->next] : v->path);
            ask_send(a, v->next);
            return;
        }
    }
    end_visit(a);
}

/* One of them did not load it. why: borrowed. */
static void reload_failed(ask *a, unsigned status, const char *why)
{
    visit *v = visit_of(a);
    replica *r = a->at;
    if (v->back) {
        r->stale = true; /* the next probe tries again */
        dsi_buf_printf(&v->why, "; %s could not go back yet: %s", r->label, why);
        v->next += 1;
        return;
    }
    v->status = status;
    dsi_buf_printf(&v->why, "%s%s: %s", v->why.size > 0 ? "; " : "", r->label, why);
    if (v->path != NULL) {
        v->back = true; /* those that have loaded it already */
        v->next = 0;
    } else {
        v->next += 1; /* of what is served there is no earlier one to go back to */
    }
}

void visit_lost(ask *a, const char *why)
{
    visit *v = visit_of(a);
    if (v->kind == VISIT_RELOAD) {
        reload_failed(a, MHD_HTTP_BAD_GATEWAY, why);
    } else {
        v->next += 1;
    }
    visit_next(a);
}

static void take_slots(ask *a)
{
    visit *v = visit_of(a);
    json_t *list = answer_of(a);
    json_t *one = NULL;
    size_t i = 0;
    json_array_foreach(list, i, one)
    {
        (void)json_object_set_new(one, "replica", json_integer((json_int_t)v->next));
    }
    (void)json_array_extend(v->slots, list);
    json_decref(list);
    v->next += 1;
}

static void take_reload(ask *a)
{
    visit *v = visit_of(a);
    json_t *body = answer_of(a);
    if (a->call.http.status != MHD_HTTP_OK) {
        const char *why =
            json_string_value(json_object_get(json_object_get(body, "error"), "message"));
        reload_failed(a, (unsigned)a->call.http.status, why != NULL ? why : "it says no");
    } else {
        const char *was = json_string_value(json_object_get(body, "was"));
        a->at->stale = false;
        if (!v->back) {
            v->was[v->next] = strdup(was != NULL ? was : "");
            v->n_done += 1;
        }
        v->next += 1;
    }
    json_decref(body);
}

void visit_turn(ask *a)
{
    if (a->visit->kind == VISIT_RELOAD) {
        take_reload(a);
    } else {
        take_slots(a);
    }
    visit_next(a);
}

/* ---- making them ---- */
visit *visit_make(visit_kind kind, const char *path)
{
    visit *v = calloc(1, sizeof *v);
    if (v != NULL) {
        v->kind = kind;
        v->path = path != NULL ? strdup(path) : NULL;
        v->slots = json_array();
        v->why = dsi_buf_make(BODY_CEILING);
        v->began = dsi_clock_seconds();
    }
    return v;
}

void visit_free(visit *v)
{
    if (v == NULL) {
        return;
    }
    for (size_t i = 0; i < BALANCE_MOST; ++i) {
        free(v->was[i]);
    }
    free(v->path);
    json_decref(v->slots);
    dsi_buf_free(&v->why);
    free(v);
}

/* SIGHUP: nobody waits for it. */
void replicas_reload(balance *b)
{
    ask *a = calloc(1, sizeof *a);
    visit *v = visit_make(VISIT_RELOAD, NULL);
    (void)pthread_mutex_lock(&b->lock);
    if (a == NULL || v == NULL || b->reloads) {
        ds_log(b->ctx, DS_LOG_WARN, b->reloads ? "a reload is under way" : "no memory");
        free(a);
        visit_free(v);
    } else {
        a->b = b;
        a->fd = -1;
        a->call.fd = -1;
        a->holders = 1;
        a->method = "POST";
        (void)snprintf(a->path, sizeof a->path, "/v1/reload");
        a->out = dsi_buf_make(BODY_CEILING);
        a->visit = v;
        v->own_only = true;
        b->n_asks += 1;
        b->reloads = true;
        *b->queued_end = a;
        b->queued_end = &a->next;
    }
    (void)pthread_mutex_unlock(&b->lock);
    relay_wake(b);
}
