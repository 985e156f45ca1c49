/* SPDX-License-Identifier: Apache-2.0 */
/* T5 through the library's own engine and generator, like transformers (test/golden/t5): rows of
 * several pairs of source and target, gradients, steps of AdamW, exports, greedy generation.
 * labels: slow */
#include "accel/cpu/cpu_features.h"
#include "common/parity.h"
#include "common/scratch.h"
#include "op/relative_buckets.h"

#include <deepspeed/encoder.h>
#include <deepspeed/infer.h>
#include <deepspeed/safetensors.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const variants[] = {"t5", "t5_untied", "t5_start", "t5_shared"};
enum { N_VARIANTS = sizeof variants / sizeof *variants, N_STEPS = 20, N_NEW = 24 };

static ds_ctx *ctx;

static void check_close(const char *variant, const char *what, double got, double limit)
{
    print_message("%-14s %-32s %.2e\n", variant, what, got);
    if (!(got <= limit)) {
        fail_msg("%s: %s: %g is above %g", variant, what, got, limit);
    }
}

/* Largest difference, relative to the largest number, where there are targets. */
static double distance(const parity_case *p, const float *got, const float *want)
{
    const int32_t *first = golden_i32(&p->golden, "first");
    double most = 0.0;
    double largest = 0.0;
    for (int64_t at = 0; at < p->n_batch * p->n_seq * p->vocab; ++at) {
        const bool there = want[at - at % p->vocab] != 0.0f;
        largest = fmax(largest, fabs((double)want[at]));
        most = there ? fmax(most, fabs((double)got[at] - (double)want[at])) : most;
    }
    assert_int_equal(first[0], 0);
    return most / largest;
}

static double error_of(const float *got, const float *want, size_t n)
{
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < n; ++i) {
        difference += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(difference / norm);
}

/* got where want has numbers, else zeros. */
static void blank(const parity_case *p, float *got, const float *want)
{
    for (int64_t at = 0; at < p->n_batch * p->n_seq * p->vocab; ++at) {
        got[at] = want[at - at % p->vocab] != 0.0f ? got[at] : 0.0f;
    }
}

static void buckets_like_transformers(void **state)
{
    golden_file rows = golden_read("t5/buckets.safetensors");
    (void)state;
    assert_int_equal(rows.n_tensors, 18);
    for (size_t i = 0; i < rows.n_tensors; ++i) {
        long long both = 0;
        long long n = 0;
        long long most = 0;
        assert_int_equal(sscanf(rows.tensors[i].name, "%lld_%lld_%lld", &both, &n, &most), 3);
        const dsi_relative_attrs attrs = {.n_buckets = n, .max_distance = most, .both = both};
        const int32_t *want = golden_i32(&rows, rows.tensors[i].name);
        for (int64_t distance = -300; distance <= 300; ++distance) {
            assert_int_equal(dsi_relative_bucket(&attrs, n, distance), want[distance + 300]);
        }
    }
    golden_close(&rows);
}

static void logits_like_transformers(void **state)
{
    static const ds_isa isas[] = {DS_ISA_REF, DSI_NEEDS_AMX};
    (void)state;
    for (size_t i = 0; i < N_VARIANTS; ++i) {
        for (size_t k = 0; k < 2; ++k) {
            parity_case p;
            parity_open_pairs(ctx, variants[i], &p);
            const golden_tensor *want = golden_find(&p.golden, "logits");
            float *got = parity_logits(ctx, &p, DS_DTYPE_F32, isas[k]);
            check_close(variants[i], k == 0 ? "logits, reference" : "logits",
                        distance(&p, got, want->data), 2e-5);
            free(got);
            got = parity_logits(ctx, &p, DS_DTYPE_BF16, isas[k]);
            blank(&p, got, want->data);
            const double own = error_of(got, want->data, want->count);
            const double theirs =
                error_of(golden_find(&p.golden, "logits_bf16")->data, want->data, want->count);
            check_close(variants[i], "logits, bf16 over transformers'", own / theirs, 1.5);
            free(got);
            parity_close(&p);
        }
    }
}

