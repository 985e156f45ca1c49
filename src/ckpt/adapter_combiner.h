/* SPDX-License-Identifier: Apache-2.0 */
/* What adapter_combine.c, adapter_combine_svd.c and adapter_combine_sparse.c share. */
#ifndef DSI_CKPT_ADAPTER_COMBINER_H
#define DSI_CKPT_ADAPTER_COMBINER_H

#include "model/adapter.h"

#include <deepspeed/safetensors.h>

enum { DSI_COMBINER_NAME_BYTES = 1200 };

/* The folders that are read, and what is made of them. */
typedef struct dsi_combiner {
    ds_ctx *ctx;
    const ds_adapter_combine_params *p;
    ds_safetensors **st; /* per adapter */
    int64_t rank;        /* of what is made */
    ds_tensor_source *made;
    float **data;
    size_t n, room;
} dsi_combiner;

/* A zeroed tensor of what is made; name is borrowed. */
ds_status dsi_combine_make(dsi_combiner *c, const char *name, ds_shape shape, float **out);
/* A and B of one module, of all adapters that have it. first: the tensor A of one of them. */
ds_status dsi_combine_svd(dsi_combiner *c, const ds_safetensor *first, const char *module);

/* One adapter's matrix. */
typedef struct dsi_combine_part {
    float *data; /* is changed */
    float weight;
    uint32_t adapter; /* its place among all */
} dsi_combine_part;

bool dsi_combine_is_sparse(ds_adapter_combination way);
/* density, majority and seed go with the combination. Errors: ERR_ARG. */
ds_status dsi_combine_check_sparse(ds_ctx *ctx, const ds_adapter_combine_params *params);
/* n matrices of `count` elements, of the tensor `name`, as one. */
ds_status dsi_combine_sparse(const dsi_combiner *c, const char *name, dsi_combine_part *parts,
                             uint32_t n, int64_t count, float *out);

#endif
