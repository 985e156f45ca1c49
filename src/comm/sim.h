/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated communicator: N ranks as threads of one process, with delays, reordering and the
 * loss of a rank. For tests: it is slow, simple, and an independent second opinion on the bits.
 */
#ifndef DSI_COMM_SIM_H
#define DSI_COMM_SIM_H

#include "comm/comm.h"

typedef struct dsi_comm_sim_options {
    uint64_t seed;      /* of delays and orders: the same seed makes the same choices */
    double max_delay;   /* seconds; each start and wait sleeps for up to this; default 0: never */
    bool reorder;       /* results of started calls are written early and out of order, and inputs
                           are read at the start or as late as allowed: what breaks the contract
                           (a changed `in`, an early look at `out`) shows */
    uint32_t drop_rank; /* this rank is lost … */
    uint64_t drop_at;   /* … at its call of this number (first: 1). Default 0: nobody is lost */
} dsi_comm_sim_options;

#define DSI_SIM_MAX_RANKS 256u

/* Makes the communicators of ranks 0 … size-1 into comms_out[size]. ctxs: one context for each rank
 * (their messages differ). options NULL: the defaults. Each communicator is used by one thread and
 * destroyed by its caller, in any order. Timeout: 60 seconds, set comm->timeout for another.
 * A SEND's wait ends when the peer has the data. The lost rank's start returns ERR_INTERRUPTED; the
 * others' waits return ERR_PEER. Communicators made by split have the same options but lose nobody.
 * Errors: ERR_ARG, ERR_NOMEM. */
ds_status dsi_comm_sim_create(ds_ctx *const *ctxs, uint32_t size,
                              const dsi_comm_sim_options *options, dsi_comm **comms_out);

#endif
