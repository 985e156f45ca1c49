/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON and HJSON reader: against hjson-py (test/golden/config/read.jsonl), and places, ceilings
 * and duplicate keys of our own. */
#include "base/buf.h"
#include "common/check.h"
#include "config/config_read.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CEILING = 64 << 20 };

typedef struct reading {
    dsi_arena *arena;
    dsi_diags diags;
    dsi_node *root;
} reading;

static reading read_text(const char *text, size_t n)
{
    reading r = {.diags.name = "t"};
    assert_int_equal(dsi_arena_create(CEILING, &r.arena), DS_OK);
    r.diags.arena = r.arena;
    r.root = dsi_config_read(&r.diags, text, n);
    assert_false(r.diags.no_memory);
    return r;
}

static void drop(reading *r)
{
    dsi_arena_destroy(&r->arena);
}

/* Whether reading `text` gives `want` (JSON null: an error). */
static bool agrees(const char *text, size_t n, const json_t *want)
{
    reading r = read_text(text, n);
    const bool is_error = r.diags.n_errors > 0;
    bool same = is_error == json_is_null(want);
    if (same && !is_error) {
        dsi_buf buf = dsi_buf_make(CEILING);
        dsi_node_json(&buf, r.root);
        json_t *got = json_loads(dsi_buf_text(&buf), JSON_DECODE_ANY, NULL);
        same = got != NULL && json_equal(got, want);
        if (!same) {
            print_message("got  %s\n", dsi_buf_text(&buf));
        }
        json_decref(got);
        dsi_buf_free(&buf);
    } else if (!same) {
        print_message("%s\n", is_error ? r.diags.errors[0].text : "expected an error");
    }
    drop(&r);
    return same;
}

static void reads_as_hjson(void **state)
{
    (void)state;
    FILE *file = fopen(DS_SOURCE_DIR "/test/golden/config/read.jsonl", "rb");
    assert_non_null(file);
    char line[16384];
    size_t n_cases = 0;
    size_t n_wrong = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        json_t *entry = json_loads(line, 0, NULL);
        assert_non_null(entry);
        const json_t *text = json_object_get(entry, "text");
        const json_t *want = json_object_get(entry, "value");
        ++n_cases;
        if (!agrees(json_string_value(text), json_string_length(text), want)) {
            char *dump = json_dumps(entry, JSON_ENCODE_ANY);
            print_message("case %zu: %s\n", n_cases, dump);
            free(dump);
            ++n_wrong;
        }
        json_decref(entry);
    }
    (void)fclose(file);
    assert_true(n_cases > 500);
    assert_int_equal(n_wrong, 0);
}

static void says_where(void **state)
{
    (void)state;
    const struct {
        const char *text;
        const char *error;
    } cases[] = {
        {"{\n  \"a\": [1, 2\n}", "t:3:1: expected a value, found '}'"},
        {"{a: {b: Adam}\n}",
         "t:2:2: expected '}' to close the object (the string without quotes on "
         "line 1 goes to the end of its line, brackets too; quote it), found "
         "the end of the file"},
        {"{\"a\": \"x", "t:1:9: expected a closing quote, found the end of the file"},
        {"{\"a\": 1} 2", "t:1:10: expected nothing after the closing '}', found '2'"},
        {"[1]", "t:1:1: expected an object of keys and values, found '['"},
        {"{\"a\": \"\\q\"}", "t:1:9: expected one of \" ' \\ / b f n r t u after a backslash"},
        {"{\"a\": 1,\n \"b\": {\"c\": 2, \"c\": 3}}",
         "t:2:16: the key \"c\" is already given on line 2; remove one of the two"},
        {"{\"a\" 1}", "t:1:6: expected ':' after a key, found '1'"},
        {"{/* x", "t:1:6: expected */ to close the comment"},
        {"{a: 1e999}", "expected a number that a double can hold"},
        {"{\"a\": \"\\ud800\"}", "half a pair"},
        {"{\"a\": \"\\u0000\"}", "other than zero"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        reading r = read_text(cases[i].text, strlen(cases[i].text));
        assert_int_equal(r.diags.n_errors, 1);
        if (strstr(r.diags.errors[0].text, cases[i].error) == NULL) {
            fail_msg("want %s\ngot  %s", cases[i].error, r.diags.errors[0].text);
        }
        drop(&r);
    }
}

static void keeps_places(void **state)
{
    (void)state;
    const char *text = "{\n  \"a\": 1, # c\n  b:\n    [true, 'x']\n}";
    reading r = read_text(text, strlen(text));
    assert_non_null(r.root);
    const dsi_node *a = dsi_node_find(r.root, "a");
    const dsi_node *b = dsi_node_find(r.root, "b");
    assert_int_equal(a->key_line, 2);
    assert_int_equal(a->key_column, 3);
    assert_int_equal(a->column, 8);
    assert_int_equal(b->key_line, 3);
    assert_int_equal(b->line, 4);
    assert_int_equal(b->column, 5);
    assert_int_equal(b->last->column, 12);
    drop(&r);
}

/* n times `unit`, read. */
static size_t errors_of_many(const char *head, const char *unit, size_t n, const char *text)
{
    dsi_buf buf = dsi_buf_make(CEILING);
    dsi_buf_puts(&buf, head);
    for (size_t i = 0; i < n; ++i) {
        dsi_buf_printf(&buf, unit, i);
    }
    reading r = read_text(dsi_buf_text(&buf), buf.size);
    const size_t n_errors = r.diags.n_errors;
    assert_true(n_errors == 0 || strstr(r.diags.errors[0].text, text) != NULL);
    drop(&r);
    dsi_buf_free(&buf);
    return n_errors;
}

static void has_ceilings(void **state)
{
    (void)state;
    assert_int_equal(errors_of_many("", "{a:", 70, "at most 64 levels"), 1);
    assert_int_equal(errors_of_many("", "k%zu: 1\n", 2001, "at most 2000 keys"), 1);
    assert_int_equal(errors_of_many("", "k%zu: 1\n", 2000, ""), 0);
    assert_int_equal(errors_of_many("a: [", "1,", 100001, "at most 100000 values"), 1);
    assert_int_equal(errors_of_many("a: x", ",", 5 << 20, "at most 4 MiB"), 1);
    /* linear in the line, whatever its delimiters */
    assert_int_equal(errors_of_many("a: 1", "1", 1 << 20, ""), 0);
    assert_int_equal(errors_of_many("a: x", ",", 3 << 20, ""), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_as_hjson),
        cmocka_unit_test(says_where),
        cmocka_unit_test(keeps_places),
        cmocka_unit_test(has_ceilings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
