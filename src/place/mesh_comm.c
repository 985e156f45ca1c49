/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of a mesh. See mesh_comm.h. */
#include "place/mesh_comm.h"

#include "comm/comm_log.h"
#include "comm/launcher_note.h"

#include <stdio.h>
#include <string.h>

static dsi_rank_name name_rank(const dsi_rank_names *head, uint32_t rank)
{
    const dsi_mesh_names *names = (const dsi_mesh_names *)head;
    const dsi_mesh *mesh = &names->mesh;
    const uint32_t of_world =
        names->axes.n > 0 ? dsi_mesh_peer(mesh, &names->axes, names->rank, rank) : rank;
    dsi_rank_name name;
    dsi_buf coords = dsi_buf_make(sizeof name.text);
    dsi_mesh_coords_text(mesh, of_world, &coords);
    const bool several = coords.size > 0;
    (void)snprintf(name.text, sizeof name.text, "rank %u%s%s%s", of_world, several ? " (" : "",
                   dsi_buf_text(&coords), several ? ")" : "");
    dsi_buf_free(&coords);
    return name;
}

static dsi_mesh_names names_of(const dsi_mesh *mesh, const dsi_axes *axes, uint32_t rank)
{
    return (dsi_mesh_names){.head = {name_rank}, .mesh = *mesh, .axes = *axes, .rank = rank};
}

/* To the launcher, whose lines about a rank that died say them. */
static void report_coords(const dsi_mesh *mesh, uint32_t rank)
{
    dsi_buf coords = dsi_buf_make(DSI_COORDS_BYTES);
    dsi_mesh_coords_text(mesh, rank, &coords);
    if (coords.size > 0) {
        dsi_launcher_report_coords(rank, dsi_buf_text(&coords));
    }
    dsi_buf_free(&coords);
}

ds_status dsi_mesh_comms_make(ds_ctx *ctx, dsi_comm *world, const dsi_mesh *mesh,
                              dsi_mesh_comms *comms_out)
{
    if (world->size != mesh->n_ranks) {
        return ds_fail(ctx, DS_ERR_ARG, "the mesh has %u ranks, the world %u", mesh->n_ranks,
                       world->size);
    }
    const dsi_axes none = {0};
    *comms_out = (dsi_mesh_comms){.ctx = ctx, .world = world, .mesh = *mesh};
    comms_out->names = names_of(mesh, &none, world->rank);
    dsi_comm_set_names(world, &comms_out->names.head, 0, 1);
    report_coords(mesh, world->rank);
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

/* Without those of one rank: tuples of the same groups are equal. */
static dsi_axes of_several_ranks(const dsi_mesh *mesh, const dsi_axes *axes)
{
    dsi_axes rest = {0};
    for (uint32_t i = 0; i < axes->n; ++i) {
        if (mesh->size[axes->axis[i]] > 1) {
            dsi_axes_add(&rest, (dsi_axis)axes->axis[i]);
        }
    }
    return rest;
}

ds_status dsi_mesh_comms_get(dsi_mesh_comms *comms, const dsi_axes *along, dsi_comm **comm_out)
{
    const dsi_axes several = of_several_ranks(&comms->mesh, along);
    const dsi_axes *axes = &several;
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
    dsi_buf name = dsi_buf_make(sizeof comm->axes);
    dsi_axes_text(axes, &name);
    (void)snprintf(comm->axes, sizeof comm->axes, "%s", dsi_buf_text(&name));
    dsi_buf_free(&name);
    dsi_comm_log_share(comms->world, comm);
    dsi_mesh_names *names = &comms->group[comms->n].names;
    *names = names_of(&comms->mesh, axes, comms->world->rank);
    dsi_comm_set_names(comm, &names->head, 0, 1);
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
    if (comms->world != NULL) {
        dsi_comm_set_names(comms->world, NULL, 0, 1);
    }
    memset(comms, 0, sizeof *comms);
}
