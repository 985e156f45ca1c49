/* SPDX-License-Identifier: Apache-2.0 */
/* quantization_config of the config.json beside weights: what its readers share (int4.c,
 * byte_weight.c). */
#ifndef DSI_CKPT_QUANTIZED_CONFIG_H
#define DSI_CKPT_QUANTIZED_CONFIG_H

#include <deepspeed/safetensors.h>
#include <jansson.h>
#include <stdbool.h>

typedef struct dsi_quantized_config {
    ds_ctx *ctx;
    json_t *root;
    json_t *own; /* the object; NULL: there is none */
    char path[4096];
} dsi_quantized_config;

/* Whatever the file is: the model's reader judges it. The caller frees it with json_decref(root).
 */
void dsi_quantized_config_load(ds_ctx *ctx, const ds_safetensors *st, dsi_quantized_config *out);
/* Whether own[key] is the text; `absent`: what a missing key or null means, or NULL. */
bool dsi_quantized_is(const json_t *own, const char *key, const char *absent, const char *text);
/* ERR_UNSUPPORTED, which names the field. */
ds_status dsi_quantized_refuse(const dsi_quantized_config *config, const char *key,
                               const char *what);
/* Of compressed-tensors: no sparse weights, no quantized cache, at least one group. */
ds_status dsi_quantized_check_groups(const dsi_quantized_config *config);
/* Likewise, of a group's weights: columns in their own order (actorder none, "weight", "static").
 */
ds_status dsi_quantized_check_order(const dsi_quantized_config *config, const json_t *weights);

#endif
