/* Derived deviates of the counter-based generator. */
#include "base/rng.h"

#include <math.h>

float dsi_rng_normal(uint64_t seed, uint32_t site, uint64_t element)
{
    const uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), site, 0x4e4f524du};
    const dsi_philox x = dsi_philox4x32(seed, counter);
    const double u1 = ((double)x.v[0] + 1.0) * 0x1p-32; /* (0,1] */
    const double u2 = (double)x.v[1] * 0x1p-32;
    return (float)(sqrt(-2.0 * log(u1)) * cos(6.283185307179586476925 * u2));
}

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
