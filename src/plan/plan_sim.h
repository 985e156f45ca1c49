/* SPDX-License-Identifier: Apache-2.0 */
/* From a plan to the steps that the simulator takes. Called by whoever predicts a run: the planner,
 * the benchmark that compares predictions with measurements.
 */
#ifndef DSI_PLAN_PLAN_SIM_H
#define DSI_PLAN_PLAN_SIM_H

#include "cost/simulate.h"
#include "pass/offload.h"
#include "plan/plan.h"

/* Fills *steps_out with plan->n_steps steps in the plan's order; free() them. ranks_per_node: how
 * many neighbours of the data-parallel axis share a node. residencies: where cells live, NULL: all
 * on the device; a swap of a cell without an entry counts as host memory. Names point into the
 * plan. Pure. Errors: ERR_NOMEM. */
ds_status dsi_plan_sim_steps(const dsi_plan *plan, uint32_t ranks_per_node,
                             const dsi_residencies *residencies, dsi_sim_step **steps_out);

/* Operations that the model needs for one micro-batch, forward and backward without recompute:
 * three times the products of the forward phase (each has two in the backward pass). */
double dsi_plan_model_flops(const dsi_plan *plan);

/* Bytes of the gradient accumulators, which are cleared once a step when there are several
 * micro-batches. */
double dsi_plan_clear_bytes(const dsi_plan *plan);

#endif
