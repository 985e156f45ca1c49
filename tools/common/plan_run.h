/* ds_plan's parts: its flags, and opening what they name. */
#ifndef DSI_TOOLS_PLAN_RUN_H
#define DSI_TOOLS_PLAN_RUN_H

#include "common/args.h"
#include "train/plan_report.h"

/* The command line, parsed. Texts are borrowed from argv. */
typedef struct plan_options {
    const char *model, *model_config, *deepspeed_config, *memory;
    dsi_arg_list freeze;
    int64_t world_size, nodes, seq_length, threads;
    bool allow_unknown_keys;
    /* what "auto" stands for; negative: not given */
    int64_t micro_batch, gradient_accumulation_steps;
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
    ds_config *config;
    dsi_report_request request;
    char memory_of[80];
} plan_run;

/* Opens both and resolves the configuration. The caller closes the run in any case. */
ds_status plan_run_open(ds_ctx *ctx, const plan_options *options, plan_run *run_out);
void plan_run_close(plan_run *run);

#endif
