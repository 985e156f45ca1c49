/* SPDX-License-Identifier: Apache-2.0 */
/* data/source_text: a text that is cut and tokenized on several threads gives the ids of the whole,
 * for each family of tokenizers and for components in odd combinations; a text that cannot be cut
 * stays whole.
 *
 * labels: threads
 */
#include "common/check.h"
#include "common/scratch.h"
#include "data/source.h"
#include "data/tokenizer.h"

#include <deepspeed/context.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 5, MAX_IDS = 1 << 20 };

static ds_ctx *one, *odd; /* of one thread, of THREADS */
static json_t *golden;
static char *folder;

/* What a sink collects. */
typedef struct taken {
    uint32_t *ids;
    size_t n, n_pieces, n_calls;
    uint64_t last;
    bool whole; /* no piece said that it joins */
} taken;

static ds_status take(void *user, const dsi_document *document)
{
    taken *t = user;
    assert_int_equal(document->joins, t->n_pieces > 0);
    assert_true(t->n + document->n <= MAX_IDS);
    memcpy(t->ids + t->n, document->ids, document->n * sizeof *document->ids);
    t->n += document->n;
    t->n_pieces += 1;
    return DS_OK;
}

static void progress(void *user, uint64_t done, uint64_t all)
{
    taken *t = user;
    assert_true(done >= t->last && done <= all);
    t->last = done;
    t->n_calls += 1;
}

static void read_text(ds_ctx *ctx, const ds_tokenizer *tok, const char *text, size_t n,
                      size_t part_bytes, taken *t)
{
    const ds_dataset_params params = {.tokenizer = tok};
    const dsi_source_sink sink = {.document = take, .progress = progress, .user = t};
    const dsi_map map = {.data = (const uint8_t *)text, .size = n};
    *t = (taken){.ids = t->ids};
    CHECK_OK(ctx, dsi_text_read(ctx, &params, "text", &map, part_bytes, &sink));
    assert_int_equal(t->last, n);
}

static void check_same(const char *name, const taken *want, const taken *got, const char *text,
                       size_t n)
{
    size_t i = 0;
    while (i < want->n && i < got->n && want->ids[i] == got->ids[i]) {
        ++i;
    }
    if (i < want->n || i < got->n) {
        char shown[512];
        size_t m = 0;
        for (size_t k = 0; k < n && n <= 100 && m + 5 < sizeof shown; ++k) {
            m += (size_t)snprintf(shown + m, sizeof shown - m,
                                  text[k] > 32 && text[k] < 127 ? "%c" : "\\x%02X",
                                  (unsigned char)text[k]);
        }
        shown[m] = '\0';
        fail_msg("%s: %zu ids in %zu pieces, want %zu; the first difference is at %zu; text \"%s\"",
                 name, got->n, got->n_pieces, want->n, i, shown);
    }
}

/* ---- texts ---- */

static uint32_t next_random(uint32_t *random)
{
    *random = *random * 1664525u + 1013904223u;
    return *random >> 8;
}

/* The golden texts (some twenty languages, emoji, code, white space), joined in several ways, with
 * random bytes now and then. */
static char *make_corpus(size_t *n_out)
{
    static const char *const between[] = {" ", "\n", "", "\r\n", "\n\n", ". "};
    const json_t *texts = json_object_get(golden, "texts");
    size_t room = 1 << 19;
    size_t n = 0;
    uint32_t random = 7;
    char *text = malloc(room);
    assert_non_null(text);
    for (size_t turn = 0; turn < 6; ++turn) {
        for (size_t i = 0; i < json_array_size(texts); ++i) {
            const json_t *one_text = json_array_get(texts, i);
            const size_t size = json_string_length(one_text);
            if (n + size + 64 > room) {
                break;
            }
            memcpy(text + n, json_string_value(one_text), size);
            n += size;
            n += (size_t)sprintf(text + n, "%s", between[(turn + i) % 6]);
            for (size_t k = 0; turn == 5 && k < 30; ++k) {
                text[n++] = (char)next_random(&random);
            }
        }
    }
    *n_out = n;
    return text;
}

