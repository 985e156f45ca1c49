/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of a rank from the texts of a model's config.json and a configuration. */
#ifndef DS_TEST_CONFIG_PLAN_H
#define DS_TEST_CONFIG_PLAN_H

#include "compile/rank_plan.h"

/* A model from the text of its config.json, by a file in the current folder. */
ds_status config_plan_model(ds_ctx *ctx, const char *text, ds_model **model_out);

/* What is planned. Kernels are those of the null accelerator. */
typedef struct config_plan {
    const char *name;   /* for messages */
    const char *config; /* JSON */
    const char *frozen; /* a glob pattern; NULL: none */
    uint32_t n_ranks;
    int64_t seq_length;
    const char *accelerator; /* whose memory it is planned for; NULL: the best there is */
} config_plan;

/* Then dsi_rank_plan_free. */
ds_status config_plan_build(ds_ctx *ctx, const ds_model *model, const config_plan *what,
                            dsi_rank_plan *plan_out);

#endif
