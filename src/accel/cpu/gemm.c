/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the implementation of a matrix product. See gemm.h. */
#include "accel/cpu/gemm.h"
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/gemm_impl.h"

/* Best first. */
static const dsi_gemm_impl *const impls[] = {
#if defined(DSI_HAVE_amx)
    &dsi_gemm_amx,
#endif
#if defined(DSI_HAVE_avx512_bf16)
    &dsi_gemm_vector_avx512_bf16,
    &dsi_gemm_simd_avx512_bf16,
#endif
#if defined(DSI_HAVE_avx512)
    &dsi_gemm_vector_avx512,
    &dsi_gemm_simd_avx512,
#endif
#if defined(DSI_HAVE_avx2)
    &dsi_gemm_vector_avx2,
    &dsi_gemm_simd_avx2,
#endif
    &dsi_gemm_ref,
};

enum { N_IMPLS = sizeof impls / sizeof impls[0] };

dsi_gemm_params dsi_gemm_params_default(void)
{
    return (dsi_gemm_params){.alpha = 1.0f, .isa = ~(ds_isa)0, .n_threads = 1};
}

const dsi_gemm_impl *dsi_gemm_choose(const dsi_gemm_params *p)
{
    const ds_isa isa = dsi_cpu_isa_capped(p->isa);
    for (int i = 0; i < N_IMPLS; ++i) {
        if ((impls[i]->needs & ~isa) == 0 && impls[i]->supports(p)) {
            return impls[i];
        }
    }
    return &dsi_gemm_ref;
}

size_t dsi_gemm_work_bytes(const dsi_gemm_params *params)
{
    const dsi_gemm_impl *impl = dsi_gemm_choose(params);
    return impl->work_bytes != NULL ? impl->work_bytes(params) : 0;
}

void dsi_gemm(dsi_pool *pool, const dsi_gemm_params *params, void *work)
{
    if (params->m > 0 && params->n > 0) {
        dsi_gemm_choose(params)->run(pool, params, work);
    }
}

/* The implementation that takes B packed, whatever m is; NULL when none does. */
static const dsi_gemm_impl *choose_packed(const dsi_gemm_params *params)
{
    dsi_gemm_params p = *params;
    p.b_packed = true;
    const dsi_gemm_impl *impl = dsi_gemm_choose(&p);
    return impl->pack_bytes != NULL ? impl : NULL;
}

size_t dsi_gemm_pack_bytes(const dsi_gemm_params *params)
{
    const dsi_gemm_impl *impl = choose_packed(params);
    return impl != NULL ? impl->pack_bytes(params) : 0;
}

void dsi_gemm_pack(dsi_pool *pool, const dsi_gemm_params *params, void *packed)
{
    choose_packed(params)->pack(pool, params, packed);
}
