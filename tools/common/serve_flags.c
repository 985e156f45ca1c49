/* SPDX-License-Identifier: Apache-2.0 */
/* See serve_flags.h. */
#include "common/serve_flags.h"

#include <string.h>

void serve_flags_set(const serve_flags *flags, ds_serve_params *params)
{
    enum { LONGEST = 8192, SOURCE = 512 };
    const ds_model_info *info = ds_model_get_info(params->source.model);
    const int64_t most = info->pairs ? SOURCE : LONGEST;
    const int64_t model_most = info->max_positions;
    const int64_t otherwise = model_most > 0 && model_most < most ? model_most : most;
    params->source.dtype = flags->dtype != NULL ? ds_dtype_from_name(flags->dtype) : DS_DTYPE_NONE;
    params->source.max_length = flags->max_length > 0 ? flags->max_length : otherwise;
    params->source.config = offload_flags_infer(&flags->offload) ? NULL : flags->offload.config;
    params->source.offload_kv = flags->offload.kv;
    params->max_sequences = flags->max_sequences;
    params->max_batch_tokens = flags->max_batch_tokens;
    params->kv_tokens = flags->kv_tokens;
    params->kv_type = flags->kv_type == NULL                ? DS_DTYPE_NONE
                      : strcmp(flags->kv_type, "int8") == 0 ? DS_DTYPE_I8
                                                            : ds_dtype_from_name(flags->kv_type);
    params->no_prefix_cache = flags->no_prefix_cache;
    params->state_snapshots = flags->state_snapshots;
    params->max_draft = flags->draft;
    params->prompt_rows = flags->prompt_rows;
}

ds_status serve_flags_configure(ds_ctx *ctx, const serve_flags *flags, ds_serve_params *params)
{
    const ds_config *config = flags->offload.config;
    if (!offload_flags_infer(&flags->offload)) {
        return DS_OK;
    }
    const bool of_engine = ds_config_get_kind(config) != DS_CONFIG_INFERENCE;
    if (flags->shaped || (flags->sized && of_engine)) {
        return ds_fail(ctx, DS_ERR_ARG, "%s says it; leave %s", flags->offload.config_path,
                       flags->shaped ? "--dtype and --max_length"
                                     : "--max_sequences, --max_batch_tokens and --kv_tokens");
    }
    return ds_serve_configure(ctx, config, params);
}
