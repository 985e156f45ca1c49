/* SPDX-License-Identifier: Apache-2.0 */
/* ds_plan's flags. */
#include "common/plan_run.h"
#include "common/size_text.h"
#include "common/trainer_flags.h"
#include "common/trainer_names.h"

#include <stdlib.h>
#include <string.h>

static const char about[] =
    "Reports what a run costs before it runs, for any number of ranks and without their hardware: "
    "it "
    "builds the plan that each rank would build and counts. Nothing is allocated or trained, no "
    "weights are read.\n\n"
    "Commands:\n"
    "  (none)     memory by kind, communication, operations, with --device time too;\n"
    "             whether it fits, and what would make it fit\n"
    "  diff A B   what differs between two reports (--json), or between the plans of\n"
    "             two configurations (with --model or --model_config); of traces (--trace,\n"
    "             ds_train --trace) the times side by side, and with --trace FILE both in\n"
    "             one file, to be seen over each other\n"
    "  estimate   DeepSpeed's tables of model states for stages 2 and 3\n"
    "  serve      what ds_serve takes, whether it fits, how fast it answers; has flags\n"
    "             of its own: ds_plan serve --help";

static const char after[] =
    "Examples:\n"
    "  ds_plan --model Qwen2.5-0.5B --deepspeed_config ds.json --seq_length 2048\n"
    "  ds_plan --model_config llama70b.json --deepspeed_config z3.json \\\n"
    "      --world_size 1024 --nodes 128 --seq_length 4096 --device h100-sxm \\\n"
    "      --html plan.html\n"
    "  ds_plan --model_config gpt.json --deepspeed_config ds.json --fit \\\n"
    "      --output fitted.json\n"
    "  ds_plan diff a.json b.json --model Qwen2.5-0.5B\n"
    "  ds_plan diff plan.trace run.trace --trace both.trace\n"
    "  ds_plan estimate --total_params 3000000000 --world_size 8\n\n"
    "A micro-batch that is \"auto\" becomes the largest that fits; "
    "activation_checkpointing.recompute\n"
    "that is \"auto\" without device_memory the least that fits.\n\n"
    "Exit codes: 0 planned, and it fits where memory is known; 1 failed; 2 wrong use; 3 it does "
    "not\n"
    "fit.";

enum { NAMES = 45 };

/* Flags that mean nothing to a command. */
static const char *const foreign[][NAMES] = {
    [PLAN_REPORT] = {"total_params", "largest_layer_params", "additional_buffer_factor", "stage"},
    [PLAN_DIFF] = {"deepspeed_config", "json", "html", "fit", "nvme_path", "output", "total_params",
                   "largest_layer_params", "additional_buffer_factor", "stage"},
    [PLAN_ESTIMATE] = {"deepspeed_config",
                       "seq_length",
                       "freeze",
                       "allow_unknown_keys",
                       "memory",
                       "threads",
                       "device",
                       "accelerator",
                       "json",
                       "html",
                       "trace",
                       "fit",
                       "nvme_path",
                       "output",
                       "micro_batch",
                       "gradient_accumulation_steps",
                       "fp16",
                       "bf16",
                       "objective",
                       "loss_type",
                       "beta",
                       "label_smoothing",
                       "reference_free",
                       "simpo_gamma",
                       "desirable_weight",
                       "undesirable_weight",
                       "center_rewards_coefficient",
                       "teacher",
                       "distill_weight",
                       "distill_temperature",
                       "distill_mix",
                       "lora",
                       "lora_alpha",
                       "lora_dropout",
                       "lora_targets",
                       "lora_method",
                       "modules_to_save",
                       "adapter",
                       "frozen_adapters",
                       "adapters",
                       "load_in_4bit",
                       "bnb_4bit_quant_type",
                       "bnb_4bit_use_double_quant",
                       "load_in_8bit",
                       "load_in_fp8"}};

static ds_status refuse_foreign(ds_ctx *ctx, plan_command command, const dsi_arg *rows, size_t n)
{
    static const char *const names[] = {
        [PLAN_REPORT] = "a plan", [PLAN_DIFF] = "diff", [PLAN_ESTIMATE] = "estimate"};
    for (size_t i = 0; i < n; ++i) {
        for (size_t k = 0; k < NAMES && rows[i].name != NULL && *rows[i].given_out; ++k) {
            const char *name = foreign[command][k];
            if (name != NULL && strcmp(name, rows[i].name) == 0) {
                return ds_fail(ctx, DS_ERR_ARG, "--%s means nothing to %s%s", name, names[command],
                               command == PLAN_REPORT ? ": it is a flag of estimate" : "");
            }
        }
    }
    return DS_OK;
}

static ds_status check_estimate(ds_ctx *ctx, const plan_options *o)
{
    if (o->world_size % o->nodes != 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "estimate: expected the same number of ranks on each of %lld nodes, found "
                       "--world_size %lld",
                       (long long)o->nodes, (long long)o->world_size);
    }
    const bool model = o->model != NULL || o->model_config != NULL;
    if (model == (o->total_params > 0)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "estimate needs either --total_params N or a model (--model DIR, "
                       "--model_config FILE)");
    }
    return DS_OK;
}

