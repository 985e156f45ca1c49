/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of classes to batches: where targets stand, what becomes of long rows, words of several
 * tokens and of none. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/data.h>
#include <deepspeed/encoder.h>
#include <deepspeed/nn.h>
#include <stdio.h>
#include <string.h>

enum { LENGTH = 8, CLS = 2, SEP = 3, MASK = 4, A = 5, B = 6, TAIL = 7 };

static ds_ctx *ctx;

/* [PAD] [UNK] [CLS] [SEP] [MASK] a b ##a */
static uint64_t problem; /* of rows of values */
static bool no_special;  /* the tokenizer puts nothing around a text */

static void write_tokenizer(const char *folder)
{
    static const char text[] =
        "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":{\"type\":\"BertNormalizer\","
        "\"clean_text\":true,\"handle_chinese_chars\":true,\"strip_accents\":null,"
        "\"lowercase\":true},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
        "\"post_processor\":null,\"decoder\":null,\"model\":{\"type\":\"WordPiece\","
        "\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\","
        "\"max_input_chars_per_word\":100,\"vocab\":{\"[PAD]\":0,\"[UNK]\":1,\"[CLS]\":2,"
        "\"[SEP]\":3,\"[MASK]\":4,\"a\":5,\"b\":6,\"##a\":7}}}";
    static const char config[] =
        "{\"tokenizer_class\":\"BertTokenizer\",\"unk_token\":\"[UNK]\",\"sep_token\":\"[SEP]\","
        "\"pad_token\":\"[PAD]\",\"cls_token\":\"[CLS]\",\"mask_token\":\"[MASK]\"}";
    static const char plain[] = "{\"tokenizer_class\":\"PreTrainedTokenizerFast\"}";
    const char *how = no_special ? plain : config;
    scratch_write(scratch_path(folder, "tokenizer.json"), text, sizeof text - 1);
    scratch_write(scratch_path(folder, "tokenizer_config.json"), how, strlen(how));
}

/* What the rows give: ids and targets of the first batch, of one row. */
typedef struct made {
    ds_status status;
    uint64_t n_truncated, n_uncounted, n_tokens;
    int32_t ids[LENGTH], targets[LENGTH], first[LENGTH], types[LENGTH];
    float labels[3 * LENGTH], counted[LENGTH];
} made;

static made read_rows(uint64_t rows, ds_too_long too_long, const char *text)
{
    static const char *const names[] = {"low", "high", "none"};
    char *folder = scratch_make();
    made m = {.status = DS_OK};
    ds_tokenizer *tokenizer = NULL;
    ds_dataset *dataset = NULL;
    ds_loader *loader = NULL;
    ds_loader_batch batch;
    write_tokenizer(folder);
    scratch_write(scratch_path(folder, "rows.jsonl"), text, strlen(text));
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tokenizer));
    const char *file = scratch_path(folder, "rows.jsonl");
    const ds_dataset_params data = {.files = &file,
                                    .n_files = 1,
                                    .tokenizer = tokenizer,
                                    .seq_length = LENGTH,
                                    .too_long = too_long,
                                    .rows = rows,
                                    .classes = names,
                                    .problem = problem,
                                    .n_classes = 3};
    const ds_loader_params params = {.batch = 1, .seq_length = LENGTH};
    m.status = ds_dataset_open(ctx, &data, &dataset);
    if (m.status >= 0) {
        const ds_dataset_info info = ds_dataset_get_info(dataset);
        m.n_truncated = info.n_truncated;
        m.n_uncounted = info.n_uncounted;
        m.n_tokens = info.n_tokens;
        CHECK_OK(ctx, ds_loader_create(ctx, dataset, &params, &loader));
        CHECK_OK(ctx, ds_loader_next(loader, &batch));
        memcpy(m.ids, batch.input_ids.data, sizeof m.ids);
        memcpy(m.targets, batch.targets.data, sizeof m.targets);
        memcpy(m.first, batch.first.data, sizeof m.first);
        if (rows == DS_ROWS_CLASSES || rows == DS_ROWS_VALUES) {
            memcpy(m.types, batch.task->token_type_ids.data, sizeof m.types);
        }
        if (rows == DS_ROWS_VALUES) {
            memcpy(m.labels, batch.task->labels.data, sizeof m.labels);
            memcpy(m.counted, batch.task->counted.data, sizeof m.counted);
        }
    }
    ds_loader_destroy(&loader);
    ds_dataset_close(&dataset);
    ds_tokenizer_close(&tokenizer);
    scratch_remove(folder);
    return m;
}

