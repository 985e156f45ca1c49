/* SPDX-License-Identifier: Apache-2.0 */
/* See quantized_config.h. */
#include "ckpt/quantized_config.h"

#include <stdio.h>
#include <string.h>

void dsi_quantized_config_load(ds_ctx *ctx, const ds_safetensors *st, dsi_quantized_config *out)
{
    const ds_safetensor *first = ds_safetensors_at(st, 0);
    const char *slash = first != NULL ? strrchr(first->path, '/') : NULL;
    json_error_t error;
    out->ctx = ctx;
    (void)snprintf(out->path, sizeof out->path, "%.*sconfig.json",
                   slash != NULL ? (int)(slash + 1 - first->path) : 0,
                   slash != NULL ? first->path : "");
    out->root = json_load_file(out->path, 0, &error);
    out->own = json_object_get(out->root, "quantization_config");
}

bool dsi_quantized_is(const json_t *own, const char *key, const char *absent, const char *text)
{
    const json_t *value = json_object_get(own, key);
    const char *found = value == NULL || json_is_null(value) ? absent : json_string_value(value);
    return found != NULL && strcmp(found, text) == 0;
}

ds_status dsi_quantized_refuse(const dsi_quantized_config *config, const char *key,
                               const char *what)
{
    return ds_fail(config->ctx, DS_ERR_UNSUPPORTED,
                   "%s: quantization_config.%s: %s; convert the model with its own package",
                   config->path, key, what);
}

ds_status dsi_quantized_check_groups(const dsi_quantized_config *config)
{
    const json_t *sparse = json_object_get(config->own, "sparsity_config");
    const json_t *cache = json_object_get(config->own, "kv_cache_scheme");
    if (json_object_size(sparse) > 0 && !dsi_quantized_is(sparse, "format", "dense", "dense")) {
        return dsi_quantized_refuse(config, "sparsity_config", "sparse weights are not read");
    }
    if (cache != NULL && !json_is_null(cache)) {
        return dsi_quantized_refuse(config, "kv_cache_scheme", "keys and values are kept whole");
    }
    return json_object_size(json_object_get(config->own, "config_groups")) > 0
               ? DS_OK
               : dsi_quantized_refuse(config, "config_groups", "at least one is expected");
}

ds_status dsi_quantized_check_order(const dsi_quantized_config *config, const json_t *weights)
{
    return dsi_quantized_is(weights, "actorder", "weight", "weight") ||
                   dsi_quantized_is(weights, "actorder", "", "static")
               ? DS_OK
               : dsi_quantized_refuse(config, "actorder",
                                      "columns in another order are not read here");
}
