/* SPDX-License-Identifier: Apache-2.0 */
/* A pseudo-random permutation of [0,n) that is computed point by point: no table, any start. */
#ifndef DSI_DATA_PERMUTATION_H
#define DSI_DATA_PERMUTATION_H

#include <stdint.h>

/* Image of i < n (0 for n = 0) under the permutation of (seed, epoch). */
uint64_t dsi_permute(uint64_t i, uint64_t n, uint64_t seed, uint64_t epoch);

#endif