static double worst_gradient(const ds_engine *engine, const parity_case *p)
{
    golden_file grads = golden_read("t5/%s/grads.safetensors", p->name);
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

static void training_like_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_VARIANTS; ++i) {
        parity_case p;
        parity_open_pairs(ctx, variants[i], &p);
        const dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, DSI_NEEDS_AMX);
        const json_t *losses = json_object_get(p.scalars, "adamw_losses");
        ds_engine *engine = parity_engine(ctx, &p, &spec);
        const double first = json_number_value(json_array_get(losses, 0));
        double worst = 0.0;
        assert_int_equal(json_array_size(losses), N_STEPS);
        for (size_t step = 0; step < N_STEPS; ++step) {
            const double want = json_number_value(json_array_get(losses, step));
            CHECK_OK(ctx, ds_engine_forward(engine, &p.batch));
            const double error = fabs(ds_engine_loss(engine) - want) / first;
            CHECK_OK(ctx, ds_engine_backward(engine));
            if (step == 0) {
                check_close(variants[i], "loss", error, 1e-6);
                check_close(variants[i], "gradients", worst_gradient(engine, &p), 1e-4);
            }
            worst = fmax(worst, error);
            CHECK_OK(ctx, ds_engine_step(engine));
        }
        check_close(variants[i], "AdamW losses", worst, 1e-4);
        ds_engine_destroy(&engine);
        parity_close(&p);
    }
}

/* A folder that was read and written has the tensors that it had, byte for byte, and no other. */
static void export_is_what_was_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_VARIANTS; ++i) {
        parity_case p;
        char *folder = scratch_make();
        ds_safetensors *was = NULL;
        ds_safetensors *is = NULL;
        parity_open_pairs(ctx, variants[i], &p);
        const dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, DSI_NEEDS_AMX);
        ds_engine *engine = parity_engine(ctx, &p, &spec);
        CHECK_OK(ctx, ds_engine_save_16bit_model(engine, folder, NULL));
        CHECK_OK(ctx, ds_safetensors_open_folder(ctx, p.folder, &was));
        CHECK_OK(ctx, ds_safetensors_open_folder(ctx, folder, &is));
        assert_int_equal(ds_safetensors_count(is), ds_safetensors_count(was));
        for (size_t k = 0; k < ds_safetensors_count(was); ++k) {
            const ds_safetensor *a = ds_safetensors_at(was, k);
            const ds_safetensor *b = ds_safetensors_find(is, a->name);
            assert_non_null(b);
            assert_int_equal(b->bytes, a->bytes);
            assert_memory_equal(b->data, a->data, a->bytes);
        }
        ds_safetensors_close(&was);
        ds_safetensors_close(&is);
        ds_engine_destroy(&engine);
        scratch_remove(folder);
        parity_close(&p);
    }
}

/* The weights of `base` with the output projection of `head` (JSON null: none) in a folder. */
static void write_head(const char *base, const json_t *head, const char *folder)
{
    char path[PARITY_PATH];
    ds_safetensors *st = NULL;
    ds_tensor_source tensors[128];
    float *made = NULL;
    size_t n = 0;
    golden_path(path, sizeof path, "t5/%s", base);
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, path, &st));
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *t = ds_safetensors_at(st, i);
        if (strcmp(t->name, "lm_head.weight") != 0) {
            assert_true(n < sizeof tensors / sizeof *tensors - 1);
            tensors[n++] = (ds_tensor_source){.name = t->name, .meta = t->meta, .data = t->data};
        }
        if (strcmp(t->name, "shared.weight") == 0 && json_is_string(head)) {
            const size_t count = (size_t)ds_shape_count(t->meta.shape);
            made = malloc(t->bytes);
            assert_non_null(made);
            for (size_t k = 0; k < count; ++k) {
                const float half = strcmp(json_string_value(head), "half") == 0 ? 0.5f : 1.0f;
                made[k] = half * ((const float *)t->data)[k];
            }
            tensors[n++] =
                (ds_tensor_source){.name = "lm_head.weight", .meta = t->meta, .data = made};
        }
    }
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    CHECK_OK(ctx, ds_safetensors_write(ctx, path, tensors, n, NULL));
    free(made);
    ds_safetensors_close(&st);
}

/* config.json of `base` where the two keys have other values; JSON null: a key is not there. */
static void write_head_config(const char *base, const json_t *tie, const json_t *scale,
                              const char *folder)
{
    char path[PARITY_PATH];
    json_t *config = golden_json("t5/%s/config.json", base);
    (void)json_object_del(config, "tie_word_embeddings");
    (void)json_object_del(config, "scale_decoder_outputs");
    if (!json_is_null(tie)) {
        (void)json_object_set(config, "tie_word_embeddings", (json_t *)(uintptr_t)tie);
    }
    if (!json_is_null(scale)) {
        (void)json_object_set(config, "scale_decoder_outputs", (json_t *)(uintptr_t)scale);
    }
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
}

