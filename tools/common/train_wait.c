/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that open data: they end at different times, and none of them may seem to be lost.
 *
 * While data is read, every rank joins a small sum now and then: one that is still at work from the
 * progress of its reading, one that is done again and again until all are. So no wait is longer
 * than the time between two calls of the progress, however long a rank reads. With data that is
 * cached the first rank of each host reads, and the others, after it, find the cache.
 */
#include "base/clock.h"
#include "base/plain.h"
#include "common/train.h"

#include <string.h>
#include <unistd.h>

static const double tick_seconds = 1.0, line_seconds = 30.0, draw_seconds = 0.1;

/* *busy_out: how many ranks are still at work. */
static ds_status tick(train_wait *w, bool busy, double *busy_out)
{
    *busy_out = busy ? 1.0 : 0.0;
    DS_TRY(ds_comm_sum(w->run->comm, busy_out, 1));
    w->ticked = dsi_clock_seconds();
    return DS_OK;
}

static const char *verb(ds_dataset_stage stage)
{
    return stage == DS_DATASET_HASHES  ? "looking whether it is known"
           : stage == DS_DATASET_WAITS ? "waiting for another process"
                                       : "tokenizing";
}

static void show(train_wait *w, const ds_dataset_progress *p, double now)
{
    const double seconds = now - w->started;
    const double part = p->all > 0 ? (double)p->done / (double)p->all : 0.0;
    const double left = part > 0.0 ? seconds / part - seconds : 0.0;
    char text[200];
    (void)snprintf(text, sizeof text, "data: %s, %.1f of %.1f GB, %.1f M tokens, %.0f s left",
                   verb(p->stage), (double)p->done * 1e-9, (double)p->all * 1e-9,
                   (double)p->n_tokens * 1e-6, left);
    if (p->stage == DS_DATASET_WAITS) {
        (void)snprintf(text, sizeof text, "data: %s, %.0f s", verb(p->stage), seconds);
    }
    if (w->live) {
        (void)fprintf(stderr, "\r\033[K%s", text);
        w->drawn = true;
    } else {
        ds_log(w->run->ctx, DS_LOG_JOB, "%s", text);
    }
    w->shown = now;
}

static ds_status progress(void *user, const ds_dataset_progress *p)
{
    train_wait *w = user;
    const double now = dsi_clock_seconds();
    double busy = 0.0;
    if (p->stage != w->stage) {
        w->stage = p->stage;
        w->started = w->shown = now;
    }
    if (ds_comm_rank(w->run->comm) == 0 &&
        now - w->shown > (w->live ? draw_seconds : line_seconds)) {
        show(w, p, now);
    }
    return now - w->ticked > tick_seconds ? tick(w, true, &busy) : DS_OK;
}

void train_wait_begin(train_run *run, train_wait *wait)
{
    const double now = dsi_clock_seconds();
    *wait = (train_wait){.run = run,
                         .live = isatty(STDERR_FILENO) != 0,
                         .ticked = now,
                         .shown = now,
                         .started = now};
}

void train_wait_use(train_wait *wait, ds_dataset_params *params)
{
    params->progress = progress;
    params->progress_user = wait;
}

ds_status train_wait_all(train_wait *wait)
{
    double busy = 1.0;
    if (wait->drawn) {
        (void)fputs("\r\033[K", stderr);
        wait->drawn = false;
    }
    while (busy > 0.0) {
        DS_TRY(tick(wait, false, &busy));
    }
    return DS_OK;
}
