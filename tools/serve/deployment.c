/* SPDX-License-Identifier: Apache-2.0 */
/* A file of DeepSpeed-MII's arguments as flags of ds_serve: the model, its name, address, replicas.
 * What it says of the engine goes the way of the other files. See serve_options.h. */
#include "serve_options.h"

#include "config/config_values.h"

#include <unistd.h>

/* Of the one address: those of a replica are its front's. */
static ds_status take_address(ds_ctx *ctx, serve_options *o, const ds_config_inference *in)
{
    if (o->control || !in->restful) {
        return DS_OK;
    }
    if (o->address_given) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s says restful_api_host and restful_api_port; leave --host and --port",
                       o->sizes.offload.config_path);
    }
    o->host = in->address;
    o->port = in->port;
    return DS_OK;
}

ds_status deployment_read(ds_ctx *ctx, serve_options *o)
{
    const ds_config_params params = {.kind = DS_CONFIG_ANY};
    if (o->sizes.offload.config_path == NULL) {
        return DS_OK;
    }
    DS_TRY(ds_config_load_file(ctx, o->sizes.offload.config_path, &params, &o->deployment));
    if (ds_config_get_kind(o->deployment) != DS_CONFIG_MII) {
        return DS_OK;
    }
    const ds_config_inference *in = dsi_config_inference(o->deployment);
    o->model = o->model != NULL ? o->model : in->model;
    o->tokenizer = o->tokenizer != NULL ? o->tokenizer : in->tokenizer;
    if (o->served_name == NULL && in->deployment[0] != '\0') {
        o->served_name = in->deployment;
    }
    DS_TRY(take_address(ctx, o, in));
    if (o->control || o->replicas > 0 || in->replicas <= 1) {
        return DS_OK;
    }
    if (o->hostfile == NULL && access(in->hostfile, R_OK) == 0) {
        o->hostfile = in->hostfile;
    }
    if (o->hostfile == NULL) {
        o->replicas = in->replicas;
    } else {
        o->slots = in->replicas;
    }
    return DS_OK;
}
