/* SPDX-License-Identifier: Apache-2.0 */
/* See deepspeed_forms.h. */
#include "common/deepspeed_forms.h"

#include "common/check.h"
#include "common/golden.h"
#include "common/rank_threads.h"
#include "common/scratch.h"

#include <deepspeed/checkpoint.h>
#include <deepspeed/config.h>
#include <deepspeed/deepspeed.h>
#include <deepspeed/engine.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN DS_SOURCE_DIR "/test/golden/deepspeed/"

enum { BEFORE = 3, AFTER = 5, SEQUENCES = 6, LENGTH = 12 };

/* ---- folders ---- */

char *forms_unpack(const char *const *forms)
{
    char command[1024];
    char *folder = scratch_make();
    for (; *forms != NULL; ++forms) {
        (void)snprintf(command, sizeof command, "tar -xzf %s%s.tar.gz -C %s", GOLDEN, *forms,
                       folder);
        assert_int_equal(system(command), 0);
    }
    return folder;
}

void forms_fail_to_open(ds_ctx *ctx, const char *dir, ds_status status, const char *text)
{
    ds_checkpoint *c = NULL;
    CHECK_FAILS(ctx, ds_checkpoint_open(ctx, dir, NULL, &c), status, text);
    assert_null(c);
}

void forms_copy(const char *folder, const char *form, const char *dir)
{
    char command[1400];
    (void)snprintf(command, sizeof command, "rm -rf %s; cp -r %s/%s %s", dir, folder, form, dir);
    assert_int_equal(system(command), 0);
}

void forms_replace(const char *path, const char *from, const char *to, size_t length)
{
    size_t n = 0;
    char *data = scratch_read(path, &n);
    char *at = memmem(data, n, from, length);
    assert_non_null(at);
    memcpy(at, to, length);
    scratch_write(path, data, n);
    free(data);
}

void forms_compare(ds_ctx *ctx, const char *folder, const char *a, const char *b, bool groups)
{
    char path[512];
    ds_checkpoint *x = NULL;
    ds_checkpoint *y = NULL;
    (void)snprintf(path, sizeof path, "%s/%s", folder, a);
    CHECK_OK(ctx, ds_checkpoint_open(ctx, path, NULL, &x));
    (void)snprintf(path, sizeof path, "%s/%s", folder, b);
    CHECK_OK(ctx, ds_checkpoint_open(ctx, path, NULL, &y));
    CHECK_OK(ctx, ds_checkpoint_verify(y));
    assert_int_equal(ds_checkpoint_count(x), ds_checkpoint_count(y));
    for (size_t i = 0; i < ds_checkpoint_count(x); ++i) {
        float u[1024];
        float v[1024];
        const ds_checkpoint_tensor *t = ds_checkpoint_at(x, i);
        const ds_checkpoint_tensor *other = ds_checkpoint_find(y, t->kind, t->name);
        assert_non_null(other);
        assert_true(ds_shape_equal(t->meta.shape, other->meta.shape));
        const size_t bytes = (size_t)ds_shape_count(t->meta.shape) * sizeof u[0];
        assert_true(bytes <= sizeof u);
        CHECK_OK(ctx, ds_checkpoint_read(x, t, NULL, DS_DTYPE_F32, u));
        CHECK_OK(ctx, ds_checkpoint_read(y, other, NULL, DS_DTYPE_F32, v));
        assert_memory_equal(u, v, bytes);
    }
    assert_string_equal(ds_checkpoint_state(x, "engine"), ds_checkpoint_state(y, "engine"));
    if (groups) {
        assert_string_equal(ds_checkpoint_state(x, "parameter_groups"),
                            ds_checkpoint_state(y, "parameter_groups"));
    }
    ds_checkpoint_close(&x);
    ds_checkpoint_close(&y);
}

uint32_t forms_draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33) % n;
}

/* ---- going on ---- */

typedef struct job {
    const char *dir, *config, *model;
    int64_t rows; /* of a step, by all ranks */
    int32_t ids[BEFORE + AFTER][SEQUENCES][LENGTH];
    double losses[AFTER]; /* mean of all ranks; written by rank 0 */
} job;

static void read_batches(job *j)
{
    json_t *root = golden_json("deepspeed/batches.json");
    for (size_t s = 0; s < BEFORE + AFTER; ++s) {
        for (size_t q = 0; q < SEQUENCES; ++q) {
            const json_t *row =
                json_array_get(json_array_get(json_array_get(root, s), q / 2), q % 2);
            assert_int_equal(json_array_size(row), LENGTH);
            for (size_t i = 0; i < LENGTH; ++i) {
                j->ids[s][q][i] = (int32_t)json_integer_value(json_array_get(row, i));
            }
        }
    }
    json_decref(root);
}

/* This rank's sequences of a step, as a batch. */
static ds_status one_step(ds_engine *engine, job *j, int step, uint32_t rank, uint32_t n,
                          double *loss_out)
{
    static const char *const names[] = {"input_ids", "targets", "positions", "first"};
    enum { IDS, TARGETS, POSITIONS, FIRST, N };
    int32_t data[N][SEQUENCES * LENGTH];
    ds_named_tensor tensors[N];
    const int64_t own = j->rows / (int64_t)n;
    for (int64_t q = 0; q < own; ++q) {
        const int32_t *ids = j->ids[step][(int64_t)rank * own + q];
        for (int64_t i = 0; i < LENGTH; ++i) {
            const int64_t at = q * LENGTH + i;
            data[IDS][at] = ids[i];
            data[TARGETS][at] = i + 1 < LENGTH ? ids[i + 1] : -100;
            data[POSITIONS][at] = (int32_t)i;
            data[FIRST][at] = 0;
        }
    }
    for (size_t i = 0; i < N; ++i) {
        tensors[i] =
            (ds_named_tensor){names[i], {data[i], {DS_DTYPE_I32, ds_shape_2d(own, LENGTH)}}};
    }
    const ds_batch batch = {tensors, N};
    DS_TRY(ds_engine_forward(engine, &batch));
    *loss_out = ds_engine_loss(engine);
    DS_TRY(ds_engine_backward(engine));
    return ds_engine_step(engine);
}

