/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for transfers: how they went, and what is said of a disk that is slow or does not answer.
 * See aio.h. */
#include "io/aio_impl.h"

#include "base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Time is counted in ticks that the waiting thread lived through: a process that was stopped, or a
 * machine that slept, has not waited for its disk. */
#define TICK_SECONDS 0.05
#define SLOW_SECONDS 30.0 /* to the first warning, when there is no limit to derive it from */
#define HOPE_SECONDS 0.5  /* for a disk that did not answer in time */

/* What one wait has seen; lock held throughout. */
typedef struct watch {
    uint64_t n_pieces;  /* of the handle, when last looked at */
    uint64_t moved;     /* bytes of the handle, at the begin */
    double began, last; /* clock */
    double waited;      /* seconds */
    double stalled;     /* of them, those since a transfer ended */
    double next;        /* of waited, when something is said */
} watch;

/* NULL: it is used up or was never given. Lock held. */
static aio_request *request_of(dsi_aio *aio, dsi_aio_ticket ticket)
{
    aio_request *r = &aio->requests[(ticket & 0xffff) % aio->max_requests];
    const bool fits = (ticket & 0xffff) < aio->max_requests;
    const bool is_its = r->state != AIO_FREE && r->generation == (uint32_t)(ticket >> 16);
    return fits && is_its ? r : NULL;
}

static ds_status find(dsi_aio *aio, dsi_aio_ticket ticket, aio_request **request_out)
{
    *request_out = request_of(aio, ticket);
    return *request_out != NULL
               ? DS_OK
               : ds_fail(aio->ctx, DS_ERR_ARG,
                         "aio: ticket %" PRIu64 " is used up or was never given", ticket);
}

static const char *remedy_of(int reason)
{
    switch (reason) {
    case ENOSPC:
    case EDQUOT:
        return "; free some space or choose another folder";
    case EFBIG:
        return "; the file system or `ulimit -f` does not allow a file of this size";
    case EIO:
        return "; the disk or the network to it fails: see the kernel's log (dmesg)";
    default:
        return "";
    }
}

static const char *verb_of(const aio_request *r)
{
    return r->direction == AIO_READ ? "read" : "write";
}

static const char *text_of(const dsi_aio *aio, const aio_request *r)
{
    const char *text = r->moves ? aio->mover.text(r->reason) : NULL;
    return text != NULL ? text : strerror(r->reason);
}

static ds_status tell(dsi_aio *aio, const aio_request *r)
{
    if (r->reason == 0) {
        return DS_OK;
    }
    const char *path = aio->files[r->file].parts[r->reason_part].path;
    if (r->reason == AIO_END_OF_FILE) {
        return ds_fail(aio->ctx, DS_ERR_IO,
                       "cannot read %zu bytes at offset %" PRIu64 " of %s: the file ends at or "
                       "before offset %" PRIu64,
                       r->bytes, r->offset, path, r->reason_offset);
    }
    return ds_fail(aio->ctx, DS_ERR_IO,
                   "cannot %s %zu bytes at offset %" PRIu64 " of %s: at offset %" PRIu64 ": %s%s",
                   verb_of(r), r->bytes, r->offset, path, r->reason_offset, text_of(aio, r),
                   remedy_of(r->reason));
}

static void free_entry(dsi_aio *aio, aio_request *r)
{
    r->state = AIO_FREE;
    ++r->generation;
    r->next = aio->free_list;
    aio->free_list = r;
}

/* Frees the entry of a request that is done and reports how it went. Lock held; released. */
static ds_status use_up(dsi_aio *aio, aio_request *r)
{
    const aio_request result = *r;
    free_entry(aio, r);
    (void)pthread_mutex_unlock(&aio->lock);
    return tell(aio, &result);
}

/* ---- a disk that is slow, or does not answer ---- */

static uint64_t moved_by(const dsi_aio *aio)
{
    return aio->stats.read_bytes + aio->stats.write_bytes;
}

static double first_warning(const dsi_aio *aio)
{
    const double tenth = aio->patience / 10.0;
    return tenth > 0.0 && tenth < SLOW_SECONDS ? tenth : SLOW_SECONDS;
}

static watch begin_watch(const dsi_aio *aio)
{
    const double now = dsi_clock_seconds();
    return (watch){.n_pieces = aio->stats.n_pieces,
                   .moved = moved_by(aio),
                   .began = now,
                   .last = now,
                   .next = first_warning(aio)};
}

/* Sleeps until a request ends, at most for a tick. */
static void sleep_tick(dsi_aio *aio, watch *w)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(TICK_SECONDS * 1e9);
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        ++until.tv_sec;
    }
    (void)pthread_cond_timedwait(&aio->done, &aio->lock, &until);
    const double now = dsi_clock_seconds();
    const double passed = now - w->last < 2.0 * TICK_SECONDS ? now - w->last : 2.0 * TICK_SECONDS;
    const bool progress = aio->stats.n_pieces != w->n_pieces;
    w->n_pieces = aio->stats.n_pieces;
    w->last = now;
    w->waited += passed;
    w->stalled = progress ? 0.0 : w->stalled + passed;
}

