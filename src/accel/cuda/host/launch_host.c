/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_launch.h over the host layer: a grid runs at once, its blocks on the context's threads. */
#include "accel/cuda/host/launch_host.h"
#include "accel/cuda/host/kernel_table.h"
#include "accel/cuda/kernels/fault.h"

static uint32_t order_seed;

void dsc_host_set_order(uint32_t seed)
{
    order_seed = seed;
}

static dsc_fault fault;

dsc_fault *dsc_fault_of(const ds_kernel_call *call)
{
    (void)call;
    return &fault;
}

static ds_status take_fault(const ds_kernel_call *call)
{
    const dsc_fault found = fault;
    fault = (dsc_fault){0};
    return found.call == 0
               ? DS_OK
               : ds_fail(call->ctx, DS_ERR_ARG, "%s: element %lld is %lld", call->sig->op->name,
                         (long long)found.at, (long long)found.value);
}

typedef struct grid {
    dsc_host_grid g;
    dsc_host_kernel kernel;
    const void *args;
    uint64_t n_blocks;
    uint32_t n_tasks;
} grid;

static void run_some(void *arg, uint32_t task, uint32_t thread)
{
    const grid *g = arg;
    (void)thread;
    for (uint64_t b = task; b < g->n_blocks; b += g->n_tasks) {
        dsc_host_run_block(&g->g, g->kernel, g->args, b);
    }
}

ds_status dsc_launch(const ds_kernel_call *call, dsc_fn fn, const dsc_shape *shape,
                     const void *args, size_t args_bytes)
{
    enum { TASKS = 16 };
    (void)args_bytes;
    grid g = {.g = {.name = dsc_host_table[fn].name,
                    .grid = {shape->grid[0], shape->grid[1], shape->grid[2]},
                    .block = {shape->block[0], shape->block[1], shape->block[2]},
                    .seed = order_seed},
              .kernel = dsc_host_table[fn].run,
              .args = args};
    g.n_blocks = (uint64_t)shape->grid[0] * shape->grid[1] * shape->grid[2];
    g.n_tasks = g.n_blocks < TASKS ? (uint32_t)g.n_blocks : TASKS;
    ds_parallel(call->ctx, run_some, &g, g.n_tasks);
    return take_fault(call);
}
