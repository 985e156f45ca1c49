/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a replica is well: /health, what models it has, its counters; before those, where it is
 * stale (visit.c), the weights that it should have. See balance.h.
 *
 * A probe that is not answered within --probe_timeout, or not with 200, takes the replica out; the
 * next one that is brings it back. */
#include "balance.h"

#include "base/clock.h"

#include <signal.h>
#include <string.h>

enum {
    STEP_HEALTH,
    STEP_MODELS,
    STEP_RELOAD, /* of one that is stale */
    STEP_METRICS,
    STEP_DONE,
    PROBE_CEILING = 4 << 20,
    RELOAD_REST = 10 /* until it is tried again */
};

static const char *const paths[] = {"/health", "/v1/models", "/v1/reload", "/metrics"};

static bool take(void *user, const char *text, size_t n)
{
    replica *r = user;
    dsi_buf_append(&r->probed, text, n);
    return !r->probed.failed;
}

static void put_wanted(const replica *r, dsi_buf *body)
{
    if (r->wanted == NULL) {
        dsi_buf_puts(body, "{}");
        return;
    }
    dsi_buf_puts(body, "{\"model\":");
    put_clean(body, r->wanted, strlen(r->wanted));
    dsi_buf_putc(body, '}');
}

static void begin(replica *r)
{
    call *c = &r->probe;
    dsi_buf_free(&c->text);
    c->text = dsi_buf_make(PROBE_CEILING);
    dsi_buf_free(&r->probed);
    r->probed = dsi_buf_make(PROBE_CEILING);
    dsi_buf body = dsi_buf_make(PROBE_CEILING);
    if (r->probe_step == STEP_RELOAD) {
        put_wanted(r, &body);
    }
    dsi_buf_printf(&c->text, "%s %s HTTP/1.1\r\nHost: %s:%s\r\n",
                   r->probe_step == STEP_RELOAD ? "POST" : "GET", paths[r->probe_step], r->host,
                   r->port);
    if (r->key[0] != '\0') {
        dsi_buf_printf(&c->text, "Authorization: Bearer %s\r\n", r->key);
    }
    dsi_buf_printf(&c->text, "Content-Length: %zu\r\nConnection: close\r\n\r\n%s", body.size,
                   dsi_buf_text(&body));
    dsi_buf_free(&body);
    c->take = take;
    c->user = r;
    call_begin(c, r->address, r->trust, replica_tls_name(r));
}

static void rest(replica *r)
{
    call_stop(&r->probe);
    r->probe.place = CALL_NONE;
    r->probe_step = STEP_HEALTH;
    r->probe_due = r->probe_began + r->b->o->probe_seconds;
}

static void fail(replica *r, const char *why)
{
    const bool loads = r->probe_step == STEP_RELOAD;
    rest(r);
    r->probe_due += loads ? RELOAD_REST : 0;
    replica_fails(r, REPLICA_DOWN, why);
}

/* One that comes up: whether it has the folder that it should have. */
static void see_folder(replica *r, bool is_first)
{
    const char *name = replica_base(r);
    const char *has = replica_folder(r);
    const char *reloaded = json_string_value(json_object_get(r->b->folders, name));
    if (is_first && reloaded != NULL) {
        replica_want(r, reloaded);
    }
    if (r->state != REPLICA_UP && r->wanted != NULL) {
        r->stale = r->stale || has == NULL || strcmp(has, r->wanted) != 0;
    }
}

static bool read_models(replica *r)
{
    json_t *body = json_loadb(dsi_buf_text(&r->probed), r->probed.size, 0, NULL);
    json_t *list = json_object_get(body, "data");
    const bool is_first = r->models == NULL;
    const bool ok = json_is_array(list) && json_array_size(list) > 0;
    if (ok) {
        json_decref(r->models);
        r->models = json_incref(list);
        see_folder(r, is_first);
    }
    json_decref(body);
    return ok;
}

