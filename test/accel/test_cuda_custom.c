/* SPDX-License-Identifier: Apache-2.0 */
/* Custom operators with CUDA source on the accelerator `cuda`, over the stand-ins of the driver and
 * of NVRTC (standin_nvrtc/), which hands the source to the compiler of the host: the bits of the
 * kernels in C, in each dtype; a model with one trains as on the processor; what the compiler says
 * is reported whole, with the operator's name; what cannot be is refused by name. No GPU is asked.
 */
#include "accel/accel.h"
#include "common/check.h"
#include "common/cuda_op.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "common/standin_load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, COLUMNS = 77, STEPS = 3, WIDTH = 24, CLASSES = 7 };

static ds_ctx *ctx;
static char *folder;
static standin_calls standin;
static const ds_accel *cuda;
static char logged[16384];

static void keep_line(void *user, ds_log_level level, const char *line)
{
    const size_t used = strlen(logged);
    (void)user;
    (void)level;
    (void)snprintf(logged + used, sizeof logged - used, "%s\n", line);
}

static void fill(ds_dtype dtype, uint32_t n, void *x_out)
{
    for (uint32_t i = 0; i < n; ++i) {
        const float v = 3.0f * sinf((float)i * 1.7f) * ldexpf(1.0f, (int)(i % 31) - 20);
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        if (dtype == DS_DTYPE_F32) {
            ((float *)x_out)[i] = v;
        } else { /* any bits are a number, but of infinity and NaN */
            ((uint16_t *)x_out)[i] =
                (uint16_t)(bits >> 7 & (dtype == DS_DTYPE_F16 ? 0xbbffu : 0xbfffu));
        }
    }
}

static void compare(const ds_op *op, const void *attrs, ds_dtype dtype)
{
    const ds_meta meta = {dtype, ds_shape_2d(ROWS, COLUMNS)};
    const size_t bytes = ROWS * COLUMNS * ds_dtype_bytes(dtype);
    float x[ROWS * COLUMNS];
    float want[ROWS * COLUMNS];
    float got[ROWS * COLUMNS];
    ds_accel_device *device = NULL;
    fill(dtype, ROWS * COLUMNS, x);
    CHECK_OK(ctx, cuda_op_run(ctx, NULL, NULL, op, attrs, meta, x, want));
    CHECK_OK(ctx, cuda->open(ctx, "", &device));
    for (int again = 0; again < 2; ++again) {
        memset(got, 0xee, sizeof got);
        CHECK_OK(ctx, cuda_op_run(ctx, cuda, device, op, attrs, meta, x, got));
        assert_memory_equal(got, want, bytes);
    }
    cuda->close(&device);
}

static void it_has_the_bits_of_the_kernel_in_c(void **state)
{
    const cuda_wave_attrs attrs = {.a = 1.3};
    (void)state;
    compare(&cuda_wave, &attrs, DS_DTYPE_F32);
    compare(&cuda_wave, &attrs, DS_DTYPE_BF16);
    compare(&cuda_wave, &attrs, DS_DTYPE_F16);
    compare(&cuda_shares, NULL, DS_DTYPE_F32);
    assert_string_equal(logged, ""); /* no warning of the compiler, none of the cache */
}

/* ---- in a model ----------------------------------------------------------------------------- */

/* The operators have no gradient: weights before them stay, the head learns. */
static void trace_model(ds_nn *nn, const void *config)
{
    const int64_t n = ds_nn_trace(nn)->batch;
    const cuda_wave_attrs attrs = {.a = 0.7};
    const ds_linear_params hidden = {.n_out = WIDTH, .bias = true, .init_std = 0.7};
    const ds_init small = {.kind = DS_INIT_NORMAL, .std = 0.3};
    (void)config;
    const ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(n, 3));
    const ds_value y = ds_nn_input(nn, "y", DS_DTYPE_I32, ds_shape_1d(n));
    ds_value h = ds_nn_linear(nn, "in", x, &hidden);
    h = ds_nn_apply(nn, &cuda_wave, &attrs, &h, 1);
    h = ds_nn_apply(nn, &cuda_shares, NULL, &h, 1);
    const ds_value head = ds_nn_param(nn, "head", ds_shape_2d(CLASSES, WIDTH), small, true);
    (void)ds_nn_linear_cross_entropy(nn, h, head, y);
}

