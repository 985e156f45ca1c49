/* SPDX-License-Identifier: Apache-2.0 */
#include "ir/rewrite.h"

#include <stdlib.h>

ds_status dsi_rewrite_begin(dsi_rewrite *r, const ds_graph *from, ds_cells *cells)
{
    *r = (dsi_rewrite){.from = from};
    r->map = malloc(((size_t)from->n_values + 1) * sizeof *r->map);
    if (r->map == NULL) {
        return ds_fail(from->ctx, DS_ERR_NOMEM, "no memory to rewrite the graph");
    }
    DS_TRY(ds_graph_create(from->ctx, cells, &r->to));
    DS_TRY(dsi_phases_copy(from->ctx, r->to->arena, &from->phases, &r->to->phases));
    for (ds_value v = 0; v < from->n_values; ++v) {
        r->map[v] = DS_NONE;
        if (from->values[v].producer == DS_NONE) {
            DS_TRY(ds_graph_read(r->to, from->values[v].cell, &r->map[v]));
        }
    }
    return DS_OK;
}

ds_status dsi_rewrite_stand_at(dsi_rewrite *r, const dsi_node_info *node)
{
    ds_graph_set_phase(r->to, node->phase);
    ds_graph_set_region(r->to, node->region);
    r->to->stage = node->stage;
    r->to->half = node->half;
    r->to->recomputed = node->recomputed;
    r->to->on_host = node->on_host;
    if (node->scope != r->scope) {
        DS_TRY(ds_graph_set_scope(r->to, node->scope));
        r->scope = node->scope;
        r->scope_there = r->to->scope;
    }
    r->to->scope = r->scope_there;
    return DS_OK;
}

void dsi_rewrite_inputs(const dsi_rewrite *r, const dsi_node_info *node, ds_value *in)
{
    for (uint32_t i = 0; i < DS_MAX_IN; ++i) {
        const ds_value v = i < node->n_in ? dsi_node_in(r->from, node)[i] : DS_NONE;
        in[i] = v == DS_NONE ? DS_NONE : r->map[v];
    }
}

void dsi_rewrite_made(dsi_rewrite *r, const dsi_node_info *node, const ds_value *out)
{
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(r->from, node)[i];
        if (v != DS_NONE) {
            r->map[v] = out[i];
        }
    }
}

ds_status dsi_rewrite_copy(dsi_rewrite *r, const dsi_node_info *node)
{
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    dsi_rewrite_inputs(r, node, in);
    DS_TRY(dsi_rewrite_stand_at(r, node));
    DS_TRY(ds_graph_apply(r->to, node->op, node->attrs, in, node->n_in, out));
    dsi_rewrite_made(r, node, out);
    return DS_OK;
}

ds_status dsi_rewrite_end(dsi_rewrite *r, ds_status status, ds_graph **to_out)
{
    for (uint32_t i = 0; status >= 0 && i < r->from->n_outputs; ++i) {
        const dsi_output_info *output = &r->from->outputs[i];
        if (r->partial && r->map[output->value] == DS_NONE) {
            continue;
        }
        status = ds_graph_output(r->to, output->name, r->map[output->value]);
    }
    free(r->map);
    if (status < 0) {
        ds_graph_destroy(&r->to);
        return status;
    }
    *to_out = r->to;
    return DS_OK;
}
