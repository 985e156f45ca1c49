/* SPDX-License-Identifier: Apache-2.0 */
/* From model and configuration to what a rank runs. See rank_plan.h. */
#include "train/rank_plan.h"

#include "accel/cpu/registry.h"
#include "pass/early.h"
#include "pass/fuse.h"
#include "pass/keep.h"
#include "pass/memory.h"
#include "pass/remat.h"

#include <stdlib.h>

enum { MAX_CELLS = 1 << 20, MAX_SLOT_RANGES = 4096 };

typedef struct maker {
    const dsi_rank_request *request;
    const dsi_engine_spec *spec;
    dsi_rank_plan plan;
    bool keep; /* logits, where policy.h says so */
    bool kept; /* there are such */
} maker;

static dsi_plan_env plan_env(const maker *m)
{
    return (dsi_plan_env){.n_threads = m->request->n_threads,
                          .isa = m->spec->isa,
                          .choose = m->request->choose != NULL ? m->request->choose
                                                               : dsi_cpu_kernel_choose,
                          .overlap = m->spec->overlap && m->spec->zero.mesh.n_ranks > 1,
                          .prefetch = m->spec->prefetch,
                          .homes = m->plan.homes.items,
                          .n_homes = m->plan.homes.n,
                          .read_ahead = m->spec->offload.read_ahead,
                          .update_ahead = m->spec->offload.update_ahead,
                          .write_behind = m->spec->offload.write_behind,
                          .carry = m->spec->offload.carry,
                          .write_first = m->spec->offload.write_first,
                          .rest_beside = m->spec->train.zenflow.overlap,
                          .no_reuse = m->spec->no_reuse,
                          .no_fuse = m->spec->no_fuse};
}

/* Bytes of states that the forward phase may bring: nothing is on its way home then, so the room
 * for that is theirs too. */
static size_t forward_ahead(const dsi_offload_spec *offload)
{
    const size_t own = offload->update_ahead;
    const size_t behind = own > 0 && offload->carry ? offload->write_behind : 0;
    return behind < SIZE_MAX - own ? own + behind : SIZE_MAX;
}

static ds_status trace(const maker *m, ds_trace_mode mode, ds_graph **graph_out)
{
    const dsi_train_spec *train = &m->spec->train;
    const ds_trace how = {.mode = mode,
                          .dtype = train->dtype,
                          .batch = train->batch,
                          .seq_length = train->seq_length,
                          .mlp_rows = train->mlp_rows};
    return dsi_forward_graph(m->request->model, &how, train->loss, train->loss_user, m->plan.cells,
                             graph_out);
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

/* Tags what is recomputed and obeys the tags. */
static ds_status recompute(const maker *m, const ds_graph *graph, ds_graph **out)
{
    dsi_recompute how = m->spec->recompute;
    bool *drop = calloc((size_t)graph->n_values + 1, sizeof *drop);
    if (drop == NULL) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for the training graph");
    }
    how.mode = m->plan.recompute;
    ds_status status = dsi_policy_recompute(graph, &how, drop);
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
    m->kept = dsi_policy_keep(graph, tags) > 0;
    const ds_status status = dsi_keep(graph, tags, out);
    free(tags);
    return status;
}

/* From a logical graph to this rank's plan: fuse, recompute or keep, cut over the ranks, sort for
 * early updates, offload, lower. */
