/* SPDX-License-Identifier: Apache-2.0 */
/* The wire over MPI: point-to-point messages of bytes on a communicator of our own. One source,
 * built once for each MPI implementation that is installed. See wire.h.
 *
 * A handle is the place of a request in a table, plus one.
 */
#include "comm/wire.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mpi_wire {
    dsi_wire head;
    MPI_Comm comm;
    bool ours; /* MPI was begun here */
    MPI_Request *requests;
    uint32_t *free_list;
    uint32_t capacity, n_free;
} mpi_wire;

__attribute__((visibility("default"))) int dsi_wire_open(const dsi_wire_setup *setup,
                                                         dsi_wire **wire_out, char *error_out);

static int fail(mpi_wire *mpi, int code, const char *doing, uint32_t peer)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    (void)MPI_Error_string(code, text, &n);
    (void)snprintf(mpi->head.error, sizeof mpi->head.error, "MPI, %s: %.300s", doing, text);
    mpi->head.error_peer = peer;
    return -1;
}

static int grow(mpi_wire *mpi)
{
    const uint32_t more = mpi->capacity > 0 ? mpi->capacity : 256;
    const uint32_t capacity = mpi->capacity + more;
    MPI_Request *requests = realloc(mpi->requests, capacity * sizeof *requests);
    if (requests != NULL) {
        mpi->requests = requests;
    }
    uint32_t *list = realloc(mpi->free_list, capacity * sizeof *list);
    if (list != NULL) {
        mpi->free_list = list;
    }
    if (requests == NULL || list == NULL) {
        (void)snprintf(mpi->head.error, sizeof mpi->head.error, "no memory for MPI requests");
        mpi->head.error_peer = DSI_WIRE_NOBODY;
        return -1;
    }
    for (uint32_t i = 0; i < more; ++i) {
        mpi->free_list[mpi->n_free++] = capacity - 1 - i;
    }
    mpi->capacity = capacity;
    return 0;
}

static int take(mpi_wire *mpi, uint64_t *handle_out)
{
    if (mpi->n_free == 0 && grow(mpi) != 0) {
        return -1;
    }
    *handle_out = 1 + (uint64_t)mpi->free_list[--mpi->n_free];
    return 0;
}

static void give_back(mpi_wire *mpi, uint64_t handle)
{
    mpi->free_list[mpi->n_free++] = (uint32_t)(handle - 1);
}

static int mpi_send(dsi_wire *wire, uint32_t peer, uint32_t tag, const void *data, size_t n,
                    uint64_t *handle_out)
{
    mpi_wire *mpi = (mpi_wire *)wire;
    if (take(mpi, handle_out) != 0) {
        return -1;
    }
    const int code = MPI_Isend(data, (int)n, MPI_BYTE, (int)peer, (int)tag, mpi->comm,
                               &mpi->requests[*handle_out - 1]);
    return code == MPI_SUCCESS ? 0 : fail(mpi, code, "sending", peer);
}

static int mpi_recv(dsi_wire *wire, uint32_t peer, uint32_t tag, void *data, size_t n,
                    uint64_t *handle_out)
{
    mpi_wire *mpi = (mpi_wire *)wire;
    if (take(mpi, handle_out) != 0) {
        return -1;
    }
    const int code = MPI_Irecv(data, (int)n, MPI_BYTE, (int)peer, (int)tag, mpi->comm,
                               &mpi->requests[*handle_out - 1]);
    return code == MPI_SUCCESS ? 0 : fail(mpi, code, "receiving", peer);
}

static int mpi_test(dsi_wire *wire, uint64_t handle, uint32_t peer, size_t *n_out)
{
    mpi_wire *mpi = (mpi_wire *)wire;
    MPI_Status status;
    int done = 0;
    int n = 0;
    memset(&status, 0, sizeof status);
    int code = MPI_Test(&mpi->requests[handle - 1], &done, &status);
    if (code != MPI_SUCCESS) {
        return fail(mpi, code, "a message", peer);
    }
    if (!done) {
        return 0;
    }
    code = MPI_Get_count(&status, MPI_BYTE, &n);
    *n_out = code == MPI_SUCCESS && n > 0 ? (size_t)n : 0;
    give_back(mpi, handle);
    return 1;
}

static void mpi_progress(dsi_wire *wire)
{
    (void)wire; /* every MPI_Test moves all messages */
}

