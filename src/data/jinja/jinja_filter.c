/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of one value: texts, numbers, JSON. Those of sequences are in jinja_filter_seq.c. See
 * jinja_run.h. */
#include "data/jinja/jinja_strings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool given(dsi_jv v)
{
    return v.kind != DSI_JV_MISSING;
}

static dsi_jv f_upper(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    (void)a;
    return dsi_ji_recased(j, dsi_ji_str(j, v), DSI_JI_UPPER);
}

static dsi_jv f_lower(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    (void)a;
    return dsi_ji_recased(j, dsi_ji_str(j, v), DSI_JI_LOWER);
}

static dsi_jv f_capitalize(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    (void)a;
    return dsi_ji_capitalize(j, dsi_ji_str(j, v));
}

/* A word begins behind white space, "-" or an opening bracket. */
static dsi_jv f_title(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const dsi_jv s = dsi_ji_str(j, v);
    dsi_buf out = dsi_buf_make(1 << 28);
    bool begins = true;
    const char *end = s.text + s.n;
    (void)a;
    for (const char *p = s.text; p < end && dsi_ji_step(j, 1);) {
        uint32_t cp;
        uint32_t other;
        char utf8[4];
        p += dsi_utf8_decode((const unsigned char *)p, (const unsigned char *)end, &cp);
        if (cp == DSI_UTF8_BAD ||
            !dsi_ji_recase(cp, begins ? DSI_JI_UPPER : DSI_JI_LOWER, &other)) {
            (void)dsi_ji_refuse(j, "another case of U+%04X", cp);
            break;
        }
        dsi_buf_append(&out, utf8, dsi_utf8_encode(other, utf8));
        begins = dsi_ji_is_space(cp) || (cp < 0x80 && cp != 0 && strchr("-({[<", (int)cp) != NULL);
    }
    return dsi_ji_buffer(j, &out);
}

static dsi_jv f_trim(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    return dsi_ji_strip(j, dsi_ji_str(j, v), a[0], DSI_JI_BOTH);
}

static dsi_jv f_string(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    (void)a;
    return v.kind == DSI_JV_STR ? v : dsi_ji_str(j, v);
}

static dsi_jv f_replace(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    if (!given(a[0]) || !given(a[1])) {
        return dsi_ji_wrong(j, "replace needs what to replace, and by what");
    }
    if (given(a[2]) && a[2].kind != DSI_JV_NONE && !dsi_jv_is_int(a[2])) {
        return dsi_ji_wrong(j, "replace: a count is a whole number");
    }
    const int64_t count = dsi_jv_is_int(a[2]) ? dsi_jv_int_of(a[2]) : -1;
    return dsi_ji_replace(j, dsi_ji_str(j, v), dsi_ji_str(j, a[0]), dsi_ji_str(j, a[1]), count);
}

static dsi_jv f_center(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    if (given(a[0]) && !dsi_jv_is_int(a[0])) {
        return dsi_ji_wrong(j, "center: a width is a whole number");
    }
    return dsi_ji_center(j, dsi_ji_str(j, v), given(a[0]) ? dsi_jv_int_of(a[0]) : 80, ' ');
}

static dsi_jv f_indent(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    dsi_buf out = dsi_buf_make(1 << 28);
    char blanks[65] = "";
    dsi_jv by = given(a[0]) ? a[0] : dsi_jv_int(4);
    const bool first = given(a[1]) && dsi_ji_truth(j, a[1]);
    const bool blank = given(a[2]) && dsi_ji_truth(j, a[2]);
    if (v.kind != DSI_JV_STR) {
        return v.kind == DSI_JV_UNDEFINED ? dsi_ji_use_undefined(j, v)
                                          : dsi_ji_wrong(j, "indent of %s", dsi_ji_type(v));
    }
    if (dsi_jv_is_int(by)) {
        const int64_t n = dsi_jv_int_of(by);
        if (n >= (int64_t)sizeof blanks) {
            return dsi_ji_refuse(j, "an indent of more than %zu blanks", sizeof blanks - 1);
        }
        (void)snprintf(blanks, sizeof blanks, "%*s", n > 0 ? (int)n : 0, "");
        by = dsi_ji_literal(blanks);
    } else if (by.kind != DSI_JV_STR || by.safe) {
        return dsi_ji_wrong(j, "indent by %s", dsi_ji_type(by));
    }
    const dsi_jv lines =
        dsi_ji_splitlines(j, dsi_ji_binary(j, "+", v, dsi_ji_literal("\n")), false);
    for (size_t i = 0; !j->failed && i < lines.list->n; ++i) {
        const dsi_jv line = lines.list->at[i];
        dsi_buf_puts(&out, i > 0 ? "\n" : "");
        if (i == 0 ? first : blank || line.n > 0) {
            dsi_buf_append(&out, by.text, by.n);
        }
        dsi_buf_append(&out, line.text, line.n);
    }
    return dsi_ji_buffer(j, &out);
}

