/* SPDX-License-Identifier: Apache-2.0 */
/* ds_quantize: weights from one format into another. A thin main over include/deepspeed/gguf.h. */
#include "common/args.h"
#include "common/output.h"
#include "common/perplexity.h"
#include "common/size_text.h"
#include "common/unpacked.h"

#include <deepspeed/context.h>
#include <deepspeed/gguf.h>
#include <stdio.h>
#include <unistd.h>

enum { EXIT_USE = 2 };

typedef struct options {
    const char *dtype, *type, *max_shard_size, *text;
    int64_t text_tokens;
    bool overwrite, no_tokenizer;
} options;

static const char about[] =
    "FROM is a GGUF file or a Hugging Face folder, which may be in FP8, int8, GPTQ, AWQ, "
    "bitsandbytes or packed "
    "compressed-tensors, TO the other one, or another GGUF file.\n\n"
    "Into a folder: config.json, weights as real numbers, tokenizer and chat template. ds_train "
    "and "
    "ds_generate take the folder, and so does transformers. Read are F32, F16, BF16, Q4_0, Q4_1, "
    "Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4, TQ1_0 and TQ2_0.\n\n"
    "Into a file, whose name ends in .gguf: --type says of what type matrices are; llama.cpp loads "
    "it, and so do ds_generate and ds_serve with --quantize file. From a file all else stays, and "
    "matrices that are in their type already keep their bytes.\n\n"
    "Architectures: llama (Mistral too), qwen2, qwen3 and gpt2. What the other side has no word "
    "for "
    "is an error that names it.";

static const char after[] =
    "Vectors stay f32. Embedding and output projection are q6_k, but q8_0 beside q8_0. The mixes "
    "q4_k_m and q5_k_m have attention's values and the last product of about half of the layers in "
    "q6_k. Where rows are no whole blocks of 256: q5_0 for q4_k, q5_1 for q5_k, q8_0 for q6_k; of "
    "32: f16. Blocks of 32 have the bytes of the package gguf; those of 256 are searched for by "
    "least squares.\n\n"
    "Examples:\n"
    "  ds_quantize SmolLM2-135M-Instruct.Q4_1.gguf smollm2\n"
    "  ds_quantize --type q4_k_m --text wiki.txt smollm2 smollm2.Q4_K_M.gguf\n"
    "  ds_generate --model smollm2.Q4_K_M.gguf --quantize file --chat --prompt \"What is "
    "ZeRO?\"\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong use.";

static ds_status into_folder(ds_ctx *ctx, const options *o, const char *from, const char *to,
                             int *code_out)
{
    ds_gguf_params params = {.file = from,
                             .folder = to,
                             .dtype = ds_dtype_from_name(o->dtype),
                             .no_tokenizer = o->no_tokenizer};
    if (o->type != NULL || o->text != NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--type and --text are for a file, whose name ends in .gguf");
    }
    DS_TRY(size_parse(ctx, "max_shard_size", o->max_shard_size, &params.max_shard_bytes));
    DS_TRY(output_folder_free(ctx, params.folder, o->overwrite));
    *code_out = 1;
    return ds_gguf_to_folder(ctx, &params);
}

/* What the file tells a text worse than what it was made of. */
static ds_status compare(ds_ctx *ctx, const options *o, const char *from, const char *to)
{
    const perplexity_text text = {o->text, o->text_tokens};
    double before = 0.0;
    double now = 0.0;
    int64_t n = 0;
    DS_TRY(perplexity_of(ctx, from, &text, &before, &n));
    DS_TRY(perplexity_of(ctx, to, &text, &now, &n));
    (void)printf("perplexity of %lld tokens of %s: %.3f before, %.3f now (%+.2f %%)\n",
                 (long long)n, o->text, before, now, 100.0 * (now / before - 1.0));
    return DS_OK;
}

