/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks through the library's own engine, like transformers and sentence-transformers
 * (test/golden/encoder_tasks): pairs of texts with types, regression, many labels, embeddings
 * learned from pairs; losses, gradients and steps of AdamW, and what an encoder at work makes of a
 * pair. */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/golden.h"
#include "train/engine.h"

#include <deepspeed/encoder.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const cases[] = {"pair",
                                    "regression",
                                    "regressions",
                                    "multi_label",
                                    "contrast",
                                    "contrast_negatives",
                                    "contrast_decoder",
                                    "contrast_dense",
                                    "contrast_dense_more"};
enum {
    N_CASES = sizeof cases / sizeof *cases,
    FIRST_CONTRAST = 4,
    N_STEPS = 6,
    MOST_INPUTS = 8,
    T = 10
};

static ds_ctx *ctx;

typedef struct task_case {
    const char *name;
    char folder[1024];
    golden_file golden;
    json_t *scalars;
    ds_model *model;
    ds_named_tensor tensors[MOST_INPUTS];
    ds_batch batch;
    uint32_t task, n_classes;
    ds_task_params params;
    ds_dense dense[4];
} task_case;

static uint32_t number(const json_t *scalars, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(scalars, key));
}

static void read_dense(task_case *p)
{
    static const char *const functions[DS_DENSE_FUNCTIONS] = {
        [DS_DENSE_TANH] = "Tanh",       [DS_DENSE_IDENTITY] = "Identity", [DS_DENSE_RELU] = "ReLU",
        [DS_DENSE_SIGMOID] = "Sigmoid", [DS_DENSE_SILU] = "SiLU",         [DS_DENSE_GELU] = "GELU"};
    size_t i = 0;
    json_t *of = NULL;
    json_array_foreach(json_object_get(p->scalars, "dense"), i, of)
    {
        const char *name = json_string_value(json_object_get(of, "activation_function"));
        ds_dense *d = &p->dense[i];
        *d = (ds_dense){.n_in = number(of, "in_features"),
                        .n_out = number(of, "out_features"),
                        .bias = !json_is_false(json_object_get(of, "bias")),
                        .adds = json_is_true(json_object_get(of, "use_residual"))};
        while (strcmp(functions[d->function], name) != 0) {
            d->function += 1;
        }
    }
    p->params.contrast.n_dense = (uint32_t)i;
    p->params.contrast.dense = p->dense;
}

/* Modules Dense begin drawn: what the golden model has. */
static void set_dense(const task_case *p, ds_engine *engine)
{
    if (p->params.contrast.n_dense == 0) {
        return;
    }
    golden_file weights = golden_read("encoder_tasks/%s/dense.safetensors", p->name);
    for (size_t i = 0; i < weights.n_tensors; ++i) {
        const golden_tensor *t = &weights.tensors[i];
        CHECK_OK(ctx, ds_engine_set(engine, DS_CELL_PARAM, t->name, t->data, t->count));
    }
    golden_close(&weights);
}

static void open_case(const char *name, task_case *p)
{
    char config[1100];
    *p = (task_case){.name = name,
                     .golden = golden_read("encoder_tasks/%s/golden.safetensors", name)};
    p->scalars = golden_json("encoder_tasks/%s/golden.json", name);
    golden_path(p->folder, sizeof p->folder, "encoder_tasks/%s", name);
    (void)snprintf(config, sizeof config, "%s/config.json", p->folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, config, &p->model));
    const bool contrast =
        strcmp(json_string_value(json_object_get(p->scalars, "task")), "contrast") == 0;
    p->task = contrast ? DS_TASK_CONTRAST : DS_TASK_SEQUENCE_CLASSES;
    p->n_classes = contrast ? 0 : number(p->scalars, "labels");
    p->params = (ds_task_params){
        .token_types = number(p->scalars, "token_types"),
        .problem = number(p->scalars, "problem"),
        .contrast = {.scale = json_number_value(json_object_get(p->scalars, "scale")),
                     .n_negatives = number(p->scalars, "negatives")}};
    read_dense(p);
    p->batch.tensors = p->tensors;
    for (size_t i = 0; i < p->golden.n_tensors; ++i) {
        const golden_tensor *t = &p->golden.tensors[i];
        if (strcmp(t->name, "logits") == 0) {
            continue;
        }
        ds_tensor *to = &p->tensors[p->batch.n_tensors].tensor;
        p->tensors[p->batch.n_tensors++].name = t->name;
        to->data = (void *)(uintptr_t)t->data;
        to->meta.dtype = strcmp(t->dtype, "F32") == 0 ? DS_DTYPE_F32 : DS_DTYPE_I32;
        to->meta.shape.n_dims = t->n_dims;
        memcpy(to->meta.shape.dims, t->dims, t->n_dims * sizeof *t->dims);
    }
}

