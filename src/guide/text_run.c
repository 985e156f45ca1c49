/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of text. See text_run.h. */
#include "guide/text_run.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, GONE = -1, APART = -2 };

static bool is_within(uint8_t byte, uint8_t low, uint8_t high)
{
    return byte >= low && byte <= high;
}

static dsi_utf8 begin(uint8_t byte)
{
    return is_within(byte, ' ', '~') && byte != '"' && byte != '\\' ? DSI_UTF8_WHOLE
           : is_within(byte, 0xc2, 0xdf)                            ? DSI_UTF8_1
           : byte == 0xe0                                           ? DSI_UTF8_E0
           : byte == 0xed                                           ? DSI_UTF8_ED
           : is_within(byte, 0xe1, 0xef)                            ? DSI_UTF8_2
           : byte == 0xf0                                           ? DSI_UTF8_F0
           : is_within(byte, 0xf1, 0xf3)                            ? DSI_UTF8_3
           : byte == 0xf4                                           ? DSI_UTF8_F4
                                                                    : DSI_UTF8_WRONG;
}

dsi_utf8 dsi_utf8_next(dsi_utf8 state, uint8_t byte)
{
    static const struct {
        uint8_t low, high;
        dsi_utf8 next;
    } of[DSI_UTF8_WRONG] = {
        [DSI_UTF8_1] = {0x80, 0xbf, DSI_UTF8_WHOLE}, [DSI_UTF8_2] = {0x80, 0xbf, DSI_UTF8_1},
        [DSI_UTF8_3] = {0x80, 0xbf, DSI_UTF8_2},     [DSI_UTF8_E0] = {0xa0, 0xbf, DSI_UTF8_1},
        [DSI_UTF8_ED] = {0x80, 0x9f, DSI_UTF8_1},    [DSI_UTF8_F0] = {0x90, 0xbf, DSI_UTF8_2},
        [DSI_UTF8_F4] = {0x80, 0x8f, DSI_UTF8_2}};
    if (state == DSI_UTF8_WHOLE) {
        return begin(byte);
    }
    return state != DSI_UTF8_WRONG && is_within(byte, of[state].low, of[state].high)
               ? of[state].next
               : DSI_UTF8_WRONG;
}

/* Adds a byte, where none of its class goes on in the same way. */
static void add_byte(dsi_text_runs *r, dsi_utf8 state, uint8_t byte)
{
    const uint8_t *class_of = r->walk->g->class_of;
    bool new = dsi_utf8_next(state, byte) != DSI_UTF8_WRONG;
    for (uint32_t i = 0; i < r->n[state]; ++i) {
        const uint8_t one = r->bytes[state][i];
        new = new && (class_of[one] != class_of[byte] ||
                      dsi_utf8_next(state, one) != dsi_utf8_next(state, byte));
    }
    if (new) {
        r->bytes[state][r->n[state]++] = byte;
    }
}

ds_status dsi_text_runs_create(ds_ctx *ctx, dsi_form_walk *walk, dsi_text_runs *runs)
{
    *runs = (dsi_text_runs){.walk = walk};
    runs->kept = calloc((size_t)DSI_FORM_WALK_MOST * DSI_UTF8_WRONG, sizeof *runs->kept);
    for (dsi_utf8 state = 0; state < DSI_UTF8_WRONG; ++state) {
        for (int byte = 0; byte < 256; ++byte) {
            add_byte(runs, state, (uint8_t)byte);
        }
    }
    return runs->kept != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for a guide");
}

void dsi_text_runs_free(dsi_text_runs *runs)
{
    free(runs->kept);
    runs->kept = NULL;
}

/* The position to which all characters lead, or all ways to end one; GONE: none can come. APART:
 * they lead to several. */
static int32_t behind_one(dsi_text_runs *r, uint16_t at, dsi_utf8 state)
{
    const uint32_t epoch = r->walk->epoch;
    int32_t all = APART;
    for (uint32_t i = 0; i < r->n[state]; ++i) {
        const uint8_t byte = r->bytes[state][i];
        const dsi_utf8 next = dsi_utf8_next(state, byte);
        const uint16_t to = dsi_form_walk_step(r->walk, at, byte);
        const int32_t one = to == DSI_FORM_WALK_DEAD ? GONE
                            : next == DSI_UTF8_WHOLE ? to
                                                     : behind_one(r, to, next);
        if (one == APART || (i > 0 && one != all) || r->walk->epoch != epoch) {
            return APART;
        }
        all = one;
    }
    return all;
}

static dsi_text_run find(dsi_text_runs *r, uint16_t at, dsi_utf8 state)
{
    if (state != DSI_UTF8_WHOLE) {
        const int32_t ended = behind_one(r, at, state);
        if (ended < 0) {
            return (dsi_text_run){.n = -1, .known = true};
        }
        at = (uint16_t)ended;
    }
    for (int8_t n = 0; n < MOST; ++n) {
        const int32_t next = behind_one(r, at, DSI_UTF8_WHOLE);
        if (next < 0) {
            return (dsi_text_run){.n = n, .ends = next == GONE, .known = true};
        }
        if (next == at) {
            return (dsi_text_run){.n = DSI_TEXT_ENDLESS, .known = true};
        }
        at = (uint16_t)next;
    }
    return (dsi_text_run){.n = MOST, .known = true};
}

dsi_text_run dsi_text_runs_at(dsi_text_runs *r, uint16_t at, dsi_utf8 state)
{
    if (r->epoch != r->walk->epoch) {
        memset(r->kept, 0, (size_t)DSI_FORM_WALK_MOST * DSI_UTF8_WRONG * sizeof *r->kept);
        r->epoch = r->walk->epoch;
    }
    dsi_text_run *kept = &r->kept[(size_t)at * DSI_UTF8_WRONG + state];
    if (kept->known) {
        return *kept;
    }
    const dsi_text_run found = find(r, at, state);
    if (r->epoch == r->walk->epoch) { /* else positions were dropped on the way */
        *kept = found;
    }
    return found;
}

dsi_text_run dsi_text_run_behind(dsi_text_run before, dsi_utf8 state, uint8_t byte)
{
    const int8_t one = dsi_utf8_begins(byte) ? 1 : 0;
    if (before.n < one || dsi_utf8_next(state, byte) == DSI_UTF8_WRONG) {
        return (dsi_text_run){.n = -1};
    }
    before.n = before.n == DSI_TEXT_ENDLESS ? DSI_TEXT_ENDLESS : (int8_t)(before.n - one);
    return before;
}
