/* SPDX-License-Identifier: Apache-2.0 */
/* The executor: memory for cells and arena, and runs of plan phases.
 *
 * Use: create, bind cells that live elsewhere (mapped weights), add plans, allocate, run. After
 * allocate nothing is allocated any more (LAW 6). One thread calls; kernels use the context's pool.
 * A plan's phase on the side stream (dsi_plan.side) runs on a thread of the executor's, between
 * start and finish.
 */
#ifndef DSI_EXEC_EXEC_H
#define DSI_EXEC_EXEC_H

#include "accel/accel.h"
#include "base/buf.h"
#include "comm/comm.h"
#include "exec/swap.h"
#include "place/mesh_comm.h"
#include "plan/plan.h"

typedef struct dsi_exec dsi_exec;

/* comm: for the collectives of the plans, borrowed; NULL when they have none. */
ds_status dsi_exec_create(ds_ctx *ctx, ds_cells *cells, dsi_comm *comm, dsi_exec **exec_out);
void dsi_exec_destroy(dsi_exec **exec);

/* The accelerator that runs the plans, which were made for it; default dsi_accel_cpu. Before
 * everything that adds, binds or allocates. Errors: those of its open. */
ds_status dsi_exec_set_accel(dsi_exec *exec, const dsi_accel_choice *choice);

/* Communicators of the mesh whose axes the plans' collectives name; borrowed. Needed when they name
 * any, before dsi_exec_add, which is collective then. */
void dsi_exec_set_mesh(dsi_exec *exec, dsi_mesh_comms *mesh);

/* Whether host memory and device memory are one: dsi_exec_bind and dsi_exec_host_view work. */
bool dsi_exec_is_on_host(const dsi_exec *exec);
/* Uses the caller's memory for a cell; it must outlive the executor and hold the cell's bytes,
 * aligned to 64 unless the cell is only read. Before dsi_exec_allocate. Errors: ERR_UNSUPPORTED
 * when the accelerator has memory of its own. */
ds_status dsi_exec_bind(dsi_exec *exec, ds_cell cell, void *data);

/* The residency of cells; n entries, borrowed as long as the executor. Before dsi_exec_allocate. */
void dsi_exec_set_residencies(dsi_exec *exec, const dsi_cell_residency *residencies, uint32_t n,
                              const dsi_swap_params *params);

/* Threads of the kernels of the concurrent phase; default 1. Before dsi_exec_allocate.
 */
void dsi_exec_set_side_threads(dsi_exec *exec, uint32_t n_threads);

/* Threads of the kernels of steps of the host's; default 1. Before dsi_exec_allocate. */
void dsi_exec_set_host_threads(dsi_exec *exec, uint32_t n_threads);

/* Adds a plan (borrowed, must outlive the executor). *id_out names it in the calls below. */
ds_status dsi_exec_add(dsi_exec *exec, const dsi_plan *plan, uint32_t *id_out);

/* Maps zeroed memory: each unbound cell, and one arena as large as the largest plan's. Cells that
 * no plan touches get memory too. What collectives send lies in memory that peers may read: then
 * the call is collective. Errors: ERR_NOMEM naming the bytes. */
ds_status dsi_exec_allocate(dsi_exec *exec);

/* The slot of the forward and backward phases that run from now on, of what is read and written of
 * inputs, and of outputs; 0 at the start. Of a plan with fewer slots it is 0. */
void dsi_exec_set_slot(dsi_exec *exec, uint32_t slot);

/* Runs a phase of a plan. Swaps may still be under way when it returns (plan.h, invariant 8): a
 * later phase waits for them, or whoever needs the arena or the cells first. An error names step,
 * operator and scope; that of a swap may be one of an earlier phase. */
ds_status dsi_exec_run(dsi_exec *exec, uint32_t id, ds_phase phase);
/* Whether a writeback of a phase failed, or a failure was seen only when a phase other than forward
 * had been asked for: the cells are no state of any step any more. Until dsi_exec_drop. */
bool dsi_exec_has_lost(const dsi_exec *exec);

/* Says that n phases of a plan may run one behind the other without the host in between: an
 * accelerator with graphs then captures them as one piece, too. Before dsi_exec_allocate. */
ds_status dsi_exec_join(dsi_exec *exec, uint32_t id, const ds_phase *phases, uint32_t n);
/* From now on dsi_exec_run may put off what a joined piece begins with, until the piece is complete
 * or anything else is asked for; false: no longer, and what was put off is run. */
ds_status dsi_exec_hold(dsi_exec *exec, bool holds);
/* Which phases of a plan are captured, which are not and why, which are launched together. Empty
 * where the accelerator captures nothing. */
void dsi_exec_captured_text(const dsi_exec *exec, uint32_t id, dsi_buf *text);

