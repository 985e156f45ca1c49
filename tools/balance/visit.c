/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that go to each replica in turn: /slots, and reloads. See balance.h.
 *
 * The rule of weights: a replica has a folder that it should have (`wanted`), and says which it has
 * (`root` of its /v1/models). A reload changes what those of its model should have, whether they
 * are up or not, once all that are up have loaded it; where one could not, each that did, or may
 * have (its answer was lost), should have what it had. One that is `stale`, that is, may have
 * others than it should, is asked for nothing until it has loaded them, by the reload that goes
 * back or by its probe (probe.c). So in the end all have the new folder or none.
 *
 * A reload of what is served ({}, SIGHUP) has nothing to go back to: those that could not keep the
 * old weights of the same folder. A reload goes on when its client is gone. */
#include "balance.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { BODY_CEILING = 1 << 16 };

static visit *visit_of(ask *a)
{
    return a->visit;
}

/* Whether it is meant, up or not. One whose model is not known yet is, where no folder is named:
 * no harm comes from loading what it has again. */
static bool is_meant(const ask *a, const replica *r)
{
    const char *base = replica_base(r);
    return (r->own || !a->visit->own_only) &&
           (a->model[0] == '\0' ||
            (base != NULL ? strcmp(base, a->model) == 0 : a->visit->path == NULL));
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
/* What each should have from now on, and whether it may have others. */
static void keep_wanted(ask *a)
{
    balance *b = a->b;
    visit *v = visit_of(a);
    if (v->path != NULL && !v->back) {
        (void)json_object_set_new(b->folders, a->model, json_string(v->path));
    }
    for (size_t i = 0; i < b->n; ++i) {
        replica *r = &b->replicas[i];
        if (!is_meant(a, r)) {
            continue;
        }
        if (v->path == NULL) {
            r->stale = r->stale || v->fate[i] == FATE_NONE;
        } else if (v->back) {
            r->stale = r->stale || v->fate[i] == FATE_LOADED;
        } else {
            const char *has = replica_folder(r);
            replica_want(r, v->path);
            r->stale =
                r->stale || v->fate[i] == FATE_NONE || has == NULL || strcmp(has, v->path) != 0;
        }
    }
}

static void end_reload(ask *a)
{
    balance *b = a->b;
    visit *v = visit_of(a);
    b->reloads = false;
    if (v->n_done > 0) {
        keep_wanted(a);
    }
    if (v->why.size > 0) {
        ds_log(b->ctx, DS_LOG_WARN, "the replicas are not loaded anew: %s", dsi_buf_text(&v->why));
        ask_fail(a, v->status, "reload_failed", dsi_buf_text(&v->why));
        return;
    }
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
/* Going back, those that have loaded it. */
static bool is_next(const ask *a, size_t i)
{
    const visit *v = a->visit;
    const replica *r = &a->b->replicas[i];
    if (r->state != REPLICA_UP || !is_meant(a, r) || (v->path != NULL && v->was[i] == NULL)) {
        return false; /* one that came up just now loads it after the others */
    }
    return !v->back || (v->fate[i] == FATE_LOADED && !r->stale);
}

/* To the replica that comes next, or to the end. */
static void go_on(ask *a)
{
    balance *b = a->b;
    visit *v = visit_of(a);
    ask_leave(a);
    for (; v->next < b->n; ++v->next) {
        if (is_next(a, v->next)) {
            put_body(a, v->back ? v->was[v->next] : v->path);
            v->call_began = dsi_clock_seconds();
            ask_send(a, v->next);
            return;
        }
    }
    end_visit(a);
}

/* Notes what there is to go back to. false: the reload cannot be, and why. */
static bool prepare(ask *a)
{
    balance *b = a->b;
    visit *v = visit_of(a);
    size_t n = 0;
    for (size_t i = 0; i < b->n; ++i) {
        const replica *r = &b->replicas[i];
        const char *base = replica_base(r);
        if (v->path != NULL && a->model[0] == '\0' && r->state == REPLICA_UP && base != NULL) {
            (void)snprintf(a->model, sizeof a->model, "%s", base); /* the only one */
        }
        if (r->state != REPLICA_UP || !is_meant(a, r)) {
            continue;
        }
        ++n;
        const char *was = r->wanted != NULL ? r->wanted : replica_folder(r);
        if (v->path != NULL && was == NULL) {
            v->status = MHD_HTTP_NOT_IMPLEMENTED;
            dsi_buf_printf(&v->why,
                           "%s does not say what it serves (root of /v1/models): there is "
                           "nothing to go back to",
                           r->label);
            return false;
        }
        v->was[i] = was != NULL ? strdup(was) : NULL;
    }
    if (n == 0) {
        v->status = MHD_HTTP_SERVICE_UNAVAILABLE;
        dsi_buf_puts(&v->why, "no replica of this model is up");
    }
    return n > 0;
}

void visit_begin(ask *a)
{
    if (a->visit->kind == VISIT_RELOAD && !prepare(a)) {
        end_visit(a);
        return;
    }
    go_on(a);
}

/* One of them did not load it. why: borrowed. */
static void reload_failed(ask *a, unsigned status, const char *why, bool is_lost)
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
    v->fate[v->next] = is_lost ? FATE_LOST : FATE_KEPT;
    r->stale = r->stale || is_lost;
    v->next += 1;
    if (v->path == NULL) {
        return; /* of what is served there is no earlier one to go back to */
    }
    for (size_t i = 0; i < v->next; ++i) {
        if (v->fate[i] == FATE_LOADED || v->fate[i] == FATE_LOST) {
            replica_want(&a->b->replicas[i], v->was[i]);
        }
    }
    v->back = true;
    v->next = 0;
}

void visit_lost(ask *a, const char *why)
{
    visit *v = visit_of(a);
    if (v->kind == VISIT_RELOAD) {
        reload_failed(a, MHD_HTTP_BAD_GATEWAY, why, true);
    } else {
        v->next += 1;
    }
    go_on(a);
}

void visit_tick(ask *a, double now)
{
    char why[BALANCE_WHY];
    const double limit = a->b->o->reload_timeout;
    if (a->visit->kind == VISIT_RELOAD && now >= a->visit->call_began + limit) {
        (void)snprintf(why, sizeof why, "it did not answer /v1/reload within %g s", limit);
        visit_lost(a, why);
    }
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
        reload_failed(a, (unsigned)a->call.http.status, why != NULL ? why : "it says no", false);
    } else {
        const char *has = v->back ? v->was[v->next] : v->path;
        a->at->stale = false;
        if (has != NULL) {
            replica_put_folder(a->at, has);
        }
        v->fate[v->next] = v->back ? FATE_KEPT : FATE_LOADED;
        v->n_done += !v->back;
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
    go_on(a);
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
        a->call.link.fd = -1;
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
