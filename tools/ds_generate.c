/* SPDX-License-Identifier: Apache-2.0 */
/* ds_generate: text from a model folder or a training checkpoint. */
#include "base/buf.h"
#include "ckpt/ckpt_foreign.h"
#include "common/args.h"
#include "common/output.h"
#include "common/sample.h"

#include <deepspeed/chat.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USE = 2, PROMPT_CEILING = 64 << 20, PATH_BYTES = 4096 };

typedef struct options {
    const char *model, *checkpoint, *tag, *tokenizer, *prompt, *prompt_file, *dtype, *system;
    const char *chat_template;
    int64_t max_new_tokens, top_k, seed, max_length, threads;
    double temperature, top_p;
    bool chat, stats, no_echo;
} options;

static const char about[] =
    "Generates text from a model folder (config.json, *.safetensors, tokenizer) or from the newest "
    "checkpoint of a ds_train output folder, and streams it to the terminal.";

static const char after[] =
    "Without --temperature the most likely token is taken each time. The prompt comes from "
    "--prompt, --prompt_file or standard input.\n\n"
    "Examples:\n"
    "  ds_generate --model out --prompt \"ROMEO:\" --temperature 0.8 --top_p 0.95\n"
    "  ds_generate --model Qwen2.5-0.5B-Instruct --chat --prompt \"What is ZeRO?\"\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong use.";

static ds_status parse(ds_ctx *ctx, int argc, char **argv, options *o, bool *help_out)
{
    const dsi_arg rows[] = {
        {.type = DSI_ARG_HEADING, .doc = "Model"},
        {.name = "model",
         .type = DSI_ARG_TEXT,
         .out = &o->model,
         .value = "DIR",
         .doc = "Model folder."},
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
        {.name = "tokenizer",
         .type = DSI_ARG_TEXT,
         .out = &o->tokenizer,
         .value = "DIR|FILE|bytes",
         .doc = "Tokenizer; default: that of the folder."},
        {.name = "dtype",
         .type = DSI_ARG_TEXT,
         .out = &o->dtype,
         .value = "f32|bf16|f16",
         .choices = "f32|bf16|f16",
         .doc = "Arithmetic; default: as the weights are stored."},
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
         .doc = "The prompt is a user's message: wrap it by the model's chat template."},
        {.name = "system",
         .type = DSI_ARG_TEXT,
         .out = &o->system,
         .value = "TEXT",
         .doc = "System message before it, with --chat."},
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
         .doc = "Most tokens to generate."},
        {.name = "max_length",
         .type = DSI_ARG_INT,
         .out = &o->max_length,
         .value = "N",
         .def = "0",
         .max = 1e9,
         .doc = "Positions of the KV cells; default: what is needed."},
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
    if ((o->model == NULL) == (o->checkpoint == NULL)) {
        return ds_fail(ctx, DS_ERR_ARG, "give either --model DIR or --checkpoint DIR");
    }
    if (o->prompt != NULL && o->prompt_file != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "give either --prompt or --prompt_file");
    }
    return DS_OK;
}

static ds_status read_prompt(ds_ctx *ctx, const options *o, dsi_buf *prompt)
{
    if (o->prompt != NULL) {
        dsi_buf_puts(prompt, o->prompt);
        return DS_OK;
    }
    const bool from_stdin = o->prompt_file == NULL || strcmp(o->prompt_file, "-") == 0;
    return dsi_buf_read_file(ctx, from_stdin ? "/dev/stdin" : o->prompt_file, prompt);
}

/* Wraps the prompt in the chat template. */
static ds_status wrap(ds_ctx *ctx, const options *o, const ds_tokenizer *tokenizer, dsi_buf *prompt)
{
    ds_chat *chat = NULL;
    ds_chat_text text = {0};
    ds_chat_message messages[2];
    size_t n = 0;
    if (o->system != NULL) {
        messages[n++] = (ds_chat_message){"system", o->system, strlen(o->system)};
    }
    messages[n++] = (ds_chat_message){"user", dsi_buf_text(prompt), prompt->size};
    DS_TRY(ds_chat_create(ctx, tokenizer, o->chat_template, &chat));
    const ds_status status = ds_chat_render(chat, messages, n, DS_CHAT_GENERATION_PROMPT, &text);
    if (status >= 0) {
        dsi_buf_clear(prompt);
        dsi_buf_append(prompt, text.text, text.size);
        ds_chat_text_free(&text);
    }
    ds_chat_destroy(&chat);
    return status;
}

