/* SPDX-License-Identifier: Apache-2.0 */
/* Distillation through the engine against PyTorch with TRL's divergence: losses of AdamW steps,
 * norms and sums of gradients; a checkpoint that knows its teacher; what is refused.
 * Goldens: test/golden/distillation. */
#include "accel/cpu/cpu_features.h"
#include "common/check.h"
#include "common/parity.h"
#include "common/scratch.h"
#include "nn/nn.h"

#include <deepspeed/engine.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct pupil {
    parity_case student, teacher;
    dsi_engine_spec spec;
    ds_engine *engine;
} pupil;

static const char *text_of(const json_t *row, const char *key)
{
    return json_string_value(json_object_get(row, key));
}

static double number_of(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static void open_pupil(ds_ctx *ctx, const json_t *row, pupil *p)
{
    parity_open(ctx, text_of(row, "student"), &p->student);
    parity_open(ctx, text_of(row, "teacher"), &p->teacher);
    p->spec = parity_spec(&p->student, DS_DTYPE_F32, dsi_cpu_isa());
    p->spec.train.distillation = (ds_distillation){.teacher = p->teacher.model,
                                                   .weights = p->teacher.folder,
                                                   .weight = number_of(row, "weight"),
                                                   .temperature = number_of(row, "temperature"),
                                                   .mix = number_of(row, "mix")};
    p->engine = parity_engine(ctx, &p->student, &p->spec);
}

static void close_pupil(pupil *p)
{
    ds_engine_destroy(&p->engine);
    parity_close(&p->student);
    parity_close(&p->teacher);
}

static void check_gradients(ds_ctx *ctx, const pupil *p, const json_t *row)
{
    json_t *want = json_object_get(row, "gradients");
    const char *name = NULL;
    json_t *pair = NULL;
    assert_true(json_object_size(want) > 10);
    json_object_foreach(want, name, pair)
    {
        const ds_cell cell = ds_cells_find(p->engine->cells, DS_CELL_GRAD, name);
        assert_int_not_equal(cell, DS_NONE);
        const size_t n = (size_t)ds_shape_count(ds_cells_get(p->engine->cells, cell)->meta.shape);
        float *got = malloc(n * sizeof *got);
        double squares = 0.0;
        double sum = 0.0;
        assert_non_null(got);
        CHECK_OK(ctx, ds_engine_get(p->engine, DS_CELL_GRAD, name, got, n));
        for (size_t i = 0; i < n; ++i) {
            squares += (double)got[i] * (double)got[i];
            sum += (double)got[i];
        }
        free(got);
        const double norm = json_number_value(json_array_get(pair, 0));
        const double total = json_number_value(json_array_get(pair, 1));
        if (fabs(sqrt(squares) - norm) > 1e-4 * norm + 1e-7 ||
            fabs(sum - total) > 1e-4 * norm * sqrt((double)n) + 1e-7) {
            fail_msg("%s: norm %g, sum %g; expected %g, %g", name, sqrt(squares), sum, norm, total);
        }
    }
}

static void learns_as_torch(void **state)
{
    ds_ctx *ctx = *state;
    json_t *rows = golden_json("distillation/golden.json");
    assert_true(json_array_size(rows) >= 6);
    for (size_t r = 0; r < json_array_size(rows); ++r) {
        const json_t *row = json_array_get(rows, r);
        const json_t *losses = json_object_get(row, "losses");
        pupil p;
        double worst = 0.0;
        open_pupil(ctx, row, &p);
        for (size_t s = 0; s < json_array_size(losses); ++s) {
            const double want = json_number_value(json_array_get(losses, s));
            CHECK_OK(ctx, ds_engine_forward(p.engine, &p.student.batch));
            worst = fmax(worst, fabs(ds_engine_loss(p.engine) - want) / want);
            CHECK_OK(ctx, ds_engine_backward(p.engine));
            if (s == 0) {
                check_gradients(ctx, &p, row);
            }
            CHECK_OK(ctx, ds_engine_step(p.engine));
        }
        print_message("%s of %s: losses %.1e\n", text_of(row, "student"), text_of(row, "teacher"),
                      worst);
        assert_true(worst <= 1e-5);
        close_pupil(&p);
    }
    json_decref(rows);
}

/* The teacher is nobody's to train, save or export. */
static void keeps_its_teacher(void **state)
{
    ds_ctx *ctx = *state;
    json_t *rows = golden_json("distillation/golden.json");
    char *folder = scratch_make();
    char *path = strdup(scratch_path(folder, "model"));
    double before = 0.0;
    double after = 0.0;
    pupil p;
    open_pupil(ctx, json_array_get(rows, 0), &p);
    CHECK_OK(ctx, ds_engine_forward(p.engine, &p.student.batch));
    CHECK_OK(ctx, ds_engine_backward(p.engine));
    CHECK_OK(ctx, ds_engine_step(p.engine));
    CHECK_OK(ctx, ds_engine_save_checkpoint(p.engine, folder, NULL, NULL));
    CHECK_OK(ctx, ds_engine_forward(p.engine, &p.student.batch));
    before = ds_engine_loss(p.engine);
    ds_engine_destroy(&p.engine);
    p.engine = parity_engine(ctx, &p.student, &p.spec);
    CHECK_OK(ctx, ds_engine_load_checkpoint(p.engine, folder, NULL, NULL));
    CHECK_OK(ctx, ds_engine_forward(p.engine, &p.student.batch));
    after = ds_engine_loss(p.engine);
    assert_true(before == after);
    CHECK_OK(ctx, ds_engine_save_16bit_model(p.engine, path, NULL));
    ds_safetensors *st = NULL;
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, path, &st));
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        assert_int_not_equal(
            strncmp(ds_safetensors_at(st, i)->name, DSI_NN_TEACHER, DSI_NN_TEACHER_BYTES), 0);
    }
    ds_safetensors_close(&st);
    ds_engine_destroy(&p.engine);
    p.spec.train.distillation.temperature = 2.0;
    p.engine = parity_engine(ctx, &p.student, &p.spec);
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(p.engine, folder, NULL, NULL), DS_ERR_CONFIG,
                "temperature");
    ds_engine_destroy(&p.engine);
    p.spec.train.distillation = (ds_distillation){0};
    p.engine = parity_engine(ctx, &p.student, &p.spec);
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(p.engine, folder, NULL, NULL), DS_ERR_CONFIG,
                "this run has none");
    close_pupil(&p);
    json_decref(rows);
    free(path);
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(learns_as_torch),
                                       cmocka_unit_test(keeps_its_teacher)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
