/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of a program, and its text. See program.h. */
#include "pipe/program.h"

#include <stdlib.h>

enum { MOST_SLOTS = 64, MOST_DEPTH = 8 };

static ds_status broken(ds_ctx *ctx, const dsi_program *p, uint32_t at, const char *why)
{
    return ds_fail(ctx, DS_ERR_GRAPH, "program %s, instruction %u: %s", p->name, at, why);
}

/* Fills each IF's END. */
static ds_status match_blocks(ds_ctx *ctx, dsi_program *p)
{
    uint32_t open[MOST_DEPTH];
    uint32_t depth = 0;
    for (uint32_t i = 0; i < p->n; ++i) {
        const dsi_instr_kind kind = p->instrs[i].kind;
        if (kind == DSI_INSTR_IF && depth == MOST_DEPTH) {
            return broken(ctx, p, i, "blocks nest too deeply");
        }
        if (kind == DSI_INSTR_END && depth == 0) {
            return broken(ctx, p, i, "an end of no block");
        }
        if (kind == DSI_INSTR_AWAIT && depth > 0) {
            return broken(ctx, p, i, "a call is awaited within a block");
        }
        if (kind == DSI_INSTR_IF) {
            open[depth++] = i;
        } else if (kind == DSI_INSTR_END) {
            p->instrs[open[--depth]].end = i;
        }
    }
    return depth > 0 ? broken(ctx, p, open[depth - 1], "a block without end") : DS_OK;
}

/* Whether forward phases of a plan leave something for a backward phase. */
static bool has_backward(const dsi_plan *plan)
{
    const uint32_t n = dsi_phases_micro(&plan->phases);
    return plan->phase_begin[n] > plan->phase_begin[dsi_phases_forward(&plan->phases)];
}

/* taken: per chunk and slot the phase that follows; DS_NONE: forward. */
static ds_status follow_slot(ds_ctx *ctx, const dsi_program *p, uint32_t at, ds_phase *taken)
{
    const dsi_instr *instr = &p->instrs[at];
    dsi_stage_parts parts = p->parts;
    parts.n_chunks = parts.n_chunks > 0 ? parts.n_chunks : 1;
    const uint32_t chunk = dsi_part_chunk(&parts, instr->phase);
    const ds_phase forward = dsi_part_forward(&parts, chunk);
    ds_phase *follows = &taken[(size_t)chunk * MOST_SLOTS + instr->slot];
    if (instr->phase != (*follows == DS_NONE ? forward : *follows)) {
        return broken(ctx, p, at, "a slot's forward and backward phases do not alternate");
    }
    *follows = dsi_part_ends(&parts, instr->phase) ? DS_NONE
               : instr->phase == forward           ? dsi_part_backward(&parts, chunk)
                                                   : instr->phase + 1;
    return DS_OK;
}

static ds_status check_phase(ds_ctx *ctx, const dsi_program *p, uint32_t at, ds_phase *taken)
{
    const dsi_instr *instr = &p->instrs[at];
    if (instr->plan >= p->n_plans || instr->slot >= p->n_slots) {
        return broken(ctx, p, at, "a plan or a slot that the program does not have");
    }
    const dsi_plan *plan = p->plans[instr->plan].plan;
    if (instr->phase >= plan->phases.n) {
        return broken(ctx, p, at, "a phase that the plan does not have");
    }
    if ((instr->kind == DSI_INSTR_START) != (instr->phase == plan->side)) {
        return broken(ctx, p, at, "a side phase is started, no other is");
    }
    return has_backward(plan) && dsi_phase_is_micro(&plan->phases, instr->phase)
               ? follow_slot(ctx, p, at, taken)
               : DS_OK;
}

/* sent: per message a bit a slot. */
static ds_status check_message(ds_ctx *ctx, const dsi_program *p, uint32_t at, uint64_t *sent)
{
    const dsi_instr *instr = &p->instrs[at];
    const uint32_t buffers =
        instr->message < p->n_messages ? p->messages[instr->message].buffers : 0;
    if (instr->message >= p->n_messages || instr->slot >= (buffers > 0 ? buffers : p->n_slots)) {
        return broken(ctx, p, at, "a message or a slot that the program does not have");
    }
    const uint64_t slot = (uint64_t)1 << instr->slot;
    if (instr->kind == DSI_INSTR_SEND && (sent[instr->message] & slot) != 0) {
        return broken(ctx, p, at, "a slot is sent again before it is received");
    }
    if (instr->kind != DSI_INSTR_RECEIVE) {
        sent[instr->message] &= ~slot;
        sent[instr->message] |= instr->kind == DSI_INSTR_SEND ? slot : 0;
    }
    return DS_OK;
}

