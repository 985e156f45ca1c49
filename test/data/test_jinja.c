/* SPDX-License-Identifier: Apache-2.0 */
/* data/jinja: each construct renders as transformers renders it, and is an error where it is one
 * there (test/golden/data/jinja.json, made by make_jinja.py); what would not end is stopped; what
 * is not known is refused with its place. */
#include "common/check.h"

#include "data/jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char error[DSI_JINJA_ERROR];

static ds_status render(const char *text, const json_t *variables, dsi_jinja_result *result)
{
    dsi_jinja *template = NULL;
    ds_status status = dsi_jinja_parse(text, strlen(text), &template, error, sizeof error);
    if (status >= 0) {
        status = dsi_jinja_render(template, variables, result, error, sizeof error);
    }
    dsi_jinja_destroy(&template);
    return status;
}

/* Bytes before character n. */
static size_t bytes_before(const char *text, json_int_t n)
{
    size_t i = 0;
    for (; text[i] != '\0'; ++i) {
        if (((unsigned char)text[i] & 0xC0) != 0x80 && n-- == 0) {
            break;
        }
    }
    return i;
}

static void check_ranges(const dsi_jinja_result *got, const json_t *want, const char *where)
{
    if (got->n_generated != json_array_size(want)) {
        fail_msg("%s: %zu generation blocks", where, got->n_generated);
    }
    for (size_t i = 0; i < got->n_generated; ++i) {
        const json_t *range = json_array_get(want, i);
        const char *text = dsi_buf_text(&got->out);
        assert_int_equal(got->generated[i].begin,
                         bytes_before(text, json_integer_value(json_array_get(range, 0))));
        assert_int_equal(got->generated[i].end,
                         bytes_before(text, json_integer_value(json_array_get(range, 1))));
    }
}

static void equals_transformers(void **state)
{
    (void)state;
    json_error_t at;
    json_t *golden = json_load_file(DS_SOURCE_DIR "/test/golden/data/jinja.json", 0, &at);
    assert_non_null(golden);
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(golden, "cases"), i, one)
    {
        const char *text = json_string_value(json_object_get(one, "template"));
        const json_t *want = json_object_get(one, "want");
        dsi_jinja_result got = {0};
        const ds_status status = render(text, json_object_get(golden, "variables"), &got);
        if (json_is_null(want)) {
            if (status != DS_ERR_FORMAT) {
                fail_msg("%s: %d, not an error of the template: %s", text, (int)status, error);
            }
            continue;
        }
        if (status < 0) {
            fail_msg("%s: %s", text, error);
        }
        if (strcmp(dsi_buf_text(&got.out), json_string_value(want)) != 0) {
            fail_msg("%s\ngot  <%s>\nwant <%s>", text, dsi_buf_text(&got.out),
                     json_string_value(want));
        }
        check_ranges(&got, json_object_get(one, "generated"), text);
        dsi_jinja_result_free(&got);
    }
    assert_true(i > 150);
    json_decref(golden);
}

static void expect(const char *text, ds_status status, const char *says)
{
    json_t *variables = json_pack("{s:[{s:s}]}", "messages", "role", "user");
    dsi_jinja_result got = {0};
    const ds_status seen = render(text, variables, &got);
    if (seen != status || strstr(error, says) == NULL) {
        fail_msg("%s: %d, %s", text, (int)seen, seen < 0 ? error : dsi_buf_text(&got.out));
    }
    json_decref(variables);
}

static void the_unknown_is_refused_with_its_place(void **state)
{
    (void)state;
    expect("a\n{{ 'x'|wordwrap }}", DS_ERR_UNSUPPORTED,
           "line 2, column 8: the filter \"wordwrap\" is not supported");
    expect("{% include 'x' %}", DS_ERR_UNSUPPORTED, "line 1, column 4: the tag \"include\"");
    expect("{{ 'x'.encode() }}", DS_ERR_UNSUPPORTED, "str.encode() is not supported");
    expect("{{ ''.__class__ }}", DS_ERR_UNSUPPORTED, "Python's own");
    expect("{{ range }}", DS_ERR_UNSUPPORTED, "no text of its own");
    expect("{{ [1]|map('upper') }}", DS_ERR_UNSUPPORTED, "no text of its own");
    expect("{{ '\xC3\x9F'|upper }}", DS_ERR_UNSUPPORTED, "another case of U+00DF");
    expect("{{ 9223372036854775807 + 1 }}", DS_ERR_UNSUPPORTED, "beyond 64 bits");
    expect("{{ 9223372036854775808 }}", DS_ERR_UNSUPPORTED, "beyond 64 bits");
    expect("{{ self }}", DS_ERR_UNSUPPORTED, "line 1, column 4: \"self\" is known for its members");
    expect("{{ self.a }}{% set self = 1 %}", DS_ERR_UNSUPPORTED,
           "\"self\" is known for its members");
    expect("{{ self._a }}", DS_ERR_UNSUPPORTED, "\"self\" is known for its members");
    expect("{{ lipsum() }}", DS_ERR_UNSUPPORTED, "lipsum() is not supported");
    expect("\n\n  {{ messages[0].x.y }}", DS_ERR_FORMAT, "line 3, column 19: dict has no \"x\"");
    expect("{% if %}", DS_ERR_FORMAT, "line 1, column 7");
    expect("\xFF", DS_ERR_FORMAT, "not UTF-8");
}

