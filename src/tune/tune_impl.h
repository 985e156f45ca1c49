/* SPDX-License-Identifier: Apache-2.0 */
/* What the files tune_*.c share: one search at work. */
#ifndef DSI_TUNE_TUNE_IMPL_H
#define DSI_TUNE_TUNE_IMPL_H

#include "config/config_values.h"
#include "launch/head.h"
#include "launch/supervise.h"
#include "tune/tune.h"

#include <deepspeed/context.h>

enum {
    DSI_TUNE_AXES = 16,
    /* of a candidate: 5 that all have, axes, offload of two; and a trial takes 6 sections away */
    DSI_TUNE_SETTINGS = 5 + DSI_TUNE_AXES + 2 + 11,
    DSI_TUNE_CEILING = 2048, /* candidates */
    DSI_TUNE_NAME = 192,
    DSI_TUNE_PATH = 800, /* with a name and a file it fits into DS_CONFIG_TEXT_BYTES */
    DSI_TUNE_VALUES = 32 /* of one key */
};

/* A gain below this part is not worth a larger batch. */
#define DSI_TUNE_LITTLE 0.02

/* One key of the configuration and its value as JSON; "": the key is taken away. */
typedef struct dsi_tune_setting {
    const char *path;
    char value[48];
} dsi_tune_setting;

typedef enum dsi_tune_state {
    DSI_TUNE_OPEN,     /* predicted, fits */
    DSI_TUNE_REFUSED,  /* by the rules of configurations or the planner */
    DSI_TUNE_LARGE,    /* needs more memory than there is */
    DSI_TUNE_SKIPPED,  /* not run, and why */
    DSI_TUNE_MEASURED, /* ran */
    DSI_TUNE_FAILED    /* ran and failed */
} dsi_tune_state;

typedef enum dsi_tune_failure {
    DSI_FAILURE_NONE,
    DSI_FAILURE_TIME,
    DSI_FAILURE_MEMORY,
    DSI_FAILURE_OTHER
} dsi_tune_failure;

/* What a trial's engine wrote; see autotune_measure.c. Seconds, samples, bytes. */
typedef struct dsi_tune_metrics {
    double latency, forward, backward, step, throughput, flops, memory;
} dsi_tune_metrics;

typedef struct dsi_tune_candidate {
    dsi_tune_setting settings[DSI_TUNE_SETTINGS];
    uint32_t n_settings;
    char name[DSI_TUNE_NAME];
    int64_t stage, micro_batch, accumulation;
    int64_t
        shared; /* ranks that have the same samples, of which t->n_data_ranks counts one; 0: 1 */
    uint32_t layers,
        stages;         /* ranks that share each layer, that share the model, by the search; 0: 1 */
    char recompute[16]; /* "" when the configuration decides */
    bool chosen;        /* for a trial */
    bool reused;        /* its result is of an earlier search */
    dsi_tune_state state;
    dsi_tune_failure failure;
    char why[320];
    bool predicted;
    dsi_prediction prediction;
    dsi_tune_metrics metrics;
    double wall; /* seconds of the trial */
} dsi_tune_candidate;

/* A key that may take several values. */
typedef struct dsi_tune_axis {
    const char *path;
    uint32_t n;
    char values[DSI_TUNE_VALUES][48];
    int64_t from_stage; /* tried from this stage on */
    bool shares;        /* ranks that have the same samples: multiples of the first value */
} dsi_tune_axis;

/* What may vary. */
typedef struct dsi_tune_space {
    int64_t stages[4];
    uint32_t n_stages;
    bool one_stage;      /* of several, since there is one rank */
    int64_t batches[64]; /* micro-batches, rising */
    uint32_t n_batches;
    int64_t accumulation;  /* of each, where the global batch is free */
    int64_t rows;          /* of a rank in a step, where it is fixed; 0: free */
    char recompute[4][16]; /* as JSON */
    uint32_t n_recompute;  /* 0: the configuration decides */
    dsi_tune_axis axes[DSI_TUNE_AXES];
    uint32_t n_axes;
    bool silent_tp, silent_sp, silent_pp, silent_domino; /* the file says nothing of it */
    const char *offload; /* device of states as JSON, tried when nothing fits; NULL: none */
    bool offload_params; /* parameters may go there too */
    char disk[512];      /* folder on the disk that the configuration names; "": none */
} dsi_tune_space;

typedef struct dsi_tune {
    ds_ctx *ctx;
    const dsi_tune_params *params;
    const dsi_words *command;
    ds_config_autotuning options; /* texts belong to options_config */
    ds_config *options_config;
    dsi_buf raw;                       /* the configuration file */
    dsi_words texts;                   /* paths of keys that are the user's */
    char *config_path;                 /* its path, as the user gave it */
    size_t config_word, config_offset; /* where the command has it */
    const char **mapped;               /* key, flag, key, flag, …, NULL */
    uint32_t n_ranks, n_nodes, n_local, n_threads;
    uint32_t n_data_ranks; /* of them, those that have samples of their own */
    char results[DSI_TUNE_PATH], experiments[DSI_TUNE_PATH]; /* absolute */
    int lock;                                                /* of the results folder; -1: none */
    dsi_tune_space space;
    const dsi_tune_planner *planner; /* NULL: none for this program */
    void *planner_self;
    dsi_tune_candidate *items;
    uint32_t n_items;
    uint32_t best; /* UINT32_MAX: none was measured */
    uint32_t n_trials, n_reused;
    uint32_t best_trial;       /* the number of the trial that found the best */
    uint32_t n_other_failures; /* neither of memory nor of time */
    double started;
    bool interrupted;
    const char *ended; /* why no further trial was run */
    /* of a program without planner */
    double n_params, activation_bytes; /* 0: not known; of micro-batch 1 */
} dsi_tune;

