/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders through the library's own engine, like transformers (test/golden/encoder): rows of
 * several documents, logits of masked tokens and of classes, gradients and steps of AdamW; and an
 * encoder at work gives a document's logits that it has in a row.
 * labels: slow */
#include "accel/cpu/cpu_features.h"
#include "common/parity.h"
#include "common/scratch.h"

#include <deepspeed/encoder.h>
#include <deepspeed/infer.h>
#include <deepspeed/safetensors.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const variants[] = {"bert",
                                       "bert_untied",
                                       "roberta",
                                       "bert_sequence",
                                       "bert_token",
                                       "roberta_sequence",
                                       "roberta_token",
                                       "modernbert",
                                       "modernbert_untied",
                                       "modernbert_sequence",
                                       "modernbert_token"};
enum { N_VARIANTS = sizeof variants / sizeof *variants, N_STEPS = 20 };

static ds_ctx *ctx;

static void check_close(const char *variant, const char *what, double got, double limit)
{
    print_message("%-14s %-32s %.2e\n", variant, what, got);
    if (!(got <= limit)) {
        fail_msg("%s: %s: %g is above %g", variant, what, got, limit);
    }
}

/* Largest difference, relative to the largest number. */
static double distance(const float *got, const float *want, size_t n)
{
    double most = 0.0;
    double largest = 0.0;
    for (size_t i = 0; i < n; ++i) {
        most = fmax(most, fabs((double)got[i] - (double)want[i]));
        largest = fmax(largest, fabs((double)want[i]));
    }
    return largest > 0.0 ? most / largest : most;
}

/* Of all numbers together, relative; of a gradient that is all rounding, as that of a bias of keys,
 * the difference itself. */
static double error_of(const float *got, const float *want, size_t n)
{
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < n; ++i) {
        difference += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(norm) < 1e-6 ? sqrt(difference) : sqrt(difference / norm);
}

/* Of classes of documents all but the first token's are not to be compared. */
static void blank(const parity_case *p, float *logits)
{
    const size_t n = (size_t)(p->n_seq * p->vocab);
    for (size_t i = 0; p->task == DS_TASK_SEQUENCE_CLASSES && i < (size_t)p->n_batch; ++i) {
        memset(logits + i * n + p->vocab, 0, (n - (size_t)p->vocab) * sizeof *logits);
    }
}

static void logits_like_transformers(void **state)
{
    static const ds_isa isas[] = {DS_ISA_REF, DSI_NEEDS_AMX};
    (void)state;
    for (size_t i = 0; i < N_VARIANTS; ++i) {
        for (size_t k = 0; k < 2; ++k) {
            parity_case p;
            parity_open_encoder(ctx, variants[i], &p);
            const golden_tensor *want = golden_find(&p.golden, "logits");
            float *got = parity_logits(ctx, &p, DS_DTYPE_F32, isas[k]);
            blank(&p, got);
            check_close(variants[i], k == 0 ? "logits, reference" : "logits",
                        distance(got, want->data, want->count), 2e-5);
            free(got);
            got = parity_logits(ctx, &p, DS_DTYPE_BF16, isas[k]);
            blank(&p, got);
            const double own = error_of(got, want->data, want->count);
            const double theirs =
                error_of(golden_find(&p.golden, "logits_bf16")->data, want->data, want->count);
            if (p.task != DS_TASK_SEQUENCE_CLASSES) { /* of a few numbers it says nothing */
                check_close(variants[i], "logits, bf16 over transformers'", own / theirs, 1.5);
            }
            free(got);
            parity_close(&p);
        }
    }
}

static bool is_of_nothing(const golden_tensor *gradient)
{
    const float *numbers = gradient->data;
    bool any = false;
    for (size_t i = 0; i < gradient->count; ++i) {
        any = any || numbers[i] != 0.0f;
    }
    return !any;
}

static double worst_gradient(const ds_engine *engine, const parity_case *p)
{
    golden_file grads = golden_read("encoder/%s/grads.safetensors", p->name);
    double worst = 0.0;
    for (size_t i = 0; i < grads.n_tensors; ++i) {
        const golden_tensor *want = &grads.tensors[i];
        float *got = malloc(want->count * sizeof *got);
        assert_non_null(got);
        if (is_of_nothing(want)) { /* the bias that an untied head does not use */
            assert_int_equal(ds_engine_get(engine, DS_CELL_GRAD, want->name, got, want->count),
                             DS_ERR_NOT_FOUND);
            free(got);
            continue;
        }
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
        parity_open_encoder(ctx, variants[i], &p);
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
            if (step == 9) {
                check_close(variants[i], "ten AdamW losses", worst, 1e-5);
            }
        }
        check_close(variants[i], "twenty AdamW losses", worst, 1e-4);
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
        parity_open_encoder(ctx, variants[i], &p);
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

/* Labels of the next token, as decoders learn them, are not taken for those of an encoder. */
static void shifted_targets_are_refused(void **state)
{
    (void)state;
    parity_case p;
    parity_open_encoder(ctx, "bert", &p);
    const dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, DSI_NEEDS_AMX);
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    p.tensors[1].name = "targets";
    CHECK_FAILS(ctx, ds_engine_forward(engine, &p.batch), DS_ERR_ARG, "lacks the input labels");
    ds_engine_destroy(&engine);
    parity_close(&p);
}

