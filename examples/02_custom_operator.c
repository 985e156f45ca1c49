/* SPDX-License-Identifier: Apache-2.0 */
/* An operator of one's own, with a kernel in plain C: snake(x) = x + sin²(a·x)/a.
 *
 * Shows: attributes, the shape rule, a gradient rule made of a second own operator and the built-in
 * "mul", what it is (class, place rule), kernels that run on the context's threads, and the
 * operator inside a model. Exits with 1 when the loss did not fall. */
#include <deepspeed/engine.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, STEPS = 200, TASK = 4096 };

static const char config_text[] =
    "{\n"
    "  \"train_batch_size\": 64,\n"
    "  \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 5e-3}}\n"
    "}\n";

/* ---- the operator ------------------------------------------------------------------------- */

typedef struct snake_attrs {
    double a; /* frequency, above 0 */
} snake_attrs;

static const ds_attr snake_fields[] = {{"a", DS_ATTR_REAL, offsetof(snake_attrs, a)}};

/* x f32 of any shape → the same. */
static ds_status snake_infer(ds_infer *call)
{
    const snake_attrs *attrs = call->attrs;
    if (call->in[0].dtype != DS_DTYPE_F32) {
        return ds_fail(call->ctx, DS_ERR_SHAPE, "%s: x is %s, expected f32", call->op->name,
                       ds_dtype_name(call->in[0].dtype));
    }
    if (!(attrs->a > 0.0)) {
        return ds_fail(call->ctx, DS_ERR_ARG, "%s: a is %g, expected > 0", call->op->name,
                       attrs->a);
    }
    call->out[0] = call->in[0];
    return DS_OK;
}

typedef struct snake_work {
    const float *x;
    float *y;
    int64_t n;
    float a;
} snake_work;

static void snake_task(void *arg, uint32_t task, uint32_t thread)
{
    const snake_work *w = arg;
    const int64_t begin = (int64_t)task * TASK;
    const int64_t end = begin + TASK < w->n ? begin + TASK : w->n;
    (void)thread;
    for (int64_t i = begin; i < end; ++i) {
        const float s = sinf(w->a * w->x[i]);
        w->y[i] = w->x[i] + s * s / w->a;
    }
}

static void slope_task(void *arg, uint32_t task, uint32_t thread)
{
    const snake_work *w = arg;
    const int64_t begin = (int64_t)task * TASK;
    const int64_t end = begin + TASK < w->n ? begin + TASK : w->n;
    (void)thread;
    for (int64_t i = begin; i < end; ++i) {
        w->y[i] = 1.0f + sinf(2.0f * w->a * w->x[i]);
    }
}

static ds_status run_tasks(const ds_kernel_call *call, void (*fn)(void *, uint32_t, uint32_t))
{
    const snake_attrs *attrs = call->sig->attrs;
    snake_work w = {.x = call->in[0].data,
                    .y = call->out[0].data,
                    .n = ds_shape_count(call->in[0].meta.shape),
                    .a = (float)attrs->a};
    ds_parallel(call->ctx, fn, &w, (uint32_t)((w.n + TASK - 1) / TASK));
    return DS_OK;
}

static ds_status snake_run(const ds_kernel_call *call)
{
    return run_tasks(call, snake_task);
}

static ds_status slope_run(const ds_kernel_call *call)
{
    return run_tasks(call, slope_task);
}

static const ds_kernel slope_kernel = {
    .version = DS_OP_VERSION, .name = "ref", .op = "snake_slope", .run = slope_run};
static const ds_kernel *const slope_kernels[] = {&slope_kernel, NULL};

/* Both go element by element: any dim may be split over ranks. Neither is linear, so that a sum of
 * which each rank has a term must be finished first. snake makes 0 from 0 and may run on the flat,
 * padded slices of ZeRO; its slope does not. Without a rule each rank would run it on whole tensors
 * of its own samples. */
static const ds_place_rule snake_place = {
    .in = "*", .out = "*", .split = "*", .flags = DS_PLACE_ELEMENTS};
static const ds_place_rule slope_place = {.in = "*", .out = "*", .split = "*"};

/* The derivative. It has no gradient rule: nothing differentiates twice. */
static const ds_op snake_slope = {.version = DS_OP_VERSION,
                                  .name = "snake_slope",
                                  .doc = "x → 1 + sin(2·a·x).",
                                  .n_in_min = 1,
                                  .n_in_max = 1,
                                  .n_out = 1,
                                  .attrs_bytes = sizeof(snake_attrs),
                                  .attrs = snake_fields,
                                  .n_attrs = 1,
                                  .infer = snake_infer,
                                  .kernels = slope_kernels,
                                  .op_class = DS_CLASS_ELEMENTWISE,
                                  .place = &slope_place};

