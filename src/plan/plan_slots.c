/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: what a phase of a micro-batch leaves for a later one, so many times as micro-batches may
 * be in flight. It gets a range of the arena to itself, copies of which follow; whoever runs the
 * plan shifts what lies in the range (plan.h, invariant 13). One slot needs no range: there the
 * values share the arena with all others. Called by plan_place.c. */
#include "plan/plan_lower.h"

static ds_phase phase_at(const dsi_lowering *b, uint32_t s)
{
    ds_phase phase = 0;
    while (phase + 1 < b->plan->phases.n && s >= b->plan->phase_begin[phase + 1]) {
        ++phase;
    }
    return phase;
}

/* Whether a micro-batch's phase makes it, and step s is not of that phase. What the last of them
 * makes is for phases behind them. */
bool dsi_lower_leaves_phase(const dsi_lowering *b, ds_value v, uint32_t s)
{
    const ds_phase phase = phase_at(b, b->first[v]);
    return phase + 1 < dsi_phases_micro(&b->plan->phases) &&
           (s < b->plan->phase_begin[phase] || s >= b->plan->phase_begin[phase + 1]);
}

static bool crosses(const dsi_lowering *b, ds_value v)
{
    return dsi_lower_leaves_phase(b, v, b->last[v]) ||
           (b->last[v] < b->first[v] && dsi_lower_leaves_phase(b, v, b->plan->n_steps));
}

/* Of what one chunk's phases make and read last, that chunk; of the rest, the first: its phases are
 * the first and the last of a micro-batch. */
static uint32_t chunk_of(const dsi_lowering *b, ds_value v)
{
    const dsi_phases *phases = &b->plan->phases;
    const uint32_t made = dsi_phases_chunk(phases, phase_at(b, b->first[v]));
    const ds_phase last = phase_at(b, b->last[v]);
    return dsi_phase_is_micro(phases, last) && dsi_phases_chunk(phases, last) == made ? made : 0;
}

bool dsi_lower_is_of_slot(const dsi_lowering *b, uint32_t item, uint32_t chunk)
{
    return b->env->n_slots > 1 && item < b->graph->n_values && b->items[item].bytes > 0 &&
           crosses(b, item) && chunk_of(b, item) == chunk;
}

/* What another chunk's weights' half reads last: backward phases that follow it in the plan may run
 * before it, so that nothing of theirs may take its place. */
uint32_t dsi_lower_slot_end(const dsi_lowering *b, uint32_t item)
{
    const dsi_phases *phases = &b->plan->phases;
    const uint32_t last = b->items[item].last;
    if (b->env->n_slots < 2 || item >= b->graph->n_values || !crosses(b, item)) {
        return last;
    }
    const ds_phase read = phase_at(b, b->last[item]);
    const bool other =
        dsi_phase_is_weights(phases, read) &&
        dsi_phases_chunk(phases, read) != dsi_phases_chunk(phases, phase_at(b, b->first[item]));
    return other ? b->plan->phase_begin[dsi_phases_micro(phases)] - 1 : last;
}

ds_status dsi_lower_check_slots(const dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    for (ds_value v = 0; v < g->n_values && b->env->n_slots > 1; ++v) {
        if (b->root[v] != v || g->values[v].cell != DS_NONE || b->placed[v] != DS_NONE ||
            b->first[v] == UINT32_MAX || !crosses(b, v)) {
            continue;
        }
        const dsi_step *step = &b->plan->steps[b->first[v]];
        const bool later = b->last[v] >= b->plan->phase_begin[dsi_phases_micro(&b->plan->phases)];
        const char *why = b->shared[v]    ? "is communicated"
                          : b->swapped[v] ? "is offloaded"
                          : later         ? "is needed behind the backward phase"
                                          : NULL;
        if (why != NULL) {
            return ds_fail(g->ctx, DS_ERR_UNSUPPORTED,
                           "%u micro-batches in flight are not built where a value of a forward or "
                           "backward phase (%s, %s) %s; use one",
                           b->env->n_slots, step->op->name, step->scope, why);
        }
    }
    return DS_OK;
}
