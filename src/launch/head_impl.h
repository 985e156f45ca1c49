/* SPDX-License-Identifier: Apache-2.0 */
/* What the files head_*.c share: one launcher at work. */
#ifndef DSI_LAUNCH_HEAD_IMPL_H
#define DSI_LAUNCH_HEAD_IMPL_H

#include "launch/head.h"
#include "launch/launch.h"
#include "launch/runners.h"
#include <deepspeed/context.h>

enum { DSI_DEFAULT_PORT = 29500 };

typedef struct dsi_head {
    ds_ctx *ctx;
    const dsi_launch_options *options;
    dsi_hosts hosts;
    bool local; /* no hostfile */
    bool multi; /* through a runner */
    const dsi_runner *runner;
    const char *start; /* what the runner starts the ranks with; NULL: has no choice */
    char host[256];    /* this machine */
    char self[4096];   /* this executable */
    char folder[4096]; /* working folder */
    char master_addr[256];
    uint16_t master_port; /* of this attempt */
    char secret[DSI_SECRET_TEXT];
    bool secret_given;
    char stamp[32];
    char *program; /* path; NULL when only the nodes must have it */
    dsi_words env; /* inherited */
    dsi_words exports;
    dsi_words runner_args, ssh_args;
    uint32_t restart;     /* this attempt's DS_RESTART_COUNT */
    uint32_t failed_slot; /* of this host, that was the first to fail in the attempt before */
} dsi_head;

/* Runs the ranks of hosts.items[node] here. */
ds_status dsi_head_run_node(dsi_head *h, size_t node, dsi_outcome *outcome_out);
/* Fills the parameters of that run. */
dsi_launch dsi_head_launch(const dsi_head *h, size_t node);
/* One node of a job that another launcher started. */
ds_status dsi_head_run_as_node(dsi_head *h, int *exit_code_out);
/* `deepspeed --relay=HOST -- COMMAND`: COMMAND with the control line on its standard input. */
ds_status dsi_head_run_relay(dsi_head *h, int *exit_code_out);

/* Several nodes: what there is to check and choose before the first attempt, and an attempt. */
ds_status dsi_head_prepare_nodes(dsi_head *h);
/* Where rank 0 is reached; asks the first host, which shows that it can be reached. */
ds_status dsi_head_choose_address(dsi_head *h);
ds_status dsi_head_run_nodes(dsi_head *h, dsi_outcome *outcome_out);
/* Appends what ranks must see whatever starts them: NAME=VALUE. */
void dsi_head_job_env(const dsi_head *h, dsi_words *env);
/* The runner's view of this attempt; text is kept in *world_info. */
ds_status dsi_head_runner_job(dsi_head *h, dsi_buf *world_info, dsi_runner_job *job_out);

/* --elastic_training: checks its flags and takes a number of ranks that is allowed; and after a
 * failure leaves out what failed. Errors: ERR_ARG when no allowed number is left. */
ds_status dsi_head_elastic_start(dsi_head *h);
ds_status dsi_head_elastic_again(dsi_head *h, const dsi_outcome *outcome);

/* Prints commands and environments in place of a run. */
ds_status dsi_head_print(dsi_head *h);

/* Whether this name of a hostfile is this machine. */
bool dsi_is_this_host(const dsi_head *h, const char *name);

#endif
