/* SPDX-License-Identifier: Apache-2.0 */
/* data/tokenizer: small tokenizers of each family give the ids and texts that the `tokenizers`
 * package gave (test/golden/data/tokenizers.json, made by make_tokenizers.py).
 *
 * labels: threads
 */
#include "common/check.h"

#include <deepspeed/tokenizer.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;
static json_t *golden;

typedef struct subject {
    const char *name;
    ds_tokenizer *tok;
    ds_tokenizer_scratch *scratch;
} subject;

static void open_subject(subject *s, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", DS_SOURCE_DIR, name);
    s->name = name;
    CHECK_OK(ctx, ds_tokenizer_open(ctx, path, &s->tok));
    CHECK_OK(ctx, ds_tokenizer_scratch_create(s->tok, 0, &s->scratch));
}

static void close_subject(subject *s)
{
    ds_tokenizer_scratch_destroy(&s->scratch);
    ds_tokenizer_close(&s->tok);
}

static void check_ids(subject *s, const json_t *text, uint32_t flags, const json_t *want)
{
    ds_tokens got;
    CHECK_OK(ctx, ds_tokenizer_encode(s->tok, s->scratch, json_string_value(text),
                                      json_string_length(text), flags, &got));
    const size_t n = json_array_size(want);
    for (size_t i = 0; i < got.n || i < n; ++i) {
        const json_int_t id = json_integer_value(json_array_get(want, i));
        if (i >= got.n || i >= n || got.ids[i] != (uint32_t)id) {
            fail_msg("%s, \"%s\", flags %u: token %zu is %d, want %d", s->name,
                     json_string_value(text), flags, i, i < got.n ? (int)got.ids[i] : -1,
                     i < n ? (int)id : -1);
        }
    }
    size_t at = 0;
    for (size_t i = 0; (flags & DS_ENCODE_RANGES) && i < got.n; ++i) {
        assert_true(got.ranges[i].begin <= got.ranges[i].end);
        assert_true(got.ranges[i].begin >= at);
        assert_true(got.ranges[i].end <= json_string_length(text));
        at = got.ranges[i].begin;
    }
}

static size_t ids_of(const json_t *list, uint32_t *ids)
{
    const size_t n = json_array_size(list);
    assert_true(n <= 2048);
    for (size_t i = 0; i < n; ++i) {
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    }
    return n;
}

static void check_text(subject *s, const json_t *list, uint32_t flags, const json_t *want)
{
    uint32_t ids[2048];
    const size_t n = ids_of(list, ids);
    char *text = NULL;
    size_t size = 0;
    CHECK_OK(ctx, ds_tokenizer_decode(s->tok, ids, n, flags | DS_DECODE_REPAIR, &text, &size));
    if (size != json_string_length(want) || memcmp(text, json_string_value(want), size) != 0) {
        fail_msg("%s, flags %u: decoded \"%s\", want \"%s\"", s->name, flags, text,
                 json_string_value(want));
    }
    ds_detokenizer *decoder = NULL;
    CHECK_OK(ctx, ds_detokenizer_create(s->tok, flags, &decoder));
    size_t at = 0;
    for (size_t i = 0; i <= n; ++i) {
        const char *piece;
        size_t piece_size;
        CHECK_OK(ctx, i < n ? ds_detokenizer_push(decoder, ids[i], &piece, &piece_size)
                            : ds_detokenizer_flush(decoder, &piece, &piece_size));
        assert_true(at + piece_size <= size);
        assert_memory_equal(piece, text + at, piece_size);
        assert_true(piece_size == 0 || ((unsigned char)piece[0] & 0xC0) != 0x80); /* whole UTF-8 */
        at += piece_size;
    }
    assert_int_equal(at, size);
    ds_detokenizer_destroy(&decoder);
    assert_null(decoder);
    free(text);
}

static void ids_and_texts_equal_the_package(void **state)
{
    (void)state;
    const json_t *texts = json_object_get(golden, "texts");
    const char *name;
    json_t *rows;
    size_t n_checked = 0;
    json_object_foreach(json_object_get(golden, "tokenizers"), name, rows)
    {
        subject s;
        open_subject(&s, name);
        /* The package forgets that a special token which is normalized is special. */
        const bool forgets = strcmp(name, "test/golden/data/tokenizer-llama2-legacy.json") == 0;
        for (size_t i = 0; i < json_array_size(texts); ++i) {
            const json_t *text = json_array_get(texts, i);
            const json_t *special = json_array_get(json_object_get(rows, "with_special"), i);
            const json_t *plain = json_array_get(json_object_get(rows, "plain"), i);
            check_ids(&s, text, DS_ENCODE_ADD_SPECIAL, special);
            check_ids(&s, text, DS_ENCODE_ADD_SPECIAL | DS_ENCODE_RANGES, special);
            check_ids(&s, text, DS_ENCODE_NO_SPECIAL_PARSE, plain);
            check_text(&s, special, 0, json_array_get(json_object_get(rows, "decoded"), i));
            if (!forgets) {
                check_text(&s, special, DS_DECODE_SKIP_SPECIAL,
                           json_array_get(json_object_get(rows, "skipped"), i));
            }
            ++n_checked;
        }
        close_subject(&s);
    }
    assert_true(n_checked >= 10 * 80);
}

