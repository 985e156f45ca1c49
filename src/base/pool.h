/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool: one parallel loop at a time, the caller takes part.
 *
 * Law: what a task computes depends on its index only, never on the thread that ran it or on the
 * number of threads; so results are the same on any pool. Workers spin shortly, then sleep. Every
 * worker flushes denormals (MXCSR FTZ and DAZ); the caller's mode is set for the loop and restored.
 */
#ifndef DSI_BASE_POOL_H
#define DSI_BASE_POOL_H

#include <deepspeed/status.h>
#include <stdint.h>

typedef struct dsi_pool dsi_pool;

/* task in [0,n_tasks); thread in [0,n_threads): index of scratch memory, never of work. */
typedef void (*dsi_task_fn)(void *arg, uint32_t task, uint32_t thread);

/* n_threads includes the caller, >= 1. */
ds_status dsi_pool_create(uint32_t n_threads, dsi_pool **pool_out);
void dsi_pool_destroy(dsi_pool **pool);
uint32_t dsi_pool_n_threads(const dsi_pool *pool); /* 1 for NULL */

/* Runs fn for each task and returns when all are done. pool NULL: serially. Not reentrant: a task
 * must not call it. No allocation. */
void dsi_pool_run(dsi_pool *pool, dsi_task_fn fn, void *arg, uint32_t n_tasks);

#endif
