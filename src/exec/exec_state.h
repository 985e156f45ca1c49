/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the executor. Shared by exec*.c alone:
 *
 *     exec.c          the executor, its plans and its cells
 *     exec_access.c   cells and outputs that the host reads and writes between phases
 *     exec_memory.c   what memory there is and where each cell lies in it
 *     exec_disk.c     who moves cells that live on disk
 *     exec_link.c     addresses of a plan's operands
 *     exec_run.c      a phase, step by step
 *     exec_rows.c     counts of all-to-alls that a phase itself computes
 *     exec_stream.c   the same on an accelerator that has streams
 *     exec_graph.c    phases that an accelerator has captured
 *     exec_join.c     phases that are launched together
 *     exec_host.c     steps that the processor runs beside the device
 */
#ifndef DSI_EXEC_STATE_H
#define DSI_EXEC_STATE_H

#include "exec/exec.h"
#include "exec/side_thread.h"

#include <stdatomic.h>

enum { EXEC_MAX_PLANS = 64, EXEC_NAME_BYTES = 160, EXEC_MAX_GROUPS = 64 };
enum { EXEC_MAX_JOINS = 4, EXEC_MAX_JOINED = 6, EXEC_MAX_KNOWN = 16, EXEC_KNOWN_BYTES = 64 };

/* Who runs steps of the host's. */
typedef struct dsi_host_lane {
    ds_ctx *ctx;                          /* owned: whose threads run them, where they report */
    const ds_kernel_call *_Atomic failed; /* not yet reported; NULL: none */
    atomic_int status;                    /* of that */
} dsi_host_lane;

typedef struct dsi_host_call {
    dsi_host_lane *host;
    const ds_kernel *kernel;
    const ds_kernel_call *call;
} dsi_host_call;

/* A plan, and what it needs to run. */
typedef struct dsi_loaded {
    const dsi_plan *plan;
    ds_kernel_sig *sigs;            /* per step */
    ds_tensor *tensors;             /* per slot and ref */
    ds_kernel_call *calls;          /* per slot and step */
    dsi_comm_call *comm_calls;      /* per slot and step; of collectives */
    dsi_comm **comms;               /* per step; of collectives and slices: along its axes */
    char (*names)[EXEC_NAME_BYTES]; /* per step; of collectives, for a diagnosis */
    dsi_comm_ticket *tickets;       /* per step; of started collectives */
    dsi_swap_ticket *swaps;         /* per step; of started swaps */
    dsi_host_call *host_calls;      /* per slot and step; of the host's */
    ds_accel_event **events;        /* per event of the plan */
    ds_accel_graph **graphs;        /* per slot and phase, NULL where none is; NULL: nowhere */
    uint32_t *ahead; /* swaps into memory of what a later phase reads: n_ahead of them */
    uint32_t n_ahead;
    bool refetch;       /* some of it is old: a cell was written since, or a swap failed */
    uint32_t *crossing; /* swaps that start in one phase and end in another: n_crossing of them */
    uint32_t n_crossing;
    dsi_comm_part *parts;  /* per slot, of all collectives, one after the other */
    size_t *counts;        /* of all all-to-alls: elements of each rank's block, for each part */
    int32_t *table;        /* for offsets of rows where the host does not reach the device's */
    unsigned char *shared; /* arena of what collectives send */
    void **copies; /* per output: for the host, when it cannot touch the device; else NULL */
    float *reals;  /* per slot and output: of one number, as its phase has left it */
} dsi_loaded;

/* Phases of a plan that are launched together. */
typedef struct dsi_exec_joined {
    uint32_t id, n;
    ds_phase phases[EXEC_MAX_JOINED];
    ds_accel_graph *graph; /* NULL: they are not captured */
} dsi_exec_joined;

/* Numbers that the host alone writes to a cell, as it wrote them last. */
typedef struct dsi_exec_known {
    ds_cell cell;
    size_t bytes; /* 0: nothing is known */
    unsigned char data[EXEC_KNOWN_BYTES];
} dsi_exec_known;

