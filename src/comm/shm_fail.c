/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog of the shared-memory communicator: who is missing, where everybody stands. */
#include "base/clock.h"
#include "comm/rank_names.h"
#include "comm/shm_impl.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

ds_status shm_fail_comm(shm_comm *comm, const char *reason)
{
    if (!comm->failed) {
        comm->failed = true;
        (void)snprintf(comm->reason, sizeof comm->reason, "%s", reason);
        shm_abort_job(comm, reason); /* so that the others name the cause, not this rank's end */
    }
    return ds_fail(comm->head.ctx, DS_ERR_PEER, "%s", comm->reason);
}

void shm_abort_job(shm_comm *comm, const char *reason)
{
    shm_head *head = comm->job->world->shared;
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&head->aborted, &none, 1)) {
        return; /* the first reason is the one to know */
    }
    const dsi_rank_name own = dsi_comm_rank_name_or(&comm->head, comm->head.rank, comm->job->rank);
    (void)snprintf(head->reason, sizeof head->reason, "%s gives up: %s", own.text, reason);
    atomic_store(&head->aborted, 2);
    shm_ring_all(comm->job->world);
}

ds_status shm_disagree(shm_comm *comm, const dsi_call_info *mine, uint32_t other,
                       const dsi_call_info *theirs)
{
    char a[200];
    char b[200];
    char reason[600];
    (void)snprintf(reason, sizeof reason, "ranks disagree: %s calls %s, %s calls %s",
                   dsi_comm_rank_name(&comm->head, comm->head.rank).text,
                   dsi_call_info_text(mine, a, sizeof a),
                   dsi_comm_rank_name(&comm->head, other).text,
                   dsi_call_info_text(theirs, b, sizeof b));
    return shm_fail_comm(comm, reason);
}

typedef struct text {
    char *at;
    size_t used, room;
} text;

static void add(text *t, const char *format, ...) DS_PRINTF(2, 3);
static void add(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(t->at + t->used, t->room - t->used, format, args);
    va_end(args);
    t->used += n > 0 ? (size_t)n : 0;
    t->used = t->used < t->room ? t->used : t->room - 1;
}

/* Where a rank stands, as far as its block says. */
static void add_place(text *t, const shm_comm *comm, uint32_t rank)
{
    const shm_block *block = shm_block_of(comm, rank);
    const shm_block *process = shm_block_of(comm->job->world, comm->world_rank[rank]);
    const uint64_t waiting = atomic_load(&block->waiting);
    uint64_t newest = 0;
    for (uint32_t s = 0; s < SHM_SLOTS; ++s) {
        const uint64_t posted = atomic_load(&block->slots[s].posted);
        newest = posted > newest ? posted : newest;
    }
    char call[200] = "nothing yet";
    if (newest > 0) {
        (void)dsi_call_info_text(&block->infos[newest % SHM_SLOTS], call, sizeof call);
    }
    const char *state = shm_process_state(process->pid);
    const bool here = process->pid_space == shm_own(comm->job->world)->pid_space;
    add(t, "%s (process %lld%s%s): %s%s", dsi_comm_rank_name(&comm->head, rank).text,
        (long long)process->pid, here && state[0] != '\0' ? ", " : "", here ? state : "",
        waiting != 0 ? "waits, last started " : "last started ", call);
}

static bool is_missing(const shm_comm *comm, uint32_t rank, const shm_op *op)
{
    const shm_block *block = shm_block_of(comm, rank);
    if (comm->n_posted < op->number) { /* not announced for want of a free slot */
        return atomic_load(&block->done.value) + SHM_SLOTS <= comm->n_posted;
    }
    return atomic_load(&block->slots[op->number % SHM_SLOTS].posted) < op->number;
}

/* A rank that this one waits for: it has not started the call, or not done its part of it. */
static bool is_needed(const shm_comm *comm, uint32_t rank, const shm_op *op,
                      const shm_pair_op *pair)
{
    if (rank == comm->head.rank) {
        return false;
    }
    if (pair != NULL) {
        return rank == pair->call.peer;
    }
    return is_missing(comm, rank, op) ||
           atomic_load(&shm_block_of(comm, rank)->done.value) < op->number;
}

/* Whether all that are missing wait for somebody outside of shared memory, and have not given up.
 */
static bool all_away(const shm_comm *comm, const shm_op *op, const shm_pair_op *pair)
{
    const uint64_t now = (uint64_t)(dsi_clock_seconds() * 1e3);
    bool any = false;
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        const bool missing = pair != NULL ? r == pair->call.peer : is_missing(comm, r, op);
        if (missing && r != comm->head.rank) {
            const shm_block *process = shm_block_of(comm->job->world, comm->world_rank[r]);
            if (atomic_load(&process->away_until[comm->head.twin ? 1 : 0]) <= now) {
                return false;
            }
            any = true;
        }
    }
    return any;
}

static ds_status report(shm_comm *comm, const shm_op *op, const shm_pair_op *pair,
                        const char *because, uint32_t dead)
{
    char reason[sizeof comm->reason];
    text t = {reason, 0, sizeof reason};
    dsi_call_info info;
    char call[200];
    dsi_call_describe(pair != NULL ? &pair->call : &op->call, 0, &info);
    info.number = pair != NULL ? pair->number : shm_own(comm)->infos[op->number % SHM_SLOTS].number;
    if (dead != UINT32_MAX) {
        const shm_block *process = shm_block_of(comm->job->world, comm->world_rank[dead]);
        add(&t, "%s (process %lld) %s; ", dsi_comm_rank_name(&comm->head, dead).text,
            (long long)process->pid, because);
    }
    add(&t, "%s waits in %s", dsi_comm_rank_name(&comm->head, comm->head.rank).text,
        dsi_call_info_text(&info, call, sizeof call));
    if (dead == UINT32_MAX) {
        add(&t, " %s", because);
    }
    bool any = false;
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        const bool missing = pair != NULL ? r == pair->call.peer : is_missing(comm, r, op);
        if (missing && r != comm->head.rank) {
            add(&t, any ? "; " : "; missing: ");
            add_place(&t, comm, r);
            any = true;
        }
    }
    any = false;
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        const bool missing = pair != NULL ? r == pair->call.peer : is_missing(comm, r, op);
        if (!missing && r != comm->head.rank) {
            add(&t, any ? "; " : "; the others: ");
            add_place(&t, comm, r);
            any = true;
        }
    }
    return shm_fail_comm(comm, reason);
}

ds_status shm_look_around(shm_comm *comm, const shm_op *op, const shm_pair_op *pair, bool late)
{
    const shm_head *head = comm->job->world->shared;
    if (comm->failed) {
        return ds_fail(comm->head.ctx, DS_ERR_PEER, "%s", comm->reason);
    }
    if (atomic_load(&head->aborted) == 2) {
        return shm_fail_comm(comm, head->reason);
    }
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        const uint32_t world_rank = comm->world_rank[r];
        if (!is_needed(comm, r, op, pair)) {
            continue;
        }
        const bool left = atomic_load(&shm_block_of(comm, r)->left) != 0;
        if ((left || shm_is_dead(comm->job, world_rank)) && is_needed(comm, r, op, pair)) {
            return report(comm, op, pair, left ? "has left the communicator" : "is dead", r);
        }
    }
    if (late && !all_away(comm, op, pair)) {
        char because[64];
        (void)snprintf(because, sizeof because, "since %.1f s (the limit)", comm->head.timeout);
        return report(comm, op, pair, because, UINT32_MAX);
    }
    return DS_OK;
}
