/* SPDX-License-Identifier: Apache-2.0 */
/* What the command line of `deepspeed` asks for: plain values, filled by
 * tools/common/launch_flags.c, read by head.c. Texts are borrowed from the command line.
 */
#ifndef DSI_LAUNCH_LAUNCH_OPTIONS_H
#define DSI_LAUNCH_LAUNCH_OPTIONS_H

#include "launch/words.h"
#include <stdint.h>

typedef struct dsi_launch_options {
    /* which hosts and slots */
    const char *hostfile;
    bool hostfile_given;
    const char *include, *exclude; /* NULL: not given */
    int64_t num_nodes, num_gpus;   /* -1: not given */
    /* where ranks meet, how nodes are reached */
    const char *master_addr; /* NULL: chosen */
    int64_t master_port;     /* 0: a free one is chosen */
    const char *launcher;
    bool launcher_given;
    const char *launcher_args; /* "" for none */
    bool force_multi, no_ssh, no_ssh_check;
    int64_t node_rank; /* -1: not given */
    int64_t ssh_port;  /* 0: ssh's own choice */
    const char *venv_script;
    /* the program */
    bool module, no_python, no_local_rank;
    dsi_words command;
    /* cores */
    bool bind_cores;
    const char *core_list;
    /* output */
    const char *log_dir;
    const char *prefix; /* auto, all, none */
    const char *show;   /* all, first */
    const char *log_level;
    bool quiet, dry_run, save_pid;
    /* failure */
    double grace;
    int64_t restarts;
    bool elastic_training;
    int64_t min_elastic_nodes, max_elastic_nodes; /* -1: not given */
    const char *elastic_config;                   /* NULL: --deepspeed_config of the program */
    /* bounds; see dsi_limits */
    double time_limit; /* seconds; 0: none */
    uint64_t rank_bytes;
    const char *done_file; /* of the autotuner's trials, likewise terminal */
    const int *terminal;
    const char *autotuning; /* tune, run; NULL: not given. Read by tools/ds_launcher.c */
    double trial_seconds;   /* of a trial of the autotuner */
    const char *device;     /* profile for its predictions; NULL: measured */
    /* between the head and its nodes */
    const char *world_info; /* not NULL: this is one node of a job */
    bool control;           /* the first line of standard input brings secret and environment */
    const char *relay;      /* not NULL: run the command with that line on its standard input, for
                               the node of this name */
    int64_t restart_count;
    const char *log_stamp;
} dsi_launch_options;

#endif
