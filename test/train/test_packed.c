/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights (test/golden/packed, by bitsandbytes, torch and PEFT): bytes, products of QLoRA
 * over ten steps, logits, generation, what a packed parameter is not, resume. */
#include "base/packed.h"
#include "common/check.h"
#include "common/scratch.h"
#include "compile/train_graph.h"
#include "exec/exec.h"
#include "train/engine.h"

#include <deepspeed/data.h>
#include <deepspeed/engine_states.h>
#include <deepspeed/infer.h>
#include <deepspeed/safetensors.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 4, SEQ = 48, PATH_BYTES = 1024, LOGITS = 32 };

#define GOLDEN  DS_SOURCE_DIR "/test/golden/packed/"
#define ADAPTER DS_SOURCE_DIR "/test/golden/adapter/"

static ds_ctx *ctx;

/* ---- bytes ----------------------------------------------------------------------------------- */

/* The numbers of make_packed.py. user: the seed. */
static ds_status numbers(void *user, int64_t first, int64_t n, float *out)
{
    const uint64_t seed = *(const uint64_t *)user;
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t at = (uint64_t)(first + i) + 1000003u * seed;
        const uint32_t hash = (uint32_t)(at * 2654435761u);
        const float x = ((float)(hash >> 16) - 32768.0f) / 32768.0f;
        out[i] = first + i >= 64 && first + i < 128 ? 0.0f : x * x * x * 0.05f;
    }
    return DS_OK;
}

static const ds_safetensor *tensor(const ds_safetensors *st, const char *label, const char *format,
                                   const char *key)
{
    char name[64];
    (void)snprintf(name, sizeof name, "%s%s%s%s%s", label, format[0] != '\0' ? "." : "", format,
                   key[0] != '\0' ? "." : "", key);
    return ds_safetensors_find(st, name);
}

/* Bytes at *at are those of a tensor; goes behind them. */
static void same_bytes(const unsigned char **at, const ds_safetensor *t)
{
    assert_non_null(t);
    assert_memory_equal(*at, t->data, t->bytes);
    *at += t->bytes;
}

static void bytes_as_bitsandbytes(void **state)
{
    static const struct {
        const char *name;
        int64_t rows, columns;
    } shapes[] = {
        {"odd", 5, 13}, {"short", 33, 70}, {"even", 64, 64}, {"one", 1, 1}, {"nested", 40, 701}};
    ds_safetensors *st = NULL;
    uint32_t n = 0;
    (void)state;
    CHECK_OK(ctx, ds_safetensors_open(ctx, GOLDEN "bytes.safetensors", &st));
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
        const ds_safetensor *seed = tensor(st, shapes[s].name, "seed", "");
        assert_non_null(seed);
        for (int f = 1; f < DS_PACKING_COUNT; ++f) {
            const ds_packed p = {(ds_packing)f, 0, shapes[s].rows, shapes[s].columns};
            const char *format = ds_packing_name(p.format);
            const size_t bytes = ds_packed_bytes(&p);
            uint64_t number;
            if (tensor(st, shapes[s].name, format, "codes") == NULL) {
                continue;
            }
            memcpy(&number, seed->data, sizeof number);
            unsigned char *data = malloc(bytes);
            CHECK_OK(ctx, dsi_packed_write(ctx, &p, numbers, &number, data));
            const unsigned char *at = data;
            if (p.format == DS_PACKING_NF4_DOUBLE) {
                same_bytes(&at, tensor(st, shapes[s].name, format, "offset"));
                same_bytes(&at, tensor(st, shapes[s].name, format, "nested"));
            }
            same_bytes(&at, tensor(st, shapes[s].name, format, "absmax"));
            same_bytes(&at, tensor(st, shapes[s].name, format, "codes"));
            assert_ptr_equal(at, data + bytes);
            free(data);
            ++n;
        }
    }
    assert_int_equal(n, 18);
    ds_safetensors_close(&st);
}

