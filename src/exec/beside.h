/* SPDX-License-Identifier: Apache-2.0 */
/* One thread that runs a job of the executor beside its caller: started, then waited for.
 *
 * Thread rule: create, start, finish and destroy by one thread, the owner. Between start and finish
 * the job has its thread to itself. No signal is handled on it. Nothing is allocated after create.
 */
#ifndef DSI_EXEC_BESIDE_H
#define DSI_EXEC_BESIDE_H

#include <deepspeed/context.h>
#include <stdbool.h>

typedef struct dsi_beside dsi_beside;

typedef ds_status (*dsi_beside_fn)(void *user);

/* n_threads: of the job's kernels, the thread itself among them. Errors: ERR_NOMEM. */
ds_status dsi_beside_create(ds_ctx *ctx, uint32_t n_threads, dsi_beside **beside_out);
/* Waits for a job under way. Accepts NULL. */
void dsi_beside_destroy(dsi_beside **beside);

/* The context of the job: its pool, and where it says what failed. */
ds_ctx *dsi_beside_ctx(dsi_beside *beside);

/* Begins a job; none may be under way. */
void dsi_beside_start(dsi_beside *beside, dsi_beside_fn fn, void *user);
/* Waits for its end; what it returned, however often it is asked; DS_OK when there was none. */
ds_status dsi_beside_finish(dsi_beside *beside);
/* Waits for its end and forgets what it returned. */
void dsi_beside_drop(dsi_beside *beside);

#endif
