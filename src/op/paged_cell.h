/* SPDX-License-Identifier: Apache-2.0 */
/* How keys and values lie in the cells of paged_write and paged_attention. A cell is (blocks,
 * positions, C): of a float dtype a position's row is its heads, side by side. Of i8 a head is its
 * codes and behind them its scale, an fp32 that need not be aligned: value = code·scale. */
#ifndef DSI_OP_PAGED_CELL_H
#define DSI_OP_PAGED_CELL_H

#include <deepspeed/tensor.h>

enum { DSI_PAGED_SCALE = 4, DSI_PAGED_MOST_CODE = 127 };

/* Elements of the cell that a head of d values takes. */
static inline int64_t dsi_paged_head(ds_dtype cell, int64_t d)
{
    return cell == DS_DTYPE_I8 ? d + DSI_PAGED_SCALE : d;
}

#endif
