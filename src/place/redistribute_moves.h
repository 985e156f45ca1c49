/* SPDX-License-Identifier: Apache-2.0 */
/* Single moves of a redistribution, found by comparing parts. For redistribute.c alone.
 *
 * Each function appends its moves and advances *at; one that returns bool does neither when the
 * elements do not allow the move. All ranks are looked at, so that every rank decides alike.
 */
#ifndef DSI_PLACE_REDISTRIBUTE_MOVES_H
#define DSI_PLACE_REDISTRIBUTE_MOVES_H

#include "place/redistribute.h"

/* Whether each rank's part in `a` is inside of its part in `b`. */
bool dsi_parts_inside(const dsi_mesh *mesh, ds_shape shape, const dsi_placement *a,
                      const dsi_placement *b);

void dsi_moves_slice(dsi_moves *moves, dsi_placement *at, const dsi_placement *to);
void dsi_moves_mask(dsi_moves *moves, dsi_placement *at, const dsi_axes *axes);
void dsi_moves_all_reduce(dsi_moves *moves, dsi_placement *at, const dsi_placement *to,
                          const dsi_axes *axes);
/* False unless the parts in `to` of each group are a partition of the part that its ranks share. */
bool dsi_moves_reduce_scatter(dsi_moves *moves, dsi_placement *at, const dsi_placement *to,
                              const dsi_axes *axes);
/* One all-gather, broadcast or all-to-all along the axes of a mask, which cut *at. False unless
 * each group has what its ranks need. */
bool dsi_moves_exchange(dsi_moves *moves, dsi_placement *at, const dsi_placement *to,
                        uint32_t axes);

#endif
