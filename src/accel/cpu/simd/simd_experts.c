/* SPDX-License-Identifier: Apache-2.0 */
/* spread_rows and combine_rows, with the reference's bits, and combine_rows_dw. Tasks are runs of
 * tokens; places of different pairs are different rows. */
#include "accel/cpu/grouped.h"
#include "accel/cpu/simd/simd_rows.h"

typedef struct experts_job {
    const void *x; /* of a token each, or rows */
    const void *dy;
    const float *weights; /* NULL: none */
    const int32_t *place;
    void *out;
    size_t C, K;
    ds_dtype type;
} experts_job;

DSI_INLINE vf get_upto(const void *from, ds_dtype type, size_t at, size_t n)
{
    return n == VF_WIDTH ? vf_get(from, type, at) : vf_get_n(from, type, at, n);
}

DSI_INLINE void put_upto(void *to, ds_dtype type, size_t at, vf x, size_t n)
{
    if (n == VF_WIDTH) {
        vf_put(to, type, at, x);
    } else {
        vf_put_n(to, type, at, x, n);
    }
}

DSI_INLINE size_t width_at(size_t i, size_t C)
{
    return C - i < VF_WIDTH ? C - i : VF_WIDTH;
}

/* ---- spread_rows -------------------------------------------------------------------------------
 */
DSI_INLINE void spread(const experts_job *job, size_t first, size_t last, ds_dtype type)
{
    const size_t bytes = job->C * ds_dtype_bytes(type);
    for (size_t pair = first * job->K; pair < last * job->K; ++pair) {
        const char *from = (const char *)job->x + pair / job->K * bytes;
        char *to = (char *)job->out + (size_t)job->place[pair] * bytes;
        if (job->weights == NULL) {
            memcpy(to, from, bytes);
            continue;
        }
        const vf weight = vf_set(job->weights[pair]);
        for (size_t i = 0; i < job->C; i += VF_WIDTH) {
            const size_t n = width_at(i, job->C);
            put_upto(to, type, i, vf_mul(get_upto(from, type, i, n), weight), n);
        }
    }
}

static void spread_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const experts_job *job = opaque;
    (void)block;
    DSI_BY_TYPE(job->type, spread(job, first, last, T))
}

static experts_job make_job(const ds_kernel_call *call, uint32_t place)
{
    return (experts_job){.place = call->in[place].data,
                         .out = call->out[0].data,
                         .C = (size_t)ds_shape_last(call->in[0].meta.shape),
                         .K = (size_t)ds_shape_last(call->in[place].meta.shape),
                         .type = call->in[0].meta.dtype};
}

static void for_tokens(const ds_kernel_call *call, const experts_job *job, uint32_t place,
                       rows_fn fn)
{
    const size_t n = (size_t)ds_shape_rows(call->in[place].meta.shape);
    for_rows(call->ctx, n, row_blocks(n, job->C * job->K, ELEMENT_GRAIN, 1024), fn, job);
}

static ds_status spread_rows_run(const ds_kernel_call *call)
{
    experts_job job = make_job(call, 1);
    job.x = call->in[0].data;
    job.weights = input_at(call, 2) != NULL ? call->in[2].data : NULL;
    DS_TRY(dsi_grouped_check_place(call, &call->in[1], call->out[0].meta.shape.dims[0]));
    for_tokens(call, &job, 1, spread_block);
    return DS_OK;
}

/* ---- combine_rows ------------------------------------------------------------------------------
 */
DSI_INLINE void combine(const experts_job *job, size_t first, size_t last, ds_dtype type)
{
    for (size_t token = first; token < last; ++token) {
        const int32_t *place = job->place + token * job->K;
        const float *weights = job->weights != NULL ? job->weights + token * job->K : NULL;
        for (size_t i = 0; i < job->C; i += VF_WIDTH) {
            const size_t n = width_at(i, job->C);
            vf sum = vf_zero();
            for (size_t j = 0; j < job->K; ++j) {
                const vf x = get_upto(job->x, type, (size_t)place[j] * job->C + i, n);
                sum = vf_add(sum, weights != NULL ? vf_mul(x, vf_set(weights[j])) : x);
            }
            put_upto(job->out, type, token * job->C + i, sum, n);
        }
    }
}

static void combine_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const experts_job *job = opaque;
    (void)block;
    DSI_BY_TYPE(job->type, combine(job, first, last, T))
}

static ds_status combine_rows_run(const ds_kernel_call *call)
{
    experts_job job = make_job(call, 1);
    job.x = call->in[0].data;
    job.weights = input_at(call, 2) != NULL ? call->in[2].data : NULL;
    DS_TRY(dsi_grouped_check_place(call, &call->in[1], call->in[0].meta.shape.dims[0]));
    for_tokens(call, &job, 1, combine_block);
    return DS_OK;
}

/* ---- combine_rows_dw ---------------------------------------------------------------------------
 */
DSI_INLINE float dot(const void *a, size_t a_at, const void *b, size_t b_at, size_t C,
                     ds_dtype type)
{
    row_sum sum = row_sum_zero();
#define FULL(i, u)                                                                                 \
    sum.part[u] = vf_fma(vf_get(a, type, a_at + (i)), vf_get(b, type, b_at + (i)), sum.part[u])
#define TAIL(i, n)                                                                                 \
    sum.part[0] =                                                                                  \
        vf_fma(vf_get_n(a, type, a_at + (i), n), vf_get_n(b, type, b_at + (i), n), sum.part[0])
    FOR_ROW(C, FULL, TAIL);
#undef FULL
#undef TAIL
    return row_sum_total(sum);
}

DSI_INLINE void combine_dw(const experts_job *job, size_t first, size_t last, ds_dtype type)
{
    for (size_t pair = first * job->K; pair < last * job->K; ++pair) {
        ((float *)job->out)[pair] = dot(job->dy, pair / job->K * job->C, job->x,
                                        (size_t)job->place[pair] * job->C, job->C, type);
    }
}

static void combine_dw_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const experts_job *job = opaque;
    (void)block;
    DSI_BY_TYPE(job->type, combine_dw(job, first, last, T))
}

static ds_status combine_rows_dw_run(const ds_kernel_call *call)
{
    experts_job job = make_job(call, 2);
    job.dy = call->in[0].data;
    job.x = call->in[1].data;
    DS_TRY(dsi_grouped_check_place(call, &call->in[2], call->in[1].meta.shape.dims[0]));
    for_tokens(call, &job, 2, combine_dw_block);
    return DS_OK;
}

static bool experts_supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[0].dtype);
}

DSI_SIMD_KERNEL(spread_rows, experts_supports, NULL, spread_rows_run);
DSI_SIMD_KERNEL(combine_rows, experts_supports, NULL, combine_rows_run);
DSI_SIMD_KERNEL(combine_rows_dw, experts_supports, NULL, combine_rows_dw_run);