/* What byte-level and byte-fallback vocabularies encode comes back byte for byte, UTF-8 or not. */
static void any_bytes_round_trip(void **state)
{
    (void)state;
    static const char *const names[] = {
        "test/golden/data/tokenizer-gpt2.json", "test/golden/data/tokenizer-llama3.json",
        "test/golden/data/tokenizer-gpt4o.json", "test/golden/data/tokenizer-mistral.json"};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; ++k) {
        subject s;
        open_subject(&s, names[k]);
        uint32_t random = 1;
        for (int round = 0; round < 500; ++round) {
            char text[64];
            const size_t n = (size_t)round % sizeof text;
            for (size_t i = 0; i < n; ++i) {
                random = random * 1664525u + 1013904223u;
                text[i] = (char)(round % 3 == 0 ? random >> 24 : 'a' + (random >> 24) % 26);
                text[i] = (char)(round % 7 == 0 && i % 3 == 1 ? 0xC3 : text[i]);
            }
            ds_tokens got;
            CHECK_OK(ctx, ds_tokenizer_encode(s.tok, s.scratch, text, n, 0, &got));
            char *back = NULL;
            size_t size = 0;
            CHECK_OK(ctx, ds_tokenizer_decode(s.tok, got.ids, got.n, 0, &back, &size));
            const size_t skip = k == 3 && n > 0 && text[0] == ' '; /* Strip takes a leading space */
            assert_int_equal(size + skip, n);
            assert_memory_equal(back, text + skip, size);
            free(back);
        }
        close_subject(&s);
    }
}

typedef struct job {
    const ds_tokenizer *tok;
    bool same;
} job;

/* Every text with a scratch of its own; the ids must be those of the golden file. */
static void *encode_all(void *arg)
{
    job *j = arg;
    const json_t *rows = json_object_get(json_object_get(golden, "tokenizers"),
                                         "test/golden/data/tokenizer-gpt4o.json");
    const json_t *texts = json_object_get(golden, "texts");
    ds_tokenizer_scratch *scratch = NULL;
    j->same = ds_tokenizer_scratch_create(j->tok, 0, &scratch) >= 0;
    for (size_t i = 0; j->same && i < json_array_size(texts); ++i) {
        const json_t *text = json_array_get(texts, i);
        const json_t *want = json_array_get(json_object_get(rows, "with_special"), i);
        ds_tokens got;
        j->same = ds_tokenizer_encode(j->tok, scratch, json_string_value(text),
                                      json_string_length(text), DS_ENCODE_ADD_SPECIAL, &got) >= 0 &&
                  got.n == json_array_size(want);
        for (size_t k = 0; j->same && k < got.n; ++k) {
            j->same = got.ids[k] == (uint32_t)json_integer_value(json_array_get(want, k));
        }
    }
    ds_tokenizer_scratch_destroy(&scratch);
    return NULL;
}

static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    subject s;
    open_subject(&s, "test/golden/data/tokenizer-gpt4o.json"); /* its pattern goes through PCRE2 */
    pthread_t threads[THREADS];
    job jobs[THREADS];
    for (size_t i = 0; i < THREADS; ++i) {
        jobs[i].tok = s.tok;
        assert_int_equal(pthread_create(&threads[i], NULL, encode_all, &jobs[i]), 0);
    }
    for (size_t i = 0; i < THREADS; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(jobs[i].same);
    }
    close_subject(&s);
}

static void pieces_and_special_ids(void **state)
{
    (void)state;
    subject s;
    open_subject(&s, "test/golden/data/tokenizer-llama3.json");
    const int64_t bos = ds_tokenizer_id(s.tok, "<|begin_of_text|>", 17);
    assert_true(bos >= 0);
    assert_true(ds_tokenizer_is_special(s.tok, (uint32_t)bos));
    assert_string_equal(ds_tokenizer_piece(s.tok, (uint32_t)bos, NULL), "<|begin_of_text|>");
    assert_int_equal(ds_tokenizer_vocab_size(s.tok), 1003);
    assert_null(ds_tokenizer_piece(s.tok, 1003, NULL));
    assert_int_equal(ds_tokenizer_id(s.tok, "no such piece", 13), -1);
    for (uint32_t id = 0; id < 1003; ++id) {
        size_t n;
        const char *piece = ds_tokenizer_piece(s.tok, id, &n);
        assert_non_null(piece);
        assert_int_equal(ds_tokenizer_id(s.tok, piece, n), id);
    }
    assert_int_equal(ds_tokenizer_bos_id(s.tok), -1); /* no tokenizer_config.json names it */
    close_subject(&s);
}

static int set_up(void **state)
{
    (void)state;
    json_error_t error;
    golden =
        json_load_file(DS_SOURCE_DIR "/test/golden/data/tokenizers.json", JSON_ALLOW_NUL, &error);
    return golden == NULL || ds_ctx_create(NULL, &ctx) < 0;
}

static int tear_down(void **state)
{
    (void)state;
    json_decref(golden);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_texts_equal_the_package),
        cmocka_unit_test(any_bytes_round_trip),
        cmocka_unit_test(threads_share_a_tokenizer),
        cmocka_unit_test(pieces_and_special_ids),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
