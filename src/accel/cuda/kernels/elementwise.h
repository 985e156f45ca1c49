/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of elementwise.cu and activation.cu. */
#ifndef DSC_ELEMENTWISE_H
#define DSC_ELEMENTWISE_H

#include <stdint.h>

enum { DSC_ADD, DSC_SUB, DSC_MUL, DSC_DIV, DSC_RELU_BACKWARD };
enum {
    DSC_SCALE,
    DSC_NEG,
    DSC_EXP,
    DSC_LOG,
    DSC_SQRT,
    DSC_TANH,
    DSC_SIGMOID,
    DSC_RELU,
    DSC_SQUARE
};

typedef struct dsc_elementwise_args {
    const void *a, *b; /* b repeats: n_b elements; absent for functions of one operand */
    void *y;
    int64_t n, n_b;
    float factor; /* of DSC_SCALE */
    int32_t kind, b_dtype;
} dsc_elementwise_args;

typedef struct dsc_activation_args {
    const void *dy, *x, *up; /* up: of glu */
    void *y, *dup;           /* y or dx or dgate; dup: of glu_backward */
    int64_t n;
    int32_t kind; /* DSI_ACT_* */
} dsc_activation_args;

#endif
