/* SPDX-License-Identifier: Apache-2.0 */
/* The planned time of a rank's training step: its plan, simulated on a device profile. Called by
 * reports, and by the placement of optimizer states, which compares splits by it.
 */
#ifndef DSI_COMPILE_RANK_TIME_H
#define DSI_COMPILE_RANK_TIME_H

#include "compile/rank_plan.h"
#include "cost/simulate.h"

/* Whether only steps of an optimizer's warm-up run a phase. */
bool dsi_rank_is_warm_up(const dsi_train_phases *phases, ds_phase phase);

/* Of the steps, how many run a phase; 0: those that a usual step does without: warm-up, the undoing
 * of updates ahead of the norm, what is made once or for evaluations. What ZenFlow's rest waits for
 * when it is weighed is not known before the run: counted as every step. */
double dsi_rank_phase_share(const dsi_train_spec *train, const dsi_train_phases *phases,
                            ds_phase phase);

/* device: of one rank (dsi_device_of_rank), of which n_local stand on a node. model_flops: of a
 * micro-batch, for MFU; 0: not wanted. The caller destroys the timeline, which refers to
 * *steps_out, then frees those; both refer to the plan. Pure. Errors: those of dsi_simulate. */
ds_status dsi_rank_simulate(const dsi_rank_plan *plan, const dsi_engine_spec *spec,
                            const dsi_device *device, uint32_t n_local, double model_flops,
                            dsi_sim_step **steps_out, dsi_timeline **timeline_out);

#endif
