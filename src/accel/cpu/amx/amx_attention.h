/* What the forward and backward kernels of attention on AMX share: workspace, split of the work. */
#ifndef DSI_ACCEL_CPU_AMX_ATTENTION_H
#define DSI_ACCEL_CPU_AMX_ATTENTION_H

#include "accel/cpu/amx/amx_attn_tile.h"

#include <deepspeed/op.h>

extern const ds_kernel dsi_amx_attention;
extern const ds_kernel dsi_amx_attention_backward;
extern const ds_kernel *const dsi_amx_attention_family[]; /* NULL-terminated */

/* Lays out a workspace: base NULL only measures. */
typedef struct amx_attn_carver {
    char *base;
    size_t bytes;
} amx_attn_carver;

static inline void *amx_attn_carve(amx_attn_carver *c, size_t bytes)
{
    void *at = c->base != NULL ? c->base + c->bytes : NULL;
    c->bytes += (bytes + 63) / 64 * 64;
    return at;
}

/* Tasks: kv heads of all samples × chunks of queries (or keys). */
typedef struct amx_attn_split {
    int64_t n_heads, n_chunks, length;
} amx_attn_split;

/* Few heads for many threads: chunks of whole blocks, so that there are some four tasks a thread.
 */
static inline amx_attn_split amx_attn_split_of(const attn_shape *s, uint32_t n_threads,
                                               int64_t block)
{
    const int64_t heads = s->n_batch * s->n_kv;
    const int64_t wanted = 4 * (int64_t)n_threads;
    const int64_t blocks = (s->n_queries + block - 1) / block;
    const int64_t chunks =
        n_threads == 1 || heads >= wanted ? 1 : attn_min(blocks, (wanted + heads - 1) / heads);
    const int64_t length = (blocks + chunks - 1) / chunks * block;
    return (amx_attn_split){heads, (s->n_queries + length - 1) / length, length};
}

/* Queries [begin,end) of kv head `head` (sample·n_kv + kv); later chunks, which see more, first. */
static inline void amx_attn_range(const amx_attn_split *p, int64_t n_queries, uint32_t task,
                                  int64_t *head_out, int64_t *begin_out, int64_t *end_out)
{
    const int64_t chunk = p->n_chunks - 1 - (int64_t)task / p->n_heads;
    *head_out = (int64_t)task % p->n_heads;
    *begin_out = chunk * p->length;
    *end_out = attn_min(n_queries, *begin_out + p->length);
}

#endif
