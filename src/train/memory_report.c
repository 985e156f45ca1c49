/* SPDX-License-Identifier: Apache-2.0 */
/* Planned and measured memory by kind. See memory_report.h. */
#include "train/memory_report.h"

#include "base/buf.h"
#include "base/process_memory.h"
#include "compile/rank_ledger.h"
#include "plan/plan_kinds.h"

#include <deepspeed/profile.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 160, TEXT_CEILING = 1 << 16 };

static const double mib = 1048576.0;
static const double gib = 1073741824.0;

/* ---- the plan's view ---- */

/* What lives when the steps before `at` are done and those from it on are not. */
static void sum_at(const dsi_ledger *ledger, uint32_t at, size_t bytes[DSI_MEMORY_KIND_COUNT])
{
    for (uint32_t i = 0; i < ledger->n_entries; ++i) {
        const dsi_ledger_entry *e = &ledger->entries[i];
        bytes[e->kind] += e->first < at && e->last >= at ? e->bytes : 0;
    }
}

static void sum_phase(const size_t *curve, const dsi_plan *plan, ds_phase phase,
                      dsi_memory_view *view)
{
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        const size_t *bytes = curve + (size_t)s * DSI_MEMORY_KIND_COUNT;
        size_t sum = 0;
        for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
            size_t *most = &view->most[phase][k];
            *most = bytes[k] > *most ? bytes[k] : *most;
            sum += bytes[k];
        }
        view->most_sum[phase] = sum > view->most_sum[phase] ? sum : view->most_sum[phase];
    }
}

/* Bytes of a cell where it lives; parts lie in their parent. */
static void sum_cells(const ds_engine *engine, dsi_memory_view *view)
{
    for (ds_cell c = 0; c < ds_cells_count(engine->local); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->local, c);
        const dsi_cell_residency residency = dsi_residency_of(&engine->residencies, c);
        if (residency.parent == DS_NONE) {
            view->cells[residency.where][dsi_memory_kind_of(cell->kind)] +=
                ds_meta_bytes(cell->meta) * (residency.per_slot ? engine->train_plan->n_slots : 1);
        }
    }
}

/* What the rank's ledger holds other than cells and arenas. */
static ds_status sum_program(const ds_engine *engine, size_t *bytes_out)
{
    const dsi_rank_plan rank = {.ctx = engine->ctx,
                                .cells = engine->cells,
                                .local = engine->local,
                                .places = engine->places,
                                .residencies = engine->residencies,
                                .own = engine->own,
                                .train_plan = engine->train_plan,
                                .eval_plan = engine->eval_plan,
                                .choice = {.recompute = engine->spec.recompute.mode}};
    size_t bytes[DSI_MEMORY_KIND_COUNT];
    dsi_ledger *ledger = NULL;
    DS_TRY(dsi_rank_ledger(&rank, ds_comm_size(engine->comm), false, &ledger));
    dsi_ledger_at(ledger, DSI_RESIDENCY_HOST, 0, bytes);
    dsi_ledger_destroy(&ledger);
    *bytes_out = bytes[DSI_MEMORY_HOST_STATE] + bytes[DSI_MEMORY_PROCESS];
    return DS_OK;
}

ds_status dsi_engine_view_memory(ds_engine *engine)
{
    const dsi_plan *plan = engine->train_plan;
    size_t program = 0;
    if (engine->memory != NULL) {
        return DS_OK;
    }
    DS_TRY(sum_program(engine, &program));
    dsi_memory_view *view = calloc(1, sizeof *view);
    size_t *curve = calloc((size_t)plan->ledger->n_steps * DSI_MEMORY_KIND_COUNT, sizeof *curve);
    if (view == NULL || curve == NULL) {
        free(view);
        free(curve);
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a memory report");
    }
    dsi_ledger_curve(plan->ledger, DSI_RESIDENCY_DEVICE, curve);
    for (ds_phase p = 0; p < DS_MAX_PHASES; ++p) {
        sum_phase(curve, plan, p, view);
    }
    free(curve);
    const uint32_t n_micro = dsi_phases_micro(&plan->phases);
    const uint32_t n_forward = dsi_phases_forward(&plan->phases);
    sum_at(plan->ledger, plan->phase_begin[n_forward], view->values[DSI_CALL_BACKWARD]);
    sum_at(plan->ledger, plan->phase_begin[n_micro], view->values[DSI_CALL_STEP]);
    sum_cells(engine, view);
    view->program = program;
    engine->memory = view;
    return DS_OK;
}

