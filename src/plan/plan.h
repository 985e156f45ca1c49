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
 *  3. a step reads only bytes that an earlier step of the plan wrote as the same value, or a cell
 * in the version that it has then;
 *  4. no step writes bytes of a value that a later step reads (views and stated in-place writes
 *     apart);
 *  5. scratch memory overlaps no live value;
 *  6. outputs are whole at the end of their phase;
 *  7. what a collective sends lies in the shared arena or in a shared cell;
 *  8. of two steps on two streams that touch the same bytes of an arena or a cell, one of them to
 *     write, events order one behind the end of the other (see dsi_plan_stream); all that a phase
 *     puts on other streams is waited for: collectives in that phase, swaps there, in a later one,
 *     or, of a swap out, in the forward phase of the next step (a deferred writeback);
 *  9. a cell that lives in host memory or on disk is touched by swaps alone, which move it to or
 *     from an arena in whole blocks (cell_residency.h), or from a cell of the device; no other cell
 *     is. Steps of the host's, on a stream of theirs, touch cells in host memory and nothing else;
 * 10. nothing orders a phase on the side stream (DS_PHASE_SIDE) against those that may run
 *     meanwhile (all but DS_PHASE_ALONE): it has a range of the arena to itself, sends nothing, and
 *     they write no cell that it touches and read none that it writes;
 * 11. a cell is not read behind a step of its phase that wrote a part of it, nor a part behind one
 *     that wrote the whole;
 * 12. no result is lost: of what a step makes something is read later, lies in a cell or is a named
 *     output; what a swap has fetched and an update has changed is swapped out;
 * 13. with several slots, what a phase of a micro-batch reads of another one lies in `slot`; what
 *     lies in that of a chunk is touched by phases from its forward to its backward phase alone,
 *     and by no swap, and nothing else lies in the pool; the slots of micro-batches and chunks that
 *     are in flight at once, in the order of slot_events, do not overlap.
 */
#ifndef DSI_PLAN_PLAN_H
#define DSI_PLAN_PLAN_H

#include "base/arena.h"
#include "cost/ledger.h"
#include "ir/graph.h"
#include "ir/step_kind.h"
#include "pass/cell_residency.h"
#include "plan/plan_pool.h"

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
    bool initial; /* of a cell: its content when the plan begins, which no step makes */
    ds_cell cell;
    size_t offset;  /* in its arena; 0 for a cell */
    ds_value value; /* of the graph that the plan was made from; names the contents */
} dsi_ref;

typedef enum dsi_plan_stream_kind {
    DSI_PLAN_STREAM_COMPUTE, /* kernels, and collectives that do not overlap: one after another */
    DSI_PLAN_STREAM_COMM,    /* collectives of one communicator */
    DSI_PLAN_STREAM_SWAP_IN,
    DSI_PLAN_STREAM_SWAP_OUT,
    DSI_PLAN_STREAM_HOST, /* kernels of the processor, on cells in host memory */
    DSI_PLAN_STREAM_COUNT
} dsi_plan_stream_kind;

/* A queue of work of the device. Stream 0 computes; a phase that runs concurrently with others
 * (DS_PHASE_SIDE) has a second set of streams, one of which computes too. What orders steps of two
 * streams:
 *
 *     fork   a phase begins on all streams of its set behind all that the computing stream of
 *            the set has to do; the side set begins behind what stream 0 has to do
 *     event  recorded behind a step, waited for before another one
 *     order  steps of a computing stream and of the host's run one after another; those of
 *            another stream begin in their order and end in any: its own event alone says that one
 *            has ended
 *     join   a phase that is DS_PHASE_ALONE begins behind the end of the side set */
typedef struct dsi_plan_stream {
    dsi_plan_stream_kind role;
    bool side;        /* of the phase that is concurrent with others */
    int64_t axes;     /* of COMM: of its communicator (place/mesh.h); 0: all ranks */
    const char *name; /* "compute", "comm dp", "swap in", "side" … */
} dsi_plan_stream;

