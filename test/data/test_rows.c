/* SPDX-License-Identifier: Apache-2.0 */
/* data/rows: every container gives the rows that its writer put in; what is damaged, cut short or
 * contradicts itself is named by file and place, and no row is made up or lost in silence. The
 * Parquet files and their rows are pyarrow's (make_rows.py). */
#include "common/check.h"
#include "common/scratch.h"
#include "data/parquet/parquet.h"
#include "data/rows/rows.h"
#include "io/json_load.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

static ds_ctx *ctx;
static char *folder;

/* The rows of a file as one text, a line each, with what comes after the last: an error's message
 * behind the file's name, or nothing. The caller frees both. */
static char *read_rows(const char *path, char **error_out)
{
    dsi_rows *rows = NULL;
    dsi_buf all = dsi_buf_make(1 << 24);
    dsi_buf row = dsi_buf_make(1 << 20);
    uint64_t place = 0;
    bool end = false;
    ds_status status = dsi_rows_open(ctx, path, &rows);
    while (status >= 0 && !end) {
        dsi_buf_clear(&row);
        status = dsi_rows_next(rows, &row, &place, &end);
        if (status >= 0 && !end) {
            dsi_buf_append(&all, dsi_buf_text(&row), row.size);
            dsi_buf_putc(&all, '\n');
        }
    }
    dsi_rows_close(&rows);
    dsi_buf_free(&row);
    const char *message = status < 0 ? ds_ctx_error(ctx) : "";
    const size_t n = strlen(path);
    *error_out = strdup(strncmp(message, path, n) == 0 ? message + n : message);
    char *text = strdup(dsi_buf_text(&all));
    dsi_buf_free(&all);
    return text;
}

static void check_rows(const char *name, const char *content, size_t n, const char *rows,
                       const char *error)
{
    char *found_error = NULL;
    const char *path = scratch_path(folder, name);
    scratch_write(path, content, n);
    char *found = read_rows(path, &found_error);
    assert_string_equal(found_error, error);
    assert_string_equal(found, rows);
    free(found);
    free(found_error);
}

static void check(const char *name, const char *content, const char *rows, const char *error)
{
    check_rows(name, content, strlen(content), rows, error);
}

/* ---- Parquet ---- */

static const char *const files[] = {"chat_snappy", "chat_zstd_v2", "chat_legacy", "flat_gzip",
                                    "flat_delta",  "flat_lengths", "empty"};
enum { N_FILES = sizeof files / sizeof files[0] };

static const char *golden(const char *name, const char *ending)
{
    static char path[2][400];
    static int turn;
    turn = !turn;
    (void)snprintf(path[turn], sizeof path[0], "%s/test/golden/data/rows/%s%s", DS_SOURCE_DIR, name,
                   ending);
    return path[turn];
}

static void same_json(const char *have, const char *want, size_t n_want)
{
    json_error_t error;
    json_t *a = dsi_json_parse(have, strlen(have), 0, &error);
    json_t *b = dsi_json_parse(want, n_want, 0, &error);
    assert_non_null(a);
    assert_non_null(b);
    assert_true(json_equal(a, b));
    json_decref(a);
    json_decref(b);
}

static void parquet_has_pyarrows_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FILES; ++i) {
        size_t n = 0;
        char *error = NULL;
        char *want = scratch_read(golden(files[i], ".jsonl"), &n);
        char *have = read_rows(golden(files[i], ".parquet"), &error);
        assert_string_equal(error, "");
        char *line = have;
        for (const char *w = want; *w != '\0'; w = strchr(w, '\n') + 1) {
            char *end = strchr(line, '\n');
            assert_non_null(end);
            *end = '\0';
            same_json(line, w, (size_t)(strchr(w, '\n') - w));
            line = end + 1;
        }
        assert_int_equal(*line, '\0');
        free(want);
        free(have);
        free(error);
    }
}

