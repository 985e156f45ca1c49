/* SPDX-License-Identifier: Apache-2.0 */
/* From a logical graph to this rank's plan: the passes, in their order. See rank_maker.h. */
#include "compile/adapter_graph.h"
#include "compile/compress_graph.h"
#include "compile/rank_maker.h"

#include "op/ops.h"
#include "pass/domino.h"
#include "pass/early.h"
#include "pass/fuse.h"
#include "pass/keep.h"
#include "pass/remat.h"
#include "pass/ring_attention.h"
#include "pass/vocab_parts.h"
#include "place/sequence_rules.h"

#include <stdlib.h>

/* Bytes of states that the forward phase may prefetch: no writeback is in flight during the forward
 * phase, so its buffers are free for that too. */
static size_t forward_ahead(const dsi_offload_spec *offload)
{
    const size_t own = offload->update_ahead;
    const size_t behind = own > 0 && offload->defer ? offload->write_behind : 0;
    return behind < SIZE_MAX - own ? own + behind : SIZE_MAX;
}

ds_status dsi_rank_trace(const dsi_rank_maker *m, ds_trace_mode mode, ds_graph **graph_out)
{
    const dsi_train_spec *train = &m->spec.train;
    ds_trace how = dsi_train_trace(train, mode);
    how.head_ranks = dsi_rank_head_ranks(m);
    how.sequence_ranks = dsi_rank_sequence_ranks(m);
    how.expert_ranks = dsi_rank_expert_ranks(m);
    how.token_ranks = dsi_rank_token_ranks(m);
    how.data_ranks = dsi_mesh_data_size(&m->spec.zero.mesh);
    DS_TRY(dsi_forward_graph(m->request->model, &how, train->loss, train->loss_user, m->plan.cells,
                             graph_out));
    ds_status status = dsi_compress_graph(train->compression, graph_out, NULL);
    status = status >= 0 ? dsi_adapter_graph(train->adapter, &how, graph_out) : status;
    if (status >= 0 && dsi_rank_n_stages(m) > 1) {
        status = mode == DS_TRACE_EVAL && m->trained != NULL
                     ? dsi_stages_mark_as(*graph_out, m->trained)
                     : dsi_stages_mark(*graph_out, dsi_rank_n_chunks(m), train->partition,
                                       train->partition_type);
    }
    if (status < 0) {
        ds_graph_destroy(graph_out);
    }
    return status;
}

ds_status dsi_rank_share_sequences(dsi_rank_maker *m, const ds_graph *graph)
{
    if (m->spec.zero.mesh.size[DSI_AXIS_SP] <= 1) {
        return DS_OK;
    }
    if (m->spec.train.n_gradient_outputs > 0) {
        return ds_fail(m->plan.ctx, DS_ERR_CONFIG,
                       "sequence_parallel_size %u does not go with gradient_outputs: outputs are "
                       "parts of sequences; set it to 1",
                       m->spec.zero.mesh.size[DSI_AXIS_SP]);
    }
    const char *order = dsi_rank_has_chunks(m)
                            ? "sequence_parallel.chunk_size does not go with; set it to 0"
                        : dsi_rank_has_halves(m)
                            ? "sequence_parallel.load_balance does not go with; set it to false"
                            : NULL;
    if (m->sequence == NULL) {
        m->sequence = calloc(DSI_RANK_MAX_CELLS, sizeof *m->sequence);
    }
    return m->sequence == NULL ? ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan")
                               : dsi_sequence_rules(graph, &m->spec.zero.mesh,
                                                    m->spec.train.seq_length, order, m->sequence);
}

/* What another stage reads is not made again: it was sent, and is there. */
static void keep_received(const ds_graph *graph, bool *drop)
{
    for (ds_node n = 0; n < graph->n_nodes; ++n) {
        const dsi_node_info *node = &graph->nodes[n];
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(graph, node)[i];
            const ds_node node_of = v != DS_NONE ? graph->values[v].producer : DS_NONE;
            const uint32_t stage = node_of != DS_NONE ? graph->nodes[node_of].stage : 0;
            if (stage != 0 && node->stage != 0 && node->stage != stage) {
                drop[v] = false;
            }
        }
    }
}

