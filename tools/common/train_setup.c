/* SPDX-License-Identifier: Apache-2.0 */
/* Opens what a run needs, in the order in which errors are cheapest: configuration text, model,
 * tokenizer, data, then the engine. */
#include "base/clock.h"
#include "common/data_check.h"
#include "common/train.h"
#include "config/config_values.h"
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_SEQ_LENGTH = 1024, PATH_BYTES = 4096 };

int64_t train_seq_length(const train_options *o, const ds_model *model)
{
    const int64_t limit = ds_model_get_info(model)->max_positions;
    const int64_t usual = limit > 0 && limit < DEFAULT_SEQ_LENGTH ? limit : DEFAULT_SEQ_LENGTH;
    return o->seq_length > 0 ? o->seq_length : usual;
}

static ds_status check_objective(const train_run *run)
{
    const train_options *o = run->options;
    const ds_model_info *info = ds_model_get_info(run->model);
    const bool encodes = train_is_mlm(o) || train_task(o) != DS_TASK_TOKENS;
    if (train_task(o) == DS_TASK_CONTRAST && !info->pairs) {
        return DS_OK;
    }
    if (info->pairs ? !encodes && !train_has_preference(run) : info->encoder == encodes) {
        return DS_OK;
    }
    if (info->pairs) {
        return ds_fail(run->ctx, DS_ERR_ARG,
                       "--objective %s: %s learns targets of sources, rows of \"prompt\" and "
                       "\"completion\"; leave the flag out",
                       o->preference.objective, info->architecture);
    }
    return ds_fail(run->ctx, DS_ERR_ARG,
                   encodes ? "%s is no encoder: --objective mlm and classification are not for it"
                           : "%s is an encoder: --objective mlm, classes, tags or embeddings",
                   info->architecture);
}

static ds_status open_model(train_run *run)
{
    const train_options *o = run->options;
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/config.json", o->model != NULL ? o->model : "");
    DS_TRY(ds_model_from_config(run->ctx, o->model != NULL ? path : o->model_config, &run->model));
    run->seq_length = train_seq_length(o, run->model);
    DS_TRY(check_objective(run));
    DS_TRY(train_task_open(run));
    DS_TRY(teacher_flags_open(run->ctx, &o->teacher, &run->teacher, &run->distillation));
    return adapter_flags_open(run->ctx, &o->adapter, o->model, train_task(o), &run->model,
                              &run->adapter);
}

/* A model without chat template can still train on text: the lack is an error only for messages. */
ds_status train_tokenizer_open(train_run *run)
{
    const train_options *o = run->options;
    DS_TRY(ds_tokenizer_open(run->ctx, o->tokenizer != NULL ? o->tokenizer : o->model,
                             &run->tokenizer));
    const uint32_t vocab = ds_tokenizer_vocab_size(run->tokenizer);
    const int64_t model_vocab = ds_model_get_info(run->model)->vocab_size;
    if ((int64_t)vocab > model_vocab) {
        return ds_fail(run->ctx, DS_ERR_ARG,
                       "the tokenizer has %u ids, the model's vocabulary only %lld (vocab_size)",
                       vocab, (long long)model_vocab);
    }
    DS_TRY(teacher_flags_check_tokens(run->ctx, &o->teacher, run->tokenizer));
    if (train_is_mlm(o)) {
        run->masking = (ds_masking){
            .tokenizer = run->tokenizer, .chance = o->mlm_probability, .mask = 0.8, .word = 0.1};
    }
    if (train_data_has_rows(run) &&
        (o->chat_template != NULL || ds_tokenizer_chat_template(run->tokenizer) != NULL)) {
        DS_TRY(ds_chat_create(run->ctx, run->tokenizer, o->chat_template, &run->chat));
    }
    if (strcmp(o->alpaca, "auto") != 0 && !train_data_has_rows(run)) {
        return ds_fail(run->ctx, DS_ERR_ARG, "--alpaca: no file of --data has rows");
    }
    return data_alpaca(run->ctx, o->alpaca, run->chat, &run->alpaca);
}

/* Steps of an epoch, rounded up; 0 where nothing asks or the configuration says it, since counting
 * may read all the data. A check without data takes any number. */
static int64_t steps_of_epoch(const train_run *run, int64_t rows)
{
    const ds_config_zenflow *z = &dsi_config_values(run->config)->zero.zenflow;
    const bool asks = z->enabled && z->select_by_epoch && z->steps_per_epoch == 0;
    if (!asks || run->train_loader == NULL) {
        return asks ? 1 : 0;
    }
    return ((int64_t)ds_loader_epoch_rows(run->train_loader) + rows - 1) / rows;
}

