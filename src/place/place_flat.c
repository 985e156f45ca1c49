/* SPDX-License-Identifier: Apache-2.0 */
/* A node whose inputs are flat. See place_node_impl.h.
 *
 * One input leads: what is written over most axes, else the first. Where the operator's rule lets
 * it work on slices, the inputs that are its elements follow, and the outputs are slices, or terms
 * of a sum; else every flat input is gathered. */
#include "place/place_node_impl.h"

#include <string.h>

/* Whether the rule has the same word for an input as for the first. */
static bool is_like_first(const dsi_placing *w, uint32_t input)
{
    const char *first = w->node->op->place->in;
    const size_t n = strcspn(first, " ");
    const char *word = first;
    for (uint32_t i = 0; i < input && word[strcspn(word, " ")] != '\0'; ++i) {
        word += strcspn(word, " ") + 1; /* the last stands for all further ones */
    }
    return strcspn(word, " ") == n && memcmp(word, first, n) == 0;
}

/* Inputs that are element by element like output 0, or like the first where all are added up. */
static uint32_t element_inputs(const dsi_placing *w)
{
    const ds_place_case *c = &w->p->rule;
    uint32_t mask = 0;
    for (uint32_t i = 0; i < c->n_in; ++i) {
        const bool alike = (c->flags & DS_PLACE_VIEW) != 0 ? i == 0
                           : (c->flags & DS_PLACE_ADDS_ALL) != 0
                               ? is_like_first(w, i)
                               : ds_shape_equal(c->in_meta[i].shape, c->out_meta[0].shape) &&
                                     strcmp(c->in[i], c->out[0]) == 0;
        mask |= dsi_placing_has(w, i) && alike ? 1u << i : 0;
    }
    return mask;
}

static bool is_gathered(const dsi_placing *w, uint32_t i)
{
    return (w->node->whole >> i & 1u) != 0;
}

/* Whether input i leads rather than `first`: what is written before what is read, then what is over
 * more axes; and of an update, whose written cells may be over fewer, any that goes on from them.
 */
static bool leads(const dsi_placing *w, uint32_t i, uint32_t first)
{
    const dsi_axes *own = &w->node->in[i].at.flat;
    const dsi_axes *of_first = &w->node->in[first].at.flat;
    const bool updates = (w->p->rule.flags & DS_PLACE_UPDATE) != 0;
    if (dsi_placing_is_fixed(w, i) != dsi_placing_is_fixed(w, first)) {
        const bool written = dsi_placing_is_fixed(w, i);
        const dsi_axes *cell = written ? own : of_first;
        const dsi_axes *read = written ? of_first : own;
        const bool goes_on = updates && read->n > cell->n && dsi_axes_begin(cell, read);
        return written != goes_on;
    }
    return !dsi_placing_is_fixed(w, i) || own->n >= of_first->n;
}

/* The input whose Flat the node takes over; n_in: none. */
static uint32_t leading_flat(const dsi_placing *w)
{
    uint32_t first = w->node->n_in;
    for (uint32_t i = w->node->n_in; i-- > 0;) {
        const bool is_flat =
            dsi_placing_has(w, i) && w->node->in[i].at.flat.n > 0 && !is_gathered(w, i);
        first = is_flat && (first == w->node->n_in || leads(w, i, first)) ? i : first;
    }
    return first;
}

/* Whether a written input is placed as the flat one, or may be updated on its slice. */
static bool may_be_written(const dsi_placing *w, uint32_t i, const dsi_placement *flat)
{
    const dsi_placement *own = &w->node->in[i].at;
    const bool updates = (w->p->rule.flags & DS_PLACE_UPDATE) != 0 &&
                         dsi_axes_begin(&own->flat, &flat->flat) && own->cut != DSI_CUT_TENSOR;
    return updates || (dsi_axes_equal(&own->flat, &flat->flat) && own->cut == flat->cut &&
                       own->owner == flat->owner);
}

/* Whether the operator can work on slices here: its rule says so, the leading one is among its
 * elements, and no written cell stands against it. */
static bool may_stay_flat(const dsi_placing *w, uint32_t lead, uint32_t elements)
{
    const uint32_t able = DS_PLACE_ELEMENTS | DS_PLACE_VIEW | DS_PLACE_ADDS_ALL;
    const uint32_t flags = w->p->rule.flags;
    const dsi_placement *flat = &w->node->in[lead].at;
    bool free = (flags & able) != 0 && (elements >> lead & 1u) != 0;
    for (uint32_t i = 0; i < w->node->n_in; ++i) {
        const bool written = (elements >> i & 1u) != 0 && dsi_placing_is_fixed(w, i);
        free = free && !dsi_placing_is_own(w, i, dsi_axes_mask(&flat->flat)) &&
               (!written || may_be_written(w, i, flat));
    }
    return free;
}

static void take_flat(dsi_placement *to, const dsi_placement *flat)
{
    for (uint32_t k = 0; k < flat->flat.n; ++k) {
        to->on[flat->flat.axis[k]] = (dsi_place_on){0};
    }
    to->flat = flat->flat;
    to->cut = flat->cut;
    to->owner = flat->owner;
}

ds_status dsi_place_flat(dsi_placing *w)
{
    const uint32_t lead = leading_flat(w);
    const dsi_placement flat = lead < w->node->n_in ? w->node->in[lead].at : dsi_replicate();
    const uint32_t axes = dsi_axes_mask(&flat.flat);
    const uint32_t elements = element_inputs(w);
    const bool stays = lead < w->node->n_in && may_stay_flat(w, lead, elements);
    for (uint32_t i = 0; i < w->node->n_in; ++i) {
        dsi_placement *need = &w->p->need[i].at;
        if (!dsi_placing_has(w, i)) {
            continue;
        }
        if (stays && (elements >> i & 1u) != 0 && !is_gathered(w, i)) {
            for (uint32_t k = 0; k < flat.flat.n; ++k) {
                const uint32_t axis = flat.flat.axis[k];
                const bool may_change = dsi_placing_completes(w, i, axis);
                if (need->on[axis].kind == DSI_SHARD && !may_change) {
                    return dsi_placing_refuse(w, i, &flat,
                                              "another input is flat along an axis that cuts it");
                }
            }
            take_flat(need, &flat);
        } else if (need->flat.n > 0) {
            if (dsi_placing_is_fixed(w, i)) {
                return dsi_placing_refuse(
                    w, i, &(dsi_placement){0},
                    "the operator cannot work on slices of it, and it is written");
            }
            w->was_flat[i] = dsi_axes_mask(&need->flat);
            need->flat = (dsi_axes){0};
            need->cut = DSI_CUT_NONE;
            need->owner = 0;
        }
    }
    if (stays) {
        w->settled = axes;
        for (uint32_t o = 0; o < w->node->n_out; ++o) {
            dsi_placement *out = &w->p->out[o].at;
            for (uint32_t k = 0; k < flat.flat.n && (w->p->rule.flags & DS_PLACE_ADDS_ALL) != 0;
                 ++k) {
                *out =
                    dsi_partial_of(*out, (dsi_axis)flat.flat.axis[k], dsi_rule_terms(&w->p->rule));
            }
            if ((w->p->rule.flags & DS_PLACE_ADDS_ALL) == 0) {
                take_flat(out, &flat);
            }
        }
        for (uint32_t i = 0; i < w->node->n_in; ++i) { /* the others are small: replicated */
            for (uint32_t k = 0; k < flat.flat.n && (elements >> i & 1u) == 0; ++k) {
                w->p->need[i].at.on[flat.flat.axis[k]] = (dsi_place_on){0};
            }
        }
    }
    return DS_OK;
}
