/* SPDX-License-Identifier: Apache-2.0 */
/* From model and configuration to what a rank runs. See rank_plan.h. */
#include "compile/packed_layers.h"
#include "compile/rank_maker.h"
#include "compile/state_place.h"
#include "compile/tensor_specs.h"

#include "pass/vocab_parts.h"
#include "place/expert_rules.h"
#include "place/sequence_rules.h"
#include "place/tensor_rules.h"

#include <stdlib.h>
#include <string.h>

/* Declares the parameters by a trace whose graph is dropped, then freezes those that match. */
static ds_status freeze(const dsi_rank_maker *m)
{
    ds_graph *graph = NULL;
    if (m->request->n_frozen == 0) {
        return DS_OK;
    }
    DS_TRY(dsi_rank_trace(m, DS_TRACE_TRAIN, &graph));
    ds_graph_destroy(&graph);
    for (uint32_t i = 0; i < m->request->n_frozen; ++i) {
        const char *pattern = m->request->frozen[i];
        uint32_t n = 0;
        DS_TRY(ds_cells_freeze(m->plan.cells, pattern, &n));
        ds_log(m->plan.ctx, DS_LOG_OBJECT, "frozen: %u parameters match %s", n, pattern);
    }
    return DS_OK;
}

/* The cells of evaluation, where others come behind them in the table of local ones. */
static ds_status declare_eval(dsi_rank_maker *m)
{
    ds_graph *graph = NULL;
    ds_graph *cut = NULL; /* attention reads parts of what says where documents begin */
    DS_TRY(dsi_rank_trace(m, DS_TRACE_EVAL, &graph));
    ds_status status = DS_OK;
    if (dsi_rank_has_chunks(m)) {
        const dsi_chunks chunks = dsi_rank_chunks(&m->spec);
        status = dsi_chunks_cut(graph, &chunks, &cut);
    }
    if (status >= 0) { /* its inputs are cells of both graphs */
        status = dsi_rank_share_sequences(m, cut != NULL ? cut : graph);
    }
    ds_graph_destroy(&cut);
    ds_graph_destroy(&graph);
    return status;
}

/* Which stage has which cell, evaluation's included. */
static ds_status deal_cells(dsi_rank_maker *m, const ds_graph *graph)
{
    if (dsi_rank_n_stages(m) <= 1) {
        return DS_OK;
    }
    DS_TRY(declare_eval(m));
    m->stages = calloc((size_t)ds_cells_count(m->plan.cells) + 1, sizeof *m->stages);
    if (m->stages == NULL) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
    }
    dsi_stages_of_cells(graph, m->stages);
    const dsi_schedule schedule = dsi_rank_schedule(&m->spec);
    const dsi_stage_parts parts = dsi_schedule_parts(&schedule);
    for (ds_cell c = 0; c < ds_cells_count(m->plan.cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(m->plan.cells, c);
        m->stages[c] = dsi_stage_ranks(m->stages[c], &parts, dsi_rank_n_stages(m));
        if (m->stages[c].more && m->stages[c].first > 1 &&
            dsi_rank_n_chunks(m) > dsi_rank_n_stages(m)) {
            return ds_fail(m->plan.ctx, DS_ERR_UNSUPPORTED,
                           "pipeline.schedule \"%s\": %s is read by more than two chunks, "
                           "of which the first is on stage %u; take the schedule \"1f1b\"",
                           dsi_schedule_name(schedule.kind), cell->name, m->stages[c].first - 1);
        }
    }
    return DS_OK;
}

/* Where a micro-batch has more phases than two, those behind it come later in a rank's plan. */
static void shift_phases(dsi_rank_maker *m)
{
    const dsi_schedule s = dsi_rank_schedule(&m->spec);
    const dsi_stage_parts parts = dsi_schedule_parts(&s);
    const uint32_t more = dsi_rank_n_stages(m) > 1 ? dsi_parts_phases(&parts) - DS_PHASE_STEP : 0;
    m->plan.own.phases.norm += more;
    m->plan.own.phases.update += more;
}

/* Placements of all logical cells. Parts of cells come behind those of evaluation. */
static ds_status find_residencies(dsi_rank_maker *m, const ds_graph *graph)
{
    if (!dsi_offload_is_on(&m->spec.offload)) {
        return DS_OK;
    }
    DS_TRY(declare_eval(m));
    uint32_t *ends = calloc((size_t)ds_cells_count(m->plan.cells) + 1, sizeof *ends);
    if (ends == NULL) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
    }
    dsi_state_ends(graph, ends);
    const ds_status status = dsi_state_residencies(m, ends, m->spec.offload.ratio);
    free(ends);
    DS_TRY(status);
    if (dsi_rank_n_stages(m) > 1) {
        const size_t bytes = m->plan.residencies.n * sizeof *m->residencies;
        m->residencies = malloc(bytes + 1);
        if (m->residencies == NULL) {
            return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
        }
        memcpy(m->residencies, m->plan.residencies.items, bytes);
    }
    return DS_OK;
}

