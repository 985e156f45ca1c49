/* SPDX-License-Identifier: Apache-2.0 */
/* From model and configuration to what a rank runs. See rank_plan.h. */
#include "compile/rank_plan.h"
#include "compile/adapter_graph.h"
#include "compile/compress_graph.h"
#include "compile/packed_layers.h"
#include "compile/tensor_specs.h"

#include "op/ops.h"
#include "pass/chunks.h"
#include "pass/domino.h"
#include "pass/early.h"
#include "pass/fuse.h"
#include "pass/keep.h"
#include "pass/memory.h"
#include "pass/remat.h"
#include "pass/ring_attention.h"
#include "pass/vocab_parts.h"
#include "pipe/pipe_slots.h"
#include "place/expert_rules.h"
#include "place/sequence_rules.h"
#include "place/tensor_rules.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = 1 << 20, MAX_SLOT_RANGES = 4096 };

typedef struct maker {
    const dsi_rank_request *request;
    dsi_engine_spec spec;    /* as the memory choice in force has it */
    dsi_place_on *tensor;    /* per logical cell; NULL: no layer is sharded */
    uint8_t *expert;         /* per logical cell; NULL: each rank has all experts */
    dsi_place_on *sequence;  /* per logical cell; NULL: each rank has whole sequences */
    dsi_stage_of *stages;    /* per logical cell; NULL: one stage has all */
    uint32_t stage;          /* whose plan is made */
    const ds_graph *trained; /* the training graph, whose stages evaluation has; NULL: none yet */
    dsi_cell_residency *residencies; /* of logical cells, of whatever stage; NULL: none */
    dsi_rank_plan plan;
} maker;

static dsi_plan_env plan_env(const maker *m)
{
    return (dsi_plan_env){.n_threads = m->request->n_threads,
                          .isa = m->spec.isa,
                          .choose = dsi_accel_chosen(&m->spec.accel)->kernels->choose,
                          .overlap = m->spec.overlap && m->spec.zero.mesh.n_ranks > 1,
                          .prefetch = m->spec.prefetch,
                          .residencies = m->plan.residencies.items,
                          .n_residencies = m->plan.residencies.n,
                          .read_ahead = m->spec.offload.read_ahead,
                          .update_ahead = m->spec.offload.update_ahead,
                          .write_behind = m->spec.offload.write_behind,
                          .defer = m->spec.offload.defer,
                          .write_first = m->spec.offload.write_first,
                          .no_reuse = m->spec.no_reuse,
                          .no_fuse = m->spec.no_fuse};
}

/* Bytes of states that the forward phase may prefetch: no writeback is in flight during the forward
 * phase, so its buffers are free for that too. */
static size_t forward_ahead(const dsi_offload_spec *offload)
{
    const size_t own = offload->update_ahead;
    const size_t behind = own > 0 && offload->defer ? offload->write_behind : 0;
    return behind < SIZE_MAX - own ? own + behind : SIZE_MAX;
}

static uint32_t n_stages(const maker *m)
{
    return m->spec.zero.mesh.size[DSI_AXIS_PP];
}

dsi_schedule dsi_rank_schedule(const dsi_engine_spec *spec)
{
    return (dsi_schedule){.kind = spec->schedule_kind,
                          .n_ranks = spec->zero.mesh.size[DSI_AXIS_PP],
                          .n_micro = (uint32_t)spec->train.accumulation,
                          .n_chunks = spec->stage_chunks > 1 ? spec->stage_chunks : 1};
}

/* Stages of the model: chunks of all ranks. */
static uint32_t n_chunks(const maker *m)
{
    const dsi_schedule s = dsi_rank_schedule(&m->spec);
    return n_stages(m) * s.n_chunks;
}

static int64_t sequence_ranks(const maker *m)
{
    const uint32_t sp = m->spec.zero.mesh.size[DSI_AXIS_SP];
    return sp > 1 ? sp : 1;
}

