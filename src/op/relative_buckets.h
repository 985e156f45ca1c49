/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of distances between query and key (Raffel et al. 2020, 2.1): half of them are single
 * distances, the others grow by a constant factor up to max_distance. Used by the kernels of
 * relative_bias. */
#ifndef DSI_OP_RELATIVE_BUCKETS_H
#define DSI_OP_RELATIVE_BUCKETS_H

#include "op/ops.h"

#include <math.h>

enum { DSI_MOST_BUCKETS = 1 << 16, DSI_MOST_DISTANCE = 1 << 20 };

/* Of n buckets that of key minus query. In f32 and in transformers' order, whose ranges begin where
 * its rounding has them begin. */
static inline int64_t dsi_relative_bucket(const dsi_relative_attrs *a, int64_t n, int64_t distance)
{
    const int64_t ranges = a->both != 0 ? n / 2 : n;
    const int64_t base = a->both != 0 && distance > 0 ? ranges : 0;
    const int64_t off = a->both != 0 && distance > 0 ? distance : -distance;
    const int64_t exact = ranges / 2;
    if (off < exact || off <= 0) {
        return base + (off > 0 ? off : 0);
    }
    const float growth = (float)log((double)a->max_distance / (double)exact);
    const float beyond = logf((float)off / (float)exact) / growth * (float)(ranges - exact);
    const int64_t bucket = exact + (int64_t)beyond;
    return base + (bucket < ranges ? bucket : ranges - 1);
}

#endif
