/* SPDX-License-Identifier: Apache-2.0 */
/* See side_thread.h. */
#include "exec/side_thread.h"

#include "base/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct dsi_side_thread {
    ds_ctx *ctx; /* owned */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    dsi_side_thread_fn fn; /* NULL: no job */
    void *user;
    ds_status status; /* of the last job */
    bool quit;
};

static void *work(void *opaque)
{
    dsi_side_thread *b = opaque;
    (void)pthread_mutex_lock(&b->lock);
    for (;;) {
        while (b->fn == NULL && !b->quit) {
            (void)pthread_cond_wait(&b->changed, &b->lock);
        }
        if (b->fn == NULL) {
            break;
        }
        const dsi_side_thread_fn fn = b->fn;
        (void)pthread_mutex_unlock(&b->lock);
        const ds_status status = fn(b->user);
        (void)pthread_mutex_lock(&b->lock);
        b->status = status;
        b->fn = NULL;
        (void)pthread_cond_broadcast(&b->changed);
    }
    (void)pthread_mutex_unlock(&b->lock);
    return NULL;
}

ds_status dsi_side_thread_create(ds_ctx *ctx, uint32_t n_threads, dsi_side_thread **thread_out)
{
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = n_threads};
    dsi_side_thread *b = calloc(1, sizeof *b);
    if (b == NULL || ds_ctx_create(&params, &b->ctx) < 0) {
        free(b);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the threads of an update");
    }
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_cond_init(&b->changed, NULL);
    const int failed = dsi_thread_create(&b->thread, work, b);
    if (failed != 0) {
        (void)pthread_cond_destroy(&b->changed);
        (void)pthread_mutex_destroy(&b->lock);
        ds_ctx_destroy(&b->ctx);
        free(b);
        return ds_fail(ctx, DS_ERR_NOMEM, "cannot start the thread of an update: %s",
                       strerror(failed));
    }
    *thread_out = b;
    return DS_OK;
}

void dsi_side_thread_destroy(dsi_side_thread **thread)
{
    dsi_side_thread *b = thread != NULL ? *thread : NULL;
    if (b == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&b->lock);
    b->quit = true;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
    (void)pthread_join(b->thread, NULL);
    (void)pthread_cond_destroy(&b->changed);
    (void)pthread_mutex_destroy(&b->lock);
    ds_ctx_destroy(&b->ctx);
    free(b);
    *thread = NULL;
}

ds_ctx *dsi_side_thread_ctx(dsi_side_thread *b)
{
    return b->ctx;
}

void dsi_side_thread_start(dsi_side_thread *b, dsi_side_thread_fn fn, void *user)
{
    (void)pthread_mutex_lock(&b->lock);
    b->fn = fn;
    b->user = user;
    b->status = DS_OK;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

ds_status dsi_side_thread_finish(dsi_side_thread *b)
{
    (void)pthread_mutex_lock(&b->lock);
    while (b->fn != NULL) {
        (void)pthread_cond_wait(&b->changed, &b->lock);
    }
    const ds_status status = b->status;
    (void)pthread_mutex_unlock(&b->lock);
    return status;
}

void dsi_side_thread_drop(dsi_side_thread *b)
{
    (void)dsi_side_thread_finish(b);
    b->status = DS_OK; /* nobody else looks until the next start */
}
