/* SPDX-License-Identifier: Apache-2.0 */
/* ds_plan serve: its flags, and the models that they name. See plan_serve.h. */
#include "common/args.h"
#include "common/hub_flag.h"
#include "common/plan_serve.h"
#include "common/unpacked.h"

#include <string.h>

static const char about[] =
    "What ds_serve takes before it runs, from the plans that it would build: weights, keys and "
    "values, a batch, whether they fit, and what would make them fit. No weights are read (but "
    "beside --quantize file of a folder). With --device, how fast it answers, too.\n";

static const char after[] =
    "\nExamples:\n"
    "  ds_plan serve --model Qwen/Qwen2.5-0.5B-Instruct --max_sequences 32\n"
    "  ds_plan serve --model_config 70b.json --quantize q4_0 --memory 64GB\n"
    "  ds_plan serve --model_config 8b.json --dtype bf16 --device h100-sxm\n\n"
    "Exit codes: 0 it fits, 1 failed, 2 wrong use, 3 does not fit.\n";

ds_status plan_serve_parse(ds_ctx *ctx, int argc, char **argv, plan_serve_options *o,
                           bool *help_out)
{
    const dsi_arg rows[] = {
        {.type = DSI_ARG_HEADING, .doc = "What is served"},
        {.name = "model",
         .type = DSI_ARG_TEXT,
         .out = &o->model,
         .value = "DIR|FILE.gguf|ORG/NAME",
         .doc = "Model folder, GGUF file, or the name of a model in the Hugging Face cache; only "
                "its config.json, or the head of the file, is read."},
        {.name = "model_revision",
         .type = DSI_ARG_TEXT,
         .out = &o->model_revision,
         .value = "REV",
         .doc = "Of a --model by its name: branch, tag or commit; default: main."},
        {.name = "model_config",
         .type = DSI_ARG_TEXT,
         .out = &o->model_config,
         .value = "FILE",
         .doc = "A config.json."},
        SERVE_DTYPE_ROW(&o->sizes),
        {.name = "quantize",
         .type = DSI_ARG_TEXT,
         .out = &o->quantize,
         .value = "TYPE",
         .doc = "Type of blocks of the linear layers' matrices, as ds_serve's; file: of a --model "
                "of GPTQ, AWQ or packed compressed-tensors each matrix as it is there, for which "
                "scales and zero points are read, and of a GGUF file each in its own type."},
        SERVE_ROWS(&o->sizes),
        {.name = "draft_model",
         .type = DSI_ARG_TEXT,
         .out = &o->draft_model,
         .value = "DIR|FILE|ORG/NAME",
         .doc = "Folder, or name in the Hugging Face cache, of the smaller model that makes the "
                "guesses of --draft (then 4 by "
                "default), or a config.json: its memory is counted, too."},
        {.type = DSI_ARG_HEADING, .doc = "Where it runs"},
        {.name = "memory",
         .type = DSI_ARG_TEXT,
         .out = &o->memory,
         .value = "BYTES",
         .doc = "What there is, as 16GiB; default: this machine's or its control group's, or "
                "the device's."},
        {.name = "device",
         .type = DSI_ARG_TEXT,
         .out = &o->device,
         .value = "NAME|FILE",
         .doc = "A shipped profile (h100-sxm, …) or a profile file, for memory and times."},
        {.name = "accelerator",
         .type = DSI_ARG_TEXT,
         .out = &o->accelerator,
         .value = "NAME",
         .doc = "Whose kernels; default: those of this machine."},
        {.name = "threads",
         .type = DSI_ARG_INT,
         .out = &o->threads,
         .value = "N",
         .def = "0",
         .max = 4096,
         .doc = "Threads; default: the cores that this process may use."},
        {.name = "ranks",
         .type = DSI_ARG_INT,
         .out = &o->ranks,
         .value = "N",
         .def = "1",
         .min = 1,
         .max = 1024,
         .doc = "Ranks of one host that share the layers; all figures are of one of them."},
        {.type = DSI_ARG_HEADING, .doc = "Output"},
        {.name = "json",
         .type = DSI_ARG_TEXT,
         .out = &o->json,
         .value = "FILE",
         .doc = "Write the figures as JSON, \"-\" for the terminal, instead of text."},
        {.name = "overwrite",
         .type = DSI_ARG_SWITCH,
         .out = &o->overwrite,
         .doc = "Let --json replace a file that is there and that it did not write."},
    };
    const dsi_args_spec spec = {.usage = "ds_plan serve [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    DS_TRY(dsi_args_parse_flags(ctx, &spec, argc, argv, help_out));
    if (!*help_out && (o->model != NULL) == (o->model_config != NULL)) {
        return ds_fail(ctx, DS_ERR_ARG, "expected either --model or --model_config");
    }
    return DS_OK;
}

bool plan_serve_keeps_blocks(const plan_serve_options *o)
{
    return o->quantize != NULL && strcmp(o->quantize, "file") == 0;
}

ds_status plan_serve_check_blocks(ds_ctx *ctx, const plan_serve_options *o)
{
    if (!plan_serve_keeps_blocks(o)) {
        return DS_OK;
    }
    if (o->model == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--quantize file: which matrices are in blocks of which type is read from "
                       "--model; of --model_config it is not planned, give a type");
    }
    return DS_OK;
}

bool plan_serve_is_gguf(const plan_serve_options *o)
{
    return o->model != NULL && unpacked_is_file(o->model);
}

/* Folder or name; a GGUF file is what it is, and what is in no block is bf16 as ds_serve makes it.
 */
static ds_status find_model(ds_ctx *ctx, plan_serve_options *o)
{
    if (plan_serve_is_gguf(o)) {
        if (o->quantize != NULL && o->sizes.dtype == NULL) {
            o->sizes.dtype = "bf16"; /* as ds_serve has it */
        }
        return o->model_revision == NULL
                   ? DS_OK
                   : ds_fail(ctx, DS_ERR_ARG,
                             "--model %s is a file: --model_revision does not go with it",
                             o->model);
    }
    return hub_flag_find(ctx, "model", &o->model, o->model_revision,
                         plan_serve_keeps_blocks(o) ? DS_HUB_MODEL : DS_HUB_CONFIG,
                         &o->model_found);
}

bool plan_serve_is_config(const char *path)
{
    const size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".json") == 0;
}

static ds_status find_draft(ds_ctx *ctx, plan_serve_options *o)
{
    return o->draft_model == NULL || plan_serve_is_config(o->draft_model)
               ? DS_OK
               : hub_flag_find(ctx, "draft_model", &o->draft_model, NULL, DS_HUB_CONFIG,
                               &o->draft_found);
}

ds_status plan_serve_find(ds_ctx *ctx, plan_serve_options *o)
{
    DS_TRY(find_model(ctx, o));
    return find_draft(ctx, o);
}
