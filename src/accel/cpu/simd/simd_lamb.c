/* SPDX-License-Identifier: Apache-2.0 */
/* lamb_moments, lamb_sums, lamb: moments, exact sums of squares in bins, update. The sequence is
 * that of docs/internals/optim.md.
 */
#include "accel/cpu/simd/simd_exact.h"
#include "accel/cpu/simd/simd_optim.h"

#include <float.h>

/* ---- lamb_moments ---------------------------------------------------------------------------- */

typedef struct moments_job {
    void *m, *v;
    const void *grad;
    ds_dtype m_type, v_type, grad_type;
    vf factor, b1, c1, b2, c2;
} moments_job;

static void moments_range(const void *opaque, size_t begin, size_t end)
{
    const moments_job *job = opaque;
    for (size_t i = begin; i < end; i += VF_WIDTH) {
        const size_t n = end - i < VF_WIDTH ? end - i : VF_WIDTH;
        vf_fetch(job->grad, job->grad_type, i);
        vf_fetch(job->m, job->m_type, i);
        vf_fetch(job->v, job->v_type, i);
        const vf g = vf_mul(vf_get_upto(job->grad, job->grad_type, i, n), job->factor);
        const vf m = vf_fma(job->b1, vf_get_upto(job->m, job->m_type, i, n), vf_mul(job->c1, g));
        const vf v =
            vf_fma(job->b2, vf_get_upto(job->v, job->v_type, i, n), vf_mul(job->c2, vf_mul(g, g)));
        vf_put_upto(job->m, job->m_type, i, m, n);
        vf_put_upto(job->v, job->v_type, i, v, n);
    }
}

static ds_status moments_run(const ds_kernel_call *call)
{
    const ds_tensor *in = call->in;
    const float *h = in[OPTIM_HYPER].data;
    const moments_job job = {.m = optim_place(call, 0, OPTIM_PARAM),
                             .v = optim_place(call, 2, OPTIM_STATES),
                             .grad = in[OPTIM_GRAD].data,
                             .m_type = in[OPTIM_PARAM].meta.dtype,
                             .v_type = in[OPTIM_STATES].meta.dtype,
                             .grad_type = in[OPTIM_GRAD].meta.dtype,
                             .factor = vf_set(*(const float *)in[OPTIM_FACTOR].data),
                             .b1 = vf_set(h[DSI_HYPER_BETA1]),
                             .c1 = vf_set(1.0f - h[DSI_HYPER_BETA1]),
                             .b2 = vf_set(h[DSI_HYPER_BETA2]),
                             .c2 = vf_set(1.0f - h[DSI_HYPER_BETA2])};
    for_ranges(call->ctx, tensor_count(&in[OPTIM_PARAM]), OPTIM_GRAIN, moments_range, &job);
    return DS_OK;
}

/* ---- the update before the trust ratio ------------------------------------------------------- */

typedef struct direction {
    const void *m, *v, *weight;
    ds_dtype m_type, v_type, weight_type;
    vf wd, eps;
} direction;

static direction direction_of(const ds_tensor *m, const ds_tensor *v, const ds_tensor *weight,
                              const float *hyper, const dsi_optim_attrs *attrs)
{
    return (direction){.m = m->data,
                       .v = v->data,
                       .weight = weight->data,
                       .m_type = m->meta.dtype,
                       .v_type = v->meta.dtype,
                       .weight_type = weight->meta.dtype,
                       .wd = vf_set(hyper[DSI_HYPER_WEIGHT_DECAY]),
                       .eps = vf_set((float)attrs->eps)};
}

/* Of n elements from i; 0 of the zeros that fill a slice, whatever eps is. *p_out: the weights. */
DSI_INLINE vf direction_get(const direction *d, size_t i, size_t n, vf *p_out)
{
    vf_fetch(d->m, d->m_type, i);
    vf_fetch(d->v, d->v_type, i);
    vf_fetch(d->weight, d->weight_type, i);
    const vf m = vf_get_upto(d->m, d->m_type, i, n);
    const vf v = vf_get_upto(d->v, d->v_type, i, n);
    const vf root = vf_max(vf_set(FLT_MIN), vf_add(vf_sqrt(v), d->eps)); /* NaN passes */
    *p_out = vf_get_upto(d->weight, d->weight_type, i, n);
    return vf_fma(d->wd, *p_out, vf_div(m, root));
}

/* ---- lamb_sums ------------------------------------------------------------------------------- */

typedef struct sums_job {
    direction d;
    size_t chunk;
    dsi_exact_bins (*bins)[2]; /* of weight and update, one pair a chunk */
} sums_job;

static void sums_range(const void *opaque, size_t begin, size_t end)
{
    const sums_job *job = opaque;
    dsi_exact_bins *bins = job->bins[begin / job->chunk];
    float p[EXACT_BIN_BLOCK];
    float u[EXACT_BIN_BLOCK];
    memset(bins, 0, 2 * sizeof *bins);
    for (size_t at = begin; at < end; at += EXACT_BIN_BLOCK) {
        const size_t stop = end - at < EXACT_BIN_BLOCK ? end : at + EXACT_BIN_BLOCK;
        for (size_t i = at; i < stop; i += VF_WIDTH) {
            const size_t n = stop - i < VF_WIDTH ? stop - i : VF_WIDTH;
            vf weight;
            const vf update = direction_get(&job->d, i, n, &weight);
            vf_put_upto(p, DS_DTYPE_F32, i - at, weight, n);
            vf_put_upto(u, DS_DTYPE_F32, i - at, update, n);
        }
        exact_bins_block(p, 0, stop - at, DS_DTYPE_F32, &bins[0]);
        exact_bins_block(u, 0, stop - at, DS_DTYPE_F32, &bins[1]);
    }
}

