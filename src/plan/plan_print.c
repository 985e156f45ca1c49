/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as text: a legend, a header, a row a step, totals. Ranks compare it line by line, so each
 * line of a row begins with the number of its step. */
#include "base/buf.h"
#include "op/isa.h"
#include "op/ops.h"
#include "place/mesh.h"
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_CEILING = 512 << 20, COLUMNS = 160, WORD = 512 };

/* The row of a step, which goes on in further lines where it is too long. */
typedef struct row {
    const dsi_plan *plan;
    dsi_buf *text;
    uint32_t step;
    size_t column;
} row;

static void put_legend(dsi_buf *text)
{
    dsi_buf_puts(
        text,
        "; A row is a step, in the order in which the host issues them. waits: events that it "
        "waits for, eN* of the training step before. sets: the event recorded\n"
        "; behind it. Streams compute, side and host (on the processor) run their steps one after "
        "another; others begin theirs in order, in each phase behind all\n"
        "; that was issued to compute before it, and the event alone tells that a step has ended. "
        "Operands -> results: @offset in the arena, shared@offset in the\n"
        "; arena that peers read, kind:name of a cell; type and shape. work: scratch in the arena, "
        "@offset:bytes. over: axes of a\n"
        "; collective that is not over all ranks. Behind the semicolon the scope.\n");
    dsi_buf_printf(text, "%5s %-8s %-14s %-8s %-6s %s\n", "step", "phase", "stream", "waits",
                   "sets", "operator/kernel operands -> results ; scope");
}

static void put_word(row *r, const char *word)
{
    const size_t n = strlen(word);
    if (r->column + 1 + n > COLUMNS) {
        char begin[32];
        r->column = (size_t)snprintf(begin, sizeof begin, "\n%5u ...     ", r->step) - 1;
        dsi_buf_puts(r->text, begin);
    }
    dsi_buf_putc(r->text, ' ');
    dsi_buf_append(r->text, word, n);
    r->column += 1 + n;
}

static void put_ref(row *r, const dsi_ref *ref)
{
    char word[WORD];
    char meta[160];
    if (ref->space == DSI_SPACE_NONE) {
        put_word(r, "-");
        return;
    }
    (void)ds_meta_text(ref->meta, meta, sizeof meta);
    if (ref->space == DSI_SPACE_CELL) {
        const ds_cell_info *cell = ds_cells_get(r->plan->cells, ref->cell);
        (void)snprintf(word, sizeof word, "%s:%.300s:%s", ds_cell_kind_name(cell->kind), cell->name,
                       meta);
    } else {
        (void)snprintf(word, sizeof word, "%s@%zu:%s",
                       ref->space == DSI_SPACE_SHARED ? "shared" : "", ref->offset, meta);
    }
    put_word(r, word);
}

/* "e3,e17*"; "-" for none. */
static void write_waits(const dsi_plan *plan, uint32_t s, char *text, size_t room)
{
    const dsi_step *step = &plan->steps[s];
    size_t n = 0;
    (void)snprintf(text, room, "-");
    for (uint32_t i = 0; i < step->n_waits && n < room; ++i) {
        const uint32_t event = plan->waits[step->wait_at + i];
        n += (size_t)snprintf(text + n, room - n, "%se%u%s", i > 0 ? "," : "", event,
                              plan->events[event] > s ? "*" : "");
    }
}

static void put_columns(row *r)
{
    char waits[64];
    char event[16] = "-";
    const dsi_plan *plan = r->plan;
    const dsi_step *step = &plan->steps[r->step];
    const size_t before = r->text->size;
    write_waits(plan, r->step, waits, sizeof waits);
    if (step->event != DS_NONE) {
        (void)snprintf(event, sizeof event, "e%u", step->event);
    }
    dsi_buf_printf(r->text, "%5u %-8s %-14s %-8s %-6s", r->step,
                   plan->phases.items[step->phase].name, plan->streams[step->stream].name, waits,
                   event);
    r->column = r->text->size - before;
}

/* The axes of a collective that is not over all ranks. */
static void put_axes(row *r, const dsi_step *step)
{
    char word[WORD];
    const bool collective = (step->op->flags & DS_OP_COMM) != 0;
    const int64_t code = collective ? ((const dsi_comm_attrs *)step->attrs)->axes : 0;
    if (code != 0) {
        char label[DSI_AXES_LABEL];
        (void)snprintf(word, sizeof word, "over (%s)", dsi_axes_label(code, label));
        put_word(r, word);
    }
}

static void put_step(dsi_buf *text, const dsi_plan *plan, uint32_t s)
{
    static const char *const kinds[] = {
        [DSI_STEP_RUN] = "run", [DSI_STEP_START] = "start", [DSI_STEP_WAIT] = "wait"};
    char word[WORD];
    row r = {.plan = plan, .text = text, .step = s};
    const dsi_step *step = &plan->steps[s];
    put_columns(&r);
    (void)snprintf(word, sizeof word, "%s/%s", step->op->name,
                   step->kernel != NULL ? step->kernel->name : kinds[step->kind]);
    put_word(&r, word);
    for (uint32_t i = 0; i < step->n_in; ++i) {
        put_ref(&r, &plan->refs[step->in_at + i]);
    }
    if (step->n_in + step->n_out > 0) {
        put_word(&r, "->");
    }
    for (uint32_t i = 0; i < step->n_out; ++i) {
        put_ref(&r, &plan->refs[step->out_at + i]);
    }
    put_axes(&r, step);
    if (step->work_bytes > 0) {
        (void)snprintf(word, sizeof word, "work @%zu:%zu", step->work_offset, step->work_bytes);
        put_word(&r, word);
    }
    (void)snprintf(word, sizeof word, "; %.400s%s", step->scope,
                   step->recomputed ? " recomputed" : "");
    put_word(&r, word);
    dsi_buf_putc(text, '\n');
}

static void put_totals(dsi_buf *text, const dsi_plan *plan)
{
    double flops = 0.0;
    double bytes = 0.0;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        flops += plan->steps[s].cost.flops;
        bytes += plan->steps[s].cost.bytes;
    }
    dsi_buf_printf(text, "; %u steps, %u threads, up to %s, %.3f GFLOP, %.1f MB moved\n",
                   plan->n_steps, plan->n_threads, dsi_isa_print(plan->isa).text, flops * 1e-9,
                   bytes * 1e-6);
    dsi_buf_printf(text, "; arena %.1f MiB", (double)plan->arena_bytes / 1048576.0);
    if (plan->shared_bytes > 0) {
        dsi_buf_printf(text, ", shared %.1f MiB", (double)plan->shared_bytes / 1048576.0);
    }
    dsi_buf_printf(text, "; %u streams, %u events\n", plan->n_streams, plan->n_events);
}

ds_status dsi_plan_print(const dsi_plan *plan, char **text_out)
{
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    put_legend(&text);
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        put_step(&text, plan, s);
    }
    put_totals(&text, plan);
    if (text.failed) {
        dsi_buf_free(&text);
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory to print the plan");
    }
    *text_out = text.data;
    return DS_OK;
}