/* Whether a parameter is sharded that is no table of the vocabulary, which any number of ranks
 * shares.
 */
static bool shares_layers(const ds_graph *g, const dsi_place_on *tensor)
{
    bool any = false;
    for (ds_node n = 0; n < g->n_nodes && !any; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        const uint32_t flags = node->op->place != NULL ? node->op->place->flags : 0;
        for (uint32_t i = 0; i < node->n_in && (flags & DSI_PLACE_PART) == 0; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            const ds_cell cell = v != DS_NONE ? g->values[v].cell : DS_NONE;
            any = any || (cell != DS_NONE && node->phase == DS_PHASE_FORWARD &&
                          tensor[cell].kind == DSI_SHARD);
        }
    }
    return any;
}

/* Which layers tp shards: found in the training graph, in force in evaluation too. */
static ds_status shard_layers(dsi_rank_maker *m, const ds_graph *graph)
{
    if (m->spec.zero.mesh.size[DSI_AXIS_TP] <= 1 || m->spec.no_shards) {
        return DS_OK;
    }
    m->tensor = calloc(DSI_RANK_MAX_CELLS, sizeof *m->tensor); /* {0}: those that evaluation adds */
    if (m->tensor == NULL) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
    }
    ds_graph *parts = NULL;
    const ds_config_tensor *specs = m->spec.train.tensor;
    const char *type = ds_model_get_info(m->request->model)->architecture;
    uint8_t *allowed = NULL;
    ds_status status = DS_OK;
    const bool folded = dsi_rank_token_ranks(m) > 1 && m->expert != NULL;
    DS_TRY(dsi_vocab_parts(graph, m->spec.zero.mesh.size[DSI_AXIS_TP], NULL, &parts));
    if (specs != NULL || folded) {
        const size_t n = (size_t)ds_cells_count(parts->cells);
        allowed = malloc(n + 1);
        if (allowed == NULL) {
            ds_graph_destroy(&parts);
            return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
        }
        memset(allowed, specs != NULL ? 0 : 0xff, n + 1);
        status = specs != NULL ? dsi_tensor_specs(specs, type, parts, allowed) : DS_OK;
        for (size_t c = 0; c < n && folded; ++c) { /* whole ones */
            allowed[c] = m->expert[c] != 0 ? 0 : allowed[c];
        }
    }
    if (status >= 0) {
        status = dsi_tensor_rules(parts, &m->spec.zero.mesh, allowed, m->tensor);
    }
    free(allowed);
    if (status >= 0 && specs != NULL) {
        status = dsi_tensor_specs_hold(specs, type, parts, m->tensor);
    }
    if (status >= 0) {
        status =
            dsi_packed_layers_check(parts->cells, m->tensor, (uint32_t)dsi_rank_tensor_ranks(m));
    }
    if (status >= 0 && !shares_layers(parts, m->tensor)) {
        status = ds_fail(
            m->plan.ctx, DS_ERR_CONFIG,
            "tensor_parallel.autotp_size %u: no layer of the model can be shared by so "
            "many ranks (heads and widths have to be multiples of it); choose another, or 1",
            m->spec.zero.mesh.size[DSI_AXIS_TP]);
    }
    ds_graph_destroy(&parts);
    return status;
}

/* Which weights ep shards, likewise. */
static ds_status share_experts(dsi_rank_maker *m, const ds_graph *graph)
{
    if (dsi_rank_expert_ranks(m) <= 1) {
        return DS_OK;
    }
    m->expert = calloc(DSI_RANK_MAX_CELLS, sizeof *m->expert);
    return m->expert == NULL
               ? ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan")
               : dsi_expert_rules(graph, &m->spec.zero.mesh, m->spec.zero.folded, m->expert);
}

/* Ranks over which a gradient is reduced to slices. */
static int64_t slice_ranks(const dsi_rank_maker *m)
{
    const dsi_axes axes = dsi_axes_zero(false);
    return dsi_axes_size(&m->spec.zero.mesh, &axes);
}