struct dsi_exec {
    ds_ctx *ctx;
    ds_cells *cells;
    const ds_accel *accel;
    ds_accel_device *device; /* NULL: the accelerator has no state */
    /* Where it has streams, and a plan has that role; else NULL. By set (1: of the concurrent
     * phase) and role. */
    ds_accel_stream *queues[2][DSI_PLAN_STREAM_COUNT];
    ds_accel_event *forks[2]; /* per set: what it computed before the phase */
    dsi_exec_joined joins[EXEC_MAX_JOINS];
    uint32_t n_joins;
    bool holds;                     /* joined phases are put off: */
    ds_phase held[EXEC_MAX_JOINED]; /* n_held of them, of plan held_id */
    uint32_t held_id, n_held;
    uint64_t n_launches; /* of phases, or of joined ones, so far */
    dsi_exec_known known[EXEC_MAX_KNOWN];
    uint32_t n_known;
    uint64_t n_known_writes;
    bool graphs_stale; /* addresses have changed since the phases were captured */
    ds_status late;    /* failed on a stream, not yet reported */
    char late_text[1024];
    bool changes;     /* what changes states has been asked for since the last wait */
    bool overtook;    /* that was so when something failed: see dsi_exec_has_lost */
    void **cell_data; /* per cell */
    uint32_t n_cells; /* entries of cell_data */
    dsi_loaded plans[EXEC_MAX_PLANS];
    uint32_t n_plans;
    uint32_t n_slots, slot; /* most of any plan; that of the next phases and of the host's inputs */
    unsigned char *map;     /* cells, then the arena */
    unsigned char *arena;
    size_t map_bytes;
    unsigned char *copies; /* of outputs, for the host */
    float *reals;          /* of all plans */
    struct {
        void *memory; /* NULL: none */
        size_t bytes;
    } pinned[2]; /* what streams copy to and from: reals, cells that live on the host */
    dsi_comm *comm;
    dsi_mesh_comms *mesh; /* NULL: collectives are among all ranks */
    struct {
        dsi_comm *control, *group;
    } groups[EXEC_MAX_GROUPS]; /* of devices, that collectives of plans go to */
    uint32_t n_groups;
    const dsi_cell_residency *residencies; /* of the first n_residencies cells */
    uint32_t n_residencies;
    dsi_swap_params swap_params;
    dsi_aio_mover mover;          /* of swap_params, with use_gds */
    void *mapped[2];              /* what it reaches: map, shared; NULL: it does not */
    dsi_swap *swap;               /* NULL: every cell lives on the device */
    dsi_side_thread *side_thread; /* NULL: no plan has a concurrent phase */
    uint32_t n_side_threads;      /* threads of its kernels */
    dsi_host_lane *host;          /* NULL: no plan has a step of the host's */
    uint32_t n_host_threads;      /* threads of its kernels */
    uint32_t side_id;             /* whose phase was started last */
    uint32_t last_id;             /* whose phase ran last */
    unsigned char *shared;        /* shared cells, then the shared arena of each plan */
    size_t shared_bytes;
    dsi_exec_trace_fn trace;
    void *trace_user;
};

/* exec.c: a cell's residency. */
dsi_cell_residency dsi_exec_residency_of(const dsi_exec *exec, ds_cell cell);

/* exec_access.c: copies a phase's outputs of one number to the host, for dsi_exec_real. */
ds_status dsi_exec_keep_reals(const dsi_exec *exec, const dsi_loaded *l, ds_phase phase,
                              ds_accel_stream *stream);

/* exec_memory.c: what one slot's memory of a cell takes; how many there are. */
size_t dsi_exec_cell_stride(const dsi_exec *exec, ds_cell cell);
uint32_t dsi_exec_cell_slots(const dsi_exec *exec, ds_cell cell);
/* exec_memory.c: what was pinned no longer is; before the device is closed. */
void dsi_exec_unpin(dsi_exec *exec);
/* exec_memory.c: parts of cells that live on the device lie inside of them. */
void dsi_exec_place_parts(dsi_exec *exec);

/* exec_disk.c: whether what is asked for of the disk can be had, before the swap's storage is made;
 * memory that the device's transfers reach, before it is released no more. */
ds_status dsi_exec_find_mover(dsi_exec *exec, bool disk);
ds_status dsi_exec_map_memory(dsi_exec *exec);
void dsi_exec_unmap_memory(dsi_exec *exec);

/* exec_run.c: waits for swaps that a phase has left under way. */
ds_status dsi_exec_drain(dsi_exec *exec);
/* exec_run.c: a swapped cell gets another content between phases. */
void dsi_exec_note_written(dsi_exec *exec);

/* exec_run.c: names the step that failed. ctx: where its kernel reports. */
ds_status dsi_exec_fail_step(const dsi_exec *exec, ds_ctx *ctx, const dsi_plan *plan, uint32_t s,
                             ds_status status);
/* exec_run.c: a collective or a transfer of the disk, which the host begins and waits for. */
ds_status dsi_exec_host_step(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                             dsi_exec_times *times);

/* exec_run.c: the slot that a step runs in; what its kernel is called with there. */
uint32_t dsi_exec_slot_of(const dsi_exec *exec, const dsi_loaded *l, const dsi_step *step);
ds_kernel_call *dsi_exec_call_of(const dsi_exec *exec, const dsi_loaded *l, uint32_t s);

/* exec_take.c: a step of role TAKE_SLICE. stream: NULL where the accelerator has none. */
ds_status dsi_exec_take(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                        ds_accel_stream *stream);

