/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of embedding and embedding_dw. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

static ds_status check_ids(const ds_kernel_call *call, const ds_tensor *ids, const char *name,
                           int64_t n_rows)
{
    const int32_t *id = ids->data;
    const int64_t n = ds_shape_count(ids->meta.shape);
    for (int64_t i = 0; i < n; ++i) {
        if (id[i] < 0 || id[i] >= n_rows) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "%s: %s[%lld] is %d, but the table has %lld rows (ids 0 to %lld)",
                           call->sig->op->name, name, (long long)i, id[i], (long long)n_rows,
                           (long long)n_rows - 1);
        }
    }
    return DS_OK;
}

static void embedding_tokens(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_tensor *table = &call->in[0];
    const ds_tensor *places = ref_in(call, 2);
    const int32_t *ids = call->in[1].data;
    const int64_t c = table->meta.shape.dims[1];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t at = places != NULL ? ((const int32_t *)call->in[3].data)[i] * c : 0;
        for (int64_t j = 0; j < c; ++j) {
            const real row = ref_get(table, ids[i] * c + j);
            ref_set(&call->out[0], i * c + j, places != NULL ? row + ref_get(places, at + j) : row);
        }
    }
}

static ds_status embedding_run(const ds_kernel_call *call)
{
    DS_TRY(check_ids(call, &call->in[1], "id", call->in[0].meta.shape.dims[0]));
    if (ref_has(call, 2)) {
        DS_TRY(check_ids(call, &call->in[3], "position", call->in[2].meta.shape.dims[0]));
    }
    dsi_ref_for(call, ds_shape_count(call->in[1].meta.shape), embedding_tokens);
    return DS_OK;
}

/* Items are columns, so that each sum runs over the tokens in order. */
static void embedding_dw_columns(const ds_kernel_call *call, int64_t begin, int64_t end,
                                 uint32_t slot)
{
    const ds_tensor *dy = &call->in[1];
    const ds_tensor *start = ref_in(call, 2);
    const ds_tensor *table = &call->out[0];
    const int32_t *ids = call->in[0].data;
    const int64_t n = ds_shape_count(call->in[0].meta.shape);
    const int64_t n_rows = table->meta.shape.dims[0];
    const int64_t c = table->meta.shape.dims[1];
    (void)slot;
    for (int64_t v = 0; v < n_rows; ++v) {
        for (int64_t j = begin; j < end; ++j) {
            ref_set(table, v * c + j, start != NULL ? ref_get(start, v * c + j) : R(0.0));
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = begin; j < end; ++j) {
            const int64_t at = ids[i] * c + j;
            ref_set(table, at, ref_get(table, at) + ref_get(dy, i * c + j));
        }
    }
}

static ds_status embedding_dw_run(const ds_kernel_call *call)
{
    const ds_shape table = call->out[0].meta.shape;
    DS_TRY(check_ids(call, &call->in[0], "id", table.dims[0]));
    dsi_ref_for(call, table.dims[1], embedding_dw_columns);
    return DS_OK;
}

REF_KERNEL(embedding, embedding_run, NULL);
REF_KERNEL(embedding_dw, embedding_dw_run, NULL);
const ds_kernel *const DSI_REF(embedding)[] = {&embedding_kernel, &embedding_dw_kernel, NULL};