static void the_endless_is_stopped(void **state)
{
    (void)state;
    char deep[4096] = "{{ ";
    expect("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", DS_ERR_LIMIT, "levels");
    expect("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
           DS_ERR_LIMIT, "");
    expect("{% set t = 'aaaaaaaa' * 100000 %}{% for a in range(100000) %}{% if t.count('b') %}"
           "{% endif %}{% endfor %}",
           DS_ERR_LIMIT, "steps");
    expect("{% set t = 'aaaaaaaa' * 100000 %}{% for a in range(9) %}{% if t.rfind(t[:400000] ~ "
           "'b') %}{% endif %}{% endfor %}",
           DS_ERR_LIMIT, "steps");
    expect("{% set t = 'aaaaaaaa' * 100000 %}{% for a in range(999) %}{% if t.rsplit(t[:400000] ~ "
           "'b') and t.rpartition(t[:400000] ~ 'b') %}{% endif %}{% endfor %}",
           DS_ERR_LIMIT, "steps");
    expect("{% set t = 'aaaaaaaa' * 100000 %}{% set u = 'b' * 800000 ~ 'a' %}{% for a in range(9) "
           "%}{% if t.strip(u) %}{% endif %}{% endfor %}",
           DS_ERR_LIMIT, "steps");
    expect("{% set t = 'aaaaaaaa' * 1000000 %}{% for a in range(100000) %}{% if t < t ~ 'a' or "
           "t.startswith(t) or t.isalpha() or t.count('a') %}{% endif %}{% endfor %}",
           DS_ERR_LIMIT, "");
    expect("{% set t = 'aaaaaaaa' * 8000000 %}{% set a %}{{ t }}{% set b %}{{ t }}{% set c %}"
           "{{ t }}{% set d %}{{ t }}{% set e %}{{ t }}{% endset %}{% endset %}{% endset %}"
           "{% endset %}{% endset %}",
           DS_ERR_LIMIT, "a text of more than");
    expect("{% set n = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}"
           "{% set n.s = n.s + n.s %}{% endfor %}",
           DS_ERR_LIMIT, "");
    expect("{{ 'a' * 1000000000 }}", DS_ERR_LIMIT, "memory");
    expect("{{ 2 ** 100000000000 }}", DS_ERR_UNSUPPORTED, "beyond 64 bits");
    expect("{{ range(10000000) }}", DS_ERR_FORMAT, "range()");
    expect("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", DS_ERR_LIMIT, "levels");
    for (size_t i = 3; i < 2000; ++i) {
        deep[i] = '(';
        deep[i + 1] = '\0';
    }
    expect(deep, DS_ERR_LIMIT, "brackets");
    for (size_t i = 3; i < 2000; ++i) {
        deep[i] = '-';
    }
    expect(deep, DS_ERR_LIMIT, "levels");
}

/* Ten thousand terms are a deep tree, but no error that ends the process. */
static void a_long_chain_is_no_crash(void **state)
{
    (void)state;
    static const char *const links[] = {" + 1", ".a",   "|string", " is string and x",
                                        "[0]",  " ~ 1", " if x"};
    for (size_t k = 0; k < sizeof links / sizeof links[0]; ++k) {
        dsi_buf text = dsi_buf_make(1 << 20);
        dsi_buf_puts(&text, "{{ 1");
        for (size_t i = 0; i < 10000; ++i) {
            dsi_buf_puts(&text, links[k]);
        }
        dsi_buf_puts(&text, " }}");
        json_t *variables = json_object();
        dsi_jinja_result got = {0};
        if (render(dsi_buf_text(&text), variables, &got) >= 0) {
            dsi_jinja_result_free(&got);
        }
        json_decref(variables);
        dsi_buf_free(&text);
    }
}

static json_t *result_of(const dsi_jinja *template, const json_t *variables)
{
    dsi_jinja_result got;
    const ds_status status = dsi_jinja_render(template, variables, &got, error, sizeof error);
    if (status < 0) {
        return json_pack("{s:i, s:s}", "status", (int)status, "error", error);
    }
    json_t *out = json_pack("{s:s%, s:b, s:[]}", "text", dsi_buf_text(&got.out), got.out.size,
                            "hidden", got.generated_hidden, "generated");
    for (size_t i = 0; i < got.n_generated; ++i) {
        (void)json_array_append_new(json_object_get(out, "generated"),
                                    json_pack("[I, I]", (json_int_t)got.generated[i].begin,
                                              (json_int_t)got.generated[i].end));
    }
    dsi_jinja_result_free(&got);
    return out;
}

static void render_line(const json_t *line)
{
    const json_t *text = json_object_get(line, "template");
    dsi_jinja *template = NULL;
    json_t *results = json_array();
    size_t i;
    const json_t *variables;
    const ds_status status = dsi_jinja_parse(json_string_value(text), json_string_length(text),
                                             &template, error, sizeof error);
    json_array_foreach(json_object_get(line, "variables"), i, variables)
    {
        (void)json_array_append_new(
            results, status < 0 ? json_pack("{s:i, s:s}", "status", (int)status, "error", error)
                                : result_of(template, variables));
    }
    char *out = json_dumps(results, JSON_COMPACT);
    (void)puts(out != NULL ? out : "[]");
    (void)fflush(stdout);
    free(out);
    json_decref(results);
    dsi_jinja_destroy(&template);
}

static int render_lines(void)
{
    char *text = NULL;
    size_t room = 0;
    ssize_t n;
    while ((n = getline(&text, &room, stdin)) > 0) {
        json_t *line = json_loadb(text, (size_t)n, JSON_ALLOW_NUL, NULL);
        render_line(line);
        json_decref(line);
    }
    free(text);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--lines") == 0) {
        return render_lines();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_transformers),
        cmocka_unit_test(the_unknown_is_refused_with_its_place),
        cmocka_unit_test(the_endless_is_stopped),
        cmocka_unit_test(a_long_chain_is_no_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
