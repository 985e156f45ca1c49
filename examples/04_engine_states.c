/* SPDX-License-Identifier: Apache-2.0 */
/* Looking into a running engine, and changing it: gradients before the step, the optimizer's
 * states, and a parameter that one rank rewrites. The same program under `deepspeed --num_gpus 2`
 * and any ZeRO stage does the same: whole tensors are gathered, whoever holds them.
 *
 * Fits a line y = 3 x + 1 with a weight that starts wrong. Exits with 1 when something is not as it
 * should be. */
#include <deepspeed/engine_states.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 32, STEPS = 60 };

static const char config_text[] =
    "{\n"
    "  \"train_micro_batch_size_per_gpu\": 32,\n"
    "  \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 5e-2}},\n"
    "  \"zero_optimization\": {\"stage\": 3}\n"
    "}\n";

/* x (B,1) → line.weight · x + line.bias */
static void trace_line(ds_nn *nn, const void *config)
{
    const ds_linear_params line = {.n_out = 1, .bias = true, .init_std = 0.1};
    const int64_t n = ds_nn_trace(nn)->batch;
    (void)config;
    const ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(n, 1));
    const ds_value y = ds_nn_input(nn, "y", DS_DTYPE_F32, ds_shape_2d(n, 1));
    const ds_value wrong = ds_nn_sub(nn, ds_nn_linear(nn, "line", x, &line), y);
    ds_nn_output(nn, "loss", ds_nn_mean_all(nn, ds_nn_mul(nn, wrong, wrong)));
}

/* Rank 0 rewrites the weight; every rank has it afterwards. */
static ds_status start_wrong(ds_engine *engine, ds_comm *comm)
{
    static const char *const names[] = {"line.weight"};
    ds_gathered *gathered = NULL;
    DS_TRY(ds_engine_gather(engine, names, 1, 0, &gathered));
    if (ds_comm_rank(comm) == 0) {
        ds_gathered_data(gathered, 0, NULL)[0] = -2.0f;
    }
    return ds_gathered_end(&gathered);
}

static ds_status fit(ds_ctx *ctx, ds_engine *engine, ds_comm *comm)
{
    float x[BATCH];
    float y[BATCH];
    float weight = 0.0f;
    float gradient = 0.0f;
    float moment = 0.0f;
    for (int i = 0; i < BATCH; ++i) {
        x[i] = (float)i / 16.0f - 1.0f;
        y[i] = 3.0f * x[i] + 1.0f;
    }
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_2d(BATCH, 1)};
    const ds_named_tensor tensors[] = {{"x", {x, meta}}, {"y", {y, meta}}};
    const ds_batch batch = {tensors, 2};
    DS_TRY(start_wrong(engine, comm));
    for (int step = 1; step <= STEPS; ++step) {
        DS_TRY(ds_engine_forward(engine, &batch));
        DS_TRY(ds_engine_backward(engine));
        DS_TRY(ds_engine_get_full_grad(engine, "line.weight", &gradient, 1));
        if (fabsf(gradient) > 2.0f) { /* our own clipping */
            gradient = gradient > 0.0f ? 2.0f : -2.0f;
            DS_TRY(ds_engine_set_full_grad(engine, "line.weight", &gradient, 1));
        }
        DS_TRY(ds_engine_step(engine));
        DS_TRY(ds_engine_get_full_fp32_param(engine, "line.weight", &weight, 1));
        DS_TRY(ds_engine_get_full_optimizer_state(engine, "line.weight", "exp_avg", &moment, 1));
        if (ds_comm_rank(comm) == 0 && (step == 1 || step % 20 == 0)) {
            (void)printf("step %2d  loss %.4f  weight %.3f  gradient %.3f  exp_avg %.3f\n", step,
                         ds_engine_loss(engine), (double)weight, (double)gradient, (double)moment);
        }
    }
    return weight > 0.0f
               ? DS_OK
               : ds_fail(ctx, DS_ERR_NUMERIC, "the weight came from -2 to %g only", (double)weight);
}

static ds_status run(ds_ctx *ctx, ds_comm *comm, ds_config **config, ds_model **model,
                     ds_engine **engine)
{
    const ds_model_info info = {.architecture = "line"};
    DS_TRY(ds_config_load_text(ctx, "line", config_text, strlen(config_text), NULL, config));
    DS_TRY(ds_config_resolve(*config, ds_comm_size(comm), NULL));
    DS_TRY(ds_model_custom(ctx, &info, trace_line, NULL, model));
    const ds_engine_params params = {
        .model = *model, .config = *config, .seq_length = 1, .seed = 1, .comm = comm};
    DS_TRY(ds_initialize(ctx, &params, engine));
    return fit(ctx, *engine, comm);
}

int main(void)
{
    ds_ctx *ctx = NULL;
    ds_comm *comm = NULL;
    ds_config *config = NULL;
    ds_model *model = NULL;
    ds_engine *engine = NULL;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    ds_status status = ds_comm_open(ctx, &comm);
    if (status == DS_OK) {
        status = run(ctx, comm, &config, &model, &engine);
    }
    if (status < 0) {
        (void)fprintf(stderr, "04_engine_states: %s\n", ds_ctx_error(ctx));
        ds_comm_abort(comm, ds_ctx_error(ctx));
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    ds_config_destroy(&config);
    ds_comm_close(&comm);
    ds_ctx_destroy(&ctx);
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
