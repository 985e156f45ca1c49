/* SPDX-License-Identifier: Apache-2.0 */
/* How fast this machine computes at this moment: on a shared host that changes, and a prediction
 * holds for the machine that was measured.
 *
 * usage: bench_speed [threads]
 * Prints one line for scripts: multiply-adds of fp32 a second from registers, the best of a few
 * runs.
 */
#include "base/context.h"
#include "common/peak.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>

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
    (void)printf("%s %.1f GFLOP/s\n", peak.name, peak.flops * 1e-9);
    ds_ctx_destroy(&ctx);
    return 0;
}
