/* SPDX-License-Identifier: Apache-2.0 */
/* ds_initialize: an engine from a configuration; the precision table. */
#include "accel/cpu/cpu_features.h"
#include "base/buf.h"
#include "base/reserved.h"
#include "comm/same_text.h"
#include "config/config_values.h"
#include "train/engine.h"

ds_status ds_engine_print_precision(const ds_engine *engine, char **text_out)
{
    const dsi_train_spec *t = &engine->spec.train;
    const dsi_loss_scale *scale = &engine->spec.loss_scale;
    dsi_buf text = dsi_buf_make(1 << 16);
    dsi_buf_printf(&text, "parameters in compute   %s\n", ds_dtype_name(t->dtype));
    if (t->accumulation > 1) {
        dsi_buf_printf(&text, "gradient accumulator    %s\n", ds_dtype_name(t->accumulate_dtype));
    } else {
        dsi_buf_puts(&text, "gradient accumulator    none (1 accumulation step)\n");
    }
    dsi_buf_printf(&text, "gradient communication  %s, summed in f32\n",
                   ds_dtype_name(t->comm_dtype));
    dsi_buf_printf(&text, "master weights          %s\n",
                   t->master ? "f32" : ds_dtype_name(t->dtype));
    dsi_buf_printf(&text, "optimizer states        %s\n", ds_dtype_name(t->state_dtype));
    if (t->dtype == DS_DTYPE_F16) {
        dsi_buf_printf(&text, "loss scale              %s, %g\n",
                       scale->dynamic ? "dynamic" : "static", scale->scale);
    } else {
        dsi_buf_puts(&text, "loss scale              none\n");
    }
    if (text.failed) {
        dsi_buf_free(&text);
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the precision table");
    }
    *text_out = text.data;
    return DS_OK;
}

ds_status ds_initialize(ds_ctx *ctx, const ds_engine_params *params, ds_engine **engine_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_engine_params", params));
    dsi_engine_spec spec;
    ds_engine *engine = NULL;
    DS_TRY(dsi_cpu_isa_check(ctx));
    DS_TRY(dsi_engine_read_config(ctx, params, &spec));
    DS_TRY(dsi_engine_create(ctx, params, &spec, &engine));
    ds_status status = ds_config_print(params->config, false, &engine->config_text);
    if (status >= 0) {
        status = dsi_same_text(ctx, engine->comm, engine->config_text, "configuration",
                               "it must be the same on all ranks");
    }
    status = status < 0 ? status : dsi_engine_write_model_info(engine);
    if (status < 0) {
        ds_engine_destroy(&engine);
        return status;
    }
    if (dsi_config_values(params->config)->dump_state) {
        dsi_engine_dump_state(engine);
    }
    *engine_out = engine;
    return DS_OK;
}
