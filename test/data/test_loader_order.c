/* SPDX-License-Identifier: Apache-2.0 */
/* The order of rows: a permutation of each epoch by its seed, full batches over the end of an
 * epoch, parts of ranks, windows that move from epoch to epoch; samples that fill a row exactly;
 * cursors of other settings are refused. */
#include "base/buf.h"
#include "common/check.h"
#include "common/scratch.h"
#include "data/dataset.h"

#include <deepspeed/data.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 8, MAX_ROWS = 256, N_TEXT = 60 * LENGTH + 3, N_SAMPLES = 40 };

static ds_ctx *ctx;
static ds_tokenizer *tokenizer;
static char *folder;

static ds_dataset *open_file(const char *name, const char *text, size_t n)
{
    const char *path = scratch_path(folder, name);
    const ds_dataset_params params = {
        .files = &path, .n_files = 1, .tokenizer = tokenizer, .seq_length = LENGTH};
    ds_dataset *data = NULL;
    scratch_write(path, text, n);
    CHECK_OK(ctx, ds_dataset_open(ctx, &params, &data));
    return data;
}

/* A text whose every window of 3 bytes is its own. */
static ds_dataset *open_text(void)
{
    char text[N_TEXT];
    for (size_t i = 0; i < sizeof text; ++i) {
        const size_t word = i / 3;
        text[i] = (char)(i % 3 == 0 ? ' ' : i % 3 == 1 ? 'A' + word / 25 : 'a' + word % 25);
    }
    return open_file("a.txt", text, sizeof text);
}

/* Samples of three tokens, two to a row: the letter, a letter of two, the letter again. */
static ds_dataset *open_samples(void)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    for (int i = 0; i < N_SAMPLES; ++i) {
        dsi_buf_printf(&text, "{\"prompt\":\"%c\",\"completion\":\"xy%c\"}\n", '0' + i, '0' + i);
    }
    ds_dataset *data = open_file("b.jsonl", dsi_buf_text(&text), text.size);
    dsi_buf_free(&text);
    return data;
}

static ds_loader_params with(int64_t batch, uint64_t seed)
{
    return (ds_loader_params){.batch = batch, .seq_length = LENGTH, .seed = seed, .shuffle = true};
}

static ds_loader *loader_of(const ds_dataset *data, ds_loader_params params)
{
    ds_loader *loader = NULL;
    CHECK_OK(ctx, ds_loader_create(ctx, data, &params, &loader));
    return loader;
}

/* The ids of the next n rows, which must all be full. */
static void take(ds_loader *loader, int64_t n_batches, int64_t batch, int32_t *rows)
{
    for (int64_t i = 0; i < n_batches; ++i) {
        ds_loader_batch b;
        CHECK_OK(ctx, ds_loader_next(loader, &b));
        memcpy(rows + i * batch * LENGTH, b.input_ids.data,
               (size_t)(batch * LENGTH) * sizeof *rows);
        const int32_t *ids = b.input_ids.data;
        const int32_t *targets = b.targets.data;
        bool counts = false;
        for (int64_t at = 0; at < batch * LENGTH; ++at) {
            counts = counts || targets[at] != -100;
            assert_true(ids[at] >= 0);
            if (at % LENGTH == LENGTH - 1) {
                assert_true(counts); /* no row is empty */
                counts = false;
            }
        }
    }
}

static bool same_rows(const int32_t *a, const int32_t *b, int64_t n)
{
    return memcmp(a, b, (size_t)(n * LENGTH) * sizeof *a) == 0;
}

