/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of eight_bit.cu. Operands as in op/ops.h, adam_8bit.c; what is written is one pointer.
 */
#ifndef DSC_EIGHT_BIT_H
#define DSC_EIGHT_BIT_H

#include "accel/cuda/kernels/optimizer.h"

enum { DSC_8BIT_BLOCK = 256, DSC_8BIT_STATES = 3 };

typedef struct dsc_8bit_args {
    dsc_optimizer_args update;                /* its states are not used */
    const uint8_t *codes_in[DSC_8BIT_STATES]; /* may be where they are written */
    const float *sizes_in[DSC_8BIT_STATES];
    uint8_t *codes[DSC_8BIT_STATES];
    float *sizes[DSC_8BIT_STATES]; /* of blocks */
    float *direction;              /* in place of a parameter; or NULL */
    int32_t n_states;
    float maps[2][256]; /* what a code stands for: with signs, without */
} dsc_8bit_args;

/* Of adam_8bit_step. */
typedef struct dsc_8bit_step_args {
    dsc_optimizer_args update;
    int32_t mixes;
} dsc_8bit_step_args;

#endif
