/* SPDX-License-Identifier: Apache-2.0 */
/* See ref_split.h. */
#include "accel/cpu/ref/ref_split.h"

typedef struct job {
    const ds_kernel_call *call;
    dsi_ref_fn fn;
    int64_t n_items;
    uint32_t n_ranges;
} job;

uint32_t dsi_ref_slots(const ds_kernel_sig *sig)
{
    return sig->n_threads > 0 ? sig->n_threads : 1;
}

static void run_range(void *arg, uint32_t task, uint32_t thread)
{
    const job *j = arg;
    const int64_t each = j->n_items / j->n_ranges;
    const int64_t more = j->n_items % j->n_ranges; /* the first ranges have one item more */
    const int64_t begin = (int64_t)task * each + (task < more ? task : more);
    (void)thread;
    j->fn(j->call, begin, begin + each + (task < more ? 1 : 0), task);
}

void dsi_ref_for(const ds_kernel_call *call, int64_t n_items, dsi_ref_fn fn)
{
    const uint32_t slots = dsi_ref_slots(call->sig);
    job j = {.call = call, .fn = fn, .n_items = n_items, .n_ranges = slots};
    if (n_items < (int64_t)slots) {
        j.n_ranges = n_items > 0 ? (uint32_t)n_items : 0;
    }
    ds_parallel(call->ctx, run_range, &j, j.n_ranges);
}

void dsi_ref_serial(const ds_kernel_call *call, dsi_ref_fn fn)
{
    job j = {.call = call, .fn = fn, .n_items = 1, .n_ranges = 1};
    ds_parallel(call->ctx, run_range, &j, 1);
}