/* Tags what is recomputed and obeys the tags. */
static ds_status recompute(const dsi_rank_maker *m, const ds_graph *graph, ds_graph **out)
{
    bool *drop = calloc((size_t)graph->n_values + 1, sizeof *drop);
    if (drop == NULL) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for the training graph");
    }
    ds_status status = dsi_policy_recompute(graph, &m->spec.recompute, drop);
    keep_received(graph, drop);
    if (status >= 0) {
        status = dsi_remat(graph, drop, out);
    }
    free(drop);
    return status;
}

/* Tags what is kept and obeys the tags. */
static ds_status keep(dsi_rank_maker *m, const ds_graph *graph, ds_graph **out)
{
    bool *tags = calloc((size_t)graph->n_nodes + 1, sizeof *tags);
    if (tags == NULL) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for the training graph");
    }
    m->plan.n_kept = dsi_policy_keep(graph, m->plan.choice.logits, tags);
    const ds_status status = dsi_keep(graph, tags, out);
    free(tags);
    return status;
}

/* Communicators are made by all ranks together, whatever their stage has of the graph. */
static ds_status collect_axes(dsi_rank_maker *m, const ds_graph *graph)
{
    for (ds_node n = 0; n < graph->n_nodes; ++n) {
        const dsi_node_info *node = &graph->nodes[n];
        const dsi_comm_attrs *attrs = node->attrs;
        bool known = (node->op->flags & DS_OP_COMM) == 0 || attrs->axes == 0;
        for (uint32_t i = 0; i < m->plan.n_axes && !known; ++i) {
            known = m->plan.axes[i] == attrs->axes;
        }
        if (!known && m->plan.n_axes == DSI_RANK_AXES_MOST) {
            return ds_fail(m->plan.ctx, DS_ERR_LIMIT, "collectives along more than %d axes",
                           DSI_RANK_AXES_MOST);
        }
        if (!known) {
            m->plan.axes[m->plan.n_axes++] = attrs->axes;
        }
    }
    return DS_OK;
}

dsi_stage_cut dsi_rank_stage_cut(const dsi_rank_maker *m, const char *name)
{
    const dsi_schedule schedule = dsi_rank_schedule(&m->spec);
    dsi_stage_cut how = {.mesh = &m->spec.zero.mesh,
                         .cells = m->stages,
                         .n_cells = ds_cells_count(m->plan.cells),
                         .stage = m->stage,
                         .parts = dsi_schedule_parts(&schedule),
                         .name = name};
    for (uint32_t rank = 0; rank < schedule.n_ranks; ++rank) {
        uint32_t chunks = 0;
        how.slots[rank] = dsi_schedule_in_flight(&schedule, rank, &chunks);
    }
    return how;
}

/* What this rank's stage has of a local graph. */
static ds_status cut_stage(dsi_rank_maker *m, const ds_graph *graph, bool train, ds_graph **cut_out)
{
    dsi_stage_cut how = dsi_rank_stage_cut(m, train ? "train" : "eval");
    how.n_micro = train ? (uint32_t)m->spec.train.accumulation : 0;
    how.parts.split = how.parts.split && train;
    dsi_stage_messages *messages = train ? &m->plan.train_messages : &m->plan.eval_messages;
    DS_TRY(collect_axes(m, graph));
    DS_TRY(dsi_stage_cut_graph(graph, &how, m->plan.local, messages, cut_out));
    return train ? dsi_stage_copies(m->plan.cells, &how, m->plan.own.phases.update, messages)
                 : DS_OK;
}

/* From a logical graph to this rank's plan: cut the vocabulary, fuse, recompute or keep, let
 * keys travel, cut rows in halves or sequences in chunks, cut over the ranks, then into stages, let
 * halves take turns, sort for early updates, offload, lower. */