/* After a tenth of the limit, then after twice as long, and so on. */
static void warn_if_slow(dsi_aio *aio, const aio_request *r, watch *w)
{
    char pace[96];
    if (w->waited < w->next) {
        return;
    }
    w->next *= 2.0;
    if (w->stalled >= w->waited * 0.9) {
        (void)snprintf(pace, sizeof pace, "nothing was transferred in this time");
    } else {
        (void)snprintf(pace, sizeof pace, "all transfers together %.3g MB/s, the last %.3g s ago",
                       (double)(moved_by(aio) - w->moved) / w->waited / 1e6, w->stalled);
    }
    ds_log(aio->ctx, DS_LOG_WARN,
           "aio: slow disk: waiting for %.3g s for the %s of %zu bytes at offset %" PRIu64
           " of %s; %s",
           w->waited, verb_of(r), r->bytes, r->offset, aio->files[r->file].parts[0].path, pace);
}

static ds_status fail_stuck(dsi_aio *aio, const aio_request *r, const watch *w)
{
    aio->stuck = true;
    return ds_fail(aio->ctx, DS_ERR_IO,
                   "the disk does not answer: the %s of %zu bytes at offset %" PRIu64
                   " of %s has made no progress for %.3g s (the limit; DEEPSPEED_TIMEOUT sets "
                   "it); see the kernel's log (dmesg)",
                   verb_of(r), r->bytes, r->offset, aio->files[r->file].parts[0].path, w->stalled);
}

/* Until the request is done; with the lock held. In vain or not, the time has been waited. */
static ds_status wait_done(dsi_aio *aio, const aio_request *r)
{
    ds_status status = DS_OK;
    watch w;
    if (r->state == AIO_DONE) {
        return DS_OK;
    }
    w = begin_watch(aio);
    while (r->state != AIO_DONE && status >= 0) {
        sleep_tick(aio, &w);
        if (r->state != AIO_DONE && aio->patience > 0.0 && w.stalled >= aio->patience) {
            status = fail_stuck(aio, r, &w);
        } else if (r->state != AIO_DONE) {
            warn_if_slow(aio, r, &w);
        }
    }
    aio->stats.wait_seconds += w.last - w.began;
    return status;
}

/* ---- the calls ---- */

ds_status dsi_aio_wait(dsi_aio *aio, dsi_aio_ticket ticket)
{
    return dsi_aio_wait_timed(aio, ticket, NULL);
}

ds_status dsi_aio_wait_timed(dsi_aio *aio, dsi_aio_ticket ticket, double *seconds_out)
{
    aio_request *r = NULL;
    if (seconds_out != NULL) {
        *seconds_out = 0.0;
    }
    if (ticket == 0) {
        return DS_OK;
    }
    (void)pthread_mutex_lock(&aio->lock);
    ds_status status = find(aio, ticket, &r);
    status = status < 0 ? status : wait_done(aio, r);
    if (status < 0) {
        (void)pthread_mutex_unlock(&aio->lock);
        return status;
    }
    if (seconds_out != NULL) {
        *seconds_out = r->ended - r->submitted;
    }
    return use_up(aio, r);
}

/* ---- after an error ---- */

/* Whether one may go on waiting: a disk that did not answer in time is given a little more of it,
 * no longer than that. */
static bool has_hope(const dsi_aio *aio, const watch *w)
{
    return !aio->stuck || w->stalled <= HOPE_SECONDS;
}

void dsi_aio_discard(dsi_aio *aio, dsi_aio_ticket ticket)
{
    (void)pthread_mutex_lock(&aio->lock);
    aio_request *r = ticket != 0 ? request_of(aio, ticket) : NULL;
    watch w = begin_watch(aio);
    while (r != NULL && r->state != AIO_DONE && has_hope(aio, &w)) {
        sleep_tick(aio, &w);
    }
    if (r != NULL && r->state == AIO_DONE) {
        free_entry(aio, r);
    }
    (void)pthread_mutex_unlock(&aio->lock);
}

/* Lock held. */
static bool drain(dsi_aio *aio)
{
    watch w = begin_watch(aio);
    while (aio->n_active > 0 && has_hope(aio, &w)) {
        sleep_tick(aio, &w);
    }
    return aio->n_active == 0;
}

bool dsi_aio_drain(dsi_aio *aio)
{
    (void)pthread_mutex_lock(&aio->lock);
    const bool drained = drain(aio);
    (void)pthread_mutex_unlock(&aio->lock);
    return drained;
}

bool dsi_aio_answers(dsi_aio *aio)
{
    (void)pthread_mutex_lock(&aio->lock);
    aio->stuck = aio->stuck && !drain(aio);
    const bool answers = !aio->stuck;
    (void)pthread_mutex_unlock(&aio->lock);
    return answers;
}
