/* SPDX-License-Identifier: Apache-2.0 */
/* The flags that say what adapter is trained, of ds_train and ds_plan. */
#ifndef DSI_TOOLS_ADAPTER_FLAGS_H
#define DSI_TOOLS_ADAPTER_FLAGS_H

#include "common/packing_flags.h"

#include <deepspeed/adapter.h>

typedef struct adapter_flags {
    int64_t rank;         /* 0: no fresh adapter */
    int64_t resize_vocab; /* 0: the model's */
    double alpha, dropout;
    const char *method, *folder;
    dsi_arg_list targets, saved, frozen;
    dsi_arg_list names; /* of several that are trained; none: there is one */
    bool alpha_given, dropout_given, method_given;
    packing_flags packing;
} adapter_flags;

/* Rows of a table of flags; f: an adapter_flags *. */
#define ADAPTER_ROWS(f)                                                                            \
    {.type = DSI_ARG_HEADING, .doc = "Adapters"},                                                  \
        {.name = "lora",                                                                           \
         .type = DSI_ARG_INT,                                                                      \
         .out = &(f)->rank,                                                                        \
         .value = "RANK",                                                                          \
         .def = "0",                                                                               \
         .max = 1 << 20,                                                                           \
         .doc =                                                                                    \
             "Train an adapter of this rank instead of the model; OUTPUT becomes a folder that "   \
             "PEFT loads (adapter_config.json, adapter_model.safetensors)."},                      \
        {.name = "lora_alpha",                                                                     \
         .type = DSI_ARG_REAL,                                                                     \
         .out = &(f)->alpha,                                                                       \
         .value = "A",                                                                             \
         .def = "0",                                                                               \
         .max = 1e9,                                                                               \
         .given_out = &(f)->alpha_given,                                                           \
         .doc = "What it adds is scaled by A over the rank; default: twice the rank."},            \
        {.name = "lora_dropout",                                                                   \
         .type = DSI_ARG_REAL,                                                                     \
         .out = &(f)->dropout,                                                                     \
         .value = "P",                                                                             \
         .def = "0",                                                                               \
         .max = 0.99,                                                                              \
         .given_out = &(f)->dropout_given,                                                         \
         .doc = "Dropout of its input."},                                                          \
        {.name = "lora_targets",                                                                   \
         .type = DSI_ARG_LIST,                                                                     \
         .out = &(f)->targets,                                                                     \
         .value = "NAME…",                                                                         \
         .doc = "Linear layers that get one, by the end of their names (q_proj v_proj); default: " \
                "all but the output head."},                                                       \
        {.name = "lora_method",                                                                    \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(f)->method,                                                                      \
         .value = "lora|rslora|dora|pissa",                                                        \
         .def = "lora",                                                                            \
         .choices = "lora|rslora|dora|pissa",                                                      \
         .given_out = &(f)->method_given,                                                          \
         .doc = "rslora: scaled by A over the root of the rank."},                                 \
        {.name = "modules_to_save",                                                                \
         .type = DSI_ARG_LIST,                                                                     \
         .out = &(f)->saved,                                                                       \
         .value = "NAME…",                                                                         \
         .doc = "Modules that are trained whole beside it and saved with it."},                    \
        {.name = "resize_vocab",                                                                   \
         .type = DSI_ARG_INT,                                                                      \
         .out = &(f)->resize_vocab,                                                                \
         .value = "N",                                                                             \
         .def = "0",                                                                               \
         .max = INT32_MAX,                                                                         \
         .doc =                                                                                    \
             "Enlarge the vocabulary to N tokens, as a --tokenizer with added ones needs; their "  \
             "rows begin as the mean of the others. With --lora, --modules_to_save must have "     \
             "the embedding and the output head."},                                                \
        {.name = "adapter",                                                                        \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(f)->folder,                                                                      \
         .value = "DIR",                                                                           \
         .doc = "Go on with the adapter of a folder of PEFT's.",                                   \
         .ranks = DSI_ARG_CONTENT},                                                                \
        {.name = "frozen_adapters",                                                                \
         .type = DSI_ARG_LIST,                                                                     \
         .out = &(f)->frozen,                                                                      \
         .value = "DIR…",                                                                          \
         .doc = "With --lora or --adapter: folders of further adapters of the model, which are "   \
                "active beside the one that is trained and stay as they are (PEFT: set_adapter "   \
                "of several).",                                                                    \
         .ranks = DSI_ARG_CONTENT},                                                                \
        {.name = "adapters",                                                                       \
         .type = DSI_ARG_LIST,                                                                     \
         .out = &(f)->names,                                                                       \
         .value = "NAME…",                                                                         \
         .doc = "With --lora or --adapter: train so many adapters at once, each on one PATH of "   \
                "--data, in their order; OUTPUT/NAME becomes the folder of each (with --adapter: " \
                "they begin in DIR/NAME)."},                                                       \
        PACKING_ROWS(&(f)->packing)

/* What contradicts: ERR_ARG. */
ds_status adapter_flags_check(ds_ctx *ctx, const adapter_flags *flags);
/* The adapter; NULL when no flag asks for one. base: the model, for adapter_config.json; may be
 * NULL. task: a ds_task. *model becomes the one that flags and adapter mean (ds_adapter_fit). The
 * caller destroys both. */
ds_status adapter_flags_open(ds_ctx *ctx, const adapter_flags *flags, const char *base,
                             uint32_t task, ds_model **model, ds_adapter **adapter_out);
void adapter_flags_free(adapter_flags *flags);

#endif
