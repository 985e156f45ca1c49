/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of the tools: variables of this project that are set must mean something. The
 * job's (RANK, WORLD_SIZE, …) are read by comm/comm_open.c, in the same way. */
#ifndef DSI_TOOLS_ENVIRONMENT_H
#define DSI_TOOLS_ENVIRONMENT_H

#include <deepspeed/context.h>
#include <stdint.h>

/* Ends the program with a message and exit code 2 when a DS_ variable has a value that it cannot
 * have. The first call of every main, by output_guard. */
void environment_check(const char *program);

/* The variables that all ranks of a run have the same, a line "NAME: value" each. The caller frees
 * it; NULL: no memory. */
char *environment_text(void);

/* DS_THREADS, 1 to 4096; 0: it is not set. */
ds_status environment_threads(ds_ctx *ctx, uint32_t *threads_out);

/* What a rank's context is made with: its rank and world; threads: those of the flag, else
 * DS_THREADS, which the launcher gives, else this rank's share of the cores of its host. Only rank
 * 0 reports what goes well. local_rank_out may be NULL. */
ds_status environment_context(ds_ctx *ctx, int64_t threads, ds_ctx_params *params_out,
                              uint32_t *local_rank_out);

#endif
