/* SPDX-License-Identifier: Apache-2.0 */
/* ds_plan's parts: its flags, opening what they name, its commands. */
#ifndef DSI_TOOLS_PLAN_RUN_H
#define DSI_TOOLS_PLAN_RUN_H

#include "common/adapter_flags.h"
#include "common/args.h"
#include "common/preference_flags.h"
#include "common/teacher_flags.h"
#include "report/plan_print.h"

typedef enum plan_command { PLAN_REPORT, PLAN_DIFF, PLAN_ESTIMATE } plan_command;

/* The command line, parsed. Texts are borrowed from argv. */
typedef struct plan_options {
    plan_command command;
    const char *files[2]; /* of diff */
    const char *model, *model_config, *deepspeed_config, *memory, *device, *accelerator;
    const char *model_revision;
    char *model_found; /* folder of the Hugging Face cache; NULL: --model is a path */
    bool overwrite;
    const char *json, *html, *trace, *output, *nvme_path;
    dsi_arg_list freeze;
    preference_flags preference;
    teacher_flags teacher;
    adapter_flags adapter;
    int64_t world_size, nodes, pipeline_stage, seq_length, threads;
    bool allow_unknown_keys, fit;
    int64_t total_params, largest_layer_params; /* of estimate */
    double additional_buffer_factor;
    int64_t stage;
    ds_trainer_values trainer; /* of the flags that fill "auto", and none else */
    bool fp16, bf16, fp16_given, bf16_given;
} plan_options;

/* Parses and checks the flags. *help_out: --help was printed, nothing is to be done. The caller
 * frees the options in any case. */
ds_status plan_options_parse(ds_ctx *ctx, int argc, char **argv, plan_options *options_out,
                             bool *help_out);
void plan_options_free(plan_options *options);

/* Model and configuration that the options name, and what is asked of them. */
typedef struct plan_run {
    ds_ctx *ctx;
    const plan_options *options;
    ds_model *model;
    ds_adapter *adapter; /* NULL: none */
    ds_model *teacher;   /* NULL: none */
    ds_distillation distillation;
    ds_config *config;
    dsi_device device;
    dsi_report_request request;
    ds_preference preference; /* loss NONE: none */
    char memory_of[80];
    bool open_batch;     /* the micro-batch is "auto" and no flag says it */
    bool free_batch;     /* and nobody gave the global batch */
    bool open_recompute; /* recompute is "auto" without device_memory */
} plan_run;

/* Opens the model, and the configuration at `config`, and resolves it; an open micro-batch becomes
 * the largest that fits, open recomputation the cheapest. The caller closes the run in any case. */
ds_status plan_run_open(ds_ctx *ctx, const plan_options *options, const char *config,
                        plan_run *run_out);
void plan_run_close(plan_run *run);

/* ds_plan diff: prints what differs between two reports in JSON, or between the plans of two
 * configurations. */
ds_status plan_diff(ds_ctx *ctx, const plan_options *options);
/* ds_plan estimate: DeepSpeed's tables. */
ds_status plan_estimate(ds_ctx *ctx, const plan_options *options);
/* ds_plan serve: argv[0] is "serve". The exit code. */
int plan_serve(int argc, char **argv);

#endif