/* What is exported says both keys as they are, and has a projection where it is not tied. */
static void check_head_export(ds_engine *engine, bool tied, bool scaled)
{
    char path[PARITY_PATH];
    char *folder = scratch_make();
    ds_safetensors *st = NULL;
    CHECK_OK(ctx, ds_engine_save_16bit_model(engine, folder, NULL));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, folder, &st));
    assert_int_equal(ds_safetensors_find(st, "lm_head.weight") == NULL, tied);
    ds_safetensors_close(&st);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *config = json_load_file(path, 0, NULL);
    const json_t *tie = json_object_get(config, "tie_word_embeddings");
    const json_t *scale = json_object_get(config, "scale_decoder_outputs");
    assert_int_equal(tie == NULL || json_is_true(tie), tied);
    assert_int_equal(scale != NULL ? json_is_true(scale) : tied, scaled);
    json_decref(config);
    scratch_remove(folder);
}

static void check_head(const json_t *row)
{
    const char *base = json_string_value(json_object_get(row, "base"));
    const json_t *tie = json_object_get(row, "tie");
    const json_t *scale = json_object_get(row, "scale");
    const json_t *head = json_object_get(row, "head");
    const double want = json_number_value(json_object_get(row, "loss"));
    char path[PARITY_PATH];
    char *folder = scratch_make();
    parity_case p;
    parity_open_pairs(ctx, base, &p);
    write_head(base, head, folder);
    write_head_config(base, tie, scale, folder);
    ds_model_destroy(&p.model);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &p.model));
    (void)snprintf(p.folder, sizeof p.folder, "%s", folder);
    const dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, DSI_NEEDS_AMX);
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    CHECK_OK(ctx, ds_engine_forward(engine, &p.batch));
    const double got = ds_engine_loss(engine);
    if (!(fabs(got - want) <= 2e-6 * fabs(want))) {
        char *text = json_dumps(row, 0);
        fail_msg("%s: the loss is %.8g", text, got);
    }
    check_head_export(engine, !json_is_string(head) || strcmp(json_string_value(head), "same") == 0,
                      json_is_null(scale) ? !json_is_false(tie) : json_is_true(scale));
    ds_engine_destroy(&engine);
    parity_close(&p);
    scratch_remove(folder);
}

/* Every way in which config.json and the weights can say what the output projection is. */
static void heads_like_transformers(void **state)
{
    json_t *rows = golden_json("t5/heads.json");
    (void)state;
    assert_int_equal(json_array_size(rows), 54);
    for (size_t i = 0; i < json_array_size(rows); ++i) {
        check_head(json_array_get(rows, i));
    }
    json_decref(rows);
}

/* The weights beside it, whatever way its path is written. */
static void heads_of_this_folder(void **state)
{
    static const char *const paths[] = {"config.json", "./config.json", NULL};
    char whole[PARITY_PATH];
    char *folder = scratch_make();
    char *before = getcwd(NULL, 0);
    json_t *head = json_string("half");
    (void)state;
    write_head("t5", head, folder);
    write_head_config("t5", json_true(), json_null(), folder);
    (void)snprintf(whole, sizeof whole, "%s/config.json", folder);
    assert_int_equal(chdir(folder), 0);
    for (int i = 0; i < 3; ++i) {
        ds_model *model = NULL;
        CHECK_OK(ctx, ds_model_from_config(ctx, paths[i] != NULL ? paths[i] : whole, &model));
        assert_false(ds_model_get_info(model)->tied_embeddings);
        ds_model_destroy(&model);
    }
    assert_int_equal(chdir(before), 0);
    json_decref(head);
    free(before);
    scratch_remove(folder);
}

/* A config.json that has no weights beside it, or is a text. */
static void heads_without_weights(void **state)
{
    static const struct {
        const char *keys, *want;
        bool tied;
    } rows[] = {
        {"", "scaled: 1", true},
        {"\"tie_word_embeddings\":false,", "scaled: 0", false},
        {"\"tie_word_embeddings\":true,\"scale_decoder_outputs\":false,", "scaled: 0", true},
        {"\"tie_word_embeddings\":false,\"scale_decoder_outputs\":true,", "scaled: 1", false},
        {"\"tie_word_embeddings\":null,", "scaled: 1", true},
        {"\"tie_word_embeddings\":0,", "scaled: 1", true},
        {"\"scale_decoder_outputs\":null,", "scaled: 0", true},
        {"\"scale_decoder_outputs\":\"false\",", "scaled: 1", true}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char text[256];
        char *printed = NULL;
        ds_model *model = NULL;
        (void)snprintf(text, sizeof text, "{%s\"model_type\":\"t5\",\"decoder_start_token_id\":0}",
                       rows[i].keys);
        CHECK_OK(ctx, ds_model_from_text(ctx, text, &model));
        assert_int_equal(ds_model_get_info(model)->tied_embeddings, rows[i].tied);
        CHECK_OK(ctx, ds_model_print(model, &printed));
        assert_non_null(strstr(printed, rows[i].want));
        free(printed);
        ds_model_destroy(&model);
    }
}

