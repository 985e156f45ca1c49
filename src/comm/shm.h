/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator of ranks that are processes of one host, over shared memory.
 *
 * Opened by dsi_comm_open, and by transports between hosts for the ranks of their own host.
 * docs/internals/comm.md has the protocol.
 */
#ifndef DSI_COMM_SHM_H
#define DSI_COMM_SHM_H

#include "comm/comm.h"

#define DSI_SHM_MAX_RANKS 256u

typedef struct dsi_shm_params {
    uint32_t rank, size; /* among the processes that meet */
    uint32_t first;      /* the job's rank of the one that is rank 0 here */
    const char *job;     /* names the meeting: the same on all of them, not guessed by others */
    const char *card;    /* lines "NAME=VALUE" that must be the same on all; NULL: none */
    const char *place;   /* names where it meets among the user's jobs of this host: those with
                            another `job` there may be of this job; NULL or "": unknown */
    double timeout;      /* seconds to wait for the others, now and in calls; 0: for ever */
    bool no_pull;        /* default false: large operands in private memory are read with
                            process_vm_readv if the system allows it to all ranks */
} dsi_shm_params;

/* Collective. Ranks meet over abstract Unix sockets, whose names follow from `job`; no file is made
 * anywhere. Errors: ERR_ARG, ERR_NOMEM, ERR_IO, ERR_UNSUPPORTED (no memfd), ERR_PEER names ranks
 * that did not come, differ in size, card or version, or are there twice. */
ds_status dsi_comm_shm_open(ds_ctx *ctx, const dsi_shm_params *params, dsi_comm **comm_out);

/* In the place of rank params->rank, which ended and never came: reports to the ranks that wait for
 * it, or come later, how it ended, and returns when one has taken that; else never. Errors:
 * ERR_PEER, a process is that rank still. */
ds_status dsi_shm_stand_in(ds_ctx *ctx, const dsi_shm_params *params, const char *text);

#endif
