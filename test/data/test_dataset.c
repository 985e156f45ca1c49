/* SPDX-License-Identifier: Apache-2.0 */
/* data/dataset: kinds of files, samples that teach nothing, end tokens, indexed data as others
 * write it, and a writer of it that is killed at any moment. */
#include "common/check.h"
#include "common/scratch.h"
#include "data/dataset.h"
#include "data/indexed.h"
#include "data/source.h"

#include <deepspeed/context.h>
#include <deepspeed/data.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static ds_ctx *ctx;
static ds_tokenizer *bytes, *gpt2;
static char *folder;
static char warning[512]; /* the newest log line */

static const char *path_of(const char *name)
{
    static char paths[32][512];
    static int turn;
    char *path = paths[turn++ % 32];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static const char *put(const char *name, const void *data, size_t n)
{
    const char *path = path_of(name);
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(data, 1, n, stream), n);
    assert_int_equal(fclose(stream), 0);
    return path;
}

static const char *put_text(const char *name, const char *text)
{
    return put(name, text, strlen(text));
}

static void begins_at(const ds_dataset *data, const uint64_t *want)
{
    for (uint64_t d = 0; d <= data->n_docs; ++d) {
        assert_int_equal(dsi_dataset_begin(data, d), want[d]);
    }
}

static ds_status open_files(const char *a, const char *b, bool eos, ds_dataset **out)
{
    const char *files[2] = {a, b};
    const ds_dataset_params params = {.files = files,
                                      .n_files = b != NULL ? 2 : 1,
                                      .tokenizer = eos ? gpt2 : bytes,
                                      .seq_length = 4,
                                      .append_eos = eos};
    return ds_dataset_open(ctx, &params, out);
}

/* A sample whose answer lies beyond the row, or that has none, is dropped and counted. */
static void samples_without_answer(void **state)
{
    (void)state;
    ds_dataset *data = NULL;
    const char *path = put_text("a.jsonl", "{\"prompt\":\"abcdef\",\"completion\":\"x\"}\n"
                                           "{\"prompt\":\"ab\",\"completion\":\"cdef\"}\n"
                                           "{\"prompt\":\"ab\",\"completion\":\"\"}\n"
                                           "{\"prompt\":\"\",\"completion\":\"z\"}\n"
                                           "{\"prompt\":\"a\",\"completion\":\"b\"}\n");
    CHECK_OK(ctx, open_files(path, NULL, false, &data));
    const ds_dataset_info info = ds_dataset_get_info(data);
    assert_int_equal(info.n_documents, 2);
    assert_int_equal(info.n_uncounted, 3);
    assert_int_equal(info.n_truncated, 1);
    assert_int_equal(info.n_dropped, 0);
    ds_dataset_close(&data);
    path = put_text("a.jsonl", "{\"prompt\":\"abcdef\",\"completion\":\"x\"}\n");
    CHECK_FAILS(ctx, open_files(path, NULL, false, &data), DS_ERR_ARG, "1 have no answer");
}

static void kinds_do_not_mix(void **state)
{
    (void)state;
    ds_dataset *data = NULL;
    const char *text = put_text("t.txt", "some text");
    const char *samples = put_text("s.jsonl", "{\"prompt\":\"ab\",\"completion\":\"c\"}\n");
    const char *dropped = put_text("d.jsonl", "{\"prompt\":\"ab\",\"completion\":\"\"}\n");
    dsi_indexed_writer *writer = NULL;
    const uint32_t ids[3] = {1, 2, 3};
    CHECK_OK(ctx, dsi_indexed_create(ctx, path_of("x"), 300, &writer));
    CHECK_OK(ctx, dsi_indexed_add(writer, ids, 3));
    CHECK_OK(ctx, dsi_indexed_commit(&writer));
    CHECK_FAILS(ctx, open_files(text, samples, false, &data), DS_ERR_ARG, "cannot be mixed");
    CHECK_FAILS(ctx, open_files(samples, text, false, &data), DS_ERR_ARG, "cannot be mixed");
    CHECK_FAILS(ctx, open_files(dropped, text, false, &data), DS_ERR_ARG, "cannot be mixed");
    CHECK_FAILS(ctx, open_files(samples, path_of("x.bin"), false, &data), DS_ERR_ARG,
                "cannot be mixed");
    CHECK_FAILS(ctx, open_files(path_of("x.idx"), path_of("x.bin"), false, &data), DS_ERR_ARG,
                "one pair");
    CHECK_OK(ctx, open_files(text, path_of("x.idx"), false, &data));
    assert_int_equal(ds_dataset_get_info(data).n_tokens, 12);
    ds_dataset_close(&data);
}

