/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the simulated communicator. Shared by comm_sim.c and sim_*.c alone.
 *
 * Invariants, all under world->lock:
 *  1. Rank r's collective number n lies in r's ring at n % SIM_RING, until every rank has read it.
 *  2. An operation's input is copied ("ready") between its start and its wait; from then on the
 *     copy alone is read, so a rank that is done may change its input at once.
 *  3. A rank computes its own results, from the copies of all, by the rules of comm.h written down
 *     as plainly as possible.
 *  4. world->failed is set once; every wait then ends with ERR_PEER and world->reason.
 */
#ifndef DSI_COMM_SIM_IMPL_H
#define DSI_COMM_SIM_IMPL_H

#include "comm/comm_call.h"
#include "comm/sim.h"

#include <pthread.h>

enum { SIM_RING = 64, SIM_REASON_BYTES = 512 };

typedef enum sim_state { SIM_FREE, SIM_STARTED, SIM_READY, SIM_DONE } sim_state;

typedef struct sim_op {
    sim_state state;
    dsi_comm_ticket ticket; /* 0 after its wait */
    uint64_t number;        /* of collectives from 1; of messages to or from one peer from 1 */
    dsi_comm_call call;
    dsi_call_info info;
    void *copy; /* the parts' inputs one after another */
    size_t copy_bytes;
    size_t *counts;     /* of an all-to-all: counts_in of each part, one after another */
    uint32_t n_readers; /* ranks that computed from the copy */
    double begin, arrived, end;
} sim_op;

typedef struct sim_rank {
    sim_op coll[SIM_RING];
    sim_op pair[SIM_RING];
    uint64_t n_coll;
    uint64_t n_sent[DSI_SIM_MAX_RANKS], n_received[DSI_SIM_MAX_RANKS];
    bool lost, left;
} sim_rank;

typedef struct sim_world {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    dsi_comm_sim_options options;
    uint32_t size, n_users;
    bool failed;
    char reason[SIM_REASON_BYTES];
    sim_rank *ranks;
    /* split: what each rank asked for, and the new worlds by color leader */
    uint32_t *colors, *keys;
    struct sim_world **children;
    uint64_t n_splits, n_asked, n_taken;
} sim_world;

typedef struct sim_comm {
    dsi_comm head;
    sim_world *world;
    uint64_t n_random;
} sim_comm;

extern const dsi_transport dsi_sim_transport;

/* ---- sim_time.c: delays, waiting, the watchdog ---- */

uint32_t sim_random(sim_comm *sim, uint32_t n);
/* Sleeps now and then, when asked. Without the lock. */
void sim_delay(sim_comm *sim);
ds_status sim_fail(sim_comm *sim, const char *reason);
/* Waits for a change in the world; after the deadline or the loss of a needed rank it fails. op
 * NULL: needs all ranks. */
ds_status sim_wait_for_change(sim_comm *sim, const sim_op *op, double deadline);

/* ---- sim_result.c: inputs and results of one call ---- */

/* Copies the inputs of all parts. */
ds_status sim_make_ready(sim_comm *sim, sim_op *op);
/* Computes this rank's results if every input is there. ERR_PEER when the ranks disagree. */
ds_status sim_try_compute(sim_comm *sim, sim_op *op);
/* Joins a send and its receive when both are started; whoever comes second copies. */
ds_status sim_try_pair(sim_comm *sim, sim_op *op);

/* ---- sim_world.c: worlds and their groups ---- */

sim_world *sim_world_make(uint32_t size, const dsi_comm_sim_options *options);
void sim_world_free(sim_world *world);
ds_status sim_comm_make(ds_ctx *ctx, sim_world *world, uint32_t rank, double timeout,
                        dsi_comm **comm_out);
ds_status sim_split(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out);

#endif
