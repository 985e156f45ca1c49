/* SPDX-License-Identifier: Apache-2.0 */
/* lamb: moments and maxima, exact norms, update: three passes over one tensor. The sequence is that
 * of docs/internals/optim.md.
 */
#include "accel/cpu/simd/simd_exact.h"
#include "accel/cpu/simd/simd_optim.h"

typedef struct lamb_chunk {
    float top_p, top_u;
    dsi_exact_parts p, u;
} lamb_chunk;

typedef struct lamb_job {
    optim_job base;
    size_t chunk;
    lamb_chunk *chunks;
    dsi_exact_grid grid_p, grid_u;
    float step; /* of the last pass */
} lamb_job;

DSI_INLINE vf lamb_weight(const optim_job *job, size_t i, size_t n)
{
    const void *p = job->master != NULL ? job->master : job->param;
    vf_fetch(p, DS_DTYPE_F32, i);
    return vf_get_upto(p, DS_DTYPE_F32, i, n);
}

/* u from the stored moments; lanes beyond n are 0 as p is. */
DSI_INLINE vf lamb_direction(const optim_job *job, const optim_scalars *k, vf p, size_t i, size_t n)
{
    vf_fetch(job->state[0], job->state_type, i);
    vf_fetch(job->state[1], job->state_type, i);
    const vf m = vf_get_upto(job->state[0], job->state_type, i, n);
    const vf v = vf_get_upto(job->state[1], job->state_type, i, n);
    const vf u = vf_fma(k->wd, p, vf_div(m, vf_add(vf_sqrt(v), k->eps)));
    return vf_select(vm_first(n), u, vf_zero()); /* 0/0 when eps is 0 */
}

static void lamb_moments(const void *opaque, size_t begin, size_t end)
{
    const lamb_job *lamb = opaque;
    const optim_job *job = &lamb->base;
    const optim_scalars k = optim_scalars_of(job);
    const ds_dtype st = job->state_type;
    vi top_p = vi_set(0);
    vi top_u = vi_set(0);
    for (size_t i = begin; i < end; i += VF_WIDTH) {
        const size_t n = end - i < VF_WIDTH ? end - i : VF_WIDTH;
        vf_fetch(job->grad, job->grad_type, i);
        const vf g = vf_mul(vf_get_upto(job->grad, job->grad_type, i, n), k.factor);
        const vf m = vf_fma(k.b1, vf_get_upto(job->state[0], st, i, n), vf_mul(k.c1, g));
        const vf v = vf_fma(k.b2, vf_get_upto(job->state[1], st, i, n), vf_mul(k.c2, vf_mul(g, g)));
        vf_put_upto(job->state[0], st, i, m, n);
        vf_put_upto(job->state[1], st, i, v, n);
        const vf p = lamb_weight(job, i, n);
        top_p = abs_bits_max(top_p, p);
        top_u = abs_bits_max(top_u, lamb_direction(job, &k, p, i, n));
    }
    lamb->chunks[begin / lamb->chunk].top_p = abs_bits_top(top_p);
    lamb->chunks[begin / lamb->chunk].top_u = abs_bits_top(top_u);
}

static void lamb_norms(const void *opaque, size_t begin, size_t end)
{
    const lamb_job *lamb = opaque;
    const optim_job *job = &lamb->base;
    const optim_scalars k = optim_scalars_of(job);
    dsi_exact_parts p_parts = {0.0, 0.0};
    dsi_exact_parts u_parts = {0.0, 0.0};
    for (size_t run = begin; run < end; run += OPTIM_GRAIN) {
        const size_t stop = end - run < OPTIM_GRAIN ? end : run + OPTIM_GRAIN;
        exact_sums p_sums = exact_sums_zero();
        exact_sums u_sums = exact_sums_zero();
        for (size_t i = run; i < stop; i += VF_WIDTH) {
            const size_t n = stop - i < VF_WIDTH ? stop - i : VF_WIDTH;
            const vf p = lamb_weight(job, i, n);
            exact_sums_add(&lamb->grid_p, p, &p_sums);
            exact_sums_add(&lamb->grid_u, lamb_direction(job, &k, p, i, n), &u_sums);
        }
        exact_sums_close(&lamb->grid_p, &p_sums, &p_parts);
        exact_sums_close(&lamb->grid_u, &u_sums, &u_parts);
    }
    lamb->chunks[begin / lamb->chunk].p = p_parts;
    lamb->chunks[begin / lamb->chunk].u = u_parts;
}