/* Positions to reserve: what the prompt and the new tokens need, within the model's. */
static int64_t positions(const options *o, const ds_model *model, size_t n_prompt)
{
    const int64_t limit = ds_model_get_info(model)->max_positions;
    int64_t need = o->max_length > 0 ? o->max_length : (int64_t)n_prompt + o->max_new_tokens;
    return limit > 0 && need > limit ? limit : need;
}

static ds_status generate(ds_ctx *ctx, const options *o, const ds_model *model,
                          const ds_tokenizer *tokenizer, const dsi_buf *prompt,
                          const ds_tokens *tokens)
{
    const ds_generator_params params = {.model = model,
                                        .weights = o->model,
                                        .checkpoint = o->checkpoint,
                                        .tag = o->tag,
                                        .dtype = o->dtype != NULL ? ds_dtype_from_name(o->dtype)
                                                                  : DS_DTYPE_NONE,
                                        .max_length = positions(o, model, tokens->n)};
    const ds_sampling sampling = {.temperature = o->temperature,
                                  .top_k = o->top_k,
                                  .top_p = o->top_p,
                                  .seed = (uint64_t)o->seed};
    ds_generator *generator = NULL;
    int64_t drawn = 0;
    double seconds = 0.0;
    DS_TRY(ds_generator_create(ctx, &params, &generator));
    if (!o->no_echo && !o->chat) {
        (void)fwrite(dsi_buf_text(prompt), 1, prompt->size, stdout);
    }
    const ds_status status = sample_stream(ctx, generator, tokenizer, tokens->ids, tokens->n,
                                           o->max_new_tokens, &sampling, stdout, &drawn, &seconds);
    (void)fputc('\n', stdout);
    if (status >= 0 && o->stats && seconds > 0.0) {
        (void)fprintf(stderr, "%lld tokens in %.2f s: %.1f tokens/s, %.2f GB/s\n", (long long)drawn,
                      seconds, (double)drawn / seconds,
                      (double)drawn / seconds * ds_generator_step_bytes(generator) * 1e-9);
    }
    ds_generator_destroy(&generator);
    return status;
}

static ds_status run(ds_ctx *ctx, const options *o)
{
    const char *dir = o->model != NULL ? o->model : o->checkpoint;
    char path[PATH_BYTES];
    ds_model *model = NULL;
    ds_tokenizer *tokenizer = NULL;
    ds_tokenizer_scratch *scratch = NULL;
    ds_tokens tokens;
    dsi_buf prompt = dsi_buf_make(PROMPT_CEILING);
    ds_status status = DS_OK;
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    if (access(path, F_OK) != 0) {
        DS_TRY_GOTO(status, dsi_ckpt_foreign(ctx, dir, o->tag), done);
    }
    DS_TRY_GOTO(status, ds_model_from_config(ctx, path, &model), done);
    DS_TRY_GOTO(status,
                ds_tokenizer_open(ctx, o->tokenizer != NULL ? o->tokenizer : dir, &tokenizer),
                done);
    DS_TRY_GOTO(status, read_prompt(ctx, o, &prompt), done);
    if (o->chat) {
        DS_TRY_GOTO(status, wrap(ctx, o, tokenizer, &prompt), done);
    }
    DS_TRY_GOTO(status, ds_tokenizer_scratch_create(tokenizer, 0, &scratch), done);
    DS_TRY_GOTO(status,
                ds_tokenizer_encode(tokenizer, scratch, dsi_buf_text(&prompt), prompt.size,
                                    o->chat ? 0 : DS_ENCODE_ADD_SPECIAL, &tokens),
                done);
    if (tokens.n == 0) {
        status = ds_fail(ctx, DS_ERR_ARG, "the prompt is empty");
        goto done;
    }
    status = generate(ctx, o, model, tokenizer, &prompt, &tokens);
done:
    ds_tokenizer_scratch_destroy(&scratch);
    ds_tokenizer_close(&tokenizer);
    ds_model_destroy(&model);
    dsi_buf_free(&prompt);
    return status;
}

int main(int argc, char **argv)
{
    output_guard("ds_generate");
    ds_ctx *ctx = NULL;
    options o = {0};
    bool help = false;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    ds_status status = parse(ctx, argc, argv, &o, &help);
    int code = status < 0 ? EXIT_USE : EXIT_SUCCESS;
    if (status >= 0 && !help && o.threads > 0) {
        ds_ctx_params params = ds_ctx_params_default();
        params.n_threads = (uint32_t)o.threads;
        ds_ctx_destroy(&ctx);
        status = ds_ctx_create(&params, &ctx);
    }
    if (status >= 0 && !help) {
        status = run(ctx, &o);
        code = status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    }
    if (status < 0) {
        (void)fprintf(stderr, "ds_generate: %s\n", ds_ctx_error(ctx));
    }
    ds_ctx_destroy(&ctx);
    return code;
}
