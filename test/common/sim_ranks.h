/* SPDX-License-Identifier: Apache-2.0 */
/* N simulated ranks, a thread and a context each, for tests of what runs over communicators. */
#ifndef TEST_COMMON_SIM_RANKS_H
#define TEST_COMMON_SIM_RANKS_H

#include "comm/sim.h"

/* What a rank does. Runs on its own thread: no cmocka assertions there. Returns its failures. */
typedef uint32_t (*sim_rank_fn)(ds_ctx *ctx, dsi_comm *world, void *arg);

/* Runs fn on each rank and returns the sum of the failures. options NULL: the defaults. */
uint32_t sim_ranks_run(uint32_t size, const dsi_comm_sim_options *options, sim_rank_fn fn,
                       void *arg);

#endif
