/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that stand for many stored tensors. See stacked.h. */
#include "ckpt/stacked.h"

#include "base/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One of the stored tensors of a source that gives its data by a function. */
typedef struct piece {
    const ds_tensor_source *whole;
    size_t first; /* byte of the whole */
} piece;

struct dsi_unstacked {
    ds_tensor_source *sources;
    piece *pieces;
    dsi_arena *names;
    size_t n;
    bool any;
};

int64_t dsi_stacked_count(const char *name, ds_shape shape)
{
    return strchr(name, '*') != NULL && shape.n_dims > 1 ? shape.dims[0] : 1;
}

ds_shape dsi_stacked_shape(const char *name, ds_shape shape)
{
    if (strchr(name, '*') != NULL && shape.n_dims > 1) {
        for (uint32_t i = 1; i < shape.n_dims; ++i) {
            shape.dims[i - 1] = shape.dims[i];
        }
        shape.dims[--shape.n_dims] = 0;
    }
    return shape;
}

ds_status dsi_stacked_name(ds_ctx *ctx, const char *name, int64_t i, char *out)
{
    const char *star = strchr(name, '*');
    const int before = star != NULL ? (int)(star - name) : (int)strlen(name);
    const int n = star != NULL ? snprintf(out, DSI_STACKED_NAME_BYTES, "%.*s%lld%s", before, name,
                                          (long long)i, star + 1)
                               : snprintf(out, DSI_STACKED_NAME_BYTES, "%s", name);
    return n >= 0 && n < DSI_STACKED_NAME_BYTES
               ? DS_OK
               : ds_fail(ctx, DS_ERR_LIMIT, "the name of a tensor is longer than %d bytes: %s",
                         DSI_STACKED_NAME_BYTES - 1, name);
}

static ds_status fill_piece(void *user, size_t offset, void *data, size_t n)
{
    const piece *p = user;
    return p->whole->fill(p->whole->user, p->first + offset, data, n);
}

static ds_status add_source(ds_ctx *ctx, dsi_unstacked *u, const ds_tensor_source *whole)
{
    const int64_t count = dsi_stacked_count(whole->name, whole->meta.shape);
    char name[DSI_STACKED_NAME_BYTES];
    ds_tensor_source one = *whole;
    one.meta.shape = dsi_stacked_shape(whole->name, whole->meta.shape);
    const size_t bytes = ds_meta_bytes(one.meta);
    u->any = u->any || count > 1;
    for (int64_t i = 0; i < count; ++i) {
        u->pieces[u->n] = (piece){whole, (size_t)i * bytes};
        DS_TRY(dsi_stacked_name(ctx, whole->name, i, name));
        one.name = dsi_arena_strdup(u->names, name);
        if (one.name == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory to write weights");
        }
        if (whole->data != NULL) {
            one.data = (const char *)whole->data + (size_t)i * bytes;
        } else {
            one.fill = fill_piece;
            one.user = &u->pieces[u->n];
        }
        u->sources[u->n++] = one;
    }
    return DS_OK;
}

ds_status dsi_unstacked_create(ds_ctx *ctx, const ds_tensor_source *sources, size_t n,
                               dsi_unstacked **unstacked_out)
{
    size_t room = 1;
    dsi_unstacked *u = calloc(1, sizeof *u);
    for (size_t i = 0; i < n; ++i) {
        room += (size_t)dsi_stacked_count(sources[i].name, sources[i].meta.shape);
    }
    ds_status status = DS_OK;
    if (u == NULL || (u->sources = calloc(room, sizeof *u->sources)) == NULL ||
        (u->pieces = calloc(room, sizeof *u->pieces)) == NULL ||
        dsi_arena_create(room * DSI_STACKED_NAME_BYTES, &u->names) < 0) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory to write weights");
    }
    for (size_t i = 0; i < n && status >= 0; ++i) {
        status = add_source(ctx, u, &sources[i]);
    }
    if (status < 0) {
        dsi_unstacked_destroy(&u);
        return status;
    }
    *unstacked_out = u;
    return DS_OK;
}

void dsi_unstacked_destroy(dsi_unstacked **unstacked)
{
    dsi_unstacked *u = *unstacked;
    if (u != NULL) {
        free(u->sources);
        free(u->pieces);
        dsi_arena_destroy(&u->names);
        free(u);
        *unstacked = NULL;
    }
}

const ds_tensor_source *dsi_unstacked_sources(const dsi_unstacked *unstacked, size_t *n_out)
{
    *n_out = unstacked->n;
    return unstacked->sources;
}

bool dsi_unstacked_any(const dsi_unstacked *unstacked)
{
    return unstacked->any;
}

ds_status dsi_write_parameters(ds_ctx *ctx, const char *folder, const ds_tensor_source *sources,
                               size_t n, uint64_t max_shard_bytes,
                               const ds_safetensors_params *given)
{
    ds_safetensors_params params = given != NULL ? *given : (ds_safetensors_params){0};
    dsi_unstacked *u = NULL;
    size_t n_stored = 0;
    DS_TRY(dsi_unstacked_create(ctx, sources, n, &u));
    const ds_tensor_source *stored = dsi_unstacked_sources(u, &n_stored);
    params.keep_order = params.keep_order || u->any;
    const ds_status status =
        ds_safetensors_write_folder(ctx, folder, stored, n_stored, max_shard_bytes, &params);
    dsi_unstacked_destroy(&u);
    return status;
}
