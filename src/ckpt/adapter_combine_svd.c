/* SPDX-License-Identifier: Apache-2.0 */
/* PEFT's way "svd" of add_weighted_adapter: the largest singular values of what several adapters
 * add to a weight. See adapter_combiner.h. The sum is in double, and as large as the weight.
 */
#include "base/top_svd.h"
#include "ckpt/adapter_combiner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = DSI_COMBINER_NAME_BYTES };

typedef dsi_combiner combiner;

static ds_status no_memory(ds_ctx *ctx)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "no memory to combine adapters");
}

/* delta (rows,columns) += weight·B·A of one adapter, with its scale. */
static ds_status add_product(const combiner *c, uint32_t i, const char *module,
                             const ds_safetensor *a, const ds_safetensor *b, ds_shape shape,
                             double *delta)
{
    const int64_t rank = a->meta.shape.dims[0];
    dsi_adapter_layer layer;
    bool on = false;
    DS_TRY(dsi_adapter_match(c->p->adapters[i], module, false, &on, &layer));
    if (!on || a->meta.shape.n_dims != 2 || b->meta.shape.n_dims != 2 ||
        b->meta.shape.dims[1] != rank || a->meta.shape.dims[1] != shape.dims[1] ||
        b->meta.shape.dims[0] != shape.dims[0]) {
        return ds_fail(c->ctx, DS_ERR_SHAPE,
                       "%s: %s and %s do not fit together, or no target means them", a->path,
                       a->name, b->name);
    }
    float *wide = malloc((size_t)(rank * (shape.dims[0] + shape.dims[1])) * sizeof *wide + 1);
    if (wide == NULL) {
        return no_memory(c->ctx);
    }
    float *of_b = wide + rank * shape.dims[1];
    const double weight = (c->p->weights != NULL ? c->p->weights[i] : 1.0) * layer.scale;
    ds_status status = ds_safetensors_read(c->ctx, a, DS_DTYPE_F32, wide);
    status = status < 0 ? status : ds_safetensors_read(c->ctx, b, DS_DTYPE_F32, of_b);
    for (int64_t r = 0; r < shape.dims[0] && status >= 0; ++r) {
        for (int64_t k = 0; k < rank; ++k) {
            const double factor = weight * (double)of_b[r * rank + k];
            for (int64_t n = 0; n < shape.dims[1]; ++n) {
                delta[r * shape.dims[1] + n] += factor * (double)wide[k * shape.dims[1] + n];
            }
        }
    }
    free(wide);
    return status;
}

/* The largest singular values of delta as A (rank,columns) and B (rows,rank); zeros where there are
 * no more. */
static ds_status split_product(const combiner *c, const double *delta, ds_shape shape, float *a,
                               float *b)
{
    const int64_t rows = shape.dims[0], columns = shape.dims[1];
    const int64_t most = rows < columns ? rows : columns;
    const int64_t rank = c->rank < most ? c->rank : most;
    float *narrow = malloc((size_t)(rows * columns) * sizeof *narrow + 1);
    double *u = malloc((size_t)(rank * (rows + columns + 1)) * sizeof *u + 1);
    ds_status status = narrow != NULL && u != NULL ? DS_OK : no_memory(c->ctx);
    for (int64_t i = 0; i < rows * columns && status >= 0; ++i) {
        narrow[i] = (float)delta[i];
    }
    double *v = u + rank * rows, *s = v + rank * columns;
    status = status < 0 ? status : dsi_top_svd(c->ctx, narrow, rows, columns, rank, u, s, v);
    for (int64_t k = 0; k < rank && status >= 0; ++k) {
        for (int64_t n = 0; n < columns; ++n) {
            a[k * columns + n] = (float)v[k * columns + n];
        }
        for (int64_t r = 0; r < rows; ++r) {
            b[r * c->rank + k] = (float)(u[k * rows + r] * s[k]);
        }
    }
    free(narrow);
    free(u);
    return status;
}

/* The name of B of the same module. */
static void name_b(const char *name_a, char name[NAME_BYTES + 32])
{
    static const char *const ends[2][2] = {{".lora_A.weight", ".lora_B.weight"},
                                           {DSI_ADAPTER_TABLE_A, DSI_ADAPTER_TABLE_B}};
    for (size_t i = 0; i < 2; ++i) {
        const size_t n = strlen(name_a), k = strlen(ends[i][0]);
        if (n > k && strcmp(name_a + n - k, ends[i][0]) == 0) {
            (void)snprintf(name, NAME_BYTES + 32, "%.*s%s", (int)(n - k), name_a, ends[i][1]);
        }
    }
}

ds_status dsi_combine_svd(combiner *c, const ds_safetensor *first, const char *module)
{
    char name[NAME_BYTES + 32] = "";
    ds_shape shape = {0};
    double *delta = NULL;
    const char *stored_b = NULL;
    ds_status status = DS_OK;
    name_b(first->name, name);
    for (uint32_t i = 0; i < c->p->n_adapters && status >= 0; ++i) {
        const ds_safetensor *a = ds_safetensors_find(c->st[i], first->name);
        const ds_safetensor *b = ds_safetensors_find(c->st[i], name);
        if (a == NULL && b == NULL) {
            continue;
        }
        if (a == NULL || b == NULL || a->meta.shape.n_dims != 2 || b->meta.shape.n_dims != 2) {
            status = ds_fail(c->ctx, DS_ERR_FORMAT, "%s: %s and %s are no pair of matrices",
                             c->p->adapters[i]->folder, first->name, name);
            break;
        }
        if (delta == NULL) {
            stored_b = b->name;
            shape = ds_shape_2d(b->meta.shape.dims[0], a->meta.shape.dims[1]);
            delta = calloc((size_t)ds_shape_count(shape) + 1, sizeof *delta);
        }
        status = delta != NULL ? add_product(c, i, module, a, b, shape, delta) : no_memory(c->ctx);
    }
    float *out[2] = {NULL, NULL};
    status = status < 0
                 ? status
                 : dsi_combine_make(c, first->name, ds_shape_2d(c->rank, shape.dims[1]), &out[0]);
    status = status < 0
                 ? status
                 : dsi_combine_make(c, stored_b, ds_shape_2d(shape.dims[0], c->rank), &out[1]);
    status = status < 0 ? status : split_product(c, delta, shape, out[0], out[1]);
    free(delta);
    return status;
}
