/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of preferences become the batches that TRL's trainers and collators make of them
 * (test/golden/data/preferences.json, made by make_preferences.py): ids, targets, labels, KTO's
 * mismatched answers, what is cut and what is left out. Ranks share them; a cursor goes on; the
 * reference's numbers follow their answers; a split cuts no pair; the cache gives the same.
 *
 * DS_PREFERENCE_ROWS: another such file (test/long/preference_rows.sh). */
#include "common/check.h"
#include "common/scratch.h"
#include "data/dataset.h"

#include <deepspeed/context.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;
static char *folder;

static void in_folder(char *path, size_t n, const char *name)
{
    (void)snprintf(path, n, "%s/%s", folder, name);
}

static void save(const char *name, const json_t *value)
{
    char path[512];
    in_folder(path, sizeof path, name);
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    if (json_is_string(value)) {
        assert_true(fputs(json_string_value(value), stream) >= 0);
    } else if (json_is_array(value)) { /* rows */
        for (size_t i = 0; i < json_array_size(value); ++i) {
            assert_int_equal(json_dumpf(json_array_get(value, i), stream, JSON_COMPACT), 0);
            assert_int_equal(fputc('\n', stream), '\n');
        }
    } else {
        assert_int_equal(json_dumpf(value, stream, 0), 0);
    }
    assert_int_equal(fclose(stream), 0);
}

static ds_preference loss_of(const char *name)
{
    for (int k = 1; k < DS_PREFERENCE_LOSSES; ++k) {
        if (strcmp(ds_preference_loss_name((ds_preference_loss)k), name) == 0) {
            return ds_preference_default((ds_preference_loss)k);
        }
    }
    fail_msg("no loss %s", name);
    return ds_preference_default(DS_PREFERENCE_NONE);
}

/* A case, opened. */
typedef struct opened {
    ds_tokenizer *tok;
    ds_chat *chat;
    ds_dataset *data;
    ds_preference loss;
    int64_t length;
} opened;

static ds_status open_rows(const json_t *golden, const json_t *c, const char *cache, opened *o)
{
    const char *mode = json_string_value(json_object_get(c, "mode"));
    char command[512];
    char path[512];
    json_t *config = json_pack("{s:O, s:O}", "bos_token", json_object_get(c, "bos"), "eos_token",
                               json_object_get(c, "eos"));
    save("tokenizer_config.json", config);
    save("chat_template.jinja", json_object_get(golden, "template"));
    save("rows.jsonl", json_object_get(c, "lines"));
    json_decref(config);
    (void)snprintf(command, sizeof command, "cp %s/test/golden/data/%s %s/tokenizer.json",
                   DS_SOURCE_DIR, json_string_value(json_object_get(c, "tokenizer")), folder);
    assert_int_equal(system(command), 0);
    *o = (opened){.loss = loss_of(json_string_value(json_object_get(c, "loss"))),
                  .length = json_integer_value(json_object_get(c, "length"))};
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &o->tok));
    CHECK_OK(ctx, ds_chat_create(ctx, o->tok, NULL, &o->chat));
    in_folder(path, sizeof path, "rows.jsonl");
    const char *const files[] = {path};
    const ds_dataset_params params = {
        .files = files,
        .n_files = 1,
        .tokenizer = o->tok,
        .chat = o->chat,
        .seq_length = o->length,
        .cache = cache,
        .too_long = strcmp(mode, "drop") == 0       ? DS_TOO_LONG_DROP
                    : strcmp(mode, "keep_end") == 0 ? DS_TOO_LONG_KEEP_END
                                                    : DS_TOO_LONG_TRUNCATE,
        .rows = ds_preference_is_paired(o->loss.loss) ? DS_ROWS_PAIRS : DS_ROWS_LABELLED};
    return ds_dataset_open(ctx, &params, &o->data);
}

static void close_rows(opened *o)
{
    ds_dataset_close(&o->data);
    ds_chat_destroy(&o->chat);
    ds_tokenizer_close(&o->tok);
}

/* Row `row` of our batch against row `want` of TRL's. */
static void same_row(const char *what, const ds_loader_batch *b, int64_t row, const json_t *batch,
                     size_t want)
{
    const json_t *ids = json_array_get(json_object_get(batch, "ids"), want);
    const json_t *targets = json_array_get(json_object_get(batch, "targets"), want);
    const int64_t length = b->input_ids.meta.shape.dims[1];
    const int32_t *own_ids = (const int32_t *)b->input_ids.data + row * length;
    const int32_t *own_targets = (const int32_t *)b->targets.data + row * length;
    const int32_t *first = (const int32_t *)b->first.data + row * length;
    const int64_t n = (int64_t)json_array_size(ids);
    assert_true(n <= length);
    for (int64_t i = 0; i < length; ++i) {
        const json_int_t id = i < n ? json_integer_value(json_array_get(ids, (size_t)i)) : 0;
        const json_int_t target =
            i < n ? json_integer_value(json_array_get(targets, (size_t)i)) : -100;
        const bool scores = target != -100 && i + 1 == n; /* any number stands for "here" */
        if (own_ids[i] != id || first[i] != (i < n ? 0 : n) ||
            (scores ? own_targets[i] == -100 : own_targets[i] != target)) {
            fail_msg("%s, row %lld, token %lld of %lld: id %d, target %d, first %d; TRL's %lld, "
                     "%lld",
                     what, (long long)row, (long long)i, (long long)n, own_ids[i], own_targets[i],
                     first[i], (long long)id, (long long)target);
        }
    }
}