static void mpi_cancel(dsi_wire *wire, uint64_t handle)
{
    mpi_wire *mpi = (mpi_wire *)wire;
    MPI_Request *request = &mpi->requests[handle - 1];
    if (*request != MPI_REQUEST_NULL) {
        (void)MPI_Cancel(request);
        (void)MPI_Request_free(request);
    }
    give_back(mpi, handle);
}

static void mpi_close(dsi_wire *wire, bool failed)
{
    mpi_wire *mpi = (mpi_wire *)wire;
    /* After a failure the others may be gone, and these two calls would wait for them. */
    if (!failed) {
        (void)MPI_Comm_free(&mpi->comm);
        if (mpi->ours) {
            (void)MPI_Finalize();
        }
    }
    free(mpi->requests);
    free(mpi->free_list);
    free(mpi);
}

static const dsi_wire_ops mpi_ops = {
    .version = DSI_WIRE_VERSION,
    .name = "mpi",
    .send = mpi_send,
    .recv = mpi_recv,
    .test = mpi_test,
    .progress = mpi_progress,
    .cancel = mpi_cancel,
    .close = mpi_close,
};

static int begin_mpi(mpi_wire *mpi)
{
    int begun = 0;
    int ended = 0;
    int level = 0;
    (void)MPI_Initialized(&begun);
    (void)MPI_Finalized(&ended);
    if (ended) {
        (void)snprintf(mpi->head.error, sizeof mpi->head.error,
                       "MPI has been finalized already in this process");
        return -1;
    }
    if (!begun) {
        const int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
        if (code != MPI_SUCCESS) {
            return fail(mpi, code, "MPI_Init_thread", DSI_WIRE_NOBODY);
        }
        mpi->ours = true;
    }
    (void)MPI_Query_thread(&level);
    if (level < MPI_THREAD_SERIALIZED) {
        (void)snprintf(mpi->head.error, sizeof mpi->head.error,
                       "MPI was begun with thread level %d, at least MPI_THREAD_SERIALIZED is "
                       "needed",
                       level);
        return -1;
    }
    mpi->head.ours_alone = mpi->ours || level == MPI_THREAD_MULTIPLE;
    return 0;
}

static int check_world(mpi_wire *mpi, const dsi_wire_setup *setup)
{
    int rank = 0;
    int size = 0;
    int found = 0;
    int *upper = NULL;
    (void)MPI_Comm_rank(mpi->comm, &rank);
    (void)MPI_Comm_size(mpi->comm, &size);
    (void)MPI_Comm_get_attr(mpi->comm, MPI_TAG_UB, &upper, &found);
    if (rank != (int)setup->rank || size != (int)setup->size) {
        (void)snprintf(mpi->head.error, sizeof mpi->head.error,
                       "MPI says rank %d of %d, the environment rank %u of %u: was the job started "
                       "by the mpirun of another MPI?",
                       rank, size, setup->rank, setup->size);
        return -1;
    }
    if (found && *upper < (1 << DSI_WIRE_TAG_BITS) - 1) {
        (void)snprintf(mpi->head.error, sizeof mpi->head.error,
                       "this MPI has tags up to %d, %d are needed", *upper,
                       (1 << DSI_WIRE_TAG_BITS) - 1);
        return -1;
    }
    return 0;
}

int dsi_wire_open(const dsi_wire_setup *setup, dsi_wire **wire_out, char *error_out)
{
    mpi_wire *mpi = calloc(1, sizeof *mpi);
    if (mpi == NULL) {
        (void)snprintf(error_out, DSI_WIRE_ERROR_BYTES, "no memory for MPI");
        return -1;
    }
    mpi->head = (dsi_wire){.ops = &mpi_ops, .rank = setup->rank, .size = setup->size};
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0;
    int failed = begin_mpi(mpi);
    if (failed == 0) {
        const int code = MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm);
        failed = code != MPI_SUCCESS ? fail(mpi, code, "MPI_Comm_dup", DSI_WIRE_NOBODY) : 0;
    }
    if (failed == 0) {
        (void)MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
        (void)MPI_Get_library_version(version, &n);
        (void)snprintf(mpi->head.library, sizeof mpi->head.library, "%.*s",
                       (int)strcspn(version, ",\n"), version);
        failed = check_world(mpi, setup);
    }
    if (failed != 0) {
        (void)snprintf(error_out, DSI_WIRE_ERROR_BYTES, "%s", mpi->head.error);
        free(mpi);
        return -1;
    }
    *wire_out = &mpi->head;
    return 0;
}
