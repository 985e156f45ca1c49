/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of place_node: place_node.c goes axis by axis, place_flat.c decides before it which inputs
 * stay flat. See place_node.h. */
#ifndef DSI_PLACE_PLACE_NODE_IMPL_H
#define DSI_PLACE_PLACE_NODE_IMPL_H

#include "place/place_node.h"

typedef struct dsi_placing {
    ds_ctx *ctx;
    const dsi_place_node *node;
    dsi_placed *p;
    uint32_t settled;             /* axes that Flat decided */
    uint32_t was_flat[DS_MAX_IN]; /* axes on which an input is gathered from Flat */
} dsi_placing;

static inline bool dsi_placing_has(const dsi_placing *w, uint32_t i)
{
    return w->node->in_meta[i].dtype != DS_DTYPE_NONE;
}

static inline bool dsi_placing_is_fixed(const dsi_placing *w, uint32_t i)
{
    return (w->node->fixed >> i & 1u) != 0;
}

static inline bool dsi_placing_is_own(const dsi_placing *w, uint32_t i, uint32_t axes)
{
    return dsi_placing_has(w, i) && (dsi_placement_own_axes(&w->node->in[i].at) & axes) != 0;
}

/* Whether input i is a gradient that ends here, which may be gathered where exchanges cut it. */
static inline bool dsi_placing_completes(const dsi_placing *w, uint32_t i, uint32_t axis)
{
    return (w->node->completed >> i & 1u) != 0 && (w->node->policy->exchange >> axis & 1u) != 0;
}

/* The error of input i, which would have to be placed as `need`. */
ds_status dsi_placing_refuse(const dsi_placing *w, uint32_t i, const dsi_placement *need,
                             const char *why);

/* Inputs and outputs that are flat: the operator works on slices, or the inputs are gathered. Sets
 * `settled` and `was_flat`. Errors: ERR_UNSUPPORTED. */
ds_status dsi_place_flat(dsi_placing *w);

#endif
