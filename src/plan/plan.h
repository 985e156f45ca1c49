/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: a straight-line schedule with every byte of memory known before anything runs.
 *
 * A step is one kernel, or one collective of a whole bucket, on operands whose places are fixed: an
 * offset in an arena, or a cell. One
 * plan holds all phases of one micro-batch; a phase is a range of its steps, and the phases share
 * one map of the arena. The values that live from the forward into the backward range are the slot.
 *
 * Invariants (checked by plan_check.c from the plan alone, sharing no code with the passes):
 *  1. steps are sorted by phase and phase_begin bounds them;
 *  2. every operand lies inside the arena, or covers a cell from its start;
 *  3. a step reads only bytes that an earlier step of the plan wrote as the same value, or a cell;
 *  4. no step writes bytes of a value that a later step reads (views and stated in-place writes
 *     apart);
 *  5. scratch memory overlaps no live value;
 *  6. outputs are whole at the end of their phase;
 *  7. what a collective sends lies in the shared arena or in a shared cell;
 *  8. between a start and its wait nobody reads what it writes; every start has one wait, of a
 *     collective in its phase, of a swap there or in a later one, or of a swap to its home in the
 *     forward phase before it: that one is for the step before (a carried swap);
 *  9. a cell that lives in host memory or on disk is touched by swaps alone, which move it to or
 *     from an arena in whole blocks (home.h); no other cell is;
 * 10. where the phase rest runs beside others, it has a range of the arena to itself, sends
 *     nothing, and no phase that may run meanwhile (all but settle, choose, fetch and take) writes
 *     a cell that it touches, or reads one that it writes;
 * 11. a cell is not read behind a step of its phase that wrote a part of it, nor a part behind one
 *     that wrote the whole;
 * 12. what a carried swap takes home lies where it is from the swap's start to the end of the plan,
 *     and from its begin to the wait; meanwhile nothing touches the cell, its whole, or its parts.
 */
#ifndef DSI_PLAN_PLAN_H
#define DSI_PLAN_PLAN_H

#include "base/arena.h"
#include "cost/ledger.h"
#include "ir/graph.h"
#include "pass/home.h"

typedef enum dsi_space {
    DSI_SPACE_NONE,
    DSI_SPACE_ARENA,
    DSI_SPACE_SHARED, /* a second arena, that peers may read: what collectives send */
    DSI_SPACE_CELL
} dsi_space;

/* Where an operand lies. */
typedef struct dsi_ref {
    ds_meta meta;
    dsi_space space;
    ds_cell cell;
    size_t offset;  /* in its arena; 0 for a cell */
    ds_value value; /* of the graph that the plan was made from; names the contents */
} dsi_ref;

/* A collective that overlaps with computation is two steps: its start, which has its operands, and
 * its wait, which reads them all again, so that they stay as they are in between. */
typedef enum dsi_step_kind { DSI_STEP_RUN, DSI_STEP_START, DSI_STEP_WAIT } dsi_step_kind;

typedef struct dsi_step {
    dsi_step_kind kind;
    uint32_t start; /* of a WAIT: its START; behind it, when that one is of the step before */
    const ds_op *op;
    const ds_kernel *kernel; /* NULL: a collective, see n_parts */
    const void *attrs;       /* of the first part */
    const char *scope;
    ds_phase phase;
    uint32_t n_parts;       /* nodes of the bucket, their operands one after the other; else 1 */
    uint32_t n_in, n_out;   /* in all */
    uint32_t in_at, out_at; /* in plan->refs; the metas for the kernel's signature in plan->metas */
    size_t work_offset, work_bytes; /* scratch in the arena */
    bool recomputed;                /* does again what the forward phase did */
    double flops, bytes;
    double again; /* the part of flops that repeats what the forward pass computed */
} dsi_step;

/* Bytes of the arena. */
typedef struct dsi_range {
    size_t offset, bytes;
} dsi_range;

