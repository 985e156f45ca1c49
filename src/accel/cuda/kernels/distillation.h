/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of distillation.cu. Operands as in op/ops.h. */
#ifndef DSC_DISTILLATION_H
#define DSC_DISTILLATION_H

#include "accel/cuda/kernels/cross_entropy.h"

typedef struct dsc_distillation_args {
    dsc_ce_args ce; /* z: the model's logits, of the kernel's dtype */
    const float *teacher;
    float *hot_lse, *teacher_lse, *inner;
    float weight, temperature, mix;
} dsc_distillation_args;

#endif
