/* SPDX-License-Identifier: Apache-2.0 */
/* ds_checkpoint's commands deepspeed and universal: a checkpoint as a folder that DeepSpeed for
 * Python loads. */
#ifndef DS_TOOLS_DEEPSPEED_FOLDER_H
#define DS_TOOLS_DEEPSPEED_FOLDER_H

#include "common/args.h"

#include <deepspeed/checkpoint.h>

typedef struct deepspeed_flags {
    int64_t zero_stage, ranks, groups, sub_group_size;
    const char *order, *like;
    bool given_stage, given_ranks, given_groups, given_size, given_order;
} deepspeed_flags;

/* clang-format off: rows of a table */
#define DEEPSPEED_FLAG_ROWS(f)                                                                     \
    {.name = "zero_stage",                                                                         \
     .type = DSI_ARG_INT,                                                                          \
     .out = &(f)->zero_stage,                                                                      \
     .given_out = &(f)->given_stage,                                                               \
     .value = "N",                                                                                 \
     .def = "0",                                                                                   \
     .min = 0,                                                                                     \
     .max = 3,                                                                                     \
     .doc = "deepspeed: ZeRO stage of the folder, 1, 2 or 3."},                                    \
        {.name = "ranks",                                                                          \
         .type = DSI_ARG_INT,                                                                      \
         .out = &(f)->ranks,                                                                       \
         .given_out = &(f)->given_ranks,                                                           \
         .value = "N",                                                                             \
         .def = "1",                                                                               \
         .min = 1,                                                                                 \
         .max = 65536,                                                                             \
         .doc =                                                                                    \
             "deepspeed: data-parallel ranks that will load it; universal: the most that will at " \
             "stage 3."},                                                                          \
        {.name = "parameter_order",                                                                \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(f)->order,                                                                       \
         .given_out = &(f)->given_order,                                                           \
         .value = "FILE",                                                                          \
         .doc = "deepspeed: names of the parameters, one a line, in the order of the module's "    \
                "named_parameters(); default: by the model type, where it is known."},             \
        {.name = "like",                                                                           \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(f)->like,                                                                        \
         .value = "FOLDER",                                                                        \
         .doc =                                                                                    \
             "deepspeed at stage 1 or 2: for the job that saved FOLDER: a pipeline (stage 1), "    \
             "ranks that share layers (AutoTP), experts (deepspeed.moe), with its names, order "   \
             "and groups; universal: for the job of a universal FOLDER, with experts (AutoEP)."},  \
        {.name = "parameter_groups",                                                               \
         .type = DSI_ARG_INT,                                                                      \
         .out = &(f)->groups,                                                                      \
         .given_out = &(f)->given_groups,                                                          \
         .value = "N",                                                                             \
         .def = "0",                                                                               \
         .min = 0,                                                                                 \
         .max = 2,                                                                                 \
         .doc = "deepspeed, universal: groups of the optimizer: 1, or 2 as the Trainer has, with " \
                "norms and biases in the second; default: as the run decayed them."},              \
    {                                                                                              \
        .name = "sub_group_size", .type = DSI_ARG_INT, .out = &(f)->sub_group_size,                \
        .given_out = &(f)->given_size, .value = "N", .def = "0", .min = 0, .max = 4e18,            \
        .doc =                                                                                     \
            "deepspeed at stage 3: sub_group_size of the run that will load it; default: that of " \
            "the run that saved."                                                                  \
    }
/* clang-format on */

bool deepspeed_flags_given(const deepspeed_flags *f);
/* Writes `c` into the save folder `out`. Errors: ERR_ARG (flags), as ds_checkpoint_write_deepspeed.
 */
ds_status deepspeed_folder_write(ds_ctx *ctx, ds_checkpoint *c, const deepspeed_flags *f,
                                 bool universal, const char *out);

#endif
