/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of optimizer.cu. Operands as in op/ops.h, optimizer.c; what is written is one pointer.
 */
#ifndef DSC_OPTIMIZER_H
#define DSC_OPTIMIZER_H

#include <stdint.h>

typedef struct dsc_optimizer_args {
    void *param;
    float *master; /* or NULL */
    void *state[3];
    const void *grad;
    const float *hyper, *factor;
    int64_t n;
    int32_t param_dtype, grad_dtype, state_dtype;
    float eps, undamped;
    int32_t adamw, nesterov;
} dsc_optimizer_args;

#endif
