/* SPDX-License-Identifier: Apache-2.0 */
/* Normal deviates in bulk: the same bits on every instruction set.
 *
 * Box-Muller (1958): with u1 in (0,1) and an angle of u2 turns, r·cos and r·sin of it, r = sqrt(-2
 * ln u1), are two independent normals. One Philox block of four words gives the normals of elements
 * 4b to 4b+3. All arithmetic is fp32, each operation IEEE and stated (explicit fma, no
 * contraction), so a wider vector gives the same numbers. u1 has 23 bits: the largest deviate
 * is 5.77.
 *
 * The polynomials are least-squares fits on Chebyshev nodes: ln(1+t) = t - t²/2 + t³·p(t) within
 * 2e-9 on [1/√2-1, √2-1]; sin and cos of a quarter turn within 6e-8.
 */
#include "base/processor.h"
#include "base/rng.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { LANES = 16 }; /* blocks at a time */

static inline __attribute__((always_inline)) float log_of(float u)
{
    uint32_t bits;
    memcpy(&bits, &u, sizeof bits);
    const uint32_t shifted = bits - 0x3f3504f3u; /* 1/√2 */
    const int32_t exponent = (int32_t)shifted >> 23;
    bits = (shifted & 0x007fffffu) + 0x3f3504f3u; /* mantissa in [1/√2, √2) */
    float m;
    memcpy(&m, &bits, sizeof m);
    const float t = m - 1.0f;
    float p = 0x1.24da9ap-3f;
    p = fmaf(p, t, -0x1.d9f4d6p-4f);
    p = fmaf(p, t, 0x1.dda7cep-4f);
    p = fmaf(p, t, -0x1.fc5b4cp-4f);
    p = fmaf(p, t, 0x1.23d6b6p-3f);
    p = fmaf(p, t, -0x1.555ed8p-3f);
    p = fmaf(p, t, 0x1.999d5p-3f);
    p = fmaf(p, t, -0x1.fffff2p-3f);
    p = fmaf(p, t, 0x1.555554p-2f);
    p = fmaf(p, t, -0.5f);
    return fmaf((float)exponent, 0x1.62e43p-1f, fmaf(p, t * t, t));
}

static inline __attribute__((always_inline)) void pair_of(uint32_t w1, uint32_t w2, float *a,
                                                          float *b)
{
    const float u = (float)(int32_t)((w1 >> 9) * 2 + 1) * 0x1p-24f;
    const float r = sqrtf(-2.0f * log_of(u));
    const float x = (float)(int32_t)(w2 << 1) * 0x1p-33f; /* turns, in [-1/4, 1/4) */
    const float y = x * x;
    float s = -0x1.cc9cc2p+3f;
    s = fmaf(s, y, 0x1.501416p+5f);
    s = fmaf(s, y, -0x1.32d13p+6f);
    s = fmaf(s, y, 0x1.466bcp+6f);
    s = fmaf(s, y, -0x1.4abbcep+5f);
    s = fmaf(s, y, 0x1.921fb6p+2f);
    float c = 0x1.e258bp+2f;
    c = fmaf(c, y, -0x1.a651c2p+4f);
    c = fmaf(c, y, 0x1.e1f24ep+5f);
    c = fmaf(c, y, -0x1.55d3cp+6f);
    c = fmaf(c, y, 0x1.03c1fp+6f);
    c = fmaf(c, y, -0x1.3bd3ccp+4f);
    c = fmaf(c, y, 1.0f);
    const float half_turn = (w2 ^ (w2 << 1)) >> 31 != 0 ? -r : r;
    *a = half_turn * c;
    *b = half_turn * (s * x);
}

