/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of the operators on a part of the vocabulary. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"
#include "op/sequence_order.h"

#include <string.h>

static ds_status row_numbers_run(const ds_kernel_call *call)
{
    const dsi_row_numbers_attrs *a = call->sig->attrs;
    const int64_t n_parts = a->n_parts > 1 ? a->n_parts : 1;
    int32_t *out = call->out[0].data;
    for (int64_t part = 0; part < n_parts; ++part) {
        const int64_t from = (part - a->turn + n_parts) % n_parts;
        for (int r = 0; r < DSI_SEQUENCE_RUNS; ++r) {
            const dsi_sequence_run run =
                dsi_sequence_run_of(a->n_rows, n_parts, a->halves != 0 && n_parts > 1, from, r);
            for (int64_t i = 0; i < run.n; ++i) {
                out[part * (a->n_rows / n_parts) + run.at + i] = (int32_t)(a->start + run.from + i);
            }
        }
    }
    return DS_OK;
}

/* ids are checked against the whole table: what another part has is no error. */
static ds_status check_ids(const ds_kernel_call *call, const ds_tensor *ids)
{
    const dsi_vocab_attrs *a = call->sig->attrs;
    const int32_t *id = ids->data;
    const int64_t n = ds_shape_count(ids->meta.shape);
    for (int64_t i = 0; i < n; ++i) {
        if (id[i] < 0 || id[i] >= a->n_rows) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "%s: id[%lld] is %d, but the table has %lld rows (ids 0 to %lld)",
                           call->sig->op->name, (long long)i, id[i], (long long)a->n_rows,
                           (long long)a->n_rows - 1);
        }
    }
    return DS_OK;
}

static void part_tokens(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_tensor *table = &call->in[0];
    const int32_t *ids = call->in[1].data;
    const int64_t n_rows = table->meta.shape.dims[0];
    const int64_t c = table->meta.shape.dims[1];
    const int64_t first = ((const int32_t *)call->in[2].data)[0];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t row = (int64_t)ids[i] - first;
        const bool here = row >= 0 && row < n_rows;
        for (int64_t j = 0; j < c; ++j) {
            ref_set(&call->out[0], i * c + j, here ? ref_get(table, row * c + j) : -R(0.0));
        }
    }
}

static ds_status embedding_part_run(const ds_kernel_call *call)
{
    DS_TRY(check_ids(call, &call->in[1]));
    memcpy(call->out[1].data, call->in[2].data, ds_meta_bytes(call->in[2].meta));
    dsi_ref_for(call, ds_shape_count(call->in[1].meta.shape), part_tokens);
    return DS_OK;
}

/* Items are columns, so that each sum runs over the tokens in order. */
static void part_dw_columns(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_tensor *dy = &call->in[1];
    const ds_tensor *start = ref_in(call, 3);
    const ds_tensor *table = &call->out[0];
    const int32_t *ids = call->in[0].data;
    const int64_t first = ((const int32_t *)call->in[2].data)[0];
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
        const int64_t row = (int64_t)ids[i] - first;
        for (int64_t j = begin; j < end && row >= 0 && row < n_rows; ++j) {
            const int64_t at = row * c + j;
            ref_set(table, at, ref_get(table, at) + ref_get(dy, i * c + j));
        }
    }
}

static ds_status embedding_part_dw_run(const ds_kernel_call *call)
{
    DS_TRY(check_ids(call, &call->in[0]));
    dsi_ref_for(call, call->out[0].meta.shape.dims[1], part_dw_columns);
    return DS_OK;
}

REF_KERNEL(row_numbers, row_numbers_run, NULL);
REF_KERNEL(embedding_part, embedding_part_run, NULL);
REF_KERNEL(embedding_part_dw, embedding_part_dw_run, NULL);
const ds_kernel *const DSI_REF(vocab)[] = {&row_numbers_kernel, &embedding_part_kernel,
                                           &embedding_part_dw_kernel, NULL};
