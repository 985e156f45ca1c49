/* SPDX-License-Identifier: Apache-2.0 */
/* Counter-based random numbers for kernel sources: Philox4x32-10, as base/rng.h states it, where
 * source and convention are; the same words. */
#ifndef DSC_RNG_H
#define DSC_RNG_H

#include "accel/cuda/cuda_device.h"

/* The word of one logical element at one site and step. */
DSC_INLINE uint32_t dsc_random_word(uint64_t seed, uint32_t site, uint32_t step, uint64_t element)
{
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);
    uint32_t x[4] = {(uint32_t)(element >> 2), (uint32_t)(element >> 34), site, step};
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * x[0];
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * x[2];
        x[0] = (uint32_t)(p1 >> 32) ^ x[1] ^ k0;
        x[1] = (uint32_t)p1;
        x[2] = (uint32_t)(p0 >> 32) ^ x[3] ^ k1;
        x[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x[element & 3];
}

/* [0,1) of it. */
DSC_INLINE float dsc_random_unit(uint64_t seed, uint32_t site, uint32_t step, uint64_t element)
{
    return (float)(dsc_random_word(seed, site, step, element) >> 8) *
           5.9604644775390625e-8f; /* 2^-24 */
}

#endif
