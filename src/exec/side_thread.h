/* SPDX-License-Identifier: Apache-2.0 */
/* One thread that runs a job of the executor concurrently with its caller: started, then waited
 * for.
 *
 * Thread rule: create, start, finish and destroy by one thread, the owner. Between start and finish
 * the job has its thread to itself. No signal is handled on it. Nothing is allocated after create.
 */
#ifndef DSI_EXEC_SIDE_THREAD_H
#define DSI_EXEC_SIDE_THREAD_H

#include <deepspeed/context.h>
#include <stdbool.h>

typedef struct dsi_side_thread dsi_side_thread;

typedef ds_status (*dsi_side_thread_fn)(void *user);

/* n_threads: of the job's kernels, the thread itself among them. Errors: ERR_NOMEM. */
ds_status dsi_side_thread_create(ds_ctx *ctx, uint32_t n_threads, dsi_side_thread **thread_out);
/* Waits for a job under way. Accepts NULL. */
void dsi_side_thread_destroy(dsi_side_thread **thread);

/* The context of the job: its pool, and where it reports errors. */
ds_ctx *dsi_side_thread_ctx(dsi_side_thread *thread);

/* Begins a job; none may be under way. */
void dsi_side_thread_start(dsi_side_thread *thread, dsi_side_thread_fn fn, void *user);
/* Waits for its end; what it returned, however often it is asked; DS_OK when there was none. */
ds_status dsi_side_thread_finish(dsi_side_thread *thread);
/* Waits for its end and forgets what it returned. */
void dsi_side_thread_drop(dsi_side_thread *thread);

#endif
