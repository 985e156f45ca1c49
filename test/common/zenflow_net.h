/* SPDX-License-Identifier: Apache-2.0 */
/* A small network under ZenFlow, for the tests of it: the network of make_zenflow.py, settings,
 * runs on threads as ranks. */
#ifndef TEST_COMMON_ZENFLOW_NET_H
#define TEST_COMMON_ZENFLOW_NET_H

#include "comm/comm.h"
#include "train/engine.h"

enum {
    ZENFLOW_BATCH = 6,
    ZENFLOW_N_IN = 24,
    ZENFLOW_HIDDEN = 16,
    ZENFLOW_N_OUT = 8,
    ZENFLOW_STEPS = 13,
    ZENFLOW_MAX_RANKS = 3
};

typedef struct zenflow_mlp {
    bool bias;
} zenflow_mlp;

typedef struct zenflow_setting {
    ds_dtype dtype;
    bool bias;
    dsi_zenflow_spec zenflow;
    double max_norm;
    uint32_t n_ranks, stage;
    int64_t accumulation;
    dsi_offload_spec offload;
    int steps;             /* default 0: STEPS */
    const char *save;      /* folder to save to after the steps */
    const char *save_each; /* folder to save to after each step but the last */
    bool finishes;         /* what runs beside the steps is waited for after each */
    bool coupled_decay;    /* Adam, not AdamW */
    uint32_t threads;      /* default 0: 1 */
    double reserved;       /* share of them */
    const char *resume;    /* folder to begin from */
} zenflow_setting;

ds_model *zenflow_open_model(ds_ctx *ctx, const zenflow_mlp *config);
ds_engine *zenflow_open_engine(ds_ctx *ctx, const zenflow_setting *s, ds_model *model,
                               ds_comm *comm);

/* A quarter of the columns. */
dsi_zenflow_spec zenflow_steps_of(int64_t update, int64_t select, int64_t warm_up);
/* how 0, 1: states on the host, on disk; 2, 3: parameters too, what is chosen on the host. */
dsi_offload_spec zenflow_away(int how, const char *folder);

/* Rows that differ from step to step and rank to rank. */
void zenflow_fill_batch(int step, int rank, float *x, float *y);
/* Forward and backward. */
void zenflow_run_batch(ds_ctx *ctx, ds_engine *engine, const float *x, const float *y);

typedef struct zenflow_job {
    const zenflow_setting *s;
    ds_ctx *ctx;
    dsi_comm *comm;
    uint64_t hash;
    size_t bytes;
} zenflow_job;

/* Weights, all moments, what waits, and which columns are chosen. */
uint64_t zenflow_hash(ds_ctx *own, ds_engine *engine);
/* Runs the zenflow_setting on as many threads as it has ranks; what the first one says: all have
 * the same hash. */
zenflow_job zenflow_run_all(const zenflow_setting *s);

#endif