static size_t sums_chunks(const ds_kernel_sig *sig, size_t *chunk_out)
{
    const size_t n = meta_count(&sig->in[0]);
    *chunk_out = range_chunk(n, OPTIM_GRAIN);
    return (n + *chunk_out - 1) / *chunk_out;
}

static size_t sums_work(const ds_kernel_sig *sig)
{
    size_t chunk;
    return sums_chunks(sig, &chunk) * 2 * sizeof(dsi_exact_bins);
}

static ds_status sums_run(const ds_kernel_call *call)
{
    const ds_tensor *in = call->in;
    sums_job job = {.d = direction_of(&in[0], &in[1], &in[2], in[3].data, call->sig->attrs),
                    .bins = call->work};
    const size_t n_chunks = sums_chunks(call->sig, &job.chunk);
    dsi_exact_bins total[2] = {{{0.0}}, {{0.0}}};
    for_ranges(call->ctx, tensor_count(&in[0]), OPTIM_GRAIN, sums_range, &job);
    for (size_t c = 0; c < n_chunks; ++c) {
        dsi_exact_bins_join(&total[0], job.bins[c][0].at);
        dsi_exact_bins_join(&total[1], job.bins[c][1].at);
    }
    memcpy(call->out[0].data, total, sizeof total);
    return DS_OK;
}

static bool sums_supports(const ds_kernel_sig *sig)
{
    bool all = true;
    for (uint32_t i = 0; i < sig->n_in; ++i) {
        all = all && is_act_type(sig->in[i].dtype);
    }
    return all;
}

/* ---- lamb ------------------------------------------------------------------------------------ */

typedef struct lamb_job {
    direction d;
    void *param;
    float *master; /* NULL: the parameter is f32 */
    ds_dtype param_type;
    vf step;
} lamb_job;

static void lamb_range(const void *opaque, size_t begin, size_t end)
{
    const lamb_job *job = opaque;
    for (size_t i = begin; i < end; i += VF_WIDTH) {
        const size_t n = end - i < VF_WIDTH ? end - i : VF_WIDTH;
        vf old;
        const vf u = direction_get(&job->d, i, n, &old);
        const vf p = vf_fma(job->step, u, old);
        if (job->master != NULL) {
            vf_put_upto(job->master, DS_DTYPE_F32, i, p, n);
        }
        vf_put_upto(job->param, job->param_type, i, p, n);
    }
}

static double lamb_norm(const double *parts)
{
    dsi_exact_bins bins = {{0.0}};
    dsi_exact_bins_join(&bins, parts);
    return sqrt(dsi_exact_bins_total(bins.at));
}

/* The trust ratio; 1 when a norm is 0 or not finite. */
static float lamb_ratio(const dsi_optim_attrs *a, const double *sums)
{
    const double norm_p = lamb_norm(sums);
    const double norm_u = lamb_norm(sums + DSI_EXACT_WIDE);
    if (!(norm_p > 0.0) || !(norm_u > 0.0) || !isfinite(norm_p) || !isfinite(norm_u)) {
        return 1.0f;
    }
    const double ratio = norm_p / norm_u;
    return (float)(ratio > a->max_coeff   ? a->max_coeff
                   : ratio < a->min_coeff ? a->min_coeff
                                          : ratio);
}

static ds_status lamb_run(const ds_kernel_call *call)
{
    const ds_tensor *in = call->in;
    const float *h = in[OPTIM_HYPER].data;
    const bool has_master = input_at(call, OPTIM_MASTER) != NULL;
    lamb_job job = {.param = has_master ? call->out[0].data : optim_place(call, 0, OPTIM_PARAM),
                    .master = has_master ? optim_place(call, 1, OPTIM_MASTER) : NULL,
                    .param_type = in[OPTIM_PARAM].meta.dtype};
    const ds_tensor weight = {
        has_master ? job.master : job.param,
        {has_master ? DS_DTYPE_F32 : job.param_type, in[OPTIM_PARAM].meta.shape}};
    const float scaled = (h[DSI_HYPER_LR] * h[DSI_HYPER_BIAS2]) / h[DSI_HYPER_BIAS1];
    job.d = direction_of(&in[OPTIM_STATES], &in[OPTIM_STATES + 1], &weight, h, call->sig->attrs);
    job.step = vf_set(-scaled * lamb_ratio(call->sig->attrs, in[OPTIM_GRAD].data));
    for_ranges(call->ctx, tensor_count(&in[OPTIM_PARAM]), OPTIM_GRAIN, lamb_range, &job);
    return DS_OK;
}

static bool lamb_supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[OPTIM_PARAM].dtype) && (sig->in[OPTIM_PARAM].dtype == DS_DTYPE_F32 ||
                                                       sig->in[OPTIM_MASTER].dtype == DS_DTYPE_F32);
}

DSI_SIMD_KERNEL(lamb_moments, all_act_types, NULL, moments_run);
DSI_SIMD_KERNEL(lamb_sums, sums_supports, sums_work, sums_run);
DSI_SIMD_KERNEL(lamb, lamb_supports, NULL, lamb_run);