static void close_case(task_case *p)
{
    ds_model_destroy(&p->model);
    golden_close(&p->golden);
    json_decref(p->scalars);
}

static ds_status create(const task_case *p, ds_engine **engine_out)
{
    ds_config *config = NULL;
    static const char text[] =
        "{\"train_batch_size\": 3, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3, "
        "\"weight_decay\": 0.01}}, \"gradient_clipping\": 0}";
    const ds_engine_params params = {.model = p->model,
                                     .seq_length = T,
                                     .weights = p->folder,
                                     .decay_all = true,
                                     .task = p->task,
                                     .n_classes = p->n_classes,
                                     .task_params = &p->params};
    ds_engine_params with = params;
    CHECK_OK(ctx, ds_config_load_text(ctx, "test", text, sizeof text - 1, NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    with.config = config;
    const ds_status status = ds_initialize(ctx, &with, engine_out);
    ds_config_destroy(&config);
    return status;
}

/* Of all numbers together, relative; of a gradient that is all rounding the difference itself. */
static double error_of(const float *got, const float *want, size_t n)
{
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < n; ++i) {
        difference += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(norm) < 1e-5 ? sqrt(difference) : sqrt(difference / norm);
}

static void check_close(const char *name, const char *what, double got, double limit)
{
    print_message("%-20s %-14s %.2e\n", name, what, got);
    if (!(got <= limit)) {
        fail_msg("%s: %s: %g is above %g", name, what, got, limit);
    }
}

static double worst_gradient(const ds_engine *engine, const task_case *p)
{
    golden_file grads = golden_read("encoder_tasks/%s/grads.safetensors", p->name);
    double worst = 0.0;
    for (size_t i = 0; i < grads.n_tensors; ++i) {
        const golden_tensor *want = &grads.tensors[i];
        float *got = malloc(want->count * sizeof *got);
        assert_non_null(got);
        CHECK_OK(ctx, ds_engine_get(engine, DS_CELL_GRAD, want->name, got, want->count));
        worst = fmax(worst, error_of(got, want->data, want->count));
        free(got);
    }
    golden_close(&grads);
    return worst;
}

/* Losses and gradients of a case, and its steps; the bits of its end. */
static uint64_t check_training(const char *name, uint64_t mini_batch)
{
    task_case p;
    ds_engine *engine = NULL;
    double worst = 0.0;
    double loss = 0.0;
    uint64_t hash = 0;
    open_case(name, &p);
    p.params.contrast.mini_batch = mini_batch;
    const json_t *losses = json_object_get(p.scalars, "adamw_losses");
    const double first = json_number_value(json_array_get(losses, 0));
    assert_int_equal(json_array_size(losses), N_STEPS);
    CHECK_OK(ctx, create(&p, &engine));
    set_dense(&p, engine);
    CHECK_OK(ctx, ds_engine_eval_batch(engine, &p.batch, &loss, NULL));
    check_close(name, "loss, eval", fabs(loss - first) / first, 2e-6);
    for (size_t step = 0; step < N_STEPS; ++step) {
        const double want = json_number_value(json_array_get(losses, step));
        CHECK_OK(ctx, ds_engine_forward(engine, &p.batch));
        worst = fmax(worst, fabs(ds_engine_loss(engine) - want) / first);
        CHECK_OK(ctx, ds_engine_backward(engine));
        if (step == 0) {
            check_close(name, "loss", worst, mini_batch > 0 ? 1e-6 : 2e-6);
            check_close(name, "gradients", worst_gradient(engine, &p), 1e-4);
        }
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    check_close(name, "AdamW losses", worst, 2e-5);
    CHECK_OK(ctx, engine_hash(ctx, engine, &hash));
    ds_engine_destroy(&engine);
    close_case(&p);
    return hash;
}

static void training_like_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASES; ++i) {
        (void)check_training(cases[i], 0);
    }
}

/* In mini-batches: the same loss and gradients; the same bits where there is one. */
static void mini_batches_like_sentence_transformers(void **state)
{
    static const uint64_t sizes[] = {1, 2, 4, 5, 6, 9};
    (void)state;
    for (size_t i = FIRST_CONTRAST; i < N_CASES; ++i) {
        const uint64_t whole = check_training(cases[i], 0);
        const uint64_t rows = strcmp(cases[i], "contrast_negatives") == 0 ||
                                      strcmp(cases[i], "contrast_dense_more") == 0
                                  ? 9
                                  : 6;
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; ++k) {
            const uint64_t hash = check_training(cases[i], sizes[k]);
            print_message("%-20s mini-batches of %d: %s bits\n", cases[i], (int)sizes[k],
                          hash == whole ? "the same" : "other");
            assert_true(sizes[k] < rows || hash == whole);
        }
    }
}