static void comes_up(replica *r)
{
    if (r->state != REPLICA_UP) {
        ds_log(r->b->ctx, DS_LOG_JOB, "%s is %s: %s", r->label,
               r->state == REPLICA_DOWN ? "back" : "up",
               json_string_value(json_object_get(json_array_get(r->models, 0), "id")));
        r->state = REPLICA_UP;
        r->was_up = true;
        r->up_since = dsi_clock_seconds();
        r->why[0] = '\0';
    }
}

/* Its own words, where it has some. */
static void read_error(const replica *r, char *why)
{
    json_t *body = json_loadb(dsi_buf_text(&r->probed), r->probed.size, 0, NULL);
    const char *error = json_string_value(json_object_get(body, "why"));
    if (error == NULL) {
        error = json_string_value(json_object_get(json_object_get(body, "error"), "message"));
    }
    if (error != NULL) {
        (void)snprintf(why, BALANCE_WHY, "%.440s", error);
    } else {
        (void)snprintf(why, BALANCE_WHY, "its %s has status %d", paths[r->probe_step],
                       r->probe.http.status);
    }
    json_decref(body);
}

static void take_answer(replica *r)
{
    char why[BALANCE_WHY];
    const call *c = &r->probe;
    if (c->why[0] != '\0' || c->http.status != 200) {
        if (c->why[0] != '\0') {
            (void)snprintf(why, sizeof why, "%s", c->why);
        } else if (r->probe_step == STEP_HEALTH && strstr(dsi_buf_text(&r->probed), "draining")) {
            (void)snprintf(why, sizeof why, "it ends (draining)");
        } else {
            read_error(r, why);
        }
        const bool hangs = r->probe_step == STEP_HEALTH &&
                           strstr(dsi_buf_text(&r->probed), "\"status\":\"hangs\"") != NULL;
        fail(r, why);
        if (hangs && r->own && r->b->o->replica_restarts > 0) {
            ds_log(r->b->ctx, DS_LOG_WARN, "%s is killed, for its engine hangs", r->label);
            dsi_process_signal(&r->process, SIGKILL);
        }
        return;
    }
    if (r->probe_step == STEP_RELOAD) {
        r->probe_began = dsi_clock_seconds();
        r->stale = false;
        if (r->wanted != NULL) {
            replica_put_folder(r, r->wanted);
        }
    }
    if (r->probe_step == STEP_MODELS && !read_models(r)) {
        fail(r, "its /v1/models lists nothing");
        return;
    }
    if (r->probe_step == STEP_METRICS) {
        dsi_buf_free(&r->metrics);
        r->metrics = r->probed;
        r->probed = dsi_buf_make(0);
        comes_up(r);
    }
    ++r->probe_step; /* models each time: adapters come and go */
    if (r->probe_step == STEP_RELOAD && r->stale && r->b->reloads && r->state != REPLICA_UP) {
        rest(r); /* its siblings get other ones now */
        return;
    }
    if (r->probe_step == STEP_RELOAD && (!r->stale || r->b->reloads)) {
        ++r->probe_step;
    }
    if (r->probe_step == STEP_DONE) {
        rest(r);
    } else {
        begin(r);
        if (r->probe.place == CALL_ENDED) {
            take_answer(r);
        }
    }
}

void probe_turn(replica *r, short events)
{
    call_turn(&r->probe, events);
    if (r->probe.place == CALL_ENDED) {
        take_answer(r);
    }
}

void probe_tick(replica *r, double now)
{
    char why[BALANCE_WHY];
    const double limit =
        r->probe_step == STEP_RELOAD ? r->b->o->reload_timeout : r->b->o->probe_timeout;
    if (r->address == NULL || r->state == REPLICA_ENDED) {
        return;
    }
    if (r->probe.place == CALL_NONE && now >= r->probe_due) {
        r->probe_began = now;
        r->probe_step = STEP_HEALTH;
        begin(r);
        if (r->probe.place == CALL_ENDED) {
            take_answer(r);
        }
    } else if (r->probe.place != CALL_NONE && now >= r->probe_began + limit) {
        (void)snprintf(why, sizeof why, "it did not answer %s within %g s", paths[r->probe_step],
                       limit);
        fail(r, why);
    }
}
