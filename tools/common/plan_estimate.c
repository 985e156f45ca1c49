/* SPDX-License-Identifier: Apache-2.0 */
/* ds_plan estimate: DeepSpeed's tables of model states. */
#include "common/plan_run.h"

#include <deepspeed/plan.h>
#include <stdio.h>
#include <stdlib.h>

static ds_status count_model(ds_ctx *ctx, const plan_options *o, ds_estimate_params *params)
{
    char path[4096];
    ds_model *model = NULL;
    if (o->model == NULL && o->model_config == NULL) {
        return DS_OK;
    }
    (void)snprintf(path, sizeof path, "%s/config.json", o->model != NULL ? o->model : "");
    DS_TRY(ds_model_from_config(ctx, o->model != NULL ? path : o->model_config, &model));
    const ds_status status =
        ds_estimate_count(ctx, model, &params->total_params, &params->largest_layer_params);
    ds_model_destroy(&model);
    return status;
}

ds_status plan_estimate(ds_ctx *ctx, const plan_options *o)
{
    ds_estimate_params params = {.total_params = (uint64_t)o->total_params,
                                 .largest_layer_params = (uint64_t)o->largest_layer_params,
                                 .num_gpus_per_node =
                                     (uint32_t)((o->world_size + o->nodes - 1) / o->nodes),
                                 .num_nodes = (uint32_t)o->nodes,
                                 .additional_buffer_factor = o->additional_buffer_factor};
    DS_TRY(count_model(ctx, o, &params));
    for (int stage = 2; stage <= 3; ++stage) {
        char *text = NULL;
        if (o->stage == 0 || o->stage == stage) {
            DS_TRY(ds_estimate_table(ctx, stage, &params, &text));
            (void)printf("%sZeRO stage %d\n%s", stage == 3 && o->stage == 0 ? "\n" : "", stage,
                         text);
            free(text);
        }
    }
    return DS_OK;
}
