/* SPDX-License-Identifier: Apache-2.0 */
/* data/tokenizer: GPT-2's real vocabulary and the bytes tokenizer: known ids, round trip, errors.
 */
#include "common/check.h"

#include <deepspeed/tokenizer.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

static void expect_ids(const char *path, const char *text, const uint32_t *want, size_t n,
                       uint32_t flags)
{
    ds_tokenizer *tok = NULL;
    ds_tokenizer_scratch *scratch = NULL;
    ds_tokens got;
    CHECK_OK(ctx, ds_tokenizer_open(ctx, path, &tok));
    CHECK_OK(ctx, ds_tokenizer_scratch_create(tok, 0, &scratch));
    for (int round = 0; round < 2; ++round) { /* the second finds its words remembered */
        CHECK_OK(ctx, ds_tokenizer_encode(tok, scratch, text, strlen(text), flags, &got));
        assert_int_equal(got.n, n);
        assert_memory_equal(got.ids, want, n * sizeof *want);
    }
    char *back = NULL;
    size_t size = 0;
    CHECK_OK(ctx, ds_tokenizer_decode(tok, want, n, 0, &back, &size));
    assert_int_equal(size, strlen(text));
    assert_string_equal(back, text);
    free(back);
    ds_tokenizer_scratch_destroy(&scratch);
    ds_tokenizer_close(&tok);
    assert_null(tok);
}

static void gpt2_known_ids(void **state)
{
    (void)state; /* ids that OpenAI's encoder gives */
    const uint32_t hello[] = {15496, 11, 995, 0};
    expect_ids(DS_SOURCE_DIR "/data/gpt2", "Hello, world!", hello, 4, 0);
    expect_ids(DS_SOURCE_DIR "/data/gpt2/vocab.json", "Hello, world!", hello, 4, 0);
    const uint32_t special[] = {64, 50256, 65};
    expect_ids(DS_SOURCE_DIR "/data/gpt2", "a<|endoftext|>b", special, 3, 0);
    const uint32_t plain[] = {64, 27, 91, 437, 1659, 5239, 91, 29, 65};
    expect_ids(DS_SOURCE_DIR "/data/gpt2", "a<|endoftext|>b", plain, 9, DS_ENCODE_NO_SPECIAL_PARSE);
}

static void bytes_are_bytes(void **state)
{
    (void)state;
    const uint32_t ids[] = {'a', 0xC3, 0xA9, '\n'};
    expect_ids("bytes", "a\xC3\xA9\n", ids, 4, 0);
}

static void ranges_cover_the_text(void **state)
{
    (void)state;
    const char *text = "It's 2024:  d\xC3\xA9j\xC3\xA0 vu \xF0\x9F\x8E\x89!";
    ds_tokenizer *tok = NULL;
    ds_tokenizer_scratch *scratch = NULL;
    ds_tokens got;
    CHECK_OK(ctx, ds_tokenizer_open(ctx, DS_SOURCE_DIR "/data/gpt2", &tok));
    CHECK_OK(ctx, ds_tokenizer_scratch_create(tok, 0, &scratch));
    for (int round = 0; round < 2; ++round) {
        CHECK_OK(ctx,
                 ds_tokenizer_encode(tok, scratch, text, strlen(text), DS_ENCODE_RANGES, &got));
        size_t at = 0;
        for (size_t i = 0; i < got.n; ++i) {
            assert_int_equal(got.ranges[i].begin, at);
            at = got.ranges[i].end;
        }
        assert_int_equal(at, strlen(text));
    }
    ds_tokenizer_scratch_destroy(&scratch);
    ds_tokenizer_close(&tok);
}

static void errors_name_the_cause(void **state)
{
    (void)state;
    ds_tokenizer *tok = NULL;
    CHECK_FAILS(ctx, ds_tokenizer_open(ctx, "/nonexistent/x", &tok), DS_ERR_NOT_FOUND,
                "/nonexistent/x");
    CHECK_FAILS(ctx, ds_tokenizer_open(ctx, DS_SOURCE_DIR "/test", &tok), DS_ERR_NOT_FOUND,
                "neither tokenizer.json, vocab.json");
    CHECK_OK(ctx, ds_tokenizer_open(ctx, "bytes", &tok));
    ds_tokenizer_scratch *scratch = NULL;
    ds_tokens got;
    CHECK_OK(ctx, ds_tokenizer_scratch_create(tok, 3, &scratch));
    CHECK_FAILS(ctx, ds_tokenizer_encode(tok, scratch, "abcd", 4, 0, &got), DS_ERR_LIMIT,
                "more than 3 tokens");
    const uint32_t beyond = 256;
    char *text = NULL;
    size_t size = 0;
    CHECK_FAILS(ctx, ds_tokenizer_decode(tok, &beyond, 1, 0, &text, &size), DS_ERR_ARG, "id 256");
    ds_tokenizer_scratch_destroy(&scratch);
    ds_tokenizer_close(&tok);
}

static int set_up(void **state)
{
    (void)state;
    return ds_ctx_create(NULL, &ctx);
}

static int tear_down(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_known_ids),
        cmocka_unit_test(bytes_are_bytes),
        cmocka_unit_test(ranges_cover_the_text),
        cmocka_unit_test(errors_name_the_cause),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
