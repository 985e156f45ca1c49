/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the host's: kernels of the processor on cells in host memory, concurrently with the
 * device. On an accelerator with streams they are calls on a stream of theirs, ordered by the
 * plan's events like everything else, and may be captured; else they run where they stand, and so
 * they do on the thread of the concurrent phase. Their kernels use threads of a context of their
 * own, since the caller's may be in use; the concurrent phase has one. Called by exec_*.c.
 */
#include "exec/exec_state.h"

#include <stdlib.h>

static bool has_steps(const dsi_exec *exec)
{
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const dsi_plan *plan = exec->plans[i].plan;
        for (uint32_t s = 0; s < plan->n_steps; ++s) {
            if (plan->steps[s].on_host) {
                return true;
            }
        }
    }
    return false;
}

ds_status dsi_exec_open_host(dsi_exec *exec)
{
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = exec->n_host_threads};
    if (!has_steps(exec)) {
        return DS_OK;
    }
    exec->host = calloc(1, sizeof *exec->host);
    if (exec->host == NULL || ds_ctx_create(&params, &exec->host->ctx) < 0) {
        return ds_fail(exec->ctx, DS_ERR_NOMEM, "no memory for the threads of updates on the host");
    }
    return DS_OK;
}

void dsi_exec_close_host(dsi_exec *exec)
{
    if (exec->host != NULL) {
        ds_ctx_destroy(&exec->host->ctx);
        free(exec->host);
        exec->host = NULL;
    }
}

ds_status dsi_exec_run_on_host(const dsi_exec *exec, const dsi_loaded *l, uint32_t s)
{
    const dsi_step *step = &l->plan->steps[s];
    if (step->kind == DSI_STEP_WAIT) {
        return DS_OK;
    }
    const ds_status status = step->kernel->run(dsi_exec_call_of(exec, l, s));
    return status < 0 && step->phase != l->plan->side /* whose thread reports in its own context */
               ? ds_fail(exec->ctx, status, "%s", ds_ctx_error(exec->host->ctx))
               : status;
}

/* On a thread of the device's. Of several that fail the first is kept: what depends on it has run
 * on what it left, and is not looked at. */
static void run_call(void *arg)
{
    const dsi_host_call *c = arg;
    const ds_status status = c->kernel->run(c->call);
    const ds_kernel_call *none = NULL;
    if (status < 0 && atomic_compare_exchange_strong(&c->host->failed, &none, c->call)) {
        atomic_store(&c->host->status, (int)status);
    }
}

ds_status dsi_exec_queue_on_host(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                                 ds_accel_stream *queue)
{
    const uint32_t slot = dsi_exec_slot_of(exec, l, &l->plan->steps[s]);
    dsi_host_call *c = &l->host_calls[(size_t)slot * l->plan->n_steps + s];
    *c = (dsi_host_call){exec->host, l->plan->steps[s].kernel, dsi_exec_call_of(exec, l, s)};
    return exec->accel->streams->call(queue, run_call, c);
}

ds_status dsi_exec_take_host_failure(const dsi_exec *exec, const ds_kernel_call **failed_out)
{
    *failed_out = exec->host != NULL ? atomic_exchange(&exec->host->failed, NULL) : NULL;
    return *failed_out != NULL ? (ds_status)atomic_load(&exec->host->status) : DS_OK;
}