static void end_tokens(void **state)
{
    (void)state;
    ds_dataset *data = NULL;
    const char *text = put_text("t.txt", "a");
    const char *lines = put_text("t.jsonl", "{\"text\":\"a\"}\n{\"text\":\"a\"}\n");
    CHECK_OK(ctx, open_files(text, lines, true, &data));
    const ds_dataset_info info = ds_dataset_get_info(data);
    assert_int_equal(info.n_documents, 3);
    assert_int_equal(info.n_tokens, 6);
    for (uint64_t at = 1; at < 6; at += 2) {
        assert_int_equal(dsi_store_get(data->tokens, at), ds_tokenizer_eos_id(gpt2));
    }
    ds_dataset_close(&data);
    const ds_dataset_params params = {
        .files = &text, .n_files = 1, .tokenizer = bytes, .seq_length = 4, .append_eos = true};
    CHECK_FAILS(ctx, ds_dataset_open(ctx, &params, &data), DS_ERR_ARG, "end token");
}

static void odd_lines(void **state)
{
    (void)state;
    ds_dataset *data = NULL;
    const char *path =
        put_text("t.jsonl", "\xEF\xBB\xBF{\"text\":\"a\"}\r\n \t\r\n{\"text\":\"\"}\n"
                            "{\"text\":\"b\"}");
    CHECK_OK(ctx, open_files(path, NULL, false, &data));
    assert_int_equal(ds_dataset_get_info(data).n_documents, 2);
    ds_dataset_close(&data);
}

/* A text that must be encoded at once, and is beyond what that can be, is refused by name before it
 * is read. */
static void huge_text(void **state)
{
    (void)state;
    ds_dataset *data = NULL;
    ds_tokenizer *whole = NULL;
    const char *path = put_text("huge.txt", "");
    CHECK_OK(ctx,
             ds_tokenizer_open(ctx, DS_SOURCE_DIR "/test/golden/data/tokenizer-odd.json", &whole));
    const ds_dataset_params params = {
        .files = &path, .n_files = 1, .tokenizer = whole, .seq_length = 4};
    assert_int_equal(truncate(path, (off_t)INT32_MAX + 1), 0);
    CHECK_FAILS(ctx, ds_dataset_open(ctx, &params, &data), DS_ERR_LIMIT, "huge.txt");
    ds_tokenizer_close(&whole);
    (void)unlink(path);
}

/* A text that is read in parts is one document, with its end token behind the last of them. */
static void text_in_parts(void **state)
{
    (void)state;
    enum { BYTES = 3 * DSI_PART_BYTES };
    ds_dataset *data = NULL;
    char *text = malloc(BYTES);
    assert_non_null(text);
    for (size_t i = 0; i < BYTES; ++i) {
        text[i] = "some text "[i % 10];
    }
    const char *path = put("parts.txt", text, BYTES);
    free(text);
    CHECK_OK(ctx, open_files(path, put_text("t.txt", "a"), true, &data));
    const uint64_t n = dsi_dataset_begin(data, 1);
    assert_int_equal(data->n_docs, 2);
    assert_true(n > BYTES / 10);
    for (uint64_t i = 0; i + 1 < n; ++i) {
        assert_int_not_equal(dsi_store_get(data->tokens, i), ds_tokenizer_eos_id(gpt2));
    }
    assert_int_equal(dsi_store_get(data->tokens, n - 1), ds_tokenizer_eos_id(gpt2));
    ds_dataset_close(&data);
}