/* Fragments that meet at every kind of place, parted by '~'. */
static size_t make_small(uint32_t *random, char *text)
{
    static const char fragments[] =
        " ~ ~  ~\n~\n~\r\n~\t~\n\n~a~e~d~the~and~Ing~word~x~y~th~t~1~42~'~'s~/~!~.~<s>~</s>~[INST]~"
        "<|im_end|>~<|endoftext|>~End ~-end~A~B~"
        "!\n/~e\n/~!\nand~!\nthe~1\n1~1\n~1\na~x e~e a~d th~d t~d a~! ~!\xE2\x96\x81~"
        "\xC3\xA9~e\xCC\x81~\xCC\x81~\xE5\xAD\x97~\xD0\xB8\xD0\xB9~\xEF\xB7\xBA~\xEF\xB9\xB0~"
        "\xE0\xA5\x98\n~\xE0\xA5\x98~\xC2\xA0~\xE2\x96\x81~\xFF~\xE2~\xC5\xBF~\xE2\x84\xAB~"
        "\xC2\xB2~"
        "\xF0\x9F\x98\x80~\xE1\xB7\xBA~\xE3\x80\x80~\xE2\x80\xA8";
    const char *starts[128];
    size_t n_starts = 0;
    for (const char *at = fragments; at != NULL; at = strchr(at, '~')) {
        at += n_starts > 0;
        starts[n_starts++] = at;
    }
    size_t n = 0;
    const size_t n_fragments = 1 + next_random(random) % 12;
    for (size_t i = 0; i < n_fragments; ++i) {
        const char *f = starts[next_random(random) % n_starts];
        const size_t size = strcspn(f, "~");
        memcpy(text + n, f, size);
        n += size;
    }
    return n;
}

/* ---- tokenizers ---- */

/* A golden tokenizer with members put in place of its own. cuts: whether texts are to be cut. */
typedef struct variant {
    const char *base, *members;
    bool cuts;
} variant;

#define BYTES                                                                                      \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":"      \
    "false}"
#define GPT2           "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true}"
#define SEQUENCE(list) "{\"type\":\"Sequence\",\"pretokenizers\":[" list "]}"
#define SPLIT(pattern, behavior)                                                                   \
    "{\"type\":\"Split\",\"invert\":false,\"pattern\":" pattern ",\"behavior\":\"" behavior "\"}"
#define REPLACED "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}"

