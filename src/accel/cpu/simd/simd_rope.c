/* SPDX-License-Identifier: Apache-2.0 */
/* rope: heads rotated by a table of cosines and sines, tokens split over threads; the reference's
 * bits (two products and a sum, each rounded). */
#include "accel/cpu/simd/simd_kernel.h"

#include <string.h>

enum { MOST_ROTARY = 256 }; /* of a head whose pairs are neighbours */

typedef struct rope_job {
    const void *x;
    const float *table; /* (tokens, R): R/2 cosines, then R/2 sines */
    void *y;
    ds_dtype type;
    size_t n_heads, head, half; /* head: its width D; half: R/2 */
    bool inverse, pairs;
} rope_job;

DSI_INLINE void rotate_halves(const rope_job *job, const float *table, size_t at, ds_dtype type)
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

/* cosines and sines: one for each element, the sines of the first of a pair negated. p·c + q·(-s)
 * is p·c - q·s to the bit. */
DSI_INLINE void rotate_pairs(const rope_job *job, const float *cosines, const float *sines,
                             size_t at, ds_dtype type)
{
    const size_t rotary = 2 * job->half;
    for (size_t i = 0; i < rotary; i += VF_WIDTH) {
        const size_t n = rotary - i < VF_WIDTH ? rotary - i : VF_WIDTH;
        const vf x = vf_get_upto(job->x, type, at + i, n);
        const vf c = vf_get_upto(cosines, DS_DTYPE_F32, i, n);
        const vf s = vf_get_upto(sines, DS_DTYPE_F32, i, n);
        vf_put_upto(job->y, type, at + i, vf_add(vf_mul(x, c), vf_mul(vf_swap_neighbours(x), s)),
                    n);
    }
}

static void spread_pairs(const rope_job *job, const float *table, float *cosines, float *sines)
{
    for (size_t i = 0; i < job->half; ++i) {
        const float sine = job->inverse ? -table[job->half + i] : table[job->half + i];
        cosines[2 * i] = cosines[2 * i + 1] = table[i];
        sines[2 * i] = -sine;
        sines[2 * i + 1] = sine;
    }
}

DSI_INLINE void rotate_tokens(const rope_job *job, size_t first, size_t last, ds_dtype type)
{
    const size_t each = ds_dtype_bytes(type);
    const size_t rotary = 2 * job->half;
    float cosines[MOST_ROTARY];
    float sines[MOST_ROTARY];
    for (size_t token = first; token < last; ++token) {
        const float *table = job->table + token * rotary;
        if (job->pairs) {
            spread_pairs(job, table, cosines, sines);
        }
        for (size_t h = 0; h < job->n_heads; ++h) {
            const size_t at = (token * job->n_heads + h) * job->head;
            if (job->pairs) {
                rotate_pairs(job, cosines, sines, at, type);
            } else {
                rotate_halves(job, table, at, type);
            }
            memcpy((char *)job->y + (at + rotary) * each,
                   (const char *)job->x + (at + rotary) * each, (job->head - rotary) * each);
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
                          (size_t)attrs->head_dim,
                          (size_t)ds_shape_last(call->in[1].meta.shape) / 2,
                          attrs->inverse != 0,
                          attrs->pairs != 0};
    for_rows(call->ctx, n_tokens, row_blocks(n_tokens, width, ELEMENT_GRAIN, MOST_BLOCKS),
             rope_rows, &job);
    return DS_OK;
}

static bool rope_supports(const ds_kernel_sig *sig)
{
    const dsi_rope_attrs *attrs = sig->attrs;
    return is_act_type(sig->in[0].dtype) &&
           (attrs->pairs == 0 || ds_shape_last(sig->in[1].shape) <= MOST_ROTARY);
}

DSI_SIMD_KERNEL(rope, rope_supports, NULL, rope_run);
