/* SPDX-License-Identifier: Apache-2.0 */
/* What expert_parallel says of routers, in place of the model's configuration. The order in which
 * factors hold is that of deepspeed/module_inject/auto_ep.py. */
#include "config/config_eval.h"

#include <inttypes.h>
#include <string.h>

#define SECTION "expert_parallel."

static double number_of(const dsi_eval *eval, const char *path)
{
    const dsi_item *item = dsi_item_find(eval, path);
    return item != NULL && item->node != NULL ? dsi_node_real(item->node) : 0.0;
}

static void groups(dsi_eval *eval, ds_routing *routing)
{
    const dsi_item *n = dsi_item_find(eval, SECTION "num_expert_groups");
    const dsi_item *top = dsi_item_find(eval, SECTION "num_limited_groups");
    routing->n_groups = dsi_item_int(eval, SECTION "num_expert_groups", 0);
    routing->top_groups = dsi_item_int(eval, SECTION "num_limited_groups", 0);
    if ((routing->n_groups == 0) != (routing->top_groups == 0)) {
        dsi_item_error(eval, routing->n_groups > 0 ? n : top,
                       "expected both or neither of " SECTION "num_expert_groups and " SECTION
                       "num_limited_groups, found one");
    } else if (routing->top_groups > routing->n_groups) {
        dsi_item_error(eval, top, "expected at most num_expert_groups, %" PRId64 ", found %" PRId64,
                       routing->n_groups, routing->top_groups);
    }
}

void dsi_config_routing(dsi_eval *eval)
{
    ds_routing *routing = &eval->values->routing;
    const dsi_item *normalise = dsi_item_find(eval, SECTION "route_norm");
    const char *score = dsi_item_text(eval, SECTION "score_func");
    const char *apply = dsi_item_text(eval, SECTION "score_apply");
    if (!dsi_item_true(eval, SECTION "enabled")) {
        return;
    }
    routing->n_chosen = dsi_item_int(eval, SECTION "top_k", 0);
    routing->factor = number_of(eval, SECTION "routed_scaling_factor");
    routing->scale = number_of(eval, SECTION "route_scale");
    if (routing->scale == 1.0) {
        routing->scale = 0.0; /* the default, which changes nothing */
    }
    if (normalise != NULL && normalise->node != NULL && normalise->node->kind == DSI_NODE_BOOL) {
        routing->normalise = normalise->node->as.truth ? 1 : -1;
    }
    if (score != NULL && strcmp(score, "auto") != 0) {
        routing->sigmoid = strcmp(score, "sigmoid") == 0 ? 1 : -1;
    }
    if (apply != NULL && strcmp(apply, "auto") != 0) {
        routing->weighs_first = strcmp(apply, "pre") == 0 ? 1 : -1;
    }
    groups(eval, routing);
}