static void same(const int32_t *got, const int32_t *want)
{
    for (int i = 0; i < LENGTH; ++i) {
        assert_int_equal(got[i], want[i]);
    }
}

static void a_text_has_its_class_at_its_first_token(void **state)
{
    (void)state;
    const made m =
        read_rows(DS_ROWS_CLASSES, DS_TOO_LONG_TRUNCATE,
                  "{\"text\":\"a b\",\"label\":\"high\"}\n{\"text\":\"\",\"label\":2}\n");
    same(m.ids, (const int32_t[]){CLS, A, B, SEP, CLS, SEP, 0, 0});
    same(m.targets, (const int32_t[]){1, -100, -100, -100, 2, -100, -100, -100});
    same(m.first, (const int32_t[]){0, 0, 0, 0, 4, 4, 6, 6});
}

static void two_texts_have_types(void **state)
{
    (void)state;
    made m = read_rows(DS_ROWS_CLASSES, DS_TOO_LONG_TRUNCATE,
                       "{\"premise\":\"a b\",\"hypothesis\":\"b\",\"label\":2}\n");
    same(m.ids, (const int32_t[]){CLS, A, B, SEP, B, SEP, 0, 0});
    same(m.types, (const int32_t[]){0, 0, 0, 0, 1, 1, 0, 0});
    same(m.targets, (const int32_t[]){2, -100, -100, -100, -100, -100, -100, -100});
    m = read_rows(DS_ROWS_CLASSES, DS_TOO_LONG_TRUNCATE,
                  "{\"text\":\"a b a b a\",\"text_pair\":\"b b\",\"label\":0}\n");
    same(m.ids, (const int32_t[]){CLS, A, B, A, SEP, B, B, SEP}); /* the longer one is cut */
    assert_int_equal(m.n_truncated, 1);
    assert_int_equal(read_rows(DS_ROWS_CLASSES, DS_TOO_LONG_DROP,
                               "{\"text\":\"a b a b a\",\"text_pair\":\"b b\",\"label\":0}\n")
                         .status,
                     DS_ERR_ARG);
}

static void texts_have_numbers(void **state)
{
    (void)state;
    const made m = read_rows(DS_ROWS_VALUES, DS_TOO_LONG_TRUNCATE,
                             "{\"text\":\"a b\",\"label\":[0.5,-2,1e3]}\n"
                             "{\"text\":\"a\",\"label\":[\"high\",\"low\"]}\n");
    const float want[2][3] = {{0.5f, -2.0f, 1e3f}, {1.0f, 1.0f, 0.0f}};
    same(m.ids, (const int32_t[]){CLS, A, B, SEP, CLS, A, SEP, 0});
    same(m.targets, (const int32_t[]){-100, -100, -100, -100, -100, -100, -100, -100});
    assert_memory_equal(m.labels, want[0], sizeof want[0]);
    assert_memory_equal(m.labels + 12, want[1], sizeof want[1]);
    for (int i = 0; i < LENGTH; ++i) {
        assert_true(m.counted[i] == (i == 0 || i == 4 ? 1.0f : 0.0f));
    }
}

