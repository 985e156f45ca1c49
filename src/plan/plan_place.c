/* SPDX-License-Identifier: Apache-2.0 */
/* Where what a plan needs lies: offsets, outputs, ledger. See plan_lower.h. */
#include "plan/plan_lower.h"

#include "plan/plan_kinds.h"
#include <stdlib.h>

/* Offsets in the shared arena: the same strategy, apart from the other one. */
ds_status dsi_lower_place_shared(dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    dsi_memory_item *items = calloc(g->n_values + 1, sizeof *items);
    if (items == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    for (ds_value v = 0; v < g->n_values; ++v) {
        if (b->root[v] == v && b->shared[v]) {
            const bool swaps = b->swapped[v];
            const size_t bytes = ds_meta_bytes(g->values[v].meta);
            items[v] = (dsi_memory_item){.bytes = swaps ? dsi_swap_block_bytes(bytes) : bytes,
                                         .first = b->first[v],
                                         .last = b->last[v],
                                         .align = swaps ? DSI_SWAP_BLOCK : 0};
        }
    }
    const ds_status status =
        dsi_memory_assign(g->ctx, items, g->n_values, !b->env->no_reuse, &b->plan->shared_bytes);
    for (uint32_t i = 0; i < b->plan->n_refs && status >= 0; ++i) {
        dsi_ref *ref = &b->plan->refs[i];
        if (ref->space == DSI_SPACE_SHARED) {
            ref->offset = items[b->root[ref->value]].offset;
        }
    }
    for (uint32_t i = 0; i < b->plan->n_outputs && status >= 0; ++i) {
        dsi_ref *ref = &b->plan->outputs[i].ref;
        if (ref->space == DSI_SPACE_SHARED) {
            ref->offset = items[b->root[ref->value]].offset;
        }
    }
    free(items);
    return status;
}

/* Whether item i is of the phase on the side stream. */
static bool is_side(const dsi_lowering *b, uint32_t i, uint32_t chunk)
{
    (void)chunk;
    const uint32_t *begin = b->plan->phase_begin + b->plan->side;
    const dsi_memory_item *item = &b->items[i];
    return i < b->graph->n_values + b->n_steps && item->bytes > 0 && item->first >= begin[0] &&
           item->last < begin[1];
}

/* Items that get a range of the arena to themselves, behind all others. */
typedef struct apart {
    bool (*holds)(const dsi_lowering *b, uint32_t item, uint32_t chunk);
    uint32_t chunk;
    dsi_range *range;       /* out */
    dsi_memory_item *items; /* n, 0 bytes where not of it */
} apart;

static ds_status take_apart(dsi_lowering *b, apart *a, uint32_t n)
{
    a->items = calloc((size_t)n + 1, sizeof *a->items);
    if (a->items == NULL) {
        return ds_fail(b->plan->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    for (uint32_t i = 0; i < n; ++i) {
        if (a->holds(b, i, a->chunk)) {
            a->items[i] = b->items[i];
            a->items[i].last = dsi_lower_slot_end(b, i);
            b->items[i].bytes = 0;
        }
    }
    return DS_OK;
}

static ds_status assign_apart(const dsi_lowering *b, apart *a, uint32_t n)
{
    return dsi_memory_assign(b->plan->ctx, a->items, n, !b->env->no_reuse, &a->range->bytes);
}

/* What was assigned apart, where its range lies now. */
static void put_back(dsi_lowering *b, const apart *a, uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i) {
        if (a->items[i].bytes > 0) {
            b->items[i] = a->items[i];
            b->items[i].offset += a->range->offset;
        }
    }
}

/* The slots of all chunks, behind everything else. */
static ds_status assign_pool(dsi_lowering *b, uint32_t n_chunks)
{
    dsi_plan *plan = b->plan;
    const uint32_t k = plan->n_slots;
    const dsi_slot_events *events = &b->env->slot_events;
    size_t bytes[DSI_PLAN_CHUNKS];
    size_t *at = dsi_arena_array(plan->arena, (size_t)n_chunks * k, sizeof *at);
    dsi_slot_event *kept = dsi_arena_array(plan->arena, (size_t)events->n + 1, sizeof *kept);
    if (at == NULL || kept == NULL) {
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    for (uint32_t i = 0; i < events->n; ++i) {
        kept[i] = events->items[i];
    }
    plan->slot_events = (dsi_slot_events){events->items != NULL ? kept : NULL, events->n};
    for (uint32_t c = 0; c < n_chunks; ++c) {
        bytes[c] = dsi_swap_block_bytes(plan->slot[c].range.bytes);
    }
    DS_TRY(dsi_slot_pool(plan->ctx, events, n_chunks, k, bytes, at, &plan->pool.bytes));
    plan->pool.offset = dsi_swap_block_bytes(plan->arena_bytes);
    plan->arena_bytes = plan->pool.offset + plan->pool.bytes;
    for (uint32_t i = 0; i < n_chunks * k; ++i) {
        at[i] += plan->pool.offset;
    }
    for (uint32_t c = 0; c < n_chunks; ++c) {
        plan->slot[c] =
            (dsi_plan_slot){.range = {at[(size_t)c * k], bytes[c]}, .at = at + (size_t)c * k};
    }
    return DS_OK;
}

static ds_status assign_arena(dsi_lowering *b, uint32_t n)
{
    dsi_plan *plan = b->plan;
    const uint32_t n_chunks = plan->n_slots > 1 ? dsi_phases_forward(&plan->phases) : 0;
    apart ranges[1 + DSI_PLAN_CHUNKS] = {{.holds = is_side, .range = &plan->side_range}};
    ds_status status = plan->side != DS_NONE ? take_apart(b, &ranges[0], n) : DS_OK;
    for (uint32_t c = 0; c < n_chunks && status >= 0; ++c) {
        ranges[1 + c] =
            (apart){.holds = dsi_lower_is_of_slot, .chunk = c, .range = &plan->slot[c].range};
        status = take_apart(b, &ranges[1 + c], n);
    }
    status = status < 0
                 ? status
                 : dsi_memory_assign(plan->ctx, b->items, n, !b->env->no_reuse, &plan->arena_bytes);
    for (uint32_t k = 0; k < 1 + n_chunks && status >= 0; ++k) {
        status = ranges[k].items != NULL ? assign_apart(b, &ranges[k], n) : DS_OK;
    }
    if (status >= 0 && plan->side != DS_NONE) {
        plan->side_range.offset = dsi_swap_block_bytes(plan->arena_bytes);
        plan->arena_bytes = plan->side_range.offset + plan->side_range.bytes;
    }
    status = status >= 0 && n_chunks > 0 ? assign_pool(b, n_chunks) : status;
    for (uint32_t k = 0; k < 1 + n_chunks; ++k) {
        if (status >= 0 && ranges[k].items != NULL) {
            put_back(b, &ranges[k], n);
        }
        free(ranges[k].items);
    }
    return status;
}

ds_status dsi_lower_place_memory(dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    dsi_plan *plan = b->plan;
    for (ds_value v = 0; v < g->n_values; ++v) {
        if (b->root[v] == v && g->values[v].cell == DS_NONE && b->placed[v] == DS_NONE &&
            b->first[v] != UINT32_MAX && !b->shared[v]) {
            const bool swaps = b->swapped[v];
            const size_t bytes = ds_meta_bytes(g->values[v].meta);
            b->items[v] = (dsi_memory_item){.bytes = swaps ? dsi_swap_block_bytes(bytes) : bytes,
                                            .first = b->first[v],
                                            .last = b->last[v],
                                            .align = swaps ? DSI_SWAP_BLOCK : 0};
        }
    }
    const uint32_t n_own = g->n_values + b->n_steps;
    for (uint32_t i = 0; i < b->env->n_reserved; ++i) {
        b->items[n_own + i] = (dsi_memory_item){.bytes = b->env->reserved[i].bytes,
                                                .last = UINT32_MAX,
                                                .offset = b->env->reserved[i].offset,
                                                .fixed = true};
    }
    DS_TRY(assign_arena(b, n_own + b->env->n_reserved));
    for (uint32_t i = 0; i < plan->n_refs; ++i) {
        dsi_ref *ref = &plan->refs[i];
        if (ref->space == DSI_SPACE_ARENA) {
            ref->offset = b->items[b->root[ref->value]].offset;
        }
    }
    for (uint32_t s = 0; s < b->n_steps; ++s) {
        plan->steps[s].work_offset = b->items[g->n_values + s].offset;
    }
    return DS_OK;
}

/* What a deferred writeback moves is in use at both ends of the plan. */
static ds_status enter_value(dsi_ledger *ledger, dsi_ledger_entry entry)
{
    const uint32_t last = entry.last;
    if (last < entry.first) {
        entry.last = ledger->n_steps - 1;
        DS_TRY(dsi_ledger_add(ledger, &entry));
        entry.first = 0;
        entry.last = last;
    }
    return dsi_ledger_add(ledger, &entry);
}

static ds_status enter_values(const dsi_lowering *b, uint8_t *kinds)
{
    const ds_graph *g = b->graph;
    dsi_plan_kinds(g, kinds);
    for (ds_value v = 0; v < g->n_values; ++v) {
        if (b->root[v] != v || g->values[v].cell != DS_NONE || b->placed[v] != DS_NONE ||
            b->first[v] == UINT32_MAX) {
            continue;
        }
        const dsi_step *step = &b->plan->steps[b->first[v]];
        const dsi_memory_kind kind = (dsi_memory_kind)kinds[v];
        const dsi_ledger_entry entry = {
            .kind = b->shared[v] && kind != DSI_MEMORY_GATHERED ? DSI_MEMORY_COMM : kind,
            .first = b->first[v],
            .last = b->last[v],
            .bytes = ds_meta_bytes(g->values[v].meta),
            .name = step->scope,
            .what = step->op->name};
        DS_TRY(enter_value(b->plan->ledger, entry));
    }
    return DS_OK;
}

/* The ledger of both arenas: values, and the scratch of steps. */
ds_status dsi_lower_fill_ledger(dsi_lowering *b)
{
    dsi_plan *plan = b->plan;
    DS_TRY(dsi_ledger_create(plan->ctx, plan->n_steps, &plan->ledger));
    uint8_t *kinds = malloc((size_t)b->graph->n_values + 1);
    if (kinds == NULL) {
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory for the ledger of a plan");
    }
    ds_status status = enter_values(b, kinds);
    free(kinds);
    for (uint32_t s = 0; s < plan->n_steps && status >= 0; ++s) {
        const dsi_ledger_entry entry = {.kind = DSI_MEMORY_WORKSPACE,
                                        .first = s,
                                        .last = s,
                                        .bytes = plan->steps[s].work_bytes,
                                        .name = plan->steps[s].scope,
                                        .what = plan->steps[s].op->name};
        status = dsi_ledger_add(plan->ledger, &entry);
    }
    return status;
}

ds_status dsi_lower_name_outputs(dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    dsi_plan *plan = b->plan;
    plan->n_outputs = g->n_outputs;
    plan->outputs = dsi_arena_array(plan->arena, g->n_outputs, sizeof *plan->outputs);
    if (plan->outputs == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        const ds_value v = g->outputs[i].value;
        const ds_node producer = g->values[b->root[v]].producer;
        dsi_plan_output *output = &plan->outputs[i];
        output->name = dsi_arena_strdup(plan->arena, g->outputs[i].name);
        output->ref = dsi_lower_make_ref(b, v);
        output->phase = producer == DS_NONE ? DS_PHASE_FORWARD : g->nodes[producer].phase;
        if (output->ref.space == DSI_SPACE_ARENA) {
            output->ref.offset = b->items[b->root[v]].offset;
        }
        if (output->name == NULL) {
            return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for the plan");
        }
    }
    return DS_OK;
}
