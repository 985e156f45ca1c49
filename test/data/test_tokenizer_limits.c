/* SPDX-License-Identifier: Apache-2.0 */
/* data/tokenizer: what a text costs is bounded by its size, whatever the tokenizer's file says:
 * steps of a pattern's matching, and text that normalizers make. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/tokenizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static ds_ctx *ctx;
static char *folder;

#define MODEL                                                                                      \
    "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"x\": 2, \" \": 3}, "         \
    "\"merges\": []}"
#define SPLIT(pattern)                                                                             \
    "{" MODEL ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"" pattern     \
    "\"}, \"behavior\": \"Isolated\", \"invert\": false}}"

typedef struct subject {
    ds_tokenizer *tok;
    ds_tokenizer_scratch *scratch;
} subject;

static void open_text(subject *s, const char *json)
{
    const char *path = scratch_path(folder, "tokenizer.json");
    scratch_write(path, json, strlen(json));
    CHECK_OK(ctx, ds_tokenizer_open(ctx, path, &s->tok));
    CHECK_OK(ctx, ds_tokenizer_scratch_create(s->tok, 0, &s->scratch));
}

static void close_subject(subject *s)
{
    ds_tokenizer_scratch_destroy(&s->scratch);
    ds_tokenizer_close(&s->tok);
}

static char *many(char c, size_t n)
{
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, c, n);
    return text;
}

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Patterns that go back over a whole text at each of its places. */
static void a_pattern_that_goes_back_too_often_is_an_error(void **state)
{
    (void)state;
    static const char *const files[] = {SPLIT("a*b"), SPLIT("(?:a|aa)+b"), SPLIT("(a*)*b"),
                                        SPLIT("a(?=[^x]*b)"), SPLIT("a*a*a*b")};
    const size_t n = 1 << 18;
    char *text = many('a', n);
    for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
        subject s;
        ds_tokens tokens;
        open_text(&s, files[i]);
        const double before = seconds();
        CHECK_FAILS(ctx, ds_tokenizer_encode(s.tok, s.scratch, text, n, 0, &tokens), DS_ERR_LIMIT,
                    "of the text");
        assert_true(seconds() - before < 60.0);
        assert_non_null(strstr(ds_ctx_error(ctx), "pattern \""));
        assert_non_null(strstr(ds_ctx_error(ctx), "tokenizer.json"));
        assert_non_null(strstr(ds_ctx_error(ctx), "byte "));
        CHECK_OK(ctx, ds_tokenizer_encode(s.tok, s.scratch, text, 20, 0, &tokens));
        close_subject(&s);
    }
    free(text);
}

/* One place may need all of the text, and many places some of it. */
static void a_long_match_is_none(void **state)
{
    (void)state;
    static const char *const files[] = {
        SPLIT("a+b?"), SPLIT("[ab]+| +"),       SPLIT("x"),
        SPLIT("a*?b"), SPLIT("(?:[^xb ]x?)+b"), SPLIT("\\\\s+(?!\\\\S)|\\\\s+")};
    const size_t n = 1 << 20;
    for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
        for (size_t every = 1500; every <= (i == 4 ? n / 20 : n);
             every *= 26) { /* 4: wants memory a place */
            char *text = many(i == 5 ? ' ' : 'a', n);
            for (size_t at = every - 1; at < n; at += every) {
                text[at] = 'b';
            }
            text[n - 1] = 'b';
            subject s;
            ds_tokens tokens;
            open_text(&s, files[i]);
            CHECK_OK(ctx, ds_tokenizer_encode(s.tok, s.scratch, text, n, 0, &tokens));
            assert_int_equal(tokens.n, n);
            close_subject(&s);
            free(text);
        }
    }
}