/* Any part of a matrix reads as the whole does. */
static void parts_read_alike(void **state)
{
    (void)state;
    for (int f = 1; f < DS_PACKING_COUNT; ++f) {
        const ds_packed p = {(ds_packing)f, 0, 7, 61};
        unsigned char data[4096];
        float whole[7 * 61], part[7 * 61];
        uint64_t seed = 3;
        CHECK_OK(ctx, dsi_packed_write(ctx, &p, numbers, &seed, data));
        dsi_packed_read(&p, data, 0, 7 * 61, whole);
        for (int64_t first = 0; first < 7 * 61; first += 5) {
            const int64_t n = (7 * 61 - first) / 2 + 1;
            dsi_packed_read(&p, data, first, n, part);
            assert_memory_equal(part, whole + first, (size_t)n * sizeof *part);
        }
    }
}

static ds_status endless(void *user, int64_t first, int64_t n, float *out)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i) {
        out[i] = first + i == 77 ? (float)NAN : 1.0f;
    }
    return DS_OK;
}

static void numbers_are_finite(void **state)
{
    (void)state;
    for (int f = 1; f < DS_PACKING_COUNT; ++f) {
        const ds_packed p = {(ds_packing)f, 0, 10, 20};
        unsigned char data[4096];
        CHECK_FAILS(ctx, dsi_packed_write(ctx, &p, endless, NULL, data), DS_ERR_NUMERIC,
                    "not finite");
    }
}

/* ---- training -------------------------------------------------------------------------------- */

typedef struct run {
    ds_model *model;
    ds_adapter *adapter;
    ds_tokenizer *tokenizer;
    ds_dataset *data;
    ds_loader *loader;
    ds_engine *engine;
    char weights[PATH_BYTES];
} run;

static void open_engine(run *r, const char *config_text)
{
    ds_config *config = NULL;
    CHECK_OK(ctx,
             ds_config_load_text(ctx, "test", config_text, strlen(config_text), NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    const ds_engine_params params = {.model = r->model,
                                     .config = config,
                                     .seq_length = SEQ,
                                     .seed = 3,
                                     .weights = r->weights,
                                     .adapter = r->adapter};
    CHECK_OK(ctx, ds_initialize(ctx, &params, &r->engine));
    ds_config_destroy(&config);
}

#define CONFIG(more)                                                                               \
    "{\"train_micro_batch_size_per_gpu\": 4, \"gradient_clipping\": 0.0, " more                    \
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-2, \"eps\": 1e-5, "              \
    "\"weight_decay\": 0.0}}}"

static void open_run(run *r, const char *name, const char *family, ds_packing format,
                     const char *config_text)
{
    static const char *const files[] = {ADAPTER "rows.jsonl"};
    char path[PATH_BYTES];
    *r = (run){0};
    (void)snprintf(r->weights, PATH_BYTES, ADAPTER "models/%s", family);
    (void)snprintf(path, sizeof path, "%.900s/config.json", r->weights);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &r->model));
    (void)snprintf(path, sizeof path, ADAPTER "%s/start", name);
    CHECK_OK(ctx, ds_adapter_open(ctx, path, &r->adapter));
    CHECK_OK(ctx, ds_adapter_pack_base(r->adapter, format));
    CHECK_OK(ctx, ds_tokenizer_open(ctx, "bytes", &r->tokenizer));
    const ds_dataset_params data = {
        .files = files, .n_files = 1, .tokenizer = r->tokenizer, .seq_length = SEQ};
    CHECK_OK(ctx, ds_dataset_open(ctx, &data, &r->data));
    const ds_loader_params loader = {.batch = ROWS, .seq_length = SEQ};
    CHECK_OK(ctx, ds_loader_create(ctx, r->data, &loader, &r->loader));
    open_engine(r, config_text);
}

static void close_run(run *r)
{
    ds_engine_destroy(&r->engine);
    ds_adapter_destroy(&r->adapter);
    ds_loader_destroy(&r->loader);
    ds_dataset_close(&r->data);
    ds_tokenizer_close(&r->tokenizer);
    ds_model_destroy(&r->model);
}

