/* ds_train: trains a language model. The parts are in tools/common/train*.c. */
#include "common/sample.h"
#include "common/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USE = 2, EXIT_INTERRUPTED = 130 };

static int fail(ds_ctx *ctx, int code)
{
    (void)fprintf(stderr, "ds_train: %s\n", ds_ctx_error(ctx));
    return code;
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
    const ds_dataset_info info = ds_dataset_get_info(run->train_data);
    ds_log(run->ctx, DS_LOG_JOB,
           "data: %llu tokens in %llu documents; %llu steps of %lld rows of %lld tokens",
           (unsigned long long)info.n_tokens, (unsigned long long)info.n_documents,
           (unsigned long long)run->total_steps,
           (long long)ds_config_get(run->config)->batch.train_batch_size,
           (long long)run->seq_length);
    DS_TRY(ds_engine_print_precision(engine, &text));
    ds_log(run->ctx, DS_LOG_JOB, "%s", text);
    free(text);
    if (run->options->print_plan) {
        DS_TRY(ds_engine_print_plan(engine, &text));
        (void)fputs(text, stdout);
        free(text);
    }
    return DS_OK;
}

static ds_status finish(train_run *run)
{
    const train_options *o = run->options;
    if (o->output == NULL) {
        return DS_OK;
    }
    DS_TRY(ds_engine_save_16bit_model(run->engine, o->output, NULL));
    DS_TRY(ds_tokenizer_save(run->ctx, run->tokenizer, o->output));
    ds_log(run->ctx, DS_LOG_JOB, "model folder: %s", o->output);
    if (o->sample != NULL) {
        return sample_from_folder(run->ctx, o->output, o->sample, o->sample_length);
    }
    return DS_OK;
}

static ds_status train(train_run *run, const train_options *options, bool *interrupted)
{
    DS_TRY(train_setup(run->ctx, options, run));
    DS_TRY(describe(run));
    DS_TRY(train_loop(run, interrupted));
    return *interrupted ? DS_OK : finish(run);
}

static int run_with(const train_options *options)
{
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = (uint32_t)options->threads;
    if (ds_ctx_create(&params, &ctx) < 0) {
        (void)fprintf(stderr, "ds_train: no memory\n");
        return EXIT_FAILURE;
    }
    train_run run = {.ctx = ctx};
    bool interrupted = false;
    const ds_status status = train(&run, options, &interrupted);
    int code = status < 0 ? fail(ctx, EXIT_FAILURE) : EXIT_SUCCESS;
    if (status >= 0 && interrupted) {
        (void)fprintf(stderr,
                      "interrupted after step %llu; go on with the same command and "
                      "--resume\n",
                      (unsigned long long)ds_engine_global_steps(run.engine));
        code = EXIT_INTERRUPTED;
    }
    train_teardown(&run);
    ds_ctx_destroy(&ctx);
    return code;
}

int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    train_options options;
    bool help = false;
    params.n_threads = 1; /* only for messages of the command line */
    if (ds_ctx_create(&params, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    const ds_status status = train_options_parse(ctx, argc, argv, &options, &help);
    int code = status < 0 ? fail(ctx, EXIT_USE) : EXIT_SUCCESS;
    ds_ctx_destroy(&ctx);
    if (status >= 0 && !help) {
        code = run_with(&options);
    }
    train_options_free(&options);
    return code;
}