/* Whatever is done to the bytes, reading ends, without a crash, with rows or with a message. */
static void damaged_parquet_ends(void **state)
{
    (void)state;
    uint32_t seed = 1;
    for (size_t i = 0; i < N_FILES; ++i) {
        size_t n = 0;
        char *good = scratch_read(golden(files[i], ".parquet"), &n);
        char *bad = malloc(n);
        assert_non_null(bad);
        for (uint32_t round = 0; round < 300; ++round) {
            memcpy(bad, good, n);
            seed = seed * 1664525u + 1013904223u;
            const size_t cut = round % 5 == 0 ? seed % n : n;
            for (uint32_t k = 0; k <= round % 3; ++k) {
                seed = seed * 1664525u + 1013904223u;
                bad[(seed >> 8) % n] = (char)(seed >> 3);
            }
            if (!check_long_row(round)) {
                continue;
            }
            char *error = NULL;
            const char *path = scratch_path(folder, "d.parquet");
            scratch_write(path, bad, cut);
            char *rows = read_rows(path, &error);
            assert_true(cut == n || *error != '\0');
            free(rows);
            free(error);
        }
        free(bad);
        free(good);
    }
}

/* Files that contradict themselves: a schema given twice, a dictionary of truth values, a date of
 * 64 bits, a text that is no UTF-8. */
static void hostile_parquet_is_refused(void **state)
{
    static const char *const bad[][2] = {{"bad_schema_twice", "its footer is damaged"},
                                         {"bad_booldict", "a dictionary of truth values"},
                                         {"bad_date64", "no column of a type that is read here"},
                                         {"bad_utf8", "a text is no UTF-8"}};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        char *error = NULL;
        char *rows = read_rows(golden(bad[i][0], ".parquet"), &error);
        assert_non_null(strstr(error, bad[i][1]));
        free(rows);
        free(error);
    }
}

/* ---- text ---- */

static void lines(void **state)
{
    (void)state;
    check("a.jsonl", "\xEF\xBB\xBF{}\n\n[1]\r\nx", "{}\n\n[1]\r\nx\n", "");
    check("a.jsonl", "", "", "");
    check("a.ndjson", "1\n", "1\n", "");
}

static void lists(void **state)
{
    (void)state;
    check("a.json", " [ {\"a\":[1,{}]} ,\n\"]\\\"\", 3,null ] \n",
          "{\"a\":[1,{}]}\n\"]\\\"\"\n3\nnull\n", "");
    check("a.json", "[]", "", "");
    check("a.json", "{\"a\":1}\n{\"b\":\n2}{}", "{\"a\":1}\n{\"b\":\n2}\n{}\n", "");
    check("a.json", "[{},{}", "{}\n{}\n",
          ": row 2: the file ends within its list, behind this row");
    check("a.json", "[{},{\"a\":", "{}\n", ": row 2: the file ends within a row");
    check("a.json", "[{},\"abc", "{}\n", ": row 2: the file ends within a string");
    check("a.json", "[{} {}]", "{}\n", ": row 1: behind this row a \",\" or \"]\" is expected");
    check("a.json", "[{},]", "{}\n", ": row 1: a \",\" behind the last row");
    check("a.json", "[{}] {}", "{}\n", ": row 1: the list of rows is over, and the file goes on");
}

static void records(void **state)
{
    (void)state;
    check("a.csv", "a,b\n1,x y\n\n\"q\"\"1\n2\",NA\r\nlast,",
          "{\"a\":\"1\",\"b\":\"x y\"}\n"
          "{\"a\":\"q\\\"1\\n2\",\"b\":null}\n{\"a\":\"last\",\"b\":null}\n",
          "");
    check("a.tsv", "a\tb\n1,2\t\"\t\"\nshort\n",
          "{\"a\":\"1,2\",\"b\":\"\\t\"}\n{\"a\":\"short\"}\n", "");
    check("a.csv", "a\nx\ny,z\n", "{\"a\":\"x\"}\n", ":3: more than the 1 cells of the header");
    check("a.csv", "a\n\"x\ny", "", ":2: a quote is never closed");
    check("a.csv", "a,b,a\n", "", ":1: two columns have the name \"a\"");
    /* as pandas: a line of blanks is blank, and so is one of tabs where they delimit nothing */
    check("a.csv", " \na\n1\n \t \n 3\n   ", "{\"a\":\"1\"}\n{\"a\":\" 3\"}\n", "");
    check("a.csv", "a,b\n ,x\n \"q\"", "{\"a\":\" \",\"b\":\"x\"}\n{\"a\":\" \\\"q\\\"\"}\n", "");
    check("a.tsv", "a\tb\n   \n \t \n", "{\"a\":\" \",\"b\":\" \"}\n", "");
    check("a.csv", "a\n", "", "");
    check("a.csv", "", "", "");
}