static double step(run *r)
{
    ds_loader_batch b;
    CHECK_OK(ctx, ds_loader_next(r->loader, &b));
    const ds_named_tensor tensors[] = {{"input_ids", b.input_ids},
                                       {"targets", b.targets},
                                       {"positions", b.positions},
                                       {"first", b.first}};
    const ds_batch batch = {tensors, 4};
    CHECK_OK(ctx, ds_engine_forward(r->engine, &batch));
    const double loss = ds_engine_loss(r->engine);
    CHECK_OK(ctx, ds_engine_backward(r->engine));
    CHECK_OK(ctx, ds_engine_step(r->engine));
    return loss;
}

/* Of a generator beside the folder, and of one of the live engine: the same bits. */
static void logits_of(run *r, float logits[LOGITS])
{
    static const uint32_t ids[] = {'o', 'n', 'e', ' ', 't', 'w', 'o', ' '};
    const ds_generator_params beside = {
        .model = r->model, .weights = r->weights, .max_length = SEQ, .adapter = r->adapter};
    const ds_generator_params live = {.engine = r->engine, .max_length = SEQ};
    const ds_generator_params *const params[] = {&beside, &live};
    float made[2][LOGITS];
    for (int i = 0; i < 2; ++i) {
        ds_generator *g = NULL;
        int64_t n = 0;
        CHECK_OK(ctx, ds_generator_create(ctx, params[i], &g));
        CHECK_OK(ctx, ds_generator_prompt(g, ids, sizeof ids / sizeof ids[0]));
        memcpy(made[i], ds_generator_logits(g, &n), sizeof made[i]);
        ds_generator_destroy(&g);
    }
    assert_memory_equal(made[0], made[1], sizeof made[0]);
    memcpy(logits, made[0], sizeof made[0]);
}

static void steps_as_peft(void **state)
{
    json_t *all = json_load_file(GOLDEN "steps.json", 0, NULL);
    size_t i, k;
    json_t *one, *value;
    (void)state;
    assert_int_equal(json_array_size(all), 6);
    json_array_foreach(all, i, one)
    {
        float logits[LOGITS], want[LOGITS];
        run r;
        open_run(&r, json_string_value(json_object_get(one, "case")),
                 json_string_value(json_object_get(one, "model")),
                 ds_packing_from_name(json_string_value(json_object_get(one, "format"))),
                 CONFIG(""));
        json_array_foreach(json_object_get(one, "logits"), k, value)
        {
            want[k] = (float)json_number_value(value);
        }
        logits_of(&r, logits);
        assert_true(check_relative_difference(logits, want, LOGITS) < 1e-5);
        json_array_foreach(json_object_get(one, "losses"), k, value)
        {
            const double loss = step(&r);
            if (fabs(loss - json_number_value(value)) >= 1e-5) {
                fail_msg("case %zu, step %zu: %.9g, expected %.9g", i, k, loss,
                         json_number_value(value));
            }
        }
        close_run(&r);
    }
    json_decref(all);
}

/* It is held in few bits, has no gradient, is read as numbers and not set. */
static void what_it_is(void **state)
{
    static const char name[] = "model.layers.0.self_attn.q_proj.weight";
    static const char *const names[] = {name};
    float numbers_of[256];
    ds_gathered *gathered = NULL;
    run r;
    (void)state;
    open_run(&r, "rslora", "llama", DS_PACKING_NF4, CONFIG(""));
    const ds_cell cell = ds_cells_find(r.engine->cells, DS_CELL_PARAM, name);
    const ds_cell_info *info = ds_cells_get(r.engine->cells, cell);
    assert_int_equal(info->meta.dtype, DS_DTYPE_U8);
    assert_int_equal(ds_meta_bytes(info->meta), 4 * 4 + 128);
    assert_true(info->frozen);
    assert_true(ds_engine_n_parameters(r.engine) > 256 * 16 * 2);
    CHECK_OK(ctx, ds_engine_get(r.engine, DS_CELL_PARAM, name, numbers_of, 256));
    assert_true(numbers_of[0] != 0.0f);
    CHECK_FAILS(ctx, ds_engine_get(r.engine, DS_CELL_PARAM, name, numbers_of, 144), DS_ERR_SHAPE,
                "q_proj");
    CHECK_FAILS(ctx, ds_engine_set(r.engine, DS_CELL_PARAM, name, numbers_of, 256),
                DS_ERR_UNSUPPORTED, "in few bits");
    CHECK_FAILS(ctx, ds_engine_get_full_fp32_param(r.engine, name, numbers_of, 256),
                DS_ERR_UNSUPPORTED, "in few bits");
    CHECK_FAILS(ctx, ds_engine_gather(r.engine, names, 1, 0, &gathered), DS_ERR_UNSUPPORTED,
                "in few bits");
    close_run(&r);
}

