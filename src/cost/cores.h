/* SPDX-License-Identifier: Apache-2.0 */
/* Cores that the ranks of a host share. A host of n cores, R ranks whose computation has T threads
 * each. Those that are busy want busy · T cores: while there are so many each has T of them, beyond
 * that all go on at the same rate, n / (busy · T) of it. A rank that waits for others leaves its
 * cores to them: waits spin for a millisecond or two at most, and hardly where ranks outnumber
 * cores (docs/internals/comm.md).
 *
 * The streams of a rank: computation has T threads. Collectives and messages between the ranks of a
 * host are moved by the thread that waits for them, so they take no core beside it (a profile's
 * `overlap` of 0); files move without one. That is all that shares: the one place for it is here.
 * Who asks: dsi_device_of_rank for a rank among busy ones, the time of a pipeline's turns
 * (pipe/pipe_time.h) for stages that are not all busy. */
#ifndef DSI_COST_CORES_H
#define DSI_COST_CORES_H

#include <stdint.h>

typedef struct dsi_cores {
    uint32_t n;       /* that a host's figures are of; 0: not known, or ranks have devices */
    uint32_t threads; /* of a rank's computation; 0: an equal share */
    uint32_t ranks;   /* of the host */
} dsi_cores;

/* The share of the host's figures that a rank has while so many compute, itself among them. Not
 * known: 1/ranks, however many do. */
double dsi_cores_share(const dsi_cores *cores, uint32_t busy);

/* The speed of a rank then, where 1 is that with all ranks busy. */
double dsi_cores_speed(const dsi_cores *cores, uint32_t busy);

#endif
