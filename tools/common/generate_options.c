/* SPDX-License-Identifier: Apache-2.0 */
/* ds_generate's flags. See generate.h. */
#include "common/args.h"
#include "common/generate.h"

#include <deepspeed/serve.h>

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char about[] =
    "Generates text from a model folder (config.json, *.safetensors, tokenizer) or from the newest "
    "checkpoint of a ds_train output folder, and streams it to the terminal.";

static const char after[] =
    "Without --temperature the most likely token is taken each time. The prompt comes from "
    "--prompt, --prompt_file or standard input.\n\n"
    "--chat without a prompt converses: each line is a message, which is answered with all that "
    "was "
    "said before; /help on a terminal lists what else there is. Where standard input is no "
    "terminal, empty lines are passed over and an error ends the program; only answers go to "
    "standard output. --system is the system message. When the context (--max_length) has no room "
    "for an answer (--max_new_tokens, at most a quarter of it), the oldest question and its answer "
    "are left out, said on standard error.\n\n"
    "Several ranks share the layers of a model, each has a part of the weights: start them by the "
    "launcher with --prompt or --prompt_file. Rank 0 writes the text. With --pipeline_stages the "
    "layers are dealt to so many groups of the ranks, and the ranks of a group share theirs.\n\n"
    "Examples:\n"
    "  ds_generate --model out --prompt \"ROMEO:\" --temperature 0.8 --top_p 0.95\n"
    "  ds_generate --model model.Q4_K_M.gguf --quantize file --prompt \"ROMEO:\"\n"
    "  ds_generate --model Qwen/Qwen2.5-0.5B-Instruct --chat --prompt \"What is ZeRO?\"\n"
    "  ds_generate --model Qwen/Qwen2.5-0.5B-Instruct --chat --system \"Be brief.\"\n"
    "  deepspeed --num_gpus 2 ds_generate --model out --prompt \"ROMEO:\"\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong use, 130 ended by Ctrl-C.";

