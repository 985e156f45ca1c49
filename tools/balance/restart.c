/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas of the front's own that have ended are started again: after 1 s, then 2, 4 … at most 60,
 * --replica_restarts times in a row. One that was up for a minute is well again and counts from
 * anew; one that never was up is not started again: its flags are wrong, or its folder. See
 * balance.h. */
#include "balance.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { WELL_SECONDS = 60, LONGEST_WAIT = 60 };

void restart_plan(replica *r)
{
    balance *b = r->b;
    const double now = dsi_clock_seconds();
    const int64_t most = b->o->replica_restarts;
    if (!r->was_up || b->stop || b->door.draining || most == 0) {
        return;
    }
    if (r->up_since > 0.0 && now - r->up_since >= WELL_SECONDS) {
        r->n_row = 0;
    }
    r->up_since = 0.0;
    if (r->n_row >= most) {
        ds_log(b->ctx, DS_LOG_WARN,
               "replica %zu is not started again: it ended %lld times in a row "
               "(--replica_restarts)",
               r->index, (long long)r->n_row + 1);
        return;
    }
    const double wait = r->n_row < 6 ? (double)(1 << r->n_row) : LONGEST_WAIT;
    r->n_row += 1;
    r->restart_due = now + wait;
    ds_log(b->ctx, DS_LOG_WARN, "replica %zu is started again in %g s (%lld of %lld)", r->index,
           wait, (long long)r->n_row, (long long)most);
}

/* What was of its last life. */
static void forget(replica *r)
{
    if (r->address != NULL) {
        freeaddrinfo(r->address);
        r->address = NULL;
    }
    dsi_buf_clear(&r->line[0]);
    dsi_buf_clear(&r->line[1]);
    dsi_buf_free(&r->metrics);
    r->told = false;
    r->port[0] = r->why[0] = '\0';
    r->restart_due = 0.0;
    r->stale = r->b->reloads; /* probe.c sees whether it has another folder than it should */
    r->state = REPLICA_STARTS;
    (void)snprintf(r->label, sizeof r->label, "replica %zu", r->index);
}

void restart_due(balance *b)
{
    const double now = dsi_clock_seconds();
    (void)pthread_mutex_lock(&b->lock);
    for (size_t i = 0; i < b->n; ++i) {
        replica *r = &b->replicas[i];
        if (r->restart_due == 0.0 || now < r->restart_due) {
            continue;
        }
        forget(r);
        r->n_restarts += 1;
        if (replica_start(b->ctx, r) < 0) {
            replica_fails(r, REPLICA_ENDED, ds_ctx_error(b->ctx));
        }
    }
    (void)pthread_mutex_unlock(&b->lock);
    relay_wake(b);
}