/* ---- numbers ---- */

static dsi_jv f_abs(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    (void)a;
    if (!dsi_jv_is_number(v)) {
        return v.kind == DSI_JV_UNDEFINED ? dsi_ji_wrong(j, "abs of an undefined value")
                                          : dsi_ji_wrong(j, "abs of %s", dsi_ji_type(v));
    }
    if (v.kind == DSI_JV_FLOAT) {
        return dsi_jv_float(fabs(v.f));
    }
    const int64_t i = dsi_jv_int_of(v);
    return i < 0 ? dsi_ji_binary(j, "-", dsi_jv_int(0), v) : dsi_jv_int(i);
}

/* The text without white space and "_" between digits, as Python's int() and float() read it; false
 * when it cannot be a number. */
static bool clean_number(dsi_ji *j, dsi_jv s, char *out, size_t room)
{
    const dsi_jv bare = dsi_ji_strip(j, s, dsi_jv_none(), DSI_JI_BOTH);
    size_t n = 0;
    for (uint32_t i = 0; i < bare.n; ++i) {
        const char c = bare.text[i];
        if ((unsigned char)c >= 0x80) {
            (void)dsi_ji_refuse(j, "a number with characters beyond ASCII");
            return false;
        }
        if (c == '_') {
            const bool between = i > 0 && i + 1 < bare.n && bare.text[i - 1] >= '0' &&
                                 bare.text[i - 1] <= '9' && bare.text[i + 1] >= '0' &&
                                 bare.text[i + 1] <= '9';
            if (!between) {
                return false;
            }
            continue;
        }
        if (n + 1 >= room || c == '\0') {
            (void)dsi_ji_refuse(j, "a number of so many characters");
            return false;
        }
        out[n++] = c;
    }
    out[n] = '\0';
    return n > 0;
}

static bool parse_int(dsi_ji *j, const char *text, int64_t *out)
{
    const char *p = text + (*text == '-' || *text == '+');
    uint64_t value = 0;
    if (*p == '\0') {
        return false;
    }
    for (; *p != '\0'; ++p) {
        if (*p < '0' || *p > '9') {
            return false;
        }
        if (value > (uint64_t)(INT64_MAX - 9) / 10) {
            (void)dsi_ji_refuse(j, "a whole number beyond 64 bits");
            return false;
        }
        value = value * 10 + (uint64_t)(*p - '0');
    }
    *out = *text == '-' ? -(int64_t)value : (int64_t)value;
    return true;
}

/* Python's float() of a text; strtod's own forms of hexadecimal are none. */
static bool parse_float(const char *text, double *out)
{
    char *end;
    if (strpbrk(text, "xXpP(") != NULL) {
        return false;
    }
    *out = strtod(text, &end);
    return end != text && *end == '\0';
}

static dsi_jv int_of_float(dsi_ji *j, double f, dsi_jv standard)
{
    if (isnan(f)) {
        return standard;
    }
    if (isinf(f)) {
        return dsi_ji_refuse(j, "int of a number without bounds");
    }
    return fabs(f) < 9.2e18 ? dsi_jv_int((int64_t)f)
                            : dsi_ji_refuse(j, "a whole number beyond 64 bits");
}