/* Two outputs behind one another are no JSON, page or trace. */
static ds_status check_terminal(ds_ctx *ctx, const plan_options *o)
{
    const struct {
        const char *name, *path;
    } outputs[] = {{"--json -", o->json}, {"--html -", o->html}, {"--trace -", o->trace}};
    const char *first = o->command == PLAN_DIFF ? "the differences"
                        : o->fit                ? "the search of --fit"
                        : o->json == NULL       ? "the report"
                                                : NULL;
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; ++i) {
        if (outputs[i].path == NULL || strcmp(outputs[i].path, "-") != 0) {
            continue;
        }
        if (first != NULL) {
            return ds_fail(ctx, DS_ERR_ARG,
                           "%s and %s both write to the terminal; give a file instead of \"-\"",
                           first, outputs[i].name);
        }
        first = outputs[i].name;
    }
    return DS_OK;
}

static ds_status check(ds_ctx *ctx, const plan_options *o)
{
    uint64_t memory = 1;
    DS_TRY(o->memory != NULL ? size_parse_binary(ctx, "memory", o->memory, &memory) : DS_OK);
    if (memory == 0) {
        return ds_fail(ctx, DS_ERR_ARG, "--memory: expected at least one byte, found %s",
                       o->memory);
    }
    if (o->model != NULL && o->model_config != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "give either --model DIR or --model_config FILE");
    }
    if (o->fp16 && o->bf16) {
        return ds_fail(ctx, DS_ERR_ARG, "--fp16 and --bf16 exclude each other");
    }
    if (o->nodes > o->world_size) {
        return ds_fail(ctx, DS_ERR_ARG, "--nodes %lld is more than --world_size %lld",
                       (long long)o->nodes, (long long)o->world_size);
    }
    DS_TRY(check_terminal(ctx, o));
    if (o->command != PLAN_REPORT) {
        return o->command == PLAN_ESTIMATE ? check_estimate(ctx, o) : DS_OK;
    }
    if (o->model == NULL && o->model_config == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "give either --model DIR or --model_config FILE");
    }
    if (o->deepspeed_config == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--deepspeed_config FILE is missing");
    }
    if (o->output != NULL && !o->fit) {
        return ds_fail(ctx, DS_ERR_ARG, "--output is where --fit writes: give --fit too");
    }
    if (o->nvme_path != NULL && !o->fit) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--nvme_path is where --fit may offload to: give --fit too");
    }
    return DS_OK;
}

static ds_status read_command(ds_ctx *ctx, const dsi_arg_list *words, plan_options *o)
{
    if (words->n == 0) {
        return DS_OK;
    }
    if (strcmp(words->items[0], "diff") == 0 && words->n == 3) {
        o->command = PLAN_DIFF;
        o->files[0] = words->items[1];
        o->files[1] = words->items[2];
        return DS_OK;
    }
    if (strcmp(words->items[0], "estimate") == 0 && words->n == 1) {
        o->command = PLAN_ESTIMATE;
        return DS_OK;
    }
    return ds_fail(ctx, DS_ERR_ARG,
                   "unexpected word \"%s\"; the commands are \"serve\", \"diff A B\" and "
                   "\"estimate\"",
                   words->items[0]);
}

