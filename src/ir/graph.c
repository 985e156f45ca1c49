/* SPDX-License-Identifier: Apache-2.0 */
/* Building a graph. See include/deepspeed/graph.h for what it is, graph.h for its invariants. */
#include "ir/graph.h"

#include "base/context.h"
#include "ir/op_check.h"

#include <stdlib.h>
#include <string.h>

enum { ARENA_CEILING = 256 << 20 };

void *dsi_graph_grow(void *items, uint32_t *capacity, uint32_t need, size_t size)
{
    if (need <= *capacity) {
        return items;
    }
    const uint32_t grown = *capacity < 64 ? 64 : *capacity * 2;
    const uint32_t wanted = grown < need ? need : grown;
    void *result = realloc(items, (size_t)wanted * size);
    if (result != NULL) {
        *capacity = wanted;
    }
    return result;
}

/* Grows a member array in place, or fails the calling function. */
#define GROW(graph, items, capacity, need)                                                         \
    do {                                                                                           \
        void *grown_ =                                                                             \
            dsi_graph_grow((graph)->items, &(graph)->capacity, (need), sizeof *(graph)->items);    \
        if (grown_ == NULL) {                                                                      \
            return ds_fail((graph)->ctx, DS_ERR_NOMEM, "no memory for the graph");                 \
        }                                                                                          \
        (graph)->items = grown_;                                                                   \
    } while (0)

ds_status ds_graph_create(ds_ctx *ctx, ds_cells *cells, ds_graph **graph_out)
{
    ds_graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL || dsi_arena_create(ARENA_CEILING, &graph->arena) < 0) {
        free(graph);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a graph");
    }
    graph->ctx = ctx;
    graph->cells = cells;
    graph->scope = "";
    graph->phases = dsi_phases_make();
    *graph_out = graph;
    return DS_OK;
}

void ds_graph_destroy(ds_graph **graph_inout)
{
    ds_graph *graph = graph_inout != NULL ? *graph_inout : NULL;
    if (graph == NULL) {
        return;
    }
    dsi_arena_destroy(&graph->arena);
    free(graph->values);
    free(graph->nodes);
    free(graph->operands);
    free(graph->outputs);
    free(graph->current);
    free(graph);
    *graph_inout = NULL;
}

ds_cells *ds_graph_cells(const ds_graph *graph)
{
    return graph->cells;
}

ds_ctx *ds_graph_ctx(const ds_graph *graph)
{
    return graph->ctx;
}

ds_status ds_graph_add_phase(ds_graph *graph, const char *name, uint32_t flags, ds_phase *phase_out)
{
    return dsi_phases_add(graph->ctx, graph->arena, &graph->phases, name, flags, phase_out);
}

ds_phase ds_graph_find_phase(const ds_graph *graph, const char *name)
{
    return dsi_phases_find(&graph->phases, name);
}

void ds_graph_set_phase(ds_graph *graph, ds_phase phase)
{
    graph->phase = phase;
}

void ds_graph_set_region(ds_graph *graph, uint32_t region)
{
    graph->region = region;
}

ds_status ds_graph_set_scope(ds_graph *graph, const char *scope)
{
    const char *copy = dsi_arena_strdup(graph->arena, scope);
    if (copy == NULL) {
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory for the graph");
    }
    graph->scope = copy;
    return DS_OK;
}

const ds_value *dsi_node_in(const ds_graph *graph, const dsi_node_info *node)
{
    return graph->operands + node->in_at;
}

const ds_value *dsi_node_out(const ds_graph *graph, const dsi_node_info *node)
{
    return graph->operands + node->out_at;
}

static ds_status add_value(ds_graph *graph, const dsi_value_info *info, ds_value *value_out)
{
    GROW(graph, values, values_capacity, graph->n_values + 1);
    graph->values[graph->n_values] = *info;
    *value_out = graph->n_values++;
    return DS_OK;
}