/* ---- tune_text.c: configurations as text ---- */

/* The file's text with settings applied in order. The caller frees *out. Errors: ERR_CONFIG (the
 * text is no configuration), ERR_NOMEM. */
ds_status dsi_tune_text(ds_ctx *ctx, const dsi_buf *raw, const dsi_tune_setting *settings,
                        uint32_t n_settings, dsi_buf *out);
/* Adds or replaces. */
void dsi_tune_set(dsi_tune_candidate *c, const char *path, const char *value);
void dsi_tune_set_int(dsi_tune_candidate *c, const char *path, int64_t value);

/* ---- tune_command.c: the user's command ---- */

/* Finds the configuration among the program's words. ERR_ARG when there is none. */
ds_status dsi_tune_find_config(dsi_tune *t);
/* The value that the command gives for a key of the configuration; NULL: none. */
const char *dsi_tune_flag_value(const dsi_tune *t, const char *key);
/* The command with another configuration and with the flags of what is set. */
ds_status dsi_tune_command(const dsi_tune *t, const dsi_tune_candidate *c, const char *config,
                           dsi_words *out);

/* ---- tune_space.c, tune_predict.c, tune_order.c ---- */

/* Reads what may vary. Errors: ERR_CONFIG names the key. */
ds_status dsi_tune_read_space(dsi_tune *t);
/* Makes and predicts the candidates. Errors: ERR_NOMEM, ERR_CONFIG when all were refused. */
ds_status dsi_tune_predict(dsi_tune *t);
/* Marks those that are worth a trial. */
void dsi_tune_choose(dsi_tune *t);
/* The next to run, UINT32_MAX: none; t->ended says why. */
uint32_t dsi_tune_next(dsi_tune *t);
/* More is better. Measured; predicted (0 without times). */
double dsi_tune_score(const dsi_tune *t, const dsi_tune_candidate *c);
double dsi_tune_expected(const dsi_tune *t, const dsi_tune_candidate *c);
/* Whether a is expected to be better than b; ties by batch, stage and changes. */
bool dsi_tune_is_better(const dsi_tune *t, const dsi_tune_candidate *a,
                        const dsi_tune_candidate *b);
int64_t dsi_tune_rows(const dsi_tune *t, const dsi_tune_candidate *c); /* of all ranks in a step */

/* ---- tune_ahead.c: before the first trial ---- */

/* Leaves out micro-batches of which a step would take more rows than the data has. */
void dsi_tune_bound_batches(dsi_tune *t);
/* How many trials there may be, and how long they will take. */
void dsi_tune_tell_time(const dsi_tune *t);

/* ---- tune_formula.c: ZeRO's formula, for programs without planner ---- */

/* Memory of a candidate from n_params and activation_bytes. false: not known. */
bool dsi_tune_formula(const dsi_tune *t, const dsi_tune_candidate *c, dsi_prediction *out);

/* ---- tune_trial.c ---- */

/* Runs a candidate, or takes its earlier result. Sets its state. Errors: those that would keep
 * every trial from running. */
ds_status dsi_tune_try(dsi_tune *t, dsi_tune_candidate *c);
/* Runs the program once to learn n_params and activation_bytes. Never fails for want of them. With
 * --dry_run neither this nor the next starts anything: what was learned before counts. */
ds_status dsi_tune_profile_model(dsi_tune *t);

/* ---- tune_device.c ---- */

/* ds_bench --profile with the ranks of this host, under the limits of a trial; "" when it gave none
 * that says what this job needs. */
ds_status dsi_tune_measure_device(dsi_tune *t, char *path, size_t size);

/* ---- tune_job.c ---- */

typedef struct dsi_tune_task {
    const char *folder;
    const dsi_words *command;
    const char *done_file; /* NULL: the job ends by itself */
    double seconds;
    uint64_t memory;
    bool one_host; /* only this machine, with its share of the job's ranks */
} dsi_tune_task;

/* Runs it to its end; its output goes to stdout.log and stderr.log of the folder. Errors: those of
 * the launcher, ERR_IO. */
ds_status dsi_tune_run_job(const dsi_tune *t, const dsi_tune_task *job, dsi_outcome *outcome);
/* Whether a signal that ends waits to be delivered. */
bool dsi_tune_is_interrupted(void);

/* ---- tune_results.c, tune_summary.c ---- */

ds_status dsi_tune_open_folders(dsi_tune *t);
/* Writes a file whole, by another name first. Errors: ERR_IO names it. */
ds_status dsi_tune_put(ds_ctx *ctx, const char *path, const char *text);
/* exp.json of a candidate, and all of them. */
ds_status dsi_tune_put_experiment(const dsi_tune *t, const dsi_tune_candidate *c);
ds_status dsi_tune_put_results(const dsi_tune *t);
/* summary.txt, ds_config_optimal.json, cmd_optimal.txt; and the summary on the terminal. */
ds_status dsi_tune_finish(dsi_tune *t);
/* "187.3 samples/s": a candidate's measured value of the metric. */
void dsi_tune_metric_text(const dsi_tune *t, const dsi_tune_candidate *c, char *text, size_t size);
/* whole: with all candidates, else the first of them. */
void dsi_tune_summary(const dsi_tune *t, bool whole, dsi_buf *text);

#endif
