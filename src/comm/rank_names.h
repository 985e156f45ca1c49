/* SPDX-License-Identifier: Apache-2.0 */
/* How messages name the ranks of a communicator: by their numbers, or by names that whoever knows
 * the mesh has set, such as "rank 5 (dp 2, tp 1)".
 *
 * Set by place/mesh_comm.c; asked by the transports and by all that compare ranks. A communicator
 * of some ranks counts them from 0 on: without names its messages say those numbers.
 */
#ifndef DSI_COMM_RANK_NAMES_H
#define DSI_COMM_RANK_NAMES_H

#include "comm/comm.h"

typedef struct dsi_rank_name {
    char text[64];
} dsi_rank_name;

struct dsi_rank_names {
    dsi_rank_name (*name)(const struct dsi_rank_names *names, uint32_t rank);
};

/* Rank r of the communicator is rank first + r * step of `names`, which are borrowed until others
 * are set, or the communicator and its twins are gone; NULL: numbers again. Not collective. By the
 * thread of the communicator. */
void dsi_comm_set_names(dsi_comm *comm, const dsi_rank_names *names, uint32_t first, uint32_t step);
/* "rank 5" or its name. comm NULL: one rank. */
dsi_rank_name dsi_comm_rank_name(const dsi_comm *comm, uint32_t rank);
/* The same, `number` where it has no name. */
dsi_rank_name dsi_comm_rank_name_or(const dsi_comm *comm, uint32_t rank, uint32_t number);

#endif
