/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of this machine and process. */
#include "common/machine.h"

#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/clock.h"
#include "base/process_memory.h"
#include "base/rng.h"
#include "op/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SIZE = 768, RUNS = 8 };

/* Random numbers: processors multiply zeros faster. */
static void fill(void *data, ds_dtype dtype, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        const uint32_t word = dsi_rng_u32(1, 0, 0, i);
        if (dtype == DS_DTYPE_F32) {
            ((float *)data)[i] = dsi_rng_unit(word) - 0.5f;
        } else { /* sign, exponent just below 1, random mantissa: fine for bf16 and f16 */
            ((uint16_t *)data)[i] = (uint16_t)((word & 0x807f) | 0x3c00);
        }
    }
}

static double best_seconds(const ds_kernel *kernel, const ds_kernel_call *call)
{
    double best = 1e9;
    for (int i = 0; i < RUNS; ++i) {
        const double start = dsi_clock_seconds();
        if (kernel->run(call) < 0) {
            return 0.0;
        }
        const double seconds = dsi_clock_seconds() - start;
        best = seconds < best ? seconds : best;
    }
    return best;
}

double machine_peak_flops(ds_ctx *ctx, ds_dtype dtype)
{
    const dsi_linear_attrs attrs = {0};
    const ds_meta meta = {dtype, ds_shape_2d(SIZE, SIZE)};
    const ds_meta in[2] = {meta, meta};
    const ds_meta out[2] = {meta, {0}};
    const ds_kernel_sig sig = {.op = &dsi_op_linear,
                               .attrs = &attrs,
                               .n_in = 2,
                               .n_out = 2,
                               .in = in,
                               .out = out,
                               .n_threads = ds_ctx_n_threads(ctx)};
    const ds_kernel *kernel = dsi_cpu_kernel_choose(&sig, dsi_cpu_isa());
    if (kernel == NULL) {
        return 0.0;
    }
    const size_t bytes = ds_meta_bytes(meta);
    const size_t work = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
    unsigned char *memory = aligned_alloc(64, (3 * bytes + work + 127) / 64 * 64);
    if (memory == NULL) {
        return 0.0;
    }
    const ds_tensor inputs[2] = {{memory, meta}, {memory + bytes, meta}};
    const ds_tensor outputs[2] = {{memory + 2 * bytes, meta}, {0}};
    fill(memory, dtype, 2 * (size_t)SIZE * SIZE);
    const ds_kernel_call call = {
        .ctx = ctx, .sig = &sig, .in = inputs, .out = outputs, .work = memory + 3 * bytes};
    const double seconds = best_seconds(kernel, &call);
    free(memory);
    dsi_process_memory_trim(); /* the allocator would keep it, and no plan of memory holds it */
    return seconds > 0.0 ? 2.0 * SIZE * SIZE * SIZE / seconds : 0.0;
}

uint64_t machine_peak_bytes(void)
{
    struct rusage usage;
    memset(&usage, 0, sizeof usage);
    (void)getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss * 1024;
}