static const variant variants[] = {
    {"gpt2", "{}", true},
    {"gpt4o", "{}", true},
    {"llama2", "{}", true},
    {"llama2-legacy", "{}", true},
    {"llama3", "{}", true},
    {"mistral", "{}", true},
    {"qwen2", "{}", true},
    {"odd", "{}", false},
    {"unknown", "{}", false},
    {"bert", "{}", true},
    {"bert-odd", "{}", true},
    /* prefixes */
    {"gpt2",
     "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true}}",
     true},
    {"gpt2",
     "{\"pre_tokenizer\":" SEQUENCE(
         "{\"type\":\"WhitespaceSplit\"},"
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true}") "}",
     true},
    {"mistral",
     "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\","
     "\"prepend_scheme\":\"always\",\"split\":true}}",
     true},
    {"mistral",
     "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\","
     "\"prepend_scheme\":\"first\",\"split\":true}}",
     true},
    {"mistral",
     "{\"normalizer\":" REPLACED ",\"pre_tokenizer\":{\"type\":\"Metaspace\","
     "\"replacement\":\"\\u2581\",\"prepend_scheme\":\"first\",\"split\":false}}",
     true},
    {"mistral",
     "{\"normalizer\":{\"type\":\"NFKC\"},\"pre_tokenizer\":{\"type\":\"Metaspace\","
     "\"replacement\":\"\\u2581\",\"prepend_scheme\":\"first\",\"split\":true}}",
     true},
    {"mistral",
     "{\"normalizer\":{\"type\":\"NFKC\"},\"pre_tokenizer\":{\"type\":\"Metaspace\","
     "\"replacement\":\"\\u2581\",\"prepend_scheme\":\"first\",\"split\":true},"
     "\"added_tokens\":[{\"id\":2000,\"content\":\"word\",\"normalized\":false}]}",
     true},
    {"mistral",
     "{\"normalizer\":" REPLACED ",\"pre_tokenizer\":{\"type\":\"Metaspace\","
     "\"replacement\":\"\\u2581\",\"prepend_scheme\":\"first\",\"split\":false},"
     "\"added_tokens\":[{\"id\":2000,\"content\":\"word\",\"normalized\":false}]}",
     true},
    {"mistral",
     "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"x\"},"
     "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\","
     "\"prepend_scheme\":\"always\",\"split\":false}}",
     false},
    {"gpt4o", "{\"normalizer\":" REPLACED "}", true},
    {"llama2", "{\"added_tokens\":[{\"id\":2000,\"content\":\"word\",\"normalized\":false}]}",
     true},
    {"gpt2", "{\"added_tokens\":[{\"id\":2000,\"content\":\"e a\",\"normalized\":false}]}", true},
    /* Gemma's */
    {"llama2",
     "{\"normalizer\":" REPLACED
     ",\"pre_tokenizer\":" SPLIT("{\"String\":\" \"}", "MergedWithPrevious") "}",
     true},
    /* spaces become something else */
    {"llama2",
     "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"x y\"}}",
     true},
    {"llama2",
     "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
     "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\"},"
     "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"b\"}]}}",
     true},
    {"llama2",
     "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" REPLACED
     ",{\"type\":\"Replace\",\"pattern\":{\"String\":\"\\u2581the\"},\"content\":\"A\"}]}}",
     true},
    {"gpt2",
     "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"d\\n\"},\"content\":\"!\"}}",
     true},
    {"gpt2",
     "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"the\"},\"content\":\" \"}}",
     true},
    {"gpt2", "{\"normalizer\":" REPLACED "}", true},
    {"qwen2", "{\"normalizer\":" REPLACED "}", true},
    {"qwen2", "{\"normalizer\":{\"type\":\"NFD\"}}", true},
    {"qwen2", "{\"normalizer\":{\"type\":\"NFKC\"}}", true},
    {"qwen2", "{\"normalizer\":{\"type\":\"NFKD\"}}", true},
    {"qwen2", "{\"normalizer\":{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}}",
     false},
    /* steps before the one that ends words */
    {"gpt2",
     "{\"pre_tokenizer\":" SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":true}," GPT2) "}",
     true},
    {"gpt2",
     "{\"pre_tokenizer\":" SEQUENCE("{\"type\":\"Punctuation\",\"behavior\":\"MergedWithPrevious\","
                                    "\"invert\":false}," GPT2) "}",
     true},
    {"gpt2",
     "{\"pre_tokenizer\":" SEQUENCE(
         "{\"type\":\"Punctuation\",\"behavior\":\"MergedWithNext\",\"invert\":false}," GPT2) "}",
     true},
    {"gpt2",
     "{\"pre_tokenizer\":" SEQUENCE(SPLIT("{\"String\":\"th\"}", "Contiguous") "," GPT2) "}", true},
    {"gpt2",
     "{\"pre_tokenizer\":" SEQUENCE(SPLIT("{\"String\":\"e a\"}", "MergedWithNext") "," GPT2) "}",
     true},
    {"gpt2",
     "{\"pre_tokenizer\":" SEQUENCE(
         SPLIT("{\"Regex\":\"\\\\p{N}{1,3}\"}", "MergedWithNext") "," GPT2) "}",
     true},
    {"gpt2",
     "{\"pre_tokenizer\":" SEQUENCE(
         SPLIT("{\"Regex\":\"\\\\s+(?!\\\\S)\"}", "Isolated") "," GPT2) "}",
     true},
    {"gpt2",
     "{\"pre_tokenizer\":" SEQUENCE(
         SPLIT("{\"Regex\":\"\\\\s+(?!\\\\S)\"}", "Isolated") "," BYTES) "}",
     false},
    {"gpt2",
     "{\"pre_tokenizer\":" SEQUENCE(
         SPLIT("{\"Regex\":\"'(?i:[sdmt]|ll|ve|re)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?+\\\\p{L}+|"
               "\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]++[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]|"
               "\\\\s+(?!\\\\S)|\\\\s+\"}",
               "Isolated") "," BYTES) "}",
     true},
    {"gpt2",
     "{\"pre_tokenizer\":" SEQUENCE(
         SPLIT("{\"Regex\":\" ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+\"}",
               "Contiguous") "," BYTES) "}",
     false},
    {"gpt2",
     "{\"pre_tokenizer\":" SEQUENCE(SPLIT("{\"Regex\":\"[a-z] [a-z]\"}", "Isolated") "," GPT2) "}",
     false},
    {"llama2", "{\"pre_tokenizer\":{\"type\":\"Whitespace\"}}", true},
    {"llama2", "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"}}", true},
    /* added tokens */
    {"gpt2",
     "{\"added_tokens\":[{\"id\":2000,\"content\":\"the\",\"single_word\":true},"
     "{\"id\":2001,\"content\":\"and\",\"lstrip\":true,\"normalized\":false}]}",
     true},
    {"gpt2",
     "{\"added_tokens\":[{\"id\":2000,\"content\":\"e\\n\"},"
     "{\"id\":2001,\"content\":\" a\",\"single_word\":true}]}",
     false},
    {"gpt2", "{\"added_tokens\":[{\"id\":2000,\"content\":\"e a\"}]}", true},
    {"gpt2", "{\"added_tokens\":[{\"id\":2000,\"content\":\"d\\nth\"}]}", true},
    {"gpt2", "{\"added_tokens\":[{\"id\":2000,\"content\":\"!\",\"rstrip\":true}]}", false},
    {"llama2", "{\"added_tokens\":[{\"id\":2000,\"content\":\"word\"}]}", true},
    {"llama2", "{\"added_tokens\":[{\"id\":2000,\"content\":\" th\"}]}", true},
    {"llama2", "{\"added_tokens\":[{\"id\":2000,\"content\":\"e th\",\"normalized\":true}]}", true},
    {"mistral", "{\"added_tokens\":[{\"id\":2000,\"content\":\"word\"}]}", true},
};

