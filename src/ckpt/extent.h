/* Parts of tensors as ascending runs of row-major elements: cover checks and copies between parts
 * that were cut in different ways. */
#ifndef DSI_CKPT_EXTENT_H
#define DSI_CKPT_EXTENT_H

#include <deepspeed/checkpoint.h>

/* Whether the part lies inside of the shape. */
bool dsi_extent_is_inside(const ds_extent *extent, ds_shape shape);

/* Copies the elements that both parts have, from the buffer of `from` to that of `to`, converting;
 * buffers NULL: only counts. Returns the number of elements; adds overflows (see dsi_convert).
 * Pre: both parts are inside of shape. */
typedef struct dsi_extent_copy {
    ds_shape shape;
    const ds_extent *from;
    const void *in;
    ds_dtype in_dtype;
    const ds_extent *to;
    void *out;
    ds_dtype out_dtype;
    size_t overflows;
} dsi_extent_copy;

int64_t dsi_extent_copy_run(dsi_extent_copy *copy);

/* Whether n parts cover the shape exactly once. On false *gap_out tells a gap from an overlap. */
bool dsi_extent_cover(const ds_extent *extents, size_t n, ds_shape shape, bool *gap_out);

#endif
