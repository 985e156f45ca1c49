/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of this host that wait elsewhere: a variable that one of them has otherwise makes two
 * meetings of a job, and each would wait for the other's ranks to the end. Whoever has waited for a
 * while therefore binds a second socket, named by the place alone (MASTER_ADDR, MASTER_PORT), and
 * shows its variables there to rank 0. Used by shm_meet.c.
 *
 * Two jobs may have one place, too: only ranks that have the job's secret and another launcher are
 * surely of one job, which is refused; of others the difference is logged, once.
 */
#ifndef DSI_COMM_SHM_STRAY_H
#define DSI_COMM_SHM_STRAY_H

#include "comm/shm_note.h"

typedef struct shm_stray {
    shm_job at; /* the place's socket; -1: not open */
    const char *card;
    bool usable; /* the place has a name, and nobody else is this rank there */
    bool told;
    double next; /* clock seconds of the next look */
} shm_stray;

/* Opens nothing yet. */
shm_stray shm_stray_begin(const dsi_shm_params *params, const shm_job *job);
/* Rank 0, while it waits for those whose `came` is false. Errors: ERR_PEER names what differs. */
ds_status shm_stray_look(ds_ctx *ctx, shm_stray *stray, const bool *came);
/* The others, while they do not hear of rank 0. Errors: ERR_PEER with rank 0's words. */
ds_status shm_stray_show(ds_ctx *ctx, shm_stray *stray);
void shm_stray_end(shm_stray *stray);

#endif