/* They would stand behind a full row. Their numbers are no tokens. */
static void texts_without_tokens_are_left_out(void **state)
{
    static const char text[] = "{\"text\":\"a a a a a a a a\",\"label\":[1,2,3]}\n"
                               "{\"text\":\"\",\"label\":[4,5,6]}\n";
    (void)state;
    no_special = true;
    const made m = read_rows(DS_ROWS_VALUES, DS_TOO_LONG_TRUNCATE, text);
    assert_true(m.labels[0] == 1.0f && m.counted[0] == 1.0f);
    assert_int_equal(m.n_uncounted, 1);
    assert_int_equal(m.n_tokens, LENGTH);
    no_special = false;
}

/* As transformers' tokenizers take them; a folder's split_special_tokens makes them letters. */
static void special_tokens_in_a_text_are_these_tokens(void **state)
{
    (void)state;
    const made m = read_rows(DS_ROWS_CLASSES, DS_TOO_LONG_TRUNCATE,
                             "{\"text\":\"a [SEP] b[MASK]\",\"label\":0}\n");
    same(m.ids, (const int32_t[]){CLS, A, SEP, B, MASK, SEP, 0, 0});
    same(m.targets, (const int32_t[]){0, -100, -100, -100, -100, -100, -100, -100});
}

static void a_long_text_keeps_its_end_token(void **state)
{
    static const char row[] = "{\"text\":\"a b a b a b a b a\",\"label\":0}\n";
    (void)state;
    const made m = read_rows(DS_ROWS_CLASSES, DS_TOO_LONG_TRUNCATE, row);
    same(m.ids, (const int32_t[]){CLS, A, B, A, B, A, B, SEP});
    same(m.targets, (const int32_t[]){0, -100, -100, -100, -100, -100, -100, -100});
    assert_int_equal(m.n_truncated, 1);
    assert_int_equal(read_rows(DS_ROWS_CLASSES, DS_TOO_LONG_DROP, row).status, DS_ERR_ARG);
}

/* Of a tokenizer without one a cut row ends with the last word that fits, its class with it. */
static void without_an_end_token_the_last_word_stays(void **state)
{
    (void)state;
    no_special = true;
    made m = read_rows(DS_ROWS_TOKEN_CLASSES, DS_TOO_LONG_TRUNCATE,
                       "{\"tokens\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"b\"],"
                       "\"tags\":[0,0,0,0,0,0,0,1,2]}\n");
    same(m.ids, (const int32_t[]){A, A, A, A, A, A, A, A});
    same(m.targets, (const int32_t[]){0, 0, 0, 0, 0, 0, 0, 1});
    m = read_rows(DS_ROWS_CLASSES, DS_TOO_LONG_TRUNCATE,
                  "{\"text\":\"a a a a a a a a b\",\"label\":1}\n");
    same(m.ids, (const int32_t[]){A, A, A, A, A, A, A, A});
    assert_int_equal(m.targets[0], 1);
    no_special = false;
}

/* The class of a word is at the first of its tokens; -100 is none. */
static void words_have_theirs(void **state)
{
    (void)state;
    const made m =
        read_rows(DS_ROWS_TOKEN_CLASSES, DS_TOO_LONG_TRUNCATE,
                  "{\"tokens\":[\"a\",\"ba\",\" \",\"b\"],\"tags\":[0,\"none\",1,-100]}\n");
    same(m.ids, (const int32_t[]){CLS, A, B, TAIL, B, SEP, 0, 0});
    same(m.targets, (const int32_t[]){-100, 0, 2, -100, -100, -100, -100, -100});
    same(m.first, (const int32_t[]){0, 0, 0, 0, 0, 0, 6, 6});
}

