/* SPDX-License-Identifier: Apache-2.0 */
/* What operators on packed matrices share. */
#ifndef DSI_OP_PACKED_H
#define DSI_OP_PACKED_H

#include <deepspeed/op.h>

/* Input i is a packed matrix of so many bytes: u8 (N), or a part of one that ranks share, u8 (R,E)
 * with room behind (base/packed_parts.h). */
ds_status dsi_op_need_packed(const ds_infer *call, uint32_t i, size_t bytes);

#endif
