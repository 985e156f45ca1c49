/* SPDX-License-Identifier: Apache-2.0 */
/* A model folder below test/golden run through graph, plan and executor, with what tests vary:
 * dtype, instruction set, fusion, memory reuse. For tests of parity. */
#ifndef DS_TEST_GRAPH_RUN_H
#define DS_TEST_GRAPH_RUN_H

#include "common/golden.h"
#include "compile/train_graph.h"
#include "exec/exec.h"
#include "ref/ref.h"

typedef struct graph_run_params {
    ds_dtype dtype;
    ds_isa isa; /* highest that kernels may use, the machine permitting */
    bool no_fuse, no_reuse;
    bool reparse; /* print the graph and run what the text parses to */
    uint32_t n_slots;
    int64_t accumulation; /* 0: 1 */
} graph_run_params;

typedef struct graph_run {
    ds_ctx *ctx;
    ds_model *model;
    ds_cells *cells;
    dsi_plan *plan;
    dsi_exec *exec;
    uint32_t id;
    dsi_train_cells own;
    int64_t step;
} graph_run;

/* Training with AdamW of the batch's shape, weights of the folder. Fails the test on error. */
void graph_run_open(graph_run *run, ds_ctx *ctx, const char *folder, const ref_batch *batch,
                    const graph_run_params *params);
void graph_run_close(graph_run *run);
/* Forward and backward; the loss. */
float graph_run_pass(graph_run *run);
/* AdamW from the gradients of the last pass, decay on every parameter. */
void graph_run_update(graph_run *run, const ref_adamw_params *params);
/* The cell's memory, count elements; NULL when there is none. */
void *graph_run_cell(const graph_run *run, ds_cell_kind kind, const char *name, size_t *count_out);

/* Logits (T,V) of one sequence by a prefill that asks for each row, as generation does. */
void graph_run_logits(ds_ctx *ctx, const char *folder, const int32_t *tokens, int64_t t, ds_isa isa,
                      float *logits);

#endif
