/* SPDX-License-Identifier: Apache-2.0 */
/* Derived deviates of the counter-based generator. */
#include "base/rng.h"

uint64_t dsi_rng_below(uint64_t seed, uint32_t site, uint64_t element, uint64_t n)
{
    const uint64_t limit = UINT64_MAX - UINT64_MAX % n; /* a multiple of n */
    for (uint32_t attempt = 0;; ++attempt) {
        const uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), site, attempt};
        const dsi_philox x = dsi_philox4x32(seed, counter);
        const uint64_t word = (uint64_t)x.v[0] << 32 | x.v[1];
        if (word < limit) {
            return word % n;
        }
    }
}