ds_status ds_graph_read(ds_graph *graph, ds_cell cell, ds_value *value_out)
{
    if (cell >= graph->cells->n) {
        return ds_fail(graph->ctx, DS_ERR_ARG, "cell %u of %u", cell, graph->cells->n);
    }
    const uint32_t old = graph->current_capacity;
    GROW(graph, current, current_capacity, cell + 1);
    for (uint32_t i = old; i < graph->current_capacity; ++i) {
        graph->current[i] = DS_NONE;
    }
    if (graph->current[cell] == DS_NONE) {
        const dsi_value_info info = {
            .meta = graph->cells->items[cell].meta, .producer = DS_NONE, .cell = cell};
        DS_TRY(add_value(graph, &info, &graph->current[cell]));
    }
    *value_out = graph->current[cell];
    return DS_OK;
}

ds_status dsi_graph_infer(ds_ctx *ctx, const ds_op *op, const void *attrs, const ds_meta *in,
                          uint32_t n_in, ds_meta *out)
{
    memset(out, 0, op->n_out * sizeof *out);
    ds_infer call = {.ctx = ctx,
                     .op = op,
                     .attrs = attrs,
                     .n_in = n_in,
                     .in = in,
                     .n_out = op->n_out,
                     .out = out};
    return op->infer(&call);
}

static ds_status check_operands(const ds_graph *graph, const ds_op *op, const ds_value *in,
                                uint32_t n_in, ds_meta *metas)
{
    if (op->version != DS_OP_VERSION || op->n_out > DS_MAX_OUT || op->n_in_max > DS_MAX_IN) {
        return ds_fail(graph->ctx, DS_ERR_ARG, "operator %s is built for another version",
                       op->name);
    }
    if (op->kernels != NULL) {
        DS_TRY(dsi_op_check(graph->ctx, op));
    }
    if (n_in < op->n_in_min || n_in > op->n_in_max) {
        return ds_fail(graph->ctx, DS_ERR_ARG, "%s takes %u to %u inputs, got %u", op->name,
                       op->n_in_min, op->n_in_max, n_in);
    }
    for (uint32_t i = 0; i < n_in; ++i) {
        metas[i] = (ds_meta){0};
        if (in[i] == DS_NONE) {
            continue;
        }
        if (in[i] >= graph->n_values) {
            return ds_fail(graph->ctx, DS_ERR_ARG, "%s input %u is no value of this graph",
                           op->name, i);
        }
        const dsi_value_info *value = &graph->values[in[i]];
        if (value->cell != DS_NONE && graph->current[value->cell] != in[i]) {
            return ds_fail(graph->ctx, DS_ERR_GRAPH,
                           "%s reads an old version of cell %s, which was written since", op->name,
                           graph->cells->items[value->cell].name);
        }
        metas[i] = value->meta;
    }
    return DS_OK;
}

/* Output i writes the cell of its input; makes the next version current. An operator that may work
 * in place also takes a plain value there, and gives a plain value. */
static ds_status describe_output(const ds_graph *graph, const ds_op *op, const ds_value *in,
                                 uint32_t n_in, uint32_t i, dsi_value_info *info)
{
    const int writes = op->writes != NULL ? op->writes[i] : -1;
    info->cell = DS_NONE;
    if (writes < 0) {
        return DS_OK;
    }
    if ((op->flags & DS_OP_INPLACE) != 0 && (uint32_t)writes < n_in && in[writes] != DS_NONE &&
        graph->values[in[writes]].cell == DS_NONE) {
        return DS_OK;
    }
    if ((uint32_t)writes >= n_in || in[writes] == DS_NONE ||
        graph->values[in[writes]].cell == DS_NONE) {
        return ds_fail(graph->ctx, DS_ERR_GRAPH, "%s must write a cell through input %d", op->name,
                       writes);
    }
    const dsi_value_info *old = &graph->values[in[writes]];
    info->cell = old->cell;
    info->version = old->version + 1;
    info->meta = old->meta;
    return DS_OK;
}

