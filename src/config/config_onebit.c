/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of 1-bit optimizers. Called by config_rules.c as one of its rules, behind those of the
 * sections that they look at. */
#include "config/config_eval.h"

#include <inttypes.h>

/* What ranks that exchange signs cannot go with. */
void dsi_config_onebit(dsi_eval *eval)
{
    const ds_config_values *v = eval->values;
    const char *name = ds_optimizer_kind_name(v->optimizer.kind);
    if (!dsi_config_is_onebit(v->optimizer.kind)) {
        return;
    }
    if (v->zero.stage > 0) {
        dsi_item_error(eval, dsi_item_find(eval, "zero_optimization.stage"),
                       "expected 0 with optimizer.type %s, whose ranks exchange signs of whole "
                       "moments, found %" PRId64 "; change one of them",
                       name, v->zero.stage);
    }
    if (v->tensor_parallel > 1) {
        dsi_item_error(eval, dsi_item_find(eval, "tensor_parallel.autotp_size"),
                       "expected 0 or 1 with optimizer.type %s, found %" PRIu32
                       ": signs are of whole tensors; change one of them",
                       name, v->tensor_parallel);
    }
    if (v->sequence_parallel > 1) {
        dsi_item_error(eval, dsi_item_find(eval, "sequence_parallel_size"),
                       "expected 1 with optimizer.type %s, found %" PRIu32
                       ": signs are of ranks with samples of their own; change one of them",
                       name, v->sequence_parallel);
    }
    if (v->expert_parallel > 1) {
        dsi_item_error(eval, dsi_item_find(eval, "expert_parallel.autoep_size"),
                       "expected 1 with optimizer.type %s, found %" PRIu32
                       ": signs are of tensors that all ranks have; change one of them",
                       name, v->expert_parallel);
    }
    if (v->gradient_sum) {
        dsi_item_error(eval, dsi_item_find(eval, "gradient_allreduce_op"),
                       "expected \"mean\" with optimizer.type %s, found \"sum\"; change one of "
                       "them",
                       name);
    }
    if (v->optimizer.kind == DS_OPTIMIZER_ZERO_ONE_ADAM && v->compression != NULL) {
        dsi_item_error(eval, dsi_item_find(eval, "optimizer.type"),
                       "expected another than ZeroOneAdam with compression_training, whose masks "
                       "are of weights that all ranks have; change one of them");
    }
}
