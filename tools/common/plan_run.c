/* SPDX-License-Identifier: Apache-2.0 */
/* Opens model and configuration for ds_plan. Numbers that do not change a plan (rates, betas) need
 * not be known: an "auto" among them stands for its usual value. */
#include "common/plan_run.h"

#include "accel/accel.h"
#include "base/machine_memory.h"
#include "base/processor.h"
#include "common/size_text.h"
#include "config/config_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_SEQ_LENGTH = 1024, PATH_BYTES = 4096 };

static ds_status open_model(plan_run *run)
{
    const plan_options *o = run->options;
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/config.json", o->model != NULL ? o->model : "");
    DS_TRY(ds_model_from_config(run->ctx, o->model != NULL ? path : o->model_config, &run->model));
    const int64_t limit = ds_model_get_info(run->model)->max_positions;
    const int64_t usual = limit > 0 && limit < DEFAULT_SEQ_LENGTH ? limit : DEFAULT_SEQ_LENGTH;
    run->request.seq_length = o->seq_length > 0 ? o->seq_length : usual;
    if (o->preference.objective != NULL && strcmp(o->preference.objective, "embeddings") == 0) {
        return ds_fail(
            run->ctx, DS_ERR_UNSUPPORTED,
            "--objective embeddings is not planned: its micro-batch is of anchors with all "
            "that they are compared with; ds_train says its memory at the start");
    }
    DS_TRY(preference_read(run->ctx, &o->preference, &run->preference));
    if (run->preference.loss != DS_PREFERENCE_NONE) {
        run->request.preference = &run->preference;
    }
    return DS_OK;
}

static bool is_auto(const plan_run *run, const char *path)
{
    const ds_config_item *item = ds_config_find(run->config, path);
    return item != NULL && strcmp(item->value, "\"auto\"") == 0;
}

static bool unknown(const plan_run *run, const char *path)
{
    const ds_config_item *item = ds_config_find(run->config, path);
    return item == NULL || is_auto(run, path) || strcmp(item->value, "null") == 0;
}

/* A micro-batch that nobody gave is 1 for now; with a given global batch the rest is accumulation,
 * unless that is given as well: then it follows. */
static void open_batch(plan_run *run, ds_trainer_values *v)
{
    run->open_batch =
        !run->options->trainer.micro_batch.known &&
        is_auto(run, "train_micro_batch_size_per_gpu") &&
        (unknown(run, "train_batch_size") || unknown(run, "gradient_accumulation_steps"));
    run->free_batch = run->open_batch && unknown(run, "train_batch_size");
    if (run->open_batch) {
        v->micro_batch = ds_known(1.0);
    }
}

static ds_status resolve(plan_run *run)
{
    const plan_options *o = run->options;
    ds_trainer_values v = o->trainer;
    v.fill_sections = true; /* without total_steps: no schedule, of which a plan knows nothing */
    if (is_auto(run, "scheduler.params.total_num_steps")) {
        v.total_steps = ds_known(1000.0);
    }
    open_batch(run, &v);
    if (o->fp16_given) {
        v.fp16 = ds_known(o->fp16);
    }
    if (o->bf16_given) {
        v.bf16 = ds_known(o->bf16);
    }
    const int64_t hidden = ds_model_get_info(run->model)->hidden_size;
    if (hidden > 0) {
        v.hidden_size = ds_known((double)hidden);
    }
    return ds_config_resolve(run->config, (uint32_t)o->world_size, &v);
}

static int64_t ranks_of_a_node(const plan_options *o)
{
    return (o->world_size + o->nodes - 1) / o->nodes;
}

/* Of the device that the accelerator has here, or of this machine. */
static ds_status memory_here(plan_run *run, uint64_t *bytes_out)
{
    const int64_t share = ranks_of_a_node(run->options);
    dsi_accel_choice accel;
    DS_TRY(dsi_accel_choose_to_plan(run->ctx, run->options->accelerator, &accel));
    const size_t device = dsi_accel_device_memory(run->ctx, &accel);
    *bytes_out = device > 0 ? device : dsi_machine_memory() / (uint64_t)share;
    (void)snprintf(run->memory_of, sizeof run->memory_of,
                   device > 0  ? "the device's memory"
                   : share > 1 ? "this machine's memory, for each of %lld ranks"
                               : "this machine's memory",
                   (long long)share);
    return DS_OK;
}

