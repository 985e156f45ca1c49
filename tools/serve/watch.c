/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the engine's thread goes on: the main thread looks at its beat. See front.h.
 *
 * Time in which this thread was not run itself does not count, so that a process that was stopped
 * as a whole, or a machine that slept, is no engine that hangs. */
#include "front.h"

#include "base/clock.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Seconds that a tick counts at most; they are a tenth or a quarter apart. */
static const double most_of_tick = 1.0;

bool watch_hangs(const front *f)
{
    return f->options->hang_seconds > 0.0 && f->stalled > f->options->hang_seconds;
}

void watch_tick(front *f)
{
    (void)pthread_mutex_lock(&f->lock);
    const double now = dsi_clock_seconds();
    const double passed = now - f->watched;
    const bool before = watch_hangs(f);
    if (f->idle || f->beat != f->seen_beat) {
        f->seen_beat = f->beat;
        f->stalled = 0.0;
    } else {
        f->stalled += passed < most_of_tick ? passed : most_of_tick;
    }
    f->watched = now;
    if (watch_hangs(f) != before) {
        ds_log(f->http_ctx, DS_LOG_WARN,
               before ? "the engine goes on" : "the engine hangs: no step has ended for %g s",
               f->options->hang_seconds);
    }
    (void)pthread_mutex_unlock(&f->lock);
}

void watch_join(front *f, pthread_t engine)
{
    for (;;) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        if (pthread_timedjoin_np(engine, NULL, &until) == 0) {
            return;
        }
        watch_tick(f);
        (void)pthread_mutex_lock(&f->lock);
        const bool hangs = watch_hangs(f);
        (void)pthread_mutex_unlock(&f->lock);
        if (hangs) { /* nothing that it holds can be taken from it */
            ds_log(f->http_ctx, DS_LOG_WARN, "the server ends without its engine, which hangs");
            _exit(EXIT_FAILURE);
        }
    }
}