ds_status dsi_rank_lower(dsi_rank_maker *m, const ds_graph *graph, dsi_plan_env env, bool backward,
                         dsi_plan **plan_out)
{
    enum { PARTS, FUSED, REMAT, KEPT, RING, HALVES, CHUNKS, ORDERED, LOCAL, STAGE, TURNS, EARLY };
    enum { OFFLOADED = EARLY + 1, COUNT };
    ds_graph *made[COUNT] = {NULL};
    ds_status status = DS_OK;
    if (m->tensor != NULL) {
        const uint32_t tp = m->spec.zero.mesh.size[DSI_AXIS_TP];
        DS_TRY_GOTO(status, dsi_vocab_parts(graph, tp, m->tensor, &made[PARTS]), done);
        graph = made[PARTS];
    }
    if (!env.no_fuse) {
        DS_TRY_GOTO(status, dsi_fuse(graph, &made[FUSED]), done);
        graph = made[FUSED];
    }
    if (backward && m->spec.recompute.mode != DS_RECOMPUTE_NONE) {
        DS_TRY_GOTO(status, recompute(m, graph, &made[REMAT]), done);
        graph = made[REMAT];
    }
    if (backward && m->plan.choice.logits != DSI_LOGITS_NONE) {
        DS_TRY_GOTO(status, keep(m, graph, &made[KEPT]), done);
        graph = made[KEPT];
    }
    if (dsi_rank_is_ring(m) && !dsi_rank_has_chunks(m)) {
        DS_TRY_GOTO(status,
                    dsi_ring_attention(graph, dsi_rank_sequence_ranks(m), dsi_rank_has_halves(m),
                                       &made[RING]),
                    done);
        graph = made[RING];
    }
    if (m->spec.domino) {
        DS_TRY_GOTO(status, dsi_domino(graph, dsi_train_rows(&m->spec.train), &made[HALVES]), done);
        graph = made[HALVES];
    }
    if (dsi_rank_has_chunks(m)) {
        const dsi_chunks chunks = dsi_rank_chunks(&m->spec);
        DS_TRY_GOTO(status, dsi_chunks_cut(graph, &chunks, &made[CHUNKS]), done);
        DS_TRY_GOTO(status,
                    dsi_chunks_turns(made[CHUNKS], dsi_chunks_count(&chunks), &made[ORDERED]),
                    done);
        graph = made[ORDERED];
    }
    if (m->spec.zero.mesh.n_ranks > 1) {
        dsi_zero_spec zero = m->spec.zero;
        zero.tensor = m->tensor;
        zero.expert = m->expert;
        DS_TRY_GOTO(status, dsi_rank_share_sequences(m, graph), done);
        zero.sequence = m->sequence;
        DS_TRY_GOTO(status, dsi_zero_lower(graph, &zero, m->plan.local, &made[LOCAL]), done);
        graph = made[LOCAL];
    }
    if (dsi_rank_n_stages(m) > 1) {
        DS_TRY_GOTO(status, cut_stage(m, graph, backward, &made[STAGE]), done);
        graph = made[STAGE];
    }
    if (m->spec.domino) {
        DS_TRY_GOTO(status, dsi_domino_turns(graph, &made[TURNS]), done);
        graph = made[TURNS];
    }
    if (backward && dsi_train_is_early(&m->spec.train)) {
        DS_TRY_GOTO(status, dsi_early(graph, &made[EARLY]), done);
        graph = made[EARLY];
    }
    if (dsi_offload_is_on(&m->spec.offload)) {
        dsi_offload how = m->spec.offload.how;
        how.forward_ahead = forward_ahead(&m->spec.offload);
        how.speculate.on = backward && m->spec.train.speculative;
        how.speculate.accept = m->plan.own.phases.accept;
        how.speculate.undo = m->plan.own.phases.undo;
        how.speculate.redo = m->plan.own.phases.redo;
        how.speculate.factor = m->plan.own.inverse_scale;
        DS_TRY_GOTO(
            status,
            dsi_offload_graph(graph, &how, m->plan.local, &m->plan.residencies, &made[OFFLOADED]),
            done);
        graph = made[OFFLOADED];
        env.residencies = m->plan.residencies.items;
        env.n_residencies = m->plan.residencies.n;
    }
    env.no_fuse = true;
    status = dsi_plan_build(graph, &env, plan_out);
done:
    for (int i = 0; i < COUNT; ++i) {
        ds_graph_destroy(&made[i]);
    }
    return status;
}
