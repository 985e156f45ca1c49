/* SPDX-License-Identifier: Apache-2.0 */
/* bitsandbytes' dynamic map of 8 bits: 256 numbers from -1 (0 without signs) to 1, denser towards
 * 0. Used by 8-bit optimizers and by nested scales of NF4 (packed.c).
 *
 * Seven decades up to 1, the i-th cut into 2^i equal parts (2^(i+1) without signs), each of which
 * stands for its middle, in fp32 as PyTorch computes it; besides them 0 and 1.
 */
#ifndef DSI_BASE_DYNAMIC_MAP_H
#define DSI_BASE_DYNAMIC_MAP_H

#include <stdbool.h>
#include <stdint.h>

enum { DSI_DYNAMIC_MAP = 256 };

/* Ascending. */
const float *dsi_dynamic_map(bool has_sign);
/* The code of x, which is within [-1,1] but for rounding. There are 65536 equal cells; the code is
 * the map's nearest to the middle of x's cell, which is how bitsandbytes looks it up on processors.
 * NaN has the first cell. */
uint8_t dsi_dynamic_code(const float map[DSI_DYNAMIC_MAP], float x);

#endif
