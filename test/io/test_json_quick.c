/* SPDX-License-Identifier: Apache-2.0 */
/* io/json_quick: what it reads is what jansson reads, and it reads nothing that jansson refuses. */
#include "common/check.h"
#include "io/json_quick.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t below(uint32_t n)
{
    static uint64_t at = 3;
    at = at * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(at >> 33) % n;
}

/* Returns whether the quick reader took it. */
static bool same(const char *text, size_t n)
{
    json_error_t error;
    char *copy = malloc(n > 0 ? n : 1); /* its end is found by sanitizers */
    assert_non_null(copy);
    memcpy(copy, text, n);
    json_t *mine = dsi_json_quick(copy, n);
    json_t *theirs = json_loadb(copy, n, JSON_ALLOW_NUL, &error);
    if (mine != NULL) {
        assert_non_null(theirs);
        char *a = json_dumps(mine, JSON_COMPACT);
        char *b = json_dumps(theirs, JSON_COMPACT);
        assert_string_equal(a, b); /* the order of keys, too */
        free(a);
        free(b);
    }
    const bool took = mine != NULL;
    json_decref(mine);
    json_decref(theirs);
    free(copy);
    return took;
}

static void common_texts_are_read(void **state)
{
    static const char *const texts[] = {"{}",
                                        "[]",
                                        " [1, -2 ,0]\r\n",
                                        "{\"a\":{\"b\":[true,false,null]},\"a\":\"x\"}",
                                        "[\"a\\n\\t\\\"\\\\\\/\\b\\f\\r\", \"\\u00e9\\u4e2d\", "
                                        "\"\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80\"]",
                                        "{\"k\\u00e9\\n\":\"v\\n\",\"\":\"\"}",
                                        "[123456789012345678]"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; ++i) {
        assert_true(same(texts[i], strlen(texts[i])));
    }
}

static void the_rest_is_left(void **state)
{
    static const char *const texts[] = {"",
                                        "1",
                                        "\"a\"",
                                        "[1.5]",
                                        "[1e3]",
                                        "[01]",
                                        "[-0]",
                                        "[1234567890123456789]",
                                        "[\"\\ud83d\\ude00\"]",
                                        "[\"\\u0000\"]",
                                        "[\"\\u00g0\"]",
                                        "[\"\xC0\x80\"]",
                                        "[\"\xED\xA0\x80\"]",
                                        "[\"\xF5\x80\x80\x80\"]",
                                        "[\"a\nb\"]",
                                        "[\"a",
                                        "[\"a\\",
                                        "{\"a\"}",
                                        "{\"a\":}",
                                        "[1,]",
                                        "[1 2]",
                                        "{} x",
                                        "[tru]",
                                        "[truex]",
                                        "{1:2}",
                                        "[\"\xE4\xB8\"]",
                                        "nul",
                                        "[-]",
                                        "["};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; ++i) {
        assert_false(same(texts[i], strlen(texts[i])));
    }
}

static size_t write_value(char *out, int depth)
{
    static const char *const pieces[] = {"a",
                                         "word ",
                                         "\\n",
                                         "\\\"",
                                         "\\u00e9",
                                         "\xC3\xA9",
                                         "\\ud83d\\ude00",
                                         "\\\\",
                                         "eight letters and more",
                                         "\x7f",
                                         "\\/"};
    size_t n = 0;
    const uint32_t kind = below(depth > 4 ? 6 : 8);
    if (kind < 3) {
        out[n++] = '"';
        for (uint32_t i = below(5); i > 0; --i) {
            n += (size_t)sprintf(out + n, "%s", pieces[below(sizeof pieces / sizeof pieces[0])]);
        }
        out[n++] = '"';
        return n;
    }
    if (kind < 6) {
        static const char *const words[] = {"true", "null", "false", "-1",
                                            "0",    "77",   "1.25",  "3E2"};
        return (size_t)sprintf(out, "%s", words[below(8)]);
    }
    out[n++] = kind == 6 ? '[' : '{';
    for (uint32_t i = 0, count = below(4); i < count; ++i) {
        n += (size_t)sprintf(out + n, kind == 6 ? "%s " : "%s \"k%u\\t\" :", i > 0 ? "," : "",
                             below(3));
        n += write_value(out + n, depth + 1);
    }
    out[n++] = kind == 6 ? ']' : '}';
    return n;
}

static void any_text_is_read_alike(void **state)
{
    static char text[1 << 16];
    int took = 0;
    (void)state;
    for (int round = 0; round < 20000; ++round) {
        size_t n = write_value(text, 0);
        for (uint32_t i = below(3); i > 0 && n > 0; --i) {
            const char any = (char)below(256);
            text[below((uint32_t)n)] = below(4) == 0 ? any : "\"\\{}[]:,u0 "[below(11)];
        }
        n -= below(8) == 0 && n > 0;
        took += same(text, n);
    }
    assert_in_range(took, 1000, 19000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(common_texts_are_read),
        cmocka_unit_test(the_rest_is_left),
        cmocka_unit_test(any_text_is_read_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
