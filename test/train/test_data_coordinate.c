/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads long slow
 * The rank of the world is not the data-parallel coordinate: with a tp axis on which nothing is
 * sharded, ranks of a tp group have the same samples and compute the same. A run of N groups gives
 * the bits of N ranks without the axis: losses, norms, counts, weights and moments, for each ZeRO
 * stage, MiCS and hpZ, sums over micro-batches and over targets, saved by one and resumed by the
 * other; and of an evaluation.
 */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/rank_threads.h"
#include "common/scratch.h"
#include "common/small_run.h"

#include <deepspeed/data.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4, N_ROWS = 125, TEXT = N_ROWS * SMALL_SEQ + 1 };

typedef struct result {
    uint64_t hash, samples, tokens;
    double loss[STEPS], norm[STEPS], eval_loss, eval_count;
} result;

typedef struct run {
    const char *model;
    uint32_t n_data, tp; /* tp 0: no axis */
    uint32_t stage, mics, hpz;
    int64_t accumulation;
    ds_loss_average average;
    bool deterministic;
    const char *folder; /* of model, data and checkpoints */
    int first, last;    /* steps; first above 0: resumed there; last below STEPS: saved there */
    result results[RANK_THREADS_MAX];
} run;

/* What one rank holds beside the engine. */
typedef struct feeder {
    ds_model *model;
    ds_tokenizer *tokenizer;
    ds_dataset *data;
    ds_loader *loader, *eval_loader;
    ds_named_tensor tensors[4];
} feeder;

static dsi_engine_spec spec_of(const run *r)
{
    dsi_engine_spec spec = small_spec(DS_DTYPE_BF16);
    spec.train.accumulation = r->accumulation;
    spec.train.max_norm = 0.5;
    spec.average = r->average;
    spec.overlap = r->stage == 3;
    spec.no_shards = true;
    spec.zero = (dsi_zero_spec){.tp = r->tp,
                                .mics = r->mics,
                                .hpz = r->hpz,
                                .stage = r->stage,
                                .reduce_each = r->accumulation == 1 || r->deterministic,
                                .comm_dtype = DS_DTYPE_BF16,
                                .reduce_bucket = 5000,
                                .gather_bucket = 5000,
                                .max_live = 1000,
                                .max_reuse_distance = 1000};
    return spec;
}

static ds_status open_engine(dsi_comm *comm, const run *r, feeder *f, ds_engine **engine_out)
{
    const dsi_engine_spec spec = spec_of(r);
    const char *config = scratch_path(r->folder, r->model);
    DS_TRY(ds_model_from_config(comm->ctx, config, &f->model));
    const ds_engine_params params = {.model = f->model,
                                     .seq_length = SMALL_SEQ,
                                     .seed = 5,
                                     .comm = comm,
                                     .memory_bytes = SMALL_MEMORY};
    return dsi_engine_create(comm->ctx, &params, &spec, engine_out);
}

static ds_status open_loader(dsi_comm *comm, const run *r, const ds_engine *engine, feeder *f)
{
    const char *path = scratch_path(r->folder, "text.txt");
    DS_TRY(ds_tokenizer_open(comm->ctx, "bytes", &f->tokenizer));
    const ds_dataset_params data = {
        .files = &path, .n_files = 1, .tokenizer = f->tokenizer, .seq_length = SMALL_SEQ};
    DS_TRY(ds_dataset_open(comm->ctx, &data, &f->data));
    const ds_comm *data_comm = ds_engine_data_comm(engine);
    ds_loader_params params = {.batch = SMALL_BATCH,
                               .seq_length = SMALL_SEQ,
                               .seed = 3,
                               .shuffle = true,
                               .rank = ds_comm_rank(data_comm),
                               .n_ranks = ds_comm_size(data_comm)};
    DS_TRY(ds_loader_create(comm->ctx, f->data, &params, &f->loader));
    params.shuffle = false;
    return ds_loader_create(comm->ctx, f->data, &params, &f->eval_loader);
}

