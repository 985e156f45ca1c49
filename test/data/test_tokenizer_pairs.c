/* SPDX-License-Identifier: Apache-2.0 */
/* data/tokenizer: pairs of texts, whole and cut, as transformers' tokenizer(a, b) encodes them
 * (test/golden/data/tokenizer_pairs.json, made by make_tokenizer_pairs.py).
 *
 * DS_TOKENIZER_PAIRS names another such file. */
#include "common/check.h"
#include "common/golden.h"
#include "common/scratch.h"

#include <deepspeed/tokenizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

static void write_json(const char *folder, const char *name, const json_t *value)
{
    char *text = json_dumps(value, 0);
    assert_non_null(text);
    scratch_write(scratch_path(folder, name), text, strlen(text));
    free(text);
}

static ds_tokenizer *open_case(const json_t *one)
{
    ds_tokenizer *tok = NULL;
    char *folder = scratch_make();
    json_t *tree = golden_json("data/%s", json_string_value(json_object_get(one, "file")));
    json_t *post = json_object_get(one, "post");
    if (post != NULL) {
        assert_int_equal(json_object_set(tree, "post_processor", post), 0);
    }
    write_json(folder, "tokenizer.json", tree);
    write_json(folder, "tokenizer_config.json", json_object_get(one, "config"));
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    json_decref(tree);
    scratch_remove(folder);
    return tok;
}

static void check_pair(const ds_tokenizer *tok, ds_tokenizer_scratch *scratch, const char *file,
                       const json_t *row)
{
    const json_t *a = json_array_get(row, 0);
    const json_t *b = json_array_get(row, 1);
    const json_t *ids = json_array_get(row, 3);
    const ds_two_texts pair = {.text = {json_string_value(a), json_string_value(b)},
                               .n = {json_string_length(a), json_string_length(b)},
                               .max_length = (size_t)json_integer_value(json_array_get(row, 2))};
    ds_tokens tokens;
    CHECK_OK(ctx, ds_tokenizer_encode_pair(tok, scratch, &pair, DS_ENCODE_ADD_SPECIAL, &tokens));
    bool same = tokens.n == json_array_size(ids);
    for (size_t i = 0; same && i < tokens.n; ++i) {
        same = tokens.ids[i] == json_integer_value(json_array_get(ids, i)) &&
               tokens.types[i] == json_integer_value(json_array_get(json_array_get(row, 4), i));
    }
    if (!same) {
        char *shown = json_dumps(row, 0);
        fail_msg("%s: of %.300s got %zu other ids or types", file, shown, tokens.n);
    }
}

static void pairs_are_as_transformers_encodes_them(void **state)
{
    const char *path = getenv("DS_TOKENIZER_PAIRS");
    json_t *cases =
        path != NULL ? json_load_file(path, 0, NULL) : golden_json("data/tokenizer_pairs.json");
    size_t i;
    size_t k;
    const json_t *one;
    const json_t *row;
    (void)state;
    assert_true(json_array_size(cases) > 5);
    json_array_foreach(cases, i, one)
    {
        ds_tokenizer *tok = open_case(one);
        ds_tokenizer_scratch *scratch = NULL;
        CHECK_OK(ctx, ds_tokenizer_scratch_create(tok, 0, &scratch));
        json_array_foreach(json_object_get(one, "pairs"), k, row)
        {
            check_pair(tok, scratch, json_string_value(json_object_get(one, "file")), row);
        }
        ds_tokenizer_scratch_destroy(&scratch);
        ds_tokenizer_close(&tok);
    }
    json_decref(cases);
}

static void what_is_wrong_is_said(void **state)
{
    json_t *cases = golden_json("data/tokenizer_pairs.json");
    ds_tokenizer *tok = open_case(json_array_get(cases, 0));
    ds_tokenizer_scratch *scratch = NULL;
    ds_tokens tokens;
    ds_two_texts pair = {.text = {"a", "b"}, .n = {1, 1}, .max_length = 2};
    (void)state;
    CHECK_OK(ctx, ds_tokenizer_scratch_create(tok, 0, &scratch));
    CHECK_FAILS(ctx, ds_tokenizer_encode_pair(tok, scratch, &pair, DS_ENCODE_ADD_SPECIAL, &tokens),
                DS_ERR_ARG, "2 tokens have no room for the 3");
    CHECK_FAILS(ctx, ds_tokenizer_encode_pair(tok, scratch, &pair, DS_ENCODE_RANGES, &tokens),
                DS_ERR_ARG, "ranges are of single texts");
    CHECK_OK(ctx, ds_tokenizer_encode_pair(tok, scratch, &pair, 0, &tokens)); /* nothing around */
    assert_int_equal(tokens.n, 2);
    assert_int_equal(tokens.types[0], 0);
    assert_int_equal(tokens.types[1], 1);
    ds_tokenizer_scratch_destroy(&scratch);
    ds_tokenizer_close(&tok);
    json_decref(cases);
}

static int setup(void **state)
{
    (void)state;
    return ds_ctx_create(NULL, &ctx) < 0;
}

static int teardown(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_as_transformers_encodes_them),
        cmocka_unit_test(what_is_wrong_is_said),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