ds_status generate_parse(ds_ctx *ctx, int argc, char **argv, generate_options *o, bool *help_out)
{
    const dsi_arg rows[] = {
        {.type = DSI_ARG_HEADING, .doc = "Model"},
        {.name = "model",
         .type = DSI_ARG_TEXT,
         .out = &o->model,
         .value = "DIR|FILE.gguf|ORG/NAME",
         .doc = "Model folder, GGUF file, or the name of a model in the Hugging Face cache."},
        {.name = "model_revision",
         .type = DSI_ARG_TEXT,
         .out = &o->model_revision,
         .value = "REV",
         .doc = "Of a --model by its name: branch, tag or commit; default: main."},
        {.name = "checkpoint",
         .type = DSI_ARG_TEXT,
         .out = &o->checkpoint,
         .value = "DIR",
         .doc = "A ds_train output folder: take the weights of its newest checkpoint."},
        {.name = "tag",
         .type = DSI_ARG_TEXT,
         .out = &o->tag,
         .value = "TAG",
         .doc = "Another checkpoint than the newest."},
        {.name = "adapter",
         .type = DSI_ARG_LIST,
         .out = &o->adapters,
         .value = "DIR…",
         .doc = "A folder of PEFT's (adapter_config.json), of ds_train --lora or others: the "
                "adapter of --model; several: what they do is added."},
        {.name = "adapter_weights",
         .type = DSI_ARG_LIST,
         .out = &o->adapter_weights,
         .value = "W,…",
         .doc = "What each adapter counts, in their order, as 0.7,-0.3; default: 1 each."},
        PACKING_ROWS(&o->packing),
        {.name = "tokenizer",
         .type = DSI_ARG_TEXT,
         .out = &o->tokenizer,
         .value = "DIR|FILE|ORG/NAME|bytes",
         .doc = "Tokenizer; default: that of the folder."},
        {.name = "tokenizer_revision",
         .type = DSI_ARG_TEXT,
         .out = &o->tokenizer_revision,
         .value = "REV",
         .doc = "The same of --tokenizer."},
        {.name = "dtype",
         .type = DSI_ARG_TEXT,
         .out = &o->dtype,
         .value = "f32|bf16|f16",
         .choices = "f32|bf16|f16",
         .given_out = &o->shaped,
         .doc = "Arithmetic; default: as the weights are stored."},
        {.name = "quantize",
         .type = DSI_ARG_TEXT,
         .out = &o->unpacked.quantize,
         .value = "TYPE",
         .choices = UNPACKED_QUANTIZE_CHOICES,
         .doc = UNPACKED_QUANTIZE_DOC},
        {.name = "pipeline_stages",
         .type = DSI_ARG_INT,
         .out = &o->stages,
         .value = "N",
         .def = "1",
         .min = 1,
         .max = 16,
         .doc = "Groups of the ranks that have neighbouring layers each: a divisor of the ranks."},
        OFFLOAD_ROWS(&o->offload),
        {.type = DSI_ARG_HEADING, .doc = "Prompt"},
        {.name = "prompt",
         .type = DSI_ARG_TEXT,
         .out = &o->prompt,
         .value = "TEXT",
         .doc = "What to continue."},
        {.name = "prompt_file",
         .type = DSI_ARG_TEXT,
         .out = &o->prompt_file,
         .value = "FILE",
         .doc = "The same from a file; - is standard input."},
        {.name = "chat",
         .type = DSI_ARG_SWITCH,
         .out = &o->chat,
         .doc = "The prompt is a user's message, in the model's chat template; without a prompt: a "
                "conversation."},
        {.name = "system",
         .type = DSI_ARG_TEXT,
         .out = &o->system,
         .value = "TEXT",
         .doc = "System message, with --chat."},
        {.name = "chat_template",
         .type = DSI_ARG_TEXT,
         .out = &o->chat_template,
         .value = "NAME",
         .doc = "Chat template, built in or one of the tokenizer's; default: the tokenizer's own."},
        {.type = DSI_ARG_HEADING, .doc = "Generation"},
        {.name = "max_new_tokens",
         .type = DSI_ARG_INT,
         .out = &o->max_new_tokens,
         .value = "N",
         .def = "256",
         .min = 1,
         .max = 1e9,
         .doc = "Most tokens to generate; of each answer."},
        {.name = "max_length",
         .type = DSI_ARG_INT,
         .out = &o->max_length,
         .value = "N",
         .def = "0",
         .given_out = &o->shaped,
         .max = 1e9,
         .doc =
             "Positions of the KV cells; default: what is needed; of a conversation 4096, at most "
             "the model's."},
        {.name = "temperature",
         .type = DSI_ARG_REAL,
         .out = &o->temperature,
         .value = "X",
         .def = "0",
         .max = 100,
         .doc = "Above 0: draw at random, flatter when larger."},
        {.name = "top_k",
         .type = DSI_ARG_INT,
         .out = &o->top_k,
         .value = "K",
         .def = "0",
         .max = 1e9,
         .doc = "Only among the K most likely; 0: all."},
        {.name = "top_p",
         .type = DSI_ARG_REAL,
         .out = &o->top_p,
         .value = "P",
         .def = "1",
         .max = 1,
         .doc = "Only among the most likely that reach probability P together."},
        {.name = "min_p",
         .type = DSI_ARG_REAL,
         .out = &o->min_p,
         .value = "P",
         .def = "0",
         .max = 1,
         .doc = "Only those at least P times as likely as the likeliest."},
        {.name = "typical_p",
         .type = DSI_ARG_REAL,
         .out = &o->typical_p,
         .value = "P",
         .def = "1",
         .max = 1,
         .doc = "Only those whose surprise is closest to the mean one, that reach probability P."},
        {.name = "mirostat",
         .type = DSI_ARG_INT,
         .out = &o->mirostat,
         .value = "0|1|2",
         .def = "0",
         .max = 2,
         .doc = "In the place of all these but --temperature: hold a text's mean surprise at "
                "--mirostat_tau."},
        {.name = "mirostat_tau",
         .type = DSI_ARG_REAL,
         .out = &o->tau,
         .value = "X",
         .def = "5",
         .max = 1000,
         .doc = "In bits."},
        {.name = "mirostat_eta",
         .type = DSI_ARG_REAL,
         .out = &o->eta,
         .value = "X",
         .def = "0.1",
         .max = 1000,
         .doc = "How fast it learns."},
        {.name = "num_beams",
         .type = DSI_ARG_INT,
         .out = &o->num_beams,
         .value = "N",
         .def = "1",
         .min = 1,
         .max = DS_SERVE_MOST_BEAMS,
         .doc = "Above 1: the likeliest text that a search with N beams finds."},
        {.name = "length_penalty",
         .type = DSI_ARG_REAL,
         .out = &o->length_penalty,
         .value = "X",
         .def = "1",
         .min = -100,
         .max = 100,
         .doc = "Of beams: a text's log-probability is divided by its length to this power."},
        {.name = "early_stopping",
         .type = DSI_ARG_TEXT,
         .out = &o->early_stopping,
         .value = "false|true|never",
         .def = "false",
         .choices = "false|true|never",
         .doc = "Of beams: when a search ends, as in transformers."},
        {.name = "seed",
         .type = DSI_ARG_INT,
         .out = &o->seed,
         .value = "N",
         .def = "42",
         .max = 9e15,
         .doc = "Of the draws: the same seed, the same text."},
        {.name = "no_echo",
         .type = DSI_ARG_SWITCH,
         .out = &o->no_echo,
         .doc = "Do not repeat the prompt."},
        {.name = "stats",
         .type = DSI_ARG_SWITCH,
         .out = &o->stats,
         .doc = "Print tokens a second and bytes a second to standard error."},
        {.name = "accelerator",
         .type = DSI_ARG_TEXT,
         .out = &o->accelerator,
         .value = "NAME",
         .def = "auto",
         .doc = "What computes: cpu, cuda (an NVIDIA GPU for each rank; cuda:device=1), null "
                "(computes nothing, counts alone), sim (finds errors of order; slow), with options "
                "behind a colon, sim:seed=7,turn=64; with "
                "sim:copy_gbps=16,kernel_us=5 it says how long transfers and kernels would take; "
                "auto is the best that there is."},
        {.name = "threads",
         .type = DSI_ARG_INT,
         .out = &o->threads,
         .value = "N",
         .def = "0",
         .max = 4096,
         .doc = "Threads; default: the cores that this process may use."},
    };
    const dsi_args_spec spec = {.usage = "ds_generate [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    DS_TRY(dsi_args_parse_flags(ctx, &spec, argc, argv, help_out));
    if (*help_out) {
        return DS_OK;
    }
    if (o->adapter_weights.n > 0 && o->adapters.n == 0) {
        return ds_fail(ctx, DS_ERR_ARG, "--adapter_weights goes with --adapter");
    }
    if (o->adapters.n > 0 && o->model == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--adapter goes with --model, the model that it is of");
    }
    if (o->unpacked.quantize != NULL && (o->model == NULL || o->adapters.n > 0)) {
        return ds_fail(ctx, DS_ERR_ARG, "--quantize goes with --model, without --adapter");
    }
    DS_TRY(packing_flags_check(ctx, &o->packing, o->adapters.n > 0));
    if ((o->model == NULL) == (o->checkpoint == NULL)) {
        return ds_fail(ctx, DS_ERR_ARG, "give either --model DIR or --checkpoint DIR");
    }
    if (!o->chat && (o->system != NULL || o->chat_template != NULL)) {
        return ds_fail(ctx, DS_ERR_ARG, "--system and --chat_template need --chat");
    }
    if (o->num_beams > 1 &&
        (o->chat || o->stats || o->checkpoint != NULL || o->temperature > 0.0)) {
        return ds_fail(
            ctx, DS_ERR_ARG,
            "--num_beams goes with --model and temperature 0, without --chat and --stats");
    }
    if (o->prompt != NULL && o->prompt_file != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "give either --prompt or --prompt_file");
    }
    return DS_OK;
}