/* Adds merges, before all others. */
static void add_merge(json_t *model, const char *left, const char *right, size_t at)
{
    char both[16];
    (void)snprintf(both, sizeof both, "%s%s", left, right);
    json_t *vocab = json_object_get(model, "vocab");
    if (json_object_get(vocab, both) == NULL) {
        assert_int_equal(json_object_set_new(vocab, both, json_integer(3000 + (json_int_t)at)), 0);
    }
    assert_int_equal(
        json_array_insert_new(json_object_get(model, "merges"), at, json_pack("[ss]", left, right)),
        0);
}

/* Merges across every kind of place, so that a word that is cut where it should not be, or not cut
 * where it should, has other ids. Characters without pre-tokenizer get a few: others must be left
 * to cut at. */
static void enrich(json_t *model, bool byte_level)
{
    static const char *const bytes[] = {"Ċ", "a", "e", "d", "h", "x", "y", "!",
                                        "/", "1", "'", "Ġ", "č", "¼", "â"};
    const size_t n_bytes = sizeof bytes / sizeof bytes[0];
    static const char *const pairs[][2] = {{"e", "▁"}, {"!", "▁"}, {"▁", "▁"}, {"d", "t"}};
    size_t n = 0;
    for (size_t i = 0; byte_level && i < n_bytes; ++i) { /* the line feed comes first as the left */
        for (size_t k = 0; k < n_bytes; ++k) {
            add_merge(model, bytes[i], bytes[k], n++);
        }
    }
    for (size_t i = 0; !byte_level && i < sizeof pairs / sizeof pairs[0]; ++i) {
        add_merge(model, pairs[i][0], pairs[i][1], n++);
    }
}

static ds_tokenizer *open_variant(ds_ctx *ctx, const variant *v)
{
    char path[512];
    json_error_t error;
    ds_tokenizer *tok = NULL;
    (void)snprintf(path, sizeof path, "%s/test/golden/data/tokenizer-%s.json", DS_SOURCE_DIR,
                   v->base);
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &error);
    json_t *members = json_loads(v->members, 0, &error);
    if (json == NULL || members == NULL) {
        fail_msg("%s %s: %s", path, v->members, error.text);
    }
    assert_int_equal(json_object_update(json, members), 0);
    for (size_t i = 0; i < json_array_size(json_object_get(members, "added_tokens")); ++i) {
        json_t *token = json_array_get(json_object_get(members, "added_tokens"), i);
        json_t *rest = json_pack("{s:b, s:b, s:b, s:b, s:b}", "special", 0, "single_word", 0,
                                 "lstrip", 0, "rstrip", 0, "normalized", 1);
        assert_int_equal(json_object_update_missing(token, rest), 0);
        json_decref(rest);
    }
    if (json_object_get(json_object_get(json, "model"), "merges") != NULL) {
        enrich(json_object_get(json, "model"),
               json_object_get(json_object_get(json_object_get(json, "model"), "vocab"), "Ġ") !=
                   NULL);
    }
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(json_dump_file(json, path, JSON_COMPACT), 0);
    json_decref(json);
    json_decref(members);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, path, &tok));
    return tok;
}