static void close_feeder(feeder *f)
{
    ds_loader_destroy(&f->loader);
    ds_loader_destroy(&f->eval_loader);
    ds_dataset_close(&f->data);
    ds_tokenizer_close(&f->tokenizer);
    ds_model_destroy(&f->model);
}

static ds_batch batch_of(feeder *f, const ds_loader_batch *batch)
{
    f->tensors[0] = (ds_named_tensor){"input_ids", batch->input_ids};
    f->tensors[1] = (ds_named_tensor){"targets", batch->targets};
    f->tensors[2] = (ds_named_tensor){"positions", batch->positions};
    f->tensors[3] = (ds_named_tensor){"first", batch->first};
    return (ds_batch){f->tensors, 4};
}

/* With fewer targets in some rows than in others. */
static ds_status feed(void *user, ds_batch *batch_out)
{
    feeder *f = user;
    ds_loader_batch batch;
    DS_TRY(ds_loader_next(f->loader, &batch));
    int32_t *targets = batch.targets.data;
    const int32_t *ids = batch.input_ids.data;
    for (int i = 0; i < SMALL_BATCH * SMALL_SEQ; ++i) {
        targets[i] = ids[0] % 3 == 0 && i % 5 != 0 ? -100 : targets[i];
    }
    *batch_out = batch_of(f, &batch);
    return DS_OK;
}

/* Over each row once. */
static ds_status evaluate(ds_engine *engine, feeder *f, result *got)
{
    double sums[2] = {0.0, 0.0};
    for (;;) {
        ds_loader_batch batch;
        double loss = 0.0;
        double count = 0.0;
        bool done = false;
        DS_TRY(ds_loader_next_once(f->eval_loader, &batch, &done));
        if (done) {
            break;
        }
        const ds_batch view = batch_of(f, &batch);
        DS_TRY(ds_engine_eval_batch(engine, &view, &loss, &count));
        sums[0] += loss * count;
        sums[1] += count;
    }
    DS_TRY(ds_comm_sum(ds_engine_data_comm(engine), sums, 2));
    got->eval_loss = sums[0] / sums[1];
    got->eval_count = sums[1];
    return DS_OK;
}

static ds_status resume(const run *r, ds_engine *engine, feeder *f)
{
    char *cursor = NULL;
    DS_TRY(ds_engine_load_checkpoint(engine, r->folder, NULL, &cursor));
    const ds_status status = ds_loader_restore(f->loader, cursor);
    free(cursor);
    return status;
}

static ds_status save(const run *r, ds_engine *engine, const feeder *f)
{
    char *cursor = NULL;
    DS_TRY(ds_loader_save(f->loader, &cursor));
    const ds_status status = ds_engine_save_checkpoint(engine, r->folder, NULL, cursor);
    free(cursor);
    return status;
}

static ds_status train(dsi_comm *comm, run *r, ds_engine *engine, feeder *f)
{
    result *got = &r->results[comm->rank];
    DS_TRY(r->first > 0 ? resume(r, engine, f) : DS_OK);
    for (int step = r->first; step < r->last; ++step) {
        DS_TRY(ds_engine_train_batch(engine, feed, f, &got->loss[step]));
        got->norm[step] = ds_engine_grad_norm(engine);
    }
    got->samples = ds_engine_global_samples(engine);
    got->tokens = ds_engine_global_tokens(engine);
    DS_TRY(r->last < STEPS ? save(r, engine, f) : evaluate(engine, f, got));
    return engine_hash(comm->ctx, engine, &got->hash);
}

static ds_status run_rank(dsi_comm *comm, void *arg)
{
    run *r = arg;
    feeder f = {0};
    ds_engine *engine = NULL;
    ds_status status = open_engine(comm, r, &f, &engine);
    status = status < 0 ? status : open_loader(comm, r, engine, &f);
    status = status < 0 ? status : train(comm, r, engine, &f);
    ds_engine_destroy(&engine);
    close_feeder(&f);
    return status;
}

