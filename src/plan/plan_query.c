/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to a finished plan: outputs, what lives across a phase, streams. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

const dsi_plan_output *dsi_plan_find_output(const dsi_plan *plan, const char *name)
{
    for (uint32_t i = 0; i < plan->n_outputs; ++i) {
        if (strcmp(plan->outputs[i].name, name) == 0) {
            return &plan->outputs[i];
        }
    }
    return NULL;
}

/* Per value whether a step before `begin` makes it; NULL without memory. The caller frees. */
static bool *made_before(const dsi_plan *plan, uint32_t begin)
{
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_refs; ++i) {
        const ds_value v = plan->refs[i].value;
        n = v != DS_NONE && v >= n ? (size_t)v + 1 : n;
    }
    bool *made = calloc(n + 1, sizeof *made);
    for (uint32_t s = 0; s < begin && made != NULL; ++s) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_out; ++i) {
            const ds_value v = plan->refs[step->out_at + i].value;
            if (v != DS_NONE) {
                made[v] = true;
            }
        }
    }
    return made;
}

static bool listed(const dsi_range *ranges, uint32_t n, size_t offset, size_t bytes)
{
    for (uint32_t i = 0; i < n; ++i) {
        if (ranges[i].offset == offset && ranges[i].bytes >= bytes) {
            return true;
        }
    }
    return false;
}

ds_status dsi_plan_live_after(const dsi_plan *plan, ds_phase phase, dsi_range *ranges,
                              uint32_t room, uint32_t *n_out)
{
    const uint32_t begin = plan->phase_begin[phase + 1];
    bool *made = made_before(plan, begin);
    uint32_t n = 0;
    if (made == NULL) {
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory for a plan");
    }
    for (uint32_t s = begin; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_in; ++i) {
            const dsi_ref *ref = &plan->refs[step->in_at + i];
            const size_t bytes = ds_meta_bytes(ref->meta);
            if (ref->space == DSI_SPACE_ARENA && ref->value != DS_NONE && made[ref->value] &&
                !listed(ranges, n < room ? n : room, ref->offset, bytes)) {
                if (n < room) {
                    ranges[n] = (dsi_range){ref->offset, bytes};
                }
                ++n;
            }
        }
    }
    for (uint32_t i = 0; i < plan->n_outputs; ++i) {
        const dsi_plan_output *output = &plan->outputs[i];
        if (output->phase <= phase && output->ref.space == DSI_SPACE_ARENA) {
            if (n < room) {
                ranges[n] = (dsi_range){output->ref.offset, ds_meta_bytes(output->ref.meta)};
            }
            ++n;
        }
    }
    free(made);
    *n_out = n;
    return DS_OK;
}

dsi_stream_use dsi_plan_stream_use(const dsi_plan *plan, uint32_t stream)
{
    dsi_stream_use use = {0};
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        if (step->stream == stream) {
            use.steps += 1;
            use.waits += step->n_waits;
            use.events += step->event != DS_NONE ? 1 : 0;
        }
    }
    return use;
}
