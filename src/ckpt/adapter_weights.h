/* SPDX-License-Identifier: Apache-2.0 */
/* Which stored tensor of an adapter's folder each of its parameters is. Used by training and
 * generation. */
#ifndef DSI_CKPT_ADAPTER_WEIGHTS_H
#define DSI_CKPT_ADAPTER_WEIGHTS_H

#include <deepspeed/adapter.h>
#include <deepspeed/safetensors.h>

/* Opens adapter_model.safetensors and fills by_cell (ds_cells_count entries): the tensor of each
 * parameter that the adapter has, and of an embedding that it is on where the file has that too;
 * NULL for other cells. The caller closes *st_out. Errors:
 * ERR_NOT_FOUND (the file, or a parameter without tensor), ERR_SHAPE, ERR_FORMAT (a tensor that
 * the adapter does not have): each names tensor and file. */
ds_status dsi_adapter_weights_open(const ds_adapter *adapter, const ds_cells *cells,
                                   ds_safetensors **st_out, const ds_safetensor **by_cell);

#endif
