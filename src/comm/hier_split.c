/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of a hierarchical communicator: hierarchical again where blocks remain, shared memory
 * alone when all members are in one block, else the network alone. Collective over the parent. */
#include "comm/hier_impl.h"

#include <stdlib.h>

typedef struct wish {
    int64_t color, key;
} wish;

/* The group of this rank: its members in order, as ranks of the parent. */
typedef struct group_plan {
    uint32_t *members;
    uint32_t n, rank;
    uint32_t width; /* of its blocks */
} group_plan;

static ds_status plan_group(const hier_comm *hier, const wish *wishes, group_plan *plan)
{
    const uint32_t me = hier->head.rank;
    int64_t *nodes = calloc(hier->head.size, sizeof *nodes);
    plan->members = calloc(hier->head.size, sizeof *plan->members);
    if (nodes == NULL || plan->members == NULL) {
        free(nodes);
        return ds_fail(hier->head.ctx, DS_ERR_NOMEM, "no memory to split %u ranks",
                       hier->head.size);
    }
    for (uint32_t r = 0; r < hier->head.size; ++r) {
        if (wishes[r].color != wishes[me].color) {
            continue;
        }
        uint32_t at = plan->n++;
        for (; at > 0 && wishes[plan->members[at - 1]].key > wishes[r].key; --at) {
            plan->members[at] = plan->members[at - 1];
        }
        plan->members[at] = r;
    }
    for (uint32_t i = 0; i < plan->n; ++i) {
        nodes[i] = plan->members[i] / hier->on.local->size;
        plan->rank = plan->members[i] == me ? i : plan->rank;
    }
    plan->width = dsi_hier_block(nodes, plan->n);
    /* All in one block: shared memory alone, whatever their number. */
    bool one = true;
    for (uint32_t i = 1; i < plan->n; ++i) {
        one = one && nodes[i] == nodes[0];
    }
    plan->width = one ? plan->n : plan->width;
    free(nodes);
    return DS_OK;
}

static ds_status gather_wishes(hier_comm *hier, uint32_t color, uint32_t key, wish *wishes)
{
    const wish mine = {color, key};
    const dsi_comm_part part = {.in = &mine, .out = wishes, .count = 2 * (size_t)hier->head.size};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_GATHER,
                                .dtype = DS_DTYPE_I64,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "split"};
    return dsi_comm_run(&hier->head, &call);
}

/* The communicators of the group that this rank joins. */
static ds_status make_group(hier_comm *hier, const group_plan *plan, uint32_t color, uint32_t key,
                            dsi_comm **comm_out)
{
    const bool joins = color != DSI_COLOR_NONE;
    const uint32_t width = plan->width;
    dsi_hier_parts parts = {NULL, NULL, NULL};
    uint32_t local_color = DSI_COLOR_NONE;
    if (joins && width > 1) { /* named by the block's first member, unique in shared memory */
        local_color = plan->members[plan->rank / width * width] % hier->on.local->size;
    }
    ds_status status = dsi_comm_split(hier->on.flat, color, key, &parts.flat);
    DS_TRY_GOTO(status, dsi_comm_split(hier->on.local, local_color, plan->rank, &parts.local),
                free_all);
    if (!joins) {
        *comm_out = NULL;
        return DS_OK;
    }
    if (width == plan->n && width > 1) {
        *comm_out = parts.local;
        dsi_comm_destroy(&parts.flat);
        return DS_OK;
    }
    if (width == 1) {
        *comm_out = parts.flat;
        return DS_OK;
    }
    DS_TRY_GOTO(status,
                dsi_comm_split(parts.flat, plan->rank % width, plan->rank / width, &parts.cross),
                free_all);
    DS_TRY_GOTO(status, hier_make(&parts, hier->queue, comm_out), free_all);
    return DS_OK;
free_all:
    dsi_comm_destroy(&parts.cross);
    dsi_comm_destroy(&parts.local);
    dsi_comm_destroy(&parts.flat);
    return status;
}

ds_status hier_split(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out)
{
    hier_comm *hier = (hier_comm *)comm;
    group_plan plan = {.members = NULL};
    wish *wishes = calloc(comm->size, sizeof *wishes);
    ds_status status = DS_OK;
    if (wishes == NULL) {
        return ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory to split %u ranks", comm->size);
    }
    DS_TRY_GOTO(status, gather_wishes(hier, color, key, wishes), free_all);
    DS_TRY_GOTO(status, plan_group(hier, wishes, &plan), free_all);
    status = make_group(hier, &plan, color, key, comm_out);
free_all:
    free(plan.members);
    free(wishes);
    return status;
}

/* Another thread waits in an order of its own, so its calls are queued apart. */
ds_status hier_twin(dsi_comm *comm, ds_ctx *ctx, dsi_comm **comm_out)
{
    hier_comm *hier = (hier_comm *)comm;
    dsi_hier_parts parts = {NULL, NULL, NULL};
    DS_TRY(dsi_comm_barrier(comm, "twin")); /* what was started before on the parts is done */
    ds_status status = dsi_comm_twin(hier->on.flat, ctx, &parts.flat);
    DS_TRY_GOTO(status, status, free_all);
    DS_TRY_GOTO(status, dsi_comm_twin(hier->on.local, ctx, &parts.local), free_all);
    DS_TRY_GOTO(status, dsi_comm_twin(hier->on.cross, ctx, &parts.cross), free_all);
    DS_TRY_GOTO(status, hier_make(&parts, NULL, comm_out), free_all);
    return DS_OK;
free_all:
    dsi_comm_destroy(&parts.cross);
    dsi_comm_destroy(&parts.local);
    dsi_comm_destroy(&parts.flat);
    return status;
}