static dsi_jv f_int(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    char text[400];
    double real;
    int64_t whole;
    const dsi_jv standard = given(a[0]) ? a[0] : dsi_jv_int(0);
    if (given(a[1]) && !(dsi_jv_is_int(a[1]) && dsi_jv_int_of(a[1]) == 10)) {
        return dsi_ji_refuse(j, "int with a base");
    }
    if (v.kind == DSI_JV_UNDEFINED) {
        return dsi_ji_use_undefined(j, v);
    }
    if (v.kind == DSI_JV_FLOAT) {
        return int_of_float(j, v.f, standard);
    }
    if (v.kind != DSI_JV_STR) {
        return dsi_jv_is_int(v) ? dsi_jv_int(dsi_jv_int_of(v)) : standard;
    }
    if (!clean_number(j, v, text, sizeof text)) {
        return standard;
    }
    if (parse_int(j, text, &whole)) {
        return dsi_jv_int(whole);
    }
    if (!parse_float(text, &real) || isinf(real)) {
        return standard;
    }
    return int_of_float(j, real, standard);
}

static dsi_jv f_float(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    char text[400];
    double real;
    const dsi_jv standard = given(a[0]) ? a[0] : dsi_jv_float(0.0);
    if (v.kind == DSI_JV_UNDEFINED) {
        return dsi_ji_use_undefined(j, v);
    }
    if (dsi_jv_is_number(v)) {
        return dsi_jv_float(dsi_jv_float_of(v));
    }
    if (v.kind == DSI_JV_STR && clean_number(j, v, text, sizeof text) && parse_float(text, &real)) {
        return dsi_jv_float(real);
    }
    return standard;
}

/* To the nearest, ties to even, of the exact value: printf's rule is Python's. */
static dsi_jv round_common(dsi_ji *j, dsi_jv v, int64_t places)
{
    char text[400];
    if (dsi_jv_is_int(v)) {
        return places >= 0
                   ? dsi_jv_int(dsi_jv_int_of(v))
                   : dsi_ji_refuse(j, "round of a whole number to %lld places", (long long)places);
    }
    if (places < 0 || places > 300 || !(fabs(v.f) < 1e60)) {
        return dsi_ji_refuse(j, "round to %lld places", (long long)places);
    }
    if (places > 30) {
        return v;
    }
    (void)snprintf(text, sizeof text, "%.*f", (int)places, v.f);
    return dsi_jv_float(strtod(text, NULL));
}

static dsi_jv f_round(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const int64_t places = given(a[0]) ? dsi_jv_int_of(a[0]) : 0;
    const bool common = !given(a[1]) || dsi_ji_is(a[1], "common");
    const bool up = given(a[1]) && dsi_ji_is(a[1], "ceil");
    if (!common && !up && !dsi_ji_is(a[1], "floor")) {
        return dsi_ji_wrong(j, "round: the method is common, ceil or floor");
    }
    if ((given(a[0]) && !dsi_jv_is_int(a[0])) || !dsi_jv_is_number(v)) {
        return a[0].kind == DSI_JV_NONE || v.kind == DSI_JV_UNDEFINED
                   ? dsi_ji_refuse(j, "round of %s", dsi_ji_type(v))
                   : dsi_ji_wrong(j, "round of %s", dsi_ji_type(v));
    }
    if (common) {
        return round_common(j, v, places);
    }
    if (places < 0 || places > 15) {
        return dsi_ji_refuse(j, "round to %lld places", (long long)places);
    }
    double scale = 1.0;
    for (int64_t i = 0; i < places; ++i) {
        scale *= 10.0;
    }
    const double scaled = dsi_jv_float_of(v) * scale;
    if (!(fabs(scaled) < 9007199254740992.0)) {
        return dsi_ji_refuse(j, "round of such a number");
    }
    return dsi_jv_float((up ? ceil(scaled) : floor(scaled)) / scale + 0.0);
}

/* ---- others ---- */

static dsi_jv f_length(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    (void)a;
    const int64_t n = dsi_ji_length(j, v);
    return n < 0 && !j->failed ? dsi_ji_wrong(j, "%s has no length", dsi_ji_type(v))
                               : dsi_jv_int(n);
}

