/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of softmax.cu, rope.cu and cell.cu. Operands as in op/ops.h. */
#ifndef DSC_ROWS_H
#define DSC_ROWS_H

#include <stdint.h>

typedef struct dsc_softmax_args {
    const void *x; /* of softmax_backward: dy, and y */
    const void *saved;
    void *y;
    int64_t rows, columns;
} dsc_softmax_args;

typedef struct dsc_rope_args {
    const void *x;
    const float *table;
    void *y;
    int64_t tokens, n_heads, head_dim, rotary;
    int32_t inverse, pairs;
} dsc_rope_args;

enum { DSC_ROPE_CHUNK = 64 }; /* tokens whose sequences a thread follows */

typedef struct dsc_rope_table_args {
    const int32_t *positions;
    const int32_t *lengths; /* of dynamic scaling: of samples or of tokens; or NULL */
    const float *divisors;  /* or NULL */
    int64_t *sequences;     /* length of the sequence of each token, where lengths is NULL */
    int64_t *ends;          /* of each chunk; see rope_ends */
    int64_t n_chunks;
    float *table;
    int64_t tokens, head_dim, original;  /* original: of llama3 and dynamic */
    int64_t length;                      /* tokens of a sample */
    int32_t scaling;                     /* DSI_ROPE_* */
    int32_t of_tokens;                   /* lengths are */
    double whole_factor;                 /* of dynamic scaling */
    double theta, low_bound, high_bound; /* bounds: wavelengths of llama3, indices of yarn */
    float factor, low, high_less_low,
        attention; /* low, high_less_low: frequency factors, or the ramp */
} dsc_rope_table_args;

typedef struct dsc_cell_args {
    const void *a, *b; /* b NULL: a converted; else their sum, in a's dtype */
    void *y;
    int64_t n;
    int32_t a_dtype, b_dtype, y_dtype;
} dsc_cell_args;

#endif
