/* SPDX-License-Identifier: Apache-2.0 */
/* MPI's own collectives. See mpi_peer.h. */
#include "comm/mpi_peer.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

__attribute__((visibility("default"))) extern const dsi_mpi_peer dsi_mpi_peer_table;

static MPI_Datatype type_of(dsi_mpi_peer_type type)
{
    switch (type) {
    case DSI_MPI_PEER_F32:
        return MPI_FLOAT;
    case DSI_MPI_PEER_F64:
        return MPI_DOUBLE;
    case DSI_MPI_PEER_I8:
        return MPI_INT8_T;
    case DSI_MPI_PEER_U8:
        return MPI_UINT8_T;
    case DSI_MPI_PEER_I32:
        return MPI_INT32_T;
    case DSI_MPI_PEER_I64:
        return MPI_INT64_T;
    case DSI_MPI_PEER_HALF:
        break;
    }
    return MPI_UINT16_T;
}

static int peer_begin(uint32_t rank, uint32_t size, char *error_out)
{
    int begun = 0;
    int ended = 0;
    int mpi_rank = 0;
    int mpi_size = 0;
    (void)MPI_Initialized(&begun);
    (void)MPI_Finalized(&ended);
    if (ended || (!begun && MPI_Init(NULL, NULL) != MPI_SUCCESS)) {
        (void)snprintf(error_out, DSI_MPI_PEER_ERROR_BYTES, "MPI cannot be begun%s",
                       ended ? ": it has ended already in this process" : "");
        return -1;
    }
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
    if (mpi_rank != (int)rank || mpi_size != (int)size) {
        (void)snprintf(error_out, DSI_MPI_PEER_ERROR_BYTES,
                       "MPI says rank %d of %d, the environment rank %u of %u", mpi_rank, mpi_size,
                       rank, size);
        return -1;
    }
    return !begun;
}

static void peer_library(char *text, size_t n)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    (void)MPI_Get_library_version(version, &length);
    (void)snprintf(text, n, "%.*s", (int)strcspn(version, ",\n\t"), version);
}

static int peer_can(const dsi_mpi_peer_call *call)
{
    const int sums =
        call->kind == DSI_MPI_PEER_ALL_REDUCE || call->kind == DSI_MPI_PEER_REDUCE_SCATTER;
    return call->count <= INT_MAX && !(sums && call->type == DSI_MPI_PEER_HALF);
}

static int ping_pong(const dsi_mpi_peer_call *call, MPI_Datatype type, int count)
{
    int rank = 0;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank > 1) {
        return MPI_SUCCESS;
    }
    int code = rank == 0 ? MPI_Send(call->from, count, type, 1, 0, MPI_COMM_WORLD)
                         : MPI_Recv(call->to, count, type, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS) {
        code = rank == 0 ? MPI_Recv(call->to, count, type, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
                         : MPI_Send(call->from, count, type, 0, 0, MPI_COMM_WORLD);
    }
    return code;
}

static int peer_run(const dsi_mpi_peer_call *call)
{
    const MPI_Datatype type = type_of(call->type);
    const int count = (int)call->count;
    int size = 1;
    (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
    const int slice = count / size;
    switch (call->kind) {
    case DSI_MPI_PEER_ALL_REDUCE:
        return MPI_Allreduce(MPI_IN_PLACE, call->from, count, type, MPI_SUM, MPI_COMM_WORLD);
    case DSI_MPI_PEER_REDUCE_SCATTER:
        return MPI_Reduce_scatter_block(call->from, call->to, slice, type, MPI_SUM, MPI_COMM_WORLD);
    case DSI_MPI_PEER_ALL_GATHER:
        return MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, call->from, slice, type,
                             MPI_COMM_WORLD);
    case DSI_MPI_PEER_BROADCAST:
        return MPI_Bcast(call->from, count, type, 0, MPI_COMM_WORLD);
    case DSI_MPI_PEER_ALL_TO_ALL:
        return MPI_Alltoall(call->from, slice, type, call->to, slice, type, MPI_COMM_WORLD);
    case DSI_MPI_PEER_PING_PONG:
        return ping_pong(call, type, count);
    case DSI_MPI_PEER_BARRIER:
        break;
    }
    return MPI_Barrier(MPI_COMM_WORLD);
}

static void peer_end(void)
{
    (void)MPI_Finalize();
}

const dsi_mpi_peer dsi_mpi_peer_table = {
    .version = DSI_MPI_PEER_VERSION,
    .begin = peer_begin,
    .library = peer_library,
    .can = peer_can,
    .run = peer_run,
    .end = peer_end,
};
