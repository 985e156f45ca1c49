/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job, for programs: who am I, and small agreements. Tensors are moved by the
 * engine.
 *
 *     ds_comm *world;
 *     DS_TRY(ds_comm_open(ctx, &world));      // one rank, when nothing launched this process
 *     params.comm = world;                    // ds_initialize
 *     …
 *     ds_comm_close(&world);
 *
 * The environment is that of the launcher (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
 * MASTER_ADDR, MASTER_PORT), of mpirun or of srun. Calls are collective unless stated: every rank
 * makes them in the same order. One thread at a time.
 */
#ifndef DEEPSPEED_COMM_H
#define DEEPSPEED_COMM_H

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsi_comm ds_comm;

/* Joins the job. The caller owns *comm_out and closes it after every engine that uses it; ctx must
 * outlive it. Errors: ERR_CONFIG (contradicting variables), ERR_PEER (names the ranks that did not
 * come). */
DS_API ds_status ds_comm_open(ds_ctx *ctx, ds_comm **comm_out);
/* Leaves the job. Not collective. Accepts NULL and *comm == NULL. */
DS_API void ds_comm_close(ds_comm **comm);
/* Reports to the others that this rank gives up, and why: their next wait ends with ERR_PEER. Not
 * collective. */
DS_API void ds_comm_abort(ds_comm *comm, const char *reason);

DS_API uint32_t ds_comm_rank(const ds_comm *comm); /* not collective; 0 for NULL */
DS_API uint32_t ds_comm_size(const ds_comm *comm); /* not collective; 1 for NULL */

/* Waits for all ranks. Errors: ERR_PEER names who is missing. */
DS_API ds_status ds_comm_barrier(ds_comm *comm);
/* Replaces each of n (at most 64) numbers by its sum over ranks, in the canonical order: the
 * same bits on every rank. Errors: ERR_PEER. */
DS_API ds_status ds_comm_sum(ds_comm *comm, double *values, size_t n);
/* Whether all ranks succeeded: gives DS_OK, the own error, or ERR_PEER naming the first rank that
 * failed. For decisions that all must take alike, such as going on after a file was read. */
DS_API ds_status ds_comm_agree(ds_comm *comm, ds_ctx *ctx, ds_status own);

/* ---- the log of collectives: DeepSpeed's comms_logger ----
 *
 * ds_initialize starts it when the configuration has comms_logger.enabled; programs without an
 * engine start it themselves. It times every call of the communicator and of the engine's own, from
 * its start to the end of its wait: where collectives overlap computation, that lies in between.
 * Nothing is allocated after the start, and nothing is measured without one. Totals are of all
 * calls; averages, and the straggler table, of the latest 262144 at most. */

typedef enum ds_comm_op {
    DS_COMM_BARRIER,
    DS_COMM_ALL_REDUCE,
    DS_COMM_REDUCE_SCATTER,
    DS_COMM_ALL_GATHER,
    DS_COMM_BROADCAST,
    DS_COMM_ALL_TO_ALL,
    DS_COMM_SEND,
    DS_COMM_RECV,
    DS_COMM_OP_COUNT
} ds_comm_op;

typedef struct ds_comm_log_params {
    bool all;     /* every operation; else those of `ops` */
    uint32_t ops; /* bit 1 << ds_comm_op for each */
    bool verbose; /* a line a call to the log of rank 0, at DS_LOG_JOB */
    bool debug;   /* a row for each caller too: the step and parameter that the call is for */
    DS_RESERVED(8);
} ds_comm_log_params;

/* Starts the log, or gives the one that runs other parameters. Not collective, but calls under way
 * are not counted. Errors: ERR_ARG (no communicator), ERR_NOMEM. */
DS_API ds_status ds_comm_log_start(ds_comm *comm, const ds_comm_log_params *params);
/* Forgets what was measured. Without a log nothing happens. */
DS_API void ds_comm_log_reset(ds_comm *comm);

/* What was measured of one operation and message size. */
typedef struct ds_comm_log_row {
    ds_comm_op op;
    const char *caller; /* with `debug`, else ""; valid until the log starts anew or ends */
    uint32_t n_ranks;
    size_t bytes; /* what a rank passes: of an all_gather its slice, else the whole tensor */
    uint64_t count;
    double total_ms;               /* of all calls */
    double average_ms;             /* without the tenth at each end */
    double algbw_gbps, busbw_gbps; /* 1e9 bits a second, averaged likewise */
    const char *axes; /* of the mesh, "(dps)", where the ranks are a group along them, else "" */
    DS_RESERVED(7);
} ds_comm_log_row;

/* Rows in the order of the summary; 0 without a log. */
DS_API size_t ds_comm_log_n_rows(const ds_comm *comm);
/* Errors: ERR_ARG (no such row), ERR_NOMEM. */
DS_API ds_status ds_comm_log_get_row(const ds_comm *comm, size_t index, ds_comm_log_row *row_out);

/* DeepSpeed's summary of this rank as text; with show_straggler also the table that splits latency
 * into communication (the least of any rank, call by call) and what this rank waited beyond it, and
 * names the rank that waited least. show_straggler makes it collective. The caller frees *text_out
 * with free(). Errors: ERR_STATE (no log was started), ERR_PEER (also when ranks made different
 * numbers of calls), ERR_NOMEM. */
DS_API ds_status ds_comm_log_summary(ds_comm *comm, bool show_straggler, char **text_out);

#ifdef __cplusplus
}
#endif
#endif