/* dx = dy · slope(x) */
static ds_status snake_grad(ds_grad *call)
{
    ds_value slope[DS_MAX_OUT];
    ds_value dx[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(call->graph, &snake_slope, call->attrs, call->in, 1, slope));
    const ds_value pair[2] = {call->d_out[0], slope[0]};
    DS_TRY(ds_graph_apply(call->graph, ds_op_find("mul"), NULL, pair, 2, dx));
    call->d_in[0] = dx[0];
    return DS_OK;
}

static const ds_kernel snake_kernel = {
    .version = DS_OP_VERSION, .name = "ref", .op = "snake", .run = snake_run};
static const ds_kernel *const snake_kernels[] = {&snake_kernel, NULL};

static const ds_op snake = {.version = DS_OP_VERSION,
                            .name = "snake",
                            .doc = "x → x + sin²(a·x)/a.",
                            .n_in_min = 1,
                            .n_in_max = 1,
                            .n_out = 1,
                            .attrs_bytes = sizeof(snake_attrs),
                            .attrs = snake_fields,
                            .n_attrs = 1,
                            .infer = snake_infer,
                            .grad = snake_grad,
                            .kernels = snake_kernels,
                            .op_class = DS_CLASS_ELEMENTWISE,
                            .again = DS_AGAIN_CHEAP, /* rather computed again than kept */
                            .place = &snake_place};

/* ---- a model that uses it: x (B,1) → a periodic function of x ---------------------------------
 */

static void trace_model(ds_nn *nn, const void *config)
{
    const int64_t n = ds_nn_trace(nn)->batch;
    const snake_attrs attrs = {.a = 2.0};
    const ds_linear_params hidden = {.n_out = 32, .bias = true, .init_std = 0.7};
    const ds_linear_params last = {.n_out = 1, .bias = true, .init_std = 0.1};
    const ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(n, 1));
    const ds_value y = ds_nn_input(nn, "y", DS_DTYPE_F32, ds_shape_2d(n, 1));
    (void)config;

    ds_value h = ds_nn_linear(nn, "in", x, &hidden);
    h = ds_nn_apply(nn, &snake, &attrs, &h, 1);
    h = ds_nn_linear(nn, "out", h, &last);

    const ds_value wrong = ds_nn_sub(nn, h, y);
    ds_nn_output(nn, "loss", ds_nn_mean_all(nn, ds_nn_mul(nn, wrong, wrong)));
}

typedef struct curve {
    float x[BATCH], y[BATCH];
    ds_named_tensor tensors[2];
} curve;

static ds_status give_curve(void *user, ds_batch *batch_out)
{
    curve *c = user;
    *batch_out = (ds_batch){c->tensors, 2};
    return DS_OK;
}

static void fill_curve(curve *c)
{
    for (int i = 0; i < BATCH; ++i) {
        c->x[i] = (float)i / 16.0f - 2.0f;
        c->y[i] = sinf(3.0f * c->x[i]) + 0.5f * c->x[i];
    }
    c->tensors[0] = (ds_named_tensor){"x", {c->x, {DS_DTYPE_F32, ds_shape_2d(BATCH, 1)}}};
    c->tensors[1] = (ds_named_tensor){"y", {c->y, {DS_DTYPE_F32, ds_shape_2d(BATCH, 1)}}};
}

static ds_status train(ds_ctx *ctx, ds_engine *engine)
{
    curve c;
    double first = 0.0;
    double loss = 0.0;
    fill_curve(&c);
    for (int step = 1; step <= STEPS; ++step) {
        DS_TRY(ds_engine_train_batch(engine, give_curve, &c, &loss));
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
    const ds_model_info info = {.architecture = "snake_net"};
    DS_TRY(ds_config_load_text(ctx, "snake", config_text, strlen(config_text), NULL, config));
    DS_TRY(ds_config_resolve(*config, 1, NULL));
    DS_TRY(ds_model_custom(ctx, &info, trace_model, NULL, model));
    const ds_engine_params params = {
        .model = *model, .config = *config, .seq_length = 1, .seed = 3};
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
        (void)fprintf(stderr, "02_custom_operator: %s\n", ds_ctx_error(ctx));
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    ds_config_destroy(&config);
    ds_ctx_destroy(&ctx);
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
