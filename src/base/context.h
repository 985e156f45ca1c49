/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ds_ctx. Only base/ reads the fields; others use the functions. */
#ifndef DSI_BASE_CONTEXT_H
#define DSI_BASE_CONTEXT_H

#include "base/pool.h"
#include <deepspeed/context.h>
#include <pthread.h>

enum { DSI_ERROR_BYTES = 4096 };

struct ds_ctx {
    ds_ctx_params params;
    pthread_mutex_t lock; /* guards message, place and the log sink */
    char message[DSI_ERROR_BYTES];
    char place[128];
    dsi_pool *pool;
};

/* Puts "where: " before the newest error's message, and leaves its place: for callers that know
 * what the error's own function cannot. Nothing for "". */
void dsi_ctx_error_within(ds_ctx *ctx, const char *where);

/* The pool that kernels of this context run on. Borrowed. */
dsi_pool *dsi_ctx_pool(ds_ctx *ctx);

#endif
