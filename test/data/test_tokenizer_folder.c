/* SPDX-License-Identifier: Apache-2.0 */
/* data/tokenizer: whole folders, some random changes away from real families, are read as
 * transformers' AutoTokenizer reads them, or refused by name
 * (test/golden/data/tokenizer_folders.jsonl, made by make_tokenizer_folders.py).
 *
 * DS_TOKENIZER_FOLDERS names another such file (test/long/tokenizer_folder.sh); DS_TOKENIZER_LIST=1
 * prints each refusal.
 */
#include "common/check.h"
#include "common/scratch.h"
#include "launch/base64.h"

#include <deepspeed/tokenizer.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REASONS = 400, REFUSED_PERCENT = 5 };

static ds_ctx *ctx;
static char *folder;
static const char *const names[] = {
    "tokenizer.json",    "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "config.json",           "vocab.json",
    "merges.txt",        "tokenizer.model",       "spiece.model"};

typedef struct tally {
    size_t n, equal, both_refuse, we_refuse, they_refuse, different;
    struct {
        char text[160];
        size_t n;
    } reasons[REASONS];
    size_t n_reasons;
} tally;

/* ---- a folder ---- */

static void write_bytes(const char *name, const char *data, size_t n)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void write_file(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

/* A model of SentencePiece, which the file's first line has in base64. */
static void write_model(const char *name, const json_t *text, const json_t *vocabularies)
{
    const json_t *row = json_object_get(vocabularies, json_string_value(text) + 1);
    const json_t *model = json_object_get(row, "model");
    dsi_buf bytes = dsi_buf_make(16 << 20);
    assert_true(dsi_base64_decode(&bytes, json_string_value(model), json_string_length(model)));
    write_bytes(name, dsi_buf_text(&bytes), bytes.size);
    dsi_buf_free(&bytes);
}

/* Puts a vocabulary where the model names it as "@NAME". */
static void fill(json_t *model, const char *key, const json_t *vocabularies)
{
    const char *name = json_string_value(json_object_get(model, key));
    if (name != NULL && *name == '@') {
        json_t *value = json_object_get(json_object_get(vocabularies, name + 1), key);
        assert_int_equal(json_object_set(model, key, value), 0);
    }
}

static void write_folder(const json_t *files, const json_t *vocabularies)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)unlink(path);
        json_t *value = json_object_get(files, names[i]);
        if (json_is_string(value) && strstr(names[i], ".model") != NULL) {
            write_model(names[i], value, vocabularies);
        } else if (json_is_string(value)) {
            write_file(names[i], json_string_value(value));
        } else if (value != NULL) {
            fill(json_object_get(value, "model"), "vocab", vocabularies);
            fill(json_object_get(value, "model"), "merges", vocabularies);
            char *text = json_dumps(value, 0);
            assert_non_null(text);
            write_file(names[i], text);
            free(text);
        }
    }
}

/* ---- comparing ---- */

typedef struct subject {
    ds_tokenizer *tok;
    ds_tokenizer_scratch *scratch;
    char why[512]; /* the first difference */
} subject;

static bool same_ids(subject *s, const char *what, const json_t *text, uint32_t flags,
                     const json_t *want)
{
    ds_tokens got = {0};
    const ds_status status = ds_tokenizer_encode(s->tok, s->scratch, json_string_value(text),
                                                 json_string_length(text), flags, &got);
    if (json_is_null(want) && status < 0) {
        return true;
    }
    bool same = status >= 0 && got.n == json_array_size(want) && !json_is_null(want);
    for (size_t i = 0; same && i < got.n; ++i) {
        same = json_integer_value(json_array_get(want, i)) == (json_int_t)got.ids[i];
    }
    if (!same) {
        char *shown = json_dumps(text, JSON_ENCODE_ANY);
        char *wanted = json_dumps(want, JSON_ENCODE_ANY);
        int n =
            snprintf(s->why, sizeof s->why, "%s of %.120s: want %.100s, got ", what, shown, wanted);
        for (size_t i = 0; status >= 0 && i < got.n && n < (int)sizeof s->why - 12; ++i) {
            n += snprintf(s->why + n, sizeof s->why - (size_t)n, "%u, ", got.ids[i]);
        }
        if (status < 0) {
            (void)snprintf(s->why + n, sizeof s->why - (size_t)n, "%s", ds_ctx_error(ctx));
        }
        free(shown);
        free(wanted);
    }
    return same;
}

