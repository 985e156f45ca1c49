/* SPDX-License-Identifier: Apache-2.0 */
/* Flat vectors of pieces of parameters. See deepspeed_out.h. */
#include "ckpt/deepspeed_out.h"

#include <string.h>

/* Elements [at, at + count) of a piece, which has them. */
static ds_status fill_piece(const dsi_out_vector *v, const dsi_out_piece *p, int64_t at,
                            int64_t count, uint8_t *data)
{
    const size_t width = ds_dtype_bytes(v->dtype);
    const int64_t real = at < p->count ? (count < p->count - at ? count : p->count - at) : 0;
    if (real > 0) {
        const ds_checkpoint_tensor *t = p->param->tensors[v->kind];
        const ds_extent part = ds_extent_flat(p->begin + at, real);
        DS_TRY(ds_checkpoint_read(v->ckpt, t, &part, v->dtype, data));
        if (at + real == p->count) {
            dsi_ckpt_release(v->ckpt, t);
        }
    }
    memset(data + (size_t)real * width, 0, (size_t)(count - real) * width);
    return DS_OK;
}

static ds_status fill(void *vector, size_t offset, void *data, size_t n)
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
    dsi_torch_tensor(t, dsi_torch_storage(t, vector->dtype, vector->count, fill, vector), 0, shape);
}
