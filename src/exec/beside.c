/* SPDX-License-Identifier: Apache-2.0 */
/* See beside.h. */
#include "exec/beside.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct dsi_beside {
    ds_ctx *ctx; /* owned */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    dsi_beside_fn fn; /* NULL: no job */
    void *user;
    ds_status status; /* of the last job */
    bool quit;
};

static void *work(void *opaque)
{
    dsi_beside *b = opaque;
    (void)pthread_mutex_lock(&b->lock);
    for (;;) {
        while (b->fn == NULL && !b->quit) {
            (void)pthread_cond_wait(&b->changed, &b->lock);
        }
        if (b->fn == NULL) {
            break;
        }
        const dsi_beside_fn fn = b->fn;
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

/* Signals are the program's own threads' business. */
static int start_thread(dsi_beside *b)
{
    sigset_t all;
    sigset_t old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    const int failed = pthread_create(&b->thread, NULL, work, b);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return failed;
}

ds_status dsi_beside_create(ds_ctx *ctx, uint32_t n_threads, dsi_beside **beside_out)
{
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = n_threads};
    dsi_beside *b = calloc(1, sizeof *b);
    if (b == NULL || ds_ctx_create(&params, &b->ctx) < 0) {
        free(b);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the threads of an update");
    }
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_cond_init(&b->changed, NULL);
    const int failed = start_thread(b);
    if (failed != 0) {
        (void)pthread_cond_destroy(&b->changed);
        (void)pthread_mutex_destroy(&b->lock);
        ds_ctx_destroy(&b->ctx);
        free(b);
        return ds_fail(ctx, DS_ERR_NOMEM, "cannot start the thread of an update: %s",
                       strerror(failed));
    }
    *beside_out = b;
    return DS_OK;
}

void dsi_beside_destroy(dsi_beside **beside)
{
    dsi_beside *b = beside != NULL ? *beside : NULL;
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
    *beside = NULL;
}

ds_ctx *dsi_beside_ctx(dsi_beside *b)
{
    return b->ctx;
}

void dsi_beside_start(dsi_beside *b, dsi_beside_fn fn, void *user)
{
    (void)pthread_mutex_lock(&b->lock);
    b->fn = fn;
    b->user = user;
    b->status = DS_OK;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

ds_status dsi_beside_finish(dsi_beside *b)
{
    (void)pthread_mutex_lock(&b->lock);
    while (b->fn != NULL) {
        (void)pthread_cond_wait(&b->changed, &b->lock);
    }
    const ds_status status = b->status;
    (void)pthread_mutex_unlock(&b->lock);
    return status;
}

void dsi_beside_drop(dsi_beside *b)
{
    (void)dsi_beside_finish(b);
    b->status = DS_OK; /* nobody else looks until the next start */
}
