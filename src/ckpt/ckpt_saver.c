/* SPDX-License-Identifier: Apache-2.0 */
/* Saving behind training: the slices are copied, a thread writes them while the caller goes on.
 *
 * The thread allocates and frees nothing while all goes well (LAW 6: steps run meanwhile): commit
 * makes all that it needs, and the next call after the end frees it.
 *
 * 1. The caller's thread uses the saver's communicator and context only while the thread is idle:
 *    begin and commit wait for it first. Both are the saver's own, so the caller's stay free.
 * 2. `busy`, `job`, `result` and `quit` change under the lock only.
 * 3. A result is reported once, by begin, poll or wait; on several ranks begin makes all ranks fail
 *    together when one has a failure to report.
 */
#include "ckpt/checkpoint_on.h"
#include "ckpt/ckpt_writer.h"

#include "base/clock.h"
#include "base/context.h"
#include "base/thread.h"
#include "io/file_direct.h"
#include <deepspeed/context.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COPY_BYTES ((size_t)4 << 20) /* a task of the copy */

struct ds_checkpoint_saver {
    ds_ctx *ctx;    /* the caller's */
    ds_ctx *own;    /* of the thread: its errors do not overwrite the caller's */
    dsi_comm *comm; /* own, NULL: one rank */
    uint8_t *copy;
    size_t capacity;
    double begin_seconds, waited_seconds; /* of the save that is being collected */
    ds_checkpoint_saver_info info;

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool busy, quit;
    ds_checkpoint_writer *job; /* being written, or written and not yet freed */
    ds_status result;          /* of the newest save that ended; OK once reported */
    double write_seconds;
};

static void forward(void *user, ds_log_level level, const char *line)
{
    ds_log(user, level, "%s", line);
}

/* ---- the thread ---- */

static ds_status write_job(ds_checkpoint_saver *s, ds_checkpoint_writer *w)
{
    const double begin = dsi_clock_seconds();
    const ds_status status = dsi_ckpt_commit_rest(w, true);
    s->write_seconds = dsi_clock_seconds() - begin;
    if (status == DS_OK && w->group.rank == 0) {
        ds_log(s->ctx, DS_LOG_JOB, "checkpoint %s: written behind training in %.3f s",
               w->m.info.tag, s->write_seconds);
    }
    return status;
}

static void *run(void *arg)
{
    ds_checkpoint_saver *s = arg;
    (void)pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->busy && !s->quit) {
            (void)pthread_cond_wait(&s->changed, &s->lock);
        }
        if (!s->busy) {
            break;
        }
        ds_checkpoint_writer *w = s->job;
        (void)pthread_mutex_unlock(&s->lock);
        const ds_status status = write_job(s, w);
        if (status < 0) {
            dsi_ckpt_writer_free(&w); /* what was begun is removed at once */
        }
        (void)pthread_mutex_lock(&s->lock);
        s->result = status;
        s->job = w;
        s->busy = false;
        (void)pthread_cond_broadcast(&s->changed);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* What the thread leaves after a success. Pre: it is idle. */
static void free_job(ds_checkpoint_saver *s)
{
    dsi_ckpt_remove_old(s->job);
    dsi_ckpt_writer_free(&s->job);
}

/* ---- making and ending ---- */

ds_status dsi_checkpoint_saver_create_on(ds_ctx *ctx, dsi_comm *comm,
                                         ds_checkpoint_saver **saver_out)
{
    ds_ctx_params params = ds_ctx_params_default();
    ds_checkpoint_saver *s = calloc(1, sizeof *s);
    ds_status status = DS_OK;
    if (s == NULL) {
        dsi_comm_abort(comm, "out of memory for a checkpoint saver");
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory for a checkpoint saver");
    }
    s->ctx = ctx;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->changed, NULL);
    params.log = forward;
    params.log_user = ctx;
    params.level = DS_LOG_TENSOR; /* ctx drops what it does not want */
    params.n_threads = 1;
    DS_TRY_GOTO(status, ds_ctx_create(&params, &s->own), undo);
    if (comm != NULL && comm->size > 1) {
        DS_TRY_GOTO(status, dsi_comm_twin(comm, s->own, &s->comm), undo);
    }
    if (dsi_thread_create(&s->thread, run, s) != 0) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "cannot start the thread of a checkpoint saver");
        goto undo;
    }
    s->has_thread = true;
    *saver_out = s;
    return DS_OK;

undo:
    dsi_comm_abort(comm, ds_ctx_error(ctx));
    ds_checkpoint_saver_destroy(&s);
    return status;
}

