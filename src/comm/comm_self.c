/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator of one rank: every collective is a copy, made when the call starts.
 *
 * Made by dsi_comm_self and by dsi_comm_open for a world of one.
 */
#include "base/clock.h"
#include "comm/comm.h"
#include "comm/comm_call.h"
#include "comm/reduce.h"
#include <stdlib.h>
#include <string.h>

typedef struct self_comm {
    dsi_comm head;
    double last_seconds; /* of the newest call: the only one that a wait usually asks about */
} self_comm;

static void copy_part(const dsi_comm_call *call, const dsi_comm_part *part)
{
    const size_t n = dsi_part_out_count(call, part, 0, 1);
    const size_t bytes = n * ds_dtype_bytes(call->dtype);
    const bool sum = dsi_coll_reduces(call->kind) && call->reduction == DSI_REDUCE_SUM;
    if (sum && call->factor != 1.0f) {
        const dsi_reduce_job job = {call->dtype, call->dtype, DSI_REDUCE_SUM, call->factor, 1};
        dsi_reduce(&job, &part->in, part->out, n);
    } else if (bytes > 0 && part->in != part->out) {
        memmove(part->out, part->in, bytes);
    }
}

static ds_status self_start(dsi_comm *comm, const dsi_comm_call *call, dsi_comm_ticket *ticket_out)
{
    self_comm *self = (self_comm *)comm;
    const double begin = dsi_clock_seconds();
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        if (call->kind == DS_COMM_ALL_TO_ALL && part->counts_in[0] != part->counts_out[0]) {
            return ds_fail(comm->ctx, DS_ERR_PEER,
                           "all_to_all of one rank: it sends %zu elements to itself and expects "
                           "%zu",
                           part->counts_in[0], part->counts_out[0]);
        }
        copy_part(call, part);
    }
    self->last_seconds = dsi_clock_seconds() - begin;
    *ticket_out = comm->sequence;
    return DS_OK;
}

static ds_status self_wait(dsi_comm *comm, dsi_comm_ticket ticket, dsi_comm_times *times_out)
{
    const self_comm *self = (const self_comm *)comm;
    if (ticket == 0 || ticket > comm->sequence) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "ticket %llu was not started",
                       (unsigned long long)ticket);
    }
    if (times_out != NULL) {
        *times_out = (dsi_comm_times){.seconds = self->last_seconds};
    }
    return DS_OK;
}

static ds_status self_split(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out)
{
    (void)key;
    if (color == DSI_COLOR_NONE) {
        *comm_out = NULL;
        return DS_OK;
    }
    return dsi_comm_self(comm->ctx, comm_out);
}

static void self_destroy(dsi_comm *comm)
{
    free(comm);
}

static const dsi_transport self_transport = {
    .version = DSI_TRANSPORT_VERSION,
    .name = "self",
    .start = self_start,
    .wait = self_wait,
    .split = self_split,
    .destroy = self_destroy,
};

ds_status dsi_comm_self(ds_ctx *ctx, dsi_comm **comm_out)
{
    self_comm *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a communicator");
    }
    self->head = (dsi_comm){.transport = &self_transport, .ctx = ctx, .rank = 0, .size = 1};
    *comm_out = &self->head;
    return DS_OK;
}