ds_sampling generate_sampling(const generate_options *o)
{
    return (ds_sampling){.temperature = o->temperature,
                         .top_k = o->top_k,
                         .top_p = o->top_p,
                         .min_p = o->min_p,
                         .typical_p = o->typical_p,
                         .mirostat = o->mirostat,
                         .tau = o->tau,
                         .eta = o->eta,
                         .seed = (uint64_t)o->seed};
}

ds_status generate_params(ds_ctx *ctx, const generate_options *o, const generate_parts *parts,
                          int64_t length, ds_generator_params *params_out)
{
    const bool infers = offload_flags_infer(&o->offload);
    const ds_config *config = o->offload.config;
    ds_generator_params params = {.model = parts->model,
                                  .config = infers ? NULL : config,
                                  .adapter = parts->adapter,
                                  .weights = o->model,
                                  .checkpoint = o->checkpoint,
                                  .tag = o->tag,
                                  .dtype = o->dtype != NULL ? ds_dtype_from_name(o->dtype)
                                                            : DS_DTYPE_NONE,
                                  .quantize = unpacked_quantize(&o->unpacked),
                                  .gguf = unpacked_gguf(&o->unpacked),
                                  .keep_blocks = o->unpacked.keeps,
                                  .max_length = length,
                                  .accelerator = o->accelerator,
                                  .comm = o->comm,
                                  .stages = (uint32_t)o->stages};
    if (infers && o->shaped) {
        return ds_fail(ctx, DS_ERR_ARG, "%s says it; leave --dtype and --max_length",
                       o->offload.config_path);
    }
    if (infers) {
        DS_TRY(ds_generator_configure(ctx, config, &params));
        DS_TRY(ds_generator_copy(ctx, config, &params, o->model));
    }
    *params_out = params;
    return DS_OK;
}

