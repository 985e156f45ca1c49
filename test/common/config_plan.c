/* SPDX-License-Identifier: Apache-2.0 */
/* See config_plan.h. */
#include "common/config_plan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ds_status config_plan_model(ds_ctx *ctx, const char *text, ds_model **model_out)
{
    char path[] = "config_plan_XXXXXX";
    const int file = mkstemp(path);
    const size_t n = strlen(text);
    if (file < 0 || write(file, text, n) != (ssize_t)n || close(file) != 0) {
        return ds_fail(ctx, DS_ERR_IO, "cannot write a model's config.json here");
    }
    const ds_status status = ds_model_from_config(ctx, path, model_out);
    (void)unlink(path);
    return status;
}

ds_status config_plan_build(ds_ctx *ctx, const ds_model *model, const config_plan *what,
                            dsi_rank_plan *plan_out)
{
    ds_config *config = NULL;
    dsi_engine_spec spec;
    ds_status status =
        ds_config_load_text(ctx, what->name, what->config, strlen(what->config), NULL, &config);
    if (status >= 0) {
        status = ds_config_resolve(config, what->n_ranks, NULL);
    }
    if (status >= 0) {
        const ds_engine_params params = {.model = model,
                                         .config = config,
                                         .seq_length = what->seq_length,
                                         .accelerator = what->accelerator};
        status = dsi_engine_read_config(ctx, &params, &spec);
    }
    if (status >= 0) {
        const dsi_rank_request request = {.model = model,
                                          .spec = &spec,
                                          .frozen = &what->frozen,
                                          .n_frozen = what->frozen != NULL ? 1 : 0,
                                          .n_threads = 2};
        spec.isa = DS_ISA_REF;
        spec.accel.accel = &dsi_accel_null;
        status = dsi_zero_set_ranks(ctx, &spec.zero, what->n_ranks);
        if (status >= 0) {
            status = dsi_rank_plan_build(ctx, &request, plan_out);
        }
    }
    ds_config_destroy(&config);
    return status;
}
