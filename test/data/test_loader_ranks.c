/* SPDX-License-Identifier: Apache-2.0 */
/* data/loader on many ranks: together they read what one rank reads with their batches joined, and
 * a cursor of any number of ranks resumes with any other. */
#include "common/check.h"
#include "common/loader_world.h"

#include <deepspeed/data.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTH = 6, MOST_RANKS = 8 };

typedef struct world {
    ds_ctx *ctx;
    ds_dataset *data[2]; /* STREAM, SAMPLES */
} world;

/* The loaders of a kind on so many ranks. */
static loader_world on(const world *w, int kind, int64_t batch, uint32_t n_ranks)
{
    return (loader_world){.ctx = w->ctx,
                          .data = (const ds_dataset *const *)&w->data[kind],
                          .n_data = 1,
                          .length = LENGTH,
                          .batch = batch,
                          .n_ranks = n_ranks};
}

static ds_loader *make(const world *w, int kind, int64_t batch, uint32_t rank, uint32_t n_ranks,
                       bool shuffle)
{
    const loader_world of = on(w, kind, batch, n_ranks);
    return loader_make(&of, rank, shuffle);
}

/* Rows [begin, begin + n) of `all` are the n rows of `part`. */
static void rows_are(const ds_loader_batch *all, int64_t begin, const ds_loader_batch *part,
                     int64_t n)
{
    const ds_tensor a[4] = {all->input_ids, all->targets, all->positions, all->first};
    const ds_tensor b[4] = {part->input_ids, part->targets, part->positions, part->first};
    for (int i = 0; i < 4; ++i) {
        assert_int_equal(b[i].meta.shape.dims[0], n);
        assert_memory_equal((const int32_t *)a[i].data + begin * LENGTH, b[i].data,
                            (size_t)(n * LENGTH) * sizeof(int32_t));
    }
}

static void same_cursor(world *w, const ds_loader *a, const ds_loader *b)
{
    char *x = NULL;
    char *y = NULL;
    CHECK_OK(w->ctx, ds_loader_save(a, &x));
    CHECK_OK(w->ctx, ds_loader_save(b, &y));
    assert_string_equal(x, y);
    assert_int_equal(ds_loader_epoch(a), ds_loader_epoch(b));
    free(x);
    free(y);
}

static void union_is_one_rank(world *w, int kind, int64_t batch, uint32_t n_ranks)
{
    ds_loader *all = make(w, kind, batch * n_ranks, 0, 1, true);
    ds_loader *part[MOST_RANKS];
    for (uint32_t r = 0; r < n_ranks; ++r) {
        part[r] = make(w, kind, batch, r, n_ranks, true);
    }
    while (ds_loader_epoch(all) < 3) {
        ds_loader_batch whole;
        uint64_t tokens = 0;
        CHECK_OK(w->ctx, ds_loader_next(all, &whole));
        for (uint32_t r = 0; r < n_ranks; ++r) {
            ds_loader_batch own;
            CHECK_OK(w->ctx, ds_loader_next(part[r], &own));
            rows_are(&whole, (int64_t)r * batch, &own, batch);
            tokens += own.n_tokens;
            same_cursor(w, all, part[r]);
        }
        assert_int_equal(tokens, whole.n_tokens);
    }
    for (uint32_t r = 0; r < n_ranks; ++r) {
        ds_loader_destroy(&part[r]);
    }
    ds_loader_destroy(&all);
}

static void ranks_share_one_order(void **state)
{
    for (int kind = 0; kind < 2; ++kind) {
        for (uint32_t n_ranks = 1; n_ranks <= MOST_RANKS; ++n_ranks) {
            union_is_one_rank(*state, kind, 1, n_ranks);
            union_is_one_rank(*state, kind, 3, n_ranks);
        }
    }
}

/* Evaluation: every row on one rank only, and the end in the same call on all. */
static void evaluation_ends_together(void **state)
{
    world *w = *state;
    for (int kind = 0; kind < 2; ++kind) {
        for (uint32_t n_ranks = 2; n_ranks <= MOST_RANKS; n_ranks += 3) {
            ds_loader *all = make(w, kind, 2 * n_ranks, 0, 0, false);
            ds_loader *part[MOST_RANKS];
            bool done = false;
            for (uint32_t r = 0; r < n_ranks; ++r) {
                part[r] = make(w, kind, 2, r, n_ranks, false);
            }
            while (!done) {
                ds_loader_batch whole;
                CHECK_OK(w->ctx, ds_loader_next_once(all, &whole, &done));
                for (uint32_t r = 0; r < n_ranks; ++r) {
                    ds_loader_batch own;
                    bool own_done = !done;
                    CHECK_OK(w->ctx, ds_loader_next_once(part[r], &own, &own_done));
                    assert_int_equal(own_done, done);
                    rows_are(&whole, 2 * (int64_t)r, &own, 2);
                }
            }
            for (uint32_t r = 0; r < n_ranks; ++r) {
                ds_loader_destroy(&part[r]);
            }
            ds_loader_destroy(&all);
        }
    }
}

