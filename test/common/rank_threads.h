/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a function on N simulated ranks, one thread each. */
#ifndef DS_TEST_RANK_THREADS_H
#define DS_TEST_RANK_THREADS_H

#include "comm/sim.h"

enum { RANK_THREADS_MAX = 16 };

/* comm->ctx is the rank's own context. */
typedef ds_status (*rank_fn)(dsi_comm *comm, void *arg);

typedef struct rank_results {
    ds_status status[RANK_THREADS_MAX];
    char message[RANK_THREADS_MAX][2048];
} rank_results;

/* options NULL: the simulator's defaults. Returns the first failing rank's status. */
ds_status rank_threads_run(uint32_t n, const dsi_comm_sim_options *options, rank_fn fn, void *arg,
                           rank_results *results_out);

#endif
