/* SPDX-License-Identifier: Apache-2.0 */
/* Dtypes that tensors of files may have and no tensor of this library has: bytes that mean a number
 * with a scale beside them, and such scales (ckpt/byte_weight.h). They stand behind the public
 * ones, and ds_dtype_name, ds_dtype_bytes and ds_dtype_safetensors know them; nothing converts
 * them. */
#ifndef DSI_BASE_FILE_DTYPE_H
#define DSI_BASE_FILE_DTYPE_H

#include <deepspeed/tensor.h>

enum { DSI_DTYPE_F8_E4M3 = DS_DTYPE_ALL, DSI_DTYPE_F8_E5M2, DSI_DTYPE_F8_E8M0, DSI_DTYPE_END };

#endif
