/* SPDX-License-Identifier: Apache-2.0 */
/* MPI's own collectives, for comparisons: exported by the modules of MPI beside their wire.
 *
 * Implemented by mpi/mpi_peer.c, which includes only this header; found by net_module.c; called by
 * ds_bench. One thread; every rank makes the same calls. Sums are in MPI's order.
 */
#ifndef DSI_COMM_MPI_PEER_H
#define DSI_COMM_MPI_PEER_H

#include <stddef.h>
#include <stdint.h>

enum { DSI_MPI_PEER_VERSION = 1, DSI_MPI_PEER_ERROR_BYTES = 400 };

typedef enum dsi_mpi_peer_kind {
    DSI_MPI_PEER_ALL_REDUCE,     /* from count -> from: in place */
    DSI_MPI_PEER_REDUCE_SCATTER, /* from count -> to count/n */
    DSI_MPI_PEER_ALL_GATHER,     /* the own count/n of from -> from count: in place */
    DSI_MPI_PEER_BROADCAST,      /* from count of rank 0 -> from */
    DSI_MPI_PEER_ALL_TO_ALL,     /* from count -> to count */
    DSI_MPI_PEER_PING_PONG,      /* from count of rank 0 -> to of rank 1, and back */
    DSI_MPI_PEER_BARRIER
} dsi_mpi_peer_kind;

typedef enum dsi_mpi_peer_type {
    DSI_MPI_PEER_F32,
    DSI_MPI_PEER_F64,
    DSI_MPI_PEER_I8,
    DSI_MPI_PEER_U8,
    DSI_MPI_PEER_I32,
    DSI_MPI_PEER_I64,
    DSI_MPI_PEER_HALF /* two bytes; MPI has no sums of them */
} dsi_mpi_peer_type;

typedef struct dsi_mpi_peer_call {
    dsi_mpi_peer_kind kind;
    dsi_mpi_peer_type type;
    void *from, *to;
    size_t count; /* elements of the whole tensor, a multiple of the ranks where it is cut */
} dsi_mpi_peer_call;

typedef struct dsi_mpi_peer {
    uint32_t version;
    /* Begins MPI unless that is done. 1: begun here, so `end` is due; 0: it ran already; negative:
     * error_out, which has ERROR_BYTES, says why not. */
    int (*begin)(uint32_t rank, uint32_t size, char *error_out);
    /* "Open MPI v4.1.4"; text has room for n bytes. */
    void (*library)(char *text, size_t n);
    /* Whether MPI can do the call: sums of this type, counts that its int holds. */
    int (*can)(const dsi_mpi_peer_call *call);
    /* Not 0: it failed. */
    int (*run)(const dsi_mpi_peer_call *call);
    /* Ends MPI. */
    void (*end)(void);
} dsi_mpi_peer;

#define DSI_MPI_PEER_SYMBOL "dsi_mpi_peer_table"

#endif
