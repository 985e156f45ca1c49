/* SPDX-License-Identifier: Apache-2.0 */
/* See form_calls.h. An answer that may call: any bytes, whose states say how much of the trigger
 * stands at their end; behind the whole trigger only a call is possible. */
#include "guide/form_calls.h"

#include <stdio.h>
#include <string.h>

static uint32_t put(dsi_grammar *g, uint32_t at, const char *text)
{
    return dsi_grammar_text(g, at, text, strlen(text));
}

/* How much of the trigger is at the end of its first `have` bytes and one more. Source: Knuth,
 * Morris, Pratt, 1977; tried out, for a trigger is short. */
static size_t matched(const char *trigger, size_t have, char more)
{
    for (size_t n = have + 1; n > 0; --n) {
        if (trigger[n - 1] == more && memcmp(trigger, trigger + have + 1 - n, n - 1) == 0) {
            return n;
        }
    }
    return 0;
}

/* Any text; the state behind the trigger. */
static uint32_t put_free(dsi_grammar *g, uint32_t at, const char *trigger)
{
    enum { MOST = 64 };
    uint32_t states[MOST + 1];
    const size_t n = strlen(trigger);
    if (n > MOST) {
        return dsi_grammar_fail(g, "a trigger is too long");
    }
    for (size_t i = 0; i <= n; ++i) {
        states[i] = dsi_grammar_state(g);
    }
    dsi_grammar_empty(g, at, states[0]);
    for (size_t i = 0; i < n; ++i) {
        dsi_grammar_end(g, states[i]);
        for (int low = 0, high = 0; low < 256; low = high + 1) {
            const size_t to = matched(trigger, i, (char)low);
            for (high = low; high < 255 && matched(trigger, i, (char)(high + 1)) == to; ++high) {
            }
            dsi_grammar_byte(g, states[i], states[to], (uint8_t)low, (uint8_t)high);
        }
    }
    return states[n];
}

/* Nothing, or a text that does not begin with the trigger's first byte. */
static void put_other(dsi_grammar *g, uint32_t at, const char *trigger)
{
    const uint8_t first = (uint8_t)trigger[0];
    const uint32_t rest = dsi_grammar_state(g);
    dsi_grammar_end(g, at);
    dsi_grammar_byte(g, at, rest, 0, (uint8_t)(first - 1));
    dsi_grammar_byte(g, at, rest, (uint8_t)(first + 1), 255);
    dsi_grammar_byte(g, rest, rest, 0, 255);
    dsi_grammar_end(g, rest);
}

/* What begin has behind its first `done` bytes, and the rest of a call. */
static uint32_t put_call(dsi_grammar *g, uint32_t at, const dsi_call_form *form, size_t done,
                         const dsi_guide_tool *tools, const uint32_t *rules, size_t n)
{
    const uint32_t behind = dsi_grammar_state(g);
    at = put(g, at, form->begin + done);
    for (size_t i = 0; i < n; ++i) {
        const uint32_t named = put(g, put(g, at, tools[i].name), form->middle);
        dsi_grammar_empty(g, put(g, dsi_grammar_call(g, named, rules[i]), form->end), behind);
    }
    return behind;
}

static void read_parameters(dsi_grammar *g, const dsi_guide_tool *tool, uint32_t *rule_out)
{
    char message[DSI_GRAMMAR_ERROR];
    dsi_form_schema_read(g, tool->parameters, tool->n, rule_out);
    if (g->failed) {
        (void)snprintf(message, sizeof message, "function %.64s: %.300s", tool->name, g->error);
        memcpy(g->error, message, sizeof message);
    }
}

void dsi_form_calls(dsi_grammar *g, const dsi_call_form *form, const dsi_guide_tool *tools,
                    size_t n, bool forced, bool several, uint32_t *root_out)
{
    uint32_t rules[DSI_GUIDE_TOOLS];
    if (n > DSI_GUIDE_TOOLS) {
        (void)dsi_grammar_fail(g, "there are more than %d tools", DSI_GUIDE_TOOLS);
        return;
    }
    *root_out = dsi_grammar_rule(g);
    for (size_t i = 0; i < n && !g->failed; ++i) {
        read_parameters(g, &tools[i], &rules[i]);
    }
    if (g->failed) {
        return;
    }
    const uint32_t start = g->rules[*root_out];
    const size_t done = forced || form->at_begin ? 0 : strlen(form->trigger);
    const uint32_t begun = done > 0 ? put_free(g, start, form->trigger) : start;
    if (!forced && form->at_begin) {
        put_other(g, start, form->trigger);
    }
    const uint32_t behind = put_call(g, begun, form, done, tools, rules, n);
    dsi_grammar_end(g, behind);
    if (several && form->between != NULL) {
        const uint32_t next = put_call(g, put(g, behind, form->between), form, 0, tools, rules, n);
        dsi_grammar_empty(g, next, behind);
    }
}