static ds_status lower(maker *m, const ds_graph *graph, dsi_plan_env env, bool backward,
                       dsi_plan **plan_out)
{
    enum { FUSED, REMAT, KEPT, LOCAL, EARLY, OFFLOADED, COUNT };
    ds_graph *made[COUNT] = {NULL};
    ds_status status = DS_OK;
    if (!env.no_fuse) {
        DS_TRY_GOTO(status, dsi_fuse(graph, &made[FUSED]), done);
        graph = made[FUSED];
    }
    if (backward && m->plan.recompute != DS_RECOMPUTE_NONE) {
        DS_TRY_GOTO(status, recompute(m, graph, &made[REMAT]), done);
        graph = made[REMAT];
    }
    if (backward && m->keep) {
        DS_TRY_GOTO(status, keep(m, graph, &made[KEPT]), done);
        graph = made[KEPT];
    }
    if (m->spec->zero.mesh.n_ranks > 1) {
        DS_TRY_GOTO(status, dsi_zero_lower(graph, &m->spec->zero, m->plan.local, &made[LOCAL]),
                    done);
        graph = made[LOCAL];
    }
    if (backward && dsi_train_is_early(&m->spec->train)) {
        DS_TRY_GOTO(status, dsi_early(graph, &made[EARLY]), done);
        graph = made[EARLY];
    }
    if (dsi_offload_is_on(&m->spec->offload)) {
        dsi_offload how = m->spec->offload.how;
        how.forward_ahead = forward_ahead(&m->spec->offload);
        DS_TRY_GOTO(status,
                    dsi_offload_graph(graph, &how, m->plan.local, &m->plan.homes, &made[OFFLOADED]),
                    done);
        graph = made[OFFLOADED];
        env.homes = m->plan.homes.items;
        env.n_homes = m->plan.homes.n;
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

size_t dsi_rank_mapped_bytes(const dsi_rank_plan *plan)
{
    const dsi_plan *train = plan->train_plan;
    const dsi_plan *eval = plan->eval_plan;
    size_t bytes = 0; /* as the executor does */
    bool swaps = false;
    for (ds_cell c = 0; c < ds_cells_count(plan->local); ++c) {
        const dsi_home home = dsi_homes_of(&plan->homes, c);
        swaps = swaps || home.residence != DSI_ON_DEVICE;
        if (home.residence == DSI_ON_DEVICE && home.parent == DS_NONE) {
            bytes += aligned(ds_meta_bytes(ds_cells_get(plan->local, c)->meta));
        }
    }
    bytes = DSI_MEMORY_ALIGN + (swaps ? dsi_home_bytes(bytes) : bytes);
    bytes +=
        aligned(train->arena_bytes > eval->arena_bytes ? train->arena_bytes : eval->arena_bytes);
    return bytes + aligned(train->shared_bytes) + aligned(eval->shared_bytes);
}

/* Homes of all logical cells. Those of evaluation are declared for it, since parts of cells come
 * behind them. */
static ds_status find_homes(maker *m)
{
    ds_graph *graph = NULL;
    if (!dsi_offload_is_on(&m->spec->offload)) {
        return DS_OK;
    }
    DS_TRY(trace(m, DS_TRACE_EVAL, &graph));
    ds_graph_destroy(&graph);
    if (dsi_offload_rules(&m->spec->offload, m->plan.cells, &m->plan.homes) < 0) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
    }
    dsi_offload_idle(&m->spec->offload, m->plan.cells, &m->plan.homes, m->plan.idle);
    return DS_OK;
}

/* The evaluation plan keeps off what a forward pass left for its backward pass, and that for the
 * norm; and off the memory of what runs beside other phases. */
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
    for (ds_phase phase = DS_PHASE_FORWARD; phase <= DS_PHASE_BACKWARD; ++phase) {
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
    env.rest_beside = false;
    if (m->plan.train_plan->beside.bytes > 0) {
        slot[n_slot++] = m->plan.train_plan->beside;
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

/* The tables as they were before a plan was made: of the rank's own cells, and of homes. */
static ds_status start_again(maker *m, uint32_t n_homes)
{
    dsi_plan_destroy(&m->plan.train_plan);
    dsi_plan_destroy(&m->plan.eval_plan);
    m->plan.homes.n = n_homes;
    if (m->plan.local == m->plan.cells) {
        return DS_OK;
    }
    ds_cells_destroy(&m->plan.local);
    return ds_cells_create(m->plan.ctx, MAX_CELLS, &m->plan.local);
}

/* Both plans. Of what the configuration allows, those of the first choice that fits: recomputation
 * costs time, so little of it is tried first. */
static ds_status lower_to_fit(maker *m, const ds_graph *graph)
{
    static const struct {
        ds_recompute mode;
        bool keep;
    } tries[] = {{DS_RECOMPUTE_NONE, true},
                 {DS_RECOMPUTE_NONE, false},
                 {DS_RECOMPUTE_SELECTIVE, false},
                 {DS_RECOMPUTE_FULL, false}};
    const ds_recompute asked = m->spec->recompute.mode;
    const uint32_t n_homes = m->plan.homes.n;
    bool fits = false;
    for (size_t i = 0; i < sizeof tries / sizeof tries[0] && !fits; ++i) {
        const bool same = i == 1 && !m->kept; /* as the one before */
        if (same || (asked != DS_RECOMPUTE_AUTO && asked != tries[i].mode)) {
            continue;
        }
        m->plan.recompute = tries[i].mode;
        m->keep = tries[i].keep;
        DS_TRY(start_again(m, n_homes));
        DS_TRY(lower(m, graph, plan_env(m), true, &m->plan.train_plan));
        DS_TRY(build_eval_plan(m));
        fits = m->spec->device_memory == 0 ||
               dsi_rank_mapped_bytes(&m->plan) <= m->spec->device_memory;
    }
    return DS_OK;
}

static ds_status build_plans(maker *m)
{
    ds_graph *graph = NULL;
    DS_TRY(
        dsi_train_graph(m->request->model, &m->spec->train, m->plan.cells, &graph, &m->plan.own));
    ds_status status = find_homes(m);
    if (status >= 0) {
        status = lower_to_fit(m, graph);
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
    dsi_zero_rules(&m->spec->zero, m->plan.cells, m->plan.places);
    return DS_OK;
}

static ds_status build(maker *m)
{
    DS_TRY(ds_cells_create(m->plan.ctx, MAX_CELLS, &m->plan.cells));
    m->plan.local = m->plan.cells;
    if (m->spec->zero.mesh.n_ranks > 1 || dsi_offload_is_on(&m->spec->offload)) {
        m->plan.local = NULL; /* made with each try */
    }
    DS_TRY(freeze(m));
    DS_TRY(build_plans(m));
    return place_cells(m);
}

ds_status dsi_rank_plan_build(ds_ctx *ctx, const dsi_rank_request *request, dsi_rank_plan *plan_out)
{
    maker m = {.request = request, .spec = request->spec, .plan = {.ctx = ctx}};
    const ds_status status = build(&m);
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
    free(plan->homes.items);
    *plan = (dsi_rank_plan){.ctx = plan->ctx};
}
