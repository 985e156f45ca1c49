/* SPDX-License-Identifier: Apache-2.0 */
/* The loop that kernels share their work with: the context's pool. */
#include "base/context.h"

#include <deepspeed/op.h>

void ds_parallel(ds_ctx *ctx, void (*fn)(void *arg, uint32_t task, uint32_t thread), void *arg,
                 uint32_t n_tasks)
{
    dsi_pool_run(dsi_ctx_pool(ctx), fn, arg, n_tasks);
}
