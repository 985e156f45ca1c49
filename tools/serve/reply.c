/* SPDX-License-Identifier: Apache-2.0 */
/* Answers: status, headers, errors; of a server of a model and of a front of replicas. See door.h.
 */
#include "front.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool api_fail(api_error *e, unsigned status, const char *code, const char *param,
              const char *format, ...)
{
    va_list args;
    e->status = status;
    e->type = status == MHD_HTTP_NOT_FOUND           ? "not_found_error"
              : status == MHD_HTTP_UNAUTHORIZED      ? "authentication_error"
              : status >= 500                        ? "server_error"
              : status == MHD_HTTP_TOO_MANY_REQUESTS ? "rate_limit_error"
                                                     : "invalid_request_error";
    e->code = code;
    (void)snprintf(e->param, sizeof e->param, "%s", param);
    va_start(args, format);
    (void)vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    return false;
}

void api_ignore(dsi_buf *ignored, const char *name)
{
    const size_t n = strlen(name);
    const char *at = dsi_buf_text(ignored);
    while (*at != '\0' && (strncmp(at, name, n) != 0 || at[n] != ' ')) {
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    if (*at == '\0') {
        dsi_buf_printf(ignored, "%s ", name);
    }
}

void api_error_print(const api_error *e, dsi_buf *out)
{
    dsi_buf_puts(out, "{\"error\":{\"message\":");
    put_clean(out, e->message, strlen(e->message));
    dsi_buf_printf(out, ",\"type\":\"%s\",\"param\":", e->type);
    if (e->param[0] != '\0') {
        put_clean(out, e->param, strlen(e->param));
    } else {
        dsi_buf_puts(out, "null");
    }
    if (e->code != NULL) {
        dsi_buf_printf(out, ",\"code\":\"%s\"}}\n", e->code);
    } else {
        dsi_buf_puts(out, ",\"code\":null}}\n");
    }
}

enum MHD_Result reply_response(exchange *x, unsigned status, struct MHD_Response *response)
{
    door *d = x->door;
    if (response == NULL) {
        return MHD_NO;
    }
    if (x->ignored.size > 0) {
        (void)MHD_add_response_header(response, "X-Ignored-Fields", dsi_buf_text(&x->ignored));
    }
    if (status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE) {
        (void)MHD_add_response_header(response, "Retry-After", "1");
    }
    (void)pthread_mutex_lock(d->lock);
    d->n_answers[status / 100 < 6 ? status / 100 : 5] += 1;
    const bool ends = d->draining;
    (void)pthread_mutex_unlock(d->lock);
    if (ends) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    const enum MHD_Result result = MHD_queue_response(x->connection, status, response);
    MHD_destroy_response(response);
    return result;
}

struct MHD_Response *reply_whole(dsi_buf *text, const char *type)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        text->size, (void *)(uintptr_t)dsi_buf_text(text), MHD_RESPMEM_MUST_COPY);
    dsi_buf_free(text);
    if (response != NULL) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    }
    return response;
}

struct MHD_Response *reply_stream(MHD_ContentReaderCallback read, void *user, const char *type)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, read, user, NULL);
    if (response != NULL) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    }
    return response;
}

enum MHD_Result reply_text(exchange *x, unsigned status, const char *type, dsi_buf *text)
{
    return reply_response(x, status, reply_whole(text, type));
}

enum MHD_Result reply_json(exchange *x, unsigned status, dsi_buf *text)
{
    return reply_text(x, status, "application/json", text);
}

enum MHD_Result reply_error(exchange *x, const api_error *e)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    api_error_print(e, &text);
    return reply_json(x, e->status, &text);
}

enum MHD_Result reply_refusal(exchange *x, unsigned status, const char *code, const char *message)
{
    api_error e;
    (void)api_fail(&e, status, code, "", "%s", message);
    return reply_error(x, &e);
}
