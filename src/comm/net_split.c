/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of a network communicator. Collective over the parent. */
#include "comm/net_impl.h"

#include <stdlib.h>

typedef struct wish {
    int64_t color, key, next_id;
} wish;

/* The members of my color in the order of (key, rank); returns how many. */
static uint32_t choose(const net_group *parent, const wish *wishes, uint32_t *members)
{
    const int64_t color = wishes[parent->head.rank].color;
    uint32_t n = 0;
    for (uint32_t r = 0; r < parent->head.size; ++r) {
        if (wishes[r].color != color) {
            continue;
        }
        uint32_t at = n++;
        for (; at > 0 && wishes[members[at - 1]].key > wishes[r].key; --at) {
            members[at] = members[at - 1];
        }
        members[at] = r;
    }
    return n;
}

/* The least id that this rank has not given, raised to `least`. */
static uint32_t next_id(net_world *world, uint32_t least)
{
    (void)pthread_mutex_lock(&world->lock);
    const uint32_t id = world->next_id > least ? world->next_id : least;
    world->next_id = id;
    (void)pthread_mutex_unlock(&world->lock);
    return id;
}

ds_status net_split(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out)
{
    net_group *parent = (net_group *)comm;
    net_world *world = parent->world;
    const uint32_t size = comm->size;
    const wish mine = {color, key, next_id(world, 0)};
    wish *wishes = calloc(size, sizeof *wishes);
    uint32_t *members = calloc(size, sizeof *members);
    ds_status status = DS_OK;
    if (wishes == NULL || members == NULL) {
        status = ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory to split %u ranks", size);
        goto free_all;
    }
    const dsi_comm_part part = {.in = &mine, .out = wishes, .count = 3 * (size_t)size};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_GATHER,
                                .dtype = DS_DTYPE_I64,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "split"};
    DS_TRY_GOTO(status, dsi_comm_run(comm, &call), free_all);
    int64_t id = 0;
    for (uint32_t r = 0; r < size; ++r) {
        id = wishes[r].next_id > id ? wishes[r].next_id : id;
    }
    if (id >= 1 << NET_GROUP_BITS) {
        status = ds_fail(comm->ctx, DS_ERR_LIMIT, "more than %d splits of a job",
                         (1 << NET_GROUP_BITS) - 1);
        goto free_all;
    }
    (void)next_id(world, (uint32_t)id + 1);
    if (color == DSI_COLOR_NONE) {
        *comm_out = NULL;
        goto free_all;
    }
    const uint32_t n = choose(parent, wishes, members);
    uint32_t rank = 0;
    for (uint32_t i = 0; i < n; ++i) {
        rank = members[i] == comm->rank ? i : rank;
        members[i] = parent->members[members[i]];
    }
    net_group *group;
    DS_TRY_GOTO(status,
                net_group_make(world, members, n, rank, (uint32_t)id, comm->timeout, &group),
                free_all);
    members = NULL;
    group->head.ctx = comm->ctx;
    *comm_out = &group->head;
free_all:
    free(members);
    free(wishes);
    return status;
}

ds_status net_twin(dsi_comm *comm, ds_ctx *ctx, dsi_comm **comm_out)
{
    const dsi_wire *wire = ((net_group *)comm)->world->wire;
    if (!wire->ours_alone) {
        return ds_fail(
            comm->ctx, DS_ERR_UNSUPPORTED,
            "a second thread would use MPI concurrently with this program, which began MPI without "
            "MPI_THREAD_MULTIPLE: begin it with that, or leave its begin to the library");
    }
    DS_TRY(net_split(comm, 0, comm->rank, comm_out));
    (*comm_out)->ctx = ctx;
    return DS_OK;
}
