/* SPDX-License-Identifier: Apache-2.0 */
/* From graph to plan: order, slots, and the stages of plan_lower.h. See plan.h. */
#include "pass/fuse.h"
#include "pass/order.h"
#include "plan/plan_lower.h"

#include <stdlib.h>

enum { PLAN_CEILING = 1 << 30 };

static void *zeroed(dsi_lowering *b, size_t n, size_t size)
{
    return dsi_arena_array(b->plan->arena, n, size);
}

/* The order as slots; without overlap a collective starts and ends in one place. */
static ds_status make_slots(dsi_lowering *b)
{
    const dsi_overlap_limits limits = {.comm = b->env->overlap,
                                       .prefetch = b->env->prefetch,
                                       .read_ahead = b->env->read_ahead,
                                       .update_ahead = b->env->update_ahead,
                                       .write_behind = b->env->write_behind,
                                       .defer = b->env->defer,
                                       .write_first = b->env->write_first};
    return dsi_overlap(b->graph, b->order, b->n_order, b->same, &limits, b->slots, &b->n_slots);
}

const dsi_node_info *dsi_lower_node_of(const dsi_lowering *b, uint32_t slot)
{
    return &b->graph->nodes[b->slots[slot].node];
}

/* Neighbours of one bucket are one step; but two that started apart are waited for apart. */
static void number_steps(dsi_lowering *b)
{
    for (uint32_t s = 0; s < b->n_slots; ++s) {
        const int64_t bucket = dsi_order_bucket(dsi_lower_node_of(b, s));
        const bool joins = s > 0 && bucket >= 0 && b->slots[s].kind == b->slots[s - 1].kind &&
                           b->slots[s].group == b->slots[s - 1].group &&
                           bucket == dsi_order_bucket(dsi_lower_node_of(b, s - 1));
        b->n_steps += joins ? 0 : 1;
        b->step_of[s] = b->n_steps - 1;
    }
}