/* ---- indexed data ---- */

typedef struct index {
    uint8_t code;
    uint32_t width;
    uint64_t n_items, n_boundaries;
    int32_t sizes[4];
    int64_t boundaries[5];
    size_t trailing; /* bytes behind the last token */
} index_spec;

/* Writes the pair; token i of the data is `first` + i. */
static const char *put_index(const index_spec *s, int64_t first)
{
    unsigned char idx[256];
    unsigned char bin[512] = {0};
    size_t n = 0;
    int64_t tokens = 0;
    const uint64_t head[] = {1, s->n_items, s->n_boundaries};
    memcpy(idx, "MMIDIDX\0\0", 9);
    memcpy(idx + 9, &head[0], 8);
    idx[17] = s->code;
    memcpy(idx + 18, &head[1], 16);
    n = 34;
    memcpy(idx + n, s->sizes, s->n_items * 4);
    n += s->n_items * 4;
    for (uint64_t i = 0; i < s->n_items; ++i, n += 8) {
        const int64_t pointer = tokens * s->width;
        memcpy(idx + n, &pointer, 8);
        tokens += s->sizes[i];
    }
    memcpy(idx + n, s->boundaries, s->n_boundaries * 8);
    n += s->n_boundaries * 8;
    for (int64_t i = 0; i < tokens; ++i) {
        const int64_t id = first + i;
        memcpy(bin + i * s->width, &id, s->width);
    }
    (void)put("i.idx", idx, n);
    return put("i.bin", bin, (size_t)tokens * s->width + s->trailing);
}

static void indexed_types(void **state)
{
    (void)state;
    static const index_spec specs[] = {
        {1, 1, 2, 3, {3, 2}, {0, 1, 2}, 0}, {2, 1, 2, 3, {3, 2}, {0, 1, 2}, 0},
        {3, 2, 2, 3, {3, 2}, {0, 1, 2}, 0}, {4, 4, 2, 3, {3, 2}, {0, 1, 2}, 0},
        {5, 8, 2, 3, {3, 2}, {0, 1, 2}, 0}, {6, 2, 2, 3, {3, 2}, {0, 1, 2}, 0},
        {7, 4, 2, 3, {3, 2}, {0, 1, 2}, 0}, {8, 8, 2, 3, {3, 2}, {0, 1, 2}, 0},
        {8, 2, 2, 3, {3, 2}, {0, 1, 2}, 0}, {8, 2, 2, 3, {3, 2}, {0, 1, 2}, 30}, /* Megatron's */
        {8, 8, 2, 3, {3, 2}, {0, 1, 2}, 9}, {8, 2, 1, 2, {5}, {0, 1}, 0},
        {8, 2, 1, 2, {5}, {0, 1}, 4},       {8, 8, 1, 2, {5}, {0, 1}, 0},
        {8, 8, 1, 2, {5}, {0, 1}, 3},       {8, 2, 3, 4, {0, 3, 2}, {0, 1, 2, 3}, 60},
    };
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; ++i) {
        ds_dataset *data = NULL;
        warning[0] = '\0';
        CHECK_OK(ctx, open_files(put_index(&specs[i], 100), NULL, false, &data));
        assert_int_equal(data->tokens->mapped_bytes, specs[i].width);
        assert_int_equal(ds_dataset_get_info(data).n_tokens, 5);
        assert_int_equal(dsi_store_get(data->tokens, 4), 104);
        assert_int_equal(strstr(warning, "behind its last token") != NULL, specs[i].trailing > 0);
        ds_dataset_close(&data);
    }
}

