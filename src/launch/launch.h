/* SPDX-License-Identifier: Apache-2.0 */
/* One job on one node: the environment of each rank, and its run. Called by tools/deepspeed.c, on
 * the only node of a job or on each of several.
 */
#ifndef DSI_LAUNCH_LAUNCH_H
#define DSI_LAUNCH_LAUNCH_H

#include "launch/hosts.h"
#include "launch/supervise.h"

enum { DSI_SECRET_BYTES = 16, DSI_SECRET_TEXT = 2 * DSI_SECRET_BYTES + 1 };

typedef enum dsi_prefix {
    DSI_PREFIX_AUTO, /* every rank but rank 0 */
    DSI_PREFIX_ALL,
    DSI_PREFIX_NONE
} dsi_prefix;

typedef struct dsi_launch {
    const dsi_hosts *hosts;
    size_t node;             /* index of this node in hosts */
    const char *host;        /* this machine's name in reports */
    const char *master_addr; /* where rank 0 is */
    uint16_t master_port;
    const char *secret;       /* 32 hex digits */
    const char *listens;      /* see comm/launcher_note.h; NULL: the launcher is not told */
    const dsi_words *command; /* program and its arguments */
    const char *program;      /* its path */
    const dsi_words *env;     /* what the ranks inherit */
    const char *log_dir;      /* NULL: no log files */
    const char *log_stamp;    /* begins the names of log files */
    dsi_prefix prefix;
    bool rank0_only; /* show only rank 0 on the terminal */
    bool devices;    /* slots are devices, which ranks see through CUDA_VISIBLE_DEVICES */
    bool bind_cores;
    const char *core_list; /* "0,2-4"; NULL: all cores */
    double grace;
    uint32_t restart; /* how often the job was started before */
    int control;      /* see dsi_supervise_params */
    dsi_limits limits;
    const int *terminal; /* see dsi_supervise_params */
} dsi_launch;

/* The environment of local rank `local`: what it inherits and what the launcher adds. `threads` is
 * the rank's share of the cores. */
void dsi_rank_env(const dsi_launch *launch, uint32_t local, uint32_t threads, dsi_words *env_out);
/* Names that dsi_rank_env may set, NULL at the end: for printing. */
extern const char *const dsi_rank_env_names[];

/* Runs the ranks of this node until they have ended. Errors as dsi_supervise. */
ds_status dsi_launch_node(ds_ctx *ctx, const dsi_launch *launch, dsi_outcome *outcome_out);

/* 128 bits from the system's generator, as 32 hex digits. Errors: ERR_IO. */
ds_status dsi_make_secret(ds_ctx *ctx, char text[DSI_SECRET_TEXT]);

#endif
