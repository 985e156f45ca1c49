/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of a mesh: one for each tuple of axes that is asked for, split off the world.
 *
 * Called by engines at set-up and by the interpreter of moves. Asking is collective: every rank
 * asks for the same tuples in the same order, which follows from planning being pure.
 */
#ifndef DSI_PLACE_MESH_COMM_H
#define DSI_PLACE_MESH_COMM_H

#include "comm/rank_names.h"
#include "place/mesh.h"

enum { DSI_MESH_COMMS_MOST = 32 };

/* Names of the ranks of a group: those of the world, with coordinates where the mesh has other
 * axes than those of data parallelism. */
typedef struct dsi_mesh_names {
    dsi_rank_names head;
    dsi_mesh mesh;
    dsi_axes axes; /* of the group of `rank`; none: the world */
    uint32_t rank;
} dsi_mesh_names;

typedef struct dsi_mesh_comms {
    ds_ctx *ctx;
    dsi_comm *world; /* borrowed; rank and size are the mesh's */
    dsi_mesh mesh;
    dsi_mesh_names names; /* of the world */
    uint32_t n;
    struct {
        dsi_axes axes;
        dsi_comm *comm;
        dsi_mesh_names names;
    } group[DSI_MESH_COMMS_MOST];
} dsi_mesh_comms;

/* Names the world's ranks in messages. comms_out stays where it is. Errors: ERR_ARG when the
 * world's size is not the mesh's. The caller destroys before the world. */
ds_status dsi_mesh_comms_make(ds_ctx *ctx, dsi_comm *world, const dsi_mesh *mesh,
                              dsi_mesh_comms *comms_out);
/* The communicator of this rank's group along axes, in the order of its indices: made the first
 * time, collectively; axes of one rank are left out of its name. Borrowed. Errors: ERR_LIMIT, and
 * those of dsi_comm_split. */
ds_status dsi_mesh_comms_get(dsi_mesh_comms *comms, const dsi_axes *axes, dsi_comm **comm_out);
void dsi_mesh_comms_destroy(dsi_mesh_comms *comms); /* leaves it empty; accepts an empty one */

#endif
