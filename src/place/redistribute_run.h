/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the moves of a redistribution through communicators: for set-up (gathering and scattering
 * whole cells), for checkpoints and for tests. It allocates; the steps of a plan do not use it.
 */
#ifndef DSI_PLACE_REDISTRIBUTE_RUN_H
#define DSI_PLACE_REDISTRIBUTE_RUN_H

#include "place/mesh_comm.h"
#include "place/redistribute.h"

/* in: this rank's memory in the first placement; out: in the last, dsi_part.slots elements each;
 * may not overlap. Collective over the mesh. what: names the value in a diagnosis.
 * Errors: ERR_NOMEM, and those of the collectives. */
ds_status dsi_moves_run(const dsi_moves *moves, dsi_mesh_comms *comms, const char *what,
                        const void *in, void *out);

#endif
