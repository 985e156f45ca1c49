/* SPDX-License-Identifier: Apache-2.0 */
/* The context: creation, error record, log sink. See include/deepspeed/context.h. */
#include "base/context.h"

#include "base/plain.h"
#include "base/processor.h"
#include "base/reserved.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ds_ctx_params ds_ctx_params_default(void)
{
    return (ds_ctx_params){.level = DS_LOG_JOB, .world_size = 1};
}

ds_status ds_ctx_create(const ds_ctx_params *params, ds_ctx **ctx_out)
{
    if (params != NULL) {
        DS_TRY(DSI_RESERVED_CHECK(NULL, "ds_ctx_params", params));
    }
    ds_ctx *ctx = calloc(1, sizeof *ctx);
    if (ctx == NULL) {
        return DS_ERR_NOMEM;
    }
    ctx->params = params != NULL ? *params : ds_ctx_params_default();
    if (ctx->params.n_threads == 0) {
        ctx->params.n_threads = dsi_processor_n_cores();
    }
    if (ctx->params.world_size == 0) {
        ctx->params.world_size = 1;
    }
    (void)pthread_mutex_init(&ctx->lock, NULL);
    const ds_status status = dsi_pool_create(ctx->params.n_threads, &ctx->pool);
    if (status < 0) {
        ds_ctx_destroy(&ctx);
        return status;
    }
    *ctx_out = ctx;
    return DS_OK;
}

void ds_ctx_destroy(ds_ctx **ctx_inout)
{
    ds_ctx *ctx = ctx_inout != NULL ? *ctx_inout : NULL;
    if (ctx == NULL) {
        return;
    }
    dsi_pool_destroy(&ctx->pool);
    (void)pthread_mutex_destroy(&ctx->lock);
    free(ctx);
    *ctx_inout = NULL;
}

dsi_pool *dsi_ctx_pool(ds_ctx *ctx)
{
    return ctx != NULL ? ctx->pool : NULL;
}

uint32_t ds_ctx_n_threads(const ds_ctx *ctx)
{
    return ctx != NULL ? ctx->params.n_threads : 1;
}

const char *ds_ctx_error(const ds_ctx *ctx)
{
    return ctx != NULL ? ctx->message : "";
}

const char *ds_ctx_error_place(const ds_ctx *ctx)
{
    return ctx != NULL ? ctx->place : "";
}

static const char *path_in_project(const char *file)
{
    const char *found = strstr(file, "src/");
    return found != NULL ? found : file;
}

/* Texts longer than LONG_BYTES are counted no further: the message ends with what fits anyway. */
static void format_plain(char *out, size_t room, const char *format, va_list args)
{
    enum { LONG_BYTES = 8 * DSI_ERROR_BYTES };
    char text[LONG_BYTES];
    (void)vsnprintf(text, sizeof text, format, args);
    dsi_plain_message(text, out, room);
}

ds_status ds_fail_at(ds_ctx *ctx, const char *file, int line, ds_status status, const char *format,
                     ...)
{
    if (ctx == NULL) {
        return status;
    }
    char message[DSI_ERROR_BYTES]; /* formatted aside: an argument may be the old message */
    va_list args;
    va_start(args, format);
    format_plain(message, sizeof message, format, args);
    va_end(args);
    (void)pthread_mutex_lock(&ctx->lock);
    memcpy(ctx->message, message, sizeof message);
    (void)snprintf(ctx->place, sizeof ctx->place, "%s:%d", path_in_project(file), line);
    (void)pthread_mutex_unlock(&ctx->lock);
    return status;
}

void dsi_ctx_error_within(ds_ctx *ctx, const char *where)
{
    if (ctx == NULL || where[0] == '\0') {
        return;
    }
    char message[2 * DSI_ERROR_BYTES];
    (void)pthread_mutex_lock(&ctx->lock);
    (void)snprintf(message, sizeof message, "%.1024s: %s", where, ctx->message);
    dsi_plain_message(message, ctx->message, sizeof ctx->message);
    (void)pthread_mutex_unlock(&ctx->lock);
}

void ds_log(ds_ctx *ctx, ds_log_level level, const char *format, ...)
{
    if (ctx != NULL && level > ctx->params.level) {
        return;
    }
    char line[DSI_ERROR_BYTES];
    int n = 0;
    if (ctx != NULL && ctx->params.world_size > 1) {
        n = snprintf(line, sizeof line, "[rank %u] ", ctx->params.rank);
    }
    va_list args;
    va_start(args, format);
    format_plain(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    if (ctx == NULL || ctx->params.log == NULL) {
        (void)fprintf(stderr, "%s\n", line);
        return;
    }
    (void)pthread_mutex_lock(&ctx->lock);
    ctx->params.log(ctx->params.log_user, level, line);
    (void)pthread_mutex_unlock(&ctx->lock);
}

const char *ds_status_text(ds_status status)
{
    switch (status) {
#define X(name, value, text)                                                                       \
    case DS_##name:                                                                                \
        return text;
        DS_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

const char *ds_status_name(ds_status status)
{
    switch (status) {
#define X(name, value, text)                                                                       \
    case DS_##name:                                                                                \
        return #name;
        DS_STATUS_LIST(X)
#undef X
    }
    return "?";
}