/* Three steps, saved, two more; recomputed; beside offloaded parameters: the same bits. Another
 * format is another base. */
static void runs_alike(void **state)
{
    static const char *const configs[] = {
        CONFIG("\"activation_checkpointing\": {\"recompute\": \"full\"}, "),
        CONFIG("\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}, "
               "\"offload_optimizer\": {\"device\": \"cpu\"}}, ")};
    char *out = scratch_make();
    char tag[] = "global_step3";
    double want = 0.0;
    run r, s;
    (void)state;
    open_run(&r, "rslora", "llama", DS_PACKING_NF4_DOUBLE, CONFIG(""));
    for (int i = 0; i < 5; ++i) {
        want = step(&r);
        if (i == 2) {
            CHECK_OK(ctx, ds_engine_save_checkpoint(r.engine, out, tag, NULL));
        }
    }
    for (size_t c = 0; c < 2; ++c) {
        open_run(&s, "rslora", "llama", DS_PACKING_NF4_DOUBLE, configs[c]);
        CHECK_OK(ctx, ds_engine_load_checkpoint(s.engine, out, tag, NULL));
        (void)step(&s);
        assert_true(step(&s) == want);
        close_run(&s);
    }
    open_run(&s, "rslora", "llama", DS_PACKING_NF4, CONFIG(""));
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(s.engine, out, tag, NULL), DS_ERR_ARG, "nf4_double");
    close_run(&s);
    close_run(&r);
    scratch_remove(out);
}

/* Text of a graph says what is packed and reads back; a size that is not that of its bytes is
 * refused. */
static void graphs_print(void **state)
{
    const ds_trace trace = {.mode = DS_TRACE_EVAL,
                            .dtype = DS_DTYPE_BF16,
                            .batch = 1,
                            .seq_length = 8,
                            .packing = DS_PACKING_NF4_DOUBLE};
    ds_model *model = NULL;
    ds_cells *cells[3] = {NULL};
    ds_graph *graphs[3] = {NULL};
    char *text[2];
    (void)state;
    CHECK_OK(ctx, ds_model_from_config(ctx, ADAPTER "models/gpt2/config.json", &model));
    for (int i = 0; i < 3; ++i) {
        CHECK_OK(ctx, ds_cells_create(ctx, 1000, &cells[i]));
    }
    CHECK_OK(ctx, dsi_forward_graph(model, &trace, NULL, NULL, cells[0], &graphs[0]));
    CHECK_OK(ctx, ds_graph_print(graphs[0], &text[0]));
    CHECK_OK(ctx, ds_graph_parse(ctx, text[0], cells[1], ds_op_find, &graphs[1]));
    CHECK_OK(ctx, ds_graph_print(graphs[1], &text[1]));
    assert_string_equal(text[0], text[1]);
    char *size = strstr(text[1], "packed=nf4_double,48,16,transposed");
    assert_non_null(size);
    size[strlen("packed=nf4_double,")] = '8';
    CHECK_FAILS(ctx, ds_graph_parse(ctx, text[1], cells[2], ds_op_find, &graphs[2]), DS_ERR_FORMAT,
                "packed matrix");
    for (int i = 0; i < 3; ++i) {
        ds_graph_destroy(&graphs[i]);
        ds_cells_destroy(&cells[i]);
    }
    free(text[0]);
    free(text[1]);
    ds_model_destroy(&model);
}

static int begin(void **state)
{
    (void)state;
    ctx = check_ctx(2);
    return 0;
}

static int end(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_as_bitsandbytes),
        cmocka_unit_test(parts_read_alike),
        cmocka_unit_test(numbers_are_finite),
        cmocka_unit_test(steps_as_peft),
        cmocka_unit_test(what_it_is),
        cmocka_unit_test(runs_alike),
        cmocka_unit_test(graphs_print),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