static ds_status check_messages(ds_ctx *ctx, const dsi_program *p)
{
    uint64_t *sent = calloc((size_t)p->n_messages + 1, sizeof *sent);
    ds_status status = sent != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for a program");
    for (uint32_t i = 0; i < p->n && status >= 0; ++i) {
        const dsi_instr_kind kind = p->instrs[i].kind;
        if (kind == DSI_INSTR_SEND || kind == DSI_INSTR_SENT || kind == DSI_INSTR_RECEIVE) {
            status = check_message(ctx, p, i, sent);
        }
    }
    for (uint32_t m = 0; m < p->n_messages && status >= 0; ++m) {
        status = sent[m] == 0 ? DS_OK : broken(ctx, p, p->n - 1, "a message is left on its way");
    }
    free(sent);
    return status;
}

ds_status dsi_program_check(ds_ctx *ctx, dsi_program *p)
{
    ds_phase taken[DSI_STAGES_MOST * MOST_SLOTS];
    bool left = false;
    if (p->full || p->n_slots > MOST_SLOTS) {
        return ds_fail(ctx, DS_ERR_LIMIT, "program %s: more than %d instructions or %d slots",
                       p->name, DSI_PROGRAM_INSTRS, MOST_SLOTS);
    }
    if (p->n == 0 || p->instrs[0].kind != DSI_INSTR_AWAIT) {
        return broken(ctx, p, 0, "no call is awaited");
    }
    DS_TRY(match_blocks(ctx, p));
    DS_TRY(check_messages(ctx, p));
    for (uint32_t i = 0; i < DSI_STAGES_MOST * MOST_SLOTS; ++i) {
        taken[i] = DS_NONE;
    }
    for (uint32_t i = 0; i < p->n; ++i) {
        const dsi_instr_kind kind = p->instrs[i].kind;
        if (kind == DSI_INSTR_RUN || kind == DSI_INSTR_START) {
            DS_TRY(check_phase(ctx, p, i, taken));
        }
    }
    for (uint32_t i = 0; i < DSI_STAGES_MOST * MOST_SLOTS; ++i) {
        left = left || taken[i] != DS_NONE;
    }
    return left ? broken(ctx, p, p->n - 1, "a slot is left with no backward phase") : DS_OK;
}

static void print_instr(const dsi_program *p, const dsi_instr *instr, dsi_buf *text)
{
    switch (instr->kind) {
    case DSI_INSTR_AWAIT:
        dsi_buf_printf(text, "await %s%s", instr->name, instr->once ? ", once" : "");
        break;
    case DSI_INSTR_DO:
        dsi_buf_printf(text, "do    %s", instr->action->name);
        break;
    case DSI_INSTR_RUN:
    case DSI_INSTR_START:
        dsi_buf_printf(text, "%s %s %s", instr->kind == DSI_INSTR_RUN ? "run  " : "start",
                       p->plans[instr->plan].name,
                       p->plans[instr->plan].plan->phases.items[instr->phase].name);
        const dsi_phases *phases = &p->plans[instr->plan].plan->phases;
        if (p->n_slots > 1 && dsi_phase_is_micro(phases, instr->phase)) {
            dsi_buf_printf(text, ", slot %u", instr->slot);
        }
        break;
    case DSI_INSTR_SEND:
    case DSI_INSTR_SENT:
    case DSI_INSTR_RECEIVE:
        dsi_buf_printf(text, "%s %s %s stage %u",
                       instr->kind == DSI_INSTR_SEND   ? "send "
                       : instr->kind == DSI_INSTR_SENT ? "sent "
                                                       : "recv ",
                       p->messages[instr->message].name,
                       instr->kind == DSI_INSTR_RECEIVE ? "from" : "to",
                       p->messages[instr->message].peer);
        if (p->n_slots > 1) {
            dsi_buf_printf(text, ", slot %u", instr->slot);
        }
        break;
    case DSI_INSTR_IF:
        dsi_buf_printf(text, "if    %s", instr->test->name);
        break;
    case DSI_INSTR_END:
        break;
    }
    dsi_buf_putc(text, '\n');
}

void dsi_program_print(const dsi_program *p, dsi_buf *text)
{
    int depth = 0;
    dsi_buf_printf(text, "program %s, %u slot%s\n", p->name, p->n_slots, p->n_slots > 1 ? "s" : "");
    for (uint32_t i = 0; i < p->n; ++i) {
        const dsi_instr *instr = &p->instrs[i];
        depth -= instr->kind == DSI_INSTR_END ? 1 : 0;
        if (instr->kind != DSI_INSTR_END) {
            const int indent = instr->kind == DSI_INSTR_AWAIT ? 0 : 2 + 2 * depth;
            dsi_buf_printf(text, "%4u  %*s", i, indent, "");
            print_instr(p, instr, text);
        }
        depth += instr->kind == DSI_INSTR_IF ? 1 : 0;
    }
}