/* Of those that share the experts, ranks that have the same tokens. */
static int64_t token_ranks(const maker *m)
{
    const bool folded = (m->spec.zero.folded >> DSI_AXIS_TP & 1u) != 0;
    return folded ? m->spec.zero.mesh.size[DSI_AXIS_TP] : 1;
}

/* Ranks that share the experts: those along ep, those that share a sequence as well, and those
 * along tp over which they are folded. */
static int64_t expert_ranks(const maker *m)
{
    return (int64_t)m->spec.zero.mesh.size[DSI_AXIS_EP] * sequence_ranks(m) * token_ranks(m);
}

/* Whether keys and values travel among the ranks that share a sequence. */
static bool is_ring(const maker *m)
{
    return sequence_ranks(m) > 1 && m->spec.train.sequence_form != DS_SEQUENCE_HEADS;
}

static bool has_halves(const maker *m)
{
    return is_ring(m) && m->spec.train.sequence_form == DS_SEQUENCE_RING_HALVES;
}

dsi_chunks dsi_rank_chunks(const dsi_engine_spec *spec)
{
    const maker m = {.spec = *spec};
    const int64_t chunk = spec->train.sequence_chunk;
    return (dsi_chunks){.seq_length = spec->train.seq_length,
                        .chunk = chunk < spec->train.seq_length ? chunk : 0,
                        .ranks = sequence_ranks(&m),
                        .token_ranks = token_ranks(&m),
                        .ring = is_ring(&m)};
}

/* Whether sequences are computed in chunks: not those that are one chunk. */
static bool has_chunks(const maker *m)
{
    return dsi_rank_chunks(&m->spec).chunk > 0;
}

static int64_t tensor_ranks(const maker *m)
{
    return m->spec.no_shards ? 1 : m->spec.zero.mesh.size[DSI_AXIS_TP];
}

/* Ranks that share the heads of attention, for the trace. */
static int64_t head_ranks(const maker *m)
{
    const int64_t ranks = tensor_ranks(m) * (is_ring(m) ? 1 : sequence_ranks(m));
    return ranks > 1 ? ranks : 0;
}

static ds_status trace(const maker *m, ds_trace_mode mode, ds_graph **graph_out)
{
    const dsi_train_spec *train = &m->spec.train;
    ds_trace how = dsi_train_trace(train, mode);
    how.head_ranks = head_ranks(m);
    how.sequence_ranks = sequence_ranks(m);
    how.expert_ranks = expert_ranks(m);
    how.token_ranks = token_ranks(m);
    DS_TRY(dsi_forward_graph(m->request->model, &how, train->loss, train->loss_user, m->plan.cells,
                             graph_out));
    ds_status status = dsi_compress_graph(train->compression, graph_out, NULL);
    status = status >= 0 ? dsi_adapter_graph(train->adapter, &how, graph_out) : status;
    if (status >= 0 && n_stages(m) > 1) {
        status = mode == DS_TRACE_EVAL && m->trained != NULL
                     ? dsi_stages_mark_as(*graph_out, m->trained)
                     : dsi_stages_mark(*graph_out, n_chunks(m), train->partition);
    }
    if (status < 0) {
        ds_graph_destroy(graph_out);
    }
    return status;
}

/* Which inputs of a graph sp shards along the sequence. Those of other graphs stay as they are. */
static ds_status share_sequences(maker *m, const ds_graph *graph)
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
    const char *order = has_chunks(m) ? "sequence_parallel.chunk_size does not go with; set it to 0"
                        : has_halves(m)
                            ? "sequence_parallel.load_balance does not go with; set it to false"
                            : NULL;
    if (m->sequence == NULL) {
        m->sequence = calloc(MAX_CELLS, sizeof *m->sequence);
    }
    return m->sequence == NULL ? ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan")
                               : dsi_sequence_rules(graph, &m->spec.zero.mesh,
                                                    m->spec.train.seq_length, order, m->sequence);
}

