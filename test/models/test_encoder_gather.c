/* SPDX-License-Identifier: Apache-2.0 */
/* Embeddings that are compared with those of all data-parallel ranks, like sentence-transformers'
 * gather_across_devices under DistributedDataParallel (test/golden/encoder_tasks/make_gather.py):
 * losses of each rank, the mean gradient, steps of AdamW; and the same bits in every ZeRO stage. */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/golden.h"
#include "common/rank_threads.h"
#include "train/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_STEPS = 6, MOST_INPUTS = 8, MOST_RANKS = 4, T = 10 };

typedef struct run {
    const char *name;
    char folder[1024];
    golden_file golden, grads;
    json_t *scalars;
    uint32_t ranks, negatives, stage;
    double scale;
    bool gathers;
    uint64_t mini_batch;
    int32_t wrong_label; /* 0: none */
    double losses[MOST_RANKS][N_STEPS];
    double evaluated[MOST_RANKS]; /* before any step */
    double gradient_error;        /* of rank 0, stage 0 */
    uint64_t hash;
} run;

static run open_run(const char *name)
{
    run r = {.name = name,
             .golden = golden_read("encoder_tasks/%s/golden.safetensors", name),
             .grads = golden_read("encoder_tasks/%s/grads.safetensors", name),
             .scalars = golden_json("encoder_tasks/%s/golden.json", name),
             .gathers = true};
    r.ranks = (uint32_t)golden_number(r.scalars, "ranks");
    r.negatives = (uint32_t)golden_number(r.scalars, "negatives");
    r.scale = golden_number(r.scalars, "scale");
    golden_path(r.folder, sizeof r.folder, "encoder_tasks/%s",
                json_string_value(json_object_get(r.scalars, "model")));
    return r;
}

static void close_run(run *r)
{
    golden_close(&r->golden);
    golden_close(&r->grads);
    json_decref(r->scalars);
}

/* The inputs "RANK/NAME". labels: a copy that may be changed. */
static ds_batch batch_of(const run *r, uint32_t rank, ds_named_tensor *tensors, int32_t *labels)
{
    ds_batch batch = {.tensors = tensors};
    for (size_t i = 0; i < r->golden.n_tensors; ++i) {
        const golden_tensor *t = &r->golden.tensors[i];
        const char *name = strchr(t->name, '/') + 1;
        if ((uint32_t)(t->name[0] - '0') != rank) {
            continue;
        }
        ds_tensor *to = &tensors[batch.n_tensors].tensor;
        tensors[batch.n_tensors++].name = name;
        to->data = (void *)(uintptr_t)t->data;
        to->meta.dtype = strcmp(t->dtype, "F32") == 0 ? DS_DTYPE_F32 : DS_DTYPE_I32;
        to->meta.shape.n_dims = t->n_dims;
        memcpy(to->meta.shape.dims, t->dims, t->n_dims * sizeof *t->dims);
        if (strcmp(name, "labels") == 0) {
            memcpy(labels, t->data, t->count * sizeof *labels);
            labels[0] = r->wrong_label != 0 ? r->wrong_label : labels[0];
            to->data = labels;
        }
    }
    return batch;
}

static ds_status worst_gradient(const run *r, const ds_engine *engine, double *worst)
{
    for (size_t i = 0; i < r->grads.n_tensors; ++i) {
        const golden_tensor *want = &r->grads.tensors[i];
        const float *numbers = want->data;
        double difference = 0.0, norm = 0.0;
        float *got = malloc(want->count * sizeof *got);
        const ds_status status =
            got == NULL ? DS_ERR_NOMEM
                        : ds_engine_get(engine, DS_CELL_GRAD, want->name, got, want->count);
        for (size_t k = 0; k < want->count && status >= 0; ++k) {
            const double d = (double)got[k] - (double)numbers[k];
            difference += d * d;
            norm += (double)numbers[k] * (double)numbers[k];
        }
        free(got);
        DS_TRY(status);
        *worst = fmax(*worst, sqrt(norm) < 1e-5 ? sqrt(difference) : sqrt(difference / norm));
    }
    return DS_OK;
}

static ds_status train(dsi_comm *comm, run *r, ds_engine *engine)
{
    ds_named_tensor tensors[MOST_INPUTS];
    int32_t labels[16];
    const ds_batch batch = batch_of(r, comm->rank, tensors, labels);
    DS_TRY(ds_engine_eval_batch(engine, &batch, &r->evaluated[comm->rank], NULL));
    for (size_t step = 0; step < N_STEPS; ++step) {
        double worst = 0.0;
        DS_TRY(ds_engine_forward(engine, &batch));
        r->losses[comm->rank][step] = ds_engine_loss(engine);
        DS_TRY(ds_engine_backward(engine));
        if (step == 0 && r->stage == 0) {
            DS_TRY(worst_gradient(r, engine, &worst));
            r->gradient_error = comm->rank == 0 ? worst : r->gradient_error;
        }
        DS_TRY(ds_engine_step(engine));
    }
    uint64_t hash = 0;
    DS_TRY(engine_hash(comm->ctx, engine, &hash));
    r->hash = comm->rank == 0 ? hash : r->hash;
    return DS_OK;
}