/* The normals of `lanes` consecutive blocks from `block` on, times scale. */
static inline __attribute__((always_inline)) void run_body(int lanes, uint64_t seed, uint32_t site,
                                                           uint64_t block, float scale, float *out)
{
    uint32_t x[4][LANES];
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < lanes; ++i) {
        x[0][i] = (uint32_t)(block + (uint64_t)i);
        x[1][i] = (uint32_t)((block + (uint64_t)i) >> 32);
        x[2][i] = site;
        x[3][i] = 0x4e4f524du;
    }
    for (int round = 0; round < 10; ++round) {
        for (int i = 0; i < lanes; ++i) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * x[0][i];
            const uint64_t p1 = (uint64_t)0xCD9E8D57u * x[2][i];
            x[0][i] = (uint32_t)(p1 >> 32) ^ x[1][i] ^ k0;
            x[1][i] = (uint32_t)p1;
            x[2][i] = (uint32_t)(p0 >> 32) ^ x[3][i] ^ k1;
            x[3][i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    float z[4][LANES];
    for (int i = 0; i < lanes; ++i) {
        pair_of(x[0][i], x[1][i], &z[0][i], &z[1][i]);
    }
    for (int i = 0; i < lanes; ++i) {
        pair_of(x[2][i], x[3][i], &z[2][i], &z[3][i]);
    }
    for (int i = 0; i < lanes; ++i) {
        for (int j = 0; j < 4; ++j) {
            out[4 * i + j] = scale * z[j][i];
        }
    }
}

typedef void (*run_fn)(uint64_t seed, uint32_t site, uint64_t block, float scale, float *out);

static void run_plain(uint64_t seed, uint32_t site, uint64_t block, float scale, float *out)
{
    run_body(LANES, seed, site, block, scale, out);
}

static void run_plain_block(uint64_t seed, uint32_t site, uint64_t block, float scale, float *out)
{
    run_body(1, seed, site, block, scale, out);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void
run_avx2_block(uint64_t seed, uint32_t site, uint64_t block, float scale, float *out)
{
    run_body(1, seed, site, block, scale, out);
}

__attribute__((target("avx2,fma"))) static void run_avx2(uint64_t seed, uint32_t site,
                                                         uint64_t block, float scale, float *out)
{
    run_body(LANES, seed, site, block, scale, out);
}

__attribute__((target("avx512f,avx512dq,avx512vl,fma,prefer-vector-width=512"))) static void
run_avx512(uint64_t seed, uint32_t site, uint64_t block, float scale, float *out)
{
    run_body(LANES, seed, site, block, scale, out);
}
#endif

static run_fn best_run(int widest)
{
#if defined(__x86_64__)
    if (widest >= 2 && dsi_processor_has(DSI_CPU_SET_AVX512)) {
        return run_avx512;
    }
    if (widest >= 1 && dsi_processor_has(DSI_CPU_SET_AVX2)) {
        return run_avx2;
    }
#else
    (void)widest;
#endif
    return run_plain;
}

void dsi_rng_normals_with(int widest, uint64_t seed, uint32_t site, uint64_t first, float scale,
                          float *out, size_t n)
{
    const run_fn run = best_run(widest);
    float edge[4 * LANES];
    while (n > 0) {
        const size_t skip = (size_t)(first % (4 * LANES));
        const size_t room = 4 * LANES - skip;
        const size_t part = n < room ? n : room;
        if (part == 4 * LANES) {
            run(seed, site, first / 4, scale, out);
        } else {
            run(seed, site, (first - skip) / 4, scale, edge);
            memcpy(out, edge + skip, part * sizeof *out);
        }
        first += part;
        out += part;
        n -= part;
    }
}

void dsi_rng_normals(uint64_t seed, uint32_t site, uint64_t first, float scale, float *out,
                     size_t n)
{
    dsi_rng_normals_with(2, seed, site, first, scale, out, n);
}

float dsi_rng_normal(uint64_t seed, uint32_t site, uint64_t element)
{
    float block[4];
    run_fn run = run_plain_block;
#if defined(__x86_64__)
    run = best_run(1) == run_avx2 ? run_avx2_block : run;
#endif
    run(seed, site, element / 4, 1.0f, block);
    return block[element % 4];
}
