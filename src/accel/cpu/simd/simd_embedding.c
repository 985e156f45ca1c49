/* SPDX-License-Identifier: Apache-2.0 */
/* embedding and embedding_dw, of a table and of a part of one.
 *
 * embedding_dw splits the columns, so that each task adds the rows of its columns in token order:
 * deterministic without atomics or sorting.
 */
#include "accel/cpu/simd/simd_rows.h"

typedef struct lookup_job {
    const void *table, *position_table; /* the second NULL when absent */
    const int32_t *ids, *positions;
    void *out;
    size_t C;
    ds_dtype type;
} lookup_job;

DSI_INLINE void add_rows(const void *a, const void *b, void *out, size_t C, ds_dtype type)
{
#define FULL(i, u) vf_put(out, type, i, vf_add(vf_get(a, type, i), vf_get(b, type, i)))
#define TAIL(i, n)                                                                                 \
    vf_put_n(out, type, i, vf_add(vf_get_n(a, type, i, n), vf_get_n(b, type, i, n)), n)
    FOR_ROW(C, FULL, TAIL);
#undef FULL
#undef TAIL
}

static void lookup_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const lookup_job *job = opaque;
    const size_t bytes = job->C * ds_dtype_bytes(job->type);
    (void)block;
    for (size_t t = first; t < last; ++t) {
        const char *row = (const char *)job->table + (size_t)job->ids[t] * bytes;
        char *out = (char *)job->out + t * bytes;
        if (job->position_table == NULL) {
            memcpy(out, row, bytes);
            continue;
        }
        const char *other = (const char *)job->position_table + (size_t)job->positions[t] * bytes;
        DSI_BY_TYPE(job->type, add_rows(row, other, out, job->C, T))
    }
}

static ds_status check_ids(const ds_kernel_call *call, const char *what, const ds_tensor *ids,
                           int64_t n_rows)
{
    const int32_t *id = ids->data;
    const size_t n = tensor_count(ids);
    for (size_t t = 0; t < n; ++t) {
        if (id[t] < 0 || id[t] >= n_rows) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "%s: %s[%zu] is %d, but the table has %lld rows (ids 0 to %lld)",
                           call->sig->op->name, what, t, id[t], (long long)n_rows,
                           (long long)n_rows - 1);
        }
    }
    return DS_OK;
}

static ds_status embedding_run(const ds_kernel_call *call)
{
    const ds_tensor *table = &call->in[0];
    const ds_tensor *ids = &call->in[1];
    const ds_tensor *other = input_at(call, 2);
    const ds_tensor *positions = input_at(call, 3);
    const size_t C = (size_t)ds_shape_last(table->meta.shape);
    const size_t n = tensor_count(ids);
    DS_TRY(check_ids(call, "id", ids, table->meta.shape.dims[0]));
    if (other != NULL) {
        DS_TRY(check_ids(call, "position", positions, other->meta.shape.dims[0]));
    }
    const lookup_job job = {table->data,       other != NULL ? other->data : NULL,
                            ids->data,         other != NULL ? positions->data : NULL,
                            call->out[0].data, C,
                            table->meta.dtype};
    for_rows(call->ctx, n, row_blocks(n, C, ELEMENT_GRAIN, 1024), lookup_block, &job);
    return DS_OK;
}

static bool embedding_supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[0].dtype);
}

DSI_SIMD_KERNEL(embedding, embedding_supports, NULL, embedding_run);

/* ---- a part of the table ------------------------------------------------------------------------
 */
typedef struct part_job {
    const void *table;
    const int32_t *ids;
    void *out;
    size_t C;
    int64_t first, n_rows; /* of the part */
    ds_dtype type;
} part_job;

static void part_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const part_job *job = opaque;
    const size_t bytes = job->C * ds_dtype_bytes(job->type);
    (void)block;
    for (size_t t = first; t < last; ++t) {
        const int64_t row = (int64_t)job->ids[t] - job->first;
        char *out = (char *)job->out + t * bytes;
        if (row >= 0 && row < job->n_rows) {
            memcpy(out, (const char *)job->table + (size_t)row * bytes, bytes);
            continue;
        }
        for (size_t c = 0; c < job->C; ++c) { /* -0 */
            if (job->type == DS_DTYPE_F32) {
                ((float *)(void *)out)[c] = -0.0f;
            } else {
                ((uint16_t *)(void *)out)[c] = 0x8000;
            }
        }
    }
}

