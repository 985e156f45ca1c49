/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a replica is well: /health, what models it has, its counters. See balance.h.
 *
 * A probe that is not answered within --probe_timeout, or not with 200, takes the replica out; the
 * next one that is brings it back. */
#include "balance.h"

#include <string.h>

enum { STEP_HEALTH, STEP_MODELS, STEP_METRICS, STEP_DONE, PROBE_CEILING = 4 << 20 };

static const char *const paths[] = {"/health", "/v1/models", "/metrics"};

static bool take(void *user, const char *text, size_t n)
{
    replica *r = user;
    dsi_buf_append(&r->probed, text, n);
    return !r->probed.failed;
}

static void begin(replica *r)
{
    call *c = &r->probe;
    dsi_buf_free(&c->text);
    c->text = dsi_buf_make(PROBE_CEILING);
    dsi_buf_free(&r->probed);
    r->probed = dsi_buf_make(PROBE_CEILING);
    dsi_buf_printf(&c->text, "GET %s HTTP/1.1\r\nHost: %s:%s\r\n", paths[r->probe_step], r->host,
                   r->port);
    if (r->key[0] != '\0') {
        dsi_buf_printf(&c->text, "Authorization: Bearer %s\r\n", r->key);
    }
    dsi_buf_puts(&c->text, "Connection: close\r\n\r\n");
    c->take = take;
    c->user = r;
    call_begin(c, r->address);
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
    rest(r);
    replica_fails(r, REPLICA_DOWN, why);
}

static bool read_models(replica *r)
{
    json_t *body = json_loadb(dsi_buf_text(&r->probed), r->probed.size, 0, NULL);
    json_t *list = json_object_get(body, "data");
    const bool ok = json_is_array(list) && json_array_size(list) > 0;
    if (ok) {
        json_decref(r->models);
        r->models = json_incref(list);
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
        r->why[0] = '\0';
    }
}

static void take_answer(replica *r)
{
    char why[BALANCE_WHY];
    const call *c = &r->probe;
    if (c->why[0] != '\0' || c->http.status != 200) {
        if (c->why[0] != '\0') {
            (void)snprintf(why, sizeof why, "%.180s", c->why);
        } else if (r->probe_step == STEP_HEALTH && strstr(dsi_buf_text(&r->probed), "draining")) {
            (void)snprintf(why, sizeof why, "it ends (draining)");
        } else {
            (void)snprintf(why, sizeof why, "its %s has status %d", paths[r->probe_step],
                           c->http.status);
        }
        fail(r, why);
        return;
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
    } else if (r->probe.place != CALL_NONE && now >= r->probe_began + r->b->o->probe_timeout) {
        (void)snprintf(why, sizeof why, "it did not answer %s within %g s", paths[r->probe_step],
                       r->b->o->probe_timeout);
        fail(r, why);
    }
}