static void train_on(const char *accel, double losses_out[STEPS])
{
    const ds_model_info info = {.architecture = "wave_net"};
    float x[SMALL_BATCH * 3];
    int32_t y[SMALL_BATCH];
    ds_model *model = NULL;
    ds_engine *engine = NULL;
    dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    spec.train.seq_length = 1;
    CHECK_OK(ctx, dsi_accel_choose(ctx, accel, &spec.accel));
    CHECK_OK(ctx, ds_model_custom(ctx, &info, trace_model, NULL, &model));
    const ds_engine_params params = {.model = model, .seq_length = 1, .seed = 5};
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
    for (int step = 0; step < STEPS; ++step) {
        for (int i = 0; i < SMALL_BATCH; ++i) {
            for (int k = 0; k < 3; ++k) {
                x[3 * i + k] = sinf((float)(step + i * 3 + k));
            }
            y[i] = (step + i) % CLASSES;
        }
        ds_named_tensor tensors[2] = {{"x", {x, {DS_DTYPE_F32, ds_shape_2d(SMALL_BATCH, 3)}}},
                                      {"y", {y, {DS_DTYPE_I32, ds_shape_1d(SMALL_BATCH)}}}};
        const ds_batch batch = {tensors, 2};
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
        losses_out[step] = ds_engine_loss(engine);
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

static void a_model_trains_as_on_the_processor(void **state)
{
    double want[STEPS];
    double got[STEPS];
    double queued[STEPS];
    (void)state;
    train_on("cpu", want);
    train_on("cuda", got); /* phases are captured */
    train_on("cuda:graphs=0", queued);
    assert_true(want[0] != want[STEPS - 1]);
    for (int i = 0; i < STEPS; ++i) {
        assert_true(fabs(got[i] - want[i]) <= 1e-5 * fabs(want[i]));
        assert_true(got[i] == queued[i]);
    }
}

/* ---- what is wrong --------------------------------------------------------------------------- */

typedef struct wrong {
    ds_op op;
    ds_cuda_kernel row;
    const ds_cuda_kernel *list[2];
    const char *functions[3], *options[2];
} wrong;

static ds_status bad_launch(const ds_kernel_call *call, uint32_t function, ds_cuda_launch *launch)
{
    const double a = ((const cuda_wave_attrs *)call->sig->attrs)->a;
    (void)function;
    launch->block[0] = a == 1.0 ? 1025 : 1;
    launch->grid[1] = a == 2.0 ? 65536 : a == 4.0 ? 0 : 1;
    for (int i = 0; i < 65 && a == 3.0; ++i) {
        ds_cuda_arg(launch, &a, sizeof a);
    }
    return DS_OK;
}

static void begin(wrong *w, const char *source)
{
    *w = (wrong){.op = cuda_wave, .row = *cuda_wave.cuda[0], .functions = {"wave"}};
    w->op.name = "bad_wave";
    w->row.source = source;
    w->row.functions = w->functions;
    w->row.options = w->options;
    w->list[0] = &w->row;
    w->op.cuda = w->list;
}

static ds_status try_it(const wrong *w, double a)
{
    const cuda_wave_attrs attrs = {.a = a};
    const float x[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    float y[4] = {0.0f};
    ds_accel_device *device = NULL;
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_1d(4)};
    CHECK_OK(ctx, cuda->open(ctx, "", &device));
    const ds_status status = cuda_op_run(ctx, cuda, device, &w->op, &attrs, meta, x, y);
    cuda->close(&device);
    return status;
}

static void errors_of_the_compiler_are_whole(void **state)
{
    static const char source[] =
        "extern \"C\" __global__ void wave(const void *x)\n"
        "{\n    first_unknown(x);\n    second_unknown(x);\n    third_unknown(x);\n}\n";
    wrong w;
    (void)state;
    begin(&w, source);
    CHECK_FAILS(ctx, try_it(&w, 1.0), DS_ERR_ARG,
                "operator bad_wave: its kernel plain for cuda is not compiled for sm_90: "
                "nvrtcCompileProgram: NVRTC_ERROR_COMPILATION (6); the compiler's log is above");
    assert_non_null(strstr(logged, "operator bad_wave, kernel plain for cuda (sm_90):\n"));
    assert_non_null(strstr(logged, "bad_wave:3:"));
    assert_non_null(strstr(logged, "first_unknown"));
    assert_non_null(strstr(logged, "second_unknown"));
    assert_non_null(strstr(logged, "third_unknown"));
    logged[0] = '\0';
    begin(&w, cuda_wave_source);
    w.functions[0] = "surf";
    CHECK_FAILS(ctx, try_it(&w, 1.0), DS_ERR_ARG,
                "operator bad_wave: the source of its kernel plain for cuda has no function surf");
    logged[0] = '\0';
}

static void what_cannot_be_is_refused(void **state)
{
    static const struct {
        const char *source, *option, *text;
    } rows[] = {
        {"#include <cuda_fp16.h>\n", NULL, "#include <cuda_fp16.h>: a source may include"},
        {"  #  include \"/etc/passwd\"\n", NULL, "a source may include \"deepspeed_cuda.h\" alone"},
        {"%: include \"other.h\"\n", NULL, "include \"other.h\""},
        {"#include HEADER\n", NULL, "#include HEADER"},
        {"#include_next \"deepspeed_cuda.h\"\n", NULL, "include_next"},
        {"#embed \"x\"\n", NULL, "#embed"},
        {"#inc\\\nlude \"x.h\"\n", NULL, "#include \"x.h\": a source may include"},
        {"# \\ \r\n include \"x.h\"\n", NULL, "a source may include"},
        {"#if __has_include(\"x.h\")\n#endif\n", NULL, "__has_include"},
        {cuda_wave_source, "-I/usr/include", "-I/usr/include: this option is not among"},
        {cuda_wave_source, "--gpu-architecture=sm_80", "this option is not among"},
        {cuda_wave_source, "--pre-include=x.h", "this option is not among"},
        {cuda_wave_source, "-D", "-D: this option is not among"},
    };
    static const struct {
        double a;
        const char *text;
    } launches[] = {
        {1.0, "wave with grid (1,1,1), block (1025,1,1), 0 bytes of arguments: a block has 1 to "},
        {2.0, "grid (1,65536,1), block (1,1,1), 0 bytes of arguments: a grid has at most"},
        {3.0, "520 bytes of arguments: more than 512"},
    };
    wrong w;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        begin(&w, rows[i].source);
        w.options[0] = rows[i].option;
        CHECK_FAILS(ctx, try_it(&w, 1.0), DS_ERR_ARG, rows[i].text);
    }
    begin(&w, NULL);
    w.row.file = scratch_path(folder, "missing.cu");
    CHECK_FAILS(ctx, try_it(&w, 1.0), DS_ERR_ARG, "missing.cu: No such file or directory");
    begin(&w, cuda_wave_source);
    w.row.launch = bad_launch;
    for (size_t i = 0; i < sizeof launches / sizeof launches[0]; ++i) {
        CHECK_FAILS(ctx, try_it(&w, launches[i].a), DS_ERR_ARG, launches[i].text);
    }
    CHECK_OK(ctx, try_it(&w, 4.0)); /* nothing to launch */
    assert_string_equal(logged, "");
}

static void the_source_may_be_a_file(void **state)
{
    wrong w;
    const cuda_wave_attrs attrs = {.a = 1.0};
    const float x = 2.0f;
    float got = 0.0f;
    ds_accel_device *device = NULL;
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_1d(1)};
    static const char text[] = "extern \"C\" __global__ void wave(const float *x, float *y)\n"
                               "{ *y = *x * SCALE; }\n";
    (void)state;
    begin(&w, NULL);
    w.row.file = scratch_path(folder, "own.cu");
    w.options[0] = "-DSCALE=5";
    scratch_write(w.row.file, text, sizeof text - 1);
    CHECK_OK(ctx, cuda->open(ctx, "", &device));
    CHECK_OK(ctx, cuda_op_run(ctx, cuda, device, &w.op, &attrs, meta, &x, &got));
    cuda->close(&device);
    assert_true(got == 10.0f);
    scratch_write(w.row.file, text, sizeof text); /* its end is in it */
    CHECK_FAILS(ctx, try_it(&w, 1.0), DS_ERR_ARG, "own.cu: it has a byte 0, and is no source");
}

