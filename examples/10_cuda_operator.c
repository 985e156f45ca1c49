/* SPDX-License-Identifier: Apache-2.0 */
/* An operator of one's own with a kernel in C and one in CUDA source: softplus(x) = log(1 + eˣ)
 * and its derivative. Where an accelerator `cuda` is chosen, NVRTC compiles the source when the
 * engine is created, once for all ranks of a node, and keeps the result (cuda_kernel.h).
 *
 * Usage: 10_cuda_operator [ACCELERATOR]   (default: auto)
 *        10_cuda_operator --source        prints the CUDA sources
 * Exits with 1 when the loss did not fall. */
#include <deepspeed/cuda_kernel.h>
#include <deepspeed/engine.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, STEPS = 100 };

static const char config_text[] =
    "{\n"
    "  \"train_batch_size\": 64,\n"
    "  \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-2}}\n"
    "}\n";

/* ---- the sources: compiled once for each combination of element types ------------------------ */

static const char source[] =
    "#include \"deepspeed_cuda.h\"\n"
    "\n"
    "// y = log(1 + exp(x)), without overflow\n"
    "extern \"C\" __global__ void softplus(const void *x, void *y, int64_t n)\n"
    "{\n"
    "    for (int64_t i = ds_index(); i < n; i += ds_stride()) {\n"
    "        const float v = ds_get(x, DS_IN_0, i);\n"
    "        ds_set(y, DS_OUT_0, i, fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v))));\n"
    "    }\n"
    "}\n";

static const char backward_source[] =
    "#include \"deepspeed_cuda.h\"\n"
    "\n"
    "// dx = dy / (1 + exp(-x))\n"
    "extern \"C\" __global__ void softplus_backward(const void *x, const void *dy, void *dx,\n"
    "                                             int64_t n)\n"
    "{\n"
    "    for (int64_t i = ds_index(); i < n; i += ds_stride()) {\n"
    "        const float v = ds_get(x, DS_IN_0, i);\n"
    "        ds_set(dx, DS_OUT_0, i, ds_get(dy, DS_IN_1, i) / (1.0f + expf(-v)));\n"
    "    }\n"
    "}\n";

/* One thread an element; the arguments are the operands' addresses, then their number of elements.
 */
static ds_status launch(const ds_kernel_call *call, uint32_t function, ds_cuda_launch *launch_out)
{
    const int64_t n = ds_shape_count(call->in[0].meta.shape);
    (void)function; /* each kernel below has one */
    ds_cuda_over(launch_out, n);
    for (uint32_t i = 0; i < call->sig->n_in; ++i) {
        ds_cuda_arg(launch_out, &call->in[i].data, sizeof(void *));
    }
    ds_cuda_arg(launch_out, &call->out[0].data, sizeof(void *));
    ds_cuda_arg(launch_out, &n, sizeof n);
    return DS_OK;
}

/* ---- the same in C, for every other accelerator ---------------------------------------------- */

static ds_status softplus_run(const ds_kernel_call *call)
{
    const float *x = call->in[0].data;
    float *y = call->out[0].data;
    for (int64_t i = 0; i < ds_shape_count(call->in[0].meta.shape); ++i) {
        y[i] = fmaxf(x[i], 0.0f) + log1pf(expf(-fabsf(x[i])));
    }
    return DS_OK;
}

static ds_status backward_run(const ds_kernel_call *call)
{
    const float *x = call->in[0].data;
    const float *dy = call->in[1].data;
    float *dx = call->out[0].data;
    for (int64_t i = 0; i < ds_shape_count(call->in[0].meta.shape); ++i) {
        dx[i] = dy[i] / (1.0f + expf(-x[i]));
    }
    return DS_OK;
}

/* ---- the operators --------------------------------------------------------------------------- */

/* x f32 of any shape, and of the second operator dy like it → the same. */
static ds_status infer(ds_infer *call)
{
    for (uint32_t i = 0; i < call->n_in; ++i) {
        if (call->in[i].dtype != DS_DTYPE_F32 ||
            !ds_shape_equal(call->in[i].shape, call->in[0].shape)) {
            return ds_fail(call->ctx, DS_ERR_SHAPE, "%s: operands are f32 of one shape",
                           call->op->name);
        }
    }
    call->out[0] = call->in[0];
    return DS_OK;
}

static const ds_place_rule place = {.in = "*", .out = "*", .split = "*"};
static const ds_place_rule backward_place = {.in = "* *", .out = "*", .split = "*", .linear = "1"};

static const ds_kernel backward_in_c = {
    .version = DS_OP_VERSION, .name = "ref", .op = "softplus_backward", .run = backward_run};
static const ds_kernel *const backward_kernels[] = {&backward_in_c, NULL};
static const char *const backward_functions[] = {"softplus_backward", NULL};
static const ds_cuda_kernel backward_on_cuda = {.version = DS_OP_VERSION,
                                                .name = "plain",
                                                .source = backward_source,
                                                .functions = backward_functions,
                                                .launch = launch};
static const ds_cuda_kernel *const backward_cuda[] = {&backward_on_cuda, NULL};

static const ds_op softplus_backward = {.version = DS_OP_VERSION,
                                        .name = "softplus_backward",
                                        .doc = "x, dy → dy / (1 + exp(-x)).",
                                        .n_in_min = 2,
                                        .n_in_max = 2,
                                        .n_out = 1,
                                        .infer = infer,
                                        .kernels = backward_kernels,
                                        .cuda = backward_cuda,
                                        .op_class = DS_CLASS_ELEMENTWISE,
                                        .place = &backward_place};

