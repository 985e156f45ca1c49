/* SPDX-License-Identifier: Apache-2.0 */
/* Preference training: the loss of a batch that holds answers which are better and worse.
 *
 * A batch of B pairs is 2B rows of the one model: the chosen answers of all pairs, then the
 * rejected ones in the same order, each behind its prompt; targets count in the answer alone. Of
 * unpaired losses (ds_preference_is_paired) it is B rows, each with a label. Of a row the loss
 * sees its log-probability: the sum over its counted targets. What this is compared with, the
 * log-probabilities by the model as it was before training, comes with the batch (input
 * "ref_logps", f32 (rows)), so that no second model is in memory: ds_engine_reference computes them
 * for a whole data set.
 *
 * Inputs beside those of the model: "ref_logps" where ds_preference_has_reference; of ORPO
 * "completion" i32 (rows,T), the targets of the answers alone, as its "targets" are those of the
 * prompts too; of unpaired losses "labels" i32 (rows), 1 for a desired answer, and of KTO "kl" f32
 * (). A loader over pairs gives all of them but "kl".
 *
 * With T a row's tokens, c and r its log-ratios log p - log p_ref (p_ref = 1 where there is no
 * reference) of chosen and rejected, c' and r' these divided by the number of counted tokens, and
 * s the logistic function:
 *
 *     SIGMOID       -log s(b(c - r)); with smoothing e -(1-e) log s(b(c - r)) - e log s(-b(c - r))
 *     HINGE         max(0, 1 - b(c - r))
 *     IPO           (c' - r' - 1/(2b))²
 *     ROBUST        [-(1-e) log s(b(c - r)) + e log s(-b(c - r))] / (1 - 2e)
 *     EXO_PAIR      KL of (s(b(c - r)), s(-b(c - r))) from (1-e, e); e above 0
 *     NCA_PAIR      -log s(bc) - ½ log s(-bc) - ½ log s(-br)
 *     BCO_PAIR      -log s(bc) - log s(-br)
 *     SPPO_HARD     (c - 1/(2b))² + (r + 1/(2b))²
 *     APO_ZERO      1 - s(bc) + s(br)
 *     APO_DOWN      s(bc) + 1 - s(b(c - r))
 *     SIGMOID_NORM  -log s(b(c' - r'))
 *     SIMPO         SIGMOID of b(c' - r') - g, without a reference
 *     ORPO          nll - b log s(log odds), without a reference: nll is the mean over the tokens
 *                   of the chosen rows, prompts included, and log odds = c' - log(1-e^c') - [r' -
 *                   log(1-e^r')]
 *     REWARD        -log s(c - r) + k(c + r)², c and r being scores of whole rows by a linear head
 *                   "score" on the last token instead of the vocabulary
 *     KTO           desired: w (1 - s(b(x - z))), other: u (1 - s(b(z - x))), x the log-ratio of
 *                   the row and z = max(0, "kl")
 *     APO_UNPAIRED  desired: w (1 - s(bx)), other: u s(bx)
 *
 * The mean over pairs (rows of unpaired losses) that have a counted target. Names, formulas and
 * defaults are TRL's (1.16: DPOTrainer, KTOTrainer, experimental ORPOTrainer and CPOTrainer,
 * RewardTrainer), where SIGMOID has no smoothing: with it, it is cDPO, as in TRL before 1.0.
 */
#ifndef DEEPSPEED_PREFERENCE_H
#define DEEPSPEED_PREFERENCE_H

#include <deepspeed/version.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ds_preference_loss {
    DS_PREFERENCE_NONE, /* cross entropy: no preferences */
    DS_PREFERENCE_SIGMOID,
    DS_PREFERENCE_HINGE,
    DS_PREFERENCE_IPO,
    DS_PREFERENCE_ROBUST,
    DS_PREFERENCE_EXO_PAIR,
    DS_PREFERENCE_NCA_PAIR,
    DS_PREFERENCE_BCO_PAIR,
    DS_PREFERENCE_SPPO_HARD,
    DS_PREFERENCE_APO_ZERO,
    DS_PREFERENCE_APO_DOWN,
    DS_PREFERENCE_SIGMOID_NORM,
    DS_PREFERENCE_SIMPO,
    DS_PREFERENCE_ORPO,
    DS_PREFERENCE_REWARD,
    DS_PREFERENCE_KTO,
    DS_PREFERENCE_APO_UNPAIRED,
    DS_PREFERENCE_LOSSES
} ds_preference_loss;

typedef struct ds_preference {
    ds_preference_loss loss;
    bool reference_free;    /* default false; true: p_ref is 1 */
    double beta;            /* b, above 0; ds_preference_default has each loss's */
    double label_smoothing; /* e, 0 to below ½: part of the labels that are wrong; of SIGMOID,
                               ROBUST, EXO_PAIR and SIMPO */
    double gamma;           /* g of SIMPO */
    double center;          /* k of REWARD */
    double desirable_weight, undesirable_weight; /* w and u */
    DS_RESERVED(8);
} ds_preference;

/* TRL's defaults of a loss. */
DS_API ds_preference ds_preference_default(ds_preference_loss loss);
/* TRL's name of it: "sigmoid", "ipo", "kto", "apo_zero_unpaired", …; NULL: there is none. */
DS_API const char *ds_preference_loss_name(ds_preference_loss loss);
/* Whether a sample is a pair of rows; false: one labelled row. */
DS_API bool ds_preference_is_paired(ds_preference_loss loss);
/* Whether batches have "ref_logps". */
DS_API bool ds_preference_has_reference(const ds_preference *preference);

/* What one or more batches say of the answers: sums over pairs or rows. Of SIMPO and ORPO logps are
 * per token; of REWARD rewards and logps are the scores. The numbers of TRL's log are
 *     rewards/chosen = rewards_chosen / n_chosen, rewards/margins = margins / n_chosen, …
 */
typedef struct ds_preference_sums {
    double rewards_chosen, rewards_rejected; /* b times the log-ratios */
    double accuracies;                       /* pairs whose chosen answer has the larger reward */
    double margins;
    double logps_chosen, logps_rejected;
    double n_chosen, n_rejected; /* of pairs: their number, twice */
    double nll;                  /* of ORPO, times the pairs of its batch */
    double log_odds;             /* of ORPO */
    double kl;                   /* of KTO: z, times the rows of its batch */
    DS_RESERVED(8);
} ds_preference_sums;

#ifdef __cplusplus
}
#endif
#endif