static ds_status apply(ds_graph *graph, const ds_op *op, const void *attrs, const ds_value *in,
                       uint32_t n_in, ds_value *out)
{
    ds_meta in_metas[DS_MAX_IN];
    ds_meta out_metas[DS_MAX_OUT];
    DS_TRY(check_operands(graph, op, in, n_in, in_metas));
    const void *own_attrs = NULL;
    if (op->attrs_bytes > 0) {
        own_attrs = dsi_arena_copy(graph->arena, attrs, op->attrs_bytes);
        if (own_attrs == NULL) {
            return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory for the graph");
        }
    }
    DS_TRY(dsi_graph_infer(graph->ctx, op, own_attrs, in_metas, n_in, out_metas));
    dsi_value_info infos[DS_MAX_OUT];
    for (uint32_t i = 0; i < op->n_out; ++i) {
        infos[i] = (dsi_value_info){
            .meta = out_metas[i], .producer = graph->n_nodes, .index = i, .cell = DS_NONE};
        if (out_metas[i].dtype != DS_DTYPE_NONE) {
            DS_TRY(describe_output(graph, op, in, n_in, i, &infos[i]));
        }
    }
    GROW(graph, nodes, nodes_capacity, graph->n_nodes + 1);
    GROW(graph, operands, operands_capacity, graph->n_operands + n_in + op->n_out);
    dsi_node_info node = {.op = op,
                          .attrs = own_attrs,
                          .in_at = graph->n_operands,
                          .n_in = n_in,
                          .out_at = graph->n_operands + n_in,
                          .n_out = op->n_out,
                          .scope = graph->scope,
                          .phase = graph->phase,
                          .region = graph->region,
                          .stage = graph->stage,
                          .half = graph->half,
                          .recomputed = graph->recomputed,
                          .on_host = graph->on_host};
    if (n_in > 0) { /* else `in` may be NULL */
        memcpy(graph->operands + node.in_at, in, n_in * sizeof *in);
    }
    for (uint32_t i = 0; i < op->n_out; ++i) {
        out[i] = DS_NONE;
        if (infos[i].meta.dtype != DS_DTYPE_NONE) {
            DS_TRY(add_value(graph, &infos[i], &out[i]));
            if (infos[i].cell != DS_NONE) {
                graph->current[infos[i].cell] = out[i];
            }
        }
        graph->operands[node.out_at + i] = out[i];
    }
    graph->n_operands += n_in + op->n_out;
    graph->nodes[graph->n_nodes++] = node;
    return DS_OK;
}

ds_status ds_graph_apply(ds_graph *graph, const ds_op *op, const void *attrs, const ds_value *in,
                         uint32_t n_in, ds_value *out)
{
    const ds_status status = apply(graph, op, attrs, in, n_in, out);
    if (status < 0) {
        dsi_ctx_error_within(graph->ctx, graph->scope);
    }
    return status;
}

ds_status ds_graph_output(ds_graph *graph, const char *name, ds_value value)
{
    if (value >= graph->n_values) {
        return ds_fail(graph->ctx, DS_ERR_ARG, "output %s is no value of this graph", name);
    }
    if (ds_graph_find_output(graph, name) != DS_NONE) {
        return ds_fail(graph->ctx, DS_ERR_ARG, "there are two outputs named %s", name);
    }
    GROW(graph, outputs, outputs_capacity, graph->n_outputs + 1);
    const char *copy = dsi_arena_strdup(graph->arena, name);
    if (copy == NULL) {
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory for the graph");
    }
    graph->outputs[graph->n_outputs++] = (dsi_output_info){.name = copy, .value = value};
    return DS_OK;
}

ds_value ds_graph_find_output(const ds_graph *graph, const char *name)
{
    for (uint32_t i = 0; i < graph->n_outputs; ++i) {
        if (strcmp(graph->outputs[i].name, name) == 0) {
            return graph->outputs[i].value;
        }
    }
    return DS_NONE;
}

uint32_t ds_graph_n_nodes(const ds_graph *graph)
{
    return graph->n_nodes;
}

uint32_t ds_graph_n_values(const ds_graph *graph)
{
    return graph->n_values;
}

ds_meta ds_graph_meta(const ds_graph *graph, ds_value value)
{
    return value < graph->n_values ? graph->values[value].meta : (ds_meta){0};
}

ds_cell ds_graph_cell_of(const ds_graph *graph, ds_value value)
{
    return value < graph->n_values ? graph->values[value].cell : DS_NONE;
}