/* Begins a plan's phase on the side stream, and returns. One at a time: the caller has finished the
 * one before. Until dsi_exec_finish nobody else touches the cells that it touches: of phases, those
 * that run alone (DS_PHASE_ALONE) do. It is not traced. */
ds_status dsi_exec_start(dsi_exec *exec, uint32_t id);
/* Waits for the end of what was started; nothing when nothing was. Its error names step, operator
 * and scope, and is returned again until the next start or dsi_exec_drop, which waits and forgets
 * it, and swaps that are under way. */
ds_status dsi_exec_finish(dsi_exec *exec);
void dsi_exec_drop(dsi_exec *exec);

/* Cells a[i] and b[i], alike and of the same residency, change their contents without moving
 * them; so do their parts. Neither is sent by a collective. Between phases that touch them. */
void dsi_exec_exchange(dsi_exec *exec, const ds_cell *a, const ds_cell *b, uint32_t n);

/* Bytes of a cell wherever it lives; between phases. Errors: those of the disk. */
ds_status dsi_exec_read(dsi_exec *exec, ds_cell cell, size_t offset, void *data, size_t bytes);
ds_status dsi_exec_write(dsi_exec *exec, ds_cell cell, size_t offset, const void *data,
                         size_t bytes);
/* Copies bytes of a cell from one place of it to another that does not overlap; they stay on the
 * device. Between phases. Errors: ERR_STATE of a swapped cell, or places that overlap. */
ds_status dsi_exec_copy(dsi_exec *exec, ds_cell cell, size_t from, size_t to, size_t bytes);
/* As dsi_exec_write of a whole cell that only the host writes: what it wrote there last is not
 * written again. */
ds_status dsi_exec_write_known(dsi_exec *exec, ds_cell cell, const void *data, size_t bytes);
/* How often such a cell was written. */
uint64_t dsi_exec_known_writes(const dsi_exec *exec);
/* Fills a cell with zeros. */
ds_status dsi_exec_clear(dsi_exec *exec, ds_cell cell);
bool dsi_exec_is_swapped(const dsi_exec *exec, ds_cell cell);
/* Bytes of swapped cells. */
size_t dsi_exec_host_bytes(const dsi_exec *exec);
size_t dsi_exec_disk_bytes(const dsi_exec *exec);
size_t dsi_exec_disk_bytes_of(const dsi_exec *exec, dsi_swap_content content);
/* Seconds so far in which this thread was held by waits for the disk. */
double dsi_exec_swap_waited(const dsi_exec *exec);

/* How much of dsi_exec_bytes is resident: pages that were touched. */
size_t dsi_exec_resident_bytes(const dsi_exec *exec);
/* Resident bytes of a cell's own storage in memory: of the device or of the host; 0 on disk. */
size_t dsi_exec_resident_of(const dsi_exec *exec, ds_cell cell);
/* Where the host reads and writes a cell of the device without a copy, between phases. NULL when it
 * cannot: it lives elsewhere, or the accelerator keeps its memory to itself. Whoever asks has the
 * way through dsi_exec_read and dsi_exec_write too. */
void *dsi_exec_host_view(const dsi_exec *exec, ds_cell cell);
/* A cell of one fp32 number. */
ds_status dsi_exec_write_real(dsi_exec *exec, ds_cell cell, double value);

/* A named output, for the host to read until the next phase runs. Errors: ERR_NOT_FOUND. */
ds_status dsi_exec_output(dsi_exec *exec, uint32_t id, const char *name, ds_tensor *tensor_out);
/* One of a single fp32 number; it stays until its phase runs again. Errors: ERR_NOT_FOUND. */
ds_status dsi_exec_real(dsi_exec *exec, uint32_t id, const char *name, double *value_out);

/* Bytes mapped by dsi_exec_allocate: cells and arena. */
size_t dsi_exec_bytes(const dsi_exec *exec);

/* Heap of a plan that is loaded: its own tables and the executor's. */
size_t dsi_exec_table_bytes(const dsi_plan *plan);

/* How a step went on this rank, in seconds of dsi_clock_seconds(). */
typedef struct dsi_exec_times {
    double begin, end; /* of the step itself: the thread was held */
    double work;       /* of a WAIT: from the begin of its START until what that started had ended;
                          0: it ended within its START */
    double waited;     /* of a collective that has ended: of its time, until the last rank came */
    double since;      /* of the WAIT of a swap: from the begin of its START to its own; 0: the swap
                          had been waited for */
} dsi_exec_times;

/* Called after each step when set. For profiles; NULL switches off. */
typedef void (*dsi_exec_trace_fn)(void *user, const dsi_step *step, const dsi_exec_times *times);
void dsi_exec_set_trace(dsi_exec *exec, dsi_exec_trace_fn fn, void *user);

#endif