/* Memory of a plan goes by the mini-batch, not by the batch. */
static void memory_is_that_of_a_mini_batch(void **state)
{
    size_t bytes[2];
    (void)state;
    for (int i = 0; i < 2; ++i) {
        task_case p;
        ds_engine *engine = NULL;
        open_case("contrast_negatives", &p);
        p.params.contrast.mini_batch = (uint64_t)i;
        CHECK_OK(ctx, create(&p, &engine));
        bytes[i] = engine->train_plan->arena_bytes;
        ds_engine_destroy(&engine);
        close_case(&p);
    }
    print_message("bytes of the plan: %zu at once, %zu in mini-batches of 1\n", bytes[0], bytes[1]);
    assert_true(bytes[1] < bytes[0]);
}

static const void *input(const task_case *p, const char *name)
{
    const golden_tensor *t = golden_find(&p->golden, name);
    return t != NULL ? t->data : NULL;
}

/* Each row's document, alone. */
static void work_like_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4; ++i) {
        task_case p;
        ds_encoder *encoder = NULL;
        ds_tensor rows;
        open_case(cases[i], &p);
        const ds_encoder_params params = {
            .model = p.model, .weights = p.folder, .task = p.task, .n_classes = p.n_classes};
        const int32_t *ids = input(&p, "input_ids");
        const int32_t *first = input(&p, "first");
        const int32_t *types = input(&p, "token_type_ids");
        const float *want = input(&p, "logits");
        CHECK_OK(ctx, ds_encoder_create(ctx, &params, &encoder));
        for (size_t row = 0; row < 3; ++row) {
            uint32_t own[T];
            uint8_t own_types[T] = {0};
            size_t n = 0;
            for (; n < T && first[row * T + n] == 0; ++n) {
                own[n] = (uint32_t)ids[row * T + n];
                own_types[n] = (uint8_t)(types != NULL ? types[row * T + n] : 0);
            }
            CHECK_OK(ctx, ds_encoder_run_typed(encoder, own, types != NULL ? own_types : NULL, n,
                                               &rows));
            check_close(cases[i], "logits",
                        error_of(rows.data, want + row * p.n_classes, p.n_classes), 2e-5);
        }
        const uint8_t third[2] = {0, 2};
        CHECK_FAILS(ctx, ds_encoder_run_typed(encoder, (const uint32_t[]){3, 4}, third, 2, &rows),
                    DS_ERR_ARG, "type 2; the model has 2 types");
        ds_encoder_destroy(&encoder);
        close_case(&p);
    }
}

