/* SPDX-License-Identifier: Apache-2.0 */
/* A run whose gradients are no longer finite: when it ends, and what of it is not saved. */
#include "common/train.h"

#include <stdio.h>

bool train_is_finite(const train_run *run)
{
    return ds_engine_nonfinite_steps(run->engine) == 0;
}

static ds_status lost(train_run *run, uint64_t n)
{
    const uint64_t step = ds_engine_global_steps(run->engine);
    bool is_gradient = false;
    const char *name = ds_engine_first_nonfinite(run->engine, &is_gradient);
    char where[512] = "";
    if (name != NULL) {
        (void)snprintf(where, sizeof where, "; the first that is not finite is %s %s",
                       is_gradient ? "the gradient of" : "the parameter", name);
    }
    run->training = false; /* it is no failure of a step */
    return ds_fail(run->ctx, DS_ERR_NUMERIC,
                   "the gradients of %llu steps in a row, steps %llu to %llu, were not finite%s; "
                   "nothing was saved after step %llu: lower the learning rate, or look at the "
                   "data and the initial weights (--max_skipped_steps says how many steps end a "
                   "run)",
                   (unsigned long long)n, (unsigned long long)(step - n + 1),
                   (unsigned long long)step, where, (unsigned long long)(step - n));
}

ds_status train_check_finite(train_run *run, uint64_t first_step, bool end)
{
    const uint64_t n = ds_engine_nonfinite_steps(run->engine);
    const uint64_t most = (uint64_t)run->options->max_skipped_steps;
    const bool all = n >= ds_engine_global_steps(run->engine) - first_step;
    const bool spoiled = all || ds_engine_was_step_applied(run->engine);
    return n > 0 && ((most > 0 && n >= most) || (end && spoiled)) ? lost(run, n) : DS_OK;
}