static void same_batch(const char *what, const ds_loader_batch *b, const json_t *batch)
{
    const size_t n = json_array_size(json_object_get(batch, "ids"));
    const json_t *labels = json_object_get(batch, "labels");
    const json_t *mismatched = json_object_get(batch, "mismatched");
    const int64_t rows = b->input_ids.meta.shape.dims[0];
    const size_t half = labels == NULL ? n / 2 : n;
    for (size_t i = 0; i < n; ++i) { /* the last batch may be short: its halves lie apart */
        const int64_t row = i < half ? (int64_t)i : rows / 2 + (int64_t)(i - half);
        same_row(what, b, row, batch, i);
        if (labels != NULL) {
            assert_int_equal(((const int32_t *)b->preference->labels.data)[i],
                             json_integer_value(json_array_get(labels, i)));
        }
        if (mismatched != NULL) {
            same_row("mismatched", b->preference->mismatched, row, mismatched, i);
        }
    }
}

static ds_loader *loader_of(const json_t *golden, const opened *o, uint32_t rank, uint32_t n_ranks)
{
    const ds_loader_params params = {.batch = json_integer_value(json_object_get(golden, "batch")),
                                     .seq_length = o->length,
                                     .rank = rank,
                                     .n_ranks = n_ranks,
                                     .preference = &o->loss};
    ds_loader *loader = NULL;
    CHECK_OK(ctx, ds_loader_create(ctx, o->data, &params, &loader));
    return loader;
}

/* All batches of a case by n_ranks: batch k is rank k mod n's. */
static void same_batches(const char *what, const json_t *golden, const json_t *c, const opened *o,
                         uint32_t n_ranks)
{
    const json_t *batches = json_object_get(c, "batches");
    for (uint32_t rank = 0; rank < n_ranks; ++rank) {
        ds_loader *loader = loader_of(golden, o, rank, n_ranks);
        bool done = false;
        for (size_t k = rank; !done; k += n_ranks) {
            ds_loader_batch b;
            CHECK_OK(ctx, ds_loader_next_once(loader, &b, &done));
            if (k < json_array_size(batches)) {
                assert_false(done);
                same_batch(what, &b, json_array_get(batches, k));
            }
        }
        ds_loader_destroy(&loader);
    }
}

static json_t *read_golden(const char *given)
{
    const char *path = given != NULL ? given : DS_SOURCE_DIR "/test/golden/data/preferences.json";
    json_t *golden = json_load_file(path, 0, NULL);
    assert_non_null(golden);
    return golden;
}

static void batches_are_trls(void **state)
{
    json_t *golden = read_golden(getenv("DS_PREFERENCE_ROWS"));
    const json_t *cases = json_object_get(golden, "cases");
    (void)state;
    for (size_t i = 0; i < json_array_size(cases); ++i) {
        const json_t *c = json_array_get(cases, i);
        char what[160];
        opened o;
        (void)snprintf(what, sizeof what, "case %zu (%s, %s, %s)", i,
                       json_string_value(json_object_get(c, "tokenizer")),
                       json_string_value(json_object_get(c, "loss")),
                       json_string_value(json_object_get(c, "mode")));
        const ds_status status = open_rows(golden, c, NULL, &o);
        if (json_array_size(json_object_get(c, "batches")) == 0) {
            assert_int_equal(status, DS_ERR_ARG); /* nothing is left */
        } else {
            CHECK_OK(ctx, status);
            same_batches(what, golden, c, &o, 1);
            if (o.loss.loss != DS_PREFERENCE_KTO || i % 2 == 0) {
                same_batches(what, golden, c, &o, 2);
            }
        }
        close_rows(&o);
    }
    json_decref(golden);
}

/* The first case of a loss that has several batches. */
static const json_t *case_of(const json_t *golden, const char *loss)
{
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(golden, "cases"), i, c)
    {
        if (strcmp(json_string_value(json_object_get(c, "loss")), loss) == 0 &&
            json_array_size(json_object_get(c, "batches")) > 1) {
            return c;
        }
    }
    fail_msg("no case of %s", loss);
    return NULL;
}

static void the_cache_gives_the_same(void **state)
{
    json_t *golden = read_golden(NULL);
    const json_t *c = case_of(golden, "sigmoid");
    char cache[512];
    (void)state;
    in_folder(cache, sizeof cache, "cache");
    for (int pass = 0; pass < 2; ++pass) { /* made, then found */
        opened o;
        CHECK_OK(ctx, open_rows(golden, c, cache, &o));
        same_batches("cached", golden, c, &o, 1);
        close_rows(&o);
    }
    opened o; /* labels, too, and not the pairs' entry */
    const json_t *labelled = case_of(golden, "kto");
    for (int pass = 0; pass < 2; ++pass) {
        CHECK_OK(ctx, open_rows(golden, labelled, cache, &o));
        same_batches("cached labels", golden, labelled, &o, 1);
        close_rows(&o);
    }
    json_decref(golden);
}