ds_status generate_open(ds_ctx *ctx, generate_options *o, const generate_parts *parts,
                        int64_t length, ds_generator **generator_out)
{
    ds_generator_params params;
    ds_status status = generate_params(ctx, o, parts, length, &params);
    status = status < 0 ? status : ds_generator_create(ctx, &params, generator_out);
    unpacked_remove(&o->combined);
    unpacked_remove(&o->unpacked);
    return status;
}

ds_status generate_check_input(ds_ctx *ctx, const generate_options *o)
{
    struct stat in;
    struct stat null;
    const bool none = fstat(STDIN_FILENO, &in) == 0 && stat("/dev/null", &null) == 0 &&
                      S_ISCHR(in.st_mode) && in.st_rdev == null.st_rdev;
    return ds_comm_size(o->comm) > 1 && none
               ? ds_fail(ctx, DS_ERR_ARG,
                         "the launcher gives ranks no standard input: use --prompt or "
                         "--prompt_file, or mpirun, which gives it to rank 0")
               : DS_OK;
}

ds_status generate_prompt(ds_ctx *ctx, const generate_options *o, dsi_buf *prompt)
{
    if (o->prompt != NULL) {
        dsi_buf_puts(prompt, o->prompt);
        return DS_OK;
    }
    const bool from_stdin = o->prompt_file == NULL || strcmp(o->prompt_file, "-") == 0;
    if (from_stdin) {
        DS_TRY(generate_check_input(ctx, o));
    }
    return dsi_buf_read_file(ctx, from_stdin ? "/dev/stdin" : o->prompt_file, prompt);
}

int64_t generate_positions(const generate_options *o, const ds_model *model, size_t n_prompt)
{
    const int64_t limit = ds_model_get_info(model)->max_positions;
    int64_t need = o->max_length > 0 ? o->max_length : (int64_t)n_prompt + o->max_new_tokens;
    return limit > 0 && need > limit ? limit : need;
}
