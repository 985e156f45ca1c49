/* SPDX-License-Identifier: Apache-2.0 */
/* See box_runs.h. */
#include "ckpt/box_runs.h"

typedef struct walk {
    const dsi_box *box;
    dsi_box_fn fn;
    void *user;
    int64_t at[DS_MAX_DIMS]; /* indices in the box of the dims that are passed */
} walk;

/* Elements [low, high) of those below the indices at[0 … dim); the first is element `base`. */
static ds_status walk_dim(walk *w, uint32_t dim, int64_t base, int64_t low, int64_t high)
{
    const ds_shape *shape = &w->box->shape;
    int64_t below = 1;
    for (uint32_t i = dim + 1; i < shape->n_dims; ++i) {
        below *= shape->dims[i];
    }
    while (low < high) {
        const int64_t index = low / below;
        const int64_t full = (high - index * below) / below;
        if (low % below != 0 || full == 0) {
            const int64_t end = (index + 1) * below < high ? (index + 1) * below : high;
            w->at[dim] = index;
            DS_TRY(walk_dim(w, dim + 1, base + index * below, low - index * below,
                            end - index * below));
            low = end;
            continue;
        }
        int64_t offset[DS_MAX_DIMS] = {0};
        int64_t lengths[DS_MAX_DIMS] = {0};
        for (uint32_t i = 0; i < shape->n_dims; ++i) {
            offset[i] = w->box->offset[i] + (i < dim ? w->at[i] : i == dim ? index : 0);
            lengths[i] = i < dim ? 1 : i == dim ? full : shape->dims[i];
        }
        const ds_extent extent = ds_extent_box(shape->n_dims, offset, lengths);
        DS_TRY(w->fn(w->user, &extent, base + low));
        low += full * below;
    }
    return DS_OK;
}

ds_status dsi_box_runs(const dsi_box *box, int64_t low, int64_t high, dsi_box_fn fn, void *user)
{
    walk w = {.box = box, .fn = fn, .user = user};
    return walk_dim(&w, 0, 0, low, high);
}