static ds_engine_params engine_params(const train_run *run)
{
    const train_options *o = run->options;
    const int64_t rows = dsi_config_values(run->config)->batch.train_batch_size;
    return (ds_engine_params){.model = run->model,
                              .config = run->config,
                              .seq_length = run->seq_length,
                              .steps_per_epoch = steps_of_epoch(run, rows),
                              .seed = (uint64_t)o->seed,
                              .decay_all = o->decay_all,
                              .average = strcmp(o->loss_average, "targets") == 0
                                             ? DS_AVERAGE_TARGETS
                                             : DS_AVERAGE_MICRO_BATCHES,
                              .preference = train_has_preference(run) ? &run->preference : NULL,
                              .task = train_task(o),
                              .n_classes = run->n_classes,
                              .task_params = &run->task_params,
                              .comm = run->comm,
                              .accelerator = o->accelerator,
                              .weights = o->model,
                              .frozen = o->freeze.items,
                              .n_frozen = (uint32_t)o->freeze.n,
                              .adapter = run->adapter,
                              .distillation = run->teacher != NULL ? &run->distillation : NULL};
}

static ds_status build_engine(train_run *run)
{
    const train_options *o = run->options;
    const ds_engine_params params = engine_params(run);
    DS_TRY(ds_initialize(run->ctx, &params, &run->engine));
    if (train_task(o) == DS_TASK_CONTRAST) {
        DS_TRY(train_task_describe(run));
    }
    ds_engine_keep_checkpoints(run->engine, (uint32_t)run->options->keep_last);
    DS_TRY(train_preference_reference(run));
    return o->resume_given || o->resume_from != NULL ? train_resume(run) : DS_OK;
}

/* All that is looked at before memory is taken. A check may lack model, data or both. */
static ds_status open_inputs(train_run *run)
{
    const train_options *o = run->options;
    DS_TRY(preference_read(run->ctx, &o->preference, &run->preference));
    const bool has_model = o->model != NULL || o->model_config != NULL;
    DS_TRY(train_data_find(run));
    DS_TRY(train_same_call(run));
    if (o->deepspeed_config != NULL) {
        DS_TRY(train_config_open(run));
    }
    if (has_model) {
        DS_TRY(open_model(run));
    }
    if (o->deepspeed_config == NULL) { /* the default needs the length of a row */
        DS_TRY(train_config_open(run));
    }
    if (run->comm != NULL) { /* of a check there are no ranks */
        DS_TRY(train_same_inputs(run));
    }
    DS_TRY(train_output_check(run));
    if (has_model && o->data.n > 0) {
        DS_TRY(train_tokenizer_open(run));
        DS_TRY(train_data_open(run));
    }
    DS_TRY(train_config_resolve(run));
    return ds_comm_agree(run->comm, run->ctx, train_paths_check_config(run));
}

ds_status train_setup(ds_ctx *ctx, ds_comm *comm, const train_options *options, train_run *run)
{
    *run = (train_run){.ctx = ctx,
                       .comm = comm,
                       .n_ranks = ds_comm_size(comm),
                       .options = options,
                       .started = dsi_clock_seconds()};
    DS_TRY(open_inputs(run));
    DS_TRY(build_engine(run));
    return train_output_open(run); /* a result that cannot be kept is no run */
}

ds_status train_check(ds_ctx *ctx, uint32_t n_ranks, const train_options *options, train_run *run)
{
    *run = (train_run){.ctx = ctx, .n_ranks = n_ranks, .options = options};
    DS_TRY(open_inputs(run));
    if (run->model == NULL) {
        return DS_OK;
    }
    const ds_engine_params params = engine_params(run);
    return dsi_engine_check(ctx, &params, n_ranks);
}

void train_teardown(train_run *run)
{
    ds_engine_destroy(&run->engine);
    ds_loader_destroy(&run->train_loader);
    ds_loader_destroy(&run->eval_loader);
    train_data_close(&run->eval_data);
    train_data_close(&run->train_data);
    ds_chat_destroy(&run->chat);
    ds_tokenizer_close(&run->tokenizer);
    ds_config_destroy(&run->config);
    ds_adapter_destroy(&run->adapter);
    ds_model_destroy(&run->model);
    ds_model_destroy(&run->teacher);
    dsi_data_files_free(&run->eval_files);
    dsi_data_files_free(&run->data_files);
    train_classes_free(run);
    sentence_form_close(&run->form);
    free(run->cache);
}
