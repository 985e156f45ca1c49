/* SPDX-License-Identifier: Apache-2.0 */
/* ds_quantize: weights from one format into another. A thin main over include/deepspeed/gguf.h. */
#include "common/args.h"
#include "common/output.h"
#include "common/size_text.h"

#include <deepspeed/context.h>
#include <deepspeed/gguf.h>
#include <stdio.h>

enum { EXIT_USE = 2 };

typedef struct options {
    const char *dtype, *max_shard_size;
    bool overwrite, no_tokenizer;
} options;

static const char about[] =
    "Writes the model of a GGUF file as a Hugging Face folder: config.json, weights as real "
    "numbers, "
    "tokenizer and chat template. ds_train and ds_generate take the folder, and so does "
    "transformers.\n\n"
    "Read are F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4, "
    "NVFP4, TQ1_0 and TQ2_0, of the architectures llama (Mistral too), qwen2, qwen3 and gpt2. "
    "Other formats, and writing quantized ones, are not there yet.";

static const char after[] = "Examples:\n"
                            "  ds_quantize SmolLM2-135M-Instruct.Q4_1.gguf smollm2\n"
                            "  ds_generate --model smollm2 --chat --prompt \"What is ZeRO?\"\n\n"
                            "Exit codes: 0 done, 1 failed, 2 wrong use.";

static ds_status convert(ds_ctx *ctx, const options *o, const dsi_arg_list *words, int *code_out)
{
    ds_gguf_params params = {.dtype = ds_dtype_from_name(o->dtype),
                             .no_tokenizer = o->no_tokenizer};
    if (words->n != 2) {
        return ds_fail(ctx, DS_ERR_ARG, "expected FILE.gguf and FOLDER; --help says more");
    }
    params.file = words->items[0];
    params.folder = words->items[1];
    DS_TRY(size_parse(ctx, "max_shard_size", o->max_shard_size, &params.max_shard_bytes));
    DS_TRY(output_folder_free(ctx, params.folder, o->overwrite));
    *code_out = 1;
    DS_TRY(ds_gguf_to_folder(ctx, &params));
    *code_out = 0;
    return DS_OK;
}

static ds_status run(ds_ctx *ctx, int argc, char **argv, int *code_out)
{
    options o = {0};
    const dsi_arg rows[] = {
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
             "Write no tokenizer: where the file's is not supported, take the original model's."},
        {.name = "overwrite",
         .type = DSI_ARG_SWITCH,
         .out = &o.overwrite,
         .doc = "Replace a model that is there."},
    };
    const dsi_args_spec spec = {.usage = "ds_quantize [FLAGS] FILE.gguf FOLDER",
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