static ds_status grad(ds_grad *call)
{
    const ds_value in[2] = {call->in[0], call->d_out[0]};
    ds_value dx[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(call->graph, &softplus_backward, NULL, in, 2, dx));
    call->d_in[0] = dx[0];
    return DS_OK;
}

static const ds_kernel in_c = {
    .version = DS_OP_VERSION, .name = "ref", .op = "softplus", .run = softplus_run};
static const ds_kernel *const kernels[] = {&in_c, NULL};
static const char *const functions[] = {"softplus", NULL};
static const ds_cuda_kernel on_cuda = {.version = DS_OP_VERSION,
                                       .name = "plain",
                                       .source = source,
                                       .functions = functions,
                                       .launch = launch};
static const ds_cuda_kernel *const cuda[] = {&on_cuda, NULL};

static const ds_op softplus = {.version = DS_OP_VERSION,
                               .name = "softplus",
                               .doc = "x → log(1 + exp(x)).",
                               .n_in_min = 1,
                               .n_in_max = 1,
                               .n_out = 1,
                               .infer = infer,
                               .grad = grad,
                               .kernels = kernels,
                               .cuda = cuda,
                               .op_class = DS_CLASS_ELEMENTWISE,
                               .again = DS_AGAIN_CHEAP,
                               .place = &place};

/* ---- a model that uses it: points of a plane (B,2) → which ring they are in --------------------
 */

enum { RINGS = 3, WIDTH = 16 };

static void trace_model(ds_nn *nn, const void *config)
{
    const int64_t n = ds_nn_trace(nn)->batch;
    const ds_linear_params hidden = {.n_out = WIDTH, .bias = true, .init_std = 0.7};
    const ds_init small = {.kind = DS_INIT_NORMAL, .std = 0.1};
    const ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(n, 2));
    const ds_value ring = ds_nn_input(nn, "ring", DS_DTYPE_I32, ds_shape_1d(n));
    (void)config;
    ds_value h = ds_nn_linear(nn, "in", x, &hidden);
    h = ds_nn_apply(nn, &softplus, NULL, &h, 1);
    const ds_value head = ds_nn_param(nn, "head", ds_shape_2d(RINGS, WIDTH), small, true);
    (void)ds_nn_linear_cross_entropy(nn, h, head, ring);
}

typedef struct points {
    float x[BATCH][2];
    int32_t ring[BATCH];
    ds_named_tensor tensors[2];
} points;

static ds_status give_points(void *user, ds_batch *batch_out)
{
    points *p = user;
    *batch_out = (ds_batch){p->tensors, 2};
    return DS_OK;
}

static void fill_points(points *p)
{
    for (int i = 0; i < BATCH; ++i) {
        const float radius = 0.2f + 0.8f * (float)(i % RINGS);
        p->x[i][0] = radius * cosf((float)i);
        p->x[i][1] = radius * sinf((float)i);
        p->ring[i] = i % RINGS;
    }
    p->tensors[0] = (ds_named_tensor){"x", {p->x, {DS_DTYPE_F32, ds_shape_2d(BATCH, 2)}}};
    p->tensors[1] = (ds_named_tensor){"ring", {p->ring, {DS_DTYPE_I32, ds_shape_1d(BATCH)}}};
}

static ds_status train(ds_ctx *ctx, ds_engine *engine)
{
    points p;
    double first = 0.0;
    double loss = 0.0;
    fill_points(&p);
    for (int step = 1; step <= STEPS; ++step) {
        DS_TRY(ds_engine_train_batch(engine, give_points, &p, &loss));
        first = step == 1 ? loss : first;
        if (step == 1 || step % 25 == 0) {
            (void)printf("step %3d  loss %.5f\n", step, loss);
        }
    }
    if (!(loss < first / 2.0)) {
        return ds_fail(ctx, DS_ERR_NUMERIC, "the loss went from %g to %g only", first, loss);
    }
    return DS_OK;
}

static ds_status run(ds_ctx *ctx, const char *accelerator, ds_config **config, ds_model **model,
                     ds_engine **engine)
{
    const ds_model_info info = {.architecture = "softplus_net"};
    DS_TRY(ds_config_load_text(ctx, "softplus", config_text, strlen(config_text), NULL, config));
    DS_TRY(ds_config_resolve(*config, 1, NULL));
    DS_TRY(ds_model_custom(ctx, &info, trace_model, NULL, model));
    const ds_engine_params params = {
        .model = *model, .config = *config, .seq_length = 1, .seed = 3, .accelerator = accelerator};
    DS_TRY(ds_initialize(ctx, &params, engine));
    return train(ctx, *engine);
}

int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    ds_config *config = NULL;
    ds_model *model = NULL;
    ds_engine *engine = NULL;
    if (argc == 2 && strcmp(argv[1], "--source") == 0) {
        return printf("%s%s", source, backward_source) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    }
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    const ds_status status = run(ctx, argc == 2 ? argv[1] : NULL, &config, &model, &engine);
    if (status < 0) {
        (void)fprintf(stderr, "10_cuda_operator: %s\n", ds_ctx_error(ctx));
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    ds_config_destroy(&config);
    ds_ctx_destroy(&ctx);
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
