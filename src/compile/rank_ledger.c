/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank holds, over the steps of its training plan. See rank_ledger.h. */
#include "compile/rank_ledger.h"

#include "exec/exec.h"
#include "plan/plan_kinds.h"

/* Measured: what a rank of this library holds beside plan and cells (docs/internals/plan.md). */
enum { PROCESS_BYTES = 3 << 20, COMM_BYTES = 4 << 20 };
/* An estimate: context and libraries of a GPU, and buffers of its communicators. */
enum { CONTEXT_BYTES = 512 << 20, DEVICE_COMM_BYTES = 512 << 20 };

static ds_status add_cells(const dsi_rank_plan *plan, dsi_ledger *ledger)
{
    for (ds_cell c = 0; c < ds_cells_count(plan->local); ++c) {
        const ds_cell_info *cell = ds_cells_get(plan->local, c);
        const dsi_cell_residency residency = dsi_residency_of(&plan->residencies, c);
        if (residency.parent != DS_NONE) {
            continue; /* lies in its parent */
        }
        const dsi_ledger_entry entry = {
            .kind = dsi_memory_kind_of(cell->kind),
            .residency = residency.where,
            .last = ledger->n_steps - 1,
            .bytes = residency.where == DSI_RESIDENCY_DEVICE
                         ? dsi_rank_cell_copies(plan, c) * ds_meta_bytes(cell->meta)
                         : dsi_swap_block_bytes(ds_meta_bytes(cell->meta)) *
                               (residency.per_slot ? plan->train_plan->n_slots : 1),
            .name = cell->name,
            .what = ds_cell_kind_name(cell->kind)};
        DS_TRY(dsi_ledger_add(ledger, &entry));
    }
    return DS_OK;
}

static ds_status add_whole_run(dsi_ledger *ledger, dsi_memory_kind kind, dsi_residency residency,
                               size_t bytes, const char *name)
{
    const dsi_ledger_entry entry = {.kind = kind,
                                    .residency = residency,
                                    .last = ledger->n_steps - 1,
                                    .bytes = bytes,
                                    .name = name,
                                    .what = dsi_memory_kind_name(kind)};
    return dsi_ledger_add(ledger, &entry);
}

/* Bytes of the pool but those of slot 0. */
static size_t other_slots(const dsi_plan *plan)
{
    size_t first = 0;
    for (uint32_t c = 0; c < dsi_phases_forward(&plan->phases); ++c) {
        first += plan->slot[c].range.bytes;
    }
    return plan->pool.bytes - first;
}

size_t dsi_rank_context_bytes(uint32_t n_ranks)
{
    return (size_t)CONTEXT_BYTES + (n_ranks > 1 ? DEVICE_COMM_BYTES : 0);
}

static ds_status fill(const dsi_rank_plan *plan, uint32_t n_ranks, bool own_device,
                      dsi_ledger *ledger)
{
    uint32_t step = 0;
    size_t live = 0;
    DS_TRY(add_cells(plan, ledger));
    DS_TRY(dsi_ledger_add_all(ledger, plan->train_plan->ledger));
    if (plan->train_plan->n_slots > 1) {
        DS_TRY(add_whole_run(ledger, DSI_MEMORY_ACTIVATION, DSI_RESIDENCY_DEVICE,
                             other_slots(plan->train_plan), "other micro-batches in flight"));
    }
    DS_TRY(dsi_ledger_peak(ledger, DSI_RESIDENCY_DEVICE, &step, &live));
    const size_t mapped = dsi_rank_mapped_bytes(plan);
    DS_TRY(add_whole_run(ledger, DSI_MEMORY_GAPS, DSI_RESIDENCY_DEVICE,
                         mapped > live ? mapped - live : 0, "reserved for other steps"));
    const size_t tables =
        dsi_exec_table_bytes(plan->train_plan) + dsi_exec_table_bytes(plan->eval_plan);
    DS_TRY(add_whole_run(ledger, DSI_MEMORY_HOST_STATE, DSI_RESIDENCY_HOST, tables, "plans"));
    if (own_device) {
        DS_TRY(add_whole_run(ledger, DSI_MEMORY_PROCESS, DSI_RESIDENCY_DEVICE,
                             dsi_rank_context_bytes(n_ranks), "context, communicators"));
    }
    return add_whole_run(ledger, DSI_MEMORY_PROCESS, DSI_RESIDENCY_HOST,
                         PROCESS_BYTES + (n_ranks > 1 ? COMM_BYTES : 0), "process");
}

ds_status dsi_rank_ledger(const dsi_rank_plan *plan, uint32_t n_ranks, bool own_device,
                          dsi_ledger **ledger_out)
{
    dsi_ledger *ledger = NULL;
    DS_TRY(dsi_ledger_create(plan->ctx, plan->train_plan->n_steps, &ledger));
    const ds_status status = fill(plan, n_ranks, own_device, ledger);
    if (status < 0) {
        dsi_ledger_destroy(&ledger);
        return status;
    }
    *ledger_out = ledger;
    return DS_OK;
}
