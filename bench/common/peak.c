/* SPDX-License-Identifier: Apache-2.0 */
/* See peak.h. */
#include "common/peak.h"
#include "accel/cpu/cpu_features.h"
#include "base/clock.h"
#include "common/timing.h"

#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    RUNS = 7,
    SUMS = 12,
    DOTS = 16,
    ROUNDS = 1 << 22,
    TILE_ROUNDS = 200000,
    RANDOM_BYTES = 4096
};

/* One way to multiply and add; `operations` of a task. */
typedef struct loop {
    const char *name;
    dsi_task_fn run;
    double operations;
} loop;

/* n independent sums hide the latency of an addition; the compiler keeps them in registers. SUMS do
 * for multiply-adds; a dot product on Zen 5 takes 6 cycles, two begin in each, and 12 sums reach
 * only 93 % of its rate. */
#define SUM_LOOP(fn, isa, n, vec, zero, operand, load, add)                                        \
    isa static void fn(void *arg, uint32_t task, uint32_t thread)                                  \
    {                                                                                              \
        const operand x = load((const void *)arg);                                                 \
        const operand y = load((const void *)((const char *)arg + sizeof(operand)));               \
        vec sums[n];                                                                               \
        (void)task;                                                                                \
        (void)thread;                                                                              \
        for (int i = 0; i < (n); ++i) {                                                            \
            sums[i] = zero;                                                                        \
        }                                                                                          \
        for (int round = 0; round < ROUNDS; ++round) {                                             \
            for (int i = 0; i < (n); ++i) {                                                        \
                sums[i] = add(sums[i], x, y);                                                      \
            }                                                                                      \
        }                                                                                          \
        for (int i = 1; i < (n); ++i) {                                                            \
            sums[0] += sums[i];                                                                    \
        }                                                                                          \
        __asm__ volatile("" : : "m"(sums[0]));                                                     \
    }

#define SUM_OPERATIONS(n, products) (2.0 * (products) * (n)*ROUNDS)

static float load_one(const void *at)
{
    return *(const float *)at;
}

static float add_plain(float sum, float x, float y)
{
    return sum + x * y;
}

SUM_LOOP(sums_plain, , SUMS, float, 0.0f, float, load_one, add_plain)
static const loop plain = {"plain C fp32 multiply-adds", sums_plain, SUM_OPERATIONS(SUMS, 1)};

#if defined(__x86_64__)
#define TARGET(isa)        __attribute__((target(isa)))
#define FMA_256(sum, x, y) _mm256_fmadd_ps((x), (y), (sum))
#define FMA_512(sum, x, y) _mm512_fmadd_ps((x), (y), (sum))
#define LOAD_BF16(at)      ((__m512bh)_mm512_loadu_si512(at))

SUM_LOOP(sums_avx2, TARGET("avx2,fma"), SUMS, __m256, _mm256_setzero_ps(), __m256, _mm256_loadu_ps,
         FMA_256)
SUM_LOOP(sums_avx512, TARGET("avx512f"), SUMS, __m512, _mm512_setzero_ps(), __m512, _mm512_loadu_ps,
         FMA_512)
SUM_LOOP(sums_bf16, TARGET("avx512f,avx512bf16"), DOTS, __m512, _mm512_setzero_ps(), __m512bh,
         LOAD_BF16, _mm512_dpbf16_ps)
static const loop avx2 = {"AVX2 fp32 multiply-adds", sums_avx2, SUM_OPERATIONS(SUMS, 8)};
static const loop avx512 = {"AVX-512 fp32 multiply-adds", sums_avx512, SUM_OPERATIONS(SUMS, 16)};
static const loop avx512_bf16 = {"AVX-512 bf16 dot products", sums_bf16, SUM_OPERATIONS(DOTS, 32)};

static const _Alignas(64) uint8_t tile_config[64] = {
    [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64,
    [26] = 64, [28] = 64, [30] = 64, [48] = 16, [49] = 16, [50] = 16,
    [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};

TARGET("amx-tile,amx-bf16") static void tiles(void *arg, uint32_t task, uint32_t thread)
{
    (void)task;
    (void)thread;
    const char *random = arg;
    _tile_loadconfig(tile_config);
    _tile_loadd(4, random, 64);
    _tile_loadd(5, random + 1024, 64);
    _tile_loadd(6, random + 2048, 64);
    _tile_loadd(7, random + 3072, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < TILE_ROUNDS; ++i) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}
static const loop amx = {"AMX bf16 tiles", tiles, 4.0 * 2 * 16 * 16 * 32 * TILE_ROUNDS};
#endif

static bench_peak measure(const loop *l, dsi_pool *pool, uint32_t n_threads, void *random)
{
    bench_peak peak = {l->name, 0.0};
    for (int run = 0; run < RUNS; ++run) {
        const double start = dsi_clock_seconds();
        dsi_pool_run(pool, l->run, random, n_threads);
        const double rate = n_threads * l->operations / (dsi_clock_seconds() - start);
        peak.flops = rate > peak.flops ? rate : peak.flops;
    }
    return peak;
}

bench_peak bench_peak_measure(dsi_pool *pool, uint32_t n_threads, ds_dtype dtype)
{
    const loop *candidates[3] = {&plain, NULL, NULL};
    bench_peak best = {0};
#if defined(__x86_64__)
    const ds_isa isa = dsi_cpu_isa();
    candidates[0] = (isa & DS_ISA_AVX512) != 0 ? &avx512
                    : (isa & DS_ISA_AVX2) != 0 ? &avx2
                                               : &plain;
    if (dtype == DS_DTYPE_BF16) {
        candidates[1] = (isa & DS_ISA_AVX512_BF16) != 0 ? &avx512_bf16 : NULL;
        candidates[2] = (isa & DS_ISA_AMX) != 0 ? &amx : NULL;
    }
#endif
    void *random = bench_alloc(RANDOM_BYTES);
    if (dtype == DS_DTYPE_BF16) {
        bench_fill_bf16(random, RANDOM_BYTES / 2, 7);
    } else {
        bench_fill_f32(random, RANDOM_BYTES / 4, 7);
    }
    for (int i = 0; i < 3; ++i) {
        if (candidates[i] != NULL) {
            const bench_peak found = measure(candidates[i], pool, n_threads, random);
            best = found.flops > best.flops ? found : best;
        }
    }
    free(random);
    return best;
}
