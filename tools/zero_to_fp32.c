/* SPDX-License-Identifier: Apache-2.0 */
/* zero_to_fp32: the fp32 weights of a checkpoint as a file that anything reads. Flags and messages
 * are those of DeepSpeed's script of that name. A thin main over include/deepspeed/checkpoint.h. */
#include "common/args.h"
#include "common/checkpoint_folder.h"
#include "common/machine.h"
#include "common/output.h"
#include "common/size_text.h"

#include <deepspeed/checkpoint.h>
#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *max_shard_size, *tag;
    bool safe_serialization, exclude_frozen, overwrite, debug;
} options;

static const char about[] =
    "Writes the fp32 weights of a checkpoint into OUTPUT_DIR, whatever ranks and ZeRO stage it was "
    "saved with: the master weights where there are any, else the parameters as fp32. "
    "CHECKPOINT_DIR is the folder with the file `latest`, or that of one checkpoint in it. "
    "Everything is streamed: memory is bounded by the largest tensor.\n\n"
    "Folders of torch.distributed.checkpoint (.distcp) and checkpoints of DeepSpeed for Python are "
    "read, too: universal ones, ZeRO stages 1 to 3 and its "
    "bf16 optimizer, "
    "of any number of data-parallel ranks, of pipelines and with experts (ds_checkpoint --help has "
    "their names).\n\n"
    "Files: model.safetensors, or model-00001-of-0000N.safetensors … with "
    "model.safetensors.index.json.";

static const char after[] =
    "Examples:\n"
    "  zero_to_fp32 out/checkpoints weights\n"
    "  zero_to_fp32 out/checkpoints weights -t global_step200 --max_shard_size 2GB\n\n"
    "Exit codes: 0 done, 1 the checkpoint is broken or missing, 2 wrong usage, 3 a folder or file\n"
    "cannot be read or written, or memory ran out.";

static int fail(ds_ctx *ctx, ds_status status)
{
    (void)fprintf(stderr, "zero_to_fp32: %s\n", ds_ctx_error(ctx));
    return status == DS_ERR_ARG ? 2 : status == DS_ERR_IO || status == DS_ERR_NOMEM ? 3 : 1;
}

static ds_status convert(ds_ctx *ctx, const options *o, const char *dir, const char *tag,
                         const char *output)
{
    ds_checkpoint *c = NULL;
    ds_checkpoint_export_info done;
    ds_checkpoint_export_params params = {.folder = output, .exclude_frozen = o->exclude_frozen};
    DS_TRY(size_parse(ctx, "max_shard_size", o->max_shard_size, &params.max_shard_bytes));
    DS_TRY(output_folder_free(ctx, output, o->overwrite));
    DS_TRY(ds_checkpoint_open(ctx, dir, tag, &c));
    const ds_checkpoint_info *info = ds_checkpoint_get_info(c);
    (void)printf("Processing zero checkpoint '%s'\n", info->path);
    (void)printf("Detected checkpoint of world_size: %u, step %llu\n", info->n_shards,
                 (unsigned long long)info->step);
    if (!o->safe_serialization) {
        (void)printf("Writing safetensors (--safe_serialization), not a pickle: no program need be "
                     "trusted to read it\n");
    }
    const ds_status status = ds_checkpoint_export(c, &params, &done);
    if (status == DS_OK) {
        if (done.n_frozen > 0 && !o->exclude_frozen) {
            (void)printf("Reconstructed Frozen fp32 state dict with %llu params %llu elements\n",
                         (unsigned long long)done.n_frozen,
                         (unsigned long long)done.frozen_elements);
        }
        (void)printf("Reconstructed Trainable fp32 state dict with %llu params %llu elements\n",
                     (unsigned long long)done.n_trained, (unsigned long long)done.trained_elements);
        (void)printf("Saved fp32 state dict to %s\n", output);
    }
    ds_checkpoint_close(&c);
    if (status == DS_OK && o->debug) {
        char text[32];
        (void)printf("peak memory %s\n", size_text(machine_peak_bytes(), text, sizeof text));
    }
    return status;
}

static int run(ds_ctx *ctx, const options *o, const dsi_arg_list *words)
{
    char *parent = NULL;
    char *tag = NULL;
    if (words->n != 2) {
        (void)fprintf(stderr, "zero_to_fp32: expected CHECKPOINT_DIR and OUTPUT_DIR; --help says "
                              "more\n");
        return 2;
    }
    ds_status status = checkpoint_folder(ctx, words->items[0], &parent, &tag);
    if (status < 0) {
        return fail(ctx, status);
    }
    status = convert(ctx, o, parent, o->tag != NULL ? o->tag : tag, words->items[1]);
    free(parent);
    free(tag);
    return status < 0 ? fail(ctx, status) : 0;
}

int main(int argc, char **argv)
{
    output_guard("zero_to_fp32");
    options o = {0};
    const dsi_arg rows[] = {
        {.name = "max_shard_size",
         .type = DSI_ARG_TEXT,
         .out = &o.max_shard_size,
         .value = "SIZE",
         .def = "5GB",
         .doc = "A file above this size is cut into several; 0: never."},
        {.name = "safe_serialization",
         .type = DSI_ARG_SWITCH,
         .out = &o.safe_serialization,
         .def = "false",
         .doc = "Write safetensors: always so here."},
        {.name = "tag",
         .letter = 't',
         .type = DSI_ARG_TEXT,
         .out = &o.tag,
         .value = "TAG",
         .doc = "The checkpoint, such as global_step1; default: the one that `latest` names."},
        {.name = "exclude_frozen_parameters",
         .type = DSI_ARG_SWITCH,
         .out = &o.exclude_frozen,
         .def = "false",
         .doc = "Without parameters that were not trained."},
        {.name = "overwrite",
         .type = DSI_ARG_SWITCH,
         .out = &o.overwrite,
         .doc = "Into a folder that holds a model's files."},
        {.name = "debug",
         .letter = 'd',
         .type = DSI_ARG_SWITCH,
         .out = &o.debug,
         .def = "false",
         .doc = "Also print the peak memory."},
    };
    const dsi_args_spec spec = {.usage = "zero_to_fp32 CHECKPOINT_DIR OUTPUT_DIR [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 3;
    }
    dsi_args args;
    int rc = 0;
    const ds_status status = dsi_args_parse(ctx, &spec, argc, argv, &args);
    if (status < 0) {
        rc = fail(ctx, status);
    } else {
        if (args.help) {
            dsi_args_help(&spec, stdout);
        } else {
            rc = run(ctx, &o, &args.words);
        }
        dsi_args_free(&args);
    }
    ds_ctx_destroy(&ctx);
    return rc;
}