static ds_status run_rank(dsi_comm *comm, void *arg)
{
    run *r = arg;
    ds_ctx *ctx = comm->ctx;
    ds_model *model = NULL;
    ds_config *config = NULL;
    ds_engine *engine = NULL;
    ds_status status = DS_OK;
    char path[1100], text[512];
    (void)snprintf(path, sizeof path, "%s/config.json", r->folder);
    (void)snprintf(text, sizeof text,
                   "{\"train_batch_size\": %u, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
                   "{\"lr\": 1e-3, \"weight_decay\": 0.01}}, \"gradient_clipping\": 0, "
                   "\"zero_optimization\": {\"stage\": %u}}",
                   3 * r->ranks, r->stage);
    const ds_task_params task = {.contrast = {.scale = r->scale,
                                              .n_negatives = r->negatives,
                                              .gather_across_devices = r->gathers,
                                              .mini_batch = r->mini_batch}};
    DS_TRY_GOTO(status, ds_model_from_config(ctx, path, &model), done);
    DS_TRY_GOTO(status, ds_config_load_text(ctx, "test", text, strlen(text), NULL, &config), done);
    DS_TRY_GOTO(status, ds_config_resolve(config, comm->size, NULL), done);
    const ds_engine_params params = {.model = model,
                                     .config = config,
                                     .seq_length = T,
                                     .weights = r->folder,
                                     .decay_all = true,
                                     .task = DS_TASK_CONTRAST,
                                     .task_params = &task,
                                     .comm = comm};
    DS_TRY_GOTO(status, ds_initialize(ctx, &params, &engine), done);
    status = train(comm, r, engine);
done:
    ds_engine_destroy(&engine);
    ds_config_destroy(&config);
    ds_model_destroy(&model);
    return status;
}

static void like_sentence_transformers(void **state)
{
    static const char *const names[] = {"gather", "gather_negatives"};
    (void)state;
    for (size_t i = 0; i < 4; ++i) {
        run r = open_run(names[i % 2]);
        r.mini_batch = i < 2 ? 0 : 2;
        const json_t *losses = json_object_get(r.scalars, "losses");
        double mean = 0.0, worst = 0.0;
        assert_int_equal(rank_threads_run(r.ranks, NULL, run_rank, &r, NULL), DS_OK);
        for (uint32_t rank = 0; rank < r.ranks; ++rank) {
            const json_t *own = json_array_get(losses, rank);
            const double first = json_number_value(json_array_get(own, 0));
            mean += first / r.ranks;
            for (size_t step = 0; step < N_STEPS; ++step) {
                const double want = json_number_value(json_array_get(own, step));
                worst = fmax(worst, fabs(r.losses[rank][step] - want) / first);
            }
        }
        print_message("%-18s losses %.2e, gradients %.2e\n", names[i % 2], worst, r.gradient_error);
        assert_true(worst < 2e-5 && r.gradient_error < 1e-4 && r.gradient_error > 0.0);
        for (uint32_t rank = 0; rank < r.ranks; ++rank) {
            assert_true(fabs(r.evaluated[rank] - mean) < 2e-6 * mean ||
                        fabs(r.evaluated[rank] - r.losses[rank][0]) < 2e-6 * mean);
        }
        close_run(&r);
    }
}

static void check_stages(uint64_t mini_batch)
{
    run r = open_run("gather_negatives");
    uint64_t hash = 0;
    r.mini_batch = mini_batch;
    for (r.stage = 0; r.stage <= 3; ++r.stage) {
        double losses[MOST_RANKS][N_STEPS];
        memcpy(losses, r.losses, sizeof losses);
        assert_int_equal(rank_threads_run(r.ranks, NULL, run_rank, &r, NULL), DS_OK);
        assert_true(r.stage == 0 || memcmp(losses, r.losses, sizeof losses) == 0);
        assert_true(r.stage == 0 || hash == r.hash);
        hash = r.hash;
    }
    r.stage = 0;
    r.gathers = false; /* another loss: the comparison can fail */
    assert_int_equal(rank_threads_run(r.ranks, NULL, run_rank, &r, NULL), DS_OK);
    assert_true(hash != r.hash && r.gradient_error > 1e-2);
    close_run(&r);
}

static void same_bits_in_every_stage(void **state)
{
    (void)state;
    check_stages(0);
    check_stages(4);
}

static void labels_of_other_ranks_are_refused(void **state)
{
    (void)state;
    rank_results results;
    run r = open_run("gather");
    r.wrong_label = 3;
    assert_int_equal(rank_threads_run(r.ranks, NULL, run_rank, &r, &results), DS_ERR_ARG);
    assert_non_null(strstr(results.message[0], "labels: 3 of anchor 0, expected a row of this "
                                               "rank below 3"));
    close_run(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(like_sentence_transformers),
        cmocka_unit_test(same_bits_in_every_stage),
        cmocka_unit_test(labels_of_other_ranks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
