/* SPDX-License-Identifier: Apache-2.0 */
/* DPO: a model learns which of two answers is the better one, from pairs of them.
 *
 *     07_preferences CONFIG.json PAIRS.jsonl
 *
 * CONFIG.json is a model's, of random weights here; those of a folder are ds_engine_params.weights.
 * A row has "prompt", "chosen" and "rejected". A quarter of them is held out: the accuracy is how
 * many of these pairs the model has right. Under `deepspeed --num_gpus 2` two ranks share the work.
 */
#include <deepspeed/preference_engine.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 64, STEPS = 30 };

static const char config_text[] =
    "{\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2,\n"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 5e-4}}}\n";

typedef struct tuning {
    ds_ctx *ctx;
    ds_comm *comm;
    ds_config *config;
    ds_model *model;
    ds_tokenizer *tokenizer;
    ds_dataset *pairs, *held_out;
    ds_loader *loader, *tests;
    ds_engine *engine;
    ds_preference loss;
    ds_preference_inputs inputs; /* of the newest batch */
} tuning;

static ds_status open_data(tuning *t, const char *path)
{
    const char *const files[] = {path};
    const ds_dataset_params params = {.files = files,
                                      .n_files = 1,
                                      .tokenizer = t->tokenizer,
                                      .seq_length = SEQ,
                                      .rows = DS_ROWS_PAIRS};
    DS_TRY(ds_dataset_open(t->ctx, &params, &t->pairs));
    DS_TRY(ds_dataset_split(t->pairs, 0.25, &t->held_out));
    ds_comm *data = ds_engine_data_comm(t->engine);
    ds_loader_params loader = {.batch = ds_engine_micro_batch(t->engine),
                               .seq_length = SEQ,
                               .seed = 1,
                               .shuffle = true,
                               .rank = ds_comm_rank(data),
                               .n_ranks = ds_comm_size(data),
                               .preference = &t->loss};
    DS_TRY(ds_loader_create(t->ctx, t->pairs, &loader, &t->loader));
    loader.shuffle = false;
    return ds_loader_create(t->ctx, t->held_out, &loader, &t->tests);
}

static ds_status open_tuning(tuning *t, char **argv)
{
    t->loss = ds_preference_default(DS_PREFERENCE_SIGMOID);
    DS_TRY(ds_config_load_text(t->ctx, "preferences", config_text, strlen(config_text), NULL,
                               &t->config));
    DS_TRY(ds_config_resolve(t->config, ds_comm_size(t->comm), NULL));
    DS_TRY(ds_model_from_config(t->ctx, argv[1], &t->model));
    DS_TRY(ds_tokenizer_open(t->ctx, "bytes", &t->tokenizer));
    const ds_engine_params engine = {.model = t->model,
                                     .config = t->config,
                                     .seq_length = SEQ,
                                     .seed = 1,
                                     .comm = t->comm,
                                     .preference = &t->loss};
    DS_TRY(ds_initialize(t->ctx, &engine, &t->engine));
    DS_TRY(open_data(t, argv[2]));
    /* What the answers are compared with: the model as it is now. */
    DS_TRY(ds_engine_reference(t->engine, t->pairs));
    return ds_engine_reference(t->engine, t->held_out);
}

/* A ds_batch_fn. */
static ds_status next_pairs(void *user, ds_batch *batch_out)
{
    tuning *t = user;
    ds_loader_batch rows;
    DS_TRY(ds_loader_next(t->loader, &rows));
    DS_TRY(ds_engine_preference_batch(t->engine, &rows, &t->inputs));
    *batch_out = t->inputs.batch;
    return DS_OK;
}

/* Held-out pairs whose chosen answer has become likelier than the rejected one. */
static ds_status test(tuning *t, double *accuracy_out)
{
    bool done = false;
    ds_loader_rewind(t->tests);
    for (;;) {
        ds_loader_batch rows;
        DS_TRY(ds_loader_next_once(t->tests, &rows, &done));
        if (done) {
            break;
        }
        DS_TRY(ds_engine_preference_batch(t->engine, &rows, &t->inputs));
        DS_TRY(ds_engine_eval_batch(t->engine, &t->inputs.batch, NULL, NULL));
    }
    const ds_preference_sums s = ds_engine_preference_sums(t->engine, true);
    double sums[2] = {s.accuracies, s.n_chosen};
    DS_TRY(ds_comm_sum(ds_engine_data_comm(t->engine), sums, 2));
    *accuracy_out = sums[0] / sums[1];
    return DS_OK;
}

static ds_status train(tuning *t)
{
    double loss = 0.0;
    double accuracy = 0.0;
    for (int step = 1; step <= STEPS; ++step) {
        DS_TRY(ds_engine_train_batch(t->engine, next_pairs, t, &loss));
        if (step % 10 == 0) {
            DS_TRY(test(t, &accuracy));
            if (ds_comm_rank(t->comm) == 0) {
                (void)printf("step %2d  loss %.4f  held-out accuracy %.2f\n", step, loss, accuracy);
            }
        }
    }
    return accuracy > 0.9 ? DS_OK
                          : ds_fail(t->ctx, DS_ERR_NUMERIC, "the accuracy is only %g", accuracy);
}

int main(int argc, char **argv)
{
    tuning t = {0};
    if (argc != 3 || ds_ctx_create(NULL, &t.ctx) < 0) {
        (void)fprintf(stderr, "usage: 07_preferences CONFIG.json PAIRS.jsonl\n");
        return EXIT_FAILURE;
    }
    ds_status status = ds_comm_open(t.ctx, &t.comm);
    status = status < 0 ? status : open_tuning(&t, argv);
    status = status < 0 ? status : train(&t);
    if (status < 0) {
        (void)fprintf(stderr, "07_preferences: %s\n", ds_ctx_error(t.ctx));
        ds_comm_abort(t.comm, ds_ctx_error(t.ctx));
    }
    ds_loader_destroy(&t.loader);
    ds_loader_destroy(&t.tests);
    ds_dataset_close(&t.held_out);
    ds_dataset_close(&t.pairs);
    ds_engine_destroy(&t.engine);
    ds_tokenizer_close(&t.tokenizer);
    ds_model_destroy(&t.model);
    ds_config_destroy(&t.config);
    ds_comm_close(&t.comm);
    ds_ctx_destroy(&t.ctx);
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
