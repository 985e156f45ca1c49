/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of the tools: variables of this project that are set must mean something. The
 * job's (RANK, WORLD_SIZE, …) are read by comm/comm_open.c, in the same way. */
#ifndef DSI_TOOLS_ENVIRONMENT_H
#define DSI_TOOLS_ENVIRONMENT_H

#include <deepspeed/status.h>
#include <stdint.h>

/* Ends the program with a message and exit code 2 when a DS_ variable has a value that it cannot
 * have. The first call of every main, by output_guard. */
void environment_check(const char *program);

/* The variables that all ranks of a run have the same, a line "NAME: value" each. The caller frees
 * it; NULL: no memory. */
char *environment_text(void);

/* DS_THREADS, 1 to 4096; 0: it is not set. */
ds_status environment_threads(ds_ctx *ctx, uint32_t *threads_out);

#endif
