/* SPDX-License-Identifier: Apache-2.0 */
#include "common/small_run.h"

#include "accel/cpu/cpu_features.h"
#include "common/check.h"
#include "common/scratch.h"

#include <stdio.h>
#include <string.h>

const char small_gpt2[] =
    "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":64,\"n_embd\":48,\"n_layer\":3,"
    "\"n_head\":4,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}";
const char small_llama[] =
    "{\"model_type\":\"llama\",\"vocab_size\":211,\"hidden_size\":48,\"intermediate_size\":112,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}";

dsi_offload_spec small_away(const char *folder, dsi_residency states, dsi_residency params)
{
    dsi_offload_spec spec = {.states = states,
                             .params = params,
                             .ratio = 1.0,
                             .threshold = 1,
                             .how = {.chunk = 4096},
                             .read_ahead = 20000,
                             .update_ahead = 60000,
                             .write_behind = 60000,
                             .defer = true,
                             .aio = ds_aio_params_default()};
    (void)snprintf(spec.folders, sizeof spec.folders, "%s", folder);
    return spec;
}

dsi_engine_spec small_spec(ds_dtype dtype)
{
    return (dsi_engine_spec){.train = {.dtype = dtype,
                                       .comm_dtype = dtype,
                                       .accumulate_dtype = DS_DTYPE_F32,
                                       .state_dtype = DS_DTYPE_F32,
                                       .master = dtype != DS_DTYPE_F32,
                                       .batch = SMALL_BATCH,
                                       .seq_length = SMALL_SEQ,
                                       .accumulation = 1,
                                       .optimizer = DS_OPTIMIZER_ADAM,
                                       .eps = 1e-8,
                                       .decoupled_decay = true},
                             .lr = 1e-3,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .weight_decay = 0.1,
                             .bias_correction = true,
                             .loss_scale = dsi_loss_scale_none(),
                             .schedule = ds_schedule_default(DS_SCHEDULE_NONE),
                             .seed = 11,
                             .isa = dsi_cpu_isa()};
}

ds_model *small_model(ds_ctx *ctx, const char *folder, const char *config)
{
    ds_model *model = NULL;
    const char *path = scratch_path(folder, "config.json");
    scratch_write(path, config, strlen(config));
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &model));
    return model;
}

ds_engine *small_engine(ds_ctx *ctx, const ds_model *model, const dsi_engine_spec *spec)
{
    ds_engine *engine = NULL;
    const ds_engine_params params = {
        .model = model, .seq_length = SMALL_SEQ, .seed = 5, .memory_bytes = SMALL_MEMORY};
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, spec, &engine));
    return engine;
}

ds_batch small_feed(int32_t step, small_batch *batch)
{
    static const char *const names[4] = {"input_ids", "targets", "positions", "first"};
    for (int i = 0; i < 4; ++i) {
        const ds_meta meta = {DS_DTYPE_I32, {.n_dims = 2, .dims = {SMALL_BATCH, SMALL_SEQ}}};
        batch->tensors[i] = (ds_named_tensor){names[i], {batch->data[i], meta}};
    }
    for (int32_t i = 0; i < SMALL_BATCH * SMALL_SEQ; ++i) {
        batch->data[0][i] = (i * 37 + step * 11) % SMALL_VOCABULARY;
        batch->data[1][i] = (i * 37 + step * 11 + 37) % SMALL_VOCABULARY;
        batch->data[2][i] = i % SMALL_SEQ;
        batch->data[3][i] = 0;
    }
    return (ds_batch){batch->tensors, 4};
}

ds_status small_next(void *user, ds_batch *batch_out)
{
    static small_batch data;
    int32_t *step = user;
    *batch_out = small_feed((*step)++, &data);
    return DS_OK;
}

dsi_engine_spec small_host_spec(ds_ctx *ctx, const char *folder, ds_dtype dtype, const char *accel,
                                bool away, bool params)
{
    dsi_engine_spec spec = small_spec(dtype);
    CHECK_OK(ctx, dsi_accel_choose(ctx, accel, &spec.accel));
    spec.train.max_norm = 0.1;
    spec.host_cores = 1.0;
    if (away) {
        spec.offload = small_away(folder, DSI_RESIDENCY_HOST,
                                  params ? DSI_RESIDENCY_HOST : DSI_RESIDENCY_DEVICE);
        spec.offload.how.host = true;
    }
    return spec;
}
