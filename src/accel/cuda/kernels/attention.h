/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of attention.cu. Operands as in op/ops.h, attention.c; absent ones are NULL. */
#ifndef DSC_ATTENTION_H
#define DSC_ATTENTION_H

#include <stdint.h>

enum { DSC_MOST_HEAD_DIM = 256, DSC_ATTENTION_WARPS = 4 };

/* By mma: heads up to this wide, four warps of 16 rows. Rows of q are (query, head of the group),
 * the head fastest; of k and v they are keys. */
enum { DSC_MOST_MMA_HEAD_DIM = 128, DSC_ATTENTION_ROWS = 64, DSC_ATTENTION_THREADS = 128 };

typedef struct dsc_attention_args {
    const void *q, *k, *v; /* where the heads of the first token are */
    const int32_t *first, *offset, *heads, *rows, *keys, *end;
    const int64_t *rng;
    void *y; /* forward: written; backward: saved */
    float *lse;
    float *delta; /* attention_mma_dq writes it, attention_mma_dkv reads it: (B,H,Tq) */
    const void *dy;
    const float *dlse; /* what comes to lse; the plain kernel's alone, as the next two */
    double alibi;      /* 0: none */
    float cap;         /* 0: none */
    int32_t alibi_rounded;
    void *dq, *dk, *dv;          /* laid out as q, k, v */
    int64_t q_stride, kv_stride; /* elements a token */
    int64_t n_batch, n_queries, n_keys, n_heads, n_kv_heads, head_dim;
    int64_t window, all_heads, all_keys, site;
    float scale, dropout;
    int32_t causal;
    int32_t copies; /* by mma: every head of every token begins at a multiple of 16 bytes */
} dsc_attention_args;

/* Of attention_part.cu. rows and keys number every query and every key; query i is of part
 * i / part, which sees keys of the same part of theirs. */
typedef struct dsc_attention_part_args {
    dsc_attention_args at;
    const float *y_in, *lse_in; /* of the parts before; or NULL */
    const float *dq_in, *dk_in, *dv_in;
    int64_t part, key_part;
    int32_t q_dtype_out; /* of y, or dq: f32 where more parts come */
} dsc_attention_part_args;

#endif