static ds_status run_steps(ds_engine *engine, job *j, dsi_comm *comm)
{
    for (int i = 0; i < AFTER; ++i) {
        double loss = 0.0;
        DS_TRY(one_step(engine, j, BEFORE + i, comm->rank, comm->size, &loss));
        float sum = (float)loss;
        const dsi_comm_part part = {.in = &sum, .out = &sum, .count = 1};
        const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                    .dtype = DS_DTYPE_F32,
                                    .factor = 1.0f,
                                    .parts = &part,
                                    .n_parts = 1,
                                    .what = "loss"};
        DS_TRY(dsi_comm_run(comm, &call));
        if (comm->rank == 0) {
            j->losses[i] = (double)sum / comm->size;
        }
    }
    return DS_OK;
}

static ds_status resume(dsi_comm *comm, void *arg)
{
    job *j = arg;
    ds_ctx *ctx = comm->ctx;
    ds_model *model = NULL;
    ds_config *config = NULL;
    ds_engine *engine = NULL;
    ds_status status = DS_OK;
    DS_TRY_GOTO(status, ds_model_from_config(ctx, j->model, &model), done);
    DS_TRY_GOTO(status,
                ds_config_load_text(ctx, "ds.json", j->config, strlen(j->config), NULL, &config),
                done);
    DS_TRY_GOTO(status, ds_config_resolve(config, comm->size, NULL), done);
    const ds_engine_params params = {
        .model = model, .config = config, .seq_length = LENGTH, .decay_all = true, .comm = comm};
    DS_TRY_GOTO(status, ds_initialize(ctx, &params, &engine), done);
    DS_TRY_GOTO(status, ds_engine_load_checkpoint(engine, j->dir, NULL, NULL), done);
    status = ds_engine_global_steps(engine) == BEFORE
                 ? run_steps(engine, j, comm)
                 : ds_fail(ctx, DS_ERR_STATE, "the counters are not those of 3 steps");
done:
    ds_engine_destroy(&engine);
    ds_config_destroy(&config);
    ds_model_destroy(&model);
    return status;
}

static void print_config(char *text, size_t n, int64_t micro, int stage, bool bf16)
{
    (void)snprintf(text, n,
                   "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_clipping\": 1.0, "
                   "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-2, \"betas\": "
                   "[0.9, 0.95], \"eps\": 1e-8, \"weight_decay\": 0.1}}, \"scheduler\": {\"type\": "
                   "\"WarmupLR\", \"params\": {\"warmup_min_lr\": 0, \"warmup_max_lr\": 1e-2, "
                   "\"warmup_num_steps\": 6, \"warmup_type\": \"linear\"}}, "
                   "\"zero_optimization\": {\"stage\": %d}, \"bf16\": {\"enabled\": %s}%s}",
                   (int)micro, stage, bf16 ? "true" : "false",
                   bf16 ? ", \"data_types\": {\"grad_accum_dtype\": \"fp32\"}" : "");
}

static const char *model_of(const char *form)
{
    static const struct {
        const char *part, *model;
    } rows[] = {{"tensor", GOLDEN "tensor.json"},    {"views", GOLDEN "tensor.json"},
                {"experts", GOLDEN "experts.json"},  {"autoep", GOLDEN "experts.json"},
                {"pipe_tied", GOLDEN "config.json"}, {"pipe", GOLDEN "untied.json"},
                {"named", GOLDEN "untied.json"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        if (strstr(form, rows[i].part) != NULL) {
            return rows[i].model;
        }
    }
    return GOLDEN "config.json";
}

double forms_resume(const char *folder, const char *form, uint32_t n_ranks, int stage)
{
    char path[512];
    char config[1024];
    static job j;
    json_error_t error;
    rank_results results;
    const bool bf16 = strstr(form, "bf16") != NULL;
    double most = 0.0;
    (void)snprintf(path, sizeof path, "%s/%s/losses.json", folder, form);
    json_t *losses = json_load_file(path, 0, &error);
    assert_non_null(losses);
    (void)snprintf(path, sizeof path, "%s/%s", folder, form);
    const int64_t rows = json_integer_value(json_object_get(losses, "rows"));
    j.rows = rows > 0 ? rows : SEQUENCES;
    print_config(config, sizeof config, j.rows / n_ranks, stage, bf16);
    j.dir = path;
    j.config = config;
    j.model = model_of(form);
    read_batches(&j);
    if (rank_threads_run(n_ranks, NULL, resume, &j, &results) < 0) {
        fail_msg("%s on %u ranks, stage %d: %s", form, n_ranks, stage, results.message[0]);
    }
    /* in bf16 gradients of a stage are rounded by micro-batch, of which this run has one */
    for (size_t i = 0; i < (strcmp(form, "pipe_bf16") == 0 ? 1 : AFTER); ++i) {
        const double want = json_number_value(json_array_get(json_object_get(losses, "after"), i));
        most = fmax(most, fabs(j.losses[i] - want) / want);
    }
    json_decref(losses);
    print_message("%s on %u ranks, stage %d: losses differ by %.1e\n", form, n_ranks, stage, most);
    return most;
}