ds_status ds_checkpoint_saver_create(ds_ctx *ctx, ds_checkpoint_saver **saver_out)
{
    return dsi_checkpoint_saver_create_on(ctx, NULL, saver_out);
}

void ds_checkpoint_saver_destroy(ds_checkpoint_saver **saver)
{
    ds_checkpoint_saver *s = saver != NULL ? *saver : NULL;
    if (s == NULL) {
        return;
    }
    if (s->has_thread) {
        (void)pthread_mutex_lock(&s->lock);
        s->quit = true; /* after the job that is being written */
        (void)pthread_cond_broadcast(&s->changed);
        (void)pthread_mutex_unlock(&s->lock);
        (void)pthread_join(s->thread, NULL);
    }
    if (s->job != NULL) {
        free_job(s);
    }
    if (s->result < 0) {
        ds_log(s->ctx, DS_LOG_ERROR, "the last checkpoint was not saved: %s", ds_ctx_error(s->own));
    }
    dsi_comm_destroy(&s->comm);
    ds_ctx_destroy(&s->own);
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
    free(s->copy);
    free(s);
    *saver = NULL;
}

/* ---- results ---- */

/* Takes the result of the save that ended, with its message. Pre: the thread is idle. */
static ds_status take_result(ds_checkpoint_saver *s)
{
    const ds_status status = s->result;
    s->result = DS_OK;
    s->info.write_seconds = s->write_seconds;
    if (s->job != NULL) {
        free_job(s);
    }
    return status < 0 ? ds_fail(s->ctx, status, "%s", ds_ctx_error(s->own)) : DS_OK;
}

ds_status ds_checkpoint_saver_poll(ds_checkpoint_saver *s)
{
    (void)pthread_mutex_lock(&s->lock);
    const ds_status status = s->busy ? DS_IN_PROGRESS : take_result(s);
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

ds_status ds_checkpoint_saver_wait(ds_checkpoint_saver *s)
{
    (void)pthread_mutex_lock(&s->lock);
    while (s->busy) {
        (void)pthread_cond_wait(&s->changed, &s->lock);
    }
    const ds_status status = take_result(s);
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

const ds_checkpoint_saver_info *ds_checkpoint_saver_get_info(const ds_checkpoint_saver *s)
{
    return &s->info;
}

/* ---- a save ---- */

ds_status ds_checkpoint_saver_begin(ds_checkpoint_saver *s, const ds_checkpoint_params *params,
                                    ds_checkpoint_writer **writer_out)
{
    const double begin = dsi_clock_seconds();
    const ds_status before = ds_checkpoint_saver_wait(s);
    s->waited_seconds = dsi_clock_seconds() - begin;
    if (before < 0) { /* the group speaks of errors through its own context */
        (void)ds_fail(s->own, before, "%s", ds_ctx_error(s->ctx));
    }
    const ds_status status = dsi_ckpt_writer_create(s->own, params, s->comm, before, writer_out);
    s->begin_seconds = dsi_clock_seconds() - begin;
    if (status < 0) {
        return ds_fail(s->ctx, status, "%s", ds_ctx_error(s->own));
    }
    (*writer_out)->ctx = s->ctx; /* the caller's add and state speak to the caller */
    return DS_OK;
}

ds_status ds_checkpoint_saver_reserve(ds_checkpoint_saver *s, size_t bytes)
{
    if (bytes <= s->capacity) {
        return DS_OK;
    }
    DS_TRY(ds_checkpoint_saver_wait(s));
    free(s->copy);
    s->capacity = 0;
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes) != 0) {
        s->copy = NULL;
        return ds_fail(s->ctx, DS_ERR_NOMEM,
                       "no %zu bytes of host memory for the copy of a checkpoint; save without "
                       "copying",
                       bytes);
    }
    s->copy = memory;
    s->capacity = bytes;
    s->info.copy_bytes = bytes + (bytes >= DSI_DIRECT_MIN ? DSI_DIRECT_BYTES : 0);
    memset(s->copy, 0, bytes); /* the pages are there before the first save */
    return DS_OK;
}

static size_t bytes_of(const dsi_ckpt_pending *p)
{
    return (size_t)ds_extent_count(&p->extent, p->tensor.meta.shape) *
           ds_dtype_bytes(p->tensor.meta.dtype);
}

typedef struct copy_job {
    const uint8_t *from;
    uint8_t *to;
    size_t bytes;
} copy_job;

static void copy_task(void *arg, uint32_t task, uint32_t thread)
{
    const copy_job *job = arg;
    const size_t at = task * COPY_BYTES;
    (void)thread;
    memcpy(job->to + at, job->from + at,
           job->bytes - at < COPY_BYTES ? job->bytes - at : COPY_BYTES);
}