ds_status plan_options_parse(ds_ctx *ctx, int argc, char **argv, plan_options *o, bool *help_out)
{
    memset(o, 0, sizeof *o);
    dsi_arg rows[] = {
        {.type = DSI_ARG_HEADING, .doc = "What runs"},
        {.name = "model",
         .type = DSI_ARG_TEXT,
         .out = &o->model,
         .value = "DIR|ORG/NAME",
         .doc = "Model folder, or the name of a model in the Hugging Face cache; only its "
                "config.json is read."},
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
        PREFERENCE_FLAGS(o->preference),
        TEACHER_FLAGS(o->teacher),
        ADAPTER_ROWS(&o->adapter),
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
        {.name = "pipeline_stage",
         .type = DSI_ARG_INT,
         .out = &o->pipeline_stage,
         .value = "N",
         .def = "-1",
         .min = -1,
         .max = 1 << 20,
         .doc = "Of a pipeline (pipeline.stages): the stage whose rank is planned, from 0; -1: the "
                "one that needs most memory."},
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
         .doc =
             "Memory of a rank, 80G (powers of 1024) or a number of bytes; default: the device's, "
             "else this machine's, shared by the ranks of a node."},
        {.name = "threads",
         .type = DSI_ARG_INT,
         .out = &o->threads,
         .value = "N",
         .def = "0",
         .max = 4096,
         .doc = "Threads of a rank; default: its share of the cores of this machine."},
        {.name = "accelerator",
         .type = DSI_ARG_TEXT,
         .out = &o->accelerator,
         .value = "NAME",
         .def = "auto",
         .doc = "Whose kernels and their workspace: cpu, cuda, null, sim; auto is what ds_train "
                "takes, and "
                "null for a --device that is not this processor; there cuda needs no GPU here."},
        {.name = "device",
         .type = DSI_ARG_TEXT,
         .out = &o->device,
         .value = "PROFILE",
         .doc = "What a rank runs on, for times and memory: a shipped profile (h100-sxm, …) or a "
                "profile file; default: this processor, without times."},
        {.type = DSI_ARG_HEADING, .doc = "Output"},
        {.name = "json",
         .type = DSI_ARG_TEXT,
         .out = &o->json,
         .value = "FILE",
         .doc = "Write the report as JSON, \"-\" for the terminal, instead of text."},
        {.name = "html",
         .type = DSI_ARG_TEXT,
         .out = &o->html,
         .value = "FILE",
         .doc = "Write a page with the memory curve and the timeline too."},
        {.name = "trace",
         .type = DSI_ARG_TEXT,
         .out = &o->trace,
         .value = "FILE",
         .doc = "Write the simulated timeline for Chrome's tracing page or Perfetto too."},
        {.name = "fit",
         .type = DSI_ARG_SWITCH,
         .out = &o->fit,
         .doc = "Choose stage, recomputation, offload, micro-batch and, where the file does not "
                "say it, ranks that share layers, sequences or the model (stages), and domino: the "
                "fastest that fits, with the global batch as it is."},
        {.name = "nvme_path",
         .type = DSI_ARG_TEXT,
         .out = &o->nvme_path,
         .value = "FOLDER",
         .doc = "Folder on a disk, several with commas: --fit may offload to it. Without it --fit "
                "offloads to the host's memory only, where the device has its own."},
        {.name = "output",
         .type = DSI_ARG_TEXT,
         .out = &o->output,
         .value = "FILE",
         .doc = "Where --fit writes the completed configuration; default: the terminal."},
        {.name = "overwrite",
         .type = DSI_ARG_SWITCH,
         .out = &o->overwrite,
         .doc = "Let --json, --html, --trace and --output replace files that are there and that "
                "they did not write."},
        {.type = DSI_ARG_HEADING, .doc = "Of estimate"},
        {.name = "total_params",
         .type = DSI_ARG_INT,
         .out = &o->total_params,
         .value = "N",
         .def = "0",
         .max = 1e15,
         .doc = "Parameters of the model, instead of a model."},
        {.name = "largest_layer_params",
         .type = DSI_ARG_INT,
         .out = &o->largest_layer_params,
         .value = "N",
         .def = "0",
         .max = 1e15,
         .doc = "Parameters of its largest layer, for stage 3."},
        {.name = "additional_buffer_factor",
         .type = DSI_ARG_REAL,
         .out = &o->additional_buffer_factor,
         .value = "X",
         .def = "1.5",
         .min = 0.01,
         .max = 1000,
         .doc = "Factor on host memory."},
        {.name = "stage",
         .type = DSI_ARG_INT,
         .out = &o->stage,
         .value = "N",
         .min = 2,
         .max = 3,
         .doc = "Only this stage's table, 2 or 3; default: both."},
        {.type = DSI_ARG_HEADING,
         .doc = "Values of the configuration: what \"auto\" or an absent key stands for"},
        TRAINER_BATCH_FLAGS(o->trainer),
        {.name = "fp16",
         .type = DSI_ARG_SWITCH,
         .out = &o->fp16,
         .given_out = &o->fp16_given,
         .doc = "fp16.enabled, also where the file leaves it out."},
        {.name = "bf16",
         .type = DSI_ARG_SWITCH,
         .out = &o->bf16,
         .given_out = &o->bf16_given,
         .doc = "bf16.enabled, also where the file leaves it out."},
    };
    bool given[sizeof rows / sizeof rows[0]] = {false};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        rows[i].given_out = rows[i].given_out != NULL ? rows[i].given_out : &given[i];
    }
    const dsi_args_spec spec = {.usage = "ds_plan [diff A B | estimate | serve] [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .others = trainer_names,
                                .after = after};
    dsi_args args = {0};
    DS_TRY(dsi_args_parse(ctx, &spec, argc, argv, &args));
    *help_out = args.help;
    ds_status status = DS_OK;
    if (args.help) {
        dsi_args_help(&spec, stdout);
    } else {
        status = read_command(ctx, &args.words, o);
        status = status < 0 ? status : refuse_foreign(ctx, o->command, rows, spec.n_rows);
    }
    dsi_args_free(&args);
    return status < 0 || *help_out ? status : check(ctx, o);
}

void plan_options_free(plan_options *options)
{
    dsi_arg_list_free(&options->freeze);
    adapter_flags_free(&options->adapter);
    free(options->model_found);
    free(options->teacher.found);
}