/* Pairs that DeepSpeed's own builder wrote, of several items a document. */
static void indexed_of_deepspeed(void **state)
{
    (void)state;
    static const char *const names[] = {"u8",  "i8",  "i16", "i32",          "i64",
                                        "u16", "u32", "u64", "megatron_u16", "no_documents"};
    static const uint64_t documents[] = {0, 5, 12, 12, 13, 30};
    static const uint64_t items[] = {0, 5, 8, 12, 12, 13, 19, 21, 30};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; ++k) {
        const bool by_item = strcmp(names[k], "no_documents") == 0;
        const uint64_t *begin = by_item ? items : documents;
        ds_dataset *data = NULL;
        char path[512];
        (void)snprintf(path, sizeof path, "%s/test/golden/data/indexed/%s.idx", DS_SOURCE_DIR,
                       names[k]);
        CHECK_OK(ctx, open_files(path, NULL, false, &data));
        assert_int_equal(data->n_docs, by_item ? 8 : 5);
        begins_at(data, begin);
        const int32_t base = data->tokens->mapped_bytes > 1 ? 1000 : 0;
        for (uint64_t i = 0; i < 30; ++i) {
            assert_int_equal(dsi_store_get(data->tokens, i), base + (int32_t)(7 * i + 3) % 120);
        }
        ds_dataset_close(&data);
    }
}

static size_t file_of(const char *path, char *out, size_t room)
{
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    const size_t n = fread(out, 1, room, stream);
    (void)fclose(stream);
    return n;
}

/* The bytes that DeepSpeed's builder wrote for the same documents. */
static void indexed_as_deepspeed(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {5, 7, 0, 1, 17};
    static const char *const names[] = {"items_u16", "items_i32"};
    for (int k = 0; k < 2; ++k) {
        dsi_indexed_writer *writer = NULL;
        uint32_t at = 0;
        CHECK_OK(ctx, dsi_indexed_create(ctx, path_of("same"), k == 0 ? 65499 : 65500, &writer));
        for (size_t d = 0; d < sizeof sizes / sizeof sizes[0]; ++d) {
            uint32_t ids[17];
            for (uint64_t i = 0; i < sizes[d]; ++i, ++at) {
                ids[i] = 1000 + (7 * at + 3) % 120;
            }
            CHECK_OK(ctx, dsi_indexed_add(writer, ids, sizes[d]));
        }
        CHECK_OK(ctx, dsi_indexed_commit(&writer));
        for (int end = 0; end < 2; ++end) {
            char want[1024];
            char got[1024];
            char path[512];
            (void)snprintf(path, sizeof path, "%s/test/golden/data/indexed/%s.%s", DS_SOURCE_DIR,
                           names[k], end == 0 ? "bin" : "idx");
            const size_t n = file_of(path, want, sizeof want);
            assert_int_equal(file_of(path_of(end == 0 ? "same.bin" : "same.idx"), got, sizeof got),
                             n);
            assert_memory_equal(got, want, n);
        }
    }
}

/* A document beyond the limit of an item is several items, and reads back as one. */
static void indexed_long_documents(void **state)
{
    (void)state;
    static const uint64_t want[] = {0, 3, 17, 17, 27};
    dsi_indexed_writer *writer = NULL;
    ds_dataset *data = NULL;
    uint32_t ids[10];
    for (uint32_t i = 0; i < 10; ++i) {
        ids[i] = i;
    }
    CHECK_OK(ctx, dsi_indexed_create(ctx, path_of("long"), 300, &writer));
    dsi_indexed_limit(writer, 4);
    CHECK_OK(ctx, dsi_indexed_add(writer, ids, 3));
    CHECK_OK(ctx, dsi_indexed_add(writer, ids, 4));
    CHECK_OK(ctx, dsi_indexed_extend(writer, ids + 4, 1));
    CHECK_OK(ctx, dsi_indexed_extend(writer, ids, 9));
    CHECK_OK(ctx, dsi_indexed_add(writer, ids, 0));
    CHECK_OK(ctx, dsi_indexed_add(writer, ids, 10));
    CHECK_OK(ctx, dsi_indexed_commit(&writer));
    CHECK_OK(ctx, open_files(path_of("long.bin"), NULL, false, &data));
    assert_int_equal(data->n_docs, 4);
    begins_at(data, want);
    for (uint64_t i = 0; i < 27; ++i) {
        const uint64_t at = i < 3 ? i : i < 8 ? i - 3 : i < 17 ? i - 8 : i - 17;
        assert_int_equal(dsi_store_get(data->tokens, i), at);
    }
    ds_dataset_close(&data);
}