/* As many columns as there may be, whose names are compared in time; and one more. */
static void many_columns(void **state)
{
    (void)state;
    enum { MOST = 65536, ROOM = 8 };
    char *text = malloc((size_t)(MOST + 2) * ROOM);
    size_t n = 0;
    assert_non_null(text);
    for (int i = 0; i < MOST - 1; ++i) {
        n += (size_t)snprintf(text + n, ROOM, "c%x,", i);
    }
    (void)strcpy(text + n, "c7");
    check("a.csv", text, "", ":1: two columns have the name \"c7\"");
    (void)strcpy(text + n, "x\n");
    check("a.csv", text, "", "");
    (void)strcpy(text + n, "x,y\n");
    check("a.csv", text, "", ":1: it has more than 65536 columns");
    free(text);
}

/* The pages of all columns together have a limit: file, row group and column are named. */
static void pages_have_a_limit(void **state)
{
    (void)state;
    dsi_parquet *file = NULL;
    dsi_buf json = dsi_buf_make(1 << 20);
    bool end = false;
    size_t enough = 256;
    for (ds_status status = DS_ERR_FORMAT; status < 0; enough *= 2) {
        assert_true(enough < 1 << 20);
        end = false;
        CHECK_OK(ctx, dsi_parquet_open(ctx, golden("chat_snappy", ".parquet"), &file));
        dsi_parquet_limit(file, enough);
        for (status = DS_OK; status >= 0 && !end;) {
            dsi_buf_clear(&json);
            status = dsi_parquet_next(file, &json, &end);
        }
        dsi_parquet_close(&file);
        if (status < 0) {
            assert_non_null(
                strstr(ds_ctx_error(ctx), "chat_snappy.parquet: row group 0, column \""));
            assert_non_null(strstr(ds_ctx_error(ctx), "the limit for a file, 1 GiB"));
        }
    }
    assert_true(enough > 512); /* the first try was refused */
    dsi_buf_free(&json);
}

/* ---- compressed ---- */

static size_t gzip(const char *text, size_t n, char *out, size_t room)
{
    z_stream z = {.next_in = (Bytef *)(uintptr_t)text,
                  .avail_in = (uInt)n,
                  .next_out = (Bytef *)out,
                  .avail_out = (uInt)room};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    (void)deflateEnd(&z);
    return room - z.avail_out;
}

/* Two members or frames in a row, larger together than a piece; then cut at many places. */
static void compressed(void **state)
{
    (void)state;
    enum { N = 400000, ROOM = 1 << 20 };
    char *text = malloc(2 * N + 1);
    char *packed = malloc(ROOM);
    assert_true(text != NULL && packed != NULL);
    for (int i = 0; i < 2 * N; ++i) {
        text[i] = i % 100 == 99 ? '\n' : (char)('a' + i % 4096 * 7919 / 3 % 26);
    }
    text[2 * N] = '\0';
    for (int kind = 0; kind < 2; ++kind) {
        const char *name = kind == 0 ? "a.jsonl.gz" : "a.jsonl.zst";
        size_t n =
            kind == 0 ? gzip(text, N, packed, ROOM) : ZSTD_compress(packed, ROOM, text, N, 3);
        n += kind == 0 ? gzip(text + N, N, packed + n, ROOM - n)
                       : ZSTD_compress(packed + n, ROOM - n, text + N, N, 3);
        check_rows(name, packed, n, text, "");
        for (size_t cut = 1; cut < n; cut += n / 23) {
            char *error = NULL;
            const char *path = scratch_path(folder, name);
            scratch_write(path, packed, cut);
            char *rows = read_rows(path, &error);
            assert_true(strstr(error, ": it ends within its compressed data") == error ||
                        strstr(error, ": no good ") == error || strlen(rows) == N);
            free(rows);
            free(error);
        }
    }
    check("b.json.gz", "plain", "", ": no good gzip data at byte 2: damaged, or another kind");
    free(text);
    free(packed);
}

static int setup(void **state)
{
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    params.level = DS_LOG_ERROR;
    folder = scratch_make();
    return ds_ctx_create(&params, &ctx);
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parquet_has_pyarrows_rows),
                                       cmocka_unit_test(damaged_parquet_ends),
                                       cmocka_unit_test(hostile_parquet_is_refused),
                                       cmocka_unit_test(lines),
                                       cmocka_unit_test(lists),
                                       cmocka_unit_test(records),
                                       cmocka_unit_test(many_columns),
                                       cmocka_unit_test(pages_have_a_limit),
                                       cmocka_unit_test(compressed)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