static void fields_are_checked(void **state)
{
    static const char *const numbers[] = {"1wave", NULL};
    static const char *const none[] = {NULL};
    const cuda_wave_attrs attrs = {.a = 1.0};
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    ds_value in = 0;
    ds_value out[DS_MAX_OUT];
    (void)state;
    const ds_cell_info info = {
        .name = "x", .kind = DS_CELL_INPUT, .meta = {DS_DTYPE_F32, ds_shape_1d(4)}, .of = DS_NONE};
    ds_cell cell = DS_NONE;
    CHECK_OK(ctx, ds_cells_create(ctx, 4, &cells));
    CHECK_OK(ctx, ds_graph_create(ctx, cells, &graph));
    CHECK_OK(ctx, ds_cells_add(cells, &info, &cell));
    CHECK_OK(ctx, ds_graph_read(graph, cell, &in));
    for (int i = 0; i < 7; ++i) {
        static const char *const texts[] = {"cuda.version", "cuda.name",      "cuda.source",
                                            "cuda.source",  "cuda.functions", "cuda.functions",
                                            "cuda.launch"};
        wrong w;
        begin(&w, cuda_wave_source);
        w.row.version = i == 0 ? 1 : w.row.version;
        w.row.name = i == 1 ? "" : w.row.name;
        w.row.source = i == 2 ? NULL : w.row.source;
        w.row.file = i == 3 ? "x.cu" : NULL;
        w.row.functions = i == 4 ? numbers : i == 5 ? none : w.row.functions;
        w.row.launch = i == 6 ? NULL : w.row.launch;
        CHECK_FAILS(ctx, ds_graph_apply(graph, &w.op, &attrs, &in, 1, out), DS_ERR_ARG, texts[i]);
    }
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

int main(void)
{
    const ds_ctx_params params = {.log = keep_line, .level = DS_LOG_WARN, .n_threads = 1};
    dsi_accel_choice choice;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_has_the_bits_of_the_kernel_in_c),
        cmocka_unit_test(a_model_trains_as_on_the_processor),
        cmocka_unit_test(errors_of_the_compiler_are_whole),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(the_source_may_be_a_file),
        cmocka_unit_test(fields_are_checked),
    };
    if (!standin_load(DS_BINARY_DIR, &standin) || ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    folder = scratch_make();
    (void)setenv("DS_CUDA_CACHE", scratch_path(folder, "a/cache"), 1);
    if (dsi_accel_choose(ctx, "cuda", &choice) < 0) {
        (void)fprintf(stderr, "%s\n", ds_ctx_error(ctx));
        return 1;
    }
    cuda = choice.accel;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return failed;
}
