/* SPDX-License-Identifier: Apache-2.0 */
/* ds_train: trains a language model. The parts are in tools/common/train*.c. */
#include "base/processor.h"
#include "comm/comm.h"
#include "common/environment.h"
#include "common/output.h"
#include "common/sample.h"
#include "common/train.h"
#include "config/config_values.h"
#include "io/file.h"
#include "model/adapter_problem.h"
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USE = 2, EXIT_INTERRUPTED = 130, FAILURE_BYTES = 8192 };

static const char warmup_path[] = "scheduler.params.warmup_num_steps";

static int fail(ds_ctx *ctx, int code)
{
    (void)fprintf(stderr, "ds_train: %s\n", ds_ctx_error(ctx));
    return code;
}

/* What failed: a step, or something before or after the last that the run took. */
static void tell_failure(const train_run *run, char *text, size_t n)
{
    const unsigned long long taken = run->training ? train_steps_done(run) : 0;
    if (taken == 0 && !run->stepping) {
        (void)snprintf(text, n, "%s", ds_ctx_error(run->ctx));
    } else if (run->stepping) {
        (void)snprintf(text, n, "in training step %llu: %s", taken + 1, ds_ctx_error(run->ctx));
    } else {
        (void)snprintf(text, n, "after step %llu: %s", taken, ds_ctx_error(run->ctx));
    }
}

/* What updates the weights, whoever chose it. */
static void describe_update(const train_run *run)
{
    const ds_config_values *v = dsi_config_values(run->config);
    const ds_config_optimizer *o = &v->optimizer;
    const ds_schedule_params *s = &v->scheduler;
    const bool adamw = o->kind == DS_OPTIMIZER_ADAM && o->decoupled;
    char warmup[96] = "";
    char matrices[48] = "";
    if (s->kind != DS_SCHEDULE_NONE && ds_config_find(run->config, warmup_path) != NULL) {
        (void)snprintf(warmup, sizeof warmup, ", warm-up of %lld in %llu steps",
                       (long long)s->warmup_num_steps, (unsigned long long)run->total_steps);
    }
    if (o->kind == DS_OPTIMIZER_MUON) {
        (void)snprintf(matrices, sizeof matrices, " (of matrices %g)", o->muon_lr);
    }
    ds_log(run->ctx, DS_LOG_JOB, "optimizer: %s, rate %g%s, weight decay %g; schedule: %s%s",
           adamw ? "AdamW" : ds_optimizer_kind_name(o->kind), o->lr, matrices, o->weight_decay,
           s->kind == DS_SCHEDULE_NONE ? "none, a constant rate" : ds_schedule_kind_name(s->kind),
           warmup);
}

static ds_status describe(train_run *run)
{
    char *text = NULL;
    const ds_engine *engine = run->engine;
    ds_log(run->ctx, DS_LOG_JOB, "%s: %.2f M parameters (%.2f M trainable), %.0f MiB planned",
           ds_model_get_info(run->model)->architecture,
           (double)ds_engine_n_parameters(engine) / 1e6,
           (double)ds_engine_n_trainable(engine) / 1e6,
           (double)ds_engine_planned_bytes(engine) / 1048576.0);
    const ds_dataset_info info = train_data_info(&run->train_data);
    ds_log(run->ctx, DS_LOG_JOB,
           "data: %llu tokens in %llu documents; %llu steps of %lld %s of %lld tokens",
           (unsigned long long)info.n_tokens, (unsigned long long)info.n_documents,
           (unsigned long long)run->total_steps,
           (long long)dsi_config_values(run->config)->batch.train_batch_size,
           info.rows == DS_ROWS_PAIRS ? "pairs of rows" : "rows", (long long)run->seq_length);
    describe_update(run);
    DS_TRY(ds_engine_print_precision(engine, &text));
    ds_log(run->ctx, DS_LOG_JOB, "%s", text);
    free(text);
    if (ds_comm_size(run->comm) > 1) {
        DS_TRY(ds_engine_print_memory(engine, &text));
        ds_log(run->ctx, DS_LOG_JOB, "%s", text);
        free(text);
    }
    if (run->options->print_plan) {
        DS_TRY(ds_engine_print_plan(engine, &text));
        (void)fputs(text, stdout);
        free(text);
    }
    return DS_OK;
}

/* How the model is to be sampled is of the model, whatever its tokenizer. */
static ds_status copy_generation(const train_run *run)
{
    static const char name[] = "generation_config.json";
    const train_options *o = run->options;
    char *from = o->model != NULL ? dsi_path_join(o->model, name) : NULL;
    char *to = dsi_path_join(o->output, name);
    ds_status status = DS_OK;
    if (from != NULL && to != NULL && access(from, F_OK) == 0) {
        status = dsi_file_copy(run->ctx, from, to);
    }
    free(from);
    free(to);
    return status;
}

/* PEFT's folder, with the tokenizer beside it. */
static ds_status finish_adapter(train_run *run)
{
    const train_options *o = run->options;
    DS_TRY(train_best_load(run));
    DS_TRY(ds_engine_save_adapter(run->engine, o->output));
    if (ds_comm_rank(run->comm) == 0) {
        if (train_task(o) == DS_TASK_SEQUENCE_CLASSES) {
            DS_TRY(
                dsi_adapter_problem_write(run->ctx, o->output, ds_model_config_text(run->model)));
        }
        DS_TRY(ds_tokenizer_save(run->ctx, run->tokenizer, o->output));
        ds_log(run->ctx, DS_LOG_JOB, "adapter: %s", o->output);
    }
    return DS_OK;
}

