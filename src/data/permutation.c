/* SPDX-License-Identifier: Apache-2.0 */
/* A balanced Feistel network over the next even power of two, walked until the image is below n
 * (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). */
#include "data/permutation.h"

#include "base/rng.h"

enum { ROUNDS = 6, SITE = 0x5045524d };

static uint64_t feistel(uint64_t x, uint32_t half, uint64_t seed, uint64_t epoch)
{
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t left = x >> half;
    uint64_t right = x & mask;
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        const uint32_t counter[4] = {(uint32_t)right, (uint32_t)(right >> 32), SITE + round,
                                     (uint32_t)epoch};
        const dsi_philox word = dsi_philox4x32(seed, counter);
        const uint64_t next = left ^ (((uint64_t)word.v[0] << 32 | word.v[1]) & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

uint64_t dsi_permute(uint64_t i, uint64_t n, uint64_t seed, uint64_t epoch)
{
    uint32_t half = 1;
    if (n < 2) {
        return 0; /* nothing to permute: the walk below would not end for n = 0 */
    }
    while (half < 32 && ((uint64_t)1 << (2 * half)) < n) {
        ++half;
    }
    uint64_t x = feistel(i, half, seed, epoch);
    while (x >= n) {
        x = feistel(x, half, seed, epoch);
    }
    return x;
}
