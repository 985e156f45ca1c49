/* SPDX-License-Identifier: Apache-2.0 */
/* Fine-tunes a Hugging Face model folder on a .jsonl file and saves it as such a folder again.
 *
 *     03_fine_tune MODEL DATA.jsonl OUTPUT [TOKENIZER]
 *
 * Shows: model, tokenizer, data and engine put together by hand, as ds_train does, and a sample
 * by the engine's own weights. TOKENIZER is a folder or "bytes"; default: that of MODEL. Exits with
 * 1 when the loss did not fall. */
#include <deepspeed/data.h>
#include <deepspeed/infer.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ_LENGTH = 32, STEPS = 20, PATH_BYTES = 4096 };

static const char config_text[] =
    "{\n"
    "  \"train_micro_batch_size_per_gpu\": 4,\n"
    "  \"gradient_accumulation_steps\": 2,\n"
    "  \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 2e-3}},\n"
    "  \"gradient_clipping\": 1.0,\n"
    "  \"bf16\": {\"enabled\": true}\n"
    "}\n";

/* Everything of the run, in the order in which it is made. */
typedef struct tuning {
    ds_config *config;
    ds_model *model;
    ds_tokenizer *tokenizer;
    ds_chat *chat;
    ds_dataset *data;
    ds_loader *loader;
    ds_engine *engine;
    ds_named_tensor tensors[4];
} tuning;

static void close_tuning(tuning *t)
{
    ds_engine_destroy(&t->engine);
    ds_loader_destroy(&t->loader);
    ds_dataset_close(&t->data);
    ds_chat_destroy(&t->chat);
    ds_tokenizer_close(&t->tokenizer);
    ds_model_destroy(&t->model);
    ds_config_destroy(&t->config);
}

static ds_status open_data(ds_ctx *ctx, tuning *t, const char *file)
{
    if (ds_tokenizer_chat_template(t->tokenizer) != NULL) { /* needed for "messages" only */
        DS_TRY(ds_chat_create(ctx, t->tokenizer, NULL, &t->chat));
    }
    const ds_dataset_params params = {.files = &file,
                                      .n_files = 1,
                                      .tokenizer = t->tokenizer,
                                      .chat = t->chat,
                                      .seq_length = SEQ_LENGTH};
    DS_TRY(ds_dataset_open(ctx, &params, &t->data));
    const ds_dataset_info info = ds_dataset_get_info(t->data);
    const int64_t vocab = ds_model_get_info(t->model)->vocab_size;
    if ((int64_t)info.max_id >= vocab) {
        return ds_fail(ctx, DS_ERR_ARG, "%s holds token %u, the model knows %lld", file,
                       info.max_id, (long long)vocab);
    }
    return DS_OK;
}

static ds_status open_tuning(ds_ctx *ctx, tuning *t, const char *folder, const char *file,
                             const char *tokenizer)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    DS_TRY(
        ds_config_load_text(ctx, "fine_tune", config_text, strlen(config_text), NULL, &t->config));
    DS_TRY(ds_config_resolve(t->config, 1, NULL));
    DS_TRY(ds_model_from_config(ctx, path, &t->model));
    DS_TRY(ds_tokenizer_open(ctx, tokenizer, &t->tokenizer));
    DS_TRY(open_data(ctx, t, file));
    ds_loader_params loader = {.seq_length = SEQ_LENGTH, .seed = 1, .shuffle = true};
    DS_TRY(ds_config_get_int(t->config, "train_micro_batch_size_per_gpu", &loader.batch));
    DS_TRY(ds_loader_create(ctx, t->data, &loader, &t->loader));
    const ds_engine_params engine = {.model = t->model,
                                     .config = t->config,
                                     .seq_length = SEQ_LENGTH,
                                     .seed = 1,
                                     .weights = folder};
    return ds_initialize(ctx, &engine, &t->engine);
}

/* A ds_batch_fn: the loader's next rows under the names of the model's inputs. */
static ds_status next_rows(void *user, ds_batch *batch_out)
{
    tuning *t = user;
    ds_loader_batch rows;
    DS_TRY(ds_loader_next(t->loader, &rows));
    t->tensors[0] = (ds_named_tensor){"input_ids", rows.input_ids};
    t->tensors[1] = (ds_named_tensor){"targets", rows.targets};
    t->tensors[2] = (ds_named_tensor){"positions", rows.positions};
    t->tensors[3] = (ds_named_tensor){"first", rows.first};
    *batch_out = (ds_batch){t->tensors, 4};
    return DS_OK;
}

static ds_status train(ds_ctx *ctx, tuning *t)
{
    double first = 0.0;
    double loss = 0.0;
    for (int step = 1; step <= STEPS; ++step) {
        DS_TRY(ds_engine_train_batch(t->engine, next_rows, t, &loss));
        if (step == 1) {
            first = loss;
        }
        (void)printf("step %2d  loss %.4f  lr %g\n", step, loss, ds_engine_lr(t->engine));
    }
    if (!(loss < first)) {
        return ds_fail(ctx, DS_ERR_NUMERIC, "the loss went from %g to %g", first, loss);
    }
    return DS_OK;
}

/* What the tuned model says, by the engine's weights as they are now: nothing is saved for it. */
static ds_status speak(const tuning *t, ds_generator *generator)
{
    enum { N_IDS = 24 };
    uint32_t ids[N_IDS] = {'T'};
    const ds_sampling sampling = {.temperature = 0.7, .seed = 1};
    char *text = NULL;
    size_t n = 0;
    DS_TRY(ds_generator_prompt(generator, ids, 1));
    for (int i = 1; i < N_IDS; ++i) {
        DS_TRY(ds_generator_next(generator, &sampling, &ids[i]));
        ids[i] = ids[i] < ds_tokenizer_vocab_size(t->tokenizer) ? ids[i] : '?';
    }
    DS_TRY(ds_tokenizer_decode(t->tokenizer, ids, N_IDS, DS_DECODE_REPAIR, &text, &n));
    (void)printf("says: %s\n", text);
    free(text);
    return DS_OK;
}

static ds_status generate(ds_ctx *ctx, const tuning *t)
{
    ds_generator *generator = NULL;
    const ds_generator_params params = {.engine = t->engine};
    DS_TRY(ds_generator_create(ctx, &params, &generator));
    const ds_status status = speak(t, generator);
    ds_generator_destroy(&generator);
    return status;
}

static ds_status run(ds_ctx *ctx, tuning *t, char **argv, const char *tokenizer)
{
    DS_TRY(open_tuning(ctx, t, argv[1], argv[2], tokenizer));
    DS_TRY(train(ctx, t));
    DS_TRY(generate(ctx, t));
    DS_TRY(ds_engine_save_16bit_model(t->engine, argv[3], NULL));
    return ds_tokenizer_save(ctx, t->tokenizer, argv[3]);
}

int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    tuning t = {0};
    if (argc < 4 || argc > 5) {
        (void)fprintf(stderr, "usage: 03_fine_tune MODEL DATA.jsonl OUTPUT [TOKENIZER]\n");
        return 2;
    }
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    const ds_status status = run(ctx, &t, argv, argc == 5 ? argv[4] : argv[1]);
    if (status < 0) {
        (void)fprintf(stderr, "03_fine_tune: %s\n", ds_ctx_error(ctx));
    }
    close_tuning(&t);
    ds_ctx_destroy(&ctx);
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