/* exec_rows.c: how many rows a step of role DISPATCH_ROWS or RETURN_ROWS carries from and to each
 * rank, by the table that is its first operand. Errors: ERR_ARG, a table that does not ascend, or
 * rows for which there is no room. */
ds_status dsi_exec_count_rows(const dsi_exec *exec, const dsi_loaded *l, uint32_t s, uint32_t slot);

/* exec_stream.c; without streams nothing happens there. */
ds_status dsi_exec_open_streams(dsi_exec *exec);
void dsi_exec_close_streams(dsi_exec *exec);
/* Waits for all streams but that of the concurrent phase, before the host touches what steps
 * touch. Reports what has failed on them, once; look: and does not forget it. */
ds_status dsi_exec_arrive(dsi_exec *exec);
ds_status dsi_exec_look(dsi_exec *exec);
/* exec_join.c: whether a phase, or one of those joined with it, changes what lasts. */
bool dsi_exec_changes(const dsi_exec *exec, uint32_t id, ds_phase phase,
                      const dsi_exec_joined *join);
/* The stream that computes; NULL where the accelerator has none. */
ds_accel_stream *dsi_exec_computing(const dsi_exec *exec, bool side);
/* A phase begins: the set's other streams behind what its computing stream has to do. */
ds_status dsi_exec_fork(const dsi_exec *exec, bool side);
/* *named_out: the message of the error names a step already. */
ds_status dsi_exec_stream_step(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                               dsi_exec_times *times, bool *named_out);
/* Whether the host does a step, no WAIT. */
bool dsi_exec_is_of_host(const dsi_exec *exec, const dsi_loaded *l, uint32_t s);
/* All streams of a set. */
ds_status dsi_exec_wait_set(const dsi_exec *exec, bool side, bool *named_out);
ds_status dsi_exec_wait_stream(const dsi_exec *exec, ds_accel_stream *stream, bool *named_out);

/* exec_run.c: a phase; or joined ones, of which it is the first, where they are captured. */
ds_status dsi_exec_run_now(dsi_exec *exec, uint32_t id, ds_phase phase,
                           const dsi_exec_joined *join);
/* exec_join.c: puts a phase off, if it may; runs what has been. */
ds_status dsi_exec_put_off(dsi_exec *exec, uint32_t id, ds_phase phase, bool *put_off_out);
ds_status dsi_exec_release(dsi_exec *exec);

/* exec_host.c: before the streams are opened, and behind their end. Errors: ERR_NOMEM. */
ds_status dsi_exec_open_host(dsi_exec *exec);
void dsi_exec_close_host(dsi_exec *exec);
/* exec_host.c: a step of the host's, at once; and on a stream of the device's. */
ds_status dsi_exec_run_on_host(const dsi_exec *exec, const dsi_loaded *l, uint32_t s);
ds_status dsi_exec_queue_on_host(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                                 ds_accel_stream *queue);
/* exec_host.c: the failure of a step that was queued so, once. */
ds_status dsi_exec_take_host_failure(const dsi_exec *exec, const ds_kernel_call **failed_out);

/* exec_graph.c: captures each phase that is the device's alone, in each slot, for the addresses
 * that operands have now; what was captured before is dropped. Without graphs nothing happens. */
ds_status dsi_exec_capture(dsi_exec *exec);
void dsi_exec_drop_graphs(dsi_exec *exec);
/* The phase in the slot that is set; NULL: not captured, its steps are queued one by one. */
ds_accel_graph *dsi_exec_graph_of(const dsi_exec *exec, const dsi_loaded *l, ds_phase phase);

/* exec_link.c */

/* Numbers in `counts` of a loaded plan. */
size_t dsi_exec_n_counts(const dsi_plan *plan);
/* In `table`. */
size_t dsi_exec_n_table(const dsi_plan *plan);

/* A cell's memory in a slot: inputs have one each. NULL where it has none. */
void *dsi_exec_cell_of(const dsi_exec *exec, ds_cell cell, uint32_t slot);
/* The memory of an operand; NULL of one that has none, as that of a swapped cell. */
void *dsi_exec_place_of(const dsi_exec *exec, const dsi_loaded *l, const dsi_ref *ref,
                        uint32_t slot);
/* The address by which communicators reach it, and disks, or who moves between them and it. */
void *dsi_exec_peer_view(const dsi_exec *exec, void *memory);
void *dsi_exec_disk_view(const dsi_exec *exec, void *memory);
/* Fills in what the plan's steps are called with: all memory lies where it will stay. */
void dsi_exec_link(const dsi_exec *exec, dsi_loaded *l);
/* The addresses of cells in the plans' operands, after some have changed. */
void dsi_exec_relink(dsi_exec *exec);

#endif
