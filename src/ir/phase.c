/* SPDX-License-Identifier: Apache-2.0 */
/* See phase.h. */
#include "ir/phase.h"

#include <stdio.h>
#include <string.h>

const char *const dsi_phase_words[3] = {" skippable", " side", " alone"};

dsi_phases dsi_phases_make(void)
{
    return (dsi_phases){.items = {[DS_PHASE_FORWARD] = {"forward", 0, DS_PHASE_FORWARD},
                                  [DS_PHASE_BACKWARD] = {"backward", 0, DS_PHASE_BACKWARD}},
                        .n = DS_PHASE_STEP};
}

ds_phase dsi_phases_find(const dsi_phases *phases, const char *name)
{
    for (uint32_t p = 0; p < phases->n; ++p) {
        if (strcmp(phases->items[p].name, name) == 0) {
            return p;
        }
    }
    return DS_NONE;
}

ds_phase dsi_phases_side(const dsi_phases *phases)
{
    for (uint32_t p = 0; p < phases->n; ++p) {
        if ((phases->items[p].flags & DS_PHASE_SIDE) != 0) {
            return p;
        }
    }
    return DS_NONE;
}

bool dsi_phases_all_run(const dsi_phases *phases)
{
    for (uint32_t p = 0; p < phases->n; ++p) {
        if ((phases->items[p].flags & DS_PHASE_SKIPPABLE) != 0) {
            return false;
        }
    }
    return true;
}

ds_status dsi_phases_add(ds_ctx *ctx, dsi_arena *arena, dsi_phases *phases, const char *name,
                         uint32_t flags, ds_phase *phase_out)
{
    const size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (length == 0 || name[length] != '\0' || dsi_phases_find(phases, name) != DS_NONE) {
        return ds_fail(ctx, DS_ERR_ARG, "phase \"%s\": expected a new name of [a-z0-9_]", name);
    }
    if ((flags & DS_PHASE_SIDE) != 0 && dsi_phases_side(phases) != DS_NONE) {
        return ds_fail(ctx, DS_ERR_ARG, "phase \"%s\": \"%s\" is on the side stream already", name,
                       phases->items[dsi_phases_side(phases)].name);
    }
    if (phases->n == DS_MAX_PHASES) {
        return ds_fail(ctx, DS_ERR_LIMIT, "phase \"%s\": a graph has at most %d phases", name,
                       DS_MAX_PHASES);
    }
    const char *copy = dsi_arena_strdup(arena, name);
    if (copy == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the phase \"%s\"", name);
    }
    phases->items[phases->n] = (dsi_phase_info){copy, flags, DS_PHASE_STEP};
    *phase_out = phases->n++;
    return DS_OK;
}

ds_status dsi_phases_copy(ds_ctx *ctx, dsi_arena *arena, const dsi_phases *from, dsi_phases *to)
{
    ds_phase phase = 0;
    const uint32_t n = dsi_phases_micro(from);
    *to = dsi_phases_make();
    for (uint32_t p = 0; p < n; ++p) {
        to->items[p] = from->items[p];
        to->items[p].name = dsi_arena_strdup(arena, from->items[p].name);
        if (to->items[p].name == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the phases of a graph");
        }
    }
    to->n = n;
    for (uint32_t p = n; p < from->n; ++p) {
        DS_TRY(dsi_phases_add(ctx, arena, to, from->items[p].name, from->items[p].flags, &phase));
    }
    return DS_OK;
}

uint32_t dsi_phases_micro(const dsi_phases *phases)
{
    uint32_t n = 0;
    while (n < phases->n && dsi_phase_is_micro(phases, n)) {
        ++n;
    }
    return n;
}

uint32_t dsi_phases_forward(const dsi_phases *phases)
{
    uint32_t n = 0;
    while (n < phases->n && dsi_phase_is_forward(phases, n)) {
        ++n;
    }
    return n;
}

uint32_t dsi_phases_chunk(const dsi_phases *phases, ds_phase phase)
{
    const uint32_t n = dsi_phases_forward(phases);
    const uint32_t each =
        n < 2 ? 1 : (dsi_phases_micro(phases) - n) / n; /* backward: 2, if split */
    return n < 2 ? 0 : phase < n ? phase : n - 1 - (phase - n) / each;
}

bool dsi_phase_is_weights(const dsi_phases *phases, ds_phase phase)
{
    const uint32_t n = dsi_phases_forward(phases);
    const uint32_t micro = dsi_phases_micro(phases);
    return micro == 3 * n && phase >= n && phase < micro && (phase - n) % 2 == 1;
}

static const char *part_name(dsi_arena *arena, const char *phase, uint32_t chunk)
{
    char text[32];
    (void)snprintf(text, sizeof text, chunk > 0 ? "%s_%u" : "%s", phase, chunk);
    return dsi_arena_strdup(arena, text);
}

ds_status dsi_phases_part(ds_ctx *ctx, dsi_arena *arena, dsi_phases *phases, uint32_t n_forward,
                          bool split)
{
    const uint32_t n = (split ? 3 : 2) * n_forward;
    const uint32_t had = dsi_phases_micro(phases);
    if (n < had || phases->n - had + n > DS_MAX_PHASES) {
        return ds_fail(ctx, DS_ERR_LIMIT,
                       "%u phases of a micro-batch and %u others: a graph has at most %d phases", n,
                       phases->n - had, DS_MAX_PHASES);
    }
    memmove(phases->items + n, phases->items + had, (phases->n - had) * sizeof *phases->items);
    phases->n += n - had;
    for (uint32_t p = 0; p < n; ++p) {
        const bool forward = p < n_forward;
        const bool weights = split && !forward && (n - 1 - p) % 2 == 0;
        const uint32_t chunk = forward ? p : (n - 1 - p) / (split ? 2 : 1);
        const char *name = forward ? "forward" : weights ? "weights" : "backward";
        const ds_phase like = forward ? DS_PHASE_FORWARD : DS_PHASE_BACKWARD;
        phases->items[p] = (dsi_phase_info){part_name(arena, name, chunk), 0, like};
        if (phases->items[p].name == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the phases of a graph");
        }
    }
    return DS_OK;
}