static ds_status embedding_part_run(const ds_kernel_call *call)
{
    const dsi_vocab_attrs *a = call->sig->attrs;
    const ds_tensor *table = &call->in[0];
    const size_t n = tensor_count(&call->in[1]);
    const part_job job = {.table = table->data,
                          .ids = call->in[1].data,
                          .out = call->out[0].data,
                          .C = (size_t)ds_shape_last(table->meta.shape),
                          .first = ((const int32_t *)call->in[2].data)[0],
                          .n_rows = table->meta.shape.dims[0],
                          .type = table->meta.dtype};
    DS_TRY(check_ids(call, "id", &call->in[1], a->n_rows));
    memcpy(call->out[1].data, call->in[2].data, ds_meta_bytes(call->in[2].meta));
    for_rows(call->ctx, n, row_blocks(n, job.C, ELEMENT_GRAIN, 1024), part_block, &job);
    return DS_OK;
}

DSI_SIMD_KERNEL(embedding_part, embedding_supports, NULL, embedding_part_run);

/* ---- gradient of the table --------------------------------------------------------------------
 */
enum { COLUMNS = 128 }; /* of a task */

typedef struct scatter_job {
    const int32_t *ids;
    const void *dy;
    const float *before; /* NULL: zeros */
    float *table;
    size_t n_tokens, C;
    ds_dtype type;
    int64_t first, n_rows; /* of a part; of the whole table 0 and all */
} scatter_job;

/* The table before any token, elements [begin,end). */
static void scatter_start(const void *opaque, size_t begin, size_t end)
{
    const scatter_job *job = opaque;
    const size_t bytes = (end - begin) * sizeof *job->table;
    if (job->before == NULL) {
        memset(job->table + begin, 0, bytes);
    } else if (job->before != job->table) {
        memcpy(job->table + begin, job->before + begin, bytes);
    }
}

DSI_INLINE void add_tokens(const scatter_job *job, size_t begin, size_t end, ds_dtype type)
{
    for (size_t t = 0; t < job->n_tokens; ++t) {
        const int64_t at = (int64_t)job->ids[t] - job->first;
        if (at < 0 || at >= job->n_rows) {
            continue;
        }
        float *row = job->table + (size_t)at * job->C;
        const size_t from = t * job->C;
        size_t c = begin;
        for (; c + VF_WIDTH <= end; c += VF_WIDTH) {
            vf_store(row + c, vf_add(vf_load(row + c), vf_get(job->dy, type, from + c)));
        }
        if (c < end) {
            const size_t n = end - c;
            vf_store_n(row + c, vf_add(vf_load_n(row + c, n), vf_get_n(job->dy, type, from + c, n)),
                       n);
        }
    }
}

static void scatter_columns(const void *opaque, size_t begin, size_t end)
{
    const scatter_job *job = opaque;
    DSI_BY_TYPE(job->type, add_tokens(job, begin, end, T))
}

/* ids: of n_all rows, of which the table has those from the first on. */
static ds_status scatter(const ds_kernel_call *call, const ds_tensor *before, int64_t first,
                         int64_t n_all)
{
    const ds_tensor *ids = &call->in[0];
    const ds_tensor *dy = &call->in[1];
    const ds_tensor *table = &call->out[0];
    const scatter_job job = {.ids = ids->data,
                             .dy = dy->data,
                             .before = before != NULL ? before->data : NULL,
                             .table = table->data,
                             .n_tokens = tensor_count(ids),
                             .C = (size_t)ds_shape_last(table->meta.shape),
                             .type = dy->meta.dtype,
                             .first = first,
                             .n_rows = table->meta.shape.dims[0]};
    DS_TRY(check_ids(call, "id", ids, n_all));
    for_ranges(call->ctx, tensor_count(table), 8 * ELEMENT_GRAIN, scatter_start, &job);
    for_ranges(call->ctx, job.C, COLUMNS, scatter_columns, &job);
    return DS_OK;
}

static ds_status embedding_dw_run(const ds_kernel_call *call)
{
    return scatter(call, input_at(call, 2), 0, call->out[0].meta.shape.dims[0]);
}

static ds_status embedding_part_dw_run(const ds_kernel_call *call)
{
    const dsi_vocab_attrs *a = call->sig->attrs;
    return scatter(call, input_at(call, 3), ((const int32_t *)call->in[2].data)[0], a->n_rows);
}

static bool embedding_dw_supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[1].dtype) && sig->out[0].dtype == DS_DTYPE_F32;
}

DSI_SIMD_KERNEL(embedding_dw, embedding_dw_supports, NULL, embedding_dw_run);
DSI_SIMD_KERNEL(embedding_part_dw, embedding_dw_supports, NULL, embedding_part_dw_run);
