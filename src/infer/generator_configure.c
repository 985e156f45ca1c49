/* SPDX-License-Identifier: Apache-2.0 */
/* A file of DeepSpeed's inference engines as a generator's params. See infer.h. */
#include "config/config_values.h"
#include "infer/generator.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int64_t constant(const char *text, const char *name)
{
    const size_t n = strlen(name);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, name, n) == 0 && line[n] == ':') {
            return (int64_t)strtoll(line + n + 1, NULL, 10);
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return 0;
}

ds_status dsi_model_constant(const ds_model *model, const char *const *names, int64_t *value_out)
{
    char *text = NULL;
    int64_t value = 0;
    DS_TRY(ds_model_print(model, &text));
    for (; *names != NULL && value == 0; ++names) {
        value = constant(text, *names);
    }
    free(text);
    *value_out = value;
    return DS_OK;
}

static ds_status check_experts(ds_ctx *ctx, const ds_config_inference *in, const ds_model *model)
{
    static const char *const names[] = {"num_experts", "num_local_experts", "n_routed_experts",
                                        NULL};
    int64_t has = 0;
    if (in->n_experts == 0) {
        return DS_OK;
    }
    DS_TRY(dsi_model_constant(model, names, &has));
    return has == in->n_experts ? DS_OK
                                : ds_fail(ctx, DS_ERR_CONFIG,
                                          "moe_experts is %" PRId64 ", but the model has %" PRId64
                                          " experts a layer; leave it out",
                                          in->n_experts, has);
}

/* Positions: those of the file, within the model's. */
static ds_status set_length(ds_ctx *ctx, const ds_config_inference *in, ds_generator_params *params)
{
    const int64_t most = ds_model_get_info(params->model)->max_positions;
    if (in->max_length > 0) {
        params->max_length = most > 0 && most < in->max_length ? most : in->max_length;
    }
    if (in->min_length > (params->max_length > 0 ? params->max_length : most)) {
        return ds_fail(ctx, DS_ERR_LIMIT,
                       "min_out_tokens is %" PRId64 ", but there is room for %" PRId64
                       " tokens: the model has no more positions",
                       in->min_length, most);
    }
    return DS_OK;
}

ds_status ds_generator_configure(ds_ctx *ctx, const ds_config *config, ds_generator_params *params)
{
    const ds_config_values *values = dsi_config_values(config);
    if (values == NULL ||
        (params->comm != NULL && values->world_size != ds_comm_size(params->comm))) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_generator_configure: the configuration is not resolved for the %" PRIu32
                       " ranks of params: ds_config_resolve first",
                       ds_comm_size(params->comm));
    }
    if (ds_config_get_kind(config) == DS_CONFIG_TRAINING) {
        params->config = config;
        return DS_OK;
    }
    if (params->model == NULL || params->config != NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_generator_configure: expected params with a model and without config");
    }
    const ds_config_inference *in = &values->inference;
    ds_generator_params own = *params;
    DS_TRY(check_experts(ctx, in, params->model));
    DS_TRY(set_length(ctx, in, &own));
    if (in->quantize != DS_DTYPE_NONE && own.quantize != DS_DTYPE_NONE &&
        own.quantize != in->quantize) {
        return ds_fail(ctx, DS_ERR_ARG, "weights in %s, but the configuration says %s; leave one",
                       ds_dtype_name(own.quantize), ds_dtype_name(in->quantize));
    }
    own.dtype = in->dtype != DS_DTYPE_NONE ? in->dtype : own.dtype;
    own.quantize = in->quantize != DS_DTYPE_NONE ? in->quantize : own.quantize;
    own.config = dsi_config_away(config) != NULL ? dsi_config_away(config) : own.config;
    own.weights = in->weights != NULL ? in->weights : own.weights;
    *params = own;
    return DS_OK;
}