static ds_status find_memory(plan_run *run)
{
    const plan_options *o = run->options;
    uint64_t bytes = 0;
    if (o->device != NULL) {
        DS_TRY(dsi_device_load(run->ctx, o->device, &run->device));
        run->request.device = &run->device;
    }
    if (o->memory == NULL && o->device != NULL) {
        const dsi_device rank = dsi_device_of_rank(&run->device, (uint32_t)ranks_of_a_node(o), 0);
        bytes = (uint64_t)rank.memory_bytes;
        (void)snprintf(run->memory_of, sizeof run->memory_of, "a rank of %s", run->device.name);
    } else if (o->memory != NULL) {
        DS_TRY(size_parse_binary(run->ctx, "memory", o->memory, &bytes));
        (void)snprintf(run->memory_of, sizeof run->memory_of, "--memory");
    } else {
        DS_TRY(memory_here(run, &bytes));
    }
    run->request.memory = (size_t)bytes;
    run->request.memory_of = run->memory_of;
    return DS_OK;
}

static uint32_t threads_of(const plan_options *o, const dsi_device *device)
{
    const int64_t cores = (int64_t)dsi_device_cores(device);
    const int64_t share = cores / ranks_of_a_node(o);
    return (uint32_t)(o->threads > 0 ? o->threads : share > 0 ? share : 1);
}

static ds_status limit_device(plan_run *run)
{
    ds_config *limited = NULL;
    DS_TRY(dsi_report_limit_device(run->ctx, &run->request, &limited));
    if (limited != NULL) {
        ds_config_destroy(&run->config);
        run->config = limited;
        run->request.config = limited;
    }
    return DS_OK;
}

/* What is open becomes the fastest that fits: the largest micro-batch, the least recomputation.
 * Where nothing fits, a micro-batch of 1 and the recomputation that needs least. */
static ds_status solve_open(plan_run *run)
{
    const dsi_fit_scope scope = {.free_batch = run->free_batch,
                                 .fixed_batch = !run->open_batch,
                                 .recompute = run->open_recompute};
    dsi_setting settings[DSI_CANDIDATE_SETTINGS];
    dsi_fit fit;
    ds_config *solved = NULL;
    ds_status status = DS_OK;
    if (!run->open_batch && !run->open_recompute) {
        return DS_OK;
    }
    DS_TRY(dsi_fit_search(run->ctx, &run->request, &scope, &fit));
    const uint32_t least = run->open_recompute ? fit.least : UINT32_MAX;
    const uint32_t taken = fit.best != UINT32_MAX ? fit.best : least;
    if (taken != UINT32_MAX) {
        const uint32_t n = dsi_candidate_settings(&fit.tried[taken], settings);
        status = dsi_config_with(run->ctx, run->config, settings, n, run->request.n_ranks,
                                 ds_model_get_info(run->model)->hidden_size, &solved);
    }
    if (solved != NULL) {
        ds_config_destroy(&run->config);
        run->config = solved;
        run->request.config = solved;
    }
    dsi_fit_free(&fit);
    return status;
}

/* What a run would say of its configuration. */
static void print_notices(const plan_run *run)
{
    for (size_t i = 0; i < ds_config_n_notices(run->config); ++i) {
        ds_log(run->ctx, DS_LOG_WARN, "%s", ds_config_notice(run->config, i));
    }
}

ds_status plan_run_open(ds_ctx *ctx, const plan_options *options, const char *config, plan_run *run)
{
    const ds_config_params params = {.allow_unknown_keys = options->allow_unknown_keys,
                                     .for_plan = true};
    *run = (plan_run){.ctx = ctx, .options = options};
    DS_TRY(ds_config_load_file(ctx, config, &params, &run->config));
    DS_TRY(open_model(run));
    DS_TRY(teacher_flags_open(ctx, &options->teacher, &run->teacher, &run->distillation));
    DS_TRY(adapter_flags_open(ctx, &options->adapter, NULL, DS_TASK_TOKENS, &run->model,
                              &run->adapter));
    DS_TRY(resolve(run));
    print_notices(run);
    DS_TRY(find_memory(run));
    run->request.model = run->model;
    run->request.config = run->config;
    run->request.n_ranks = (uint32_t)options->world_size;
    run->request.n_nodes = (uint32_t)options->nodes;
    run->request.stage =
        options->pipeline_stage < 0 ? DSI_STAGE_LARGEST : (uint32_t)options->pipeline_stage;
    run->request.accelerator = options->accelerator;
    run->request.n_threads = threads_of(options, run->request.device);
    run->request.frozen = options->freeze.items;
    run->request.n_frozen = (uint32_t)options->freeze.n;
    run->request.adapter = run->adapter;
    run->request.distillation = run->teacher != NULL ? &run->distillation : NULL;
    const ds_config_values *values = dsi_config_values(run->config);
    run->open_recompute = values->activation_checkpointing.recompute == DS_RECOMPUTE_AUTO &&
                          values->device_memory <= 0;
    DS_TRY(limit_device(run));
    return solve_open(run);
}

void plan_run_close(plan_run *run)
{
    ds_config_destroy(&run->config);
    ds_adapter_destroy(&run->adapter);
    ds_model_destroy(&run->model);
    ds_model_destroy(&run->teacher);
}
