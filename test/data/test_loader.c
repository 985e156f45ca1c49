/* SPDX-License-Identifier: Apache-2.0 */
/* data/: rows of both kinds, each token once in evaluation, exact resume, indexed data round trip.
 */
#include "common/check.h"
#include "data/dataset.h"
#include "data/indexed.h"

#include <deepspeed/data.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct world {
    ds_ctx *ctx;
    ds_tokenizer *tokenizer;
    char folder[64];
    char path[128];
} world;

static void write_file(world *w, const char *name, const char *text)
{
    (void)snprintf(w->path, sizeof w->path, "%s/%s", w->folder, name);
    FILE *stream = fopen(w->path, "wb");
    assert_non_null(stream);
    (void)fputs(text, stream);
    (void)fclose(stream);
}

static ds_status open_data(world *w, int64_t length, ds_too_long too_long, ds_dataset **out)
{
    const char *files[1] = {w->path};
    const ds_dataset_params params = {.files = files,
                                      .n_files = 1,
                                      .tokenizer = w->tokenizer,
                                      .seq_length = length,
                                      .too_long = too_long};
    return ds_dataset_open(w->ctx, &params, out);
}

static ds_loader *make_loader(world *w, const ds_dataset *data, int64_t batch, int64_t length,
                              bool shuffle)
{
    const ds_loader_params params = {
        .batch = batch, .seq_length = length, .seed = 5, .shuffle = shuffle};
    ds_loader *loader = NULL;
    CHECK_OK(w->ctx, ds_loader_create(w->ctx, data, &params, &loader));
    return loader;
}

/* Every target of a text once, in order; documents do not see one another. */
static void evaluation_visits_all(void **state)
{
    world *w = *state;
    ds_dataset *data = NULL;
    ds_loader_batch batch;
    char seen[64] = "";
    size_t n = 0;
    bool done = false;
    write_file(w, "a.jsonl",
               "{\"text\":\"abcdefg\"}\n\n{\"text\":\"hijklm\"}\n{\"text\":\"nop\"}\n");
    CHECK_OK(w->ctx, open_data(w, 4, DS_TOO_LONG_TRUNCATE, &data));
    assert_int_equal(ds_dataset_get_info(data).n_documents, 3);
    ds_loader *loader = make_loader(w, data, 3, 4, false);
    for (;;) {
        CHECK_OK(w->ctx, ds_loader_next_once(loader, &batch, &done));
        if (done) {
            break;
        }
        const int32_t *ids = batch.input_ids.data;
        const int32_t *targets = batch.targets.data;
        const int32_t *first = batch.first.data;
        const int32_t *positions = batch.positions.data;
        for (int i = 0; i < 12; ++i) {
            if (targets[i] != -100) {
                assert_int_equal(targets[i], ids[i] + 1); /* the alphabet */
                seen[n++] = (char)targets[i];
            }
            assert_int_equal(positions[i], i % 4 - first[i]);
        }
    }
    assert_string_equal(seen, "bcdefgijklmop"); /* a, h and n begin documents */
    ds_loader_destroy(&loader);
    ds_dataset_close(&data);
}

/* Saving the cursor and restoring it goes on with the very same rows, over the end of an epoch. */
static void cursor_is_exact(void **state)
{
    world *w = *state;
    static const char *const texts[2] = {
        "{\"text\":\"the quick brown fox jumps over the lazy dog and runs away\"}\n",
        "{\"prompt\":\"ab\",\"completion\":\"cd\"}\n{\"prompt\":\"e\",\"completion\":\"fgh\"}\n"
        "{\"prompt\":\"ijk\",\"completion\":\"l\"}\n{\"prompt\":\"m\",\"completion\":\"n\"}\n"};
    for (int kind = 0; kind < 2; ++kind) {
        ds_dataset *data = NULL;
        char *cursor = NULL;
        ds_loader_batch a;
        ds_loader_batch b;
        write_file(w, "b.jsonl", texts[kind]);
        CHECK_OK(w->ctx, open_data(w, 6, DS_TOO_LONG_TRUNCATE, &data));
        ds_loader *one = make_loader(w, data, 2, 6, true);
        ds_loader *two = make_loader(w, data, 2, 6, true);
        for (int i = 0; i < 7; ++i) {
            CHECK_OK(w->ctx, ds_loader_next(one, &a));
        }
        CHECK_OK(w->ctx, ds_loader_save(one, &cursor));
        CHECK_OK(w->ctx, ds_loader_restore(two, cursor));
        for (int i = 0; i < 9; ++i) {
            CHECK_OK(w->ctx, ds_loader_next(one, &a));
            CHECK_OK(w->ctx, ds_loader_next(two, &b));
            assert_memory_equal(a.input_ids.data, b.input_ids.data, 12 * sizeof(int32_t));
            assert_memory_equal(a.targets.data, b.targets.data, 12 * sizeof(int32_t));
        }
        char *edited = strstr(cursor, "\"n_tokens\":");
        assert_non_null(edited);
        edited[strlen("\"n_tokens\":")] = '9';
        CHECK_FAILS(w->ctx, ds_loader_restore(two, cursor), DS_ERR_ARG, "n_tokens");
        free(cursor);
        ds_loader_destroy(&one);
        ds_loader_destroy(&two);
        ds_dataset_close(&data);
    }
}

