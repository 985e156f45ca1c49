/* SPDX-License-Identifier: Apache-2.0 */
/* See expert_stack.h. */
#include "ckpt/expert_stack.h"

/* The e-th of a tensor's first dim. */
static ds_safetensor slice(const ds_safetensor *whole, int64_t e)
{
    const size_t bytes = whole->bytes / (size_t)whole->meta.shape.dims[0];
    ds_safetensor one = *whole;
    one.meta.shape = ds_shape_2d(whole->meta.shape.dims[1], whole->meta.shape.dims[2]);
    one.data = (const char *)whole->data + (size_t)e * bytes;
    one.file_offset += (size_t)e * bytes;
    one.bytes = bytes;
    return one;
}

ds_status dsi_expert_stack_check(ds_ctx *ctx, const dsi_byte_form *form, const dsi_expert_stack *s)
{
    const ds_shape want = ds_shape_3d(s->n_experts, s->parts * s->shape.dims[0], s->shape.dims[1]);
    char need[160];
    char got[160];
    if (!ds_shape_equal(s->whole->meta.shape, want)) {
        return ds_fail(ctx, DS_ERR_SHAPE, "%s: tensor %s is %s, the model needs the shape of %s",
                       s->whole->path, s->whole->name,
                       ds_meta_text(s->whole->meta, got, sizeof got),
                       ds_meta_text((ds_meta){DS_DTYPE_F32, want}, need, sizeof need));
    }
    if (!dsi_byte_is_stored(form, s->whole)) {
        return DS_OK;
    }
    if (s->scales == NULL) {
        return ds_fail(ctx, DS_ERR_NOT_FOUND,
                       "%s: the tensor %s_scale_inv is missing, the scales of %s", s->whole->path,
                       s->whole->name, s->whole->name);
    }
    const ds_shape grid = s->scales->meta.shape;
    return grid.n_dims == 3 && grid.dims[0] == s->n_experts
               ? DS_OK
               : ds_fail(ctx, DS_ERR_SHAPE,
                         "%s: tensor %s is %s: expected a grid for each of %lld "
                         "experts",
                         s->scales->path, s->scales->name,
                         ds_meta_text(s->scales->meta, got, sizeof got), (long long)s->n_experts);
}

ds_status dsi_expert_stack_read(ds_ctx *ctx, const dsi_byte_form *form, const dsi_expert_stack *s,
                                int64_t e, ds_safetensor *out)
{
    const ds_safetensor one = slice(s->whole, e);
    const int64_t rows = s->shape.dims[0];
    if (s->scales != NULL) {
        const ds_safetensor scales = slice(s->scales, e);
        return dsi_byte_unpack_rows(ctx, form, &one, &scales, NULL, one.meta.shape, s->part * rows,
                                    rows, out);
    }
    const size_t bytes = one.bytes / (size_t)s->parts;
    const size_t first = (size_t)s->part * bytes;
    *out = one;
    out->meta.shape = s->shape;
    out->data = (const char *)one.data + first;
    out->file_offset += first;
    out->bytes = bytes;
    return DS_OK;
}
