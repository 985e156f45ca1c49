/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to a finished plan: outputs, what lives across a phase, its text and digest. */
#include "base/buf.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { TEXT_CEILING = 512 << 20 };

const dsi_plan_output *dsi_plan_find_output(const dsi_plan *plan, const char *name)
{
    for (uint32_t i = 0; i < plan->n_outputs; ++i) {
        if (strcmp(plan->outputs[i].name, name) == 0) {
            return &plan->outputs[i];
        }
    }
    return NULL;
}

/* Per value whether a step before `begin` makes it; NULL without memory. The caller frees. */
static bool *made_before(const dsi_plan *plan, uint32_t begin)
{
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_refs; ++i) {
        const ds_value v = plan->refs[i].value;
        n = v != DS_NONE && v >= n ? (size_t)v + 1 : n;
    }
    bool *made = calloc(n + 1, sizeof *made);
    for (uint32_t s = 0; s < begin && made != NULL; ++s) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_out; ++i) {
            const ds_value v = plan->refs[step->out_at + i].value;
            if (v != DS_NONE) {
                made[v] = true;
            }
        }
    }
    return made;
}

static bool listed(const dsi_range *ranges, uint32_t n, size_t offset, size_t bytes)
{
    for (uint32_t i = 0; i < n; ++i) {
        if (ranges[i].offset == offset && ranges[i].bytes >= bytes) {
            return true;
        }
    }
    return false;
}

ds_status dsi_plan_live_after(const dsi_plan *plan, ds_phase phase, dsi_range *ranges,
                              uint32_t room, uint32_t *n_out)
{
    const uint32_t begin = plan->phase_begin[phase + 1];
    bool *made = made_before(plan, begin);
    uint32_t n = 0;
    if (made == NULL) {
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory for a plan");
    }
    for (uint32_t s = begin; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_in; ++i) {
            const dsi_ref *ref = &plan->refs[step->in_at + i];
            const size_t bytes = ds_meta_bytes(ref->meta);
            if (ref->space == DSI_SPACE_ARENA && ref->value != DS_NONE && made[ref->value] &&
                !listed(ranges, n < room ? n : room, ref->offset, bytes)) {
                if (n < room) {
                    ranges[n] = (dsi_range){ref->offset, bytes};
                }
                ++n;
            }
        }
    }
    for (uint32_t i = 0; i < plan->n_outputs; ++i) {
        const dsi_plan_output *output = &plan->outputs[i];
        if (output->phase <= phase && output->ref.space == DSI_SPACE_ARENA) {
            if (n < room) {
                ranges[n] = (dsi_range){output->ref.offset, ds_meta_bytes(output->ref.meta)};
            }
            ++n;
        }
    }
    free(made);
    *n_out = n;
    return DS_OK;
}

static void print_ref(dsi_buf *text, const dsi_plan *plan, const dsi_ref *ref)
{
    if (ref->space == DSI_SPACE_NONE) {
        dsi_buf_putc(text, '-');
        return;
    }
    char word[160];
    if (ref->space == DSI_SPACE_CELL) {
        const ds_cell_info *cell = ds_cells_get(plan->cells, ref->cell);
        dsi_buf_printf(text, "%s:%s", ds_cell_kind_name(cell->kind), cell->name);
    } else {
        dsi_buf_printf(text, "%s@%zu", ref->space == DSI_SPACE_SHARED ? "shared" : "", ref->offset);
    }
    dsi_buf_printf(text, ":%s", ds_meta_text(ref->meta, word, sizeof word));
}

static void print_step(dsi_buf *text, const dsi_plan *plan, uint32_t s)
{
    static const char *const phases[DS_PHASE_COUNT] = {
#define X(id, name) [DS_PHASE_##id] = name,
        DS_PHASE_LIST(X)
#undef X
    };
    static const char *const kinds[] = {
        [DSI_STEP_RUN] = "comm", [DSI_STEP_START] = "start", [DSI_STEP_WAIT] = "wait"};
    const dsi_step *step = &plan->steps[s];
    dsi_buf_printf(text, "%5u %-8s %s/%s", s, phases[step->phase], step->op->name,
                   step->kernel != NULL ? step->kernel->name : kinds[step->kind]);
    for (uint32_t i = 0; i < step->n_in; ++i) {
        dsi_buf_putc(text, ' ');
        print_ref(text, plan, &plan->refs[step->in_at + i]);
    }
    dsi_buf_puts(text, " ->");
    for (uint32_t i = 0; i < step->n_out; ++i) {
        dsi_buf_putc(text, ' ');
        print_ref(text, plan, &plan->refs[step->out_at + i]);
    }
    if (step->work_bytes > 0) {
        dsi_buf_printf(text, " work @%zu:%zu", step->work_offset, step->work_bytes);
    }
    dsi_buf_printf(text, " ; %s%s\n", step->scope, step->recomputed ? " recomputed" : "");
}

static void print_totals(dsi_buf *text, const dsi_plan *plan)
{
    double flops = 0.0;
    double bytes = 0.0;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        flops += plan->steps[s].flops;
        bytes += plan->steps[s].bytes;
    }
    dsi_buf_printf(text, "; %u steps, %u threads, up to %s, %.3f GFLOP, %.1f MB moved\n",
                   plan->n_steps, plan->n_threads, ds_isa_name(plan->isa), flops * 1e-9,
                   bytes * 1e-6);
    dsi_buf_printf(text, "; arena %.1f MiB", (double)plan->arena_bytes / 1048576.0);
    if (plan->shared_bytes > 0) {
        dsi_buf_printf(text, ", shared %.1f MiB", (double)plan->shared_bytes / 1048576.0);
    }
    dsi_buf_putc(text, '\n');
}

ds_status dsi_plan_print(const dsi_plan *plan, char **text_out)
{
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        print_step(&text, plan, s);
    }
    print_totals(&text, plan);
    if (text.failed) {
        dsi_buf_free(&text);
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory to print the plan");
    }
    *text_out = text.data;
    return DS_OK;
}

ds_status dsi_plan_digest(const dsi_plan *plan, uint64_t *digest_out)
{
    char *text = NULL;
    DS_TRY(dsi_plan_print(plan, &text));
    *digest_out = XXH3_64bits(text, strlen(text));
    free(text);
    return DS_OK;
}
