/* SPDX-License-Identifier: Apache-2.0 */
/* A model of one's own: a small MLP that learns sin(x)·cos(y) from points drawn at random.
 *
 * Shows: a model written with nn.h, a configuration in the program, a batch of plain arrays, and
 * ds_engine_train_batch(); a table of the model's constants, which exports and checkpoints write
 * and a resume compares. Exits with 1 when the loss did not fall. */
#include <deepspeed/deepspeed.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, STEPS = 300 };

static const char config_text[] =
    "{\n"
    "  \"train_batch_size\": 64,\n"
    "  \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-2}},\n"
    "  \"gradient_clipping\": 1.0\n"
    "}\n";

typedef struct mlp_config {
    int64_t width;
} mlp_config;

static const ds_attr mlp_fields[] = {{"width", DS_ATTR_INT, offsetof(mlp_config, width)}};

/* points (B,2) → value (B,1); loss: mean squared difference from target (B,1). */
static void trace_mlp(ds_nn *nn, const void *config)
{
    const mlp_config *c = config;
    const int64_t n = ds_nn_trace(nn)->batch;
    const ds_linear_params hidden = {.n_out = c->width, .bias = true, .init_std = 0.5};
    const ds_linear_params last = {.n_out = 1, .bias = true, .init_std = 0.1};
    const ds_value points = ds_nn_input(nn, "points", DS_DTYPE_F32, ds_shape_2d(n, 2));
    const ds_value target = ds_nn_input(nn, "target", DS_DTYPE_F32, ds_shape_2d(n, 1));

    ds_value x = ds_nn_activation(nn, ds_nn_linear(nn, "in", points, &hidden), DS_ACT_GELU_TANH);
    x = ds_nn_activation(nn, ds_nn_linear(nn, "middle", x, &hidden), DS_ACT_GELU_TANH);
    x = ds_nn_linear(nn, "out", x, &last);

    const ds_value wrong = ds_nn_sub(nn, x, target);
    ds_nn_output(nn, "value", x);
    ds_nn_output(nn, "loss", ds_nn_mean_all(nn, ds_nn_mul(nn, wrong, wrong)));
}

typedef struct points {
    uint32_t state;
    float x[BATCH * 2], y[BATCH];
    ds_named_tensor tensors[2];
} points;

static float draw(points *p) /* in [-2,2) */
{
    p->state = p->state * 1664525u + 1013904223u;
    return (float)(p->state >> 8) / 4194304.0f - 2.0f;
}

/* A ds_batch_fn: fresh points each time. */
static ds_status next_points(void *user, ds_batch *batch_out)
{
    points *p = user;
    for (int i = 0; i < BATCH; ++i) {
        p->x[2 * i] = draw(p);
        p->x[2 * i + 1] = draw(p);
        p->y[i] = sinf(p->x[2 * i]) * cosf(p->x[2 * i + 1]);
    }
    p->tensors[0] = (ds_named_tensor){"points", {p->x, {DS_DTYPE_F32, ds_shape_2d(BATCH, 2)}}};
    p->tensors[1] = (ds_named_tensor){"target", {p->y, {DS_DTYPE_F32, ds_shape_2d(BATCH, 1)}}};
    *batch_out = (ds_batch){p->tensors, 2};
    return DS_OK;
}

static ds_status train(ds_ctx *ctx, ds_engine *engine)
{
    points p = {.state = 1};
    double first = 0.0;
    double loss = 0.0;
    for (int step = 1; step <= STEPS; ++step) {
        DS_TRY(ds_engine_train_batch(engine, next_points, &p, &loss));
        if (step == 1) {
            first = loss;
        }
        if (step == 1 || step % 50 == 0) {
            (void)printf("step %3d  loss %.5f\n", step, loss);
        }
    }
    if (!(loss < first / 4.0)) {
        return ds_fail(ctx, DS_ERR_NUMERIC, "the loss went from %g to %g only", first, loss);
    }
    return DS_OK;
}

static ds_status run(ds_ctx *ctx, ds_config **config, ds_model **model, ds_engine **engine)
{
    static const mlp_config mlp = {.width = 32};
    const ds_model_info info = {.architecture = "mlp", .fields = mlp_fields, .n_fields = 1};
    DS_TRY(ds_config_load_text(ctx, "mlp", config_text, strlen(config_text), NULL, config));
    DS_TRY(ds_config_resolve(*config, 1, NULL));
    DS_TRY(ds_model_custom(ctx, &info, trace_mlp, &mlp, model));
    const ds_engine_params params = {
        .model = *model, .config = *config, .seq_length = 1, .seed = 7};
    DS_TRY(ds_initialize(ctx, &params, engine));
    (void)printf("%s\n", ds_model_config_text(*model));
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
        (void)fprintf(stderr, "01_custom_model: %s\n", ds_ctx_error(ctx));
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    ds_config_destroy(&config);
    ds_ctx_destroy(&ctx);
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
