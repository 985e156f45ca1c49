/* SPDX-License-Identifier: Apache-2.0 */
/* See tune_planner.h. */
#include "common/tune_planner.h"

#include "accel/accel.h"
#include "base/machine_memory.h"
#include "base/process_memory.h"
#include "common/machine.h"
#include "common/train.h"
#include "common/tune_rows.h"
#include "config/config_values.h"
#include "launch/head.h"
#include "report/plan_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, ANY_STEPS = 1000000 };

typedef struct planner {
    train_options options;
    char **argv; /* the command's words, which the options borrow */
    ds_model *model;
    ds_adapter *adapter; /* NULL: none */
    ds_model *teacher;   /* NULL: none */
    ds_distillation distillation;
    dsi_device device;
    ds_preference preference;
    dsi_report_request request;
} planner;

static bool knows(const dsi_words *command)
{
    const char *slash = strrchr(command->items[0], '/');
    return strcmp(slash != NULL ? slash + 1 : command->items[0], "ds_train") == 0;
}

static void close_planner(void *self)
{
    planner *p = self;
    ds_adapter_destroy(&p->adapter);
    ds_model_destroy(&p->model);
    ds_model_destroy(&p->teacher);
    train_options_free(&p->options);
    free(p->argv);
    free(p);
}

static ds_status read_command(ds_ctx *ctx, planner *p, const dsi_words *command)
{
    bool help = false;
    p->argv = calloc(command->n + 1, sizeof *p->argv);
    if (p->argv == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a command line");
    }
    memcpy(p->argv, command->items, command->n * sizeof *p->argv);
    DS_TRY(train_options_parse(ctx, (int)command->n, p->argv, &p->options, &help));
    return help ? ds_fail(ctx, DS_ERR_ARG, "--autotuning: ds_train --help trains nothing") : DS_OK;
}

static ds_status open_parts(ds_ctx *ctx, planner *p, const dsi_tune_job *job)
{
    const train_options *o = &p->options;
    char path[PATH_BYTES];
    DS_TRY(read_command(ctx, p, job->command));
    DS_TRY(train_options_find(ctx, &p->options, DS_HUB_MODEL));
    (void)snprintf(path, sizeof path, "%s/config.json", o->model != NULL ? o->model : "");
    DS_TRY(ds_model_from_config(ctx, o->model != NULL ? path : o->model_config, &p->model));
    DS_TRY(teacher_flags_open(ctx, &o->teacher, &p->teacher, &p->distillation));
    DS_TRY(adapter_flags_open(ctx, &o->adapter, o->model, train_task(o), &p->model, &p->adapter));
    if (job->device != NULL) {
        DS_TRY(dsi_device_load(ctx, job->device, &p->device));
    }
    const uint32_t given = (uint32_t)o->threads;
    DS_TRY(preference_read(ctx, &o->preference, &p->preference));
    p->request = (dsi_report_request){
        .stage = DSI_STAGE_LARGEST,
        .model = p->model,
        .seq_length = train_seq_length(o, p->model),
        .preference = p->preference.loss != DS_PREFERENCE_NONE ? &p->preference : NULL,
        .n_ranks = job->n_ranks,
        .n_nodes = job->n_nodes,
        .n_threads = given > 0 ? given : job->n_threads,
        .frozen = o->freeze.items,
        .n_frozen = (uint32_t)o->freeze.n,
        .adapter = p->adapter,
        .distillation = p->teacher != NULL ? &p->distillation : NULL,
        .accelerator = job->device != NULL && !p->device.shared ? o->accelerator : NULL,
        .memory = job->memory,
        .device = job->device != NULL ? &p->device : NULL,
        .as_run = job->device != NULL && dsi_device_name_of(job->device) == NULL};
    return DS_OK;
}

static ds_status open_planner(ds_ctx *ctx, const dsi_tune_job *job, void **self_out)
{
    planner *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a planner");
    }
    const ds_status status = open_parts(ctx, p, job);
    if (status < 0) {
        close_planner(p);
        return status;
    }
    *self_out = p;
    return DS_OK;
}

