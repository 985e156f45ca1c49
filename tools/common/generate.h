/* SPDX-License-Identifier: Apache-2.0 */
/* ds_generate's parts: its flags, what they open, a conversation. */
#ifndef DSI_TOOLS_GENERATE_H
#define DSI_TOOLS_GENERATE_H

#include "base/buf.h"
#include "common/args.h"
#include "common/offload_flags.h"
#include "common/packing_flags.h"
#include "common/unpacked.h"

#include <deepspeed/infer.h>
#include <deepspeed/tokenizer.h>

/* The command line, parsed. Texts are borrowed from argv. */
typedef struct generate_options {
    const char *model, *checkpoint, *tag, *tokenizer, *prompt, *prompt_file, *dtype, *system;
    dsi_arg_list adapters, adapter_weights;
    const char *chat_template, *model_revision, *tokenizer_revision, *accelerator;
    char *model_found, *tokenizer_found; /* folders of the Hugging Face cache; NULL: paths */
    int64_t max_new_tokens, top_k, seed, max_length, threads, stages;
    int64_t mirostat, num_beams;
    const char *early_stopping;
    double length_penalty;
    double temperature, top_p, min_p, typical_p, tau, eta;
    bool chat, stats, no_echo;
    bool shaped; /* --dtype or --max_length is given */
    packing_flags packing;
    offload_flags offload;
    unpacked combined; /* of several adapters */
    unpacked unpacked; /* a GGUF file's model, and --quantize */
    ds_comm *comm;     /* whose ranks share the layers; NULL: one */
} generate_options;

typedef struct generate_parts {
    ds_model *model;
    ds_adapter *adapter; /* NULL: none */
    ds_tokenizer *tokenizer;
    ds_tokenizer_scratch *scratch;
} generate_parts;

/* *help_out: --help was printed. */
ds_status generate_parse(ds_ctx *ctx, int argc, char **argv, generate_options *o, bool *help_out);
ds_sampling generate_sampling(const generate_options *o);
/* Whether standard input can be read at all: a launcher's rank has none. */
ds_status generate_check_input(ds_ctx *ctx, const generate_options *o);
/* Appends the text of --prompt, --prompt_file or standard input. */
ds_status generate_prompt(ds_ctx *ctx, const generate_options *o, dsi_buf *prompt);
/* Positions to reserve: what the prompt and the new tokens need, within the model's. */
int64_t generate_positions(const generate_options *o, const ds_model *model, size_t n_prompt);
/* What the flags, and the file of --deepspeed_config, say of a generator of `length` positions. */
ds_status generate_params(ds_ctx *ctx, const generate_options *o, const generate_parts *parts,
                          int64_t length, ds_generator_params *params_out);
/* The folder that o->unpacked has is gone then. */
ds_status generate_open(ds_ctx *ctx, generate_options *o, const generate_parts *parts,
                        int64_t length, ds_generator **generator_out);

/* --num_beams: the best text behind the prompt, to standard output. */
ds_status generate_beams(ds_ctx *ctx, generate_options *o, const generate_parts *parts,
                         const uint32_t *ids, size_t n);

/* --chat: one message and its answer, or without a prompt a conversation, which Ctrl-C may end. */
ds_status generate_chat(ds_ctx *ctx, generate_options *o, const generate_parts *parts,
                        bool *interrupted_out);

#endif
