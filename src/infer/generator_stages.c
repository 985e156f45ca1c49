/* SPDX-License-Identifier: Apache-2.0 */
/* A generator whose layers are on several stages, neighbouring ones on each: a stage has their
 * weights, keys and values alone. A piece goes through the stages one after another; behind the
 * last one rank 0 gets the logits.
 */
#include "compile/adapter_graph.h"
#include "compile/train_graph.h"
#include "infer/generator.h"

#include <stdio.h>
#include <stdlib.h>

static const dsi_axes pipeline = {.n = 1, .axis = {DSI_AXIS_PP}};

uint32_t dsi_generator_n_stages(const ds_generator *g)
{
    return g->comm != NULL ? g->zero.mesh.size[DSI_AXIS_PP] : 1;
}

static uint32_t own_stage(const ds_generator *g)
{
    return dsi_mesh_coords(&g->zero.mesh, g->comm->rank).at[DSI_AXIS_PP];
}

ds_status dsi_generator_mark_stages(ds_generator *g, ds_graph *graph)
{
    if (dsi_generator_n_stages(g) == 1) {
        return DS_OK;
    }
    DS_TRY(dsi_stages_mark(graph, dsi_generator_n_stages(g), DSI_STAGES_BY_PARAMETERS, NULL));
    if (g->stages == NULL) { /* {0}: inputs, which all stages have */
        g->stages = calloc(DSI_GENERATOR_CELLS, sizeof *g->stages);
        if (g->stages == NULL) {
            return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for stages");
        }
        dsi_stages_of_cells(graph, g->stages);
    }
    for (ds_node n = 0; n < graph->n_nodes; ++n) { /* what is kept is with what reads it */
        const dsi_node_info *node = &graph->nodes[n];
        for (uint32_t i = 0; node->stage != 0 && i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(graph, node)[i];
            const ds_cell cell = v != DS_NONE ? graph->values[v].cell : DS_NONE;
            const ds_cell_kind kind =
                cell != DS_NONE ? ds_cells_get(graph->cells, cell)->kind : DS_CELL_INPUT;
            if (kind == DS_CELL_KV || kind == DS_CELL_STATE) {
                g->stages[cell] = (dsi_stage_of){.first = node->stage, .last = node->stage};
            }
        }
    }
    return DS_OK;
}

bool dsi_generator_has_stage_of(const ds_generator *g, ds_cell cell)
{
    return g->stages == NULL || dsi_stage_has(g->stages[cell], own_stage(g));
}

static dsi_stage_cut cut_of(const ds_generator *g, const char *name)
{
    return (dsi_stage_cut){.mesh = &g->zero.mesh,
                           .cells = g->stages,
                           .n_cells = ds_cells_count(g->cells),
                           .stage = own_stage(g),
                           .parts = {.n_chunks = 1},
                           .name = name};
}

ds_status dsi_generator_cut_stage(ds_generator *g, dsi_piece *piece, ds_graph **graph_inout)
{
    ds_graph *own = NULL;
    char name[48];
    if (dsi_generator_n_stages(g) == 1) {
        return DS_OK;
    }
    (void)snprintf(name, sizeof name, "generate.%lld", (long long)piece->length);
    const dsi_stage_cut how = cut_of(g, name);
    piece->first_message = g->messages.n;
    DS_TRY(dsi_stage_cut_graph(*graph_inout, &how, g->local, &g->messages, &own));
    piece->n_messages = g->messages.n - piece->first_message;
    ds_graph_destroy(graph_inout);
    *graph_inout = own;
    return DS_OK;
}

ds_status dsi_generator_place_stages(ds_generator *g)
{
    const dsi_stage_messages none = {0};
    if (dsi_generator_n_stages(g) == 1) {
        return DS_OK;
    }
    const dsi_stage_cut how = cut_of(g, "");
    dsi_stage_empty_cells(g->local, &how, &g->messages, &none);
    g->zero.stages = g->stages;
    g->last_logits = malloc((size_t)g->vocab_size * sizeof *g->last_logits);
    return g->last_logits != NULL ? DS_OK : ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for logits");
}

static ds_status transfer(const ds_generator *g, uint32_t stage, bool sends, ds_dtype dtype,
                          size_t count, void *data, const char *what)
{
    const dsi_comm_part part = {.in = data, .out = data, .count = count};
    const dsi_comm_call call = {.kind = sends ? DS_COMM_SEND : DS_COMM_RECV,
                                .dtype = dtype,
                                .factor = 1.0f,
                                .peer =
                                    dsi_mesh_peer(&g->zero.mesh, &pipeline, g->comm->rank, stage),
                                .parts = &part,
                                .n_parts = 1,
                                .what = what};
    return dsi_comm_run(g->comm, &call);
}

/* What the stages before have for this one, or this one for those behind. */
static ds_status move_messages(const ds_generator *g, const dsi_piece *piece, bool sends)
{
    const uint32_t own = own_stage(g);
    for (uint32_t i = 0; i < piece->n_messages; ++i) {
        const dsi_stage_message *m = &g->messages.items[piece->first_message + i];
        const ds_cell_info *cell = ds_cells_get(g->local, m->cell);
        if ((sends ? m->source : m->target) == own) {
            void *data = dsi_exec_host_view(g->exec, m->cell);
            if (data == NULL) {
                return ds_fail(g->ctx, DS_ERR_UNSUPPORTED,
                               "stages: the accelerator %s shares no memory with communicators; "
                               "use the accelerator cpu",
                               dsi_accel_chosen(&g->accel)->name);
            }
            DS_TRY(transfer(g, sends ? m->target : m->source, sends, cell->meta.dtype,
                            (size_t)ds_shape_count(cell->meta.shape), data, cell->name));
        }
    }
    return DS_OK;
}

ds_status dsi_generator_run_stage(ds_generator *g, const dsi_piece *piece)
{
    if (dsi_generator_n_stages(g) > 1) {
        DS_TRY(move_messages(g, piece, false));
    }
    DS_TRY(dsi_exec_run(g->exec, piece->id, DS_PHASE_FORWARD));
    return dsi_generator_n_stages(g) > 1 ? move_messages(g, piece, true) : DS_OK;
}

ds_status dsi_generator_take_logits(ds_generator *g, const dsi_piece *piece)
{
    ds_tensor logits = {0};
    const uint32_t last = dsi_generator_n_stages(g) - 1;
    const uint32_t own = last > 0 ? own_stage(g) : 0;
    const bool leads = g->comm == NULL || g->comm->rank % (g->comm->size / (last + 1)) == 0;
    if (own == last) {
        DS_TRY(dsi_exec_output(g->exec, piece->id, "logits", &logits));
        g->logits = logits.data;
    }
    if (last == 0 || !leads || (own != 0 && own != last)) {
        return DS_OK;
    }
    const size_t n = (size_t)g->vocab_size;
    if (own == last) {
        return transfer(g, 0, true, DS_DTYPE_F32, n, (void *)(uintptr_t)logits.data, "logits");
    }
    g->logits = g->last_logits;
    return transfer(g, last, false, DS_DTYPE_F32, n, g->last_logits, "logits");
}

void dsi_generator_close_stages(ds_generator *g)
{
    free(g->messages.items);
    free(g->stages);
    free(g->last_logits);
}