/* What the flags say, apart from the batch, which is the candidate's. */
static ds_status load(planner *p, ds_ctx *ctx, const char *text, ds_config **config_out)
{
    const ds_config_params params = {.allow_unknown_keys = p->options.allow_unknown_keys};
    const uint64_t steps = p->options.steps > 0 ? (uint64_t)p->options.steps : ANY_STEPS;
    ds_trainer_values v =
        train_trainer_values(&p->options, ds_model_get_info(p->model)->hidden_size, steps);
    v.micro_batch = v.gradient_accumulation_steps = (ds_maybe){0};
    DS_TRY(ds_config_load_text(ctx, "the configuration", text, strlen(text), &params, config_out));
    return ds_config_resolve(*config_out, p->request.n_ranks, &v);
}

static ds_status predict(void *self, ds_ctx *ctx, const char *text, dsi_prediction *out)
{
    planner *p = self;
    dsi_report_request request = p->request;
    dsi_plan_report report;
    ds_config *config = NULL;
    ds_status status = load(p, ctx, text, &config);
    request.config = config;
    status = status < 0 ? status : dsi_report_make(ctx, &request, &report);
    if (status >= 0) {
        *out = (dsi_prediction){.need = dsi_report_need(&report),
                                .seconds = report.timeline != NULL ? report.step_time : 0.0,
                                .model_flops = report.model_flops,
                                .hardware_flops = report.hardware_flops,
                                .limited = dsi_rank_mapped_bytes(&report.plan),
                                .limit = (size_t)dsi_config_values(config)->device_memory};
        for (uint32_t i = 0; i < report.n_comm; ++i) {
            out->sent += report.comm[i].sent;
        }
        dsi_report_free(&report);
    }
    ds_config_destroy(&config);
    return status;
}

static uint64_t rows(void *self)
{
    const planner *p = self;
    return tune_count_rows(&p->options, p->model);
}

static const char *const flags[] = {"train_micro_batch_size_per_gpu",
                                    "--micro_batch",
                                    "train_micro_batch_size_per_gpu",
                                    "--per_device_train_batch_size",
                                    "gradient_accumulation_steps",
                                    "--gradient_accumulation_steps",
                                    NULL};

const dsi_tune_planner tune_planner_ds_train = {
    .version = DSI_TUNE_PLANNER_VERSION,
    .name = "the plan of ds_train",
    .knows = knows,
    .flags = flags,
    .open = open_planner,
    .predict = predict,
    .rows = rows,
    .close = close_planner,
};

/* ---- the device ------------------------------------------------------------------------------ */

ds_status tune_find_device(ds_ctx *ctx, const dsi_launch_options *options, const char **profile_out,
                           uint64_t *bytes_out)
{
    planner *p = NULL;
    dsi_accel_choice choice;
    ds_accel_about about = {.name = ""};
    *profile_out = NULL;
    if (options->command.n == 0 || !knows(&options->command)) {
        return DS_OK;
    }
    p = calloc(1, sizeof *p);
    if (p == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a planner");
    }
    if (read_command(ctx, p, &options->command) >= 0 &&
        dsi_accel_choose(ctx, p->options.accelerator, &choice) >= 0 &&
        dsi_accel_chosen(&choice)->about != NULL) {
        (void)dsi_accel_chosen(&choice)->about(ctx, choice.options, &about);
        *bytes_out = dsi_accel_device_memory(ctx, &choice);
    }
    close_planner(p); /* what is wrong with them is reported by the search, or by its trials */
    const dsi_device *profile = dsi_device_of_name(about.name);
    if (profile != NULL) {
        *profile_out = profile->name;
        ds_log(ctx, DS_LOG_JOB, "device: %s, by the profile %s", about.name, profile->name);
    } else if (about.name[0] != '\0') {
        ds_log(ctx, DS_LOG_WARN,
               "there is no profile of %s: times and memory are this processor's; --device with a "
               "profile says its own",
               about.name);
    }
    return DS_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

ds_status tune_find_memory(ds_ctx *ctx, const dsi_launch_options *options, uint64_t *bytes_out)
{
    dsi_hosts hosts = {0};
    bool local = false;
    DS_TRY(dsi_head_hosts(ctx, options, &hosts, &local));
    const uint64_t all = dsi_machine_memory();
    dsi_process_memory memory;
    dsi_process_memory_read(&memory);
    const uint64_t now = memory.machine_memory - memory.machine_used;
    const uint64_t bytes = now > 0 && (all == 0 || now < all) ? now : all;
    *bytes_out = bytes / 20 * 19 / hosts.items[0].n_slots;
    dsi_hosts_free(&hosts);
    return DS_OK;
}