/* Rows of an epoch by a key of their own, sorted. */
static int by_key(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Seeds and epochs differ in order; both visit the same rows, each once. */
static void check_orders(const ds_dataset *data, int64_t n)
{
    static int32_t rows[4][MAX_ROWS * LENGTH];
    int32_t keys[4][MAX_ROWS];
    for (int which = 0; which < 3; ++which) { /* seed 1, its second epoch; seed 2 */
        ds_loader *loader = loader_of(data, with(1, which == 2 ? 2 : 1));
        take(loader, n, 1, rows[which]);
        assert_int_equal(ds_loader_epoch(loader), 0);
        if (which == 0) {
            take(loader, n, 1, rows[1]);
            assert_int_equal(ds_loader_epoch(loader), 1);
            ++which;
        }
        ds_loader_destroy(&loader);
    }
    ds_loader_params params = with(1, 1);
    params.shuffle = false;
    ds_loader *plain = loader_of(data, params);
    take(plain, n, 1, rows[3]);
    ds_loader_destroy(&plain);
    for (int a = 0; a < 4; ++a) {
        for (int b = 0; b < a; ++b) {
            assert_false(same_rows(rows[a], rows[b], n));
        }
        for (int64_t i = 0; i < n; ++i) { /* three ids name a row */
            const int32_t *row = rows[a] + i * LENGTH;
            keys[a][i] = row[0] << 16 | row[1] << 8 | row[2];
        }
        qsort(keys[a], (size_t)n, sizeof keys[a][0], by_key);
        for (int64_t i = 1; i < n; ++i) {
            assert_true(keys[a][i] != keys[a][i - 1]);
        }
    }
}

static void orders(void **state)
{
    (void)state;
    ds_dataset *text = open_text();
    check_orders(text, 59); /* an epoch has 59 or 60 rows, by where its first window begins */
    ds_dataset_close(&text);
    ds_dataset *samples = open_samples();
    check_orders(samples, N_SAMPLES / 2);
    ds_dataset_close(&samples);
}

/* Where a row stands in the text, -1: nowhere. */
static int64_t place_of(const ds_dataset *text, const int32_t *ids)
{
    for (int64_t at = 0; at < N_TEXT - LENGTH; ++at) {
        bool here = true;
        for (int64_t i = 0; i < LENGTH && here; ++i) {
            here = dsi_store_get(text->tokens, (uint64_t)(at + i)) == ids[i];
        }
        if (here) {
            return at;
        }
    }
    return -1;
}

/* A shuffled stream is not read in the order of the text. */
static void windows_are_shuffled(void **state)
{
    static int32_t rows[59 * LENGTH];
    int n_back = 0;
    (void)state;
    ds_dataset *text = open_text();
    ds_loader *loader = loader_of(text, with(1, 1));
    take(loader, 59, 1, rows);
    for (int i = 1; i < 59; ++i) {
        n_back += place_of(text, rows + i * LENGTH) < place_of(text, rows + (i - 1) * LENGTH);
    }
    assert_true(n_back > 15 && n_back < 44);
    ds_loader_destroy(&loader);
    ds_dataset_close(&text);
}

/* Shuffled windows begin at another token in another epoch: targets at their ends are learnt too.
 */
static void windows_move(void **state)
{
    int32_t phases[6];
    bool moved = false;
    (void)state;
    ds_dataset *text = open_text();
    ds_loader *loader = loader_of(text, with(1, 3));
    for (int epoch = 0; epoch < 6; ++epoch) {
        ds_loader_batch b;
        int n_rows = 0;
        do {
            CHECK_OK(ctx, ds_loader_next(loader, &b));
            assert_true(++n_rows < MAX_ROWS); /* the epoch ends */
        } while (ds_loader_epoch(loader) < (uint64_t)epoch);
        const int32_t *ids = b.input_ids.data;
        phases[epoch] = (int32_t)(place_of(text, ids) % LENGTH);
        moved = moved || phases[epoch] != phases[0];
    }
    assert_true(moved);
    ds_loader_destroy(&loader);
    ds_dataset_close(&text);
}

/* Rows of ranks, put together, are those of one rank with as many rows, over the end of an epoch.
 */
static void ranks_share_rows(void **state)
{
    enum { RANKS = 3, BATCH = 2, BATCHES = 15 };
    static int32_t whole[RANKS * BATCH * BATCHES * LENGTH];
    static int32_t part[BATCH * BATCHES * LENGTH];
    ds_dataset *sets[2] = {open_text(), open_samples()};
    (void)state;
    for (int kind = 0; kind < 2; ++kind) {
        ds_loader *one = loader_of(sets[kind], with((int64_t)RANKS * BATCH, 4));
        take(one, BATCHES, (int64_t)RANKS * BATCH, whole);
        assert_true(ds_loader_epoch(one) > 0);
        ds_loader_destroy(&one);
        for (uint32_t rank = 0; rank < RANKS; ++rank) {
            ds_loader_params params = with(BATCH, 4);
            params.rank = rank;
            params.n_ranks = RANKS;
            ds_loader *loader = loader_of(sets[kind], params);
            take(loader, BATCHES, BATCH, part);
            for (int64_t i = 0; i < BATCHES; ++i) {
                assert_true(same_rows(part + i * BATCH * LENGTH,
                                      whole + (i * RANKS + rank) * BATCH * LENGTH, BATCH));
            }
            ds_loader_destroy(&loader);
        }
        ds_dataset_close(&sets[kind]);
    }
}

/* Two samples that fill a row to its last token share it and do not see one another. */
static void samples_fill_a_row(void **state)
{
    static const char *const lines = "{\"prompt\":\"a\",\"completion\":\"bcd\"}\n"
                                     "{\"prompt\":\"e\",\"completion\":\"fgh\"}\n"
                                     "{\"prompt\":\"i\",\"completion\":\"jk\"}\n";
    static const int32_t ids[2 * LENGTH] = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k'};
    static const int32_t first[LENGTH] = {0, 0, 0, 0, 4, 4, 4, 4};
    static const int32_t positions[LENGTH] = {0, 1, 2, 3, 0, 1, 2, 3};
    ds_loader_batch b;
    bool done = false;
    (void)state;
    ds_dataset *data = open_file("c.jsonl", lines, strlen(lines));
    ds_loader_params params = with(2, 0);
    params.shuffle = false;
    ds_loader *loader = loader_of(data, params);
    assert_int_equal(ds_loader_epoch_rows(loader), 2); /* 11 tokens of 8 */
    for (int again = 0; again < 2; ++again) {
        CHECK_OK(ctx, ds_loader_next_once(loader, &b, &done));
        assert_false(done);
        assert_memory_equal(b.input_ids.data, ids, sizeof ids);
        assert_memory_equal(b.first.data, first, sizeof first);
        assert_memory_equal(b.positions.data, positions, sizeof positions);
        assert_int_equal(b.n_tokens, 11);
        CHECK_OK(ctx, ds_loader_next_once(loader, &b, &done));
        assert_true(done);
        ds_loader_rewind(loader); /* the same once more */
    }
    ds_loader_destroy(&loader);
    ds_dataset_close(&data);
}

/* A cursor belongs to its data, seed and length. */
static void other_cursors_are_refused(void **state)
{
    char *cursor = NULL;
    (void)state;
    ds_dataset *text = open_text();
    ds_dataset *samples = open_samples();
    ds_loader *loader = loader_of(text, with(2, 1));
    CHECK_OK(ctx, ds_loader_save(loader, &cursor));
    ds_loader_destroy(&loader);
    ds_loader_params params = with(2, 2);
    loader = loader_of(text, params);
    CHECK_FAILS(ctx, ds_loader_restore(loader, cursor), DS_ERR_ARG, "seed was 1, now it is 2");
    ds_loader_destroy(&loader);
    params = with(2, 1);
    params.seq_length = LENGTH / 2;
    loader = loader_of(text, params);
    CHECK_FAILS(ctx, ds_loader_restore(loader, cursor), DS_ERR_ARG,
                "seq_length was 8, now it is 4");
    ds_loader_destroy(&loader);
    loader = loader_of(samples, with(2, 1));
    CHECK_FAILS(ctx, ds_loader_restore(loader, cursor), DS_ERR_ARG, "n_tokens was 483");
    CHECK_FAILS(ctx, ds_loader_restore(loader, "{}"), DS_ERR_FORMAT, "seed");
    CHECK_FAILS(ctx, ds_loader_restore(loader, "{"), DS_ERR_FORMAT, "no JSON");
    ds_loader_destroy(&loader);
    free(cursor);
    ds_dataset_close(&text);
    ds_dataset_close(&samples);
}

static int set_up(void **state)
{
    (void)state;
    folder = scratch_make();
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    return ds_tokenizer_open(ctx, "bytes", &tokenizer);
}

static int tear_down(void **state)
{
    (void)state;
    ds_tokenizer_close(&tokenizer);
    ds_ctx_destroy(&ctx);
    scratch_remove(folder);
    return 0;
}

/* With `alone` each sample has a row; a cursor knows it, and text has no samples. */
static void a_row_for_each(void **state)
{
    (void)state;
    ds_dataset *data = open_samples();
    ds_dataset *text = open_text();
    ds_loader_params params = with(1, 1);
    ds_loader *packed = loader_of(data, params);
    params.alone = 1;
    ds_loader *loader = loader_of(data, params);
    uint64_t seen = 0;
    assert_int_equal(ds_loader_epoch_rows(packed), N_SAMPLES / 2);
    assert_int_equal(ds_loader_epoch_rows(loader), N_SAMPLES);
    for (int i = 0; i < N_SAMPLES; ++i) {
        ds_loader_batch b;
        CHECK_OK(ctx, ds_loader_next(loader, &b));
        assert_int_equal(b.n_tokens, 4);
        assert_int_equal(((const int32_t *)b.first.data)[3], 0);
        assert_int_equal(((const int32_t *)b.targets.data)[4], -100);
        seen |= UINT64_C(1) << (((const int32_t *)b.input_ids.data)[0] - '0');
    }
    assert_true(seen == (UINT64_C(1) << N_SAMPLES) - 1);
    assert_int_equal(ds_loader_epoch(loader), 0);
    char *cursor = NULL;
    CHECK_OK(ctx, ds_loader_save(loader, &cursor));
    CHECK_OK(ctx, ds_loader_restore(loader, cursor));
    CHECK_FAILS(ctx, ds_loader_restore(packed, cursor), DS_ERR_ARG, "whether samples are packed");
    free(cursor);
    CHECK_OK(ctx, ds_loader_save(packed, &cursor));
    CHECK_FAILS(ctx, ds_loader_restore(loader, cursor), DS_ERR_ARG, "whether samples are packed");
    free(cursor);
    ds_loader *none = NULL;
    CHECK_FAILS(ctx, ds_loader_create(ctx, text, &params, &none), DS_ERR_ARG, "the data is text");
    params.alone = 2;
    CHECK_FAILS(ctx, ds_loader_create(ctx, data, &params, &none), DS_ERR_ARG, "expected 0 or 1");
    ds_loader_destroy(&packed);
    ds_loader_destroy(&loader);
    ds_dataset_close(&data);
    ds_dataset_close(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders),
        cmocka_unit_test(windows_are_shuffled),
        cmocka_unit_test(windows_move),
        cmocka_unit_test(ranks_share_rows),
        cmocka_unit_test(samples_fill_a_row),
        cmocka_unit_test(a_row_for_each),
        cmocka_unit_test(other_cursors_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
