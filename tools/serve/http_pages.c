/* SPDX-License-Identifier: Apache-2.0 */
/* What a server of a model says of itself: health, slots, models, metrics, the chat page. See
 * http.h.
 */
#include "http.h"

#include <string.h>

enum MHD_Result http_health(exchange *x, const char *behind)
{
    front *f = front_of(x);
    (void)behind;
    (void)pthread_mutex_lock(&f->lock);
    const bool draining = f->door.draining;
    const bool broken = f->broken;
    const bool hangs = watch_hangs(f);
    const double stalled = f->stalled;
    const int64_t beat = f->beat;
    (void)pthread_mutex_unlock(&f->lock);
    dsi_buf text = dsi_buf_make(256 + 256 * f->n_ranks);
    dsi_buf_printf(&text, "{\"status\":\"%s\",\"beat\":%lld",
                   broken     ? "broken"
                   : hangs    ? "hangs"
                   : draining ? "draining"
                              : "ok",
                   (long long)beat);
    if (hangs) {
        dsi_buf_printf(&text, ",\"why\":\"its engine hangs: no step has ended for %.1f s\"",
                       stalled);
    }
    ranks_print(f, &text);
    dsi_buf_puts(&text, "}\n");
    return reply_json(x, draining || broken || hangs ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK,
                      &text);
}

/* Whether a text could begin now: for who shares requests among servers. */
enum MHD_Result http_ready(exchange *x, const char *behind)
{
    api_error e = {0};
    dsi_buf text = dsi_buf_make(256);
    (void)behind;
    if (!http_may_begin(front_of(x), &e)) {
        e.status = MHD_HTTP_SERVICE_UNAVAILABLE;
        return reply_error(x, &e);
    }
    dsi_buf_puts(&text, "{\"status\":\"ready\"}\n");
    return reply_json(x, MHD_HTTP_OK, &text);
}

enum MHD_Result http_slots(exchange *x, const char *behind)
{
    dsi_buf text = dsi_buf_make(64u << 20);
    (void)behind;
    (void)pthread_mutex_lock(&front_of(x)->lock);
    slots_print(front_of(x), &text);
    (void)pthread_mutex_unlock(&front_of(x)->lock);
    return reply_json(x, MHD_HTTP_OK, &text);
}

/* adapter NULL: the model itself. */
static void put_model(front *f, const front_adapter *adapter, dsi_buf *text)
{
    dsi_buf_puts(text, "{\"id\":");
    put_clean(text, adapter != NULL ? adapter->name : f->name,
              strlen(adapter != NULL ? adapter->name : f->name));
    dsi_buf_printf(text, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"local\",",
                   (long long)(adapter != NULL ? adapter->created : f->created));
    if (adapter != NULL) {
        dsi_buf_puts(text, "\"parent\":");
        put_clean(text, f->name, strlen(f->name));
    } else {
        dsi_buf_puts(text, "\"root\":"); /* it changes with a reload */
        (void)pthread_mutex_lock(&f->lock);
        put_clean(text, f->path, strlen(f->path));
        (void)pthread_mutex_unlock(&f->lock);
    }
    dsi_buf_printf(text, ",\"max_model_len\":%lld,\"vocab_size\":%lld}", (long long)f->max_length,
                   (long long)f->vocab_size);
}

enum MHD_Result http_models(exchange *x, const char *behind)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    (void)behind;
    dsi_buf_puts(&text, "{\"object\":\"list\",\"data\":[");
    put_model(front_of(x), NULL, &text);
    for (size_t i = 0; i < front_of(x)->n_adapters; ++i) {
        dsi_buf_putc(&text, ',');
        put_model(front_of(x), &front_of(x)->adapters[i], &text);
    }
    dsi_buf_puts(&text, "]}\n");
    return reply_json(x, MHD_HTTP_OK, &text);
}

enum MHD_Result http_model(exchange *x, const char *behind)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    const front_adapter *adapter = lora_find(front_of(x), behind);
    if (strcmp(behind, front_of(x)->name) != 0 && adapter == NULL) {
        return reply_refusal(x, MHD_HTTP_NOT_FOUND, "model_not_found",
                             "there is no such model here");
    }
    put_model(front_of(x), adapter, &text);
    dsi_buf_putc(&text, '\n');
    return reply_json(x, MHD_HTTP_OK, &text);
}

enum MHD_Result http_metrics(exchange *x, const char *behind)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    (void)behind;
    (void)pthread_mutex_lock(&front_of(x)->lock);
    metrics_print(front_of(x), &text);
    (void)pthread_mutex_unlock(&front_of(x)->lock);
    return reply_text(x, MHD_HTTP_OK, "text/plain; version=0.0.4", &text);
}

/* MII's. */
enum MHD_Result http_healthz(exchange *x, const char *behind)
{
    dsi_buf text = dsi_buf_make(16);
    (void)behind;
    (void)pthread_mutex_lock(&front_of(x)->lock);
    const bool well =
        !front_of(x)->door.draining && !front_of(x)->broken && !watch_hangs(front_of(x));
    (void)pthread_mutex_unlock(&front_of(x)->lock);
    dsi_buf_puts(&text, well ? "ok" : "ends");
    return reply_text(x, well ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, "text/plain", &text);
}

enum MHD_Result http_page(exchange *x, const char *behind)
{
    struct MHD_Response *response = page_response();
    (void)behind;
    return response == NULL ? MHD_NO : reply_response(x, MHD_HTTP_OK, response);
}
