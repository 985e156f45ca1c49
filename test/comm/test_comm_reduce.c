/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of reductions: every instruction set against plain C, partial sums, special values.
 */
#include "base/half.h"
#include "base/rng.h"
#include "comm/reduce.h"
#include "comm/reduce_block.h"
#include "common/check.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 19, COUNT = 3001 };

static uint32_t words[MAX_RANKS][COUNT + 16];
static double results[3][COUNT + 16];

/* Any bits are a number of some kind: NaN payloads, infinities, subnormals among them. */
static void fill(uint32_t n, uint64_t seed)
{
    for (uint32_t r = 0; r < n; ++r) {
        for (size_t i = 0; i < COUNT + 16; ++i) {
            const uint32_t word = dsi_rng_u32(seed, r, 1, i);
            const uint32_t tame = (word & 0x83ffffffu) + 0x3e000000u;
            words[r][i] = word % 64 == 0 ? word : tame;
        }
    }
}

static void plain(const dsi_reduce_job *job, const void *const *in, char *out, size_t count)
{
    for (size_t begin = 0; begin < count; begin += REDUCE_BLOCK) {
        reduce_block(job, in, begin, count - begin < REDUCE_BLOCK ? count - begin : REDUCE_BLOCK,
                     out);
    }
}

static void test_kernels_agree(void **state)
{
    (void)state;
    const ds_dtype types[3] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    for (uint32_t n = 1; n <= MAX_RANKS; ++n) {
        const void *ins[MAX_RANKS];
        fill(n, n);
        for (uint32_t r = 0; r < n; ++r) {
            ins[r] = (const char *)words[r] + 4 * (r % 3); /* not aligned */
        }
        for (uint32_t t = 0; t < 18; ++t) {
            const dsi_reduce_job job = {types[t % 3], types[t / 3 % 3],
                                        t >= 9 ? DSI_REDUCE_MAX : DSI_REDUCE_SUM, 1.0f / (float)n,
                                        n};
            const size_t bytes = COUNT * ds_dtype_bytes(job.out_dtype);
            void *const outs[2] = {(char *)results[1] + 4, results[2]};
            memset(results, 0x5a, sizeof results);
            plain(&job, ins, (char *)results[0], COUNT);
            dsi_reduce_to(&job, ins, outs, 2, COUNT);
            assert_memory_equal(results[0], outs[0], bytes);
            assert_memory_equal(results[0], outs[1], bytes);
            memset(results[1], 0, sizeof results[1]);
            dsi_reduce_stream(&job, ins, outs, 1, COUNT);
            assert_memory_equal(results[0], outs[0], bytes);
        }
    }
}

/* A block of four ranks reduced to fp32 first, then joined with the others: the same bits. */
static void test_partial_sums(void **state)
{
    (void)state;
    static float partial[2][COUNT];
    const void *ins[MAX_RANKS];
    const void *const parts[2] = {partial[0], partial[1]};
    fill(7, 3);
    for (uint32_t r = 0; r < 7; ++r) {
        ins[r] = words[r];
    }
    const dsi_reduce_job whole = {DS_DTYPE_BF16, DS_DTYPE_BF16, DSI_REDUCE_SUM, 0.3f, 7};
    const dsi_reduce_job low = {DS_DTYPE_BF16, DS_DTYPE_F32, DSI_REDUCE_SUM, 1.0f, 4};
    const dsi_reduce_job high = {DS_DTYPE_BF16, DS_DTYPE_F32, DSI_REDUCE_SUM, 1.0f, 3};
    const dsi_reduce_job join = {DS_DTYPE_F32, DS_DTYPE_BF16, DSI_REDUCE_SUM, 0.3f, 2};
    dsi_reduce(&whole, ins, results[0], COUNT);
    dsi_reduce(&low, ins, partial[0], COUNT);
    dsi_reduce(&high, ins + 4, partial[1], COUNT);
    dsi_reduce(&join, parts, results[1], COUNT);
    assert_memory_equal(results[0], results[1], COUNT * 2);
}

static void test_special_values(void **state)
{
    (void)state;
    const uint32_t a[5] = {0x7fc12345u, 0x7f800000u, 0x80000000u, 0x00000001u, 0x3f800000u};
    const uint32_t b[5] = {0x3f800000u, 0xff800000u, 0x00000000u, 0x00000001u, 0xff800001u};
    const void *const ins[2] = {a, b};
    uint32_t out[5];
    const dsi_reduce_job sum = {DS_DTYPE_F32, DS_DTYPE_F32, DSI_REDUCE_SUM, 1.0f, 2};
    const dsi_reduce_job max = {DS_DTYPE_F32, DS_DTYPE_F32, DSI_REDUCE_MAX, 0.0f, 2};
    dsi_reduce(&sum, ins, out, 5);
    const uint32_t sums[5] = {0x7fc00000u, 0x7fc00000u, 0u, 2u, 0x7fc00000u};
    assert_memory_equal(out, sums, sizeof sums);
    dsi_reduce(&max, ins, out, 5);
    const uint32_t largest[5] = {0x7fc00000u, 0x7f800000u, 0x80000000u, 1u, 0x7fc00000u};
    assert_memory_equal(out, largest, sizeof largest);
    const int8_t x[1] = {120};
    const void *const bytes[2] = {x, x};
    int8_t wrapped;
    const dsi_reduce_job small = {DS_DTYPE_I8, DS_DTYPE_I8, DSI_REDUCE_SUM, 1.0f, 2};
    dsi_reduce(&small, bytes, &wrapped, 1);
    assert_int_equal(wrapped, -16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_agree),
        cmocka_unit_test(test_partial_sums),
        cmocka_unit_test(test_special_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