/* Anchors, positives, negatives; the last batch has one anchor and a row that is none. */
static void pairs_are_rows_of_their_own(void **state)
{
    static const char text[] =
        "{\"anchor\":\"a\",\"positive\":\"b\",\"negative\":\"a b a b a b a b\"}\n"
        "{\"anchor\":\"b b\",\"positive\":\"a a\",\"negative\":\"b\",\"hard\":\"a\"}\n"
        "{\"anchor\":\"b\",\"positive\":\"a\",\"negative\":\"b\"}\n";
    char *folder = scratch_make();
    ds_tokenizer *tokenizer = NULL;
    ds_dataset *dataset = NULL;
    ds_loader *loader = NULL;
    ds_loader_batch batch;
    bool done = false;
    (void)state;
    no_special = false;
    write_tokenizer(folder);
    const char *file = scratch_path(folder, "rows.jsonl");
    scratch_write(file, text, sizeof text - 1);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tokenizer));
    const ds_dataset_params data = {.files = &file,
                                    .n_files = 1,
                                    .tokenizer = tokenizer,
                                    .seq_length = LENGTH,
                                    .rows = DS_ROWS_CONTRAST,
                                    .n_negatives = 1};
    const ds_loader_params params = {.batch = 2, .seq_length = LENGTH, .pool = DS_POOL_MEAN};
    CHECK_OK(ctx, ds_dataset_open(ctx, &data, &dataset));
    assert_int_equal(ds_dataset_n_draws(dataset), 3);
    assert_int_equal(ds_dataset_get_info(dataset).n_truncated, 1);
    CHECK_OK(ctx, ds_loader_create(ctx, dataset, &params, &loader));
    CHECK_OK(ctx, ds_loader_next_once(loader, &batch, &done));
    const int32_t *ids = batch.input_ids.data;
    const float *pool = batch.task->pool.data;
    const int32_t *labels = batch.task->labels.data;
    assert_int_equal(batch.input_ids.meta.shape.dims[0], 6);
    same(ids, (const int32_t[]){CLS, A, SEP, 0, 0, 0, 0, 0});
    same(ids + 3 * LENGTH, (const int32_t[]){CLS, A, A, SEP, 0, 0, 0, 0});
    same(ids + 4 * LENGTH, (const int32_t[]){CLS, A, B, A, B, A, B, SEP});
    assert_true(pool[0] == 1.0f / 3.0f && pool[3] == 0.0f && pool[4 * LENGTH + 7] == 0.125f);
    assert_int_equal(labels[0], 0);
    assert_int_equal(labels[1], 1);
    CHECK_OK(ctx, ds_loader_next_once(loader, &batch, &done));
    assert_false(done);
    assert_int_equal(labels[0], 0);
    assert_int_equal(labels[1], -100);
    assert_true(pool[LENGTH] == 0.0f && pool[3 * LENGTH] == 0.0f && pool[0] > 0.0f);
    ds_loader_destroy(&loader);
    ds_dataset_close(&dataset);
    /* each text is as long as it is, whatever they are together */
    ds_dataset_params fits = data;
    fits.too_long = DS_TOO_LONG_DROP;
    CHECK_OK(ctx, ds_dataset_open(ctx, &fits, &dataset));
    assert_int_equal(ds_dataset_get_info(dataset).n_dropped, 1);
    assert_int_equal(ds_dataset_n_draws(dataset), 2);
    ds_dataset_close(&dataset);
    fits.n_negatives = 2;
    fits.column_map = "negative_1=negative,negative_2=hard";
    fits.skip_bad = 2; /* without "hard" */
    CHECK_OK(ctx, ds_dataset_open(ctx, &fits, &dataset));
    assert_int_equal(ds_dataset_n_draws(dataset), 1);
    ds_dataset_close(&dataset);
    fits.column_map = "none=a";
    CHECK_FAILS(ctx, ds_dataset_open(ctx, &fits, &dataset), DS_ERR_ARG,
                "text_pair, anchor, positive, negative, negative_1");
    ds_tokenizer_close(&tokenizer);
    scratch_remove(folder);
}

