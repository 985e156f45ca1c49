/* SPDX-License-Identifier: Apache-2.0 */
/* `deepspeed --autotuning tune|run`: a search for fast settings.
 *
 * Course (tune_run.c): the user's configuration says what may vary (tune_space.c); every candidate
 * is predicted (a planner: memory, time); those that fit are ordered and the best few are run as
 * trials (tune_trial.c), which are the user's own command with a changed configuration, bounded in
 * steps, time and memory; the results folder says all (tune_results.c, tune_summary.c).
 *
 * Invariants:
 *   1 it ends: each trial within its seconds and a grace, their number is bounded, planning has a
 *     ceiling of candidates;
 *   2 what was measured is on the disk before the next trial starts;
 *   3 a trial that fails is a result with a reason, not an error of the search;
 *   4 trials write nothing but their own folder (DS_AUTOTUNING_TRIAL, autotune_measure.h).
 * It is no part of the launcher: it calls the launcher, whose own loop supervises the trials.
 */
#ifndef DSI_TUNE_TUNE_H
#define DSI_TUNE_TUNE_H

#include "launch/launch_options.h"

#include <stddef.h>

/* What a planner says of one configuration. */
typedef struct dsi_prediction {
    size_t need;           /* bytes of a rank */
    size_t limited, limit; /* bytes of what device_memory limits, and that limit; 0: none */
    double seconds;        /* of an optimizer step; 0: not known */
    double model_flops, hardware_flops, sent; /* of a rank in a step; 0: not known */
} dsi_prediction;

/* Whom a planner plans for. Borrowed. */
typedef struct dsi_tune_job {
    const dsi_words *command; /* the program and its arguments */
    uint32_t n_ranks, n_nodes;
    uint32_t n_threads; /* of a rank */
    const char *device; /* profile, as ds_plan --device; NULL: times are not known */
    size_t memory;      /* bytes of that device, where it is one of this machine; else 0 */
} dsi_tune_job;

/* Predicts without running: one for the programs whose command line it can read. */
typedef struct dsi_tune_planner {
    uint32_t version;
    const char *name; /* for the summary: "the plan of ds_train" */
    /* whether it can read this command */
    bool (*knows)(const dsi_words *command);
    /* flags of that program which say a key of the configuration: "KEY", "--flag", … NULL */
    const char *const *flags;
    /* Errors: what the program itself would refuse. The caller closes *self_out. */
    ds_status (*open)(ds_ctx *ctx, const dsi_tune_job *job, void **self_out);
    /* Errors: ERR_NOMEM ends the search; any other refuses this configuration, and says why. */
    ds_status (*predict)(void *self, ds_ctx *ctx, const char *config, dsi_prediction *out);
    /* rows that an epoch of the data has; 0: not known. Optional; NULL: never known */
    uint64_t (*rows)(void *self);
    void (*close)(void *self);
} dsi_tune_planner;

enum { DSI_TUNE_PLANNER_VERSION = 3 };

typedef struct dsi_tune_params {
    const dsi_launch_options *launch; /* of the job; its command is the program */
    const dsi_words *own_flags;       /* the launcher's command line up to the program, without
                                         --autotuning and its flags: for cmd_optimal.txt */
    bool run;                         /* start the job with the best settings */
    double trial_seconds;             /* most that a trial takes */
    uint64_t memory;                  /* bytes of a rank that may be used; 0: unknown */
    const char *memory_of;            /* whose memory that is */
    uint64_t trial_memory;            /* bytes of the host, above which a trial's rank is ended */
    const char *device;               /* profile; "none"; NULL: measured here, and kept */
    size_t device_memory;             /* bytes of a device of this machine that it is of; else 0 */
    const dsi_tune_planner *planner;
} dsi_tune_params;

/* Searches, writes the results, and with `run` starts the job. *exit_code_out: 0 found (or the
 * job's own code), 1 nothing ran, 130 interrupted. Errors: what keeps the search from starting,
 * with the remedy. The process must have one thread. */
ds_status dsi_tune_run(ds_ctx *ctx, const dsi_tune_params *params, int *exit_code_out);

#endif
