/* SPDX-License-Identifier: Apache-2.0 */
/* Both plans of a rank by the first choice of the memory policy that fits. See rank_maker.h. */
#include "compile/rank_maker.h"

#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "pass/memory.h"
#include "pipe/pipe_slots.h"

#include <stdlib.h>

enum { MAX_SLOT_RANGES = 4096 };

static dsi_plan_env plan_env(const dsi_rank_maker *m)
{
    return (dsi_plan_env){.n_threads = m->request->n_threads,
                          .isa = m->spec.isa,
                          .choose = dsi_accel_chosen(&m->spec.accel)->kernels->choose,
                          .choose_host = dsi_cpu_kernel_choose,
                          .host_isa = dsi_cpu_isa(),
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

/* The evaluation plan keeps off what a forward pass left for its backward pass, and that for the
 * norm; and off the memory of what runs concurrently with other phases. */
static ds_status build_eval_plan(dsi_rank_maker *m)
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
    DS_TRY_GOTO(status, dsi_rank_trace(m, DS_TRACE_EVAL, &graph), done);
    status = dsi_rank_lower(m, graph, env, false, &m->plan.eval_plan);
done:
    ds_graph_destroy(&graph);
    free(slot);
    return status;
}

/* A stage has no storage for what it lacks. Weights that two stages have are received where they
 * are, in memory. */
static void deal_residencies(dsi_rank_maker *m, uint32_t n_residencies)
{
    for (ds_cell c = 0; c < n_residencies && m->residencies != NULL; ++c) {
        const dsi_stage_of of = m->stages[c];
        const bool copied =
            ds_cells_get(m->plan.cells, c)->kind == DS_CELL_PARAM && of.first != of.last;
        m->plan.residencies.items[c] =
            copied || !dsi_stage_has(of, m->stage)
                ? (dsi_cell_residency){.where = DSI_RESIDENCY_DEVICE, .parent = DS_NONE}
                : m->residencies[c];
    }
}

/* The tables as they were before a plan was made: of the rank's own cells, and of residencies. */
static ds_status start_again(dsi_rank_maker *m, uint32_t n_residencies)
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
    return ds_cells_create(m->plan.ctx, DSI_RANK_MAX_CELLS, &m->plan.local);
}

/* Of a stage, with what it leaves for later phases of the micro-batches in flight. */
static ds_status lower_train(dsi_rank_maker *m, const ds_graph *graph)
{
    dsi_plan_env env = plan_env(m);
    dsi_pipe_slots slots = {.n = 1};
    if (dsi_rank_n_stages(m) > 1) {
        const dsi_schedule schedule = dsi_rank_schedule(&m->spec);
        DS_TRY(dsi_pipe_slots_make(m->plan.ctx, &schedule, m->stage, &slots));
    }
    env.n_slots = slots.n;
    env.slot_events = slots.events;
    const ds_status status = dsi_rank_lower(m, graph, env, true, &m->plan.train_plan);
    dsi_pipe_slots_free(&slots);
    return status;
}

/* Both plans of a choice, in place of those of the choice before. */
static ds_status lower_choice(dsi_rank_maker *m, const ds_graph *graph,
                              const dsi_memory_choice *choice, uint32_t n_residencies,
                              bool *fits_out)
{
    m->plan.choice = *choice;
    m->plan.n_kept = 0;
    m->spec = dsi_memory_obey(m->request->spec, choice);
    DS_TRY(start_again(m, n_residencies));
    DS_TRY(lower_train(m, graph));
    DS_TRY(build_eval_plan(m));
    if (dsi_rank_n_stages(m) > 1) {
        const dsi_stage_cut how = dsi_rank_stage_cut(m, "");
        dsi_stage_empty_cells(m->plan.local, &how, &m->plan.train_messages, &m->plan.eval_messages);
    }
    *fits_out = dsi_memory_fits(m->request->spec, choice, dsi_rank_mapped_bytes(&m->plan));
    return DS_OK;
}

/* A choice that decides like the one before, for this graph. */
static bool is_same(const dsi_rank_maker *m, const dsi_memory_choice *next)
{
    return next->logits != m->plan.choice.logits && m->plan.n_kept == 0 &&
           next->recompute == m->plan.choice.recompute;
}

/* Whether what the graph makes is so much more than the room for kept logits that they will hardly
 * fit: then the plan without them is made first, and mostly shows it. */
static bool exceeds_room(const dsi_rank_maker *m, const ds_graph *graph)
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
static ds_status lower_stages_to_fit(dsi_rank_maker *m, const ds_graph *graph)
{
    dsi_memory_choice choices[DSI_MEMORY_CHOICES];
    const uint32_t n = dsi_memory_choices(m->request->spec, choices);
    const uint32_t n_residencies = m->plan.residencies.n;
    const uint32_t own = m->stage;
    const uint32_t ends[2] = {0, dsi_rank_n_stages(m) - 1};
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
static ds_status lower_one_to_fit(dsi_rank_maker *m, const ds_graph *graph)
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

ds_status dsi_rank_lower_to_fit(dsi_rank_maker *m, const ds_graph *graph)
{
    return dsi_rank_n_stages(m) > 1 ? lower_stages_to_fit(m, graph) : lower_one_to_fit(m, graph);
}
