/* SPDX-License-Identifier: Apache-2.0 */
/* rope: heads rotated by a table of cosines and sines, tokens split over threads; the reference's
 * bits (two products and a sum, each rounded). */
#include "accel/cpu/simd/simd_kernel.h"

typedef struct rope_job {
    const void *x;
    const float *table; /* (tokens, D): D/2 cosines, then D/2 sines */
    void *y;
    ds_dtype type;
    size_t n_heads, half;
    bool inverse;
} rope_job;

DSI_INLINE void rotate_head(const rope_job *job, const float *table, size_t at, ds_dtype type)
{
    for (size_t i = 0; i < job->half; i += VF_WIDTH) {
        const size_t n = job->half - i < VF_WIDTH ? job->half - i : VF_WIDTH;
        const vf c = vf_get_upto(table, DS_DTYPE_F32, i, n);
        const vf turn = vf_get_upto(table, DS_DTYPE_F32, job->half + i, n);
        const vf s = job->inverse ? vf_neg(turn) : turn;
        const vf p = vf_get_upto(job->x, type, at + i, n);
        const vf q = vf_get_upto(job->x, type, at + job->half + i, n);
        const vf first = vf_sub(vf_mul(p, c), vf_mul(q, s));
        const vf second = vf_add(vf_mul(q, c), vf_mul(p, s));
        vf_put_upto(job->y, type, at + i, first, n);
        vf_put_upto(job->y, type, at + job->half + i, second, n);
    }
}

DSI_INLINE void rotate_tokens(const rope_job *job, size_t first, size_t last, ds_dtype type)
{
    const size_t d = 2 * job->half;
    for (size_t token = first; token < last; ++token) {
        for (size_t h = 0; h < job->n_heads; ++h) {
            rotate_head(job, job->table + token * d, (token * job->n_heads + h) * d, type);
        }
    }
}

static void rope_rows(const void *opaque, size_t first, size_t last, size_t block)
{
    const rope_job *job = opaque;
    (void)block;
    DSI_BY_TYPE(job->type, rotate_tokens(job, first, last, T))
}

static ds_status rope_run(const ds_kernel_call *call)
{
    enum { MOST_BLOCKS = 4096 };
    const dsi_rope_attrs *attrs = call->sig->attrs;
    const ds_tensor *x = &call->in[0];
    const size_t width = (size_t)ds_shape_last(x->meta.shape);
    const size_t n_tokens = (size_t)ds_shape_rows(x->meta.shape);
    const rope_job job = {x->data,
                          call->in[1].data,
                          call->out[0].data,
                          x->meta.dtype,
                          width / (size_t)attrs->head_dim,
                          (size_t)attrs->head_dim / 2,
                          attrs->inverse != 0};
    for_rows(call->ctx, n_tokens, row_blocks(n_tokens, width, ELEMENT_GRAIN, MOST_BLOCKS),
             rope_rows, &job);
    return DS_OK;
}

static bool rope_supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[0].dtype);
}

DSI_SIMD_KERNEL(rope, rope_supports, NULL, rope_run);
