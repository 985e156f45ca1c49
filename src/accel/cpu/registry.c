/* SPDX-License-Identifier: Apache-2.0 */
/* The list of kernel families, best first: what needs more stands before what needs less. Add a
 * family here: declare it, then name it in `families`. */
#include "accel/cpu/registry.h"

#include "accel/cpu/ref/ref_list.h"

#include <string.h>

typedef const ds_kernel *const *family;

extern const ds_kernel *const dsi_attention_part_family[];

#ifdef DSI_HAVE_amx
extern const ds_kernel *const dsi_bf16_attention_family_amx[];
#endif
#ifdef DSI_HAVE_avx512_bf16
extern const ds_kernel *const dsi_bf16_attention_family_avx512_bf16[];
#endif
#ifdef DSI_HAVE_avx512_vnni
extern const ds_kernel *const dsi_block_family_avx512_vnni[];
#endif
#ifdef DSI_HAVE_avx512
extern const ds_kernel *const dsi_simd_family_avx512[];
extern const ds_kernel *const dsi_gemm_family_avx512[];
extern const ds_kernel *const dsi_block_family_avx512[];
#endif
#ifdef DSI_HAVE_avx2
extern const ds_kernel *const dsi_simd_family_avx2[];
extern const ds_kernel *const dsi_gemm_family_avx2[];
extern const ds_kernel *const dsi_block_family_avx2[];
#endif

static const family families[] = {
#ifdef DSI_HAVE_amx
    dsi_bf16_attention_family_amx,
#endif
#ifdef DSI_HAVE_avx512_bf16
    dsi_bf16_attention_family_avx512_bf16,
#endif
#ifdef DSI_HAVE_avx512_vnni
    dsi_block_family_avx512_vnni,
#endif
#ifdef DSI_HAVE_avx512
    dsi_simd_family_avx512,
    dsi_gemm_family_avx512,
    dsi_block_family_avx512,
#endif
#ifdef DSI_HAVE_avx2
    dsi_simd_family_avx2,
    dsi_gemm_family_avx2,
    dsi_block_family_avx2,
#endif
    dsi_attention_part_family,
#define X(name) dsi_ref_##name,
    DSI_REF_FAMILY_LIST(X) DSI_REF_SINGLE_LIST(X)
#undef X
};

enum { N_FAMILIES = sizeof families / sizeof families[0] };

static bool fits(const ds_kernel *kernel, const ds_kernel_sig *sig, ds_isa has)
{
    return (kernel->needs & ~has) == 0 && strcmp(kernel->op, sig->op->name) == 0 &&
           (kernel->supports == NULL || kernel->supports(sig));
}

/* Finds kernel `*skip` of one family, counting *skip down. */
static const ds_kernel *find_in(family list, const ds_kernel_sig *sig, ds_isa has, uint32_t *skip)
{
    for (uint32_t i = 0; list != NULL && list[i] != NULL; ++i) {
        if (fits(list[i], sig, has) && (*skip)-- == 0) {
            return list[i];
        }
    }
    return NULL;
}

const ds_kernel *dsi_cpu_kernel_at(const ds_kernel_sig *sig, ds_isa has, uint32_t index)
{
    uint32_t skip = index;
    const ds_kernel *found = find_in(sig->op->kernels, sig, has, &skip);
    for (uint32_t f = 0; found == NULL && f < N_FAMILIES; ++f) {
        found = find_in(families[f], sig, has, &skip);
    }
    return found;
}

const ds_kernel *dsi_cpu_kernel_choose(const ds_kernel_sig *sig, ds_isa has)
{
    return dsi_cpu_kernel_at(sig, has, 0);
}

const ds_kernel *dsi_cpu_kernel_list(uint32_t index)
{
    for (uint32_t f = 0; f < N_FAMILIES; ++f) {
        for (uint32_t i = 0; families[f] != NULL && families[f][i] != NULL; ++i) {
            if (index-- == 0) {
                return families[f][i];
            }
        }
    }
    return NULL;
}