/* Room for the copies, each aligned to a line of the cache. */
static size_t room_for(const ds_checkpoint_writer *w)
{
    size_t total = 0;
    for (size_t i = 0; i < w->n_pending; ++i) {
        total += (bytes_of(&w->pending[i]) + 63) / 64 * 64;
    }
    return total;
}

/* Copies every slice; the writer then refers to the copy. */
static ds_status copy_slices(ds_checkpoint_saver *s, ds_checkpoint_writer *w)
{
    DS_TRY(ds_checkpoint_saver_reserve(s, room_for(w)));
    uint8_t *at = s->copy;
    for (size_t i = 0; i < w->n_pending; ++i) {
        dsi_ckpt_pending *p = &w->pending[i];
        const size_t bytes = bytes_of(p);
        if (p->data != NULL) {
            copy_job job = {p->data, at, bytes};
            dsi_pool_run(dsi_ctx_pool(s->ctx), copy_task, &job,
                         (uint32_t)((bytes + COPY_BYTES - 1) / COPY_BYTES));
        } else if (bytes > 0) {
            DS_TRY(p->fill(p->user, p->fill_base, at, bytes));
        }
        p->data = bytes > 0 ? at : NULL;
        p->fill = NULL;
        at += (bytes + 63) / 64 * 64;
    }
    return DS_OK;
}

ds_status dsi_checkpoint_saver_measure(ds_checkpoint_saver *s, ds_checkpoint_writer **writer_out)
{
    const ds_status status = dsi_ckpt_writer_measure(s->own, s->comm, writer_out);
    if (status < 0) {
        return ds_fail(s->ctx, status, "%s", ds_ctx_error(s->own));
    }
    (*writer_out)->ctx = s->ctx;
    return DS_OK;
}

ds_status dsi_checkpoint_saver_reserve_for(ds_checkpoint_saver *s, ds_checkpoint_writer **writer,
                                           size_t limit)
{
    ds_checkpoint_writer *w = *writer;
    *writer = NULL;
    w->ctx = s->own;
    ds_status status = dsi_ckpt_commit_begin(w);
    if (status == DS_OK) {
        const size_t bytes = room_for(w);
        if (limit > 0 && bytes > limit) {
            status = ds_fail(s->own, DS_ERR_LIMIT,
                             "the copy of a checkpoint takes %.3f GB of this rank's memory, and "
                             "%.3f GB are allowed; allow more, or do not save behind training",
                             (double)bytes / 1e9, (double)limit / 1e9);
        } else {
            status = ds_checkpoint_saver_reserve(s, bytes);
            if (status < 0) {
                (void)ds_fail(s->own, status, "%s", ds_ctx_error(s->ctx));
            }
        }
        status = dsi_ckpt_agree(&w->group, status);
    }
    dsi_ckpt_writer_free(&w);
    return status < 0 ? ds_fail(s->ctx, status, "%s", ds_ctx_error(s->own)) : DS_OK;
}

static void hand_over(ds_checkpoint_saver *s, ds_checkpoint_writer *w)
{
    (void)pthread_mutex_lock(&s->lock);
    s->job = w;
    s->busy = true;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

ds_status ds_checkpoint_saver_commit(ds_checkpoint_saver *s, ds_checkpoint_writer **writer)
{
    const double begin = dsi_clock_seconds();
    ds_checkpoint_writer *w = *writer;
    *writer = NULL;
    w->ctx = s->own;
    ds_status status = dsi_ckpt_commit_begin(w);
    if (status == DS_OK) {
        status = copy_slices(s, w);
        if (status < 0) {
            (void)ds_fail(s->own, status, "%s", ds_ctx_error(s->ctx));
        }
        status = dsi_ckpt_agree(&w->group, status);
    }
    if (status == DS_OK) {
        status = dsi_ckpt_prepare(w);
    }
    if (status < 0) {
        dsi_ckpt_writer_free(&w);
        return ds_fail(s->ctx, status, "%s", ds_ctx_error(s->own));
    }
    ++s->info.n_saves;
    s->info.stall_seconds = s->begin_seconds + dsi_clock_seconds() - begin;
    if (w->group.rank == 0) {
        ds_log(s->ctx, DS_LOG_JOB,
               "checkpoint %s: training stood still for %.3f s (%.3f s of it for the save before); "
               "the copy takes %.1f MB of this rank's memory",
               w->m.info.tag, s->info.stall_seconds, s->waited_seconds,
               (double)s->info.copy_bytes / 1e6);
    }
    hand_over(s, w);
    return DS_OK;
}
