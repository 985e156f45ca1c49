/* SPDX-License-Identifier: Apache-2.0 */
/* The flags that say how a server is made, of ds_serve and ds_plan serve: one table, so that what
 * is planned is what is made. */
#ifndef DSI_TOOLS_SERVE_FLAGS_H
#define DSI_TOOLS_SERVE_FLAGS_H

#include "common/args.h"
#include "common/offload_flags.h"

#include <deepspeed/serve.h>

typedef struct serve_flags {
    const char *dtype, *kv_type;
    int64_t max_length, max_sequences, max_batch_tokens, kv_tokens, draft, prompt_rows;
    int64_t state_snapshots;
    bool no_prefix_cache;
    bool shaped, sized; /* given: --dtype or --max_length; sizes of batches or of keys and values */
    offload_flags offload; /* opened by the tool */
} serve_flags;

/* Rows of a table of flags; f: a serve_flags *. */
#define SERVE_DTYPE_ROW(f)                                                                         \
    {                                                                                              \
        .name = "dtype", .type = DSI_ARG_TEXT, .out = &(f)->dtype, .value = "f32|bf16|f16",        \
        .choices = "f32|bf16|f16", .given_out = &(f)->shaped,                                      \
        .doc = "Arithmetic; default: as the weights are stored, or config.json says."              \
    }

#define SERVE_ROWS(f)                                                                              \
    {.name = "max_length",                                                                         \
     .type = DSI_ARG_INT,                                                                          \
     .out = &(f)->max_length,                                                                      \
     .value = "N",                                                                                 \
     .def = "0",                                                                                   \
     .max = 1e9,                                                                                   \
     .given_out = &(f)->shaped,                                                                    \
     .doc = "Positions of a text, prompt included; default: the model's, at most 8192. Of T5 "     \
            "those of a source, and of what is made of it; default: 512."},                        \
        {.name = "max_sequences",                                                                  \
         .type = DSI_ARG_INT,                                                                      \
         .out = &(f)->max_sequences,                                                               \
         .value = "N",                                                                             \
         .def = "16",                                                                              \
         .min = 1,                                                                                 \
         .max = 4096,                                                                              \
         .given_out = &(f)->sized,                                                                 \
         .doc = "Texts in a batch."},                                                              \
        {.name = "max_batch_tokens",                                                               \
         .type = DSI_ARG_INT,                                                                      \
         .out = &(f)->max_batch_tokens,                                                            \
         .value = "N",                                                                             \
         .def = "512",                                                                             \
         .min = 1,                                                                                 \
         .max = 65536,                                                                             \
         .given_out = &(f)->sized,                                                                 \
         .doc = "Tokens of a batch: one of each running text, the rest of prompts."},              \
        {.name = "kv_tokens",                                                                      \
         .type = DSI_ARG_INT,                                                                      \
         .out = &(f)->kv_tokens,                                                                   \
         .value = "N",                                                                             \
         .def = "0",                                                                               \
         .max = 1e9,                                                                               \
         .given_out = &(f)->sized,                                                                 \
         .doc = "Positions that all texts have together; default: four times --max_length, of "    \
                "T5, whose sources take some too, eight times."},                                  \
        {.name = "kv_type",                                                                        \
         .type = DSI_ARG_TEXT,                                                                     \
         .out = &(f)->kv_type,                                                                     \
         .value = "f32|bf16|f16|int8",                                                             \
         .choices = "f32|bf16|f16|int8",                                                           \
         .doc = "Keys and values as they are kept; int8 with a scale a position and head; "        \
                "default: as the arithmetic."},                                                    \
        {.name = "no_prefix_cache",                                                                \
         .type = DSI_ARG_SWITCH,                                                                   \
         .out = &(f)->no_prefix_cache,                                                             \
         .doc = "Compute the begin of a prompt anew that another one had."},                       \
        {.name = "state_snapshots",                                                                \
         .type = DSI_ARG_INT,                                                                      \
         .out = &(f)->state_snapshots,                                                             \
         .value = "N",                                                                             \
         .def = "0",                                                                               \
         .max = 65536,                                                                             \
         .doc = "States of prompts' begins that are kept for others, of models with linear "       \
                "attention (Qwen3-Next): each takes as much as a text's; default: as many as "     \
                "--max_sequences."},                                                               \
        OFFLOAD_ROWS(&(f)->offload),                                                               \
        {.name = "offload_kv",                                                                     \
         .type = DSI_ARG_SWITCH,                                                                   \
         .out = &(f)->offload.kv,                                                                  \
         .doc = "Keys and values, too: all of a layer's come and go in every step."},              \
        {.name = "prompt_rows",                                                                    \
         .type = DSI_ARG_INT,                                                                      \
         .out = &(f)->prompt_rows,                                                                 \
         .value = "N",                                                                             \
         .def = "0",                                                                               \
         .max = 65536,                                                                             \
         .doc = "Rows of logits of a batch beyond those of --max_sequences, for prompts whose "    \
                "log-probabilities are asked for: these come in pieces of so many tokens, and "    \
                "each row takes memory for the vocabulary in fp32."},                              \
    {                                                                                              \
        .name = "draft", .type = DSI_ARG_INT, .out = &(f)->draft, .value = "N", .def = "0",        \
        .max = DS_SERVE_MOST_DRAFT,                                                                \
        .doc = "Ids that a text guesses in a step: what followed its last ones where they stood "  \
               "before. No text changes; those that repeat their prompt come sooner."              \
    }

/* What they say of params, whose source has a model. */
void serve_flags_set(const serve_flags *flags, ds_serve_params *params);
/* Behind all that sets params: what the file of --deepspeed_config says, where it is an inference
 * engine's. Errors: ERR_ARG (a flag beside it); those of ds_serve_configure. */
ds_status serve_flags_configure(ds_ctx *ctx, const serve_flags *flags, ds_serve_params *params);

#endif