static ds_status into_file(ds_ctx *ctx, const options *o, const char *from, const char *to,
                           int *code_out)
{
    const ds_gguf_write_params params = {
        .source = from, .file = to, .type = o->type, .no_tokenizer = o->no_tokenizer};
    if (o->type == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "%s is to be a GGUF file: give --type, such as q8_0", to);
    }
    if (!o->overwrite && access(to, F_OK) == 0) {
        return ds_fail(ctx, DS_ERR_ARG, "%s is there; --overwrite replaces it", to);
    }
    *code_out = 1;
    DS_TRY(ds_gguf_write(ctx, &params));
    return o->text != NULL ? compare(ctx, o, from, to) : DS_OK;
}

static ds_status convert(ds_ctx *ctx, const options *o, const dsi_arg_list *words, int *code_out)
{
    if (words->n != 2) {
        return ds_fail(ctx, DS_ERR_ARG, "expected FROM and TO; --help says more");
    }
    const char *from = words->items[0];
    const char *to = words->items[1];
    if (!unpacked_is_file(from) && !unpacked_is_file(to)) {
        return ds_fail(ctx, DS_ERR_ARG, "neither %s nor %s is a GGUF file by its name (.gguf)",
                       from, to);
    }
    DS_TRY((unpacked_is_file(to) ? into_file : into_folder)(ctx, o, from, to, code_out));
    *code_out = 0;
    return DS_OK;
}

static ds_status run(ds_ctx *ctx, int argc, char **argv, int *code_out)
{
    options o = {0};
    const dsi_arg rows[] = {
        {.name = "type",
         .type = DSI_ARG_TEXT,
         .out = &o.type,
         .value = "TYPE",
         .choices = "f32|f16|bf16|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q4_k_m|q5_k|q5_k_m|q6_k",
         .doc = "Of the matrices in the file."},
        {.name = "text",
         .type = DSI_ARG_TEXT,
         .out = &o.text,
         .value = "FILE",
         .doc = "Of a file: print how well it tells this text, and what it was made of; token by "
                "token, in fp32."},
        {.name = "text_tokens",
         .type = DSI_ARG_INT,
         .out = &o.text_tokens,
         .value = "N",
         .def = "1024",
         .min = 2,
         .max = 1e9,
         .doc = "Most tokens of --text."},
        {.name = "dtype",
         .type = DSI_ARG_TEXT,
         .out = &o.dtype,
         .value = "TYPE",
         .def = "bf16",
         .choices = "f32|bf16|f16",
         .doc = "Of the weights in the folder."},
        {.name = "max_shard_size",
         .type = DSI_ARG_TEXT,
         .out = &o.max_shard_size,
         .value = "SIZE",
         .def = "5GB",
         .doc = "Most bytes of a weight file."},
        {.name = "no_tokenizer",
         .type = DSI_ARG_SWITCH,
         .out = &o.no_tokenizer,
         .doc =
             "Write no tokenizer: where that of FROM is not supported, take the original model's."},
        {.name = "overwrite",
         .type = DSI_ARG_SWITCH,
         .out = &o.overwrite,
         .doc = "Replace a model or file that is there."},
    };
    const dsi_args_spec spec = {.usage = "ds_quantize [FLAGS] FROM TO",
                                .about = about,
                                .after = after,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0]};
    dsi_args args;
    *code_out = EXIT_USE;
    DS_TRY(dsi_args_parse(ctx, &spec, argc, argv, &args));
    if (args.help) {
        dsi_args_help(&spec, stdout);
        *code_out = 0;
        return DS_OK;
    }
    const ds_status status = convert(ctx, &o, &args.words, code_out);
    dsi_args_free(&args);
    return status;
}

int main(int argc, char **argv)
{
    output_guard("ds_quantize");
    ds_ctx *ctx = NULL;
    int code = 1;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return code;
    }
    if (run(ctx, argc, argv, &code) < 0) {
        (void)fprintf(stderr, "ds_quantize: %s\n", ds_ctx_error(ctx));
    }
    ds_ctx_destroy(&ctx);
    return code;
}