static dsi_jv f_default(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const bool also_false = given(a[1]) && dsi_ji_truth(j, a[1]);
    if (v.kind == DSI_JV_UNDEFINED || (also_false && !dsi_ji_truth(j, v))) {
        return given(a[0]) ? a[0] : dsi_ji_literal("");
    }
    return v;
}

static dsi_jv f_safe(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    (void)a;
    dsi_jv s = dsi_ji_str(j, v);
    s.safe = true;
    return s;
}

static dsi_jv f_escape(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    static const char from[] = "&<>'\"";
    static const char *const into[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    (void)a;
    if (v.kind == DSI_JV_STR && v.safe) {
        return v;
    }
    const dsi_jv s = dsi_ji_str(j, v);
    dsi_buf out = dsi_buf_make(1 << 28);
    for (uint32_t i = 0; i < s.n; ++i) {
        const char *at = s.text[i] != '\0' ? strchr(from, s.text[i]) : NULL;
        if (at != NULL) {
            dsi_buf_puts(&out, into[at - from]);
        } else {
            dsi_buf_putc(&out, s.text[i]);
        }
    }
    dsi_jv escaped = dsi_ji_buffer(j, &out);
    escaped.safe = true;
    return escaped;
}

/* The indent of json.dumps(): a number of blanks, or a text. */
static bool indent_of(dsi_ji *j, dsi_jv v, char *blanks, size_t room, const char **out)
{
    if (!given(v) || v.kind == DSI_JV_NONE) {
        *out = NULL;
        return true;
    }
    if (v.kind == DSI_JV_STR) {
        *out = dsi_ji_string(j, v.text, v.n).text;
        if (memchr(v.text, '\0', v.n) != NULL) {
            (void)dsi_ji_refuse(j, "an indent with a zero byte");
        }
        return !j->failed;
    }
    if (!dsi_jv_is_int(v) || dsi_jv_int_of(v) >= (int64_t)room) {
        (void)(dsi_jv_is_int(v) ? dsi_ji_refuse(j, "an indent of so many blanks")
                                : dsi_ji_wrong(j, "an indent of %s", dsi_ji_type(v)));
        return false;
    }
    const int64_t n = dsi_jv_int_of(v);
    (void)snprintf(blanks, room, "%*s", n > 0 ? (int)n : 0, "");
    *out = blanks;
    return true;
}

static const char *separator(dsi_ji *j, dsi_jv v)
{
    if (v.kind != DSI_JV_STR || memchr(v.text, '\0', v.n) != NULL) {
        (void)dsi_ji_refuse(j, "separators that are no texts");
        return "";
    }
    return dsi_ji_string(j, v.text, v.n).text;
}

static dsi_jv f_tojson(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    char blanks[64];
    dsi_ji_json how = {.ascii = given(a[0]) && dsi_ji_truth(j, a[0]),
                       .sorted = given(a[3]) && dsi_ji_truth(j, a[3]),
                       .colon = ": "};
    if (!indent_of(j, a[1], blanks, sizeof blanks, &how.indent)) {
        return dsi_jv_none();
    }
    how.between = how.indent != NULL ? "," : ", ";
    if (given(a[2]) && a[2].kind != DSI_JV_NONE) {
        const dsi_jv *at;
        size_t n;
        if (!dsi_ji_items(j, a[2], &at, &n)) {
            return dsi_jv_none();
        }
        if (n != 2) {
            return dsi_ji_wrong(j, "tojson: separators are two texts");
        }
        how.between = separator(j, at[0]);
        how.colon = separator(j, at[1]);
    }
    dsi_buf out = dsi_buf_make(1 << 28);
    if (!j->failed) {
        dsi_ji_put_json(j, &out, v, &how);
    }
    return dsi_ji_buffer(j, &out);
}

static dsi_jv f_format(dsi_ji *j, dsi_jv v, const dsi_ji_args *args)
{
    dsi_jv values = dsi_ji_list(j, args->at, args->n, DSI_JV_TUPLE);
    if (args->n > 0 && args->n_names > 0) {
        return dsi_ji_wrong(j, "format takes values with names or without");
    }
    if (args->n_names > 0) {
        values = dsi_ji_dict(j);
        for (size_t i = 0; i < args->n_names && !j->failed; ++i) {
            dsi_ji_dict_set(j, values.dict, dsi_ji_literal(args->names[i]), args->values[i]);
        }
    }
    return j->failed ? dsi_jv_none() : dsi_ji_format_percent(j, dsi_ji_str(j, v), values);
}

/* ---- the table ---- */

/* clang-format off */
static const dsi_ji_filter_row rows[] = {
    {"abs", "", f_abs, NULL}, {"capitalize", "", f_capitalize, NULL},
    {"center", "width", f_center, NULL}, {"count", "", f_length, NULL},
    {"d", "default_value boolean", f_default, NULL},
    {"default", "default_value boolean", f_default, NULL}, {"e", "", f_escape, NULL},
    {"escape", "", f_escape, NULL}, {"float", "default", f_float, NULL},
    {"format", NULL, NULL, f_format}, {"indent", "width first blank", f_indent, NULL},
    {"int", "default base", f_int, NULL}, {"length", "", f_length, NULL},
    {"lower", "", f_lower, NULL}, {"replace", "old new count", f_replace, NULL},
    {"round", "precision method", f_round, NULL}, {"safe", "", f_safe, NULL},
    {"string", "", f_string, NULL}, {"title", "", f_title, NULL},
    {"tojson", "ensure_ascii indent separators sort_keys", f_tojson, NULL},
    {"trim", "chars", f_trim, NULL}, {"upper", "", f_upper, NULL},
    {"attr", "", NULL, NULL}, {"filesizeformat", "", NULL, NULL}, {"forceescape", "", NULL, NULL},
    {"pprint", "", NULL, NULL}, {"random", "", NULL, NULL}, {"striptags", "", NULL, NULL},
    {"truncate", "", NULL, NULL}, {"urlencode", "", NULL, NULL}, {"urlize", "", NULL, NULL},
    {"wordcount", "", NULL, NULL}, {"wordwrap", "", NULL, NULL}, {"xmlattr", "", NULL, NULL},
};
/* clang-format on */

static const dsi_ji_filter_row *row_in(const dsi_ji_filter_row *table, size_t n, const char *name)
{
    for (size_t i = 0; i < n; ++i) {
        if (strcmp(table[i].name, name) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

static const dsi_ji_filter_row *row_of(const char *name)
{
    size_t n;
    const dsi_ji_filter_row *row = row_in(rows, sizeof rows / sizeof rows[0], name);
    const dsi_ji_filter_row *others = dsi_ji_seq_filters(&n);
    return row != NULL ? row : row_in(others, n, name);
}

bool dsi_ji_filter_exists(const char *name)
{
    return row_of(name) != NULL;
}

/* Filters that leave a text marked as safe what it is, or do not look at it. */
static bool takes_safe(const char *name)
{
    static const char *const names[] = {"safe", "string", "length", "count", "default",
                                        "d",    "e",      "escape", "tojson"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

dsi_jv dsi_ji_filter(dsi_ji *j, const char *name, dsi_jv value, const dsi_ji_args *args)
{
    const dsi_ji_filter_row *row = row_of(name);
    dsi_jv a[DSI_JI_ARGS];
    if (row == NULL) {
        return dsi_ji_wrong(j, "no filter is named \"%.60s\"", name);
    }
    if (row->run == NULL && row->raw == NULL) {
        return dsi_ji_refuse(j, "the filter \"%s\" is not supported", name);
    }
    if (value.kind == DSI_JV_STR && value.safe && !takes_safe(name)) {
        return dsi_ji_refuse(j, "the filter \"%s\" of a text that is marked safe", name);
    }
    if (!dsi_ji_step(j, 1) || ++j->depth > DSI_JI_RUN_DEPTH_MAX) {
        return dsi_ji_fail(j, DS_ERR_LIMIT, "more than %d levels", DSI_JI_RUN_DEPTH_MAX);
    }
    dsi_jv v = dsi_jv_none();
    if (row->raw != NULL) {
        v = row->raw(j, value, args);
    } else if (dsi_ji_bind(j, args, name, row->parameters, a)) {
        v = row->run(j, value, a);
    }
    --j->depth;
    return v;
}