/* ---- what is there ---- */

static size_t sum_kinds(const size_t bytes[DSI_MEMORY_KIND_COUNT])
{
    size_t sum = 0;
    for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
        sum += bytes[k];
    }
    return sum;
}

typedef struct measured {
    dsi_process_memory process;
    /* resident bytes */
    size_t cells[DSI_RESIDENCY_COUNT][DSI_MEMORY_KIND_COUNT];
    size_t all_cells, arenas;
} measured;

static void measure(const ds_engine *engine, measured *m)
{
    memset(m, 0, sizeof *m);
    dsi_process_memory_read(&m->process);
    if (engine->exec == NULL) {
        return;
    }
    for (ds_cell c = 0; c < ds_cells_count(engine->local); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->local, c);
        const dsi_cell_residency residency = dsi_residency_of(&engine->residencies, c);
        const bool host = residency.where == DSI_RESIDENCY_HOST;
        if (residency.parent == DS_NONE && residency.where != DSI_RESIDENCY_DISK) {
            const size_t bytes = dsi_exec_resident_of(engine->exec, c);
            m->cells[host ? DSI_RESIDENCY_HOST : DSI_RESIDENCY_DEVICE]
                    [dsi_memory_kind_of(cell->kind)] += bytes;
            m->all_cells += bytes;
        }
    }
    const size_t device = dsi_exec_resident_bytes(engine->exec);
    const size_t cells = sum_kinds(m->cells[DSI_RESIDENCY_DEVICE]);
    m->arenas = device > cells ? device - cells : 0;
}

/* The most in the arenas since the last report, and now: of one kind, or (DSI_MEMORY_KIND_COUNT) of
 * all together. */
static size_t most_of(const ds_engine *engine, int kind)
{
    const dsi_memory_view *v = engine->memory;
    size_t most = 0;
    for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
        most += k == kind || kind == DSI_MEMORY_KIND_COUNT ? v->values[dsi_engine_awaits(engine)][k]
                                                           : 0;
    }
    for (ds_phase p = 0; p < DS_MAX_PHASES; ++p) {
        const size_t in_phase = kind < DSI_MEMORY_KIND_COUNT ? v->most[p][kind] : v->most_sum[p];
        const bool ran = (engine->phases_run & 1u << p) != 0;
        most = ran && in_phase > most ? in_phase : most;
    }
    return most;
}

static ds_memory_info info_of(const ds_engine *engine, const measured *m)
{
    const dsi_memory_view *v = engine->memory;
    const size_t cells = sum_kinds(v->cells[DSI_RESIDENCY_DEVICE]);
    ds_memory_info info = {.resident = m->process.anonymous + m->process.shared,
                           .resident_shared = m->process.shared,
                           .resident_files = m->process.files,
                           .resident_peak = m->process.peak,
                           .machine_used = m->process.machine_used,
                           .machine_memory = m->process.machine_memory};
    if (engine->exec != NULL) {
        info.in_use = cells + sum_kinds(v->values[dsi_engine_awaits(engine)]);
        info.in_use_peak = cells + most_of(engine, DSI_MEMORY_KIND_COUNT);
        info.mapped = dsi_exec_bytes(engine->exec);
        info.host = dsi_exec_host_bytes(engine->exec);
        info.disk = dsi_exec_disk_bytes(engine->exec);
        info.planned = ds_engine_planned_bytes(engine) + info.host + v->program;
    }
    return info;
}

ds_status ds_engine_memory_info(ds_engine *engine, ds_memory_info *info_out)
{
    measured m;
    DS_TRY(dsi_engine_view_memory(engine));
    measure(engine, &m);
    *info_out = info_of(engine, &m);
    return DS_OK;
}

/* ---- the report ---- */

/* Where lines go: the log, or a text. */
typedef struct sink {
    ds_ctx *ctx;
    dsi_buf *text; /* NULL: the log */
} sink;

static void put(const sink *to, const char *format, ...) DS_PRINTF(2, 3);
static void put(const sink *to, const char *format, ...)
{
    char line[LINE_BYTES + 64];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (to->text != NULL) {
        dsi_buf_puts(to->text, line);
        dsi_buf_putc(to->text, '\n');
    } else {
        ds_log(to->ctx, DS_LOG_JOB, "%s", line);
    }
}

/* NO_FIGURE: a dash. */
#define NO_FIGURE SIZE_MAX

