/* SPDX-License-Identifier: Apache-2.0 */
/* adam, ademamix, sgd, lion and adagrad: one pass over parameter, gradient and states.
 *
 * Each update is the sequence of docs/internals/optim.md, so that every kernel gives the same bits.
 * Bandwidth-bound: each stream is prefetched a fixed distance ahead.
 */
#include "accel/cpu/simd/simd_optim.h"

/* ---- adam ----------------------------------------------------------------------------------- */
DSI_INLINE void adam_step(const optim_scalars *k, vf g, vf *p, vf *s)
{
    if (k->l2) {
        g = vf_fma(k->wd, *p, g);
    }
    s[0] = vf_fma(k->b1, s[0], vf_mul(k->c1, g));
    s[1] = vf_fma(k->b2, s[1], vf_mul(k->c2, vf_mul(g, g)));
    const vf u = vf_div(s[0], vf_fma(vf_sqrt(s[1]), k->inverse_bias2, k->eps));
    if (k->decoupled) {
        *p = vf_mul(*p, k->decay);
    }
    *p = vf_fma(k->step, u, *p);
}

OPTIM_RANGE(adam, 2)

static ds_status adam_run(const ds_kernel_call *call)
{
    return run_optim(call, 2, adam_range);
}

DSI_SIMD_KERNEL(adam, optim_supports, NULL, adam_run);

/* ---- ademamix ------------------------------------------------------------------------------- */
DSI_INLINE void ademamix_step(const optim_scalars *k, vf g, vf *p, vf *s)
{
    s[0] = vf_fma(k->b1, s[0], vf_mul(k->c1, g));
    s[1] = vf_fma(k->b2, s[1], vf_mul(k->c2, vf_mul(g, g)));
    s[2] = vf_fma(k->b3, s[2], vf_mul(k->c3, g));
    const vf mixed = vf_fma(k->alpha, s[2], vf_mul(s[0], k->inverse_bias1));
    const vf u = vf_div(mixed, vf_fma(vf_sqrt(s[1]), k->inverse_bias2, k->eps));
    *p = vf_fma(k->minus_lr, u, vf_mul(*p, k->decay));
}

OPTIM_RANGE(ademamix, 3)

static ds_status ademamix_run(const ds_kernel_call *call)
{
    return run_optim(call, 3, ademamix_range);
}

DSI_SIMD_KERNEL(ademamix, optim_supports, NULL, ademamix_run);

/* ---- sgd: state absent without momentum ------------------------------------------------------ */
DSI_INLINE void sgd_plain_step(const optim_scalars *k, vf g, vf *p, vf *s)
{
    (void)s;
    if (k->decays) {
        g = vf_fma(k->wd, *p, g);
    }
    *p = vf_fma(k->minus_lr, g, *p);
}

DSI_INLINE void sgd_step(const optim_scalars *k, vf g, vf *p, vf *b)
{
    if (k->decays) {
        g = vf_fma(k->wd, *p, g);
    }
    *b = k->first ? g : vf_fma(k->b1, *b, vf_mul(k->undamped, g));
    g = k->nesterov ? vf_fma(k->b1, *b, g) : *b;
    *p = vf_fma(k->minus_lr, g, *p);
}

OPTIM_RANGE(sgd_plain, 0)
OPTIM_RANGE(sgd, 1)

static ds_status sgd_run(const ds_kernel_call *call)
{
    const bool momentum = optim_state(call, 0) != NULL;
    return momentum ? run_optim(call, 1, sgd_range) : run_optim(call, 0, sgd_plain_range);
}

DSI_SIMD_KERNEL(sgd, optim_supports, NULL, sgd_run);

/* ---- lion ----------------------------------------------------------------------------------- */
DSI_INLINE void lion_step(const optim_scalars *k, vf g, vf *p, vf *m)
{
    const vf c = vf_fma(k->b1, *m, vf_mul(k->c1, g));
    const vf down = vf_select(vf_lt(c, vf_zero()), vf_set(-1.0f), c);
    const vf sign = vf_select(vf_gt(c, vf_zero()), vf_set(1.0f), down);
    *p = vf_mul(*p, k->decay);
    *p = vf_fma(k->minus_lr, sign, *p);
    *m = vf_fma(k->b2, *m, vf_mul(k->c2, g));
}

OPTIM_RANGE(lion, 1)

static ds_status lion_run(const ds_kernel_call *call)
{
    return run_optim(call, 1, lion_range);
}

DSI_SIMD_KERNEL(lion, optim_supports, NULL, lion_run);

/* ---- adagrad -------------------------------------------------------------------------------- */
DSI_INLINE void adagrad_step(const optim_scalars *k, vf g, vf *p, vf *v)
{
    if (k->decays) {
        g = vf_fma(k->wd, *p, g);
    }
    *v = vf_fma(g, g, *v);
    *p = vf_fma(k->minus_lr, vf_div(g, vf_add(vf_sqrt(*v), k->eps)), *p);
}

OPTIM_RANGE(adagrad, 1)

static ds_status adagrad_run(const ds_kernel_call *call)
{
    return run_optim(call, 1, adagrad_range);
}

DSI_SIMD_KERNEL(adagrad, optim_supports, NULL, adagrad_run);
