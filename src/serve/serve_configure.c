/* SPDX-License-Identifier: Apache-2.0 */
/* A file of DeepSpeed's inference engines as a server's params. See serve.h. */
#include "accel/accel.h"
#include "config/config_values.h"
#include "serve/serve_plan.h"
#include "serve/server.h"

#include <inttypes.h>
#include <string.h>

/* Positions of a block: what DeepSpeed's kernels have for heads of this size. */
static ds_status block_of(const ds_model *model, int64_t *block_out)
{
    enum { SMALL_HEAD = 64, BLOCK = 64 };
    static const char *const widths[] = {"head_dim", NULL};
    static const char *const counts[] = {"num_attention_heads", "n_head", "n_heads", NULL};
    int64_t head = 0;
    int64_t heads = 0;
    DS_TRY(dsi_model_constant(model, widths, &head));
    DS_TRY(dsi_model_constant(model, counts, &heads));
    head = head == 0 && heads > 0 ? ds_model_get_info(model)->hidden_size / heads : head;
    *block_out = head > 0 && head <= SMALL_HEAD ? 2 * BLOCK : BLOCK;
    return DS_OK;
}

/* Positions that fit beside all else with `spare` bytes left over: at least a text's. */
static ds_status fill_memory(ds_ctx *ctx, const ds_config_values *values, ds_serve_params *params,
                             int64_t whole)
{
    const ds_config_inference *in = &values->inference;
    const uint32_t ranks = values->world_size;
    const int64_t block = params->kv_block;
    ds_serve_needs needs;
    params->kv_tokens = whole;
    DS_TRY(dsi_serve_plan_on(ctx, params, ranks, NULL, &needs, NULL));
    const uint64_t other = needs.total - needs.keys_values + (uint64_t)in->kv_size;
    const uint64_t room = needs.available;
    if (needs.available != 0 && other + needs.keys_values > room) {
        return ds_fail(ctx, DS_ERR_NOMEM,
                       "state_manager.memory_config.size: %" PRId64
                       " bytes cannot stay free: keys and values of one text need %" PRIu64
                       " of %" PRIu64 " bytes, all else %" PRIu64
                       "; lower it or max_context, or set mode to \"allocate\"",
                       in->kv_size, needs.keys_values, room, other - (uint64_t)in->kv_size);
    }
    /* more than all tracked texts can fill would be of no use */
    const double most = (double)whole * (double)in->max_tracked;
    const double fits = needs.available == 0 || needs.position == 0
                            ? most
                            : (double)((room - other) / needs.position);
    const double tokens = fits < most ? fits : most;
    const double ceiling = INT32_MAX / 4;
    params->kv_tokens = (int64_t)(tokens < ceiling ? tokens : ceiling) / block * block;
    return DS_OK;
}

static ds_status size_cache(ds_ctx *ctx, const ds_config_values *values, ds_serve_params *params)
{
    const ds_config_inference *in = &values->inference;
    DS_TRY(block_of(params->source.model, &params->kv_block));
    const int64_t block = params->kv_block;
    if (in->allocates != 0 && in->kv_size > INT32_MAX / 2 / block) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "state_manager.memory_config.size: expected at most %" PRId64
                       " blocks, found %" PRId64,
                       INT32_MAX / 2 / block, in->kv_size);
    }
    if (in->allocates != 0) {
        params->kv_tokens = in->kv_size * block;
        const bool pairs = ds_model_get_info(params->source.model)->pairs;
        const int64_t most = pairs ? in->kv_size / 2 * block : params->kv_tokens;
        if (params->source.max_length > most && most > 0) { /* no longer text could end */
            params->source.max_length = most;
        }
        return DS_OK;
    }
    return fill_memory(
        ctx, values, params,
        dsi_serve_longest_text(params->source.model, params->source.max_length, block));
}

/* `auto` may choose cuda. */
static ds_status check_offload(ds_ctx *ctx, const char *asked)
{
    dsi_accel_choice choice = {.accel = NULL};
    char name[DSI_ACCEL_TEXT];
    if (dsi_accel_is_auto(asked)) {
        DS_TRY(dsi_accel_choose(ctx, asked, &choice));
        dsi_accel_say(&choice, name);
        asked = name;
    }
    if (strncmp(asked, "cuda", 4) == 0) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "state_manager.offload: keys and values of %s stay on it; leave it false, "
                       "or serve on the processor",
                       asked);
    }
    return DS_OK;
}

ds_status ds_serve_configure(ds_ctx *ctx, const ds_config *config, ds_serve_params *params)
{
    ds_serve_params own = *params;
    DS_TRY(ds_generator_configure(ctx, config, &own.source));
    if (ds_config_get_kind(config) == DS_CONFIG_TRAINING) {
        *params = own;
        return DS_OK;
    }
    const ds_config_values *values = dsi_config_values(config);
    const ds_config_inference *in = &values->inference;
    DS_TRY(in->offload_kv ? check_offload(ctx, own.source.accelerator) : DS_OK);
    if (in->max_sequences > 0) {
        own.max_sequences = in->max_sequences;
        own.max_batch_tokens = in->max_batch_tokens;
        own.max_tracked = in->max_tracked;
    }
    DS_TRY(in->kv_size > 0 ? size_cache(ctx, values, &own) : DS_OK);
    *params = own;
    return DS_OK;
}
