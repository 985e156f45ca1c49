/* ds_plan's flags. */
#include "common/plan_run.h"

#include <string.h>

static const char about[] =
    "Tells what a run costs before it runs, for any number of ranks and without their hardware: it "
    "builds the plan that each rank would build and counts. Nothing is allocated or trained, no "
    "weights are read.";

static const char after[] =
    "Examples:\n"
    "  ds_plan --model Qwen2.5-0.5B --deepspeed_config ds.json --seq_length 2048\n"
    "  ds_plan --model_config llama70b.json --deepspeed_config z3.json --world_size 1024 \\\n"
    "      --nodes 128 --seq_length 8192 --memory 80GB\n\n"
    "Exit codes: 0 planned, and it fits where memory is known; 1 failed; 2 wrong use; 3 it does "
    "not "
    "fit.";

static ds_status check(ds_ctx *ctx, const plan_options *o)
{
    if ((o->model == NULL) == (o->model_config == NULL)) {
        return ds_fail(ctx, DS_ERR_ARG, "give either --model DIR or --model_config FILE");
    }
    if (o->deepspeed_config == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--deepspeed_config FILE is missing");
    }
    if (o->fp16 && o->bf16) {
        return ds_fail(ctx, DS_ERR_ARG, "--fp16 and --bf16 exclude each other");
    }
    if (o->nodes > o->world_size) {
        return ds_fail(ctx, DS_ERR_ARG, "--nodes %lld is more than --world_size %lld",
                       (long long)o->nodes, (long long)o->world_size);
    }
    return DS_OK;
}

ds_status plan_options_parse(ds_ctx *ctx, int argc, char **argv, plan_options *o, bool *help_out)
{
    memset(o, 0, sizeof *o);
    const dsi_arg rows[] = {
        {.type = DSI_ARG_HEADING, .doc = "What runs"},
        {.name = "model",
         .type = DSI_ARG_TEXT,
         .out = &o->model,
         .value = "DIR",
         .doc = "Model folder; only its config.json is read."},
        {.name = "model_config",
         .type = DSI_ARG_TEXT,
         .out = &o->model_config,
         .value = "FILE",
         .doc = "A config.json."},
        {.name = "deepspeed_config",
         .type = DSI_ARG_TEXT,
         .out = &o->deepspeed_config,
         .value = "FILE",
         .doc = "DeepSpeed configuration, JSON or HJSON."},
        {.name = "seq_length",
         .type = DSI_ARG_INT,
         .out = &o->seq_length,
         .value = "T",
         .def = "0",
         .max = 1 << 24,
         .doc = "Tokens a row; default: the model's positions, at most 1024."},
        {.name = "freeze",
         .type = DSI_ARG_LIST,
         .out = &o->freeze,
         .value = "PATTERN…",
         .doc = "Parameters that are not trained, as glob patterns of their names."},
        {.name = "allow_unknown_keys",
         .type = DSI_ARG_SWITCH,
         .out = &o->allow_unknown_keys,
         .doc = "Unknown keys of the configuration are warnings."},
        {.type = DSI_ARG_HEADING, .doc = "Where it runs"},
        {.name = "world_size",
         .type = DSI_ARG_INT,
         .out = &o->world_size,
         .value = "N",
         .def = "1",
         .min = 1,
         .max = 1 << 20,
         .doc = "Ranks of the job."},
        {.name = "nodes",
         .type = DSI_ARG_INT,
         .out = &o->nodes,
         .value = "N",
         .def = "1",
         .min = 1,
         .max = 1 << 20,
         .doc = "Hosts that they are spread over."},
        {.name = "memory",
         .type = DSI_ARG_TEXT,
         .out = &o->memory,
         .value = "BYTES",
         .doc = "Memory of a rank, \"80GB\" or a number of bytes; default: this machine's, shared "
                "by the ranks of a node."},
        {.name = "threads",
         .type = DSI_ARG_INT,
         .out = &o->threads,
         .value = "N",
         .def = "0",
         .max = 4096,
         .doc = "Threads of a rank; default: its share of the cores of this machine."},
        {.type = DSI_ARG_HEADING, .doc = "What \"auto\" stands for in the configuration"},
        {.name = "micro_batch",
         .type = DSI_ARG_INT,
         .out = &o->micro_batch,
         .value = "N",
         .def = "-1",
         .min = -1,
         .max = 1e9,
         .doc = "train_micro_batch_size_per_gpu."},
        {.name = "gradient_accumulation_steps",
         .type = DSI_ARG_INT,
         .out = &o->gradient_accumulation_steps,
         .value = "N",
         .def = "-1",
         .min = -1,
         .max = 1e9,
         .doc = "gradient_accumulation_steps."},
        {.name = "fp16",
         .type = DSI_ARG_SWITCH,
         .out = &o->fp16,
         .given_out = &o->fp16_given,
         .doc = "fp16.enabled."},
        {.name = "bf16",
         .type = DSI_ARG_SWITCH,
         .out = &o->bf16,
         .given_out = &o->bf16_given,
         .doc = "bf16.enabled."},
    };
    const dsi_args_spec spec = {.usage = "ds_plan [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    dsi_args args = {0};
    DS_TRY(dsi_args_parse(ctx, &spec, argc, argv, &args));
    const bool words = args.words.n > 0;
    *help_out = args.help;
    if (args.help) {
        dsi_args_help(&spec, stdout);
    } else if (words) {
        (void)ds_fail(ctx, DS_ERR_ARG, "unexpected word \"%s\"", args.words.items[0]);
    }
    dsi_args_free(&args);
    if (*help_out) {
        return DS_OK;
    }
    return words ? DS_ERR_ARG : check(ctx, o);
}

void plan_options_free(plan_options *options)
{
    dsi_arg_list_free(&options->freeze);
}
