/* SPDX-License-Identifier: Apache-2.0 */
/* Small models on an accelerator and on the processor: losses of a few steps and the text that
 * follows, through the library's own calls. See accel_conform.h.
 */
#include "common/accel_conform.h"

#include <deepspeed/infer.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 2, SEQ = 40, VOCABULARY = 97, STEPS = 4, PROMPT = 9, NEW = 8 };

static const char *const models[] = {
    "{\"model_type\":\"gpt2\",\"vocab_size\":97,\"n_positions\":64,\"n_embd\":32,\"n_layer\":2,"
    "\"n_head\":4,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}",
    "{\"model_type\":\"llama\",\"vocab_size\":97,\"hidden_size\":32,\"intermediate_size\":72,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}"};

enum { MODELS = sizeof models / sizeof models[0] };

static ds_status open_model(ds_ctx *ctx, const char *text, ds_model **model_out)
{
    char path[] = "/tmp/ds_accel_test.XXXXXX";
    const int file = mkstemp(path);
    const bool written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
    if (file >= 0) {
        (void)close(file);
    }
    const ds_status status =
        written ? ds_model_from_config(ctx, path, model_out)
                : ds_fail(ctx, DS_ERR_IO, "cannot write a file in /tmp for a small model");
    if (file >= 0) {
        (void)unlink(path);
    }
    return status;
}

static ds_status open_engine(ds_ctx *ctx, const ds_model *model, const char *accelerator,
                             ds_engine **engine_out)
{
    static const char text[] = "{\"train_micro_batch_size_per_gpu\":2,\"gradient_accumulation_"
                               "steps\":1,\"gradient_clipping\":0.5,\"optimizer\":{\"type\":"
                               "\"AdamW\",\"params\":{\"lr\":0.001}}}";
    ds_config *config = NULL;
    DS_TRY(ds_config_load_text(ctx, "ds_accel_test", text, strlen(text), NULL, &config));
    ds_status status = ds_config_resolve(config, 1, NULL);
    const ds_engine_params params = {
        .model = model, .config = config, .seq_length = SEQ, .seed = 3, .accelerator = accelerator};
    status = status < 0 ? status : ds_initialize(ctx, &params, engine_out);
    ds_config_destroy(&config);
    return status;
}

static ds_status train(ds_engine *engine, double *losses)
{
    static const char *const names[4] = {"input_ids", "targets", "positions", "first"};
    int32_t data[4][BATCH * SEQ];
    ds_named_tensor tensors[4];
    for (int i = 0; i < 4; ++i) {
        const ds_meta meta = {DS_DTYPE_I32, {.n_dims = 2, .dims = {BATCH, SEQ}}};
        tensors[i] = (ds_named_tensor){names[i], {data[i], meta}};
    }
    const ds_batch batch = {tensors, 4};
    for (int32_t step = 0; step < STEPS; ++step) {
        for (int32_t i = 0; i < BATCH * SEQ; ++i) {
            data[0][i] = (i * 37 + step * 11) % VOCABULARY;
            data[1][i] = (i * 37 + step * 11 + 37) % VOCABULARY;
            data[2][i] = i % SEQ;
            data[3][i] = 0;
        }
        DS_TRY(ds_engine_forward(engine, &batch));
        DS_TRY(ds_engine_backward(engine));
        DS_TRY(ds_engine_step(engine));
        losses[step] = ds_engine_loss(engine);
    }
    return DS_OK;
}

static void name_of(const accel_conform *c, char *text, size_t n)
{
    (void)snprintf(text, n, "%s%s%s", c->choice->name, c->choice->options[0] != '\0' ? ":" : "",
                   c->choice->options);
}

static ds_status losses_of(accel_conform *c, const ds_model *model, const char *accelerator,
                           double *losses)
{
    ds_engine *engine = NULL;
    DS_TRY(open_engine(c->ctx, model, accelerator, &engine));
    const ds_status status = train(engine, losses);
    ds_engine_destroy(&engine);
    return status;
}

/* Products in another order may round otherwise; with fp32 and these sizes not by more than this.
 */
static ds_status compare_losses(accel_conform *c, const double *got, const double *expected)
{
    static const double tolerance = 2e-4;
    for (int i = 0; i < STEPS; ++i) {
        if (!(fabs(got[i] - expected[i]) <= tolerance * expected[i])) {
            return ds_fail(c->ctx, DS_ERR_NUMERIC, "loss of step %d: %.9g, expected %.9g", i + 1,
                           got[i], expected[i]);
        }
    }
    return DS_OK;
}

ds_status accel_conform_train(accel_conform *c)
{
    char name[DSI_ACCEL_OPTIONS + DSI_ACCEL_NAME + 2];
    name_of(c, name, sizeof name);
    for (int m = 0; m < MODELS; ++m) {
        double got[STEPS];
        double expected[STEPS];
        ds_model *model = NULL;
        DS_TRY(open_model(c->ctx, models[m], &model));
        ds_status status = losses_of(c, model, name, got);
        status = status < 0 ? status : losses_of(c, model, "cpu", expected);
        status = status < 0 ? status : compare_losses(c, got, expected);
        ds_model_destroy(&model);
        DS_TRY(status);
    }
    return DS_OK;
}

static ds_status tokens_of(accel_conform *c, ds_engine *engine, const char *accelerator,
                           uint32_t *tokens)
{
    uint32_t prompt[PROMPT];
    ds_generator *generator = NULL;
    const ds_sampling greedy = {0};
    const ds_generator_params params = {
        .engine = engine, .max_length = SEQ, .accelerator = accelerator};
    for (uint32_t i = 0; i < PROMPT; ++i) {
        prompt[i] = i * 31 % VOCABULARY;
    }
    DS_TRY(ds_generator_create(c->ctx, &params, &generator));
    ds_status status = ds_generator_prompt(generator, prompt, PROMPT);
    for (int i = 0; i < NEW && status >= 0; ++i) {
        status = ds_generator_next(generator, &greedy, &tokens[i]);
    }
    ds_generator_destroy(&generator);
    return status;
}

static ds_status generate(accel_conform *c, const ds_model *model, const char *name)
{
    uint32_t got[NEW] = {0};
    uint32_t expected[NEW] = {0};
    double losses[STEPS];
    ds_engine *engine = NULL;
    DS_TRY(open_engine(c->ctx, model, "cpu", &engine));
    ds_status status = train(engine, losses);
    status = status < 0 ? status : tokens_of(c, engine, name, got);
    status = status < 0 ? status : tokens_of(c, engine, "cpu", expected);
    ds_engine_destroy(&engine);
    for (int i = 0; i < NEW && status >= 0; ++i) {
        if (got[i] != expected[i]) {
            status = ds_fail(c->ctx, DS_ERR_NUMERIC, "token %d: %u, expected %u", i + 1, got[i],
                             expected[i]);
        }
    }
    return status;
}

ds_status accel_conform_generate(accel_conform *c)
{
    char name[DSI_ACCEL_OPTIONS + DSI_ACCEL_NAME + 2];
    name_of(c, name, sizeof name);
    for (int m = 0; m < MODELS; ++m) {
        ds_model *model = NULL;
        DS_TRY(open_model(c->ctx, models[m], &model));
        const ds_status status = generate(c, model, name);
        ds_model_destroy(&model);
        DS_TRY(status);
    }
    return DS_OK;
}
