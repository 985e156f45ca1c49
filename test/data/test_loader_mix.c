/* SPDX-License-Identifier: Apache-2.0 */
/* data/loader over several weighted datasets: shares, orders, resumes and ranks. */
#include "common/check.h"
#include "common/loader_world.h"
#include "common/scratch.h"

#include <deepspeed/data.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 6, SOURCES = 3, CELLS = 4096 };

typedef struct world {
    ds_ctx *ctx;
    char *folder;
    ds_dataset *data[2][SOURCES]; /* STREAM, SAMPLES; a source has letters of its own */
} world;

static const char letters[SOURCES] = {'a', 'h', 'q'};

static loader_world on(const world *w, int kind, const double *weights, int64_t batch,
                       uint32_t n_ranks)
{
    return (loader_world){.ctx = w->ctx,
                          .data = (const ds_dataset *const *)w->data[kind],
                          .weights = weights,
                          .n_data = SOURCES,
                          .length = LENGTH,
                          .batch = batch,
                          .n_ranks = n_ranks};
}

/* Of one rank. */
static ds_loader *make(const world *w, int kind, const double *weights, int64_t batch, bool shuffle)
{
    const loader_world of = on(w, kind, weights, batch, 1);
    return loader_make(&of, 0, shuffle);
}

static int source_of(int32_t id)
{
    return id >= letters[2] ? 2 : id >= letters[1] ? 1 : 0;
}

/* Counts what a batch drew of each source: rows, or samples. */
static void count(const ds_loader_batch *batch, int kind, uint64_t counts[SOURCES])
{
    const int32_t *ids = batch->input_ids.data;
    const int32_t *positions = batch->positions.data;
    const int64_t rows = batch->input_ids.meta.shape.dims[0];
    for (int64_t i = 0; i < rows * LENGTH; ++i) {
        const bool begins = kind == 0 ? i % LENGTH == 0 : positions[i] == 0;
        if (begins && ids[i] != 0) {
            counts[source_of(ids[i])] += 1;
        }
    }
}

/* Whatever the sources hold, after any number of draws each has had its share but for a few. */
static void weights_are_shares(void **state)
{
    world *w = *state;
    static const double weights[][SOURCES] = {{1, 1, 1}, {8, 1, 1}, {0.5, 0.3, 0.2}, {1, 1e-3, 97}};
    for (int kind = 0; kind < 2; ++kind) {
        for (size_t k = 0; k < sizeof weights / sizeof *weights; ++k) {
            const double *weight = weights[k];
            const double sum = weight[0] + weight[1] + weight[2];
            uint64_t counts[SOURCES] = {0};
            ds_loader *loader = make(w, kind, weight, 1, true);
            for (int i = 0; i < 3000; ++i) {
                ds_loader_batch batch;
                CHECK_OK(w->ctx, ds_loader_next(loader, &batch));
                count(&batch, kind, counts);
                const double n = (double)(counts[0] + counts[1] + counts[2]);
                for (int s = 0; s < SOURCES; ++s) {
                    assert_true(fabs((double)counts[s] - n * weight[s] / sum) < 6.0);
                }
            }
            ds_loader_destroy(&loader);
        }
    }
}

static uint32_t below(uint32_t n)
{
    static uint64_t at = 17;
    at = at * UINT64_C(6364136223846793005) + 1;
    return (uint32_t)(at >> 33) % n;
}

/* Any weights, numbers of ranks, and place of a resume: the rows of one rank. */
static void resumes_are_exact(void **state)
{
    world *w = *state;
    int32_t *whole = malloc(CELLS * sizeof *whole);
    int32_t *parts = malloc(CELLS * sizeof *parts);
    assert_true(whole != NULL && parts != NULL);
    for (int round = 0; round < 60; ++round) {
        const int kind = round % 2;
        const double weights[SOURCES] = {0.1 + below(40), 0.1 + below(10), 0.1 + below(3)};
        const int before = 1 + (int)below(20);
        const int after = 1 + (int)below(20);
        const uint32_t ranks[2] = {1 + below(3), 1 + below(3)};
        const int n = before * (int)ranks[0] + after * (int)ranks[1];
        const loader_world alone = on(w, kind, weights, 1, 1);
        const loader_world first = on(w, kind, weights, 1, ranks[0]);
        const loader_world second = on(w, kind, weights, 1, ranks[1]);
        free(loader_read_on(&alone, n, NULL, whole));
        char *cursor = loader_read_on(&first, before, NULL, parts);
        free(loader_read_on(&second, after, cursor, parts + before * (int)ranks[0] * LENGTH));
        assert_memory_equal(whole, parts, (size_t)n * LENGTH * sizeof *whole);
        free(cursor);
    }
    free(whole);
    free(parts);
}

/* An epoch has as many draws as all sources hold, and its rows are counted before they are read. */
static void epochs_are_as_long_as_the_data(void **state)
{
    world *w = *state;
    static const double weights[SOURCES] = {1, 5, 2};
    for (int kind = 0; kind < 2; ++kind) {
        uint64_t counts[SOURCES] = {0};
        uint64_t all = 0;
        ds_loader *loader = make(w, kind, weights, 1, true);
        const uint64_t rows = ds_loader_epoch_rows(loader);
        for (uint64_t i = 0; i < rows; ++i) {
            ds_loader_batch batch;
            CHECK_OK(w->ctx, ds_loader_next(loader, &batch));
            assert_int_equal(ds_loader_epoch(loader), 0);
            count(&batch, kind, counts);
        }
        for (int s = 0; s < SOURCES; ++s) {
            const ds_dataset_info info = ds_dataset_get_info(w->data[kind][s]);
            all += kind == 1 ? info.n_documents : (info.n_tokens - 1) / LENGTH;
        }
        assert_in_range(counts[0] + counts[1] + counts[2], all - SOURCES, all);
        ds_loader_batch batch;
        CHECK_OK(w->ctx, ds_loader_next(loader, &batch));
        assert_int_equal(ds_loader_epoch(loader), 1);
        ds_loader_destroy(&loader);
    }
}