static void check_corpus(const char *name, const ds_tokenizer *tok, bool cuts, taken *want,
                         taken *got)
{
    static const size_t sizes[] = {1, 61, 4096};
    size_t n;
    char *text = make_corpus(&n);
    read_text(one, tok, text, n, n, want);
    assert_int_equal(want->n_pieces, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        read_text(i == 0 ? one : odd, tok, text, n, sizes[i], got);
        check_same(name, want, got, text, n);
        assert_true(cuts ? got->n_pieces > n / (sizes[i] + 400) : got->n_pieces == 1);
        assert_true(!cuts || i > 1 || got->n_calls > 3);
    }
    free(text);
}

/* Ranges asked for or not, the ids are the same. */
static void check_ranges(const char *name, const ds_tokenizer *tok, const taken *want,
                         const char *text, size_t n)
{
    ds_tokenizer_scratch *scratch = NULL;
    ds_tokens tokens;
    CHECK_OK(one, ds_tokenizer_scratch_create(tok, 0, &scratch));
    CHECK_OK(one, ds_tokenizer_encode(tok, scratch, text, n,
                                      DS_ENCODE_ADD_SPECIAL | DS_ENCODE_NO_SPECIAL_PARSE |
                                          DS_ENCODE_RANGES,
                                      &tokens));
    uint32_t ids[4096];
    assert_true(tokens.n <= 4096);
    for (size_t i = 0; i < tokens.n; ++i) {
        ids[i] = tokens.ids[i];
    }
    const taken got = {.ids = ids, .n = tokens.n};
    check_same(name, want, &got, text, n);
    ds_tokenizer_scratch_destroy(&scratch);
}

static void check_small(const char *name, const ds_tokenizer *tok, taken *want, taken *got)
{
    uint32_t random = 3;
    char text[1024];
    for (int round = 0; round < 400; ++round) {
        const size_t n = make_small(&random, text);
        read_text(one, tok, text, n, n, want);
        read_text(one, tok, text, n, 1, got);
        check_same(name, want, got, text, n);
        if (round % 4 == 0) {
            check_ranges(name, tok, want, text, n);
        }
    }
}

static void parts_give_the_ids_of_the_whole(void **state)
{
    (void)state;
    taken want = {.ids = malloc(MAX_IDS * sizeof(uint32_t))};
    taken got = {.ids = malloc(MAX_IDS * sizeof(uint32_t))};
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; ++i) {
        char name[512];
        if (!check_long_row(i)) {
            continue;
        }
        (void)snprintf(name, sizeof name, "%s with %s", variants[i].base, variants[i].members);
        ds_tokenizer *tok = open_variant(one, &variants[i]);
        if (dsi_tok_can_cut(tok) != variants[i].cuts) {
            fail_msg("%s: kinds %u", name, tok->cuts.kinds);
        }
        check_corpus(name, tok, variants[i].cuts, &want, &got);
        check_small(name, tok, &want, &got);
        ds_tokenizer_close(&tok);
    }
    free(want.ids);
    free(got.ids);
}

static int set_up(void **state)
{
    (void)state;
    json_error_t error;
    ds_ctx_params params = ds_ctx_params_default();
    golden =
        json_load_file(DS_SOURCE_DIR "/test/golden/data/tokenizers.json", JSON_ALLOW_NUL, &error);
    folder = scratch_make();
    params.n_threads = 1;
    assert_int_equal(ds_ctx_create(&params, &one), DS_OK);
    params.n_threads = THREADS;
    assert_int_equal(ds_ctx_create(&params, &odd), DS_OK);
    return golden == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    json_decref(golden);
    ds_ctx_destroy(&one);
    ds_ctx_destroy(&odd);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_give_the_ids_of_the_whole),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
