/* SPDX-License-Identifier: Apache-2.0 */
/* data/: chats and prompt+completion pairs from a .jsonl to the rows of a loader: ids, targets and
 * what counts in the loss equal transformers' (test/golden/data/masks, made by make_masks.py), for
 * each family of chat templates. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/data.h>
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 256, ROWS = 2, FAMILIES = 12 };

static ds_ctx *ctx;
static char *folder;

static const char *path_in(const char *base, const char *name)
{
    static char paths[4][512];
    static int turn;
    char *path = paths[turn++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", base, name);
    return path;
}

static const char *golden(const char *name)
{
    return path_in(DS_SOURCE_DIR "/test/golden/data", name);
}

/* A model folder with the family's tokenizer and template. */
static ds_tokenizer *tokenizer_of(const json_t *family)
{
    ds_tokenizer *tok = NULL;
    char command[2400];
    json_t *config = json_pack("{s:O, s:O}", "bos_token", json_object_get(family, "bos"),
                               "eos_token", json_object_get(family, "eos"));
    const json_t *file = json_object_get(family, "tokenizer");
    const json_t *template = json_object_get(family, "template");
    assert_int_equal(json_dump_file(config, path_in(folder, "tokenizer_config.json"), 0), 0);
    json_decref(config);
    (void)snprintf(command, sizeof command, "cp %s %s/tokenizer.json && cp %s/%s %s",
                   golden(json_string_value(file)), folder, golden("templates"),
                   json_string_value(template), path_in(folder, "chat_template.jinja"));
    assert_int_equal(system(command), 0);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    return tok;
}

static const char *write_lines(const json_t *samples)
{
    const char *path = path_in(folder, "data.jsonl");
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    for (size_t i = 0; i < json_array_size(samples); ++i) {
        assert_int_equal(json_dumpf(json_object_get(json_array_get(samples, i), "line"), stream, 0),
                         0);
        (void)fputc('\n', stream);
    }
    assert_int_equal(fclose(stream), 0);
    return path;
}

static int32_t at(const json_t *list, int64_t i)
{
    return (int32_t)json_integer_value(json_array_get(list, (size_t)i));
}

/* Compares the sample that stands at `begin` of a row; returns its length. */
static int64_t same_sample(const json_t *sample, const ds_loader_batch *batch, int64_t begin)
{
    const json_t *ids = json_object_get(sample, "ids");
    const json_t *mask = json_object_get(sample, "mask");
    const int64_t n = (int64_t)json_array_size(ids);
    const int32_t *input_ids = (const int32_t *)batch->input_ids.data + begin;
    const int32_t *targets = (const int32_t *)batch->targets.data + begin;
    const int32_t *first = (const int32_t *)batch->first.data + begin;
    const int32_t *positions = (const int32_t *)batch->positions.data + begin;
    for (int64_t i = 0; i < n; ++i) {
        const bool counts = i + 1 < n && at(mask, i + 1) != 0;
        assert_int_equal(input_ids[i], at(ids, i));
        assert_int_equal(targets[i], counts ? at(ids, i + 1) : -100);
        assert_int_equal(first[i], begin % LENGTH);
        assert_int_equal(positions[i], i);
    }
    return n;
}

/* Walks the samples in order through rows of whole samples. */
static void same_rows(const ds_dataset *data, const json_t *samples)
{
    const ds_loader_params params = {.batch = ROWS, .seq_length = LENGTH};
    ds_loader *loader = NULL;
    ds_loader_batch batch;
    bool done = false;
    size_t s = 0;
    CHECK_OK(ctx, ds_loader_create(ctx, data, &params, &loader));
    CHECK_OK(ctx, ds_loader_next_once(loader, &batch, &done));
    for (; !done; (void)ds_loader_next_once(loader, &batch, &done)) {
        for (int64_t row = 0; row < ROWS; ++row) {
            int64_t used = 0;
            while (s < json_array_size(samples)) {
                const json_t *sample = json_array_get(samples, s);
                if (used + (int64_t)json_array_size(json_object_get(sample, "ids")) > LENGTH) {
                    break;
                }
                used += same_sample(sample, &batch, row * LENGTH + used);
                ++s;
            }
            for (int64_t i = used; i < LENGTH; ++i) {
                assert_int_equal(((int32_t *)batch.targets.data)[row * LENGTH + i], -100);
            }
        }
    }
    assert_int_equal(s, json_array_size(samples));
    ds_loader_destroy(&loader);
}

static void check_samples(const json_t *samples, const ds_tokenizer *tok, const ds_chat *chat)
{
    const char *path = write_lines(samples);
    const ds_dataset_params params = {
        .files = &path, .n_files = 1, .tokenizer = tok, .chat = chat, .seq_length = LENGTH};
    ds_dataset *data = NULL;
    CHECK_OK(ctx, ds_dataset_open(ctx, &params, &data));
    assert_int_equal(ds_dataset_get_info(data).n_documents, json_array_size(samples));
    assert_true(ds_dataset_get_info(data).samples);
    same_rows(data, samples);
    ds_dataset_close(&data);
}

static void check_family(const char *name)
{
    json_error_t error;
    json_t *family = json_load_file(golden(name), 0, &error);
    ds_chat *chat = NULL;
    assert_non_null(family);
    ds_tokenizer *tok = tokenizer_of(family);
    CHECK_OK(ctx, ds_chat_create(ctx, tok, NULL, &chat));
    (void)printf("%s: template %s\n", name, ds_chat_name(chat));
    assert_true(json_array_size(json_object_get(family, "chats")) >= 6);
    check_samples(json_object_get(family, "chats"), tok, chat);
    check_samples(json_object_get(family, "pairs"), tok, NULL);
    ds_chat_destroy(&chat);
    ds_tokenizer_close(&tok);
    json_decref(family);
}

static void every_family(void **state)
{
    (void)state;
    DIR *dir = opendir(golden("masks"));
    int n = 0;
    assert_non_null(dir);
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        char name[300];
        if (e->d_name[0] != '.' && strncmp(e->d_name, "tokenizer-", 10) != 0) {
            (void)snprintf(name, sizeof name, "masks/%s", e->d_name);
            check_family(name);
            ++n;
        }
    }
    (void)closedir(dir);
    assert_int_equal(n, FAMILIES);
}

static int set_up(void **state)
{
    (void)state;
    folder = scratch_make();
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    return 0;
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_family)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