/* Without shuffle each sample of each source is read once, and again after a rewind. */
static void evaluation_reads_all_once(void **state)
{
    world *w = *state;
    uint64_t want = 0;
    ds_loader *loader = make(w, 1, NULL, 2, false);
    for (int s = 0; s < SOURCES; ++s) {
        want += ds_dataset_get_info(w->data[1][s]).n_documents;
    }
    for (int round = 0; round < 2; ++round) {
        uint64_t counts[SOURCES] = {0};
        bool done = false;
        ds_loader_rewind(loader);
        while (!done) {
            ds_loader_batch batch;
            CHECK_OK(w->ctx, ds_loader_next_once(loader, &batch, &done));
            count(&batch, 1, counts);
        }
        assert_int_equal(counts[0] + counts[1] + counts[2], want);
    }
    ds_loader_destroy(&loader);
}

static void others_are_refused(void **state)
{
    world *w = *state;
    static const double weights[SOURCES] = {1, 5, 2};
    static const double others[SOURCES] = {1, 5, 3};
    static const double bad[SOURCES] = {1, 0, 3};
    const ds_loader_params params = {.batch = 1, .seq_length = LENGTH, .seed = 9, .shuffle = true};
    const ds_dataset *mixed[2] = {w->data[0][0], w->data[1][0]};
    char *cursor = NULL;
    ds_loader *one = make(w, 0, weights, 1, true);
    ds_loader *two = make(w, 0, others, 1, true);
    ds_loader *single = NULL;
    CHECK_OK(w->ctx, ds_loader_create(w->ctx, w->data[0][0], &params, &single));
    CHECK_OK(w->ctx, ds_loader_save(one, &cursor));
    CHECK_FAILS(w->ctx, ds_loader_restore(two, cursor), DS_ERR_ARG,
                "the weight of source 3 was 2, now it is 3");
    CHECK_FAILS(w->ctx, ds_loader_restore(single, cursor), DS_ERR_ARG,
                "it had 3 weighted sources, now there are 1");
    free(cursor);
    CHECK_OK(w->ctx, ds_loader_save(single, &cursor));
    CHECK_FAILS(w->ctx, ds_loader_restore(one, cursor), DS_ERR_ARG, "it had 1 weighted sources");
    free(cursor);
    ds_loader_destroy(&one);
    ds_loader_destroy(&two);
    ds_loader_destroy(&single);
    CHECK_FAILS(w->ctx,
                ds_loader_create_mixed(w->ctx, (const ds_dataset *const *)w->data[0], bad, SOURCES,
                                       &params, &one),
                DS_ERR_ARG, "data source 2: the weight 0");
    CHECK_FAILS(w->ctx, ds_loader_create_mixed(w->ctx, mixed, NULL, 2, &params, &one), DS_ERR_ARG,
                "data source 2: prompts or messages cannot be mixed");
}

/* A source of n documents, of its own letters. */
static void write_source(world *w, int kind, int source, int n)
{
    const char *path = scratch_path(w->folder, "data.jsonl");
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < n; ++i) {
        const char c = letters[source];
        if (kind == 0) {
            (void)fprintf(file, "{\"text\":\"%c%c%c\"}\n", c, c + i % 5, c);
        } else {
            char answer[4] = {c, c, c};
            answer[1 + i % 3] = '\0';
            (void)fprintf(file, "{\"prompt\":\"%c\",\"completion\":\"%s\"}\n", c, answer);
        }
    }
    (void)fclose(file);
}

static int set_up(void **state)
{
    static world w;
    static const int sizes[SOURCES] = {40, 7, 15};
    ds_tokenizer *tokenizer = NULL;
    w.folder = scratch_make();
    if (ds_ctx_create(NULL, &w.ctx) < 0 || ds_tokenizer_open(w.ctx, "bytes", &tokenizer) < 0) {
        return -1;
    }
    for (int kind = 0; kind < 2; ++kind) {
        for (int s = 0; s < SOURCES; ++s) {
            const char *path = scratch_path(w.folder, "data.jsonl");
            const ds_dataset_params params = {
                .files = &path, .n_files = 1, .tokenizer = tokenizer, .seq_length = LENGTH};
            write_source(&w, kind, s, sizes[s]);
            CHECK_OK(w.ctx, ds_dataset_open(w.ctx, &params, &w.data[kind][s]));
        }
    }
    ds_tokenizer_close(&tokenizer);
    *state = &w;
    return 0;
}

static int tear_down(void **state)
{
    world *w = *state;
    for (int i = 0; i < 2 * SOURCES; ++i) {
        ds_dataset_close(&w->data[i / SOURCES][i % SOURCES]);
    }
    scratch_remove(w->folder);
    ds_ctx_destroy(&w->ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_shares),
        cmocka_unit_test(resumes_are_exact),
        cmocka_unit_test(epochs_are_as_long_as_the_data),
        cmocka_unit_test(evaluation_reads_all_once),
        cmocka_unit_test(others_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