typedef struct dsi_step {
    dsi_step_kind kind;
    uint32_t stream;           /* of plan->streams */
    uint32_t event;            /* recorded behind it; DS_NONE: none */
    uint32_t wait_at, n_waits; /* events that it waits for, in plan->waits */
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
    bool on_host;                   /* of START: the processor's kernel; see invariant 9 */
    ds_cost cost;
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

enum { DSI_PLAN_CHUNKS = DS_MAX_PHASES / 2 };

/* What a chunk's phases leave for one another, for a micro-batch in flight. */
typedef struct dsi_plan_slot {
    dsi_range range; /* of the arena: that of slot 0, where the operands say it lies */
    size_t *at;      /* per slot: where it begins */
} dsi_plan_slot;

typedef struct dsi_plan {
    ds_ctx *ctx;
    ds_cells *cells;  /* borrowed */
    dsi_arena *arena; /* owns all below */
    uint32_t n_threads;
    ds_isa isa;
    dsi_step *steps;
    uint32_t n_steps;
    dsi_plan_stream *streams;
    uint32_t n_streams;
    uint32_t *events; /* per event: the step behind which it is recorded */
    uint32_t n_events;
    uint32_t *waits; /* events; each step has its own part */
    uint32_t n_waits;
    dsi_ref *refs;
    ds_meta *metas; /* refs[i].meta again, contiguous for the kernels */
    uint32_t n_refs;
    dsi_phases phases;                       /* names in the arena */
    uint32_t phase_begin[DS_MAX_PHASES + 1]; /* of one that is not there: n_steps */
    dsi_plan_output *outputs;
    uint32_t n_outputs;
    size_t arena_bytes, shared_bytes;
    uint32_t n_slots; /* micro-batches whose forward phase may have run and backward phase not */
    dsi_plan_slot slot[DSI_PLAN_CHUNKS]; /* with more than one: per chunk */
    dsi_range pool;                      /* of the arena: all slots of all chunks */
    dsi_slot_events slot_events;         /* in what order a step takes them and gives them back */
    ds_phase side;        /* runs on streams of its own, concurrent to later steps; or DS_NONE */
    dsi_range side_range; /* of the arena: of the side phase alone; inside of arena_bytes */
    dsi_ledger *ledger;   /* owned: what lies in the two arenas, over the steps */
    bool *cell_swapped;   /* per cell: it does not live in device memory */
    bool *cell_on_host;   /* per cell: but in that of the host */
    ds_cell *cell_parent; /* per cell: whose storage it is a part of, or DS_NONE */
    size_t *cell_offset;  /* per cell: of a part, in the storage of its parent; else 0 */
    bool *cell_shared;    /* per cell of the table when the plan was built: a collective sends it */
    uint32_t n_cells;
} dsi_plan;

typedef struct dsi_plan_env {
    uint32_t n_threads;
    ds_isa isa; /* what kernels may need */
    /* Kernel chooser of the accelerator: dsi_cpu_kernel_choose, dsi_null_kernel_choose. */
    const ds_kernel *(*choose)(const ds_kernel_sig *sig, ds_isa has);
    /* The same for steps of the host's; NULL where the graph has none. */
    const ds_kernel *(*choose_host)(const ds_kernel_sig *sig, ds_isa has);
    ds_isa host_isa;
    bool no_reuse;    /* every value gets bytes of its own (comparison in tests) */
    bool no_fuse;     /* run the graph as traced */
    uint32_t n_slots; /* 0: 1 */
    dsi_slot_events slot_events;
    bool overlap;     /* collectives run concurrently with computation */
    int64_t prefetch; /* with overlap: elements of gathers that may be started ahead of their use */
    const dsi_cell_residency
        *residencies; /* where cells live: n_residencies of them, the others on the device */
    uint32_t n_residencies;
    /* bytes of swaps in flight during computation: into memory in the forward and backward phases
     * and in the later ones, and back */
    size_t read_ahead, update_ahead, write_behind;
    bool defer;       /* the last writebacks of states end in the next step (invariant 8) */
    bool write_first; /* writebacks of an update end before the next update */
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

/* Of a stream of the plan: its steps, the events that they wait for, those recorded behind them. */
typedef struct dsi_stream_use {
    uint32_t steps, waits, events;
} dsi_stream_use;

dsi_stream_use dsi_plan_stream_use(const dsi_plan *plan, uint32_t stream);

/* Re-derives the invariants above. ERR_GRAPH names step and invariant. */
ds_status dsi_plan_check(const dsi_plan *plan);

/* A legend, a header row and a row a step, as EXPLAIN prints a query, in lines of 160 columns (but
 * for words that are longer); then totals. The caller frees with free(). */
ds_status dsi_plan_print(const dsi_plan *plan, char **text_out);

#endif
