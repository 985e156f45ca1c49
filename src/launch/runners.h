/* SPDX-License-Identifier: Apache-2.0 */
/* What starts the ranks of a job on several hosts: a row of a table for each launcher name.
 *
 * A runner only builds command lines; head.c runs or prints them. pdsh and ssh start this launcher
 * on each node (a way), which starts the node's ranks; the others start the ranks themselves.
 */
#ifndef DSI_LAUNCH_RUNNERS_H
#define DSI_LAUNCH_RUNNERS_H

#include "launch/hosts.h"
#include "launch/launch_options.h"

typedef struct dsi_runner_job {
    const dsi_launch_options *options;
    const dsi_hosts *hosts;
    bool hosts_known;   /* false: Slurm's allocation has them, `hosts` counts only */
    const char *start;  /* the program of the command: one of the runner's `starts` */
    const char *self;   /* path of this launcher, the same on all nodes */
    const char *folder; /* to work in */
    const char *world_info;
    const char *master_addr;
    uint16_t master_port;
    const char *log_stamp;
    uint32_t restart;
    const dsi_words *exports;  /* NAME=VALUE that ranks must see */
    const dsi_words *args;     /* of --launcher_args */
    const dsi_words *ssh_args; /* of PDSH_SSH_ARGS_APPEND, pdsh's own variable */
} dsi_runner_job;

typedef struct dsi_runner {
    uint32_t version; /* DSI_RUNNER_VERSION */
    const char *name;
    const char *program; /* must be in PATH; NULL: one of `starts` */
    const char *package; /* where it comes from, for people */
    /* optional: names of what starts the ranks, the surest first: a name that several makes of MPI
     * have is the last */
    const char *starts[4];
    bool is_open_mpi; /* with `starts`: the last name must be Open MPI's, else must not */
    bool is_way;      /* starts this launcher on each node */
    bool each;        /* a command a node, in place of one for all */
    bool relays;      /* one for all, whose relays are told of signals in its place (dsi_task) */
    bool allocates;   /* without a hostfile it has hosts of its own, and orders them itself */
    /* optional: default anything goes. Errors: ERR_UNSUPPORTED, ERR_ARG */
    ds_status (*check)(ds_ctx *ctx, const dsi_runner_job *job);
    /* Appends the command line; node counts only with `each`. */
    void (*command)(const dsi_runner_job *job, size_t node, dsi_words *argv);
    /* optional: default nothing. What the command's own environment needs besides exports. */
    void (*env)(const dsi_runner_job *job, dsi_words *env);
} dsi_runner;

#define DSI_RUNNER_VERSION 1u

/* The runner of a name in any letter case. NULL: none. */
const dsi_runner *dsi_runner_find(const char *name);

enum { DSI_N_NODE_RUNNERS = 2, DSI_N_MPI_RUNNERS = 5 };

extern const dsi_runner dsi_node_runners[DSI_N_NODE_RUNNERS]; /* runner_nodes.c */
extern const dsi_runner dsi_mpi_runners[DSI_N_MPI_RUNNERS];   /* runner_mpi.c */

/* Appends the hosts as one word: "h1,h2", or "h1:2,h2:2" with counts. */
void dsi_runner_add_hosts(const dsi_runner_job *job, bool counts, dsi_words *argv);

/* Appends "ssh FLAGS" and `more`. */
/* Adds "user@name", or the name alone. */
void dsi_ssh_target(const dsi_host *host, dsi_words *argv);
void dsi_ssh_command(const dsi_launch_options *options, const dsi_words *more, dsi_words *argv);

#endif