/* A builder that ended no document: each item is one. */
static void indexed_without_documents(void **state)
{
    (void)state;
    const index_spec spec = {4, 4, 3, 1, {2, 1, 2}, {0}, 0};
    ds_dataset *data = NULL;
    CHECK_OK(ctx, open_files(put_index(&spec, 0), NULL, false, &data));
    assert_int_equal(ds_dataset_get_info(data).n_documents, 3);
    assert_int_equal(dsi_dataset_begin(data, 2), 3);
    ds_dataset_close(&data);
}

/* Empty documents change nothing around them. */
static void indexed_empty_documents(void **state)
{
    (void)state;
    const index_spec spec = {6, 2, 4, 5, {3, 0, 0, 3}, {0, 1, 2, 3, 4}, 0};
    const ds_loader_params params = {.batch = 1, .seq_length = 6};
    const int32_t want[6] = {11, 12, -100, 14, 15, -100};
    ds_dataset *data = NULL;
    ds_loader *loader = NULL;
    ds_loader_batch batch;
    CHECK_OK(ctx, open_files(put_index(&spec, 10), NULL, false, &data));
    CHECK_OK(ctx, ds_loader_create(ctx, data, &params, &loader));
    CHECK_OK(ctx, ds_loader_next(loader, &batch));
    assert_int_equal(batch.n_tokens, 6);
    assert_memory_equal(batch.targets.data, want, sizeof want);
    ds_loader_destroy(&loader);
    ds_dataset_close(&data);
}