/* All ranks come to one result. */
static result run_steps(run *r, int first, int last)
{
    const uint32_t n = r->n_data * (r->tp > 0 ? r->tp : 1);
    r->first = first;
    r->last = last;
    memset(r->results, 0, sizeof r->results);
    assert_int_equal(rank_threads_run(n, NULL, run_rank, r, NULL), DS_OK);
    for (uint32_t i = 1; i < n; ++i) {
        assert_memory_equal(&r->results[i], &r->results[0], sizeof r->results[0]);
    }
    return r->results[0];
}

static void expect(const result *got, const result *want, int first)
{
    for (int step = first; step < STEPS; ++step) {
        assert_true(got->loss[step] == want->loss[step]);
        assert_true(got->norm[step] == want->norm[step]);
    }
    assert_int_equal(got->samples, want->samples);
    assert_int_equal(got->tokens, want->tokens);
    assert_true(got->eval_loss == want->eval_loss && got->eval_count == want->eval_count);
    assert_int_equal(want->eval_count, N_ROWS * SMALL_SEQ);
    assert_true(got->hash == want->hash);
}

static char *make_folder(void)
{
    char text[TEXT];
    char *folder = scratch_make();
    for (size_t i = 0; i < sizeof text; ++i) {
        text[i] = (char)('a' + (i * 7 + i / 13 + i / 101) % 26);
    }
    scratch_write(scratch_path(folder, "text.txt"), text, sizeof text);
    scratch_write(scratch_path(folder, "gpt2.json"), small_gpt2, strlen(small_gpt2));
    scratch_write(scratch_path(folder, "llama.json"), small_llama, strlen(small_llama));
    return folder;
}

static void tp_groups_are_one_rank_each(void **state)
{
    /* GPT-2 has dropout: its random numbers are the samples' */
    const run rows[] = {
        {.model = "gpt2.json", .n_data = 2, .stage = 0, .accumulation = 1},
        {.model = "gpt2.json", .n_data = 2, .stage = 1, .accumulation = 2, .deterministic = true},
        {.model = "gpt2.json", .n_data = 2, .stage = 2, .accumulation = 1},
        {.model = "gpt2.json", .n_data = 2, .stage = 3, .accumulation = 2},
        {.model = "llama.json", .n_data = 3, .stage = 1, .accumulation = 2},
        {.model = "gpt2.json", .n_data = 1, .stage = 3, .accumulation = 2},
        {.model = "llama.json", .n_data = 4, .stage = 3, .mics = 2, .accumulation = 1},
        {.model = "llama.json", .n_data = 4, .stage = 3, .hpz = 2, .accumulation = 1},
        {.model = "gpt2.json",
         .n_data = 2,
         .stage = 0,
         .accumulation = 2,
         .average = DS_AVERAGE_TARGETS},
        {.model = "gpt2.json",
         .n_data = 2,
         .stage = 3,
         .accumulation = 2,
         .average = DS_AVERAGE_TARGETS},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        if (!check_long_row(i)) {
            continue;
        }
        char *folder = make_folder();
        run plain = rows[i];
        plain.folder = folder;
        run grouped = plain;
        grouped.tp = i % 3 == 2 ? 3 : 2;
        const result want = run_steps(&plain, 0, STEPS);
        const result whole = run_steps(&grouped, 0, STEPS);
        expect(&whole, &want, 0);
        run *first = i % 2 == 0 ? &grouped : &plain; /* saved by one, resumed by the other */
        run *second = i % 2 == 0 ? &plain : &grouped;
        (void)run_steps(first, 0, 2);
        const result resumed = run_steps(second, 2, STEPS);
        expect(&resumed, &want, 2);
        scratch_remove(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tp_groups_are_one_rank_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
