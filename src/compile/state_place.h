/* SPDX-License-Identifier: Apache-2.0 */
/* Where super_offload's optimizer states are: parameters whose gradients come last in the backward
 * pass keep theirs on the device, since no computation is left that would hide the way down, the
 * processor's update and the way up; the others' are in host memory and updated there. How many
 * stay follows from the planned time of a step and the memory that is left. No split changes a bit
 * (LAW 4d). Part of rank_*.c; see rank_maker.h.
 */
#ifndef DSI_COMPILE_STATE_PLACE_H
#define DSI_COMPILE_STATE_PLACE_H

#include "compile/rank_maker.h"

/* Per cell of a parameter: the node of the logical training graph that completes its gradient.
 * ends_out has an entry for each cell, all 0 at first. Pure. */
void dsi_state_ends(const ds_graph *graph, uint32_t *ends_out);

/* Residencies of the logical cells by a ratio, in place of those that there are. Errors: ERR_NOMEM.
 */
ds_status dsi_state_residencies(dsi_rank_maker *m, const uint32_t *ends, double ratio);

/* Whether the cost model is asked. */
bool dsi_state_is_open(const dsi_rank_maker *m);

/* Both plans with the split whose step is the shortest of those that were planned and fit, which
 * are some ten, or two where none is near fitting; of equal ones the one that keeps least on the
 * device. m->plan.place says what was compared. */
ds_status dsi_state_place_to_fit(dsi_rank_maker *m, const ds_graph *graph);

/* The choice as a line; "" where there was none. */
enum { DSI_STATE_PLACE_BYTES = 1280 };
void dsi_state_place_text(const dsi_state_place *place, char text_out[DSI_STATE_PLACE_BYTES]);

#endif
