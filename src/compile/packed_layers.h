/* SPDX-License-Identifier: Apache-2.0 */
/* Packed matrices under tensor parallelism: whether ranks share them without dividing a block. */
#ifndef DSI_COMPILE_PACKED_LAYERS_H
#define DSI_COMPILE_PACKED_LAYERS_H

#include "place/placement.h"

#include <deepspeed/graph.h>

/* on: what dsi_tensor_rules found, an entry per cell. Errors: ERR_UNSUPPORTED naming the layer and
 * the nearest number of ranks that goes. */
ds_status dsi_packed_layers_check(const ds_cells *cells, const dsi_place_on *on, uint32_t tp);

#endif
