/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of distillation: the same in ds_train and ds_plan. */
#ifndef DSI_TOOLS_TEACHER_FLAGS_H
#define DSI_TOOLS_TEACHER_FLAGS_H

#include "common/args.h"

#include <deepspeed/distillation.h>
#include <deepspeed/tokenizer.h>

typedef struct teacher_flags {
    const char *teacher; /* NULL: none */
    char *found;         /* its folder of the Hugging Face cache; NULL: teacher is a path */
    double weight, temperature, mix;
    bool weight_given, temperature_given, mix_given;
} teacher_flags;

#define TEACHER_NUMBER(flag, f, field, standard, least, most, text)                                \
    {                                                                                              \
        .name = (flag), .type = DSI_ARG_REAL, .out = &(f).field, .given_out = &(f).field##_given,  \
        .value = "X", .def = (standard), .min = (least), .max = (most), .doc = (text)              \
    }

#define TEACHER_FLAGS(f)                                                                           \
    {.name = "teacher",                                                                            \
     .type = DSI_ARG_TEXT,                                                                         \
     .out = &(f).teacher,                                                                          \
     .value = "DIR|ORG/NAME",                                                                      \
     .doc = "Distillation: learn from the chances that this model gives each token, too. "         \
            "It runs frozen beside the model, in the same plan; both have the same vocabulary. "   \
            "The loss of evaluation is the cross entropy alone."},                                 \
        TEACHER_NUMBER("distill_weight", f, weight, "0.5", 0, 1,                                   \
                       "Of the loss, the part that compares with --teacher; the rest is the "      \
                       "cross entropy."),                                                          \
        TEACHER_NUMBER("distill_temperature", f, temperature, "1", 1e-3, 1e3,                      \
                       "Logits of both are divided by it, and what is compared is multiplied by "  \
                       "its square."),                                                             \
        TEACHER_NUMBER("distill_mix", f, mix, "0", 0, 1,                                           \
                       "0: KL of the teacher from the model; 1: of the model from the teacher; "   \
                       "between: the generalised Jensen-Shannon divergence, as TRL's GKD.")

/* Opens the teacher's model (*teacher_out, to be destroyed; NULL without --teacher) and fills
 * *out, which refers to it. Errors: ERR_ARG on numbers without a teacher, those of reading its
 * config.json. */
ds_status teacher_flags_open(ds_ctx *ctx, const teacher_flags *flags, ds_model **teacher_out,
                             ds_distillation *out);

/* Compares the ids of the teacher's tokenizer, where its folder has one, with those that the data
 * are made of. Errors: ERR_ARG (an id is another token there), those of reading it. */
ds_status teacher_flags_check_tokens(ds_ctx *ctx, const teacher_flags *flags,
                                     const ds_tokenizer *tokenizer);

#endif
