/* SPDX-License-Identifier: Apache-2.0 */
/* A training configuration as benchmarks of predictions write it down, and its simulated step. */
#ifndef DS_BENCH_PLAN_CASE_H
#define DS_BENCH_PLAN_CASE_H

#include "compile/rank_plan.h"
#include "cost/simulate.h"

typedef struct plan_case {
    const char *name, *model; /* model: the text of its config.json */
    ds_dtype dtype;
    uint32_t stage, ranks;
    int64_t batch, seq_length, accumulation;
    ds_recompute recompute;
    bool overlap;
} plan_case;

/* Everything that a prediction was made from, and the prediction. */
typedef struct plan_prediction {
    dsi_rank_plan plan;
    dsi_sim_step *steps;
    dsi_timeline *timeline;
} plan_prediction;

/* AdamW, clipping 1, buckets of DeepSpeed's default sizes. */
dsi_engine_spec plan_case_spec(const plan_case *c, uint32_t n_ranks);

/* A model from the text of its config.json. */
ds_status plan_case_model(ds_ctx *ctx, const char *text, ds_model **model_out);

/* Plans and simulates; device: of one rank. Free with plan_case_free, whatever is returned. */
ds_status plan_case_predict(ds_ctx *ctx, const plan_case *c, const ds_model *model,
                            const dsi_device *device, uint32_t n_ranks, plan_prediction *out);
void plan_case_free(plan_prediction *prediction);

#endif