static bool same_text(subject *s, const char *what, const json_t *list, uint32_t flags,
                      const json_t *want)
{
    uint32_t ids[4096];
    const size_t n = json_array_size(list);
    assert_true(n <= sizeof ids / sizeof *ids);
    for (size_t i = 0; i < n; ++i) {
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    }
    char *text = NULL;
    size_t size = 0;
    const ds_status status =
        ds_tokenizer_decode(s->tok, ids, n, flags | DS_DECODE_REPAIR, &text, &size);
    const bool same = status < 0 ? json_is_null(want)
                                 : json_is_string(want) && json_string_length(want) == size &&
                                       memcmp(json_string_value(want), text, size) == 0;
    if (!same) {
        char *shown = json_dumps(list, JSON_ENCODE_ANY);
        (void)snprintf(s->why, sizeof s->why, "%s of %.150s: want \"%.100s\", got \"%.100s\"", what,
                       shown, json_is_string(want) ? json_string_value(want) : "an error",
                       status < 0 ? ds_ctx_error(ctx) : text);
        free(shown);
    }
    free(text);
    return same;
}

/* An id that the folder names is ours; where it names none, ours may come from config.json. */
static bool same_id(subject *s, const char *name, int64_t got, const json_t *answer)
{
    const json_t *want = json_object_get(answer, name);
    const bool same = json_is_null(want) ? got < 0 : got == json_integer_value(want);
    if (!same) {
        (void)snprintf(s->why, sizeof s->why, "id of %s: want %d, got %d", name,
                       json_is_null(want) ? -1 : (int)json_integer_value(want), (int)got);
    }
    return same;
}

static bool same_answer(subject *s, const json_t *row)
{
    const json_t *answer = json_object_get(row, "answer");
    const json_t *texts = json_object_get(row, "texts");
    bool same = same_id(s, "bos", ds_tokenizer_bos_id(s->tok), answer) &&
                same_id(s, "eos", ds_tokenizer_eos_id(s->tok), answer) &&
                same_id(s, "pad", ds_tokenizer_pad_id(s->tok), answer) &&
                same_id(s, "unk", ds_tokenizer_unk_id(s->tok), answer) &&
                same_id(s, "size", ds_tokenizer_vocab_size(s->tok), answer);
    for (size_t i = 0; same && i < json_array_size(texts); ++i) {
        const json_t *text = json_array_get(texts, i);
        same =
            same_ids(s, "ids", text, DS_ENCODE_ADD_SPECIAL,
                     json_array_get(json_object_get(answer, "ids"), i)) &&
            same_ids(s, "plain ids", text, 0, json_array_get(json_object_get(answer, "plain"), i));
    }
    const json_t *decode = json_object_get(answer, "decode");
    for (size_t i = 0; same && i < json_array_size(decode); ++i) {
        const json_t *one = json_array_get(decode, i);
        same = same_text(s, "text", json_array_get(one, 0), 0, json_array_get(one, 1)) &&
               same_text(s, "text without special tokens", json_array_get(one, 0),
                         DS_DECODE_SKIP_SPECIAL, json_array_get(one, 2));
    }
    return same;
}

/* Saving copies the tokenizer's files as they are: transformers then reads the same. */
static bool same_files(subject *s, const json_t *files)
{
    char saved[512];
    (void)snprintf(saved, sizeof saved, "%s/saved", folder);
    CHECK_OK(ctx, ds_tokenizer_save(ctx, s->tok, saved));
    const bool whole = json_object_get(files, "tokenizer.json") != NULL;
    bool same = true;
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        const bool vocab =
            strcmp(names[i], "vocab.json") == 0 || strcmp(names[i], "merges.txt") == 0;
        const bool want = json_object_get(files, names[i]) != NULL && !(vocab && whole) &&
                          strcmp(names[i], "config.json") != 0; /* the model's: not saved here */
        char path[1024];
        (void)snprintf(path, sizeof path, "%s/%s", saved, names[i]);
        const bool there = access(path, F_OK) == 0;
        same = same && there == want;
        if (there) {
            char original[1024];
            (void)snprintf(original, sizeof original, "%s/%s", folder, names[i]);
            scratch_same(path, original);
        }
        (void)unlink(path);
    }
    if (!same) {
        (void)snprintf(s->why, sizeof s->why, "saving left a file out or made one");
    }
    return same;
}

/* ---- counting ---- */

