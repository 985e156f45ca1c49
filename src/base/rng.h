/* SPDX-License-Identifier: Apache-2.0 */
/* Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3", SC 2011). A number is a pure function of key and counter, so
 * dropout, shuffling and initialisation are the same whatever the split of the work.
 *
 * Convention: key = seed; counter = {element/4 low, element/4 high, site, step}.
 */
#ifndef DSI_BASE_RNG_H
#define DSI_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

typedef struct dsi_philox {
    uint32_t v[4];
} dsi_philox;

/* Four random words for (key, counter). */
static inline dsi_philox dsi_philox4x32(uint64_t key, const uint32_t counter[4])
{
    uint32_t k0 = (uint32_t)key;
    uint32_t k1 = (uint32_t)(key >> 32);
    dsi_philox x = {{counter[0], counter[1], counter[2], counter[3]}};
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * x.v[0];
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * x.v[2];
        const dsi_philox y = {{(uint32_t)(p1 >> 32) ^ x.v[1] ^ k0, (uint32_t)p1,
                               (uint32_t)(p0 >> 32) ^ x.v[3] ^ k1, (uint32_t)p0}};
        x = y;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x;
}

/* The random word of one logical element at one site and step. */
static inline uint32_t dsi_rng_u32(uint64_t seed, uint32_t site, uint32_t step, uint64_t element)
{
    const uint32_t counter[4] = {(uint32_t)(element >> 2), (uint32_t)(element >> 34), site, step};
    return dsi_philox4x32(seed, counter).v[element & 3];
}

/* [0,1) with 24 bits. */
static inline float dsi_rng_unit(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

/* Standard normal deviates times scale, of elements first … first + n - 1: each a pure function of
 * seed, site and element, the same bits on any machine. See normal.c. */
void dsi_rng_normals(uint64_t seed, uint32_t site, uint64_t first, float scale, float *out,
                     size_t n);
/* The same with instruction sets up to 0 plain, 1 AVX2, 2 AVX-512: for tests. */
void dsi_rng_normals_with(int widest, uint64_t seed, uint32_t site, uint64_t first, float scale,
                          float *out, size_t n);
/* One of them. */
float dsi_rng_normal(uint64_t seed, uint32_t site, uint64_t element);

/* Unbiased integer in [0,n) for one element; n > 0. */
uint64_t dsi_rng_below(uint64_t seed, uint32_t site, uint64_t element, uint64_t n);

#endif
