/* How fast this machine is at this moment: on a shared host that changes, and a prediction holds
 * for the machine that was measured.
 *
 * usage: bench_speed [threads]
 * Prints one line for scripts, in a quarter of a second: multiply-adds of fp32 a second from
 * registers, and bytes a second streamed through memory, both the best of a few runs.
 */
#include "base/context.h"
#include "common/peak.h"
#include "common/stream.h"
#include "common/timing.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>

enum { ELEMENTS = 1 << 23, RUNS = 5 }; /* 224 MiB, beyond any cache */

static double streamed(ds_ctx *ctx)
{
    bench_stream s = {.n = ELEMENTS, .grad_bytes = 4, .moment_bytes = 4};
    void *gradient = bench_alloc(ELEMENTS * sizeof(float));
    s.grad = gradient;
    s.weight = bench_alloc(ELEMENTS * sizeof(float));
    s.m = bench_alloc(ELEMENTS * sizeof(float));
    s.v = bench_alloc(ELEMENTS * sizeof(float));
    double best = 0.0;
    for (int run = 0; run < RUNS; ++run) {
        const double rate = bench_stream_bytes(&s) / bench_stream_run(ctx, &s, true);
        best = rate > best ? rate : best;
    }
    free(gradient);
    free(s.weight);
    free(s.m);
    free(s.v);
    return best;
}

int main(int argc, char **argv)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(&params, &ctx) < 0) {
        (void)fprintf(stderr, "bench_speed: no context of %s threads\n", argc > 1 ? argv[1] : "2");
        return 1;
    }
    const bench_peak peak = bench_peak_measure(dsi_ctx_pool(ctx), params.n_threads, DS_DTYPE_F32);
    const double bytes = streamed(ctx);
    (void)printf("%s %.1f GFLOP/s, streaming %.2f GB/s\n", peak.name, peak.flops * 1e-9,
                 bytes * 1e-9);
    ds_ctx_destroy(&ctx);
    return 0;
}
