/* SPDX-License-Identifier: Apache-2.0 */
/* Time in the simulator: delays, waiting for others, who is missing. See sim_impl.h. */
#include "comm/sim_impl.h"

#include "base/clock.h"
#include "base/rng.h"
#include "comm/rank_names.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

uint32_t sim_random(sim_comm *sim, uint32_t n)
{
    const uint64_t key = sim->world->options.seed;
    return n > 1 ? (uint32_t)dsi_rng_below(key, sim->head.rank, sim->n_random++, n) : 0;
}

void sim_delay(sim_comm *sim)
{
    const double most = sim->world->options.max_delay;
    if (most > 0.0 && sim_random(sim, 2) == 0) {
        const double seconds = most * (double)sim_random(sim, 1000) / 1000.0;
        const long nanoseconds = (long)(seconds * 1e9);
        const struct timespec span = {nanoseconds / 1000000000, nanoseconds % 1000000000};
        (void)nanosleep(&span, NULL);
    }
}

ds_status sim_fail(sim_comm *sim, const char *reason)
{
    sim_world *world = sim->world;
    if (!world->failed) {
        world->failed = true;
        (void)snprintf(world->reason, sizeof world->reason, "%s", reason);
    }
    (void)pthread_cond_broadcast(&world->moved);
    return ds_fail(sim->head.ctx, DS_ERR_PEER, "%s", world->reason);
}

/* Who among the ranks has not started collective `number`, and where each stands. */
static void missing_text(const sim_comm *sim, uint64_t number, char *text, size_t n)
{
    const sim_world *world = sim->world;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t r = 0; r < world->size; ++r) {
        const sim_rank *rank = &world->ranks[r];
        if (rank->n_coll >= number || used >= n) {
            continue;
        }
        const sim_op *last = &rank->coll[rank->n_coll % SIM_RING];
        used += (size_t)snprintf(text + used, n - used, "%s%s%s (%llu calls started%s%s%s)",
                                 used > 0 ? ", " : "", dsi_comm_rank_name(&sim->head, r).text,
                                 rank->lost ? ", lost" : "", (unsigned long long)rank->n_coll,
                                 rank->n_coll > 0 ? ", last " : "",
                                 rank->n_coll > 0 ? dsi_coll_name((ds_comm_op)last->info.kind) : "",
                                 rank->n_coll > 0 ? last->info.what : "");
    }
}

ds_status sim_wait_for_change(sim_comm *sim, const sim_op *op, double deadline)
{
    sim_world *world = sim->world;
    if (world->failed) {
        return ds_fail(sim->head.ctx, DS_ERR_PEER, "%s", world->reason);
    }
    const bool late = deadline > 0.0 && dsi_clock_seconds() > deadline;
    bool gone = false;
    const bool pair = op != NULL && dsi_coll_is_pair(op->call.kind);
    for (uint32_t r = 0; r < world->size; ++r) {
        const sim_rank *rank = &world->ranks[r];
        const bool needed = pair ? r == op->call.peer : op == NULL || rank->n_coll < op->number;
        gone = gone || (needed && (rank->lost || rank->left));
    }
    if (late || gone) {
        char missing[SIM_REASON_BYTES / 2];
        char call[160];
        char reason[SIM_REASON_BYTES];
        if (pair) {
            (void)snprintf(missing, sizeof missing, "%s",
                           dsi_comm_rank_name(&sim->head, op->call.peer).text);
        } else {
            missing_text(sim, op != NULL ? op->number : UINT64_MAX, missing, sizeof missing);
        }
        (void)snprintf(reason, sizeof reason, "%.160s: %s waits; missing: %s",
                       op != NULL ? dsi_call_info_text(&op->info, call, sizeof call) : "a slot",
                       dsi_comm_rank_name(&sim->head, sim->head.rank).text, missing);
        return sim_fail(sim, reason);
    }
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 20000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&world->moved, &world->lock, &until);
    return DS_OK;
}
