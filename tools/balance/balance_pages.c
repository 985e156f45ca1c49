/* SPDX-License-Identifier: Apache-2.0 */
/* What the front of replicas answers itself: health, models, metrics. See balance.h. */
#include "balance.h"

#include <stdlib.h>
#include <string.h>

static const char *state_name(replica_state state)
{
    static const char *const names[] = {"starts", "up", "down", "ended"};
    return names[state];
}

static void put_replicas(balance *b, dsi_buf *out)
{
    dsi_buf_puts(out, ",\"replicas\":[");
    for (size_t i = 0; i < b->n; ++i) {
        const replica *r = &b->replicas[i];
        size_t k = 0;
        json_t *one = NULL;
        dsi_buf_printf(out, "%s{\"replica\":%zu,\"url\":", i > 0 ? "," : "", i);
        if (r->address != NULL) {
            const char *url = strchr(r->label, '(') + 1;
            put_clean(out, url, strlen(url) - 1);
        } else {
            dsi_buf_puts(out, "null");
        }
        dsi_buf_printf(out, ",\"state\":\"%s\",\"running\":%lld,\"restarts\":%lld,\"models\":[",
                       state_name(r->state), (long long)r->n_running, (long long)r->n_restarts);
        json_array_foreach(r->models, k, one)
        {
            const char *id = json_string_value(json_object_get(one, "id"));
            dsi_buf_puts(out, k > 0 ? "," : "");
            put_clean(out, id != NULL ? id : "", id != NULL ? strlen(id) : 0);
        }
        dsi_buf_puts(out, "]");
        if (r->why[0] != '\0') {
            dsi_buf_puts(out, ",\"why\":");
            put_clean(out, r->why, strlen(r->why));
        }
        dsi_buf_puts(out, "}");
    }
    dsi_buf_puts(out, "]}\n");
}

static size_t n_up(const balance *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n; ++i) {
        n += b->replicas[i].state == REPLICA_UP;
    }
    return n;
}

void pages_health(balance *b, dsi_buf *out, unsigned *status_out)
{
    const size_t up = n_up(b);
    const char *status = b->door.draining ? "draining"
                         : up == b->n     ? "ok"
                         : up > 0         ? "degraded"
                                          : "down";
    *status_out = b->door.draining || up == 0 ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK;
    dsi_buf_printf(out, "{\"status\":\"%s\"", status);
    put_replicas(b, out);
}

/* Whether each model that was ever there has a replica that is up. */
void pages_ready(balance *b, dsi_buf *out, unsigned *status_out)
{
    bool ready = !b->door.draining && n_up(b) > 0;
    for (size_t i = 0; i < b->n && ready; ++i) {
        size_t k = 0;
        json_t *one = NULL;
        json_array_foreach(b->replicas[i].models, k, one)
        {
            const char *id = json_string_value(json_object_get(one, "id"));
            bool has_one = false;
            for (size_t j = 0; j < b->n && id != NULL; ++j) {
                has_one = has_one || replica_serves(&b->replicas[j], id);
            }
            ready = ready && (has_one || id == NULL);
        }
    }
    *status_out = ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
    dsi_buf_printf(out, "{\"status\":\"%s\"", ready ? "ready" : "not ready");
    put_replicas(b, out);
}

/* ---- models ---- */
static bool listed_before(const balance *b, size_t i, const char *id)
{
    for (size_t k = 0; k < i; ++k) {
        if (b->replicas[k].state == REPLICA_UP && replica_has(&b->replicas[k], id)) {
            return true;
        }
    }
    return false;
}

static void put_model(const balance *b, json_t *model, dsi_buf *out)
{
    const char *id = json_string_value(json_object_get(model, "id"));
    json_t *copy = json_copy(model);
    json_int_t n = 0;
    for (size_t k = 0; k < b->n; ++k) {
        n += b->replicas[k].state == REPLICA_UP && replica_has(&b->replicas[k], id);
    }
    (void)json_object_set_new(copy, "replicas", json_integer(n));
    char *text = json_dumps(copy, JSON_COMPACT);
    dsi_buf_puts(out, text != NULL ? text : "null");
    free(text);
    json_decref(copy);
}

void pages_models(balance *b, dsi_buf *out, unsigned *status_out)
{
    size_t n = 0;
    *status_out = MHD_HTTP_OK;
    dsi_buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < b->n; ++i) {
        size_t k = 0;
        json_t *one = NULL;
        json_array_foreach(b->replicas[i].models, k, one)
        {
            const char *id = json_string_value(json_object_get(one, "id"));
            if (b->replicas[i].state == REPLICA_UP && id != NULL && !listed_before(b, i, id)) {
                dsi_buf_puts(out, n++ > 0 ? "," : "");
                put_model(b, one, out);
            }
        }
    }
    dsi_buf_puts(out, "]}\n");
}