/* An output projection that an adapter unties keeps the factor before it. */
static void untied_keeps_its_factor(void **state)
{
    (void)state;
    for (int scaled = 0; scaled < 2; ++scaled) {
        char *printed = NULL;
        parity_case p;
        ds_model *made = NULL;
        parity_open_pairs(ctx, scaled ? "t5" : "t5_shared", &p);
        CHECK_OK(ctx, ds_model_change(p.model, &(ds_model_changes){.untie = true}, &made));
        assert_false(ds_model_get_info(made)->tied_embeddings);
        CHECK_OK(ctx, ds_model_print(made, &printed));
        assert_non_null(strstr(printed, scaled ? "scaled: 1" : "scaled: 0"));
        free(printed);
        ds_model_destroy(&made);
        parity_close(&p);
    }
}

/* One generator for sources that are longer, then shorter than the one before. */
static void greedy_like_transformers(void **state)
{
    static const int lengths[] = {13, 37, 1};
    (void)state;
    for (size_t i = 0; i < N_VARIANTS; ++i) {
        parity_case p;
        ds_generator *generator = NULL;
        parity_open_pairs(ctx, variants[i], &p);
        const ds_generator_params params = {
            .model = p.model, .weights = p.folder, .max_length = 40};
        CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; ++k) {
            char name[32];
            (void)snprintf(name, sizeof name, "source_%d", lengths[k]);
            const int32_t *source = golden_i32(&p.golden, name);
            (void)snprintf(name, sizeof name, "greedy_%d", lengths[k]);
            const int32_t *want = golden_i32(&p.golden, name);
            CHECK_OK(ctx,
                     ds_generator_prompt(generator, (const uint32_t *)source, (size_t)lengths[k]));
            for (int n = 0; n < N_NEW; ++n) {
                uint32_t id = 0;
                CHECK_OK(ctx, ds_generator_next(generator, &(ds_sampling){0}, &id));
                assert_int_equal(id, want[n]);
            }
        }
        ds_generator_destroy(&generator);
        parity_close(&p);
    }
}

/* The encoder alone. */
static void hidden_like_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_VARIANTS; ++i) {
        parity_case p;
        ds_encoder *encoder = NULL;
        ds_tensor rows;
        parity_open_pairs(ctx, variants[i], &p);
        const ds_encoder_params params = {
            .model = p.model, .weights = p.folder, .max_length = 20, .task = DS_TASK_HIDDEN};
        const golden_tensor *want = golden_find(&p.golden, "hidden_13");
        CHECK_OK(ctx, ds_encoder_create(ctx, &params, &encoder));
        CHECK_OK(ctx, ds_encoder_run(encoder, (const uint32_t *)golden_i32(&p.golden, "source_13"),
                                     13, &rows));
        assert_int_equal(ds_shape_count(rows.meta.shape), want->count);
        check_close(variants[i], "encoder", error_of(rows.data, want->data, want->count), 1e-5);
        ds_encoder_destroy(&encoder);
        parity_close(&p);
    }
}

static void what_is_not_built_is_refused(void **state)
{
    parity_case p;
    ds_engine *engine = NULL;
    (void)state;
    parity_open_pairs(ctx, "t5", &p);
    const dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F16, DSI_NEEDS_AMX);
    const ds_engine_params engine_params = {
        .model = p.model, .seq_length = p.n_seq, .weights = p.folder};
    CHECK_FAILS(ctx, dsi_engine_create(ctx, &engine_params, &spec, &engine), DS_ERR_UNSUPPORTED,
                "take bf16 or fp32");
    parity_close(&p);
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
        cmocka_unit_test(buckets_like_transformers),    cmocka_unit_test(logits_like_transformers),
        cmocka_unit_test(training_like_transformers),   cmocka_unit_test(export_is_what_was_read),
        cmocka_unit_test(greedy_like_transformers),     cmocka_unit_test(hidden_like_transformers),
        cmocka_unit_test(what_is_not_built_is_refused), cmocka_unit_test(heads_like_transformers),
        cmocka_unit_test(heads_of_this_folder),         cmocka_unit_test(heads_without_weights),
        cmocka_unit_test(untied_keeps_its_factor),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
