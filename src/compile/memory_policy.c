/* SPDX-License-Identifier: Apache-2.0 */
/* See memory_policy.h. */
#include "compile/memory_policy.h"

#include <stdio.h>
#include <string.h>

enum { FEW = 16 };

/* Whether anything is fetched to the device, or gathered, at all. */
static bool has_transfers(const dsi_engine_spec *spec)
{
    return spec->zero.mesh.n_ranks > 1 || dsi_offload_is_on(&spec->offload);
}

uint32_t dsi_memory_choices(const dsi_engine_spec *spec,
                            dsi_memory_choice choices_out[DSI_MEMORY_CHOICES])
{
    const ds_recompute asked = spec->recompute.mode;
    const bool limited = spec->device_memory > 0;
    dsi_memory_choice c = {.recompute = asked == DS_RECOMPUTE_AUTO ? DS_RECOMPUTE_NONE : asked,
                           .hold = true};
    uint32_t n = 0;
    if (c.recompute == DS_RECOMPUTE_NONE) { /* who asks for recomputation wants the memory */
        if (limited || spec->room > 0) {
            c.logits = DSI_LOGITS_ALL;
            choices_out[n++] = c;
        }
        c.logits = DSI_LOGITS_FEW;
        choices_out[n++] = c;
        c.logits = DSI_LOGITS_NONE;
    }
    if (!limited && n > 0) {
        return n;
    }
    choices_out[n++] = c;
    for (int mode = DS_RECOMPUTE_SELECTIVE; asked == DS_RECOMPUTE_AUTO && mode <= DS_RECOMPUTE_FULL;
         ++mode) {
        c.recompute = (ds_recompute)mode;
        choices_out[n++] = c;
    }
    if (limited && has_transfers(spec)) {
        c.transfers = DSI_TRANSFERS_FEW;
        choices_out[n++] = c;
        c.transfers = DSI_TRANSFERS_LEAST;
        choices_out[n++] = c;
        c.hold = false;
        choices_out[n++] = c;
    }
    return n;
}

static void divide(size_t *bytes, dsi_transfers transfers)
{
    *bytes = transfers == DSI_TRANSFERS_LEAST ? 0 : *bytes / FEW;
}

/* Elements; at least `least`. */
static void divide_count(int64_t *count, dsi_transfers transfers, int64_t least)
{
    const int64_t fewer = transfers == DSI_TRANSFERS_LEAST ? least : *count / FEW;
    *count = *count < least ? *count : fewer < least ? least : fewer;
}

dsi_engine_spec dsi_memory_obey(const dsi_engine_spec *spec, const dsi_memory_choice *choice)
{
    dsi_engine_spec obeying = *spec;
    obeying.recompute.mode = choice->recompute;
    if (choice->transfers != DSI_TRANSFERS_ALL) {
        divide(&obeying.offload.read_ahead, choice->transfers);
        divide(&obeying.offload.update_ahead, choice->transfers);
        divide(&obeying.offload.write_behind, choice->transfers);
        divide_count(&obeying.prefetch, choice->transfers, 0);
        divide_count(&obeying.zero.reduce_bucket, choice->transfers, 1);
        divide_count(&obeying.zero.gather_bucket, choice->transfers, 1);
    }
    if (!choice->hold) {
        obeying.zero.max_reuse_distance = 0;
        obeying.offload.how.reuse = 0;
    }
    return obeying;
}

bool dsi_memory_fits(const dsi_engine_spec *spec, const dsi_memory_choice *choice, size_t bytes)
{
    if (spec->device_memory > 0) {
        return bytes <= spec->device_memory;
    }
    return choice->logits != DSI_LOGITS_ALL || bytes <= spec->room;
}

const char *dsi_recompute_name(ds_recompute how)
{
    static const char *const names[] = {[DS_RECOMPUTE_NONE] = "none",
                                        [DS_RECOMPUTE_SELECTIVE] = "selective",
                                        [DS_RECOMPUTE_FULL] = "full",
                                        [DS_RECOMPUTE_AUTO] = "auto"};
    return names[how];
}

void dsi_memory_choice_text(const dsi_memory_choice *choice, uint32_t n_kept,
                            char text_out[DSI_MEMORY_CHOICE_BYTES])
{
    static const char *const recompute[] = {[DS_RECOMPUTE_NONE] = "",
                                            [DS_RECOMPUTE_SELECTIVE] = ", recompute selective",
                                            [DS_RECOMPUTE_FULL] = ", recompute full"};
    static const char *const transfers[] = {[DSI_TRANSFERS_ALL] = "",
                                            [DSI_TRANSFERS_FEW] =
                                                ", a sixteenth of the transfers ahead",
                                            [DSI_TRANSFERS_LEAST] = ", no transfers ahead"};
    char text[DSI_MEMORY_CHOICE_BYTES];
    (void)snprintf(text, sizeof text, "%s%s%s%s", recompute[choice->recompute],
                   n_kept > 0 ? ", logits kept" : "", transfers[choice->transfers],
                   choice->hold ? "" : ", parameters fetched for each use");
    memcpy(text_out, text + (text[0] != '\0' ? 2 : 0), sizeof text - 2);
}

size_t dsi_memory_room(size_t memory)
{
    return memory / 2;
}
