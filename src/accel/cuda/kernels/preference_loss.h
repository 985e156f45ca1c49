/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of preference.cu. Operands as in op/ops.h; absent ones are NULL. */
#ifndef DSC_PREFERENCE_LOSS_H
#define DSC_PREFERENCE_LOSS_H

#include <stdint.h>

/* As ds_preference_loss has them. */
enum {
    DSC_PREFERENCE_SIGMOID = 1,
    DSC_PREFERENCE_HINGE,
    DSC_PREFERENCE_IPO,
    DSC_PREFERENCE_ROBUST,
    DSC_PREFERENCE_EXO_PAIR,
    DSC_PREFERENCE_NCA_PAIR,
    DSC_PREFERENCE_BCO_PAIR,
    DSC_PREFERENCE_SPPO_HARD,
    DSC_PREFERENCE_APO_ZERO,
    DSC_PREFERENCE_APO_DOWN,
    DSC_PREFERENCE_SIGMOID_NORM,
    DSC_PREFERENCE_SIMPO,
    DSC_PREFERENCE_ORPO,
    DSC_PREFERENCE_REWARD,
    DSC_PREFERENCE_KTO,
    DSC_PREFERENCE_APO_UNPAIRED,
    DSC_PREFERENCE_LOSSES
};
enum { DSC_PREFERENCE_SUMS = 11, DSC_PREFERENCE_THREADS = 128 };

/* A row: its log-probability, of how many tokens, how much it is above the reference's; of ORPO the
 * negative log-likelihood of its targets, and how many they are. */
typedef struct dsc_row_sum {
    double logp, n, ratio, nll, nll_n;
} dsc_row_sum;

typedef struct dsc_preference_args {
    const float *logp, *ref, *kl;
    const int32_t *counted, *targets, *labels;
    const float *dloss;
    dsc_row_sum *rows_sums; /* of each row */
    float *loss, *count, *logps, *sums;
    float *dlogp;
    int64_t rows, length;
    double beta, label_smoothing, gamma, center, desirable_weight, undesirable_weight;
    int32_t loss_is, paired;
} dsc_preference_args;

#endif