static void lamb_apply(const void *opaque, size_t begin, size_t end)
{
    const lamb_job *lamb = opaque;
    const optim_job *job = &lamb->base;
    const optim_scalars k = optim_scalars_of(job);
    const vf step = vf_set(lamb->step);
    for (size_t i = begin; i < end; i += VF_WIDTH) {
        const size_t n = end - i < VF_WIDTH ? end - i : VF_WIDTH;
        const vf old = lamb_weight(job, i, n);
        const vf p = vf_fma(step, lamb_direction(job, &k, old, i, n), old);
        if (job->master != NULL) {
            vf_put_upto(job->master, DS_DTYPE_F32, i, p, n);
        }
        vf_put_upto(job->param, job->param_type, i, p, n);
    }
}

/* The trust ratio; 1 when a norm is 0 or not finite. */
static float lamb_ratio(lamb_job *lamb, size_t n_chunks)
{
    dsi_exact_parts p = {0.0, 0.0};
    dsi_exact_parts u = {0.0, 0.0};
    for (size_t c = 0; c < n_chunks; ++c) {
        p.high += lamb->chunks[c].p.high;
        p.low += lamb->chunks[c].p.low;
        dsi_exact_carry(&lamb->grid_p, &p);
        u.high += lamb->chunks[c].u.high;
        u.low += lamb->chunks[c].u.low;
        dsi_exact_carry(&lamb->grid_u, &u);
    }
    const double norm_p = lamb->grid_p.empty ? 0.0 : sqrt(p.high + p.low);
    const double norm_u = lamb->grid_u.empty ? 0.0 : sqrt(u.high + u.low);
    if (norm_p == 0.0 || norm_u == 0.0) {
        return 1.0f;
    }
    const double ratio = norm_p / norm_u;
    const double most = lamb->base.attrs->max_coeff;
    const double least = lamb->base.attrs->min_coeff;
    return (float)(ratio > most ? most : ratio < least ? least : ratio);
}

static size_t lamb_chunks(size_t n, size_t *chunk_out)
{
    *chunk_out = range_chunk(n, OPTIM_GRAIN);
    return (n + *chunk_out - 1) / *chunk_out;
}

static size_t lamb_work(const ds_kernel_sig *sig)
{
    size_t chunk;
    return lamb_chunks(meta_count(&sig->in[OPTIM_PARAM]), &chunk) * sizeof(lamb_chunk);
}

static ds_status lamb_run(const ds_kernel_call *call)
{
    lamb_job lamb = {.base = optim_job_of(call, 2), .chunks = call->work};
    const size_t n = lamb.base.n;
    const size_t n_chunks = lamb_chunks(n, &lamb.chunk);
    float top_p = 0.0f;
    float top_u = 0.0f;
    for_ranges(call->ctx, n, OPTIM_GRAIN, lamb_moments, &lamb);
    for (size_t c = 0; c < n_chunks; ++c) {
        top_p = larger_magnitude(top_p, lamb.chunks[c].top_p);
        top_u = larger_magnitude(top_u, lamb.chunks[c].top_u);
    }
    lamb.grid_p = dsi_exact_grid_of(top_p);
    lamb.grid_u = dsi_exact_grid_of(top_u);
    for_ranges(call->ctx, n, OPTIM_GRAIN, lamb_norms, &lamb);
    const float *h = lamb.base.hyper;
    const float scaled = h[DSI_HYPER_LR] * h[DSI_HYPER_BIAS2];
    const float plain = -(scaled / h[DSI_HYPER_BIAS1]);
    lamb.step = plain * lamb_ratio(&lamb, n_chunks);
    for_ranges(call->ctx, n, OPTIM_GRAIN, lamb_apply, &lamb);
    return DS_OK;
}

DSI_SIMD_KERNEL(lamb, optim_supports, lamb_work, lamb_run);
