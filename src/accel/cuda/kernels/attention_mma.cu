/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in bf16 and fp16 by mma, of heads up to 128 wide (Dao, "FlashAttention-2", arXiv
 * 2307.08691): attention_forward.h. A block has 64 rows of the heads that share keys. A tile that a
 * row does not see changes nothing of it: a row has the same bits beside any others. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/attention_forward.h"

DSC_INLINE void attend_queries(const dsc_attention_args *a, int act, int dim, uint16_t *keys,
                               uint16_t *values, reach *reaches, float *parts)
{
    const part p = part_of(a, (int64_t)a->n_queries * (a->n_heads / a->n_kv_heads));
    walk w;
    w.k = keys_of(a, &p, a->k);
    w.v = keys_of(a, &p, a->v);
    w.keys = keys;
    w.values = values;
    set_reaches(a, &p, reaches);
    attend(a, &p, act, dim, &w, reaches, parts);
}

#define ATTENTION_MMA(dim, name, act)                                                              \
    DSC_INLINE void body_##dim##_##name(const dsc_attention_args *a)                               \
    {                                                                                              \
        __shared__ DSC_ALIGN(16) uint16_t keys[2 * TILE_SIZE(dim)];                                \
        __shared__ DSC_ALIGN(16) uint16_t values[2 * TILE_SIZE(dim)];                              \
        __shared__ reach reaches[DSC_ATTENTION_ROWS];                                              \
        __shared__ float parts[32];                                                                \
        attend_queries(a, act, dim, keys, values, reaches, parts);                                 \
    }                                                                                              \
    DSC_KERNEL(attention_mma_##dim##_##name, dsc_attention_args, body_##dim##_##name(a))

ATTENTION_MMA(64, bf16, DSC_BF16)
ATTENTION_MMA(64, f16, DSC_F16)
ATTENTION_MMA(128, bf16, DSC_BF16)
ATTENTION_MMA(128, f16, DSC_F16)
