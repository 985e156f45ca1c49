/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the executor. Shared by exec*.c alone:
 *
 *     exec.c          the executor, its plans and its cells
 *     exec_memory.c   what memory there is and where each cell lies in it
 *     exec_link.c     addresses of a plan's operands
 *     exec_run.c      a phase, step by step
 */
#ifndef DSI_EXEC_STATE_H
#define DSI_EXEC_STATE_H

#include "exec/beside.h"
#include "exec/exec.h"

enum { EXEC_MAX_PLANS = 16, EXEC_NAME_BYTES = 160 };

/* A plan, and what it needs to run. */
typedef struct dsi_loaded {
    const dsi_plan *plan;
    ds_kernel_sig *sigs;            /* per step */
    ds_tensor *tensors;             /* per ref */
    ds_kernel_call *calls;          /* per step */
    dsi_comm_call *comm_calls;      /* per step; of collectives */
    dsi_comm **comms;               /* per step; of collectives and slices: along its axes */
    char (*names)[EXEC_NAME_BYTES]; /* per step; of collectives, for a diagnosis */
    dsi_comm_ticket *tickets;       /* per step; of started collectives */
    dsi_swap_ticket *swaps;         /* per step; of started swaps */
    uint32_t *ahead;                /* steps that bring what a later phase reads: n_ahead of them */
    uint32_t n_ahead;
    bool bring_again;   /* some of it is old, a cell has been written since, or did not come */
    uint32_t *crossing; /* swaps that start in one phase and end in another: n_crossing of them */
    uint32_t n_crossing;
    dsi_comm_part *parts;  /* of all collectives, one after the other */
    unsigned char *shared; /* arena of what collectives send */
} dsi_loaded;

struct dsi_exec {
    ds_ctx *ctx;
    ds_cells *cells;
    void **cell_data; /* per cell */
    uint32_t n_cells; /* entries of cell_data */
    dsi_loaded plans[EXEC_MAX_PLANS];
    uint32_t n_plans;
    unsigned char *map; /* cells, then the arena */
    unsigned char *arena;
    size_t map_bytes;
    dsi_comm *comm;
    dsi_mesh_comms *mesh;  /* NULL: collectives are among all ranks */
    const dsi_home *homes; /* of the first n_homes cells */
    uint32_t n_homes;
    dsi_swap_params swap_params;
    dsi_swap *swap;        /* NULL: every cell lives on the device */
    dsi_beside *beside;    /* NULL: no plan has a phase beside others */
    uint32_t n_beside;     /* threads of its kernels */
    uint32_t beside_id;    /* whose phase was started last */
    unsigned char *shared; /* shared cells, then the shared arena of each plan */
    size_t shared_bytes;
    dsi_exec_trace_fn trace;
    void *trace_user;
};

/* exec.c: where a cell lives. */
dsi_home dsi_exec_home_of(const dsi_exec *exec, ds_cell cell);

/* exec_memory.c: parts of cells that live on the device lie inside of them. */
void dsi_exec_place_parts(dsi_exec *exec);

/* exec_run.c: waits for swaps that a phase has left under way. */
ds_status dsi_exec_settle(dsi_exec *exec);
/* exec_run.c: a swapped cell gets another content between phases. */
void dsi_exec_note_written(dsi_exec *exec);

/* exec_link.c */

/* The memory of an operand; NULL of one that has none, as that of a swapped cell. */
void *dsi_exec_place_of(const dsi_exec *exec, const dsi_loaded *l, const dsi_ref *ref);
/* Fills in what the plan's steps are called with: all memory lies where it will stay. */
void dsi_exec_link(const dsi_exec *exec, dsi_loaded *l);
/* The addresses of cells in the plans' operands, after some have changed. */
void dsi_exec_relink(dsi_exec *exec);

#endif
