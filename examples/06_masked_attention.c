/* SPDX-License-Identifier: Apache-2.0 */
/* Attention written by hand, for models that nn.h has no layer for: sequences of numbers of several
 * lengths, padded; the model learns the largest number of each.
 *
 * Shows: a mask as an input, products of batches, masked scores, a maximum along a dim, comparisons
 * and where. Exits with 1 when the loss did not fall. */
#include <deepspeed/deepspeed.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 32, LENGTH = 12, WIDTH = 24, STEPS = 250 };

static const char config_text[] =
    "{\n"
    "  \"train_batch_size\": 32,\n"
    "  \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 5e-3}}\n"
    "}\n";

/* x (B,T,C), padding i32 (B,1,T), not 0 where a position is no part of the sequence → (B,T,C). */
static ds_value attend(ds_nn *nn, ds_value x, ds_value padding)
{
    const ds_linear_params linear = {.n_out = WIDTH, .init_std = 0.2};
    const ds_value q = ds_nn_linear(nn, "q", x, &linear);
    const ds_value k = ds_nn_linear(nn, "k", x, &linear);
    const ds_value v = ds_nn_linear(nn, "v", x, &linear);
    const ds_value scores = ds_nn_scale(nn, ds_nn_bmm(nn, q, k, true), 1.0 / sqrt(WIDTH));
    const ds_value seen = ds_nn_masked_fill(nn, scores, padding, -1e9); /* (B,T,T) */
    return ds_nn_bmm(nn, ds_nn_softmax(nn, seen), v, false);
}

/* numbers (B,T,1) → value (B,1); loss: distance from target (B,1), squared where it is below 1. */
static void trace_largest(ds_nn *nn, const void *config)
{
    const int64_t n = ds_nn_trace(nn)->batch;
    const ds_linear_params wide = {.n_out = WIDTH, .bias = true, .init_std = 0.5};
    const ds_linear_params last = {.n_out = 1, .bias = true, .init_std = 0.1};
    const ds_value numbers = ds_nn_input(nn, "numbers", DS_DTYPE_F32, ds_shape_3d(n, LENGTH, 1));
    const ds_value padding = ds_nn_input(nn, "padding", DS_DTYPE_I32, ds_shape_3d(n, 1, LENGTH));
    const ds_value target = ds_nn_input(nn, "target", DS_DTYPE_F32, ds_shape_2d(n, 1));
    (void)config;

    ds_value x = ds_nn_activation(nn, ds_nn_linear(nn, "in", numbers, &wide), DS_ACT_SILU);
    x = ds_nn_add(nn, x, attend(nn, x, padding));
    const ds_value column = ds_nn_transpose(nn, padding, 1, 2);                     /* (B,T,1) */
    const ds_value best = ds_nn_max(nn, ds_nn_masked_fill(nn, x, column, -1e9), 1); /* (B,C) */
    const ds_value wrong = ds_nn_sub(nn, ds_nn_linear(nn, "out", best, &last), target);

    const ds_value squares = ds_nn_square(nn, wrong);
    const ds_value size = ds_nn_sqrt(nn, squares);
    const ds_value small = ds_nn_compare_to(nn, size, DS_LESS, 1.0);
    ds_nn_output(nn, "loss", ds_nn_mean_all(nn, ds_nn_where(nn, small, squares, size)));
}

typedef struct sequences {
    uint32_t state;
    float numbers[BATCH * LENGTH], target[BATCH];
    int32_t padding[BATCH * LENGTH];
    ds_named_tensor tensors[3];
} sequences;

static uint32_t draw(sequences *s)
{
    s->state = s->state * 1664525u + 1013904223u;
    return s->state >> 8;
}

/* The target: the largest number. Padding holds numbers that are larger. */
static void draw_sequence(sequences *s, int b)
{
    const int length = 2 + (int)(draw(s) % (LENGTH - 1));
    float largest = -2.0f;
    for (int t = 0; t < LENGTH; ++t) {
        const float x = (float)draw(s) / 8388608.0f - 1.0f; /* in [-1,1) */
        s->padding[b * LENGTH + t] = t >= length;
        s->numbers[b * LENGTH + t] = t >= length ? 9.0f : x;
        largest = t < length && x > largest ? x : largest;
    }
    s->target[b] = largest;
}

/* A ds_batch_fn: fresh sequences each time. */
static ds_status next_sequences(void *user, ds_batch *batch_out)
{
    sequences *s = user;
    for (int b = 0; b < BATCH; ++b) {
        draw_sequence(s, b);
    }
    s->tensors[0] =
        (ds_named_tensor){"numbers", {s->numbers, {DS_DTYPE_F32, ds_shape_3d(BATCH, LENGTH, 1)}}};
    s->tensors[1] =
        (ds_named_tensor){"padding", {s->padding, {DS_DTYPE_I32, ds_shape_3d(BATCH, 1, LENGTH)}}};
    s->tensors[2] = (ds_named_tensor){"target", {s->target, {DS_DTYPE_F32, ds_shape_2d(BATCH, 1)}}};
    *batch_out = (ds_batch){s->tensors, 3};
    return DS_OK;
}

static ds_status train(ds_ctx *ctx, ds_engine *engine)
{
    sequences s = {.state = 1};
    double first = 0.0;
    double loss = 0.0;
    for (int step = 1; step <= STEPS; ++step) {
        DS_TRY(ds_engine_train_batch(engine, next_sequences, &s, &loss));
        first = step == 1 ? loss : first;
        if (step == 1 || step % 50 == 0) {
            (void)printf("step %3d  loss %.5f\n", step, loss);
        }
    }
    if (!(loss < first / 20.0)) {
        return ds_fail(ctx, DS_ERR_NUMERIC, "the loss went from %g to %g only", first, loss);
    }
    return DS_OK;
}

static ds_status run(ds_ctx *ctx, ds_config **config, ds_model **model, ds_engine **engine)
{
    static const ds_model_info info = {.architecture = "largest"};
    DS_TRY(ds_config_load_text(ctx, "largest", config_text, strlen(config_text), NULL, config));
    DS_TRY(ds_config_resolve(*config, 1, NULL));
    DS_TRY(ds_model_custom(ctx, &info, trace_largest, NULL, model));
    const ds_engine_params params = {
        .model = *model, .config = *config, .seq_length = LENGTH, .seed = 7};
    DS_TRY(ds_initialize(ctx, &params, engine));
    return train(ctx, *engine);
}

int main(void)
{
    ds_ctx *ctx = NULL;
    ds_config *config = NULL;
    ds_model *model = NULL;
    ds_engine *engine = NULL;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    const ds_status status = run(ctx, &config, &model, &engine);
    if (status < 0) {
        (void)fprintf(stderr, "06_masked_attention: %s\n", ds_ctx_error(ctx));
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    ds_config_destroy(&config);
    ds_ctx_destroy(&ctx);
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
