/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of tensors as ascending runs of row-major elements: cover checks and copies between parts
 * that were cut in different ways. */
#ifndef DSI_IO_EXTENT_H
#define DSI_IO_EXTENT_H

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

/* First element of the part and one past its last; equal when it has none. */
void dsi_extent_span(const ds_extent *extent, ds_shape shape, int64_t *first_out, int64_t *end_out);

typedef enum dsi_cover { DSI_COVER_EXACT, DSI_COVER_GAP, DSI_COVER_TWICE } dsi_cover;

/* How n parts cover the shape. Flat parts take n log n steps; boxes are compared in pairs where
 * their spans meet. Pre: all are inside of shape. Errors: ERR_NOMEM, without a message. */
ds_status dsi_extent_cover(const ds_extent *extents, size_t n, ds_shape shape,
                           dsi_cover *cover_out);

#endif