static void the_reference_follows_its_answer(void **state)
{
    json_t *golden = read_golden(NULL);
    const json_t *c = case_of(golden, "sigmoid");
    opened o;
    (void)state;
    CHECK_OK(ctx, open_rows(golden, c, NULL, &o));
    const uint64_t n = ds_dataset_n_draws(o.data);
    float *table = calloc((size_t)(2 * n), sizeof *table);
    assert_non_null(table);
    for (uint64_t i = 0; i < 2 * n; ++i) {
        table[i] = -1.0f - (float)i;
    }
    CHECK_FAILS(ctx, ds_dataset_set_reference(o.data, table, (size_t)n), DS_ERR_ARG, "expected");
    CHECK_OK(ctx, ds_dataset_set_reference(o.data, table, (size_t)(2 * n)));
    const ds_loader_params params = {
        .batch = 2, .seq_length = o.length, .seed = 3, .shuffle = true, .preference = &o.loss};
    ds_loader *loader = NULL;
    CHECK_OK(ctx, ds_loader_create(ctx, o.data, &params, &loader));
    char *cursor = NULL;
    uint64_t seen = 0;
    for (uint64_t step = 0; step < 6 * n; ++step) {
        ds_loader_batch b;
        CHECK_OK(ctx, ds_loader_next(loader, &b));
        const float *ref = b.preference->ref_logps.data;
        for (int64_t i = 0; i < 2; ++i) {
            const uint64_t draw = (uint64_t)(-1.0f - ref[i]) / 2;
            assert_true(draw < n && ref[2 + i] == ref[i] - 1.0f);
            seen |= UINT64_C(1) << draw;
            const uint64_t begin = dsi_dataset_begin(o.data, 2 * draw);
            assert_int_equal(((const int32_t *)b.input_ids.data)[i * o.length],
                             dsi_store_get(o.data->tokens, begin));
        }
        if (step == 3) {
            CHECK_OK(ctx, ds_loader_save(loader, &cursor));
        }
    }
    assert_true(seen == (UINT64_C(1) << n) - 1);
    ds_loader_batch b;
    CHECK_OK(ctx, ds_loader_restore(loader, cursor));
    CHECK_OK(ctx, ds_loader_next(loader, &b));
    free(cursor);
    ds_loader_destroy(&loader);
    /* a split cuts no pair, and each part keeps its numbers */
    ds_dataset *tail = NULL;
    CHECK_OK(ctx, ds_dataset_split(o.data, 0.5, &tail));
    assert_int_equal(ds_dataset_n_draws(o.data) + ds_dataset_n_draws(tail), n);
    assert_int_equal(ds_dataset_get_info(tail).n_documents % 2, 0);
    CHECK_OK(ctx, ds_loader_create(ctx, tail, &params, &loader));
    CHECK_OK(ctx, ds_loader_next(loader, &b));
    const uint64_t head = ds_dataset_n_draws(o.data);
    for (int i = 0; i < 2; ++i) {
        const uint64_t draw =
            (uint64_t)(-1.0f - ((const float *)b.preference->ref_logps.data)[i]) / 2;
        assert_true(draw >= head && draw < n);
        assert_int_equal(((const int32_t *)b.input_ids.data)[i * o.length],
                         dsi_store_get(tail->tokens, dsi_dataset_begin(tail, 2 * (draw - head))));
    }
    ds_loader_destroy(&loader);
    ds_dataset_close(&tail);
    free(table);
    close_rows(&o);
    json_decref(golden);
}

static void other_losses_are_refused(void **state)
{
    json_t *golden = read_golden(NULL);
    opened o;
    ds_loader *loader = NULL;
    (void)state;
    CHECK_OK(ctx, open_rows(golden, case_of(golden, "sigmoid"), NULL, &o));
    const ds_preference kto = ds_preference_default(DS_PREFERENCE_KTO);
    ds_loader_params params = {.batch = 2, .seq_length = o.length, .preference = &kto};
    CHECK_FAILS(ctx, ds_loader_create(ctx, o.data, &params, &loader), DS_ERR_ARG,
                "needs labelled answers (DS_ROWS_LABELLED), the data set was opened with pairs");
    params.preference = NULL;
    CHECK_FAILS(ctx, ds_loader_create(ctx, o.data, &params, &loader), DS_ERR_ARG,
                "needs no preferences");
    close_rows(&o);
    json_decref(golden);
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    (void)state;
    params.level = DS_LOG_ERROR;
    params.n_threads = 2;
    folder = scratch_make();
    return ds_ctx_create(&params, &ctx) < 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_trls),
        cmocka_unit_test(the_cache_gives_the_same),
        cmocka_unit_test(the_reference_follows_its_answer),
        cmocka_unit_test(other_losses_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