/* Numbers of a problem that they are not of. */
static void numbers_are_of_their_problem(void **state)
{
    static const struct {
        uint64_t problem;
        const char *row, *says;
    } cases[] = {
        {DS_PROBLEM_REGRESSION, "{\"text\":\"a\",\"label\":[]}", "must be 3 numbers; found"},
        {DS_PROBLEM_REGRESSION, "{\"text\":\"a\",\"label\":[\"low\"]}",
         "must be 3 numbers; found a list of 1"},
        {DS_PROBLEM_MULTI_LABEL, "{\"text\":\"a\",\"label\":[0,1,1.5]}",
         "numbers of 0 to 1; found 1.5"},
        {DS_PROBLEM_MULTI_LABEL, "{\"text\":\"a\",\"label\":[0,-1,1]}",
         "numbers of 0 to 1; found -1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        problem = cases[i].problem;
        const made m = read_rows(DS_ROWS_VALUES, DS_TOO_LONG_TRUNCATE, cases[i].row);
        assert_true(m.status < 0);
        assert_non_null(strstr(ds_ctx_error(ctx), cases[i].says));
    }
    problem = 0;
}

static void faults_are_named(void **state)
{
    static const struct {
        uint64_t rows;
        const char *row, *says;
    } cases[] = {
        {DS_ROWS_CLASSES, "{\"text\":\"a\",\"label\":3}", "class 3 is not below 3"},
        {DS_ROWS_CLASSES, "{\"text\":\"a\",\"label\":-100}", "class -100 is not below 3"},
        {DS_ROWS_CLASSES, "{\"text\":\"a\",\"label\":true}", "found true or false"},
        {DS_ROWS_CLASSES, "{\"text\":\"a\",\"label\":\"x\"}", "\"x\" is no name of a class"},
        {DS_ROWS_CLASSES, "{\"text\":[\"a\"],\"label\":1}", "expected \"text\""},
        {DS_ROWS_CLASSES, "[1]", "a row must be a JSON object"},
        {DS_ROWS_TOKEN_CLASSES, "{\"tokens\":[\"a\"],\"tags\":[0,1]}", "of the same length"},
        {DS_ROWS_CLASSES, "{\"premise\":\"a\",\"label\":1}", "found a string and nothing"},
        {DS_ROWS_CLASSES, "{\"text\":\"a\",\"premise\":\"b\",\"hypothesis\":\"b\",\"label\":1}",
         "texts of two kinds of rows"},
        {DS_ROWS_CLASSES, "{\"text\":\"a\"}", "found no label"},
        {DS_ROWS_VALUES, "{\"text\":\"a\",\"label\":[1,2]}", "must be 3 numbers"},
        {DS_ROWS_VALUES, "{\"text\":\"a\",\"label\":[1,2,null]}", "must be numbers; found"},
        {DS_ROWS_VALUES, "{\"text\":\"a\",\"label\":[\"x\"]}", "is no name of a class"},
        {DS_ROWS_CONTRAST, "{\"anchor\":\"a\"}", "expected \"positive\", a string"},
        {DS_ROWS_CONTRAST, "{\"anchor\":\"a\",\"positive\":\"b\",\"negative\":\"b\"}",
         "0 negatives a row are read"},
        {DS_ROWS_TOKEN_CLASSES, "{\"tokens\":[1],\"tags\":[0]}", "must be words; found a number"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const made m = read_rows(cases[i].rows, DS_TOO_LONG_TRUNCATE, cases[i].row);
        assert_true(m.status < 0);
        if (strstr(ds_ctx_error(ctx), cases[i].says) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", ds_ctx_error(ctx), cases[i].says);
        }
    }
}

int main(void)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 2;
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_has_its_class_at_its_first_token),
        cmocka_unit_test(two_texts_have_types),
        cmocka_unit_test(texts_have_numbers),
        cmocka_unit_test(texts_without_tokens_are_left_out),
        cmocka_unit_test(pairs_are_rows_of_their_own),
        cmocka_unit_test(special_tokens_in_a_text_are_these_tokens),
        cmocka_unit_test(a_long_text_keeps_its_end_token),
        cmocka_unit_test(words_have_theirs),
        cmocka_unit_test(without_an_end_token_the_last_word_stays),
        cmocka_unit_test(numbers_are_of_their_problem),
        cmocka_unit_test(faults_are_named),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
