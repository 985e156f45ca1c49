/* SPDX-License-Identifier: Apache-2.0 */
/* See pooling.h. Called by encoder.c and serve/embed.c. */
#include "infer/pooling.h"

#include <math.h>

void dsi_pool_add(ds_pool pool, double *pooled, int64_t width, int64_t i, const float *row)
{
    const double weight = pool == DS_POOL_WEIGHTED ? (double)(i + 1) : 1.0;
    if (pool == DS_POOL_FIRST && i > 0) {
        return;
    }
    for (int64_t c = 0; c < width; ++c) {
        const double x = weight * (double)row[c];
        if (i == 0 || pool == DS_POOL_LAST) {
            pooled[c] = x;
        } else if (pool == DS_POOL_MAX) {
            pooled[c] = x > pooled[c] ? x : pooled[c];
        } else {
            pooled[c] += x;
        }
    }
}

void dsi_pool_end(ds_pool pool, const double *pooled, int64_t width, int64_t n, float *out)
{
    const double rows = (double)n;
    const double divisor = pool == DS_POOL_MEAN        ? rows
                           : pool == DS_POOL_MEAN_SQRT ? sqrt(rows)
                           : pool == DS_POOL_WEIGHTED  ? rows * (rows + 1.0) / 2.0
                                                       : 1.0;
    for (int64_t c = 0; c < width; ++c) {
        out[c] = (float)(pooled[c] / divisor);
    }
}