static void put_row(const sink *to, const char *name, size_t now, size_t most, size_t resident)
{
    const size_t figures[] = {now, most, resident};
    char line[LINE_BYTES];
    int n = snprintf(line, sizeof line, "  %-32.32s", name);
    for (int i = 0; i < 3; ++i) {
        n += figures[i] == NO_FIGURE
                 ? snprintf(line + n, sizeof line - (size_t)n, " %11s", "-")
                 : snprintf(line + n, sizeof line - (size_t)n, " %11.2f", (double)figures[i] / mib);
    }
    put(to, "%s", line);
}

static void put_cells(const sink *to, const ds_engine *engine, const measured *m)
{
    static const char *const where[DSI_RESIDENCY_COUNT] = {"", " on the host", " on disk"};
    for (int r = 0; r < DSI_RESIDENCY_COUNT; ++r) {
        for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
            const size_t bytes = engine->memory->cells[r][k];
            char name[64];
            (void)snprintf(name, sizeof name, "%s%s", dsi_memory_kind_name((dsi_memory_kind)k),
                           where[r]);
            if (bytes > 0) {
                put_row(to, name, bytes, NO_FIGURE,
                        r == DSI_RESIDENCY_DISK ? NO_FIGURE : m->cells[r][k]);
            }
        }
    }
}

/* Values share the arenas, so that they have no resident bytes of their own. */
static void put_values(const sink *to, const ds_engine *engine)
{
    for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
        const size_t most = most_of(engine, k);
        char name[64];
        (void)snprintf(name, sizeof name, "  %s", dsi_memory_kind_name((dsi_memory_kind)k));
        if (most > 0) {
            put_row(to, name, engine->memory->values[dsi_engine_awaits(engine)][k], most,
                    NO_FIGURE);
        }
    }
}

static void put_table(const sink *to, const ds_engine *engine, const measured *m,
                      const ds_memory_info *i)
{
    const dsi_memory_view *v = engine->memory;
    const size_t copy = ds_engine_checkpoint_info(engine).copy_bytes;
    const size_t known = m->all_cells + m->arenas;
    put(to, "  %-32s %11s %11s %11s", "MiB", "planned", "most since", "resident");
    put_cells(to, engine, m);
    put_row(to, "arenas", i->mapped - sum_kinds(v->cells[DSI_RESIDENCY_DEVICE]), NO_FIGURE,
            m->arenas);
    put_values(to, engine);
    put_row(to, copy > 0 ? "plans, program, checkpoint copy" : "plans, program", v->program + copy,
            NO_FIGURE, i->resident > known ? i->resident - known : 0);
    put_row(to, "sum", i->planned, NO_FIGURE, i->resident);
}

/* DeepSpeed's two lines, then what they do not report. */
static void put_report(const sink *to, const ds_engine *engine, const char *message)
{
    measured m;
    measure(engine, &m);
    const ds_memory_info i = info_of(engine, &m);
    put(to, "%s", message);
    put(to, "MA %.2f GB         Max_MA %.2f GB         CA %.2f GB         Max_CA %.0f GB",
        (double)i.in_use / gib, (double)i.in_use_peak / gib, (double)i.mapped / gib,
        (double)i.mapped / gib);
    put(to, "CPU Virtual Memory:  used = %.2f GB, percent = %.1f%%", (double)i.machine_used / gib,
        i.machine_memory > 0 ? 100.0 * (double)i.machine_used / (double)i.machine_memory : 0.0);
    if (engine->exec != NULL) {
        put_table(to, engine, &m, &i);
    }
    put(to, "  most resident so far %.2f MiB, mapped files with it; now %.2f MiB of those",
        (double)i.resident_peak / mib, (double)i.resident_files / mib);
}

void dsi_engine_see_memory(ds_engine *engine, const char *message)
{
    const sink to = {.ctx = engine->ctx};
    if (engine->memory != NULL && engine->spec.memory_breakdown &&
        ds_comm_rank(engine->comm) == 0) {
        put_report(&to, engine, message);
        engine->phases_run = 0;
    }
}

ds_status ds_engine_memory_report(ds_engine *engine, const char *message, char **text_out)
{
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    const sink to = {.ctx = engine->ctx, .text = &text};
    DS_TRY(dsi_engine_view_memory(engine));
    put_report(&to, engine, message);
    engine->phases_run = 0;
    if (text.failed) {
        dsi_buf_free(&text);
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a memory report");
    }
    *text_out = text.data;
    return DS_OK;
}
