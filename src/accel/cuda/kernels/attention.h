/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of attention.cu. Operands as in op/ops.h, attention.c; absent ones are NULL. */
#ifndef DSC_ATTENTION_H
#define DSC_ATTENTION_H

#include <stdint.h>

enum { DSC_MOST_HEAD_DIM = 256, DSC_ATTENTION_WARPS = 4 };

typedef struct dsc_attention_args {
    const void *q, *k, *v; /* where the heads of the first token are */
    const int32_t *first, *offset, *heads, *rows, *end;
    const int64_t *rng;
    void *y; /* forward: written; backward: saved */
    float *lse;
    const void *dy;
    void *dq, *dk, *dv;          /* laid out as q, k, v */
    int64_t q_stride, kv_stride; /* elements a token */
    int64_t n_batch, n_queries, n_keys, n_heads, n_kv_heads, head_dim;
    int64_t window, all_heads, site;
    float scale, dropout;
    int32_t causal;
} dsc_attention_args;

#endif
