/* SPDX-License-Identifier: Apache-2.0 */
/* The front of communicators: checks, numbers, defaults of optional slots. See comm.h. */
#include "comm/comm.h"

#include "base/clock.h"
#include "comm/comm_call.h"
#include "comm/comm_log.h"
#include "comm/rank_names.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ds_status dsi_comm_start(dsi_comm *comm, const dsi_comm_call *call, dsi_comm_ticket *ticket_out)
{
    DS_TRY(dsi_call_check(comm, call));
    ++comm->sequence;
    if (comm->log == NULL) {
        return comm->transport->start(comm, call, ticket_out);
    }
    const double begin = dsi_clock_seconds();
    DS_TRY(comm->transport->start(comm, call, ticket_out));
    dsi_comm_log_started(comm->log, comm, call, *ticket_out, begin);
    return DS_OK;
}

ds_status dsi_comm_wait(dsi_comm *comm, dsi_comm_ticket ticket, dsi_comm_times *times_out)
{
    const ds_status status = comm->transport->wait(comm, ticket, times_out);
    if (comm->log != NULL) {
        dsi_comm_log_ended(comm->log, comm, ticket, status);
    }
    return status;
}

ds_status dsi_comm_test(dsi_comm *comm, dsi_comm_ticket ticket, bool late, bool *done_out)
{
    *done_out = true;
    return comm->transport->test != NULL ? comm->transport->test(comm, ticket, late, done_out)
                                         : DS_OK;
}

void dsi_comm_away(dsi_comm *comm, double until)
{
    if (comm->transport->away != NULL) {
        comm->transport->away(comm, until);
    }
}

ds_status dsi_comm_run(dsi_comm *comm, const dsi_comm_call *call)
{
    dsi_comm_ticket ticket;
    DS_TRY(dsi_comm_start(comm, call, &ticket));
    return dsi_comm_wait(comm, ticket, NULL);
}

ds_status dsi_comm_gather(dsi_comm *comm, const void *own, void *all, size_t bytes,
                          const char *what)
{
    if (comm == NULL) {
        memcpy(all, own, bytes);
        return DS_OK;
    }
    const dsi_comm_part part = {.in = own, .out = all, .count = comm->size * bytes};
    return dsi_comm_run(comm, &(dsi_comm_call){.kind = DS_COMM_ALL_GATHER,
                                               .dtype = DS_DTYPE_U8,
                                               .factor = 1.0f,
                                               .parts = &part,
                                               .n_parts = 1,
                                               .what = what});
}

ds_status dsi_comm_barrier(dsi_comm *comm, const char *what)
{
    return dsi_comm_run(comm, &(dsi_comm_call){.kind = DS_COMM_BARRIER, .what = what});
}

ds_status dsi_comm_split(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out)
{
    DS_TRY(comm->transport->split(comm, color, key, comm_out));
    if (*comm_out != NULL) {
        (*comm_out)->twin = comm->twin;
    }
    return DS_OK;
}

ds_status dsi_comm_twin(dsi_comm *comm, ds_ctx *ctx, dsi_comm **comm_out)
{
    if (comm->transport->twin != NULL) {
        DS_TRY(comm->transport->twin(comm, ctx, comm_out));
    } else {
        DS_TRY(dsi_comm_split(comm, 0, comm->rank, comm_out));
    }
    (*comm_out)->twin = true;
    (*comm_out)->ctx = ctx;
    (*comm_out)->timeout = comm->timeout;
    dsi_comm_set_names(*comm_out, comm->names, comm->names_first, comm->names_step);
    (*comm_out)->pool = NULL; /* that of the first thread */
    return DS_OK;
}

ds_status dsi_comm_symmetric(dsi_comm *comm, size_t bytes, void **memory_out)
{
    if (bytes == 0 || comm->memory != NULL) {
        return ds_fail(comm->ctx, bytes == 0 ? DS_ERR_ARG : DS_ERR_STATE,
                       "symmetric memory of %zu bytes: %s", bytes,
                       bytes == 0 ? "give at least one byte"
                                  : "this communicator has some already (once for each)");
    }
    if (comm->transport->symmetric != NULL) {
        DS_TRY(comm->transport->symmetric(comm, bytes, memory_out));
        return DS_OK;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > SIZE_MAX - page || posix_memalign(memory_out, page, bytes) != 0) {
        return ds_fail(comm->ctx, DS_ERR_NOMEM, "no %zu bytes of symmetric memory", bytes);
    }
    memset(*memory_out, 0, bytes);
    comm->memory = *memory_out;
    comm->memory_bytes = bytes;
    return DS_OK;
}

ds_status dsi_comm_reserve(dsi_comm *comm, size_t bytes)
{
    return comm->transport->reserve != NULL ? comm->transport->reserve(comm, bytes) : DS_OK;
}

void dsi_comm_abort(dsi_comm *comm, const char *reason)
{
    if (comm != NULL && comm->transport->abort != NULL) {
        comm->transport->abort(comm, reason != NULL ? reason : "");
    }
}

void dsi_comm_destroy(dsi_comm **comm_inout)
{
    dsi_comm *comm = comm_inout != NULL ? *comm_inout : NULL;
    if (comm == NULL) {
        return;
    }
    if (comm->transport->symmetric == NULL) {
        free(comm->memory);
        comm->memory = NULL;
    }
    dsi_comm_log_detach(comm);
    comm->transport->destroy(comm);
    *comm_inout = NULL;
}
