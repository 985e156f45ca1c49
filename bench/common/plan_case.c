/* SPDX-License-Identifier: Apache-2.0 */
/* See plan_case.h. */
#include "common/plan_case.h"
#include "accel/cpu/cpu_features.h"

#include "plan/plan_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

dsi_engine_spec plan_case_spec(const plan_case *c, uint32_t n_ranks)
{
    return (dsi_engine_spec){
        .train = {.dtype = c->dtype,
                  .comm_dtype = c->dtype,
                  .accumulate_dtype = DS_DTYPE_F32,
                  .state_dtype = DS_DTYPE_F32,
                  .master = c->dtype != DS_DTYPE_F32,
                  .batch = c->batch,
                  .seq_length = c->seq_length,
                  .accumulation = c->accumulation,
                  .optimizer = DS_OPTIMIZER_ADAM,
                  .eps = 1e-8,
                  .decoupled_decay = true,
                  .max_norm = 1.0},
        .zero = {.mesh = dsi_mesh_data(n_ranks),
                 .stage = c->stage,
                 .reduce_each = c->accumulation == 1,
                 .comm_dtype = c->dtype,
                 .reduce_bucket = 500000000,
                 .gather_bucket = 500000000,
                 .persistence_threshold = 100000,
                 .model_persistence = INT64_MAX,
                 .max_live = 1000000000,
                 .max_reuse_distance = 1000000000},
        .recompute = {.mode = c->recompute},
        .lr = 1e-4,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .weight_decay = 0.1,
        .bias_correction = true,
        .loss_scale = dsi_loss_scale_none(),
        .isa = DSI_NEEDS_AMX,
        .overlap = c->overlap,
        .prefetch = 50000000,
    };
}

ds_status plan_case_model(ds_ctx *ctx, const char *text, ds_model **model_out)
{
    char path[] = "plan_case_XXXXXX";
    const int file = mkstemp(path);
    FILE *out = file >= 0 ? fdopen(file, "w") : NULL;
    if (out == NULL || fputs(text, out) < 0 || fclose(out) != 0) {
        return ds_fail(ctx, DS_ERR_IO, "cannot write a model's config.json here");
    }
    const ds_status status = ds_model_from_config(ctx, path, model_out);
    (void)unlink(path);
    return status;
}

ds_status plan_case_predict(ds_ctx *ctx, const plan_case *c, const ds_model *model,
                            const dsi_device *device, uint32_t n_ranks, plan_prediction *out)
{
    const dsi_engine_spec spec = plan_case_spec(c, n_ranks);
    const dsi_rank_request request = {
        .model = model, .spec = &spec, .n_threads = ds_ctx_n_threads(ctx)};
    const uint32_t local = n_ranks < device->ranks_per_node ? n_ranks : device->ranks_per_node;
    *out = (plan_prediction){.plan = {.ctx = ctx}};
    DS_TRY(dsi_rank_plan_build(ctx, &request, &out->plan));
    const dsi_plan *plan = out->plan.train_plan;
    DS_TRY(dsi_plan_sim_steps(plan, local, &out->plan.residencies, &out->steps));
    const dsi_sim_spec sim = {.device = device,
                              .steps = out->steps,
                              .n_steps = plan->n_steps,
                              .local_ranks = local,
                              .accumulation = c->accumulation,
                              .clear_bytes = c->accumulation > 1 ? dsi_plan_clear_bytes(plan) : 0.0,
                              .model_flops = dsi_plan_model_flops(plan),
                              .tokens = (double)(c->batch * c->seq_length),
                              .peak_dtype = c->dtype};
    return dsi_simulate(ctx, &sim, &out->timeline);
}

void plan_case_free(plan_prediction *prediction)
{
    dsi_timeline_destroy(&prediction->timeline);
    free(prediction->steps);
    dsi_rank_plan_free(&prediction->plan);
}