static void what_is_not_built_is_refused(void **state)
{
    static const struct {
        const char *name;
        uint32_t task, problem, types;
        double scale;
        const char *message;
    } rows[] = {
        {"pair", DS_TASK_TOKEN_CLASSES, DS_PROBLEM_REGRESSION, 0, 0.0, "SEQUENCE_CLASSES alone"},
        {"pair", DS_TASK_SEQUENCE_CLASSES, DS_PROBLEMS, 0, 0.0, "problem 3"},
        {"pair", DS_TASK_SEQUENCE_CLASSES, DS_PROBLEM_CLASSES, 2, 0.0, "token_types 2"},
        {"contrast", DS_TASK_CONTRAST, DS_PROBLEM_CLASSES, 0, 0.0, "scale is 0"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        task_case p;
        ds_engine *engine = NULL;
        open_case(rows[i].name, &p);
        p.task = rows[i].task;
        p.params.problem = rows[i].problem;
        p.params.token_types = rows[i].types;
        p.params.contrast.scale = rows[i].scale;
        CHECK_FAILS(ctx, create(&p, &engine), DS_ERR_ARG, rows[i].message);
        close_case(&p);
    }
}

/* Modules that do not fit the model or one another. */
static void modules_that_do_not_fit(void **state)
{
    static const struct {
        ds_dense dense[2];
        uint32_t n;
        const char *message;
    } rows[] = {
        {{{.n_in = 23, .n_out = 4}}, 1, "dense[0] has n_in 23"},
        {{{.n_in = 24, .n_out = 4}, {.n_in = 5, .n_out = 4}}, 2, "before it have 4 numbers"},
        {{{.n_in = 24, .n_out = 0}}, 1, "n_out 0"},
        {{{.n_in = 24, .n_out = 4, .function = DS_DENSE_FUNCTIONS}}, 1, "function 6"},
        {{{.n_in = 24, .n_out = 4, .reserved = {1}}}, 1, "ds_dense"},
        {{{0}}, 5, "n_dense is 5; expected 4 at most"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        task_case p;
        ds_engine *engine = NULL;
        open_case("contrast", &p);
        p.params.contrast.dense = rows[i].dense;
        p.params.contrast.n_dense = rows[i].n;
        CHECK_FAILS(ctx, create(&p, &engine), DS_ERR_ARG, rows[i].message);
        close_case(&p);
    }
}

/* What goes with a mini-batch's own recomputation and what does not. */
static void mini_batches_refuse(void **state)
{
    static const struct {
        const char *config, *message;
    } rows[] = {
        {"\"activation_checkpointing\": {\"recompute\": \"selective\"}",
         "mini_batch with activation_checkpointing.recompute \"selective\" is not built"},
        {"\"activation_checkpointing\": {\"recompute\": \"full\"}",
         "mini_batch with activation_checkpointing.recompute \"full\" is not built"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[512];
        task_case p;
        ds_config *config = NULL;
        ds_engine *engine = NULL;
        open_case("contrast", &p);
        p.params.contrast.mini_batch = 2;
        const int n = snprintf(text, sizeof text,
                               "{\"train_batch_size\": 3, \"optimizer\": {\"type\": \"AdamW\", "
                               "\"params\": {\"lr\": 1e-3}}, %s}",
                               rows[i].config);
        CHECK_OK(ctx, ds_config_load_text(ctx, "test", text, (size_t)n, NULL, &config));
        CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
        const ds_engine_params params = {.model = p.model,
                                         .config = config,
                                         .seq_length = T,
                                         .weights = p.folder,
                                         .task = p.task,
                                         .task_params = &p.params};
        CHECK_FAILS(ctx, ds_initialize(ctx, &params, &engine), DS_ERR_UNSUPPORTED, rows[i].message);
        ds_config_destroy(&config);
        close_case(&p);
    }
}

static int setup(void **state)
{
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 2;
    return ds_ctx_create(&params, &ctx) < 0;
}

static int teardown(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_like_transformers),
        cmocka_unit_test(mini_batches_like_sentence_transformers),
        cmocka_unit_test(memory_is_that_of_a_mini_batch),
        cmocka_unit_test(work_like_transformers),
        cmocka_unit_test(what_is_not_built_is_refused),
        cmocka_unit_test(modules_that_do_not_fit),
        cmocka_unit_test(mini_batches_refuse),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
