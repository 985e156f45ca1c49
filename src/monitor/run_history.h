/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a run, read from the lines of its history: a JSON object a line, as ds_train
 * writes them to --metrics FILE and OUTPUT/history.jsonl.
 *
 *   {"step": 7, "loss": …, "lr": …, "grad_norm": …, "loss_scale": …, "tokens_per_s": …, …}
 *   {"step": 10, "eval_loss": …, "eval_tokens": …}     {"step": 10, "save_stall_s": …, …}
 *   {"step": 10, "best_step": 5, "best_eval_loss": …, "stopped_early": …, "model_step": 5}
 *   {"ds_history": 1, "event": "start", "step": 0, …}  {"event": "end", "verdict": "finished", …}
 *
 * The last two (sessions) are in the history of an output folder only. Whatever its length, a run
 * takes bounded memory here. Called by the page of a run and by ds_train; one thread at a time.
 */
#ifndef DSI_MONITOR_RUN_HISTORY_H
#define DSI_MONITOR_RUN_HISTORY_H

#include "monitor/series.h"

#include <deepspeed/status.h>
#include <jansson.h>
#include <stdbool.h>

enum { DSI_RUN_SESSIONS = 64, DSI_RUN_VERSION = 1 };

typedef enum dsi_run_curve {
    DSI_RUN_LOSS,
    DSI_RUN_EVAL,
    DSI_RUN_LR,
    DSI_RUN_NORM,
    DSI_RUN_SCALE,
    DSI_RUN_SPEED,   /* tokens a second */
    DSI_RUN_MEMORY,  /* bytes of rank 0, the most so far; without mapped files, as plans */
    DSI_RUN_SKIPPED, /* one value a skipped step */
    DSI_RUN_SAVES,   /* one value a save */
    DSI_RUN_CURVES
} dsi_run_curve;

/* A process that took steps: the first, one a resume, one a restart. */
typedef struct dsi_run_session {
    uint64_t from;       /* steps that were done when it began */
    double began, ended; /* seconds since 1970; 0: not known */
    bool resumed, restarted;
    char *verdict; /* "finished", "interrupted", "failed"; NULL: none was written */
    char *error;   /* of "failed"; NULL else */
    char *why;     /* it ended before its last step; NULL else */
} dsi_run_session;

typedef struct dsi_run_history {
    char *name; /* what the reader calls it */
    dsi_series curves[DSI_RUN_CURVES];
    dsi_run_session sessions[DSI_RUN_SESSIONS]; /* the newest */
    size_t n_sessions;
    json_t *start;    /* the newest "start": configuration, machine, …; NULL: none */
    uint64_t step;    /* the last */
    uint64_t n_steps; /* seen */
    uint64_t n_skipped, n_saves, n_evals;
    double tokens, seconds, save_seconds; /* sums over what was seen */
    double loss, eval_loss, best_eval;    /* newest, newest, least; NAN: none */
    uint64_t best_eval_step, eval_step;
    uint64_t model_step; /* whose weights the model folder has; 0: not known */
    double peak_bytes;   /* most */
} dsi_run_history;

/* An empty history; NULL when out of memory. name is copied. */
dsi_run_history *dsi_run_history_create(const char *name);
void dsi_run_history_destroy(dsi_run_history **history);
/* Reads a line; false: it is no line of a history, and nothing was changed. */
bool dsi_run_history_feed(dsi_run_history *history, const char *line, size_t n);
/* The newest session, NULL without one. */
const dsi_run_session *dsi_run_history_last(const dsi_run_history *history);

/* ---- files: run_lines.c ---- */

/* Reads a file of lines, or that of an output folder. A step that comes again replaces what was
 * from it on: that is how a file looks to which a resumed run appended. Errors: ERR_NOT_FOUND,
 * ERR_IO; ERR_FORMAT when no line of it is of a history. */
ds_status dsi_run_history_read(ds_ctx *ctx, const char *path, dsi_run_history **history_out);
/* Makes `path` the history up to `step`, for a run that goes on from there: lines of later steps
 * are removed, those of sessions stay. A missing file becomes an empty one. Each line that stays is
 * fed to `history`. Errors: ERR_STATE when the file is none of ours; as dsi_file_stage. */
ds_status dsi_run_history_cut(ds_ctx *ctx, const char *path, uint64_t step,
                              dsi_run_history *history);
/* ERR_STATE when something is at `path` that is no history. */
ds_status dsi_run_history_check(ds_ctx *ctx, const char *path);

/* How a history begins: its first line is a "start". */
#define DSI_RUN_HISTORY_BEGIN "{\"ds_history\":"
/* The name of a history in an output folder, and of its page. */
#define DSI_RUN_HISTORY_NAME "history.jsonl"
#define DSI_RUN_PAGE_NAME    "report.html"

#endif