/* An encoder has no next token. */
static void generation_is_refused(void **state)
{
    (void)state;
    parity_case p;
    ds_generator *generator = NULL;
    parity_open_encoder(ctx, "roberta", &p);
    const ds_generator_params params = {.model = p.model, .weights = p.folder};
    CHECK_FAILS(ctx, ds_generator_create(ctx, &params, &generator), DS_ERR_ARG, "is an encoder");
    parity_close(&p);
}

/* The first document of a row, alone and padded. */
static void work_is_what_rows_are(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_VARIANTS; ++i) {
        parity_case p;
        ds_encoder *encoder = NULL;
        ds_tensor rows;
        uint32_t ids[64];
        size_t n = 0;
        parity_open_encoder(ctx, variants[i], &p);
        const int32_t *tokens = golden_i32(&p.golden, "tokens");
        const int32_t *first = golden_i32(&p.golden, "first");
        for (; n < (size_t)p.n_seq && first[n] == 0; ++n) {
            ids[n] = (uint32_t)tokens[n];
        }
        const ds_encoder_params params = {
            .model = p.model, .weights = p.folder, .task = p.task, .n_classes = p.n_classes};
        const golden_tensor *want = golden_find(&p.golden, "logits");
        CHECK_OK(ctx, ds_encoder_create(ctx, &params, &encoder));
        for (int again = 0; again < 2; ++again) {
            CHECK_OK(ctx, ds_encoder_run(encoder, ids, n, &rows));
            assert_int_equal(rows.meta.shape.dims[0], n);
            assert_int_equal(rows.meta.shape.dims[1], p.vocab);
            const bool whole = p.task != DS_TASK_SEQUENCE_CLASSES;
            check_close(variants[i], "encoder",
                        distance(rows.data, want->data, (whole ? n : 1) * (size_t)p.vocab), 2e-5);
        }
        ds_encoder_destroy(&encoder);
        parity_close(&p);
    }
}

/* Puts `to` wherever `from` stands in a file's header, of the same length. */
static void rename_all(char *header, size_t n, const char *from, const char *to)
{
    const size_t length = strlen(from);
    assert_int_equal(strlen(to), length);
    for (size_t i = 0; i + length <= n; ++i) {
        if (memcmp(header + i, from, length) == 0) {
            memcpy(header + i, to, length);
        }
    }
}

/* BERT's first folders call the norms' weights gamma and beta. */
static void older_names_are_read(void **state)
{
    (void)state;
    static const uint32_t ids[] = {5, 90, 17, 3, 64};
    parity_case p;
    char path[PARITY_PATH + 32];
    char *folder = scratch_make();
    uint64_t header = 0;
    size_t n = 0;
    ds_encoder *encoder[2] = {NULL, NULL};
    ds_tensor rows[2];
    parity_open_encoder(ctx, "bert", &p);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", p.folder);
    char *file = scratch_read(path, &n);
    memcpy(&header, file, sizeof header);
    rename_all(file + 8, header, "LayerNorm.weight\"", "LayerNorm.gamma\" ");
    rename_all(file + 8, header, "LayerNorm.bias\"", "LayerNorm.beta\"");
    scratch_write(scratch_path(folder, "model.safetensors"), file, n);
    for (int i = 0; i < 2; ++i) {
        const ds_encoder_params params = {.model = p.model, .weights = i == 0 ? p.folder : folder};
        CHECK_OK(ctx, ds_encoder_create(ctx, &params, &encoder[i]));
        CHECK_OK(ctx, ds_encoder_run(encoder[i], ids, 5, &rows[i]));
    }
    assert_memory_equal(rows[0].data, rows[1].data, ds_meta_bytes(rows[0].meta));
    ds_encoder_destroy(&encoder[0]);
    ds_encoder_destroy(&encoder[1]);
    free(file);
    scratch_remove(folder);
    parity_close(&p);
}

/* A folder without a head of that task is no classifier, but trains to one. */
static void a_missing_head_is_said(void **state)
{
    (void)state;
    parity_case p;
    ds_encoder *encoder = NULL;
    parity_open_encoder(ctx, "bert", &p);
    const ds_encoder_params params = {
        .model = p.model, .weights = p.folder, .task = DS_TASK_SEQUENCE_CLASSES, .n_classes = 4};
    CHECK_FAILS(ctx, ds_encoder_create(ctx, &params, &encoder), DS_ERR_NOT_FOUND,
                "was not trained for this task");
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, DSI_NEEDS_AMX);
    spec.train.task = DS_TASK_SEQUENCE_CLASSES;
    spec.train.n_classes = 4;
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    int32_t labels[2 * 24];
    for (int i = 0; i < 2 * 24; ++i) {
        labels[i] = i == 0 ? 3 : -100;
    }
    p.tensors[1].tensor.data = labels;
    CHECK_OK(ctx, ds_engine_forward(engine, &p.batch));
    assert_true(ds_engine_loss(engine) > 0.1 && ds_engine_loss(engine) < 5.0);
    ds_engine_destroy(&engine);
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
        cmocka_unit_test(logits_like_transformers), cmocka_unit_test(training_like_transformers),
        cmocka_unit_test(export_is_what_was_read),  cmocka_unit_test(shifted_targets_are_refused),
        cmocka_unit_test(generation_is_refused),    cmocka_unit_test(work_is_what_rows_are),
        cmocka_unit_test(older_names_are_read),     cmocka_unit_test(a_missing_head_is_said),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
