/* SPDX-License-Identifier: Apache-2.0 */
/* Decides what is recomputed and what is kept. See policy.h. */
#include "pass/policy.h"

#include "op/ops.h"

#include <stdio.h>
#include <string.h>

/* Whether a list of names with commas and blanks holds a name. */
static bool lists(const char *names, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = names; *at != '\0';) {
        at += strspn(at, ", ");
        const size_t n = strcspn(at, ", ");
        if (n == length && strncmp(at, name, n) == 0) {
            return true;
        }
        at += n;
    }
    return false;
}

static bool runs_again(const dsi_recompute *r, const ds_op *op)
{
    if (r->mode == DS_RECOMPUTE_FULL) {
        return true;
    }
    return r->operators != NULL ? lists(r->operators, op->name) : op->again == DS_AGAIN_CHEAP;
}

/* Each name listed is an operator, built in or of the model's own. */
static ds_status check_operators(const ds_graph *graph, const char *names)
{
    for (const char *at = names + strspn(names, ", "); *at != '\0';) {
        char name[64];
        const size_t n = strcspn(at, ", ");
        (void)snprintf(name, sizeof name, "%.*s", (int)n, at);
        bool known = ds_op_find(name) != NULL;
        for (ds_node i = 0; i < graph->n_nodes && !known; ++i) {
            known = strcmp(graph->nodes[i].op->name, name) == 0;
        }
        if (!known) {
            return ds_fail(graph->ctx, DS_ERR_CONFIG,
                           "activation_checkpointing.operators: there is no operator \"%s\"", name);
        }
        at += n;
        at += strspn(at, ", ");
    }
    return DS_OK;
}

/* Regions a group: what the caller sets, or what makes so many groups. */
static int64_t group_size(const dsi_recompute *r, uint32_t n_regions)
{
    if (r->n_checkpoints > 0) {
        return ((int64_t)n_regions + r->n_checkpoints - 1) / r->n_checkpoints;
    }
    return r->interval > 0 ? r->interval : 1;
}

/* 0: of no group. */
static int64_t group_of(const dsi_node_info *node, int64_t size)
{
    return node->region == 0 ? 0 : 1 + (int64_t)(node->region - 1) / size;
}

ds_status dsi_policy_recompute(const ds_graph *graph, const dsi_recompute *recompute, bool *drop)
{
    uint32_t n_regions = 0;
    memset(drop, 0, graph->n_values * sizeof *drop);
    if (recompute->mode == DS_RECOMPUTE_NONE) {
        return DS_OK;
    }
    if (recompute->mode == DS_RECOMPUTE_AUTO) {
        return ds_fail(graph->ctx, DS_ERR_ARG, "recompute auto was not resolved");
    }
    if (recompute->mode == DS_RECOMPUTE_SELECTIVE && recompute->operators != NULL) {
        DS_TRY(check_operators(graph, recompute->operators));
    }
    for (ds_node n = 0; n < graph->n_nodes; ++n) {
        n_regions = graph->nodes[n].region > n_regions ? graph->nodes[n].region : n_regions;
    }
    if (n_regions == 0) {
        return ds_fail(graph->ctx, DS_ERR_UNSUPPORTED,
                       "activation_checkpointing: the model marks no region; mark its layers with "
                       "ds_nn_region_begin() and ds_nn_region_end()");
    }
    const int64_t size = group_size(recompute, n_regions);
    for (ds_value v = 0; v < graph->n_values; ++v) {
        const dsi_value_info *value = &graph->values[v];
        const dsi_node_info *maker =
            value->producer == DS_NONE ? NULL : &graph->nodes[value->producer];
        drop[v] = maker != NULL && maker->phase == DS_PHASE_FORWARD && value->cell == DS_NONE &&
                  group_of(maker, size) != 0 && runs_again(recompute, maker->op);
    }
    for (ds_node n = 0; n < graph->n_nodes; ++n) { /* what leaves its group is kept */
        const dsi_node_info *node = &graph->nodes[n];
        for (uint32_t i = 0; node->phase == DS_PHASE_FORWARD && i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(graph, node)[i];
            if (v != DS_NONE && drop[v]) {
                const dsi_node_info *maker = &graph->nodes[graph->values[v].producer];
                drop[v] = group_of(maker, size) == group_of(node, size);
            }
        }
    }
    for (uint32_t i = 0; i < graph->n_outputs; ++i) {
        drop[graph->outputs[i].value] = false;
    }
    return DS_OK;
}

static bool is_few(const ds_graph *graph, const dsi_node_info *loss)
{
    const ds_shape x = graph->values[dsi_node_in(graph, loss)[0]].meta.shape;
    return ds_shape_rows(x) <= ds_shape_last(x);
}

uint32_t dsi_policy_keep(const ds_graph *graph, dsi_kept_logits which, bool *keep)
{
    uint32_t kept = 0;
    for (ds_node n = 0; n < graph->n_nodes; ++n) {
        const dsi_node_info *node = &graph->nodes[n];
        keep[n] = which != DSI_LOGITS_NONE && node->op == &dsi_op_linear_cross_entropy &&
                  (which == DSI_LOGITS_ALL || is_few(graph, node));
        kept += keep[n] ? 1 : 0;
    }
    return kept;
}
