/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of preference training, by TRL's names: the same in ds_train and ds_plan. */
#ifndef DSI_TOOLS_PREFERENCE_FLAGS_H
#define DSI_TOOLS_PREFERENCE_FLAGS_H

#include "common/args.h"

#include <deepspeed/preference.h>

/* Of each number whether it was given: its default is the loss's. */
typedef struct preference_flags {
    const char *objective, *loss_type;
    double beta, label_smoothing, gamma, center, desirable_weight, undesirable_weight;
    bool beta_given, smoothing_given, gamma_given, center_given, desirable_given, undesirable_given;
    bool reference_free;
} preference_flags;

#define PREFERENCE_NUMBER(flag, f, field, given, least, most, text)                                \
    {                                                                                              \
        .name = (flag), .type = DSI_ARG_REAL, .out = &(f).field, .given_out = &(f).given,          \
        .value = "X", .min = (least), .max = (most), .doc = (text)                                 \
    }

#define PREFERENCE_FLAGS(f)                                                                        \
    {.name = "objective",                                                                          \
     .type = DSI_ARG_TEXT,                                                                         \
     .out = &(f).objective,                                                                        \
     .value = "NAME",                                                                              \
     .def = "sft",                                                                                 \
     .choices = "sft|mlm|classes|tags|embeddings|dpo|kto|orpo|simpo|reward",                       \
     .doc =                                                                                        \
         "What is trained: texts and answers (sft); of encoders masked tokens of texts (mlm), "    \
         "or classes or numbers of texts (classes) or classes of words (tags); one vector of a "   \
         "text, of encoders and decoders (embeddings: \"anchor\" and \"positive\" belong "         \
         "together, all other texts of a micro-batch do not); or preferences: pairs of a "         \
         "chosen and a "                                                                           \
         "rejected answer (dpo, orpo, simpo; reward trains a model that scores), or answers "      \
         "with a label true or false (kto, which takes pairs too)."},                              \
        {.name = "loss_type",                                                                      \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(f).loss_type,                                                                    \
         .value = "NAME",                                                                          \
         .doc = "Loss of dpo, by TRL's name: sigmoid (default), hinge, ipo, robust, exo_pair, "    \
                "nca_pair, bco_pair, sppo_hard, apo_zero, apo_down or sigmoid_norm; or of kto: "   \
                "kto (default) or apo_zero_unpaired."},                                            \
        PREFERENCE_NUMBER("beta", f, beta, beta_given, 1e-9, 1e9,                                  \
                          "Factor of the log-ratios, or of orpo's odds; default 0.1."),            \
        PREFERENCE_NUMBER("label_smoothing", f, label_smoothing, smoothing_given, 0, 0.5,          \
                          "Part of the labels that are taken to be wrong, below 0.5: of sigmoid "  \
                          "(cDPO), robust, exo_pair and simpo; default 0 (exo_pair: 0.001)."),     \
        {.name = "reference_free",                                                                 \
         .type = DSI_ARG_SWITCH,                                                                   \
         .out = &(f).reference_free,                                                               \
         .doc = "Of dpo: compare with nothing instead of the model of the start."},                \
        PREFERENCE_NUMBER("simpo_gamma", f, gamma, gamma_given, 0, 1e6,                            \
                          "Margin of simpo; default 0.5."),                                        \
        PREFERENCE_NUMBER("desirable_weight", f, desirable_weight, desirable_given, 0, 1e6,        \
                          "Of kto: factor of desired answers; default 1."),                        \
        PREFERENCE_NUMBER("undesirable_weight", f, undesirable_weight, undesirable_given, 0, 1e6,  \
                          "Of kto: factor of the others; default 1."),                             \
        PREFERENCE_NUMBER("center_rewards_coefficient", f, center, center_given, 0, 1e6,           \
                          "Of reward: keeps the mean of scores near 0; default 0, TRL advises "    \
                          "0.01.")

/* The loss of the flags; *out's loss is NONE for sft. Errors: ERR_ARG names a flag that the
 * objective does not read. */
ds_status preference_read(ds_ctx *ctx, const preference_flags *flags, ds_preference *out);

#endif
