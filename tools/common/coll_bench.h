/* SPDX-License-Identifier: Apache-2.0 */
/* Times collectives by size, for ds_bench: ours, MPI's own, and a copy as the bound.
 *
 * A message size is what one rank passes, as in DeepSpeed's benchmark: of an all_gather its
 * slice, of everything else the whole tensor. A trial is one call, or CALLS_OF_SMALL calls in a row
 * below RENEW_FROM bytes; before it all ranks meet, and from RENEW_FROM on each has written its
 * operand anew, as a training step does. A trial lasts as long as on its slowest rank; the figure
 * is the median of the trials. Ours, MPI's and the copies take turns.
 *
 * The bound, N ranks and messages of M bytes:
 *   bytes that each rank must read and write: all_reduce and broadcast 2M, reduce_scatter M + M/N,
 *   all_gather 2M(N-1), all_to_all 2M(N-1)/N, pt2pt 2M
 *   rate: 2W / (time in which every rank at once copies W bytes, the whole tensor, the better of
 *   memcpy and a copy with streaming stores)
 */
#ifndef DSI_TOOLS_COLL_BENCH_H
#define DSI_TOOLS_COLL_BENCH_H

#include "comm/comm.h"
#include "comm/mpi_peer.h"

enum {
    COLL_BENCH_RENEW_FROM = 4096,
    COLL_BENCH_CALLS_OF_SMALL = 200,
    COLL_BENCH_MOST_TRIALS = 1000
};

typedef enum coll_bench_op {
    COLL_BENCH_ALL_REDUCE,
    COLL_BENCH_REDUCE_SCATTER,
    COLL_BENCH_ALL_GATHER,
    COLL_BENCH_ALL_TO_ALL,
    COLL_BENCH_BROADCAST,
    COLL_BENCH_PT2PT, /* between ranks 0 and 1: half of there and back */
    COLL_BENCH_OP_COUNT
} coll_bench_op;

const char *coll_bench_name(coll_bench_op op);
/* The collective whose bandwidth formula holds. */
ds_comm_op coll_bench_kind(coll_bench_op op);

typedef struct coll_bench_params {
    ds_dtype dtype;
    uint32_t trials, warmups;
    size_t max_bytes;        /* largest message */
    bool private_operands;   /* from malloc instead of memory that peers read in place */
    bool bound;              /* time the copies too */
    const dsi_mpi_peer *mpi; /* NULL: no comparison */
    bool ops[COLL_BENCH_OP_COUNT];
} coll_bench_params;

typedef struct coll_bench_row {
    coll_bench_op op;
    size_t bytes, count;       /* of the message that was sent, elements */
    double seconds;            /* ours */
    double mpi_seconds, bound; /* 0: not measured */
} coll_bench_row;

typedef struct coll_bench coll_bench;

/* Makes buffers. Collective; the communicator must have no symmetric memory yet, and both it and
 * params->mpi outlive the bench. Errors: ERR_NOMEM. */
ds_status coll_bench_create(dsi_comm *comm, const coll_bench_params *params,
                            coll_bench **bench_out);
void coll_bench_destroy(coll_bench **bench);

/* Times one operation; a size that does not divide over the ranks is raised to one that does, where
 * tensors are cut. Collective; every rank gets the same row. */
ds_status coll_bench_time(coll_bench *bench, coll_bench_op op, size_t bytes,
                          coll_bench_row *row_out);

#endif
