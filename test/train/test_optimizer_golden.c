/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers through the engine against DeepSpeed and torch (test/golden/optim): each section of a
 * DeepSpeed configuration, ten steps of one tensor whose gradient is given. */
#include "common/check.h"
#include "common/golden.h"

#include <deepspeed/engine.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 100 };

static ds_ctx *ctx;

/* loss = Σ p·g, so that the gradient of p is g. */
static void trace(ds_nn *nn, const void *config)
{
    (void)config;
    const ds_shape shape = ds_shape_1d(N);
    const ds_value p = ds_nn_param(nn, "p", shape, (ds_init){.kind = DS_INIT_ZEROS}, false);
    const ds_value g = ds_nn_input(nn, "g", DS_DTYPE_F32, shape);
    ds_nn_output(nn, "loss", ds_nn_sum_all(nn, ds_nn_mul(nn, p, g)));
}

static ds_config *config_of(const char *name, const json_t *sections)
{
    json_t *all = json_deep_copy(sections);
    ds_config *config = NULL;
    json_object_set_new(all, "train_batch_size", json_integer(1));
    char *text = json_dumps(all, 0);
    CHECK_OK(ctx, ds_config_load_text(ctx, name, text, strlen(text), NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    free(text);
    json_decref(all);
    return config;
}

/* Largest difference, over the largest parameter. */
static double distance_after(ds_engine *engine, const float *want)
{
    float got[N];
    CHECK_OK(ctx, ds_engine_get(engine, DS_CELL_PARAM, "p", got, N));
    return check_relative_difference(got, want, N);
}

static double run_case(const golden_file *file, const char *name, const json_t *sections,
                       const json_t *kept)
{
    const ds_model_info info = {.architecture = "golden"};
    const float *want = golden_f32(file, name);
    const float *gradients = golden_f32(file, "gradients");
    const int64_t n_steps = (int64_t)golden_find(file, "gradients")->dims[0];
    ds_model *model = NULL;
    ds_engine *engine = NULL;
    double worst = 0.0;
    size_t n_kept = 0;
    ds_config *config = config_of(name, sections);
    CHECK_OK(ctx, ds_model_custom(ctx, &info, trace, NULL, &model));
    const ds_engine_params params = {.model = model, .config = config, .seq_length = 1};
    CHECK_OK(ctx, ds_initialize(ctx, &params, &engine));
    CHECK_OK(ctx, ds_engine_set(engine, DS_CELL_PARAM, "p", golden_f32(file, "start"), N));
    for (int64_t step = 0; step < n_steps; ++step) {
        const ds_named_tensor g = {.name = "g",
                                   .tensor = {.meta = {DS_DTYPE_F32, ds_shape_1d(N)},
                                              .data = (void *)(uintptr_t)(gradients + step * N)}};
        const ds_batch batch = {&g, 1};
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
        if (json_integer_value(json_array_get(kept, n_kept)) == step + 1) {
            worst = fmax(worst, distance_after(engine, want + n_kept++ * N));
        }
    }
    assert_int_equal(n_kept, json_array_size(kept));
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    ds_config_destroy(&config);
    return worst;
}

/* Every case of optim/NAME.json; their number. */
static size_t run_file(const char *file_name)
{
    golden_file file = golden_read("optim/%s.safetensors", file_name);
    json_t *json = golden_json("optim/%s.json", file_name);
    const char *name = NULL;
    json_t *entry = NULL;
    size_t n_cases = 0;
    json_object_foreach(json_object_get(json, "cases"), name, entry)
    {
        const double error =
            run_case(&file, name, json_object_get(entry, "config"), json_object_get(json, "kept"));
        print_message("%-10s %-20s %-22s %.2e\n", file_name, name,
                      json_string_value(json_object_get(entry, "source")), error);
        if (!(error <= 1e-6)) {
            fail_msg("%s: parameters differ by %g of the largest", name, error);
        }
        ++n_cases;
    }
    json_decref(json);
    golden_close(&file);
    return n_cases;
}

static void trajectories_equal(void **state)
{
    (void)state;
    assert_int_equal(run_file("optim"), 15);
}

/* DeepSpeed's kernel itself, with the trust ratio inside of its bounds, at each, and undefined. */
static void lamb_equals_its_kernel(void **state)
{
    static const char *const files[] = {"lamb_usual", "lamb_large", "lamb_small", "lamb_zero"};
    (void)state;
    for (int i = 0; i < 4; ++i) {
        assert_int_equal(run_file(files[i]), 6);
    }
}

static int make_ctx(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    (void)state;
    params.level = DS_LOG_ERROR;
    return ds_ctx_create(&params, &ctx);
}

static int drop_ctx(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(trajectories_equal),
                                       cmocka_unit_test(lamb_equals_its_kernel)};
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
