/* SPDX-License-Identifier: Apache-2.0 */
/* What the model states of this rank weigh, and what ZeRO's formula computes. */
#include "base/buf.h"
#include "plan/plan_kinds.h"
#include "train/engine.h"

#include <string.h>

/* Ranks that a cell is shared by where it lies along these axes. */
static double ranks_along(const ds_engine *engine, dsi_axes axes)
{
    return dsi_axes_size(&engine->spec.zero.mesh, &axes);
}

/* The axes that the placement of a cell cuts it on: with hpZ a state on more than its parameter. */
static dsi_axes cut_axes(const ds_engine *engine, ds_cell cell)
{
    const dsi_placement *at = &engine->places[cell].at;
    return dsi_axes_of(dsi_placement_shard_axes(at) | dsi_axes_mask(&at->flat));
}

/* Ranks over which stage 3 would cut a parameter that it keeps whole as it is small. */
static double ranks_of_kept(const ds_engine *engine, ds_cell cell, dsi_memory_kind kind)
{
    const bool flat = engine->places != NULL && engine->places[cell].at.flat.n > 0;
    const bool kept = kind == DSI_MEMORY_PARAM && engine->spec.zero.stage == 3 && !flat;
    return kept ? ranks_along(engine, dsi_axes_zero(false)) : 1.0;
}

void dsi_engine_memory(const ds_engine *engine, dsi_engine_bytes *bytes_out)
{
    *bytes_out = (dsi_engine_bytes){0};
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        const dsi_memory_kind s = dsi_memory_kind_of(cell->kind);
        const bool lacks =
            engine->places != NULL &&
            !dsi_place_on_has(engine->places[c].at.on[DSI_AXIS_PP], dsi_engine_stage(engine));
        if (s > DSI_MEMORY_MOMENT || lacks) {
            continue;
        }
        const double n = engine->places != NULL ? ranks_along(engine, cut_axes(engine, c)) : 1.0;
        const double part = (double)ds_meta_bytes(cell->meta) / n;
        const double formula = part / ranks_of_kept(engine, c, s);
        bytes_out->held[s] += (double)ds_meta_bytes(ds_cells_get(engine->local, c)->meta);
        bytes_out->formula[s] += formula;
        bytes_out->persistent += part - formula;
    }
}

/* What the ledger of a plan has in its arenas when they are fullest. */
static ds_status print_arena(dsi_buf *text, const dsi_ledger *ledger)
{
    size_t bytes[DSI_MEMORY_KIND_COUNT];
    uint32_t step = 0;
    size_t most = 0;
    DS_TRY(dsi_ledger_peak(ledger, DSI_RESIDENCY_DEVICE, &step, &most));
    dsi_ledger_at(ledger, DSI_RESIDENCY_DEVICE, step, bytes);
    for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
        if (bytes[k] > 0) {
            dsi_buf_printf(text, "  %-20s %10.2f\n", dsi_memory_kind_name((dsi_memory_kind)k),
                           (double)bytes[k] / 1048576.0);
        }
    }
    return DS_OK;
}

ds_status ds_engine_print_memory(const ds_engine *engine, char **text_out)
{
    const double mib = 1048576.0;
    dsi_engine_bytes b;
    double held = 0.0;
    double formula = 0.0;
    dsi_buf text = dsi_buf_make(1 << 16);
    dsi_engine_memory(engine, &b);
    dsi_buf_printf(&text, "model states of a rank (ZeRO stage %u, %u ranks), MiB: held, formula\n",
                   engine->spec.zero.stage, ds_comm_size(engine->comm));
    for (int s = 0; s <= DSI_MEMORY_MOMENT; ++s) {
        held += b.held[s];
        formula += b.formula[s];
        dsi_buf_printf(&text, "%-16s %10.2f %10.2f\n", dsi_memory_kind_name((dsi_memory_kind)s),
                       b.held[s] / mib, b.formula[s] / mib);
    }
    dsi_buf_printf(&text, "%-16s %10.2f %10.2f\n", "sum", held / mib, formula / mib);
    if (b.persistent > 0.0) {
        dsi_buf_printf(&text, "of which small parameters kept whole beyond the formula %.2f\n",
                       b.persistent / mib);
    }
    dsi_buf_printf(&text, "activations and workspace %.2f; at their peak\n",
                   (double)engine->train_plan->arena_bytes / mib);
    const ds_status status = print_arena(&text, engine->train_plan->ledger);
    if (status < 0) {
        dsi_buf_free(&text);
        return status;
    }
    if (text.failed) {
        dsi_buf_free(&text);
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the memory table");
    }
    *text_out = text.data;
    return DS_OK;
}