static ds_status build_plans(dsi_rank_maker *m)
{
    ds_graph *graph = NULL;
    m->spec.train.head_ranks = dsi_rank_head_ranks(m);
    m->spec.train.onebit.n_ranks = dsi_mesh_data_size(&m->spec.zero.mesh);
    m->spec.train.sequence_ranks = dsi_rank_sequence_ranks(m);
    m->spec.train.loco.n_outer = m->spec.zero.mesh.size[DSI_AXIS_DPR];
    m->spec.train.loco.n_inner = slice_ranks(m);
    m->spec.train.stages = dsi_rank_n_chunks(m);
    m->spec.train.expert_ranks = dsi_rank_expert_ranks(m);
    m->spec.train.token_ranks = dsi_rank_token_ranks(m);
    m->spec.train.data_ranks = dsi_mesh_data_size(&m->spec.zero.mesh);
    DS_TRY(dsi_train_graph(m->request->model, &m->spec.train, m->plan.cells, &graph, &m->plan.own));
    m->trained = graph;
    shift_phases(m);
    ds_status status = deal_cells(m, graph);
    status = status >= 0 ? find_residencies(m, graph) : status;
    if (status >= 0) {
        status = share_experts(m, graph);
    }
    if (status >= 0) {
        status = shard_layers(m, graph);
    }
    if (status >= 0) {
        status = dsi_state_is_open(m) ? dsi_state_place_to_fit(m, graph)
                                      : dsi_rank_lower_to_fit(m, graph);
    }
    ds_graph_destroy(&graph);
    return status;
}

static ds_status place_cells(dsi_rank_maker *m)
{
    m->plan.places = calloc((size_t)ds_cells_count(m->plan.cells) + 1, sizeof *m->plan.places);
    if (m->plan.places == NULL) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
    }
    dsi_zero_spec zero = m->spec.zero;
    zero.tensor = m->tensor;
    zero.expert = m->expert;
    zero.sequence = m->sequence;
    zero.stages = m->stages;
    dsi_zero_rules(&zero, m->plan.cells, m->plan.places);
    return DS_OK;
}

/* What stages do not go with beyond the configuration. */
static ds_status check_stages(const dsi_rank_maker *m)
{
    const dsi_train_spec *train = &m->spec.train;
    if (m->stage > 0 && m->stage >= dsi_rank_n_stages(m)) {
        return ds_fail(m->plan.ctx, DS_ERR_ARG, "stage %u, but pipeline.stages is %u", m->stage,
                       dsi_rank_n_stages(m));
    }
    if (dsi_rank_n_stages(m) <= 1) {
        return DS_OK;
    }
    const dsi_schedule schedule = dsi_rank_schedule(&m->spec);
    DS_TRY(dsi_schedule_allowed(m->plan.ctx, &schedule));
    if (train->preference.loss != DS_PREFERENCE_NONE) {
        return ds_fail(m->plan.ctx, DS_ERR_CONFIG,
                       "pipeline.stages %u with the preference loss \"%s\" is not built; set it "
                       "to 1",
                       dsi_rank_n_stages(m), ds_preference_loss_name(train->preference.loss));
    }
    if (train->n_gradient_outputs > 0) {
        return ds_fail(m->plan.ctx, DS_ERR_CONFIG,
                       "pipeline.stages %u does not go with gradient_outputs: outputs are on one "
                       "stage; set it to 1",
                       dsi_rank_n_stages(m));
    }
    return DS_OK;
}

static ds_status build(dsi_rank_maker *m)
{
    DS_TRY(check_stages(m));
    DS_TRY(dsi_sequence_check_length(m->plan.ctx, (uint32_t)dsi_rank_sequence_ranks(m),
                                     m->spec.train.seq_length));
    if (dsi_rank_has_chunks(m)) {
        const dsi_chunks chunks = dsi_rank_chunks(&m->spec);
        DS_TRY(dsi_chunks_check(m->plan.ctx, &chunks));
    }
    DS_TRY(ds_cells_create(m->plan.ctx, DSI_RANK_MAX_CELLS, &m->plan.cells));
    m->plan.local = m->plan.cells;
    if (m->spec.zero.mesh.n_ranks > 1 || dsi_offload_is_on(&m->spec.offload)) {
        m->plan.local = NULL; /* made with each try */
    }
    DS_TRY(freeze(m));
    DS_TRY(build_plans(m));
    return place_cells(m);
}

ds_status dsi_rank_plan_build(ds_ctx *ctx, const dsi_rank_request *request, dsi_rank_plan *plan_out)
{
    dsi_rank_maker m = {
        .request = request, .spec = *request->spec, .stage = request->stage, .plan = {.ctx = ctx}};
    const ds_status status = build(&m);
    free(m.tensor);
    free(m.expert);
    free(m.sequence);
    free(m.stages);
    free(m.residencies);
    if (status < 0) {
        dsi_rank_plan_free(&m.plan);
        return status;
    }
    *plan_out = m.plan;
    return DS_OK;
}

void dsi_rank_plan_free(dsi_rank_plan *plan)
{
    dsi_plan_destroy(&plan->train_plan);
    dsi_plan_destroy(&plan->eval_plan);
    if (plan->local != plan->cells) {
        ds_cells_destroy(&plan->local);
    }
    ds_cells_destroy(&plan->cells);
    free(plan->places);
    free(plan->residencies.items);
    free(plan->train_messages.items);
    free(plan->eval_messages.items);
    *plan = (dsi_rank_plan){.ctx = plan->ctx};
}
