/* The executor: memory for cells and arena, and runs of plan phases.
 *
 * Use: create, bind cells that live elsewhere (mapped weights), add plans, allocate, run. After
 * allocate nothing is allocated any more (LAW 6). One thread calls; kernels use the context's pool.
 */
#ifndef DSI_EXEC_EXEC_H
#define DSI_EXEC_EXEC_H

#include "comm/comm.h"
#include "plan/plan.h"

typedef struct dsi_exec dsi_exec;

/* comm: for the collectives of the plans, borrowed; NULL when they have none. */
ds_status dsi_exec_create(ds_ctx *ctx, ds_cells *cells, dsi_comm *comm, dsi_exec **exec_out);
void dsi_exec_destroy(dsi_exec **exec);

/* Uses the caller's memory for a cell; it must outlive the executor and hold the cell's bytes,
 * aligned to 64 unless the cell is only read. Before dsi_exec_allocate. */
ds_status dsi_exec_bind(dsi_exec *exec, ds_cell cell, void *data);

/* Adds a plan (borrowed, must outlive the executor). *id_out names it in the calls below. */
ds_status dsi_exec_add(dsi_exec *exec, const dsi_plan *plan, uint32_t *id_out);

/* Maps zeroed memory: each unbound cell, and one arena as large as the largest plan's. Cells that
 * no plan touches get memory too. What collectives send lies in memory that peers may read: then
 * the call is collective. Errors: ERR_NOMEM naming the bytes. */
ds_status dsi_exec_allocate(dsi_exec *exec);

/* Runs a phase of a plan. An error names step, operator and scope. */
ds_status dsi_exec_run(dsi_exec *exec, uint32_t id, ds_phase phase);

void *dsi_exec_cell(const dsi_exec *exec, ds_cell cell);
/* A named output, valid until the next phase runs. Errors: ERR_NOT_FOUND. */
ds_status dsi_exec_output(const dsi_exec *exec, uint32_t id, const char *name,
                          ds_tensor *tensor_out);

/* Bytes mapped by dsi_exec_allocate: cells and arena. */
size_t dsi_exec_bytes(const dsi_exec *exec);

/* Heap of a plan that is loaded: its own tables and the executor's. */
size_t dsi_exec_table_bytes(const dsi_plan *plan);

/* Called after each step when set; seconds of the step. For profiles; NULL switches off. */
typedef void (*dsi_exec_trace_fn)(void *user, const dsi_step *step, double seconds);
void dsi_exec_set_trace(dsi_exec *exec, dsi_exec_trace_fn fn, void *user);

#endif