typedef struct dsi_plan_output {
    const char *name;
    dsi_ref ref;
    ds_phase phase; /* that makes it */
} dsi_plan_output;

typedef struct dsi_plan {
    ds_ctx *ctx;
    ds_cells *cells;  /* borrowed */
    dsi_arena *arena; /* owns all below */
    uint32_t n_threads;
    ds_isa isa;
    dsi_step *steps;
    uint32_t n_steps;
    dsi_ref *refs;
    ds_meta *metas; /* refs[i].meta again, contiguous for the kernels */
    uint32_t n_refs;
    uint32_t phase_begin[DS_PHASE_COUNT + 1];
    dsi_plan_output *outputs;
    uint32_t n_outputs;
    size_t arena_bytes, shared_bytes;
    bool rest_beside;     /* the phase rest runs on a thread of its own, beside later steps */
    dsi_range beside;     /* of the arena: of that phase alone; inside of arena_bytes */
    dsi_ledger *ledger;   /* owned: what lies in the two arenas, over the steps */
    bool *cell_swapped;   /* per cell: it does not live in device memory */
    ds_cell *cell_parent; /* per cell: whose storage it is a part of, or DS_NONE */
    bool *cell_shared;    /* per cell of the table when the plan was built: a collective sends it */
    uint32_t n_cells;
} dsi_plan;

typedef struct dsi_plan_env {
    uint32_t n_threads;
    ds_isa isa; /* highest instruction set to use */
    /* Kernel chooser of the accelerator: dsi_cpu_kernel_choose, dsi_null_kernel_choose. */
    const ds_kernel *(*choose)(const ds_kernel_sig *sig, ds_isa cap);
    bool no_reuse;    /* every value gets bytes of its own (comparison in tests) */
    bool no_fuse;     /* run the graph as traced */
    bool overlap;     /* collectives run beside computation */
    int64_t prefetch; /* with overlap: elements of gathers that may be started ahead of their use */
    const dsi_home *homes; /* where cells live: n_homes of them, the others on the device */
    uint32_t n_homes;
    /* bytes of swaps in flight beside computation: into memory in the forward and backward phases
     * and in the later ones, and back */
    size_t read_ahead, update_ahead, write_behind;
    bool carry;                /* the last swaps of states end in the next step (invariant 8) */
    bool write_first;          /* swaps home of an update end before the next update */
    bool rest_beside;          /* see dsi_plan */
    const dsi_range *reserved; /* what somebody else keeps while this plan runs */
    uint32_t n_reserved;
} dsi_plan_env;

/* Lowers a graph: fuse, order, choose kernels, place memory, check. Pure. The plan keeps no pointer
 * into the graph. Errors: ERR_UNSUPPORTED (no kernel: names op and dtypes), ERR_GRAPH, ERR_NOMEM.
 */
ds_status dsi_plan_build(const ds_graph *graph, const dsi_plan_env *env, dsi_plan **plan_out);
void dsi_plan_destroy(dsi_plan **plan);

/* NULL when absent. */
const dsi_plan_output *dsi_plan_find_output(const dsi_plan *plan, const char *name);

/* The ranges of the arena that live across the end of `phase` (the slot for FORWARD). Fills up to
 * `room` ranges; *n_out is how many there are. Errors: ERR_NOMEM. */
ds_status dsi_plan_live_after(const dsi_plan *plan, ds_phase phase, dsi_range *ranges,
                              uint32_t room, uint32_t *n_out);

/* Re-derives the invariants above. ERR_GRAPH names step and invariant. */
ds_status dsi_plan_check(const dsi_plan *plan);

/* One line a step, as EXPLAIN prints a query; plus totals. The caller frees with free(). */
ds_status dsi_plan_print(const dsi_plan *plan, char **text_out);

/* 64-bit hash of the printed steps: equal plans, equal digests, on any machine. */
ds_status dsi_plan_digest(const dsi_plan *plan, uint64_t *digest_out);

#endif