bool pages_model(balance *b, const char *name, dsi_buf *out)
{
    for (size_t i = 0; i < b->n; ++i) {
        size_t k = 0;
        json_t *one = NULL;
        json_array_foreach(b->replicas[i].models, k, one)
        {
            const char *id = json_string_value(json_object_get(one, "id"));
            if (b->replicas[i].state == REPLICA_UP && id != NULL && strcmp(id, name) == 0) {
                put_model(b, one, out);
                dsi_buf_putc(out, '\n');
                return true;
            }
        }
    }
    return false;
}

/* ---- metrics: those of the replicas, added, and the front's own ---- */
/* By family, a line "# TYPE": its series, names with labels, each with its sum and how many had it.
 */
static void add_line(json_t *families, json_t **family, const char *line, size_t n)
{
    char *copy = strndup(line, n);
    char *space = copy != NULL ? strrchr(copy, ' ') : NULL;
    if (copy != NULL && strncmp(copy, "# TYPE ", 7) == 0) {
        *family = json_object_get(families, copy);
        if (*family == NULL) {
            *family = json_object();
            (void)json_object_set_new_nocheck(families, copy, *family);
        }
    } else if (space != NULL && copy[0] != '#' && *family != NULL) {
        *space = '\0';
        json_t *series = json_object_get(*family, copy);
        const double value = strtod(space + 1, NULL);
        json_t *sum = json_array_get(series, 0);
        json_t *count = json_array_get(series, 1);
        if (series == NULL) {
            (void)json_object_set_new_nocheck(*family, copy,
                                              json_pack("[o,i]", json_real(value), 1));
        } else {
            (void)json_real_set(sum, json_real_value(sum) + value);
            (void)json_integer_set(count, json_integer_value(count) + 1);
        }
    }
    free(copy);
}

static json_t *add_all(const balance *b)
{
    json_t *families = json_object();
    for (size_t i = 0; i < b->n; ++i) {
        json_t *family = NULL;
        const char *at = dsi_buf_text(&b->replicas[i].metrics);
        while (b->replicas[i].state == REPLICA_UP && *at != '\0') {
            const size_t size = strcspn(at, "\n");
            add_line(families, &family, at, size);
            at += size + (at[size] == '\n');
        }
    }
    return families;
}

static void put_sums(balance *b, dsi_buf *out)
{
    json_t *families = add_all(b);
    const char *type = NULL;
    const char *name = NULL;
    json_t *family = NULL;
    json_t *series = NULL;
    (void)json_object_del(families, "# TYPE http_requests_total counter"); /* the front's own */
    json_object_foreach(families, type, family)
    {
        const bool share = strncmp(type, "# TYPE vllm:kv_cache_usage_perc", 31) == 0;
        dsi_buf_printf(out, "%s\n", type);
        json_object_foreach(family, name, series)
        {
            const double sum = json_real_value(json_array_get(series, 0));
            const double n = share ? (double)json_integer_value(json_array_get(series, 1)) : 1.0;
            dsi_buf_printf(out, "%s %.17g\n", name, sum / n);
        }
    }
    json_decref(families);
}

static void put_one(dsi_buf *out, const char *name, const char *kind, int64_t value)
{
    dsi_buf_printf(out, "# TYPE %s %s\n%s %lld\n", name, kind, name, (long long)value);
}

void pages_metrics(balance *b, dsi_buf *out)
{
    static const char *const names[] = {"ds_front_replica_up", "ds_front_replica_running",
                                        "ds_front_replica_requests_total",
                                        "ds_front_replica_restarts_total"};
    put_sums(b, out);
    for (size_t k = 0; k < 4; ++k) {
        dsi_buf_printf(out, "# TYPE %s %s\n", names[k], k < 2 ? "gauge" : "counter");
        for (size_t i = 0; i < b->n; ++i) {
            const replica *r = &b->replicas[i];
            const int64_t values[] = {r->state == REPLICA_UP, r->n_running, r->n_taken,
                                      r->n_restarts};
            dsi_buf_printf(out, "%s{replica=\"%zu\",host=\"%s\",port=\"%s\"} %lld\n", names[k], i,
                           r->host, r->port, (long long)values[k]);
        }
    }
    put_one(out, "ds_front_requests", "gauge", b->n_asks);
    put_one(out, "ds_front_moved_total", "counter", b->n_moved);
    put_one(out, "ds_front_lost_total", "counter", b->n_told);
    put_one(out, "ds_front_prefix_routed_total", "counter", b->n_prefix);
    dsi_buf_puts(out, "# TYPE http_requests_total counter\n");
    for (int i = 2; i < 6; ++i) {
        dsi_buf_printf(out, "http_requests_total{status=\"%dxx\"} %lld\n", i,
                       (long long)b->door.n_answers[i]);
    }
}
