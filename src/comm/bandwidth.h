/* SPDX-License-Identifier: Apache-2.0 */
/* The bandwidths of a collective, and sizes as text, as the tables of DeepSpeed's communication
 * logger and of its benchmark show them. Called by comm_log*.c and ds_bench. Pure functions.
 */
#ifndef DSI_COMM_BANDWIDTH_H
#define DSI_COMM_BANDWIDTH_H

#include "comm/comm.h"

/* Bytes a second: `algorithm` is what the caller gets done, `bus` what each rank's link carries. */
typedef struct dsi_bandwidth {
    double algorithm, bus;
} dsi_bandwidth;

/* bytes: what one rank passes (of an all_gather its slice, of a reduce_scatter the whole tensor);
 * n: ranks of the communicator. With t seconds:
 *
 *   all_reduce        2·bytes/t    bytes/t · 2(n-1)/n
 *   all_gather        n·bytes/t    n·bytes/t · (n-1)/n
 *   reduce_scatter    bytes/t      bytes/t · (n-1)/n
 *   all_to_all        bytes/t      bytes/t · (n-1)/n
 *   others            bytes/t      bytes/t
 *
 * An all_reduce counts twice, as DeepSpeed counts it and nccl-tests does not. 0 seconds give 0. */
dsi_bandwidth dsi_coll_bandwidth(ds_comm_op kind, size_t bytes, uint32_t n, double seconds);

enum { DSI_SIZE_TEXT_BYTES = 32 };

/* "16.0 MB", "1.17 KB", "0B": units of 1024, at most two decimals. Returns text, of at least
 * DSI_SIZE_TEXT_BYTES. */
char *dsi_size_text(size_t bytes, char *text);

#endif
