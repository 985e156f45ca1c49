/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank of a run holds and does, as data: cells, placements, plans. Built from model,
 * configuration and number of ranks alone (LAW 1): no memory for cells, no communicator, so that
 * the engine, which runs it, and ds_plan, which only reports what it costs, share it.
 */
#ifndef DSI_COMPILE_RANK_PLAN_H
#define DSI_COMPILE_RANK_PLAN_H

#include "compile/memory_policy.h"
#include "cost/device.h"
#include "cost/ledger.h"
#include "pass/chunks.h"
#include "pipe/pipe_schedule.h"
#include "place/stage_cut.h"
#include "plan/plan.h"

typedef struct dsi_rank_request {
    const ds_model *model;
    const dsi_engine_spec *spec; /* its zero.mesh.n_ranks is the number of ranks */
    const char *const *frozen;   /* glob patterns of parameters without gradient */
    uint32_t n_frozen;
    uint32_t n_threads;
    uint32_t stage;                  /* of the pipeline, from 0: whose plan is made */
    const dsi_memory_choice *choice; /* of the memory policy, as another stage's plan has it, which
                                        is every stage's; NULL: the first that fits */
    const dsi_device *device; /* of one rank, with memory of its own: what super_offload's states
                                 are placed by (state_place.h); NULL: unknown */
    uint32_t n_local;         /* ranks of its node; 0: 1 */
    size_t memory;            /* bytes that a rank may use of it; 0: all */
} dsi_rank_request;

/* Where the cost model has put optimizer states. Parameters are in buckets, in the order in which
 * the backward pass ends with their gradients: the last `n_kept` keep their states on the device,
 * those of the others are the host's, and so are their updates. Seconds are of a planned step. */
typedef struct dsi_state_place {
    bool on; /* it has chosen */
    uint32_t n_buckets, n_kept, n_tried;
    int64_t elements, kept; /* of parameters, those that the threshold keeps apart */
    double ratio;           /* offload_optimizer.ratio that is the same choice */
    double seconds, host_seconds, device_seconds; /* chosen, none kept, all kept; 0: does not fit */
    size_t lacks;                                 /* bytes that all on the device lacks; 0: none */
} dsi_state_place;

enum { DSI_RANK_AXES_MOST = 32 };

typedef struct dsi_rank_plan {
    ds_ctx *ctx;
    ds_cells *cells;             /* logical */
    ds_cells *local;             /* of the rank: same ids; with one rank the same table */
    dsi_spread *places;          /* per cell */
    dsi_residencies residencies; /* of the local cells; none: all on the device */
    dsi_train_cells own;
    dsi_plan *train_plan, *eval_plan;
    dsi_stage_messages train_messages, eval_messages; /* of all stages; one stage: none */
    int64_t axes[DSI_RANK_AXES_MOST]; /* codes of the axes that collectives of any stage are along,
                                         in an order that is the same on all ranks */
    uint32_t n_axes;
    dsi_memory_choice choice; /* in force */
    uint32_t n_kept;          /* losses that keep their logits */
    dsi_state_place place;
    char idle[DSI_OFFLOAD_SECTIONS][DSI_OFFLOAD_WHY_BYTES]; /* why a section moves nothing, or "" */
} dsi_rank_plan;

/* The schedule of a specification whose mesh has a pipeline. */
dsi_schedule dsi_rank_schedule(const dsi_engine_spec *spec);

/* How sequences are cut in chunks; chunk 0: they are not, as those that are one chunk. */
dsi_chunks dsi_rank_chunks(const dsi_engine_spec *spec);

/* How often the executor maps a local cell: inputs once for each micro-batch in flight. */
uint32_t dsi_rank_cell_copies(const dsi_rank_plan *plan, ds_cell cell);
/* Bytes that the executor maps for the plans of a rank: cells on the device, arenas, what
 * collectives send. */
size_t dsi_rank_mapped_bytes(const dsi_rank_plan *plan);

/* The request is borrowed for the call. Whoever takes fields over sets them to NULL. On an error
 * nothing is left to free. Errors: those of the model, of placement and of plan building. */
ds_status dsi_rank_plan_build(ds_ctx *ctx, const dsi_rank_request *request,
                              dsi_rank_plan *plan_out);
void dsi_rank_plan_free(dsi_rank_plan *plan);

#endif