static ds_status finish(train_run *run)
{
    const train_options *o = run->options;
    const ds_config_zero *zero = &dsi_config_values(run->config)->zero;
    if (o->output == NULL || o->trial) {
        return DS_OK;
    }
    if (run->adapter != NULL) {
        return finish_adapter(run);
    }
    if (zero->stage == 3 && ds_comm_size(run->comm) > 1 &&
        !zero->gather_16bit_weights_on_model_save) {
        char tag[64] = "";
        if (o->load_best) {
            (void)snprintf(tag, sizeof tag, " global_step%llu", (unsigned long long)run->best.step);
        }
        ds_log(run->ctx, DS_LOG_WARN,
               "no model folder is written: zero_optimization."
               "stage3_gather_16bit_weights_on_model_save is false. \"ds_checkpoint export %s "
               "FOLDER%s\" "
               "makes one of the checkpoint",
               o->output, tag);
        return DS_OK;
    }
    DS_TRY(train_best_load(run));
    /* Files of the model folder that this library has no use for, unless of another tokenizer. */
    DS_TRY(
        ds_engine_save_16bit_model(run->engine, o->output, o->tokenizer == NULL ? o->model : NULL));
    DS_TRY(train_dense_end(run));
    if (ds_comm_rank(run->comm) != 0) {
        return DS_OK;
    }
    DS_TRY(copy_generation(run));
    DS_TRY(ds_tokenizer_save(run->ctx, run->tokenizer, o->output));
    if (train_task(o) == DS_TASK_CONTRAST) {
        DS_TRY(sentence_folder_write(run->ctx, o->output, run->engine->embeddings, train_dense_read,
                                     run));
    }
    ds_log(run->ctx, DS_LOG_JOB, "model folder: %s", o->output);
    if (o->sample != NULL) {
        return sample_from_folder(run->ctx, o->output, o->sample, o->sample_length, o->accelerator);
    }
    return DS_OK;
}

/* The log of collectives, when the configuration asks for one. */
static ds_status print_comms(const train_run *run)
{
    char *text = NULL;
    if (run->comm == NULL || !dsi_config_values(run->config)->comms_logger.enabled) {
        return DS_OK;
    }
    const bool alike = dsi_config_values(run->config)->pipeline_stages < 2;
    DS_TRY(ds_comm_log_summary(run->comm, alike, &text));
    if (ds_comm_rank(run->comm) == 0) {
        (void)fputs(text, stdout);
        (void)fputs(alike ? "" : "no straggler effect: stages make collectives of their own\n",
                    stdout);
        (void)fflush(stdout);
    }
    free(text);
    return DS_OK;
}

static ds_status train(train_run *run, ds_comm *comm, const train_options *options,
                       bool *interrupted)
{
    DS_TRY(train_setup(run->ctx, comm, options, run));
    if (ds_comm_rank(comm) == 0) {
        DS_TRY(describe(run));
    }
    DS_TRY(train_trace_start(run));
    run->training = true;
    DS_TRY(train_loop(run, interrupted));
    run->training = false;
    DS_TRY(print_comms(run));
    return *interrupted ? DS_OK : finish(run);
}

static int run_with(train_options *options, const ds_ctx_params *params)
{
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(params, &ctx) < 0) {
        (void)fprintf(stderr, "ds_train: no memory\n");
        return EXIT_FAILURE;
    }
    train_run run = {.ctx = ctx};
    ds_comm *comm = NULL;
    bool interrupted = false;
    ds_status status = ds_comm_open(ctx, &comm);
    if (status >= 0) {
        status = ds_comm_agree(comm, ctx, train_options_find(ctx, options, DS_HUB_MODEL));
    }
    status = status < 0 ? status : train(&run, comm, options, &interrupted);
    int code = EXIT_SUCCESS;
    char why[FAILURE_BYTES];
    if (status < 0) {
        tell_failure(&run, why, sizeof why);
        (void)fprintf(stderr, "ds_train: %s\n", why);
        ds_comm_abort(comm, ds_ctx_error(ctx));
        code = EXIT_FAILURE;
    }
    if (status >= 0 && interrupted && params->rank == 0) {
        (void)fprintf(stderr,
                      "interrupted after step %llu; go on with the same command and "
                      "--resume\n",
                      (unsigned long long)ds_engine_global_steps(run.engine));
    }
    if (train_history_end(&run, interrupted, status < 0 ? why : NULL) < 0 && status >= 0) {
        (void)fprintf(stderr, "ds_train: the run ended well, but its history is not whole: %s\n",
                      ds_ctx_error(ctx));
        code = EXIT_FAILURE;
    }
    if (run.lost != NULL && status >= 0) {
        if (params->rank == 0) {
            (void)fprintf(stderr, "ds_train: the run ended well, but %s\n", run.lost);
        }
        code = EXIT_FAILURE;
    }
    free(run.lost);
    train_output_close(&run, status >= 0);
    code = code == EXIT_SUCCESS && interrupted ? EXIT_INTERRUPTED : code;
    train_teardown(&run);
    ds_comm_close(&comm);
    ds_ctx_destroy(&ctx);
    return code;
}

int main(int argc, char **argv)
{
    output_guard("ds_train");
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    ds_ctx_params run_params;
    train_options options;
    bool help = false;
    params.n_threads = 1; /* only for messages of the command line */
    if (ds_ctx_create(&params, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    ds_status status = train_options_parse(ctx, argc, argv, &options, &help);
    if (status >= 0 && !help) {
        status = environment_context(ctx, options.threads, &run_params, &options.local_rank);
    }
    int code = status < 0 ? fail(ctx, EXIT_USE) : EXIT_SUCCESS;
    ds_ctx_destroy(&ctx);
    if (status >= 0 && !help) {
        code = run_with(&options, &run_params);
    }
    train_options_free(&options);
    return code;
}