/* The loss counts in the completion only; long samples are cut or dropped, and counted. */
static void samples(void **state)
{
    world *w = *state;
    ds_dataset *data = NULL;
    ds_loader_batch batch;
    write_file(w, "c.jsonl",
               "{\"prompt\":\"ab\",\"completion\":\"cde\"}\n"
               "{\"prompt\":\"0123\",\"completion\":\"456789\"}\n");
    CHECK_OK(w->ctx, open_data(w, 8, DS_TOO_LONG_DROP, &data));
    assert_int_equal(ds_dataset_get_info(data).n_dropped, 1);
    ds_loader *loader = make_loader(w, data, 1, 8, false);
    CHECK_OK(w->ctx, ds_loader_next(loader, &batch));
    const int32_t want[8] = {-100, 'c', 'd', 'e', -100, -100, -100, -100};
    assert_memory_equal(batch.targets.data, want, sizeof want);
    ds_loader_destroy(&loader);
    ds_dataset_close(&data);
    CHECK_OK(w->ctx, open_data(w, 8, DS_TOO_LONG_TRUNCATE, &data));
    assert_int_equal(ds_dataset_get_info(data).n_truncated, 1);
    ds_dataset_close(&data);
    write_file(w, "c.jsonl", "{\"text\":\"a\"}\n{\"prompt\":\"b\",\"completion\":\"c\"}\n");
    CHECK_FAILS(w->ctx, open_data(w, 8, DS_TOO_LONG_DROP, &data), DS_ERR_ARG, "cannot be mixed");
    write_file(w, "c.jsonl", "{\"text\":\"a\"}\n{\"text\":\n");
    CHECK_FAILS(w->ctx, open_data(w, 8, DS_TOO_LONG_DROP, &data), DS_ERR_FORMAT, "c.jsonl:2");
}

static void indexed_round_trip(void **state)
{
    world *w = *state;
    static const uint32_t vocabularies[2] = {300, 100000};
    for (int v = 0; v < 2; ++v) {
        dsi_indexed_writer *writer = NULL;
        ds_dataset *data = NULL;
        const uint32_t first[3] = {1, 2, 299};
        const uint32_t second[2] = {7, vocabularies[v] - 1};
        (void)snprintf(w->path, sizeof w->path, "%s/indexed", w->folder);
        CHECK_OK(w->ctx, dsi_indexed_create(w->ctx, w->path, vocabularies[v], &writer));
        CHECK_OK(w->ctx, dsi_indexed_add(writer, first, 3));
        CHECK_OK(w->ctx, dsi_indexed_add(writer, second, 2));
        CHECK_OK(w->ctx, dsi_indexed_commit(&writer));
        (void)snprintf(w->path, sizeof w->path, "%s/indexed.bin", w->folder);
        CHECK_OK(w->ctx, open_data(w, 2, DS_TOO_LONG_DROP, &data));
        assert_int_equal(ds_dataset_get_info(data).n_documents, 2);
        assert_int_equal(ds_dataset_get_info(data).n_tokens, 5);
        assert_int_equal(dsi_store_get(data->tokens, 2), 299);
        assert_int_equal(dsi_store_get(data->tokens, 4), vocabularies[v] - 1);
        ds_dataset_close(&data);
    }
    write_file(w, "indexed.idx", "MMIDIDX");
    CHECK_FAILS(w->ctx, open_data(w, 2, DS_TOO_LONG_DROP, &(ds_dataset *){NULL}), DS_ERR_FORMAT,
                "MMIDIDX");
}

