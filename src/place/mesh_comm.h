/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of a mesh: one for each tuple of axes that is asked for, split off the world.
 *
 * Called by engines at set-up and by the interpreter of moves. Asking is collective: every rank
 * asks for the same tuples in the same order, which follows from planning being pure.
 */
#ifndef DSI_PLACE_MESH_COMM_H
#define DSI_PLACE_MESH_COMM_H

#include "comm/comm.h"
#include "place/mesh.h"

enum { DSI_MESH_COMMS_MOST = 32 };

typedef struct dsi_mesh_comms {
    ds_ctx *ctx;
    dsi_comm *world; /* borrowed; rank and size are the mesh's */
    dsi_mesh mesh;
    uint32_t n;
    struct {
        dsi_axes axes;
        dsi_comm *comm;
    } group[DSI_MESH_COMMS_MOST];
} dsi_mesh_comms;

/* Errors: ERR_ARG when the world's size is not the mesh's. The caller destroys before the world. */
ds_status dsi_mesh_comms_make(ds_ctx *ctx, dsi_comm *world, const dsi_mesh *mesh,
                              dsi_mesh_comms *comms_out);
/* The communicator of this rank's group along axes, in the order of its indices: made the first
 * time, collectively. Borrowed. Errors: ERR_LIMIT, and those of dsi_comm_split. */
ds_status dsi_mesh_comms_get(dsi_mesh_comms *comms, const dsi_axes *axes, dsi_comm **comm_out);
void dsi_mesh_comms_destroy(dsi_mesh_comms *comms); /* leaves it empty; accepts an empty one */

#endif
