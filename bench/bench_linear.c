/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few and of many rows with a weight that is larger than caches, against reading it.
 *
 * usage: bench_linear [ROUNDS [TYPE [THREADS [OUT]]]]
 * A line for each type of weight, kernel and number of rows: median milliseconds of ROUNDS (9),
 * GB/s of the weight and its share of the read rate (huge pages), 10^9 operations a second.
 * Reference kernels are left out. Rounds of the kernels alternate with reads.
 */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/blocks.h"
#include "base/clock.h"
#include "common/read_rate.h"
#include "common/timing.h"
#include "op/ops.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 2048, MOST_OUT = 32768, MOST_ROUNDS = 999, MOST_ROWS = 512 };

static const ds_dtype types[] = {DS_DTYPE_BF16, DS_DTYPE_Q8_0, DS_DTYPE_Q4_0,
                                 DS_DTYPE_Q4_1, DS_DTYPE_Q5_0, DS_DTYPE_Q5_1,
                                 DS_DTYPE_Q4_K, DS_DTYPE_Q5_K, DS_DTYPE_Q6_K};
static const int64_t rows[] = {1, 2, 4, 8, 16, 64, 512};

typedef struct bench {
    ds_ctx *ctx;
    dsi_pool *pool;
    uint32_t n_threads;
    int rounds;
    int64_t out; /* rows of the weight */
    void *weight, *x, *y;
} bench;

static void die(const char *what)
{
    (void)fprintf(stderr, "bench_linear: %s\n", what);
    exit(1);
}

/* Any bytes are blocks; these have scales that are finite. */
static void fill(uint8_t *bytes, size_t n)
{
    uint64_t seed = 1;
    for (size_t i = 0; i < n; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(seed >> 59);
    }
}

/* false: there is no such kernel. */
static bool time_one(const bench *b, ds_dtype type, int64_t m, uint32_t index)
{
    const dsi_linear_attrs attrs = {.activation = DSI_ACT_NONE};
    const ds_meta in[2] = {{DS_DTYPE_BF16, ds_shape_2d(m, WIDTH)},
                           {type, ds_shape_2d(b->out, WIDTH)}};
    const ds_meta out[2] = {{DS_DTYPE_BF16, ds_shape_2d(m, b->out)}, {DS_DTYPE_NONE, {0}}};
    const ds_kernel_sig sig = {.op = &dsi_op_linear,
                               .attrs = &attrs,
                               .n_in = 2,
                               .in = in,
                               .n_out = 2,
                               .out = out,
                               .n_threads = b->n_threads};
    const ds_kernel *kernel = dsi_cpu_kernel_at(&sig, dsi_cpu_isa(), index);
    if (kernel == NULL) {
        return false;
    }
    if (kernel->needs == DS_ISA_REF) {
        return true;
    }
    const size_t bytes = ds_meta_bytes(in[1]);
    const ds_tensor tensors[2] = {{b->x, in[0]}, {b->weight, in[1]}};
    ds_tensor outs[2] = {{b->y, out[0]}, {NULL, out[1]}};
    const size_t work_bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
    void *work = bench_alloc(work_bytes + 64);
    const ds_kernel_call call = {
        .ctx = b->ctx, .sig = &sig, .in = tensors, .out = outs, .work = work};
    double seconds[MOST_ROUNDS];
    double shares[MOST_ROUNDS];
    for (int r = 0; r < b->rounds; ++r) {
        const double rate = m <= 8 ? bench_read_rate(b->pool, b->n_threads, b->weight, bytes) : 0.0;
        (void)usleep(20000); /* the other pool's threads look for work no more */
        (void)kernel->run(&call);
        const double start = dsi_clock_seconds();
        if (kernel->run(&call) != DS_OK) {
            die(ds_ctx_error(b->ctx));
        }
        seconds[r] = dsi_clock_seconds() - start;
        shares[r] = rate > 0.0 ? (double)bytes / seconds[r] / rate : 0.0;
    }
    const double s = bench_median(seconds, (size_t)b->rounds);
    printf("%-5s %-12s %4lld rows %9.3f ms %8.2f GB/s", ds_dtype_name(type), kernel->name,
           (long long)m, s * 1e3, (double)bytes / s * 1e-9);
    if (m <= 8) {
        printf(" (%3.0f %% of reading)", bench_median(shares, (size_t)b->rounds) * 100.0);
    }
    printf(" %8.1f G/s\n", 2.0 * (double)(m * WIDTH * b->out) / s * 1e-9);
    (void)fflush(stdout);
    free(work);
    return true;
}

int main(int argc, char **argv)
{
    bench b = {.rounds = argc > 1 ? atoi(argv[1]) : 9, .out = argc > 4 ? atoi(argv[4]) : MOST_OUT};
    const ds_ctx_params params = {.n_threads = argc > 3 ? (uint32_t)atoi(argv[3]) : 0};
    if (b.rounds < 1 || b.rounds > MOST_ROUNDS || b.out < 1 || b.out > MOST_OUT ||
        ds_ctx_create(&params, &b.ctx) != DS_OK) {
        die("usage: bench_linear [ROUNDS [TYPE [THREADS [OUT]]]]");
    }
    b.n_threads = ds_ctx_n_threads(b.ctx);
    if (dsi_pool_create(b.n_threads, &b.pool) != DS_OK) {
        die("no threads");
    }
    b.weight = bench_alloc((size_t)WIDTH * MOST_OUT * 2);
    b.x = bench_alloc((size_t)MOST_ROWS * WIDTH * 2);
    b.y = bench_alloc((size_t)MOST_ROWS * MOST_OUT * 2);
    bench_fill_bf16(b.x, (size_t)MOST_ROWS * WIDTH, 1);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; ++t) {
        if (argc > 2 && strcmp(argv[2], ds_dtype_name(types[t])) != 0 &&
            strcmp(argv[2], "all") != 0) {
            continue;
        }
        fill(b.weight, ds_meta_bytes((ds_meta){types[t], ds_shape_2d(b.out, WIDTH)}));
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
            for (uint32_t k = 0; time_one(&b, types[t], rows[i], k); ++k) {
            }
        }
    }
    free(b.y);
    free(b.x);
    free(b.weight);
    dsi_pool_destroy(&b.pool);
    ds_ctx_destroy(&b.ctx);
    return 0;
}