/* Declares the parameters by a trace whose graph is dropped, then freezes those that match. */
static ds_status freeze(const maker *m)
{
    ds_graph *graph = NULL;
    if (m->request->n_frozen == 0) {
        return DS_OK;
    }
    DS_TRY(trace(m, DS_TRACE_TRAIN, &graph));
    ds_graph_destroy(&graph);
    for (uint32_t i = 0; i < m->request->n_frozen; ++i) {
        const char *pattern = m->request->frozen[i];
        uint32_t n = 0;
        DS_TRY(ds_cells_freeze(m->plan.cells, pattern, &n));
        ds_log(m->plan.ctx, DS_LOG_OBJECT, "frozen: %u parameters match %s", n, pattern);
    }
    return DS_OK;
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
static ds_status recompute(const maker *m, const ds_graph *graph, ds_graph **out)
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
static ds_status keep(maker *m, const ds_graph *graph, ds_graph **out)
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
static ds_status collect_axes(maker *m, const ds_graph *graph)
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

static dsi_stage_cut stage_cut(const maker *m, const char *name)
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
static ds_status cut_stage(maker *m, const ds_graph *graph, bool train, ds_graph **cut_out)
{
    dsi_stage_cut how = stage_cut(m, train ? "train" : "eval");
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
static ds_status lower(maker *m, const ds_graph *graph, dsi_plan_env env, bool backward,
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
    if (is_ring(m) && !has_chunks(m)) {
        DS_TRY_GOTO(status,
                    dsi_ring_attention(graph, sequence_ranks(m), has_halves(m), &made[RING]), done);
        graph = made[RING];
    }
    if (m->spec.domino) {
        DS_TRY_GOTO(status, dsi_domino(graph, dsi_train_rows(&m->spec.train), &made[HALVES]), done);
        graph = made[HALVES];
    }
    if (has_chunks(m)) {
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
        DS_TRY_GOTO(status, share_sequences(m, graph), done);
        zero.sequence = m->sequence;
        DS_TRY_GOTO(status, dsi_zero_lower(graph, &zero, m->plan.local, &made[LOCAL]), done);
        graph = made[LOCAL];
    }
    if (n_stages(m) > 1) {
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

static size_t aligned(size_t bytes)
{
    return (bytes + DSI_MEMORY_ALIGN - 1) / DSI_MEMORY_ALIGN * DSI_MEMORY_ALIGN;
}

uint32_t dsi_rank_cell_copies(const dsi_rank_plan *plan, ds_cell cell)
{
    const bool each = ds_cells_get(plan->local, cell)->kind == DS_CELL_INPUT;
    return each && plan->train_plan != NULL ? plan->train_plan->n_slots : 1;
}

/* Cells on the device, as the executor maps them: the same whatever the memory policy chooses. */
static size_t cell_bytes(const dsi_rank_plan *plan)
{
    size_t bytes = 0;
    bool swaps = false;
    for (ds_cell c = 0; c < ds_cells_count(plan->local); ++c) {
        const dsi_cell_residency residency = dsi_residency_of(&plan->residencies, c);
        swaps = swaps || residency.where != DSI_RESIDENCY_DEVICE;
        if (residency.where == DSI_RESIDENCY_DEVICE && residency.parent == DS_NONE) {
            bytes += dsi_rank_cell_copies(plan, c) *
                     aligned(ds_meta_bytes(ds_cells_get(plan->local, c)->meta));
        }
    }
    return DSI_MEMORY_ALIGN + (swaps ? dsi_swap_block_bytes(bytes) : bytes);
}

size_t dsi_rank_mapped_bytes(const dsi_rank_plan *plan)
{
    const dsi_plan *train = plan->train_plan;
    const dsi_plan *eval = plan->eval_plan;
    const size_t arena =
        train->arena_bytes > eval->arena_bytes ? train->arena_bytes : eval->arena_bytes;
    return cell_bytes(plan) + aligned(arena) + aligned(train->shared_bytes) +
           aligned(eval->shared_bytes);
}

/* The cells of evaluation, where others come behind them in the table of local ones. */
static ds_status declare_eval(maker *m)
{
    ds_graph *graph = NULL;
    ds_graph *cut = NULL; /* attention reads parts of what says where documents begin */
    DS_TRY(trace(m, DS_TRACE_EVAL, &graph));
    ds_status status = DS_OK;
    if (has_chunks(m)) {
        const dsi_chunks chunks = dsi_rank_chunks(&m->spec);
        status = dsi_chunks_cut(graph, &chunks, &cut);
    }
    if (status >= 0) { /* its inputs are cells of both graphs */
        status = share_sequences(m, cut != NULL ? cut : graph);
    }
    ds_graph_destroy(&cut);
    ds_graph_destroy(&graph);
    return status;
}

/* Which stage has which cell, evaluation's included. */
static ds_status deal_cells(maker *m, const ds_graph *graph)
{
    if (n_stages(m) <= 1) {
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
        m->stages[c] = dsi_stage_ranks(m->stages[c], &parts, n_stages(m));
        if (m->stages[c].more && m->stages[c].first > 1 && n_chunks(m) > n_stages(m)) {
            return ds_fail(m->plan.ctx, DS_ERR_UNSUPPORTED,
                           "pipeline.schedule \"%s\": %s is read by more than two chunks, "
                           "of which the first is on stage %u; take the schedule \"1f1b\"",
                           dsi_schedule_name(schedule.kind), cell->name, m->stages[c].first - 1);
        }
    }
    return DS_OK;
}

/* Where a micro-batch has more phases than two, those behind it come later in a rank's plan. */
static void shift_phases(maker *m)
{
    const dsi_schedule s = dsi_rank_schedule(&m->spec);
    const dsi_stage_parts parts = dsi_schedule_parts(&s);
    const uint32_t more = n_stages(m) > 1 ? dsi_parts_phases(&parts) - DS_PHASE_STEP : 0;
    m->plan.own.phases.norm += more;
    m->plan.own.phases.update += more;
}

/* Placements of all logical cells. Parts of cells come behind those of evaluation. */
static ds_status find_residencies(maker *m)
{
    if (!dsi_offload_is_on(&m->spec.offload)) {
        return DS_OK;
    }
    DS_TRY(declare_eval(m));
    if (dsi_offload_rules(&m->spec.offload, m->plan.cells, &m->plan.residencies) < 0) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
    }
    dsi_offload_idle(&m->spec.offload, m->plan.cells, &m->plan.residencies, m->plan.idle);
    if (n_stages(m) > 1) {
        const size_t bytes = m->plan.residencies.n * sizeof *m->residencies;
        m->residencies = malloc(bytes + 1);
        if (m->residencies == NULL) {
            return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
        }
        memcpy(m->residencies, m->plan.residencies.items, bytes);
    }
    return DS_OK;
}

/* The evaluation plan keeps off what a forward pass left for its backward pass, and that for the
 * norm; and off the memory of what runs concurrently with other phases. */
static ds_status build_eval_plan(maker *m)
{
    ds_graph *graph = NULL;
    dsi_plan_env env = plan_env(m);
    dsi_range *slot = calloc(MAX_SLOT_RANGES + 1, sizeof *slot);
    ds_status status = DS_OK;
    uint32_t n_slot = 0;
    if (slot == NULL) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for the evaluation plan");
    }
    for (ds_phase phase = 0; phase < dsi_phases_micro(&m->plan.train_plan->phases); ++phase) {
        uint32_t n = 0;
        const uint32_t room = MAX_SLOT_RANGES - n_slot;
        DS_TRY_GOTO(status, dsi_plan_live_after(m->plan.train_plan, phase, slot + n_slot, room, &n),
                    done);
        n_slot += n;
        if (n > room) { /* keep off the whole arena instead */
            slot[0] = (dsi_range){0, m->plan.train_plan->arena_bytes};
            n_slot = 1;
            break;
        }
    }
    if (m->plan.train_plan->side_range.bytes > 0) {
        slot[n_slot++] = m->plan.train_plan->side_range;
    }
    env.reserved = slot;
    env.n_reserved = n_slot;
    DS_TRY_GOTO(status, trace(m, DS_TRACE_EVAL, &graph), done);
    status = lower(m, graph, env, false, &m->plan.eval_plan);
done:
    ds_graph_destroy(&graph);
    free(slot);
    return status;
}

/* A stage has no storage for what it lacks. Weights that two stages have are received where they
 * are, in memory. */
static void deal_residencies(maker *m, uint32_t n_residencies)
{
    for (ds_cell c = 0; c < n_residencies && m->residencies != NULL; ++c) {
        const dsi_stage_of of = m->stages[c];
        const bool copied =
            ds_cells_get(m->plan.cells, c)->kind == DS_CELL_PARAM && of.first != of.last;
        m->plan.residencies.items[c] = copied || !dsi_stage_has(of, m->stage)
                                           ? (dsi_cell_residency){DSI_RESIDENCY_DEVICE, DS_NONE, 0}
                                           : m->residencies[c];
    }
}

/* The tables as they were before a plan was made: of the rank's own cells, and of residencies. */
static ds_status start_again(maker *m, uint32_t n_residencies)
{
    dsi_plan_destroy(&m->plan.train_plan);
    dsi_plan_destroy(&m->plan.eval_plan);
    m->plan.residencies.n = n_residencies;
    m->plan.train_messages.n = m->plan.eval_messages.n = 0;
    deal_residencies(m, n_residencies);
    if (m->plan.local == m->plan.cells) {
        return DS_OK;
    }
    ds_cells_destroy(&m->plan.local);
    return ds_cells_create(m->plan.ctx, MAX_CELLS, &m->plan.local);
}

/* Of a stage, with what it leaves for later phases of the micro-batches in flight. */
static ds_status lower_train(maker *m, const ds_graph *graph)
{
    dsi_plan_env env = plan_env(m);
    dsi_pipe_slots slots = {.n = 1};
    if (n_stages(m) > 1) {
        const dsi_schedule schedule = dsi_rank_schedule(&m->spec);
        DS_TRY(dsi_pipe_slots_make(m->plan.ctx, &schedule, m->stage, &slots));
    }
    env.n_slots = slots.n;
    env.slot_events = slots.events;
    const ds_status status = lower(m, graph, env, true, &m->plan.train_plan);
    dsi_pipe_slots_free(&slots);
    return status;
}

/* Both plans of a choice, in place of those of the choice before. */
static ds_status lower_choice(maker *m, const ds_graph *graph, const dsi_memory_choice *choice,
                              uint32_t n_residencies, bool *fits_out)
{
    m->plan.choice = *choice;
    m->plan.n_kept = 0;
    m->spec = dsi_memory_obey(m->request->spec, choice);
    DS_TRY(start_again(m, n_residencies));
    DS_TRY(lower_train(m, graph));
    DS_TRY(build_eval_plan(m));
    if (n_stages(m) > 1) {
        const dsi_stage_cut how = stage_cut(m, "");
        dsi_stage_empty_cells(m->plan.local, &how, &m->plan.train_messages, &m->plan.eval_messages);
    }
    *fits_out = dsi_memory_fits(m->request->spec, choice, dsi_rank_mapped_bytes(&m->plan));
    return DS_OK;
}

/* A choice that decides like the one before, for this graph. */
static bool is_same(const maker *m, const dsi_memory_choice *next)
{
    return next->logits != m->plan.choice.logits && m->plan.n_kept == 0 &&
           next->recompute == m->plan.choice.recompute;
}

/* Whether what the graph makes is so much more than the room for kept logits that they will hardly
 * fit: then the plan without them is made first, and mostly shows it. */
static bool exceeds_room(const maker *m, const ds_graph *graph)
{
    enum { FAR = 8 };
    const dsi_engine_spec *spec = m->request->spec;
    const size_t shards =
        spec->zero.mesh.size[DSI_AXIS_TP] > 0 ? spec->zero.mesh.size[DSI_AXIS_TP] : 1;
    size_t bytes = 0;
    if (spec->room == 0 || spec->device_memory > 0) {
        return false;
    }
    for (ds_value v = 0; v < graph->n_values; ++v) {
        bytes += ds_meta_bytes(graph->values[v].meta) / shards;
    }
    return bytes / FAR > spec->room;
}

/* Stages send one another what one choice makes: the first that fits on the first stage, which has
 * most micro-batches in flight, and on the last, which has the logits; else the last choice. */
static ds_status lower_stages_to_fit(maker *m, const ds_graph *graph)
{
    dsi_memory_choice choices[DSI_MEMORY_CHOICES];
    const uint32_t n = dsi_memory_choices(m->request->spec, choices);
    const uint32_t n_residencies = m->plan.residencies.n;
    const uint32_t own = m->stage;
    const uint32_t ends[2] = {0, n_stages(m) - 1};
    bool fits = false;
    uint32_t i = 0;
    if (m->request->choice != NULL) {
        return lower_choice(m, graph, m->request->choice, n_residencies, &fits);
    }
    for (; i + 1 < n && !fits; ++i) {
        fits = true;
        for (uint32_t e = 0; e < 2 && fits; ++e) {
            m->stage = ends[e];
            DS_TRY(lower_choice(m, graph, &choices[i], n_residencies, &fits));
        }
    }
    m->stage = own;
    return lower_choice(m, graph, &choices[fits ? i - 1 : n - 1], n_residencies, &fits);
}

/* The first choice of the memory policy that fits. A search over configurations meets many that no
 * choice makes fit: then the first stays where cells alone are too many, else the last, which is
 * looked at behind the first. */
static ds_status lower_to_fit(maker *m, const ds_graph *graph)
{
    dsi_memory_choice choices[DSI_MEMORY_CHOICES];
    const uint32_t n = dsi_memory_choices(m->request->spec, choices);
    const uint32_t n_residencies = m->plan.residencies.n;
    bool fits = false;
    if (n == 2 && exceeds_room(m, graph)) {
        DS_TRY(lower_choice(m, graph, &choices[1], n_residencies, &fits));
        if (dsi_rank_mapped_bytes(&m->plan) / 2 > m->request->spec->room) {
            return DS_OK; /* kept logits need about as much or more, never half of it */
        }
    }
    DS_TRY(lower_choice(m, graph, &choices[0], n_residencies, &fits));
    if (fits || n == 1 ||
        !dsi_memory_fits(m->request->spec, &choices[n - 1], cell_bytes(&m->plan))) {
        return DS_OK;
    }
    if (n > 2) {
        const dsi_memory_choice first = m->plan.choice;
        const uint32_t n_kept = m->plan.n_kept;
        DS_TRY(lower_choice(m, graph, &choices[n - 1], n_residencies, &fits));
        if (!fits) {
            return DS_OK;
        }
        m->plan.choice = first;
        m->plan.n_kept = n_kept;
        fits = false;
    }
    for (uint32_t i = 1; i < n && !fits; ++i) {
        if (!is_same(m, &choices[i])) {
            DS_TRY(lower_choice(m, graph, &choices[i], n_residencies, &fits));
        }
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
static ds_status shard_layers(maker *m, const ds_graph *graph)
{
    if (m->spec.zero.mesh.size[DSI_AXIS_TP] <= 1 || m->spec.no_shards) {
        return DS_OK;
    }
    m->tensor = calloc(MAX_CELLS, sizeof *m->tensor); /* {0}: those that evaluation adds */
    if (m->tensor == NULL) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
    }
    ds_graph *parts = NULL;
    const ds_config_tensor *specs = m->spec.train.tensor;
    const char *type = ds_model_get_info(m->request->model)->architecture;
    uint8_t *allowed = NULL;
    ds_status status = DS_OK;
    const bool folded = token_ranks(m) > 1 && m->expert != NULL;
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
        status = dsi_packed_layers_check(parts->cells, m->tensor, (uint32_t)tensor_ranks(m));
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
static ds_status share_experts(maker *m, const ds_graph *graph)
{
    if (expert_ranks(m) <= 1) {
        return DS_OK;
    }
    m->expert = calloc(MAX_CELLS, sizeof *m->expert);
    return m->expert == NULL
               ? ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan")
               : dsi_expert_rules(graph, &m->spec.zero.mesh, m->spec.zero.folded, m->expert);
}

/* Ranks over which a gradient is reduced to slices. */
static int64_t slice_ranks(const maker *m)
{
    const dsi_axes axes = dsi_axes_zero(false);
    return dsi_axes_size(&m->spec.zero.mesh, &axes);
}

static ds_status build_plans(maker *m)
{
    ds_graph *graph = NULL;
    m->spec.train.head_ranks = head_ranks(m);
    m->spec.train.onebit.n_ranks = dsi_mesh_data_size(&m->spec.zero.mesh);
    m->spec.train.sequence_ranks = sequence_ranks(m);
    m->spec.train.loco.n_outer = m->spec.zero.mesh.size[DSI_AXIS_DPR];
    m->spec.train.loco.n_inner = slice_ranks(m);
    m->spec.train.stages = n_chunks(m);
    m->spec.train.expert_ranks = expert_ranks(m);
    m->spec.train.token_ranks = token_ranks(m);
    DS_TRY(dsi_train_graph(m->request->model, &m->spec.train, m->plan.cells, &graph, &m->plan.own));
    m->trained = graph;
    shift_phases(m);
    ds_status status = deal_cells(m, graph);
    status = status >= 0 ? find_residencies(m) : status;
    if (status >= 0) {
        status = share_experts(m, graph);
    }
    if (status >= 0) {
        status = shard_layers(m, graph);
    }
    if (status >= 0) {
        status = n_stages(m) > 1 ? lower_stages_to_fit(m, graph) : lower_to_fit(m, graph);
    }
    ds_graph_destroy(&graph);
    return status;
}

static ds_status place_cells(maker *m)
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
static ds_status check_stages(const maker *m)
{
    const dsi_train_spec *train = &m->spec.train;
    if (m->stage > 0 && m->stage >= n_stages(m)) {
        return ds_fail(m->plan.ctx, DS_ERR_ARG, "stage %u, but pipeline.stages is %u", m->stage,
                       n_stages(m));
    }
    if (n_stages(m) <= 1) {
        return DS_OK;
    }
    const dsi_schedule schedule = dsi_rank_schedule(&m->spec);
    DS_TRY(dsi_schedule_allowed(m->plan.ctx, &schedule));
    if (train->preference.loss != DS_PREFERENCE_NONE) {
        return ds_fail(m->plan.ctx, DS_ERR_CONFIG,
                       "pipeline.stages %u with the preference loss \"%s\" is not built; set it "
                       "to 1",
                       n_stages(m), ds_preference_loss_name(train->preference.loss));
    }
    if (train->n_gradient_outputs > 0) {
        return ds_fail(m->plan.ctx, DS_ERR_CONFIG,
                       "pipeline.stages %u does not go with gradient_outputs: outputs are on one "
                       "stage; set it to 1",
                       n_stages(m));
    }
    return DS_OK;
}

static ds_status build(maker *m)
{
    DS_TRY(check_stages(m));
    DS_TRY(dsi_sequence_check_length(m->plan.ctx, (uint32_t)sequence_ranks(m),
                                     m->spec.train.seq_length));
    if (has_chunks(m)) {
        const dsi_chunks chunks = dsi_rank_chunks(&m->spec);
        DS_TRY(dsi_chunks_check(m->plan.ctx, &chunks));
    }
    DS_TRY(ds_cells_create(m->plan.ctx, MAX_CELLS, &m->plan.cells));
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
    maker m = {
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
