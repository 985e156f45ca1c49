/* SPDX-License-Identifier: Apache-2.0 */
/* See rank_time.h. */
#include "compile/rank_time.h"

#include "plan/plan_sim.h"

#include <stdlib.h>

bool dsi_rank_is_warm_up(const dsi_train_phases *phases, ds_phase phase)
{
    const dsi_onebit_phases *onebit = &phases->onebit;
    return (phase == phases->norm && onebit->own_norm != DS_NONE) ||
           (phase == phases->update && onebit->frozen != DS_NONE) || phase == onebit->freeze ||
           (phase == onebit->frozen && onebit->local != DS_NONE);
}

/* Phases that no usual step runs. */
static bool is_rare(const dsi_train_spec *train, const dsi_train_phases *phases, ds_phase phase)
{
    const bool undone = train->speculative && (phase == phases->undo || phase == phases->redo);
    const bool average =
        train->schedule_free.on && (phase == phases->average || phase == phases->point);
    return undone || average || dsi_rank_is_warm_up(phases, phase);
}

double dsi_rank_phase_share(const dsi_train_spec *train, const dsi_train_phases *phases,
                            ds_phase phase)
{
    const dsi_zenflow_spec *z = &train->zenflow;
    const dsi_zenflow_phases *own = &phases->zenflow;
    if (is_rare(train, phases, phase)) {
        return 0.0;
    }
    if (phase == own->settle || phase == own->choose || phase == own->fetch) {
        return z->select_every > 0 ? 1.0 / (double)z->select_every : 0.0;
    }
    if (phase == own->take || phase == own->rest) {
        return z->weighs || z->update_every < 1 ? 1.0 : 1.0 / (double)z->update_every;
    }
    return 1.0;
}

ds_status dsi_rank_simulate(const dsi_rank_plan *plan, const dsi_engine_spec *spec,
                            const dsi_device *device, uint32_t n_local, double model_flops,
                            dsi_sim_step **steps_out, dsi_timeline **timeline_out)
{
    const dsi_train_spec *train = &spec->train;
    const dsi_plan *steps = plan->train_plan;
    const dsi_schedule pipe = dsi_rank_schedule(spec);
    DS_TRY(dsi_plan_sim_steps(steps, n_local, &plan->residencies, steps_out));
    dsi_sim_spec sim = {.device = device,
                        .idle_share = pipe.n_ranks > 1 ? dsi_schedule_idle_share(&pipe) : 0.0,
                        .steps = *steps_out,
                        .n_steps = steps->n_steps,
                        .local_ranks = n_local,
                        .accumulation = train->accumulation,
                        .phases = &steps->phases,
                        .clear_bytes = train->accumulation > 1 ? dsi_plan_clear_bytes(steps) : 0.0,
                        .model_flops = model_flops,
                        .tokens = (double)dsi_train_rows(train) * (double)train->seq_length,
                        .peak_dtype = train->dtype};
    for (ds_phase phase = dsi_phases_micro(sim.phases); phase < sim.phases->n; ++phase) {
        const double share = dsi_rank_phase_share(train, &plan->own.phases, phase);
        sim.share[phase] = share > 0.0 ? share : -1.0;
    }
    const ds_status status = dsi_simulate(plan->ctx, &sim, timeline_out);
    if (status < 0) {
        free(*steps_out);
        *steps_out = NULL;
    }
    return status;
}
