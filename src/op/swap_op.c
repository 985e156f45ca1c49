/* SPDX-License-Identifier: Apache-2.0 */
/* swap_in and swap_out: rules. The executor runs them between memory and where the cell lives, host
 * memory or disk; no accelerator has kernels for them. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status swap_in_infer(ds_infer *call)
{
    if (!dsi_op_has(call, 0)) {
        return dsi_op_bad(call, 0, "cell", "a cell");
    }
    call->out[0] = call->in[0];
    return DS_OK;
}

static ds_status swap_out_infer(ds_infer *call)
{
    const ds_meta cell = dsi_op_in(call, 0);
    const ds_meta x = dsi_op_in(call, 1);
    if (!dsi_op_has(call, 0) || x.dtype != cell.dtype ||
        ds_shape_count(x.shape) != ds_shape_count(cell.shape)) {
        char text[96];
        return dsi_op_bad(call, 1, "x", "as many elements as the cell, %s",
                          ds_meta_text(cell, text, sizeof text));
    }
    call->out[0] = cell;
    return DS_OK;
}

static const int8_t writes_first[] = {0};

const ds_op dsi_op_swap_in = {
    .version = DS_OP_VERSION,
    .name = "swap_in",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_SWAP_IN,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE_NOWHERE,
    .doc = "cell that lives in host memory or on disk → its content.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .flags = DS_OP_SWAP,
    .infer = swap_in_infer,
};

const ds_op dsi_op_swap_out = {
    .version = DS_OP_VERSION,
    .name = "swap_out",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_SWAP_OUT,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE_NOWHERE,
    .doc = "cell that lives in host memory or on disk, x → the cell's next version, x.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .flags = DS_OP_SWAP,
    .writes = writes_first,
    .infer = swap_out_infer,
};
