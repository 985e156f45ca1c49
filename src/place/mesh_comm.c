/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of a mesh. See mesh_comm.h. */
#include "place/mesh_comm.h"

#include <string.h>

ds_status dsi_mesh_comms_make(ds_ctx *ctx, dsi_comm *world, const dsi_mesh *mesh,
                              dsi_mesh_comms *comms_out)
{
    if (world->size != mesh->n_ranks) {
        return ds_fail(ctx, DS_ERR_ARG, "the mesh has %u ranks, the world %u", mesh->n_ranks,
                       world->size);
    }
    *comms_out = (dsi_mesh_comms){.ctx = ctx, .world = world, .mesh = *mesh};
    return DS_OK;
}

/* Whether the group along axes is the world, rank by rank. */
static bool is_world(const dsi_mesh *mesh, const dsi_axes *axes)
{
    for (uint32_t i = 1; i < axes->n; ++i) {
        if (axes->axis[i] < axes->axis[i - 1]) {
            return false;
        }
    }
    return dsi_axes_size(mesh, axes) == mesh->n_ranks;
}

ds_status dsi_mesh_comms_get(dsi_mesh_comms *comms, const dsi_axes *axes, dsi_comm **comm_out)
{
    if (is_world(&comms->mesh, axes)) {
        *comm_out = comms->world;
        return DS_OK;
    }
    for (uint32_t i = 0; i < comms->n; ++i) {
        if (dsi_axes_equal(&comms->group[i].axes, axes)) {
            *comm_out = comms->group[i].comm;
            return DS_OK;
        }
    }
    if (comms->n == DSI_MESH_COMMS_MOST) {
        return ds_fail(comms->ctx, DS_ERR_LIMIT, "more than %d different groups of a mesh",
                       DSI_MESH_COMMS_MOST);
    }
    const dsi_rank_group group = dsi_mesh_group(&comms->mesh, axes, comms->world->rank);
    dsi_comm *comm = NULL;
    DS_TRY(dsi_comm_split(comms->world, group.color, group.index, &comm));
    comms->group[comms->n].axes = *axes;
    comms->group[comms->n++].comm = comm;
    *comm_out = comm;
    return DS_OK;
}

void dsi_mesh_comms_destroy(dsi_mesh_comms *comms)
{
    while (comms->n > 0) {
        dsi_comm_destroy(&comms->group[--comms->n].comm);
    }
    memset(comms, 0, sizeof *comms);
}