/* The message without its path, and without what is quoted but for short words. */
static void count_reason(tally *t, const char *message)
{
    char text[160];
    const char *at = strstr(message, folder);
    at = at != NULL ? at + strlen(folder) : message;
    (void)snprintf(text, sizeof text, "%s", at);
    for (char *c = text; *c != '\0'; ++c) {
        *c = *c >= '0' && *c <= '9' ? '#' : *c;
    }
    size_t i = 0;
    while (i < t->n_reasons && strcmp(t->reasons[i].text, text) != 0) {
        ++i;
    }
    if (i == t->n_reasons && i < REASONS) {
        (void)snprintf(t->reasons[t->n_reasons++].text, sizeof text, "%s", text);
    }
    t->reasons[i < REASONS ? i : REASONS - 1].n += 1;
}

static void report(const json_t *row, size_t number, const char *kind, const char *text)
{
    char *what = json_dumps(json_object_get(row, "what"), 0);
    (void)fprintf(stderr, "%zu %s: %s: %s\n", number, what, kind, text);
    free(what);
}

static void check_row(const json_t *row, const json_t *vocabularies, tally *t)
{
    subject s = {0};
    const bool accepted = json_is_object(json_object_get(row, "answer"));
    const bool list = getenv("DS_TOKENIZER_LIST") != NULL;
    write_folder(json_object_get(row, "files"), vocabularies);
    ++t->n;
    const ds_status status = ds_tokenizer_open(ctx, folder, &s.tok);
    if (status < 0) {
        t->both_refuse += !accepted;
        t->we_refuse += accepted;
        if (accepted) {
            count_reason(t, ds_ctx_error(ctx));
        }
        if (accepted && list) {
            report(row, t->n, "refused", ds_ctx_error(ctx));
        }
        return;
    }
    CHECK_OK(ctx, ds_tokenizer_scratch_create(s.tok, 0, &s.scratch));
    if (!accepted) {
        ++t->they_refuse;
        if (list) {
            report(row, t->n, "accepted", json_string_value(json_object_get(row, "error")));
        }
    } else if (same_answer(&s, row) && same_files(&s, json_object_get(row, "files"))) {
        ++t->equal;
    } else {
        ++t->different;
        report(row, t->n, "DIFFERENT", s.why);
    }
    ds_tokenizer_scratch_destroy(&s.scratch);
    ds_tokenizer_close(&s.tok);
}

static void check_file(const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    tally *t = calloc(1, sizeof *t);
    assert_non_null(t);
    json_t *first = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(first);
    json_t *row;
    while ((row = json_loadf(file, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL)) != NULL) {
        check_row(row, json_object_get(first, "vocabularies"), t);
        json_decref(row);
    }
    json_decref(first);
    (void)fclose(file);
    (void)printf("%zu folders: %zu equal, %zu refused by both, %zu refused by us alone, %zu by "
                 "transformers alone, %zu DIFFERENT\n",
                 t->n, t->equal, t->both_refuse, t->we_refuse, t->they_refuse, t->different);
    for (size_t i = 0; i < t->n_reasons; ++i) {
        (void)printf("%5zu refused: %s\n", t->reasons[i].n, t->reasons[i].text);
    }
    assert_true(t->n >= 100);
    assert_int_equal(t->different, 0);
    assert_true(t->we_refuse * 100 <= (t->n - t->both_refuse) * REFUSED_PERCENT);
    free(t);
}

static void folders_are_read_as_transformers_does(void **state)
{
    (void)state;
    const char *path = getenv("DS_TOKENIZER_FOLDERS");
    check_file(path != NULL ? path : DS_SOURCE_DIR "/test/golden/data/tokenizer_folders.jsonl");
    if (path == NULL) {
        check_file(DS_SOURCE_DIR "/test/golden/data/tokenizer_folders_bert.jsonl");
        check_file(DS_SOURCE_DIR "/test/golden/data/tokenizer_folders_roberta.jsonl");
        check_file(DS_SOURCE_DIR "/test/golden/data/tokenizer_folders_t5.jsonl");
        check_file(DS_SOURCE_DIR "/test/golden/data/tokenizer_folders_spiece.jsonl");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(folders_are_read_as_transformers_does)};
    folder = scratch_make();
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    char saved[512];
    (void)snprintf(saved, sizeof saved, "%s/saved", folder);
    if (mkdir(saved, 0700) != 0) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return failed;
}