/* 24 rows read in two halves with different numbers of ranks are the 24 rows of one rank. */
static void cursor_moves_between_worlds(void **state)
{
    world *w = *state;
    static const struct {
        uint32_t ranks;
        int64_t batch;
        int calls; /* ranks * batch * calls is 12 */
    } worlds[] = {{1, 1, 12}, {1, 4, 3}, {2, 3, 2}, {3, 2, 2}, {4, 3, 1}, {6, 1, 2}};
    enum { N = sizeof worlds / sizeof *worlds, HALF = 12 * LENGTH };
    for (int kind = 0; kind < 2; ++kind) {
        int32_t want[2 * HALF];
        const loader_world alone = on(w, kind, 1, 1);
        free(loader_read_on(&alone, 24, NULL, want));
        for (size_t a = 0; a < N; ++a) {
            int32_t got[2 * HALF];
            const loader_world first = on(w, kind, worlds[a].batch, worlds[a].ranks);
            char *cursor = loader_read_on(&first, worlds[a].calls, NULL, got);
            for (size_t b = 0; b < N; ++b) {
                const loader_world second = on(w, kind, worlds[b].batch, worlds[b].ranks);
                free(loader_read_on(&second, worlds[b].calls, cursor, got + HALF));
                assert_memory_equal(got, want, sizeof want);
            }
            free(cursor);
        }
    }
}

static void refusals(void **state)
{
    world *w = *state;
    ds_loader *loader = NULL;
    ds_loader_params params = {.batch = 1, .seq_length = LENGTH, .rank = 2, .n_ranks = 2};
    CHECK_FAILS(w->ctx, ds_loader_create(w->ctx, w->data[0], &params, &loader), DS_ERR_ARG,
                "rank 2");
    params = (ds_loader_params){.batch = INT64_MAX / 2, .seq_length = 8};
    CHECK_FAILS(w->ctx, ds_loader_create(w->ctx, w->data[0], &params, &loader), DS_ERR_ARG,
                "batch");
    params = (ds_loader_params){.batch = 1, .seq_length = (int64_t)1 << 31};
    CHECK_FAILS(w->ctx, ds_loader_create(w->ctx, w->data[0], &params, &loader), DS_ERR_ARG,
                "sequence length");
}

static void write_data(const char *path, int kind)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    for (int i = 0; i < 19; ++i) {
        if (kind == 0) {
            (void)fprintf(stream, "{\"text\":\"line %d of the data\"}\n", i * i);
        } else {
            (void)fprintf(stream, "{\"prompt\":\"%c\",\"completion\":\"%.*s\"}\n", 'a' + i,
                          1 + i * 7 % 5, "01234");
        }
    }
    assert_int_equal(fclose(stream), 0);
}

static int set_up(void **state)
{
    static world w;
    ds_tokenizer *tokenizer = NULL;
    char path[64] = "/tmp/ds_loader_ranks_XXXXXX.jsonl";
    const int fd = mkstemps(path, 6);
    const char *files[1] = {path};
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(ds_ctx_create(NULL, &w.ctx), DS_OK);
    assert_int_equal(ds_tokenizer_open(w.ctx, "bytes", &tokenizer), DS_OK);
    const ds_dataset_params params = {
        .files = files, .n_files = 1, .tokenizer = tokenizer, .seq_length = LENGTH};
    for (int kind = 0; kind < 2; ++kind) {
        write_data(path, kind);
        CHECK_OK(w.ctx, ds_dataset_open(w.ctx, &params, &w.data[kind]));
    }
    ds_tokenizer_close(&tokenizer);
    (void)unlink(path);
    *state = &w;
    return 0;
}

static int tear_down(void **state)
{
    world *w = *state;
    ds_dataset_close(&w->data[0]);
    ds_dataset_close(&w->data[1]);
    ds_ctx_destroy(&w->ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_share_one_order),
        cmocka_unit_test(evaluation_ends_together),
        cmocka_unit_test(cursor_moves_between_worlds),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