/* A cursor belongs to its data, shuffle and seed. */
static void cursors_of_others(void **state)
{
    world *w = *state;
    ds_dataset *data[2] = {NULL, NULL};
    char *cursor = NULL;
    for (int i = 0; i < 2; ++i) {
        write_file(w, "d.jsonl",
                   i == 0 ? "{\"text\":\"abcdefghij\"}\n" : "{\"text\":\"abcdefghiJ\"}\n");
        CHECK_OK(w->ctx, open_data(w, 4, DS_TOO_LONG_TRUNCATE, &data[i]));
    }
    ds_loader *one = make_loader(w, data[0], 1, 4, true);
    ds_loader *other = make_loader(w, data[1], 1, 4, true);
    ds_loader *plain = make_loader(w, data[0], 1, 4, false);
    CHECK_OK(w->ctx, ds_loader_save(one, &cursor));
    CHECK_OK(w->ctx, ds_loader_restore(one, cursor));
    CHECK_FAILS(w->ctx, ds_loader_restore(other, cursor), DS_ERR_ARG, "but others");
    CHECK_FAILS(w->ctx, ds_loader_restore(plain, cursor), DS_ERR_ARG, "shuffle");
    CHECK_FAILS(w->ctx, ds_loader_restore(one, "{\"epoch\":0}"), DS_ERR_FORMAT, "seed");
    CHECK_FAILS(w->ctx, ds_loader_restore(one, "["), DS_ERR_FORMAT, "no JSON");
    char *position = strstr(cursor, "\"next\":0");
    assert_non_null(position);
    position[7] = '-';
    position[8] = ',';
    CHECK_FAILS(w->ctx, ds_loader_restore(one, cursor), DS_ERR_FORMAT, "no JSON");
    free(cursor);
    ds_loader_destroy(&one);
    ds_loader_destroy(&other);
    ds_loader_destroy(&plain);
    ds_dataset_close(&data[0]);
    ds_dataset_close(&data[1]);
}

/* An epoch's rows are counted, not estimated. */
static void rows_of_samples(void **state)
{
    world *w = *state;
    ds_dataset *data = NULL;
    ds_loader_batch batch;
    uint64_t rows = 0;
    write_file(
        w, "e.jsonl",
        "{\"prompt\":\"abc\",\"completion\":\"de\"}\n{\"prompt\":\"f\",\"completion\":\"ghij\"}\n"
        "{\"prompt\":\"k\",\"completion\":\"l\"}\n{\"prompt\":\"m\",\"completion\":\"nopqr\"}\n");
    CHECK_OK(w->ctx, open_data(w, 8, DS_TOO_LONG_TRUNCATE, &data));
    ds_loader *loader = make_loader(w, data, 1, 8, true);
    for (uint64_t epoch = 0; epoch < 4; ++epoch) {
        const uint64_t want = ds_loader_epoch_rows(loader);
        for (; ds_loader_epoch(loader) == epoch; ++rows) {
            CHECK_OK(w->ctx, ds_loader_next(loader, &batch));
        }
        assert_int_equal(rows - 1, want); /* the last one began the next epoch */
        rows = 1;
    }
    ds_loader_destroy(&loader);
    ds_dataset_close(&data);
}

static int set_up(void **state)
{
    static world w;
    (void)strcpy(w.folder, "/tmp/ds_loader_XXXXXX");
    assert_non_null(mkdtemp(w.folder));
    assert_int_equal(ds_ctx_create(NULL, &w.ctx), DS_OK);
    assert_int_equal(ds_tokenizer_open(w.ctx, "bytes", &w.tokenizer), DS_OK);
    *state = &w;
    return 0;
}

static int tear_down(void **state)
{
    world *w = *state;
    char command[96];
    (void)snprintf(command, sizeof command, "rm -rf %s", w->folder);
    assert_int_equal(system(command), 0);
    ds_tokenizer_close(&w->tokenizer);
    ds_ctx_destroy(&w->ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_visits_all),
        cmocka_unit_test(cursor_is_exact),
        cmocka_unit_test(samples),
        cmocka_unit_test(indexed_round_trip),
        cmocka_unit_test(cursors_of_others),
        cmocka_unit_test(rows_of_samples),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
