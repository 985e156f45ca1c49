/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the section zenflow. Called by config_rules.c as one of its rules, behind those of
 * offload.
 */
#include "config/config_eval.h"

#include <inttypes.h>
#include <string.h>

/* What ZenFlow cannot go with. */
static void zenflow_needs(dsi_eval *eval)
{
    const ds_config_values *v = eval->values;
    const dsi_item *ratio = dsi_item_find(eval, "zero_optimization.zenflow.topk_ratio");
    if (!(v->zero.zenflow.topk_ratio > 0.0 && v->zero.zenflow.topk_ratio < 1.0)) {
        dsi_item_error(eval, ratio, "expected a number above 0 and below 1, found %g",
                       v->zero.zenflow.topk_ratio);
    }
    if (v->optimizer.kind != DS_OPTIMIZER_ADAM && v->optimizer.kind != DS_OPTIMIZER_NONE) {
        dsi_item_error(eval, dsi_item_find(eval, "optimizer.type"),
                       "expected Adam or AdamW with zero_optimization.zenflow, found %s",
                       ds_optimizer_kind_name(v->optimizer.kind));
    }
    if (v->zero.offload_optimizer.device == DS_OFFLOAD_NONE) {
        dsi_item_error(eval, dsi_item_find(eval, "zero_optimization.offload_optimizer.device"),
                       "expected cpu or nvme with zero_optimization.zenflow, and stage 1, 2 or 3, "
                       "found none, or stage %" PRId64,
                       v->zero.stage);
    }
    if (v->fp16.master_weights_and_grads || v->bf16.master_weights_and_grads) {
        dsi_item_error(
            eval,
            dsi_item_find(eval, v->fp16.enabled ? "fp16.fp16_master_weights_and_grads"
                                                : "bf16.bf16_master_weights_and_grads"),
            "expected false with zero_optimization.zenflow, whose columns are updated in "
            "fp32; change one of them");
    }
    if (v->tensor_parallel > 1) {
        dsi_item_error(eval, dsi_item_find(eval, "tensor_parallel.autotp_size"),
                       "expected 0 or 1 with zero_optimization.zenflow, found %" PRIu32
                       ": it chooses among whole columns; change one of them",
                       v->tensor_parallel);
    }
    if (v->sequence_parallel > 1) {
        dsi_item_error(eval, dsi_item_find(eval, "sequence_parallel_size"),
                       "expected 1 with zero_optimization.zenflow, found %" PRIu32
                       ": its early updates are not built for it; change one of them",
                       v->sequence_parallel);
    }
    if (v->gradient_sum) {
        dsi_item_error(eval, dsi_item_find(eval, "gradient_allreduce_op"),
                       "expected \"mean\" with zero_optimization.zenflow, found \"sum\"; change "
                       "one of them");
    }
}

/* The section's presence turns it on. */
void dsi_config_zenflow(dsi_eval *eval)
{
    ds_config_zenflow *z = &eval->values->zero.zenflow;
    const dsi_item *interval = dsi_item_find(eval, "zero_optimization.zenflow.select_interval");
    const dsi_item *update = dsi_item_find(eval, "zero_optimization.zenflow.update_interval");
    const char *strategy = dsi_item_text(eval, "zero_optimization.zenflow.select_strategy");
    if (interval == NULL || update == NULL || strategy == NULL) {
        return;
    }
    const bool given = dsi_node_is_number(interval->node);
    const bool by_auto = strcmp(strategy, "auto") == 0;
    z->enabled = true;
    z->select_by_epoch = strcmp(strategy, "step") != 0;
    z->auto_update = !dsi_node_is_number(update->node);
    if (by_auto && given) {
        dsi_item_error(eval, interval,
                       "expected \"auto\" with select_strategy auto, found %" PRId64
                       "; set select_strategy to step or epoch",
                       z->select_interval);
    } else if (!by_auto && !given) {
        dsi_item_error(eval, interval,
                       "expected a number of %ss with select_strategy %s, found \"auto\"", strategy,
                       strategy);
    }
    z->select_interval = by_auto ? 1 : z->select_interval;
    const int64_t unit = z->select_by_epoch ? z->steps_per_epoch : 1;
    const int64_t steps = z->select_interval <= INT64_MAX / (unit > 0 ? unit : 1)
                              ? z->select_interval * unit
                              : INT64_MAX;
    if (!z->auto_update && steps > 0 && steps < z->update_interval) {
        dsi_item_error(eval, update,
                       "expected at most the steps between two choices of columns, %" PRId64
                       ", found %" PRId64,
                       steps, z->update_interval);
    }
    zenflow_needs(eval);
}