static ds_status allocate(dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    const size_t n_items = (size_t)g->n_values + 2 * (size_t)g->n_nodes + b->env->n_reserved + 1;
    b->order = zeroed(b, g->n_nodes + 1, sizeof *b->order);
    b->slots = zeroed(b, 2 * (size_t)g->n_nodes + 1, sizeof *b->slots);
    b->step_of = zeroed(b, 2 * (size_t)g->n_nodes + 1, sizeof *b->step_of);
    b->shared = zeroed(b, g->n_values + 1, sizeof *b->shared);
    b->swapped = zeroed(b, g->n_values + 1, sizeof *b->swapped);
    b->plan->cell_swapped =
        zeroed(b, (size_t)ds_cells_count(g->cells) + 1, sizeof *b->plan->cell_swapped);
    b->plan->cell_on_host =
        zeroed(b, (size_t)ds_cells_count(g->cells) + 1, sizeof *b->plan->cell_on_host);
    b->plan->n_cells = ds_cells_count(g->cells);
    b->plan->cell_parent = zeroed(b, (size_t)b->plan->n_cells + 1, sizeof *b->plan->cell_parent);
    b->plan->cell_offset = zeroed(b, (size_t)b->plan->n_cells + 1, sizeof *b->plan->cell_offset);
    b->plan->cell_shared = zeroed(b, b->plan->n_cells + 1, sizeof *b->plan->cell_shared);
    b->root = zeroed(b, g->n_values + 1, sizeof *b->root);
    b->first = zeroed(b, g->n_values + 1, sizeof *b->first);
    b->last = zeroed(b, g->n_values + 1, sizeof *b->last);
    b->kept = zeroed(b, g->n_values + 1, sizeof *b->kept);
    b->uses = zeroed(b, g->n_values + 1, sizeof *b->uses);
    b->placed = zeroed(b, g->n_values + 1, sizeof *b->placed);
    b->same = zeroed(b, g->n_values + 1, sizeof *b->same);
    b->items = zeroed(b, n_items, sizeof *b->items);
    b->plan->steps = zeroed(b, 2 * (size_t)g->n_nodes + 1, sizeof *b->plan->steps);
    b->plan->refs = zeroed(b, (size_t)g->n_operands + 1, sizeof *b->plan->refs);
    b->plan->metas = zeroed(b, (size_t)g->n_operands + 1, sizeof *b->plan->metas);
    if (b->order == NULL || b->root == NULL || b->first == NULL || b->last == NULL ||
        b->kept == NULL || b->uses == NULL || b->placed == NULL || b->same == NULL ||
        b->items == NULL || b->slots == NULL || b->step_of == NULL || b->shared == NULL ||
        b->swapped == NULL || b->plan->cell_swapped == NULL || b->plan->cell_on_host == NULL ||
        b->plan->cell_shared == NULL || b->plan->cell_parent == NULL ||
        b->plan->cell_offset == NULL || b->plan->steps == NULL || b->plan->refs == NULL ||
        b->plan->metas == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    return DS_OK;
}

static void bound_phases(dsi_lowering *b)
{
    uint32_t at = 0;
    for (int phase = 0; phase < DS_MAX_PHASES; ++phase) {
        b->plan->phase_begin[phase] = at < b->n_slots ? b->step_of[at] : b->n_steps;
        while (at < b->n_slots && b->slots[at].phase == (ds_phase)phase) {
            ++at;
        }
    }
    b->plan->phase_begin[DS_MAX_PHASES] = b->n_steps;
}

static ds_status lower(dsi_lowering *b)
{
    DS_TRY(allocate(b));
    DS_TRY(dsi_phases_copy(b->graph->ctx, b->plan->arena, &b->graph->phases, &b->plan->phases));
    b->plan->side = dsi_phases_side(&b->plan->phases);
    DS_TRY(dsi_order(b->graph, b->order, &b->n_order));
    dsi_lower_count_uses(b);
    dsi_lower_elide_stores(b);
    DS_TRY(make_slots(b));
    number_steps(b);
    b->plan->n_steps = b->n_steps;
    bound_phases(b);
    dsi_lower_find_lifetimes(b);
    dsi_lower_keep_outputs(b);
    dsi_lower_mark_shared(b);
    dsi_lower_share_in_place(b);
    dsi_lower_mark_swapped(b);
    DS_TRY(dsi_lower_make_steps(b));
    DS_TRY(dsi_lower_check_slots(b));
    DS_TRY(dsi_lower_place_memory(b));
    DS_TRY(dsi_lower_name_outputs(b));
    DS_TRY(dsi_lower_place_shared(b));
    DS_TRY(dsi_lower_place_events(b));
    DS_TRY(dsi_lower_fill_ledger(b));
    return dsi_plan_check(b->plan);
}

ds_status dsi_plan_build(const ds_graph *graph, const dsi_plan_env *env, dsi_plan **plan_out)
{
    ds_graph *fused = NULL;
    dsi_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL || dsi_arena_create(PLAN_CEILING, &plan->arena) < 0) {
        free(plan);
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    plan->ctx = graph->ctx;
    plan->cells = graph->cells;
    plan->n_threads = env->n_threads;
    plan->isa = env->isa;
    plan->n_slots = env->n_slots > 1 ? env->n_slots : 1;
    dsi_lowering b = {.graph = graph, .env = env, .plan = plan};
    ds_status status = DS_OK;
    if (!env->no_fuse) {
        status = dsi_fuse(graph, &fused);
        b.graph = fused;
    }
    if (status >= 0) {
        status = lower(&b);
    }
    ds_graph_destroy(&fused);
    if (status < 0) {
        dsi_plan_destroy(&plan);
        return status;
    }
    *plan_out = plan;
    return DS_OK;
}

void dsi_plan_destroy(dsi_plan **plan)
{
    if (plan != NULL && *plan != NULL) {
        dsi_ledger_destroy(&(*plan)->ledger);
        dsi_arena_destroy(&(*plan)->arena);
        free(*plan);
        *plan = NULL;
    }
}