/* A pattern that no scanner knows, since it stands in a group, gives the words of the scanner. */
static void long_words_are_those_of_the_scanner(void **state)
{
    (void)state;
    static const char pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| "
                                  "?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+";
    static const char *const bits[] = {"a", "b", " ", "1", "!", "'s", "\n", "\xC3\xA9"};
    char json[2][2048];
    for (int k = 0; k < 2; ++k) {
        (void)snprintf(json[k], sizeof json[k],
                       "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \" \": 2, \"1\": 3, \"!\": 4, "
                       "\"'\": 5, \"s\": 6, \"\\n\": 7, \"\xC3\xA9\": 8, \"aa\": 9, \" a\": 10, "
                       "\"  \": 11, \"b \": 12, \"a1\": 13}, \"merges\": [\"a a\", [\" \", \"a\"], "
                       "[\" \", \" \"], [\"b\", \" \"], \"a 1\"]}, \"pre_tokenizer\": {\"type\": "
                       "\"Split\", \"pattern\": {\"Regex\": \"%s%s%s\"}, \"behavior\": "
                       "\"Isolated\", \"invert\": false}}",
                       k == 0 ? "" : "(?:", pattern, k == 0 ? "" : ")");
    }
    uint32_t random = 7;
    for (int round = 0; round < 40; ++round) {
        char *text = malloc(40000);
        assert_non_null(text);
        size_t n = 0;
        while (n < 30000) {
            random = random * 1664525u + 1013904223u;
            const char *bit = bits[(random >> 24) % 8];
            const size_t times =
                (random >> 8) % 5 == 0 ? (random >> 12) % 4000 : 1 + (random >> 16) % 3;
            for (size_t i = 0; i < times && n < 39000; ++i) {
                memcpy(text + n, bit, strlen(bit));
                n += strlen(bit);
            }
        }
        uint32_t *want = NULL;
        size_t n_want = 0;
        for (int k = 0; k < 2; ++k) {
            subject s;
            ds_tokens tokens;
            open_text(&s, json[k]);
            CHECK_OK(ctx, ds_tokenizer_encode(s.tok, s.scratch, text, n, 0, &tokens));
            if (k == 0) {
                n_want = tokens.n;
                want = malloc(n_want * sizeof *want);
                assert_non_null(want);
                memcpy(want, tokens.ids, n_want * sizeof *want);
            } else {
                assert_int_equal(tokens.n, n_want);
                assert_memory_equal(tokens.ids, want, n_want * sizeof *want);
            }
            close_subject(&s);
        }
        free(want);
        free(text);
    }
}

#define DOUBLE(from, to)                                                                           \
    "{\"type\": \"Replace\", \"pattern\": {\"String\": \"" from "\"}, \"content\": \"" to "\"}"

/* Sixteen steps of which each makes sixteen characters of one. */
static void a_text_that_grows_too_much_is_an_error(void **state)
{
    (void)state;
    static const char file[] =
        "{" MODEL ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [" DOUBLE(
            "a",
            "bbbbbbbbbb"
            "bbbbbb") ", " DOUBLE("b",
                                  "aaaaaaaaaaaaaaaa") ", " DOUBLE("a",
                                                                  "bbbbbbbbbbbbbbbb") ", " DOUBLE("b",
                                                                                                  "aaaaaaaaaaaaa"
                                                                                                  "aaa") "]}}";
    subject s;
    ds_tokens tokens;
    open_text(&s, file);
    char *text = many('a', 4096);
    CHECK_FAILS(ctx, ds_tokenizer_encode(s.tok, s.scratch, text, 4096, 0, &tokens), DS_ERR_LIMIT,
                "make more than");
    CHECK_OK(ctx, ds_tokenizer_encode(s.tok, s.scratch, text, 2, 0, &tokens));
    assert_int_equal(tokens.n, 2 * 65536);
    close_subject(&s);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pattern_that_goes_back_too_often_is_an_error),
        cmocka_unit_test(a_long_match_is_none),
        cmocka_unit_test(long_words_are_those_of_the_scanner),
        cmocka_unit_test(a_text_that_grows_too_much_is_an_error),
    };
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    folder = scratch_make();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return failed;
}
