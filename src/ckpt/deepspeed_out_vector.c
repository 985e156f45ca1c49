/* SPDX-License-Identifier: Apache-2.0 */
/* Flat vectors of pieces of parameters. See deepspeed_out.h. */
#include "ckpt/deepspeed_out.h"

#include <string.h>

/* ---- a parameter's elements, out of its boxes ---- */

typedef struct read_run {
    const dsi_out_vector *v;
    const ds_checkpoint_tensor *tensor;
    int64_t low;   /* element of the box … */
    uint8_t *data; /* … that stands here */
} read_run;

static ds_status read_box(void *user, const ds_extent *extent, int64_t first)
{
    const read_run *r = user;
    return ds_checkpoint_read(r->v->ckpt, r->tensor, extent, r->v->dtype,
                              r->data + (size_t)(first - r->low) * ds_dtype_bytes(r->v->dtype));
}

static ds_status read_elements(const dsi_out_vector *v, const dsi_out_param *p, int64_t begin,
                               int64_t count, uint8_t *data)
{
    const ds_checkpoint_tensor *t = p->tensors[v->kind];
    int64_t start = 0; /* of the box */
    if (p->boxes == NULL) {
        const ds_extent part = ds_extent_flat(begin, count);
        return ds_checkpoint_read(v->ckpt, t, &part, v->dtype, data);
    }
    for (size_t i = 0; i < p->n_boxes && count > 0; ++i) {
        const int64_t end = start + ds_shape_count(p->boxes[i].shape);
        if (begin < end) {
            const int64_t own = count < end - begin ? count : end - begin;
            read_run r = {v, t, begin - start, data};
            DS_TRY(dsi_box_runs(&p->boxes[i], r.low, r.low + own, read_box, &r));
            data += (size_t)own * ds_dtype_bytes(v->dtype);
            begin += own;
            count -= own;
        }
        start = end;
    }
    return DS_OK;
}

/* ---- the vector ---- */

/* Elements [at, at + count) of a piece, which has them. */
static ds_status fill_piece(const dsi_out_vector *v, const dsi_out_piece *p, int64_t at,
                            int64_t count, uint8_t *data)
{
    const size_t width = ds_dtype_bytes(v->dtype);
    const int64_t real = at < p->count ? (count < p->count - at ? count : p->count - at) : 0;
    if (real > 0) {
        const ds_checkpoint_tensor *t = p->param->tensors[v->kind];
        DS_TRY(read_elements(v, p->param, p->begin + at, real, data));
        if (at + real == p->count) {
            dsi_ckpt_release(v->ckpt, t);
        }
    }
    memset(data + (size_t)real * width, 0, (size_t)(count - real) * width);
    return DS_OK;
}

ds_status dsi_out_fill(void *vector, size_t offset, void *data, size_t n)
{
    dsi_out_vector *v = vector;
    const size_t width = ds_dtype_bytes(v->dtype);
    int64_t at = (int64_t)(offset / width);
    int64_t left = (int64_t)(n / width);
    uint8_t *to = data;
    if (at < v->start) {
        v->at = 0;
        v->start = 0;
    }
    while (left > 0 && v->at < v->n) {
        const dsi_out_piece *p = &v->pieces[v->at];
        const int64_t size = p->count + p->zeros;
        if (at >= v->start + size) {
            v->start += size;
            ++v->at;
            continue;
        }
        const int64_t has = v->start + size - at;
        const int64_t own = left < has ? left : has;
        DS_TRY(fill_piece(v, p, at - v->start, own, to));
        to += (size_t)own * width;
        at += own;
        left -= own;
    }
    return DS_OK;
}

void dsi_out_put(dsi_torch_out *t, dsi_out_vector *vector, ds_shape shape)
{
    dsi_torch_tensor(t, dsi_torch_storage(t, vector->dtype, vector->count, dsi_out_fill, vector), 0,
                     shape);
}
