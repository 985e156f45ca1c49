/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of cast, reshape, permute, slice, pad, split, concat and take_rows. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

#include <string.h>

static void cast_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        ref_set(&call->out[0], i, ref_get(&call->in[0], i));
    }
}

static ds_status cast_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), cast_range);
    return DS_OK;
}

/* A view has nothing to do; where the output has memory of its own it is a copy. */
static ds_status view_run(const ds_kernel_call *call)
{
    if (call->out[0].data != call->in[0].data) {
        memcpy(call->out[0].data, call->in[0].data, ds_meta_bytes(call->out[0].meta));
    }
    return DS_OK;
}

/* ---- permute: items are elements of the output
 * --------------------------------------------------- */
static void permute_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_permute_attrs *a = call->sig->attrs;
    const ds_shape in = call->in[0].meta.shape;
    const ds_shape out = call->out[0].meta.shape;
    const size_t each = ds_dtype_bytes(call->in[0].meta.dtype);
    int64_t strides[DS_MAX_DIMS];
    int64_t stride = 1;
    (void)slot;
    for (uint32_t d = in.n_dims; d-- > 0;) {
        strides[d] = stride;
        stride *= in.dims[d];
    }
    for (int64_t i = begin; i < end; ++i) {
        int64_t rest = i;
        int64_t from = 0;
        for (uint32_t d = out.n_dims; d-- > 0;) {
            from += rest % out.dims[d] * strides[a->order[d]];
            rest /= out.dims[d];
        }
        memcpy((char *)call->out[0].data + (size_t)i * each,
               (const char *)call->in[0].data + (size_t)from * each, each);
    }
}

static ds_status permute_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), permute_range);
    return DS_OK;
}

/* ---- slice, pad, concat: blocks of a tensor seen as (outer, dim, inner bytes)
 * --------------------- */
typedef struct folded {
    int64_t outer, dim;
    size_t inner; /* bytes */
} folded;

static folded fold(const ds_tensor *t, int64_t dim)
{
    const ds_shape s = t->meta.shape;
    folded f = {1, s.dims[dim], ds_dtype_bytes(t->meta.dtype)};
    for (int64_t d = 0; d < dim; ++d) {
        f.outer *= s.dims[d];
    }
    for (int64_t d = dim + 1; d < (int64_t)s.n_dims; ++d) {
        f.inner *= (size_t)s.dims[d];
    }
    return f;
}

/* Copies n entries of dim, from entry from_at of `from` to entry to_at of `to`. */
static void copy_entries(const ds_tensor *to, int64_t to_at, const ds_tensor *from, int64_t from_at,
                         int64_t n, int64_t dim)
{
    const folded t = fold(to, dim);
    const folded f = fold(from, dim);
    for (int64_t o = 0; o < t.outer; ++o) {
        memcpy((char *)to->data + (size_t)(o * t.dim + to_at) * t.inner,
               (const char *)from->data + (size_t)(o * f.dim + from_at) * f.inner,
               (size_t)n * t.inner);
    }
}

static ds_status slice_run(const ds_kernel_call *call)
{
    const dsi_slice_attrs *a = call->sig->attrs;
    copy_entries(&call->out[0], 0, &call->in[0], a->start, a->length, a->dim);
    return DS_OK;
}

static ds_status pad_run(const ds_kernel_call *call)
{
    const dsi_pad_attrs *a = call->sig->attrs;
    const int64_t n = call->in[0].meta.shape.dims[a->dim];
    memset(call->out[0].data, 0, ds_meta_bytes(call->out[0].meta));
    copy_entries(&call->out[0], a->before, &call->in[0], 0, n, a->dim);
    return DS_OK;
}

static ds_status split_run(const ds_kernel_call *call)
{
    const dsi_split_attrs *a = call->sig->attrs;
    int64_t at = 0;
    for (uint32_t i = 0; i < call->sig->n_out && call->out[i].data != NULL; ++i) {
        const int64_t n = call->out[i].meta.shape.dims[a->dim];
        copy_entries(&call->out[i], 0, &call->in[0], at, n, a->dim);
        at += n;
    }
    return DS_OK;
}

static ds_status concat_run(const ds_kernel_call *call)
{
    const dsi_concat_attrs *a = call->sig->attrs;
    int64_t at = 0;
    for (uint32_t i = 0; i < call->sig->n_in; ++i) {
        const int64_t n = call->in[i].meta.shape.dims[a->dim];
        copy_entries(&call->out[0], at, &call->in[i], 0, n, a->dim);
        at += n;
    }
    return DS_OK;
}

static ds_status take_rows_run(const ds_kernel_call *call)
{
    const int64_t *d = call->in[0].meta.shape.dims;
    const int32_t *index = call->in[1].data;
    const size_t row = (size_t)d[2] * ds_dtype_bytes(call->in[0].meta.dtype);
    for (int64_t b = 0; b < d[0]; ++b) {
        if (index[b] < 0 || index[b] >= d[1]) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "take_rows: index[%lld] is %d, expected 0 to %lld", (long long)b,
                           index[b], (long long)d[1] - 1);
        }
        memcpy((char *)call->out[0].data + (size_t)b * row,
               (const char *)call->in[0].data + (size_t)(b * d[1] + index[b]) * row, row);
    }
    return DS_OK;
}

/* The moving kernels take every dtype; the double-precision twin leaves them to this one. */
static bool moves(const ds_kernel_sig *sig)
{
    (void)sig;
    return (int)REF_REAL == (int)DS_DTYPE_F32;
}

#define MOVE_KERNEL_BY(op_name, run_fn)                                                            \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .supports = moves,                                  \
                                               .run = run_fn}
#define MOVE_KERNEL(op_name) MOVE_KERNEL_BY(op_name, op_name##_run)

REF_KERNEL(cast, cast_run, NULL);
MOVE_KERNEL_BY(reshape, view_run);
MOVE_KERNEL_BY(gradient, view_run);
MOVE_KERNEL_BY(whole, view_run);
MOVE_KERNEL(permute);
MOVE_KERNEL(slice);
MOVE_KERNEL(pad);
MOVE_KERNEL(split);
MOVE_KERNEL(concat);
MOVE_KERNEL(take_rows);
const ds_kernel *const DSI_REF(shape)[] = {
    &cast_kernel,  &reshape_kernel, &gradient_kernel, &whole_kernel,  &permute_kernel,
    &slice_kernel, &pad_kernel,     &split_kernel,    &concat_kernel, &take_rows_kernel,
    NULL};
