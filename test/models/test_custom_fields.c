/* SPDX-License-Identifier: Apache-2.0 */
/* A custom model's constants: written with checkpoint and export, read back, compared at a resume.
 */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/engine.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct line {
    double scale; /* changes results, but no name and no shape */
    int64_t width;
} line;

static const ds_attr line_fields[] = {
    {"width", DS_ATTR_INT, offsetof(line, width)},
    {"scale", DS_ATTR_REAL, offsetof(line, scale)},
};
static const ds_model_info line_info = {
    .architecture = "line", .fields = line_fields, .n_fields = 2};

/* x (B,2) → mean of scale·(w·x)². */
static void trace_line(ds_nn *nn, const void *config)
{
    const line *c = config;
    const ds_linear_params params = {.n_out = c->width};
    const ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(ds_nn_trace(nn)->batch, 2));
    const ds_value y = ds_nn_linear(nn, "w", x, &params);
    ds_nn_output(nn, "loss", ds_nn_mean_all(nn, ds_nn_scale(nn, ds_nn_mul(nn, y, y), c->scale)));
}

typedef struct run {
    ds_config *config;
    ds_model *model;
    ds_engine *engine;
} run;

static run start(ds_ctx *ctx, const ds_model_info *info, const line *constants)
{
    static const char text[] = "{train_batch_size: 2, optimizer: {type: 'AdamW'}}";
    run r = {0};
    CHECK_OK(ctx, ds_config_load_text(ctx, "ds.json", text, strlen(text), NULL, &r.config));
    CHECK_OK(ctx, ds_config_resolve(r.config, 1, NULL));
    CHECK_OK(ctx, ds_model_custom(ctx, info, trace_line, constants, &r.model));
    const ds_engine_params params = {.model = r.model, .config = r.config, .seq_length = 1};
    CHECK_OK(ctx, ds_initialize(ctx, &params, &r.engine));
    return r;
}

static void stop(run *r)
{
    ds_engine_destroy(&r->engine);
    ds_model_destroy(&r->model);
    ds_config_destroy(&r->config);
}

static void resumes_compare_fields(void **state)
{
    ds_ctx *ctx = *state;
    char *folder = scratch_make();
    const line saved = {.scale = 0.1, .width = 3};
    line other = saved;
    run r = start(ctx, &line_info, &saved);
    CHECK_OK(ctx, ds_engine_save_checkpoint(r.engine, folder, "t", NULL));
    CHECK_OK(ctx, ds_engine_load_checkpoint(r.engine, folder, "t", NULL));
    stop(&r);
    other.scale = 0.25;
    r = start(ctx, &line_info, &other);
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(r.engine, folder, "t", NULL), DS_ERR_ARG,
                "it had \"scale: 0.10000000000000001\", this run has \"scale: 0.25\"");
    stop(&r);
    ds_model_info renamed = line_info;
    renamed.architecture = "curve";
    r = start(ctx, &renamed, &saved);
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(r.engine, folder, "t", NULL), DS_ERR_UNSUPPORTED,
                "/t: config.json: \"model_type\" is \"line\", expected \"curve\"");
    stop(&r);
    ds_model_info grown = line_info; /* a field that the checkpoint does not know */
    const ds_attr more[] = {line_fields[0], line_fields[1], {"depth", DS_ATTR_INT, 8}};
    grown.fields = more;
    grown.n_fields = 3;
    r = start(ctx, &grown, &saved);
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(r.engine, folder, "t", NULL), DS_ERR_FORMAT,
                "config.json: \"depth\" is missing");
    stop(&r);
    scratch_remove(folder);
}

static void exports_read_back(void **state)
{
    ds_ctx *ctx = *state;
    char *folder = scratch_make();
    const line saved = {.scale = 1.0 / 3.0, .width = INT64_C(3)};
    line read = {0};
    char *text = NULL;
    run r = start(ctx, &line_info, &saved);
    CHECK_OK(ctx, ds_model_print(r.model, &text));
    assert_string_equal(text, "model_type: line\nwidth: 3\nscale: 0.33333333333333331\n");
    free(text);
    CHECK_OK(ctx, ds_engine_save_16bit_model(r.engine, folder, NULL));
    stop(&r);
    const char *path = scratch_path(folder, "config.json");
    CHECK_OK(ctx, ds_model_read_config(ctx, path, &line_info, &read));
    assert_true(read.scale == saved.scale && read.width == saved.width);
    scratch_remove(folder);
}

static void wrong_files_are_refused(void **state)
{
    static const struct {
        const char *text;
        ds_status status;
        const char *why;
    } cases[] = {
        {"{\"model_type\": \"line\", \"width\": 3}", DS_ERR_FORMAT, "\"scale\" is missing"},
        {"{\"model_type\": \"line\", \"width\": 3.5, \"scale\": 1}", DS_ERR_FORMAT,
         "\"width\" must be a whole number, found 3.5"},
        {"{\"model_type\": \"line\", \"width\": 3, \"scale\": \"1\"}", DS_ERR_FORMAT,
         "\"scale\" must be a number, found \"1\""},
        {"{\"width\": 3, \"scale\": 1}", DS_ERR_UNSUPPORTED, "expected \"line\""},
        {"[3]", DS_ERR_UNSUPPORTED, "expected \"line\""},
        {"{\"model_type\": \"line\", \"width\": 3,\n]", DS_ERR_FORMAT, "config.json:2:"},
    };
    ds_ctx *ctx = *state;
    char *folder = scratch_make();
    const char *path = scratch_path(folder, "config.json");
    line read = {0};
    ds_model *model = NULL;
    CHECK_FAILS(ctx, ds_model_read_config(ctx, path, &line_info, &read), DS_ERR_NOT_FOUND, path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        scratch_write(path, cases[i].text, strlen(cases[i].text));
        CHECK_FAILS(ctx, ds_model_read_config(ctx, path, &line_info, &read), cases[i].status,
                    cases[i].why);
    }
    const line endless = {.scale = INFINITY, .width = 1};
    CHECK_FAILS(ctx, ds_model_custom(ctx, &line_info, trace_line, &endless, &model), DS_ERR_ARG,
                "\"scale\" is inf");
    const ds_attr twice[] = {line_fields[0], line_fields[0]};
    const ds_model_info doubled = {.architecture = "line", .fields = twice, .n_fields = 2};
    CHECK_FAILS(ctx, ds_model_custom(ctx, &doubled, trace_line, &read, &model), DS_ERR_ARG,
                "two fields \"width\"");
    scratch_remove(folder);
}

int main(void)
{
    ds_ctx *ctx = NULL;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(resumes_compare_fields, ctx),
        cmocka_unit_test_prestate(exports_read_back, ctx),
        cmocka_unit_test_prestate(wrong_files_are_refused, ctx),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
