/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of sources and targets to batches: both stand at their document's beginning, padding and
 * -100 fill up the shorter; what is no such row is refused. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/data.h>
#include <stdio.h>
#include <string.h>

enum { LENGTH = 12, PAD = 9, END = 1, A = 3, B = 4 };

static ds_ctx *ctx;

/* <pad> </s> <unk> and letters behind a space or not; </s> behind each text. */
static const char tokenizer_text[] =
    "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":1,\"content\":\"</s>\",\"single_word\":false,"
    "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],"
    "\"normalizer\":null,\"pre_tokenizer\":null,\"decoder\":null,\"post_processor\":{\"type\":"
    "\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{"
    "\"SpecialToken\":{\"id\":\"</s>\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"</s>\":{"
    "\"id\":\"</s>\",\"ids\":[1],\"tokens\":[\"</s>\"]}}},\"model\":{\"type\":\"Unigram\","
    "\"unk_id\":2,\"vocab\":[[\"<pad>\",0],[\"</s>\",0],[\"<unk>\",0],[\"a\",-1],[\"b\",-1]]}}";

typedef struct made {
    ds_status status;
    uint64_t n_uncounted;
    int32_t ids[LENGTH], targets[LENGTH], first[LENGTH], positions[LENGTH];
} made;

static made read_file(const char *name, const char *text)
{
    char *folder = scratch_make();
    made m = {.status = DS_OK};
    ds_tokenizer *tokenizer = NULL;
    ds_dataset *dataset = NULL;
    ds_loader *loader = NULL;
    ds_loader_batch batch;
    scratch_write(scratch_path(folder, "tokenizer.json"), tokenizer_text,
                  sizeof tokenizer_text - 1);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tokenizer));
    scratch_write(scratch_path(folder, name), text, strlen(text));
    const char *file = scratch_path(folder, name);
    const ds_dataset_params data = {.files = &file,
                                    .n_files = 1,
                                    .tokenizer = tokenizer,
                                    .seq_length = LENGTH,
                                    .column_map = "completion=target",
                                    .rows = DS_ROWS_SOURCES};
    const ds_loader_params params = {.batch = 1, .seq_length = LENGTH, .pad_id = PAD};
    m.status = ds_dataset_open(ctx, &data, &dataset);
    if (m.status >= 0) {
        m.n_uncounted = ds_dataset_get_info(dataset).n_uncounted;
        CHECK_OK(ctx, ds_loader_create(ctx, dataset, &params, &loader));
        CHECK_OK(ctx, ds_loader_next(loader, &batch));
        memcpy(m.ids, batch.input_ids.data, sizeof m.ids);
        memcpy(m.targets, batch.targets.data, sizeof m.targets);
        memcpy(m.first, batch.first.data, sizeof m.first);
        memcpy(m.positions, batch.positions.data, sizeof m.positions);
    }
    ds_loader_destroy(&loader);
    ds_dataset_close(&dataset);
    ds_tokenizer_close(&tokenizer);
    scratch_remove(folder);
    return m;
}

static void sources_and_targets_begin_together(void **state)
{
    static const int32_t ids[LENGTH] = {A, B, A, END, PAD, PAD, PAD, B, END, PAD, PAD, PAD};
    static const int32_t targets[LENGTH] = {B,    B, END, -100, -100, -100,
                                            -100, A, A,   END,  -100, -100};
    static const int32_t positions[LENGTH] = {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4};
    static const int32_t first[LENGTH] = {0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7};
    (void)state;
    const made m = read_file("rows.jsonl", "{\"prompt\": \"aba\", \"target\": \"bb\"}\n"
                                           "{\"prompt\": \"b\", \"target\": \"aa\", \"x\": 1}\n");
    CHECK_OK(ctx, m.status);
    assert_memory_equal(m.ids, ids, sizeof ids);
    assert_memory_equal(m.targets, targets, sizeof targets);
    assert_memory_equal(m.positions, positions, sizeof positions);
    assert_memory_equal(m.first, first, sizeof first);
}

/* The target begins where the row ends. */
static void sources_that_fill_the_row_are_left_out(void **state)
{
    (void)state;
    const made m = read_file("rows.jsonl", "{\"prompt\": \"aaaaaaaaaaaaaaa\", \"target\": \"b\"}\n"
                                           "{\"prompt\": \"aaaaaaaaaa\", \"target\": \"bb\"}\n");
    CHECK_OK(ctx, m.status);
    assert_int_equal(m.n_uncounted, 1);
    assert_int_equal(m.ids[10], END);
    assert_int_equal(m.ids[11], PAD);
    assert_int_equal(m.targets[0], B); /* cut */
    assert_int_equal(m.targets[1], -100);
}

static void other_rows_are_refused(void **state)
{
    static const struct {
        const char *name, *text, *says;
    } cases[] = {
        {"rows.jsonl", "{\"text\": \"aba\"}\n", "the source and what is made of it"},
        {"rows.jsonl", "{\"prompt\": \"a\", \"target\": [\"b\"]}\n", "found a string and a list"},
        {"rows.jsonl", "[1]\n", "must be a JSON object"},
        {"plain.txt", "aba\n", "plain text has no targets"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        assert_true(read_file(cases[i].name, cases[i].text).status < 0);
        if (strstr(ds_ctx_error(ctx), cases[i].says) == NULL) {
            fail_msg("\"%s\" lacks \"%s\"", ds_ctx_error(ctx), cases[i].says);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sources_and_targets_begin_together),
                                       cmocka_unit_test(sources_that_fill_the_row_are_left_out),
                                       cmocka_unit_test(other_rows_are_refused)};
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
