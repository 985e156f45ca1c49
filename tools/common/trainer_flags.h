/* SPDX-License-Identifier: Apache-2.0 */
/* The flags that fill "auto" and missing sections, as rows of args.h: the same names and ranges in
 * ds_train, ds_plan and ds_config. They are stored in a ds_trainer_values, and known only when they
 * are given. */
#ifndef DSI_TOOLS_TRAINER_FLAGS_H
#define DSI_TOOLS_TRAINER_FLAGS_H

#include "common/args.h"

#include <deepspeed/config.h>

#define TRAINER_FLAG(flag, field, kind, word, least, most, text)                                   \
    {                                                                                              \
        .name = (flag), .type = DSI_ARG_##kind, .out = &(field).value,                             \
        .given_out = &(field).known, .value = (word), .min = (least), .max = (most), .doc = (text) \
    }

#define TRAINER_BATCH_FLAGS(v)                                                                     \
    TRAINER_FLAG("micro_batch", (v).micro_batch, WHOLE, "N", 1, 2147483647,                        \
                 "train_micro_batch_size_per_gpu; 8 where the file says \"auto\" and nothing is "  \
                 "given."),                                                                        \
        TRAINER_FLAG("gradient_accumulation_steps", (v).gradient_accumulation_steps, WHOLE, "N",   \
                     1, 2147483647, "gradient_accumulation_steps; 1 for an \"auto\" without it.")

#define TRAINER_OPTIMIZER_FLAGS(v)                                                                 \
    TRAINER_FLAG(                                                                                  \
        "learning_rate", (v).learning_rate, REAL, "X", 0, 1e6,                                     \
        "optimizer lr and the schedule's highest rate; 5e-5 for an \"auto\" without it."),         \
        TRAINER_FLAG("weight_decay", (v).weight_decay, REAL, "X", 0, 1e6,                          \
                     "optimizer weight_decay; 0 for an \"auto\" without it."),                     \
        TRAINER_FLAG("warmup_steps", (v).warmup_steps, REAL, "N", 0, 1e15,                         \
                     "scheduler warmup_num_steps (of DeepSpeed's schedules 0 is 1), or below 1 a " \
                     "part of all steps; 0 for an \"auto\" without it."),                          \
        TRAINER_FLAG("warmup_ratio", (v).warmup_ratio, REAL, "X", 0, 1,                            \
                     "The same as a part of all steps, rounded up."),                              \
        {.name = "optim",                                                                          \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(v).optim,                                                                        \
         .value = "NAME",                                                                          \
         .doc = "Optimizer of a file without one, by the Trainer's name: adamw_torch (default), "  \
                "adamw_torch_fused, adamw_apex_fused, sgd, adagrad, lion_32bit, "                  \
                "paged_lion_32bit, adafactor, schedule_free_adamw, adamw_8bit, adamw_bnb_8bit, "   \
                "paged_adamw_8bit, ademamix, paged_ademamix_32bit, ademamix_8bit, "                \
                "paged_ademamix_8bit; others are refused by name."},                               \
        {.name = "lr_scheduler_type",                                                              \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(v).lr_scheduler_type,                                                            \
         .value = "NAME",                                                                          \
         .doc = "Schedule of a file without one, by the Trainer's name: linear (default), "        \
                "cosine, cosine_with_restarts, cosine_with_min_lr, cosine_warmup_with_min_lr, "    \
                "polynomial, constant, constant_with_warmup, inverse_sqrt, warmup_stable_decay; "  \
                "none: a constant rate, as DeepSpeed."},                                           \
        {.name = "lr_scheduler_kwargs",                                                            \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(v).lr_scheduler_kwargs,                                                          \
         .value = "JSON",                                                                          \
         .doc = "Parameters of that schedule: '{\"min_lr_rate\": 0.1}'."},                         \
        TRAINER_FLAG("max_grad_norm", (v).max_grad_norm, REAL, "X", 0, 1e6,                        \
                     "gradient_clipping, 0: none; 1.0 for an \"auto\" without it."),               \
        TRAINER_FLAG("adam_beta1", (v).adam_beta1, REAL, "X", 0, 1,                                \
                     "optimizer betas[0], below 1; 0.9 for an \"auto\" without it."),              \
        TRAINER_FLAG("adam_beta2", (v).adam_beta2, REAL, "X", 0, 1,                                \
                     "optimizer betas[1], below 1; 0.999 for an \"auto\" without it."),            \
        TRAINER_FLAG("adam_epsilon", (v).adam_epsilon, REAL, "X", 0, 1,                            \
                     "optimizer eps; 1e-8 for an \"auto\" without it.")

#endif
