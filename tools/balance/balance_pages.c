/* SPDX-License-Identifier: Apache-2.0 */
/* What the front of replicas answers itself: health, models, metrics. See balance.h. */
#include "balance.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 256, MOST_SERIES = 512 };

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
        dsi_buf_printf(out, ",\"state\":\"%s\",\"running\":%lld,\"models\":[", state_name(r->state),
                       (long long)r->n_running);
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
                has_one = has_one ||
                          (b->replicas[j].state == REPLICA_UP && replica_has(&b->replicas[j], id));
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
typedef struct series {
    char name[LINE_BYTES]; /* with its labels */
    double sum;
    int64_t n;
    bool type; /* a line "# TYPE" */
} series;

static series *find_series(series *all, size_t *n, const char *name, bool type)
{
    for (size_t i = 0; i < *n; ++i) {
        if (strcmp(all[i].name, name) == 0 && all[i].type == type) {
            return &all[i];
        }
    }
    if (*n == MOST_SERIES) {
        return NULL;
    }
    series *s = &all[(*n)++];
    *s = (series){.type = type};
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

/* A line of a replica's. */
static void add_line(series *all, size_t *n, char *line)
{
    char *space = strrchr(line, ' ');
    if (strncmp(line, "# TYPE ", 7) == 0) {
        (void)find_series(all, n, line, true);
        return;
    }
    if (line[0] == '#' || space == NULL || strncmp(line, "http_requests_total", 19) == 0) {
        return; /* of http the front has its own */
    }
    *space = '\0';
    series *s = find_series(all, n, line, false);
    if (s != NULL) {
        s->sum += strtod(space + 1, NULL);
        s->n += 1;
    }
}

static void put_sums(balance *b, dsi_buf *out)
{
    series *all = calloc(MOST_SERIES, sizeof *all);
    size_t n = 0;
    for (size_t i = 0; all != NULL && i < b->n; ++i) {
        if (b->replicas[i].state != REPLICA_UP) {
            continue;
        }
        const char *at = dsi_buf_text(&b->replicas[i].metrics);
        while (*at != '\0') {
            char line[LINE_BYTES];
            const size_t size = strcspn(at, "\n");
            (void)snprintf(line, sizeof line, "%.*s", (int)size, at);
            add_line(all, &n, line);
            at += size + (at[size] == '\n');
        }
    }
    for (size_t i = 0; i < n; ++i) {
        const series *s = &all[i];
        if (s->type && strstr(s->name, " http_requests_total ") != NULL) {
            continue;
        }
        const bool share = strncmp(s->name, "vllm:kv_cache_usage_perc", 24) == 0;
        if (s->type) {
            dsi_buf_printf(out, "%s\n", s->name);
        } else {
            dsi_buf_printf(out, "%s %.17g\n", s->name, share ? s->sum / (double)s->n : s->sum);
        }
    }
    free(all);
}

static void put_one(dsi_buf *out, const char *name, const char *kind, int64_t value)
{
    dsi_buf_printf(out, "# TYPE %s %s\n%s %lld\n", name, kind, name, (long long)value);
}

void pages_metrics(balance *b, dsi_buf *out)
{
    static const char *const names[] = {"ds_front_replica_up", "ds_front_replica_running",
                                        "ds_front_replica_requests_total"};
    put_sums(b, out);
    for (size_t k = 0; k < 3; ++k) {
        dsi_buf_printf(out, "# TYPE %s %s\n", names[k], k < 2 ? "gauge" : "counter");
        for (size_t i = 0; i < b->n; ++i) {
            const replica *r = &b->replicas[i];
            const int64_t values[] = {r->state == REPLICA_UP, r->n_running, r->n_taken};
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