/* Numbers that are no ids of the vocabulary are found when they are read, and named. */
static void indexed_bad_ids(void **state)
{
    (void)state;
    static const struct {
        index_spec spec;
        int64_t first;
        const char *says;
    } cases[] = {
        {{4, 4, 2, 3, {3, 2}, {0, 1, 2}, 0}, -5, "can be no token id"},
        {{3, 2, 2, 3, {3, 2}, {0, 1, 2}, 0}, -5, "can be no token id"},
        {{7, 4, 2, 3, {3, 2}, {0, 1, 2}, 0}, 0x80000000, "can be no token id"},
        {{8, 8, 2, 3, {3, 2}, {0, 1, 2}, 0}, INT64_C(1) << 40, "can be no token id"},
        {{6, 2, 2, 3, {3, 2}, {0, 1, 2}, 0}, 996, "document 1 of the data is 1000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const ds_loader_params params = {.batch = 1, .seq_length = 4, .n_vocab = 1000};
        ds_dataset *data = NULL;
        ds_loader *loader = NULL;
        ds_loader_batch batch;
        bool done = false;
        const char *path = put_index(&cases[i].spec, cases[i].first);
        CHECK_OK(ctx, open_files(path, NULL, false, &data));
        CHECK_OK(ctx, ds_loader_create(ctx, data, &params, &loader));
        CHECK_FAILS(ctx, ds_loader_next(loader, &batch), DS_ERR_FORMAT, cases[i].says);
        ds_loader_rewind(loader);
        CHECK_FAILS(ctx, ds_loader_next_once(loader, &batch, &done), DS_ERR_FORMAT, cases[i].says);
        ds_loader_destroy(&loader);
        ds_dataset_close(&data);
        if (cases[i].first != 996) { /* copied, not mapped */
            CHECK_FAILS(ctx, open_files(path, path, false, &data), DS_ERR_FORMAT, "no token id");
        }
    }
}

/* ---- a killed writer ---- */

static int calls_left = -1; /* the process ends instead of its next call when this reaches 0 */

static void count_down(void)
{
    if (calls_left >= 0 && calls_left-- == 0) {
        _exit(3);
    }
}

/* These stand before the C library's in this program. */
int rename(const char *from, const char *to)
{
    count_down();
    return (int)syscall(SYS_rename, from, to);
}

int unlink(const char *path)
{
    count_down();
    return (int)syscall(SYS_unlink, path);
}

int fsync(int fd)
{
    count_down();
    return (int)syscall(SYS_fsync, fd);
}

/* Documents of `id`s, so that tokens tell which data they belong to. */
static void write_pair(uint32_t id, uint64_t n_documents)
{
    dsi_indexed_writer *writer = NULL;
    const uint32_t ids[3] = {id, id, id};
    CHECK_OK(ctx, dsi_indexed_create(ctx, path_of("k"), 300, &writer));
    for (uint64_t i = 0; i < n_documents; ++i) {
        CHECK_OK(ctx, dsi_indexed_add(writer, ids, 1 + i % 3));
    }
    CHECK_OK(ctx, dsi_indexed_commit(&writer));
}

/* The id and the documents of the pair; 0: there is none. */
static uint64_t read_pair(uint32_t *id_out)
{
    ds_dataset *data = NULL;
    const ds_status status = open_files(path_of("k.bin"), NULL, false, &data);
    if (status < 0) {
        assert_int_equal(status, DS_ERR_NOT_FOUND);
        assert_non_null(strstr(ds_ctx_error(ctx), "k.idx"));
        return 0;
    }
    const uint64_t n = data->n_docs;
    *id_out = (uint32_t)dsi_store_get(data->tokens, 0);
    assert_int_equal(dsi_store_get(data->tokens, ds_dataset_get_info(data).n_tokens - 1), *id_out);
    assert_int_equal(dsi_dataset_begin(data, n), data->tokens->indexed.bin.size / 2);
    ds_dataset_close(&data);
    return n;
}

static void killed_writers_tear_nothing(void **state)
{
    (void)state;
    bool ended = false;
    bool seen_old = false;
    for (int calls = 0; !ended && calls < 100; ++calls) {
        uint32_t id = 0;
        write_pair(1, 9);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            calls_left = calls;
            write_pair(2, calls % 2 == 0 ? 6 : 12);
            _exit(0);
        }
        int result = 0;
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_true(WIFEXITED(result));
        ended = WEXITSTATUS(result) == 0;
        const uint64_t n = read_pair(&id);
        assert_true(n == 0 || (id == 1 && n == 9) || (id == 2 && n == (calls % 2 == 0 ? 6 : 12)));
        assert_true(!ended || id == 2);
        seen_old = seen_old || id == 1;
    }
    assert_true(ended && seen_old);
}

static void keep_line(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)snprintf(warning, sizeof warning, "%s", line);
}

static int set_up(void **state)
{
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1; /* a child forks off */
    params.log = keep_line;
    folder = scratch_make();
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, "bytes", &bytes));
    /* a folder with the files that name the end token */
    char command[512];
    (void)snprintf(command, sizeof command,
                   "cp %s/test/golden/data/tokenizer-gpt2.json %s/tokenizer.json && "
                   "printf '{\"eos_token\":\"<|endoftext|>\"}' > %s/tokenizer_config.json",
                   DS_SOURCE_DIR, folder, folder);
    assert_int_equal(system(command), 0);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &gpt2));
    assert_true(ds_tokenizer_eos_id(gpt2) >= 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    ds_tokenizer_close(&gpt2);
    ds_tokenizer_close(&bytes);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_without_answer),
        cmocka_unit_test(kinds_do_not_mix),
        cmocka_unit_test(end_tokens),
        cmocka_unit_test(odd_lines),
        cmocka_unit_test(huge_text),
        cmocka_unit_test(text_in_parts),
        cmocka_unit_test(indexed_types),
        cmocka_unit_test(indexed_of_deepspeed),
        cmocka_unit_test(indexed_as_deepspeed),
        cmocka_unit_test(indexed_long_documents),
        cmocka_unit_test(indexed_without_documents),
        cmocka_unit_test(indexed_empty_documents),
        cmocka_unit_test(indexed_bad_ids),
        cmocka_unit_test(killed_writers_tear_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
