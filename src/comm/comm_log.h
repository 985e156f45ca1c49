/* SPDX-License-Identifier: Apache-2.0 */
/* The log of collectives behind ds_comm_log_*: counts and latencies by operation and message size.
 *
 * Called by comm.c around every call of a communicator that has a log, by engine_create.c, and by
 * comm_log_table.c, which makes the summary. One thread at a time, that of the communicators.
 *
 * Invariants:
 *  1. All memory is made by the start; a call that finds a table full is counted in row 0 (too many
 *     kinds of calls) or in n_lost (too many under way), which the summary shows.
 *  2. The collectives of all ranks that share a log are numbered alike: a rank's n-th call is the
 *     n-th of every other. Messages between pairs are kept apart.
 */
#ifndef DSI_COMM_COMM_LOG_H
#define DSI_COMM_COMM_LOG_H

#include "comm/comm.h"

#include <deepspeed/comm.h>

enum {
    DSI_LOG_ROWS = 1024,
    DSI_LOG_SAMPLES = 1 << 18, /* latencies that are kept */
    DSI_LOG_UNDER_WAY = 256,
    DSI_LOG_CALLER_BYTES = 96,
    DSI_LOG_MOST_GROUPS = 33 /* with that of all ranks */
};

/* Row 0 stands for all calls that found no other. */
typedef struct dsi_log_row {
    ds_comm_op kind;
    uint32_t n_ranks, group; /* of the log's groups */
    size_t bytes;
    uint64_t count;
    double seconds; /* of all */
    char caller[DSI_LOG_CALLER_BYTES];
} dsi_log_row;

/* The latest calls: number i lies at i % DSI_LOG_SAMPLES. */
typedef struct dsi_log_samples {
    float *seconds; /* negative: under way, lost or failed */
    uint16_t *rows;
    uint64_t n; /* calls so far */
} dsi_log_samples;

enum { DSI_LOG_ALL_RANKS, DSI_LOG_PAIRS, DSI_LOG_N_SAMPLES };

typedef struct dsi_log_call {
    const dsi_comm *comm;
    dsi_comm_ticket ticket;
    double begin;
    uint64_t number; /* in its samples */
    uint16_t row;
    uint8_t samples;
} dsi_log_call;

/* Ranks along axes of a mesh. */
typedef struct dsi_log_group {
    char axes[DSI_COMM_AXES_BYTES];
    dsi_comm *comm; /* NULL: gone */
} dsi_log_group;

struct dsi_comm_log {
    ds_comm_log_params params;
    dsi_log_group groups[DSI_LOG_MOST_GROUPS]; /* 0: whatever has no axes */
    uint32_t n_groups;
    dsi_log_row *rows;
    uint32_t n_rows;  /* with row 0 */
    uint16_t *places; /* hash table of rows, 0: free */
    dsi_log_samples samples[DSI_LOG_N_SAMPLES];
    dsi_log_call calls[DSI_LOG_UNDER_WAY];
    uint32_t n_calls;
    uint64_t n_lost;
};

void dsi_comm_log_started(dsi_comm_log *log, const dsi_comm *comm, const dsi_comm_call *call,
                          dsi_comm_ticket ticket, double begin);
void dsi_comm_log_ended(dsi_comm_log *log, const dsi_comm *comm, dsi_comm_ticket ticket,
                        ds_status status);

/* Makes `from`'s log that of `to` too; `from` must outlive it. Both have the same ranks; or `to` is
 * a group along to->axes, of the same size on all ranks, which make its calls in the same order;
 * groups beyond the ceiling are not told apart from all ranks. Nothing when `from` has none. */
void dsi_comm_log_share(const dsi_comm *from, dsi_comm *to);
/* Frees the log if the communicator owns it; else the log forgets the communicator. */
void dsi_comm_log_detach(dsi_comm *comm);

#endif
