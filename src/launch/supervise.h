/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the processes of a job until all have ended: outputs, signals, the first failure, the end.
 *
 * The one loop of the launcher; single-threaded. Tasks are the ranks of this host, or the ways to
 * other hosts. Invariants:
 *   1 when dsi_supervise returns, every task and every descendant that it left has ended, unless
 *     the kernel itself does not let go of it, which is then said;
 *   2 the first task that fails ends the others: SIGTERM, `grace` seconds, SIGKILL;
 *   3 SIGINT, SIGTERM and SIGHUP are forwarded, the second one as SIGKILL, but for a SIGHUP, which
 *     the shell and the kernel both send when a terminal is closed; SIGUSR1, SIGUSR2 and the stop
 *     from the terminal are forwarded;
 *   4 what a task wrote is shown before its end is reported;
 *   5 a rank that ended with 0 while others wait for it to join, or for which others waited until
 *     they gave up, is the failure, not those;
 *   6 limits on time and memory hold whatever the tasks do (supervise_limits.c).
 */
#ifndef DSI_LAUNCH_SUPERVISE_H
#define DSI_LAUNCH_SUPERVISE_H

#include "launch/hosts.h"
#include "launch/output.h"
#include "launch/process.h"
#include <stdint.h>

typedef struct dsi_task {
    const char *label;    /* "rank 3": in reports */
    uint32_t rank;        /* with params->ranks: its number */
    const char *prefix;   /* before its lines on the terminal; "" for none */
    bool shown;           /* on the terminal */
    const char *log_path; /* NULL: no log file */
    bool relays;          /* it is started with the signals that end ignored; its relays, known by
                             notices, are reported in its place */
    const char *control_line; /* first line of its standard input, which is then held open and
                                 carries "signal N" lines; NULL: its input is /dev/null */
    dsi_command command;
} dsi_task;

/* What ended a job beside its tasks and signals. */
typedef enum dsi_limit {
    DSI_LIMIT_NONE,
    DSI_LIMIT_TIME,   /* it took too long */
    DSI_LIMIT_MEMORY, /* a task took too much */
    DSI_LIMIT_DONE    /* `done_file` is there: no failure */
} dsi_limit;

/* Bounds of a job. Zeros: none. */
typedef struct dsi_limits {
    double seconds;        /* the tasks are ended then, as a failure with code 124 */
    size_t rank_bytes;     /* of a task with its descendants; above it all are killed, code 137 */
    const char *done_file; /* once this file is there the tasks are ended: that is success */
} dsi_limits;

typedef struct dsi_supervise_params {
    const dsi_task *tasks; /* borrowed, as all else */
    size_t n_tasks;
    const char *host; /* name of this machine in reports */
    double grace;     /* seconds between SIGTERM and SIGKILL after a failure */
    int control;      /* descriptor whose "signal N" lines are obeyed and whose end ends the job;
                         -1: none */
    int notice;       /* descriptor on which relays report "LABEL pid N" when they start and "LABEL
                         code N" when their node failed, a line each, before that "LABEL awaits
                         N" where it waited for rank N in vain; -1: none */
    int reports; /* with `ranks`, of dsi_launcher_listen: on which ranks report whom they waited for
                    in vain, and their coordinates; -1: none */
    bool independent; /* a task that fails is named and does not end the others; the outcome's code
                         is the largest */
    bool ranks;       /* the tasks are the ranks of one job: one that ends with 0 before the ranks
                         met is a failure (absent.h) */
    bool quiet;       /* nothing is said of a failure: another launcher does */
    bool ways;        /* the tasks are ways to nodes, which report their ranks themselves: a failure
                         is reported in one line, without last lines */
    const dsi_hosts *hosts; /* with `ways`: of the job; NULL: not known */
    dsi_limits limits;
    const int *terminal; /* where what is shown goes: two descriptors, of output and errors; NULL:
                            1 and 2 */
} dsi_supervise_params;

typedef struct dsi_outcome {
    int exit_code;    /* 0; the first failed task's code, or 128 + its signal */
    bool interrupted; /* ended by a signal to the launcher, or by the end of `control` */
    bool signalled; /* a signal that ends came, also while the job was ending for another reason */
    bool awaited;   /* with `ways`: the node that failed had waited in vain for a rank elsewhere */
    uint32_t awaited_rank;
    size_t first;      /* index of the first task that failed; n_tasks: none */
    char label[256];   /* its label, or the one of a notice; "" when none failed */
    dsi_limit limit;   /* which one ended it */
    bool no_memory;    /* the kernel ended a task for want of memory */
    size_t peak_bytes; /* most that a task was seen to use, with limits.rank_bytes or done_file */
} dsi_outcome;

/* Errors: ERR_IO when a task cannot be started or the system refuses; tasks that were started have
 * ended then. A task that fails is no error of the call: see the outcome. */
ds_status dsi_supervise(ds_ctx *ctx, const dsi_supervise_params *params, dsi_outcome *outcome_out);

#endif
