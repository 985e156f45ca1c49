/* SPDX-License-Identifier: Apache-2.0 */
/* A schema's parts: keywords, references, alternatives, types. See form_schema.h. */
#include "guide/form_schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARTS = 4096, MOST_SPACE = 20, MOST_DEPTH = 256 };

uint32_t dsi_form_schema_fail(dsi_form_schema *s, const dsi_place *place, const char *keyword,
                              const char *message)
{
    const dsi_place *path[12];
    char text[200] = "";
    size_t n = 0;
    size_t size = 0;
    for (; place != NULL && n < sizeof path / sizeof path[0]; place = place->parent) {
        path[n++] = place;
    }
    while (n > 0 && size < sizeof text - 1) {
        const int more = snprintf(text + size, sizeof text - size, "/%.30s", path[--n]->key);
        size += more > 0 ? (size_t)more : 0;
    }
    return keyword != NULL
               ? dsi_grammar_fail(s->g, "JSON schema, #%s: %.60s: %s", text, keyword, message)
               : dsi_grammar_fail(s->g, "JSON schema, #%s: %s", text, message);
}

/* ---- keywords ---- */
typedef enum keyword_kind { WORDS, ANY_TYPE, STRING, NUMBER, OBJECT, ARRAY } keyword_kind;

static const struct {
    const char *name;
    keyword_kind kind;
} keywords[] = {
    {"title", WORDS},
    {"description", WORDS},
    {"default", WORDS},
    {"examples", WORDS},
    {"$schema", WORDS},
    {"$id", WORDS},
    {"$comment", WORDS},
    {"readOnly", WORDS},
    {"writeOnly", WORDS},
    {"deprecated", WORDS},
    {"$defs", WORDS},
    {"definitions", WORDS},
    {"type", ANY_TYPE},
    {"enum", ANY_TYPE},
    {"const", ANY_TYPE},
    {"anyOf", ANY_TYPE},
    {"oneOf", ANY_TYPE},
    {"allOf", ANY_TYPE},
    {"$ref", ANY_TYPE},
    {"minLength", STRING},
    {"maxLength", STRING},
    {"pattern", STRING},
    {"format", STRING},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"exclusiveMinimum", NUMBER},
    {"exclusiveMaximum", NUMBER},
    {"properties", OBJECT},
    {"required", OBJECT},
    {"additionalProperties", OBJECT},
    {"items", ARRAY},
    {"prefixItems", ARRAY},
    {"minItems", ARRAY},
    {"maxItems", ARRAY},
};

/* -1: not known. */
static int kind_of(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; ++i) {
        if (strcmp(keywords[i].name, name) == 0) {
            return (int)keywords[i].kind;
        }
    }
    return -1;
}

/* Keywords that are not known, but say nothing with this value. */
static bool says_nothing(const char *name, const json_t *value)
{
    return (strcmp(name, "uniqueItems") == 0 && json_is_false(value)) ||
           (strcmp(name, "multipleOf") == 0 && json_is_integer(value) &&
            json_integer_value(value) == 1) ||
           (strcmp(name, "minProperties") == 0 && json_is_integer(value) &&
            json_integer_value(value) == 0) ||
           ((strcmp(name, "unevaluatedProperties") == 0 || strcmp(name, "unevaluatedItems") == 0) &&
            json_is_true(value));
}

static bool check_keywords(dsi_form_schema *s, json_t *node, const dsi_place *place)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(node, key, value)
    {
        const bool whole = strcmp(key, "multipleOf") == 0 &&
                           strcmp(json_is_string(json_object_get(node, "type"))
                                      ? json_string_value(json_object_get(node, "type"))
                                      : "",
                                  "integer") != 0;
        if (kind_of(key) < 0 && (whole || !says_nothing(key, value))) {
            (void)dsi_form_schema_fail(s, place, key, "this keyword is not supported");
            return false;
        }
    }
    return true;
}

/* Whether a keyword stands there that says something, but for those of `but` (a list, NULL at its
 * end); its name is in the failure. */
static bool alone(dsi_form_schema *s, json_t *node, const char *what, const char *const *but,
                  const dsi_place *place)
{
    const char *key = NULL;
    json_t *value = NULL;
    char message[160];
    json_object_foreach(node, key, value)
    {
        bool is_known = kind_of(key) == WORDS || kind_of(key) < 0 || strcmp(key, what) == 0;
        for (size_t i = 0; but[i] != NULL; ++i) {
            is_known = is_known || strcmp(key, but[i]) == 0;
        }
        if (!is_known) {
            (void)snprintf(message, sizeof message, "not supported beside %.20s", what);
            (void)dsi_form_schema_fail(s, place, key, message);
            return false;
        }
    }
    return true;
}

int64_t dsi_form_schema_count(dsi_form_schema *s, json_t *node, const char *keyword,
                              int64_t otherwise, const dsi_place *place)
{
    json_t *v = json_object_get(node, keyword);
    const double x = json_is_number(v) ? json_number_value(v) : -1.0;
    if (v == NULL) {
        return otherwise;
    }
    if (!(x >= 0.0 && x <= 100000.0) || x != floor(x)) {
        (void)dsi_form_schema_fail(s, place, keyword, "expected a whole number of 0 to 100000");
        return 0;
    }
    return (int64_t)x;
}

/* ---- rules that all share ---- */
enum { HAS_SPACE, HAS_VALUE };

uint32_t dsi_form_schema_space(dsi_form_schema *s, uint32_t at)
{
    if (!s->has[HAS_SPACE]) {
        s->has[HAS_SPACE] = true;
        s->space = dsi_grammar_rule(s->g);
        uint32_t here = s->g->failed ? 0 : s->g->rules[s->space];
        dsi_grammar_end(s->g, here);
        for (int i = 0; i < MOST_SPACE; ++i) {
            const uint32_t next = dsi_grammar_state(s->g);
            dsi_grammar_byte(s->g, here, next, ' ', ' ');
            dsi_grammar_byte(s->g, here, next, '\t', '\n');
            dsi_grammar_byte(s->g, here, next, '\r', '\r');
            dsi_grammar_end(s->g, next);
            here = next;
        }
    }
    return dsi_grammar_call(s->g, at, s->space);
}

static void put_any(dsi_form_schema *s, uint32_t at)
{
    static const char *const words[] = {"true", "false", "null"};
    json_t *empty = json_object();
    const dsi_place place = {NULL, "any value"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) {
        dsi_grammar_end(s->g, dsi_grammar_text(s->g, at, words[i], strlen(words[i])));
    }
    dsi_grammar_end(s->g, dsi_form_schema_string(s, at, empty, &place));
    dsi_grammar_end(s->g, dsi_form_schema_number(s, at, empty, false, &place));
    dsi_grammar_end(s->g, dsi_form_schema_object(s, at, empty, &place));
    dsi_grammar_end(s->g, dsi_form_schema_array(s, at, empty, &place));
    json_decref(empty);
}

static uint32_t put_value_of_any(dsi_form_schema *s, uint32_t at)
{
    if (!s->has[HAS_VALUE]) {
        s->has[HAS_VALUE] = true;
        s->value = dsi_grammar_rule(s->g);
        put_any(s, s->g->failed ? 0 : s->g->rules[s->value]);
    }
    return dsi_grammar_call(s->g, at, s->value);
}

uint32_t dsi_form_schema_literal(dsi_form_schema *s, uint32_t at, json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_t *again = text != NULL ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    if (again == NULL || !json_equal(again, value)) { /* a number of more digits */
        free(text);
        text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));
    }
    json_decref(again);
    at = text != NULL ? dsi_grammar_text(s->g, at, text, strlen(text))
                      : dsi_grammar_fail(s->g, "no memory for a value of the JSON schema");
    free(text);
    return at;
}

/* ---- references ---- */
/* The next part of a JSON pointer (RFC 6901), which *at passes. */
static void next_part(const char **at, char *part, size_t room)
{
    size_t n = 0;
    for (; **at != '\0' && **at != '/'; ++*at) {
        char c = **at;
        if (c == '~' && ((*at)[1] == '0' || (*at)[1] == '1')) {
            c = *++*at == '0' ? '~' : '/';
        }
        if (n + 1 < room) {
            part[n++] = c;
        }
    }
    part[n] = '\0';
}

static json_t *point(json_t *node, const char *pointer)
{
    char part[256];
    while (node != NULL && *pointer == '/') {
        ++pointer;
        next_part(&pointer, part, sizeof part);
        node = json_is_array(node) ? json_array_get(node, strtoul(part, NULL, 10))
                                   : json_object_get(node, part);
    }
    return *pointer == '\0' ? node : NULL;
}

json_t *dsi_form_schema_refer(dsi_form_schema *s, json_t *node, const dsi_place *place)
{
    static const char *const none[] = {NULL};
    for (int i = 0; i < 64 && json_object_get(node, "$ref") != NULL; ++i) {
        const char *name = json_string_value(json_object_get(node, "$ref"));
        json_t *to = name != NULL && name[0] == '#' ? point(s->top, name + 1) : NULL;
        if (!json_is_object(to) && !json_is_boolean(to)) {
            (void)dsi_form_schema_fail(s, place, "$ref",
                                       "expected a part of this schema, as #/$defs/NAME");
            return NULL;
        }
        if (!alone(s, node, "$ref", none, place)) {
            return NULL;
        }
        node = to;
    }
    if (json_object_get(node, "$ref") != NULL) {
        (void)dsi_form_schema_fail(s, place, "$ref", "it refers to itself");
        return NULL;
    }
    return node;
}

/* ---- parts ---- */
static bool of_type(const json_t *value, const char *type)
{
    const double x = json_number_value(value);
    return strcmp(type, "string") == 0    ? json_is_string(value)
           : strcmp(type, "number") == 0  ? json_is_number(value)
           : strcmp(type, "integer") == 0 ? json_is_number(value) && x == floor(x)
           : strcmp(type, "object") == 0  ? json_is_object(value)
           : strcmp(type, "array") == 0   ? json_is_array(value)
           : strcmp(type, "boolean") == 0 ? json_is_boolean(value)
                                          : json_is_null(value);
}

/* Whether `type` (NULL: all) allows the value. */
static bool has_type(const json_t *type, const json_t *value)
{
    bool found = type == NULL || (json_is_string(type) && of_type(value, json_string_value(type)));
    for (size_t i = 0; i < json_array_size(type) && !found; ++i) {
        const char *one = json_string_value(json_array_get(type, i));
        found = one != NULL && of_type(value, one);
    }
    return found;
}

/* Whether a value is within the lengths and bounds of its schema. */
static bool is_within(dsi_form_schema *s, json_t *node, const json_t *value, const dsi_place *place)
{
    const int64_t least = dsi_form_schema_count(s, node, "minLength", 0, place);
    const int64_t most = dsi_form_schema_count(s, node, "maxLength", INT64_MAX, place);
    if (json_is_string(value)) {
        int64_t n = 0;
        for (const char *c = json_string_value(value); *c != '\0'; ++c) {
            n += ((unsigned char)*c & 0xC0) != 0x80; /* characters */
        }
        return n >= least && n <= most;
    }
    const double x = json_number_value(value);
    static const char *const bounds[] = {"minimum", "exclusiveMinimum", "maximum",
                                         "exclusiveMaximum"};
    bool within = true;
    for (int i = 0; i < 4; ++i) {
        const json_t *bound = json_object_get(node, bounds[i]);
        const double b = json_number_value(bound);
        if (bound != NULL && !json_is_number(bound)) {
            (void)dsi_form_schema_fail(s, place, bounds[i], "expected a number");
        } else if (bound != NULL && json_is_number(value)) {
            within = within && (i == 0 ? x >= b : i == 1 ? x > b : i == 2 ? x <= b : x < b);
        }
    }
    return within;
}

static void put_values(dsi_form_schema *s, uint32_t at, json_t *node, const dsi_place *place)
{
    static const char *const but[] = {"type",    "minLength",        "maxLength",        "minimum",
                                      "maximum", "exclusiveMinimum", "exclusiveMaximum", NULL};
    json_t *type = json_object_get(node, "type");
    json_t *only = json_object_get(node, "const");
    json_t *values = json_object_get(node, "enum");
    const char *what = only != NULL ? "const" : "enum";
    if (!alone(s, node, what, but, place)) {
        return;
    }
    if (only == NULL && (!json_is_array(values) || json_array_size(values) == 0)) {
        (void)dsi_form_schema_fail(s, place, "enum", "expected an array of values");
        return;
    }
    for (size_t i = 0; i < (only != NULL ? 1 : json_array_size(values)); ++i) {
        json_t *value = only != NULL ? only : json_array_get(values, i);
        if (has_type(type, value) && is_within(s, node, value, place)) {
            dsi_grammar_end(s->g, dsi_form_schema_literal(s, at, value));
        }
    }
}

/* What stands beside the alternatives, which is of each of them: borrowed. NULL: nothing, or no
 * memory. */
static json_t *find_rest(dsi_form_schema *s, json_t *node, const char *what)
{
    json_t *rest = json_object();
    const char *key = NULL;
    json_t *value = NULL;
    bool made = rest != NULL;
    json_object_foreach(node, key, value)
    {
        if (kind_of(key) != WORDS && kind_of(key) >= 0 && strcmp(key, what) != 0) {
            made = made && json_object_set(rest, key, value) == 0;
        }
    }
    if (made && json_object_size(rest) == 0) {
        json_decref(rest);
        return NULL;
    }
    if (!made || json_array_append(s->made, rest) != 0) {
        (void)dsi_grammar_fail(s->g, "no memory for a JSON schema");
        rest = made ? rest : NULL;
    }
    json_decref(rest);
    return s->g->failed ? NULL : rest;
}

/* An alternative with what stands beside all, borrowed. */
static json_t *join(dsi_form_schema *s, json_t *rest, json_t *one)
{
    json_t *both = rest != NULL ? json_pack("{s:[O,O]}", "allOf", rest, one) : NULL;
    if (rest != NULL && (both == NULL || json_array_append_new(s->made, both) != 0)) {
        (void)dsi_grammar_fail(s->g, "no memory for a JSON schema");
        return one;
    }
    return rest != NULL ? both : one;
}

static void put_alternatives(dsi_form_schema *s, uint32_t at, json_t *node, const char *what,
                             const dsi_place *place)
{
    json_t *all = json_object_get(node, what);
    json_t *rest = find_rest(s, node, what);
    const dsi_place here = {place, what};
    if (!json_is_array(all) || json_array_size(all) == 0) {
        (void)dsi_form_schema_fail(s, place, what, "expected an array of schemas");
        return;
    }
    for (size_t i = 0; i < json_array_size(all) && dsi_grammar_work(s->g); ++i) {
        for (size_t k = 0; k < i && strcmp(what, "oneOf") == 0 && dsi_grammar_work(s->g); ++k) {
            if (!dsi_form_schema_disjoint(s, json_array_get(all, i), json_array_get(all, k),
                                          &here)) {
                (void)dsi_form_schema_fail(
                    s, place, what,
                    "a value may be of two alternatives; say anyOf, or give them "
                    "different types, or a required property of different "
                    "constants");
                return;
            }
        }
        json_t *one = json_array_get(all, i);
        if (rest == NULL || !dsi_form_schema_disjoint(s, rest, one, &here)) {
            const uint32_t rule = dsi_form_schema_rule(s, join(s, rest, one), &here);
            dsi_grammar_end(s->g, dsi_grammar_call(s->g, at, rule));
        }
    }
}

static void put_type(dsi_form_schema *s, uint32_t at, json_t *node, const char *type,
                     const dsi_place *place)
{
    dsi_grammar *g = s->g;
    if (strcmp(type, "object") == 0) {
        dsi_grammar_end(g, dsi_form_schema_object(s, at, node, place));
    } else if (strcmp(type, "array") == 0) {
        dsi_grammar_end(g, dsi_form_schema_array(s, at, node, place));
    } else if (strcmp(type, "string") == 0) {
        dsi_grammar_end(g, dsi_form_schema_string(s, at, node, place));
    } else if (strcmp(type, "number") == 0 || strcmp(type, "integer") == 0) {
        dsi_grammar_end(g, dsi_form_schema_number(s, at, node, type[0] == 'i', place));
    } else if (strcmp(type, "boolean") == 0) {
        dsi_grammar_end(g, dsi_grammar_text(g, at, "true", 4));
        dsi_grammar_end(g, dsi_grammar_text(g, at, "false", 5));
    } else if (strcmp(type, "null") == 0) {
        dsi_grammar_end(g, dsi_grammar_text(g, at, "null", 4));
    } else {
        (void)dsi_form_schema_fail(
            s, place, "type", "expected object, array, string, number, integer, boolean or null");
    }
}

/* Without a type: that of the keywords, which other types do not concern. NULL: any. */
static const char *guess_type(json_t *node)
{
    static const char *const types[] = {
        [STRING] = "string", [NUMBER] = "number", [OBJECT] = "object", [ARRAY] = "array"};
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(node, key, value)
    {
        const int kind = kind_of(key);
        if (kind >= STRING) {
            return types[kind];
        }
    }
    return NULL;
}

static void put_types(dsi_form_schema *s, uint32_t at, json_t *node, json_t *types,
                      const dsi_place *place)
{
    if (!json_is_array(types) || json_array_size(types) == 0) {
        (void)dsi_form_schema_fail(s, place, "type", "expected a name, or an array of names");
    }
    for (size_t i = 0; i < json_array_size(types) && !s->g->failed; ++i) {
        const char *one = json_string_value(json_array_get(types, i));
        put_type(s, at, node, one != NULL ? one : "", place);
    }
}

static void put_part(dsi_form_schema *s, uint32_t at, json_t *node, const dsi_place *place)
{
    json_t *type = json_object_get(node, "type");
    const char *guessed = type == NULL ? guess_type(node) : json_string_value(type);
    if (json_object_get(node, "const") != NULL || json_object_get(node, "enum") != NULL) {
        put_values(s, at, node, place);
    } else if (json_object_get(node, "anyOf") != NULL) {
        put_alternatives(s, at, node, "anyOf", place);
    } else if (json_object_get(node, "oneOf") != NULL) {
        put_alternatives(s, at, node, "oneOf", place);
    } else if (type == NULL && guessed == NULL) {
        dsi_grammar_end(s->g, put_value_of_any(s, at));
    } else if (guessed != NULL) {
        put_type(s, at, node, guessed, place);
    } else {
        put_types(s, at, node, type, place);
    }
}

static void put_node(dsi_form_schema *s, uint32_t at, json_t *node, const dsi_place *place)
{
    if (json_is_true(node)) {
        dsi_grammar_end(s->g, put_value_of_any(s, at));
        return;
    }
    if (json_is_false(node)) {
        return; /* nothing */
    }
    if (!json_is_object(node)) {
        (void)dsi_form_schema_fail(s, place, NULL, "expected an object, true or false");
        return;
    }
    if (json_object_get(node, "$ref") != NULL) {
        json_t *to = dsi_form_schema_refer(s, node, place);
        if (to != NULL) {
            dsi_grammar_end(s->g, dsi_grammar_call(s->g, at, dsi_form_schema_rule(s, to, place)));
        }
        return;
    }
    if (json_object_get(node, "allOf") != NULL) {
        node = dsi_form_schema_merge(s, node, place);
    }
    if (node != NULL && check_keywords(s, node, place)) {
        put_part(s, at, node, place);
    }
}

uint32_t dsi_form_schema_rule(dsi_form_schema *s, json_t *node, const dsi_place *place)
{
    for (uint32_t i = 0; i < s->n_memo; ++i) {
        if (s->memo[i].node == node && !json_is_boolean(node)) {
            return s->memo[i].rule;
        }
    }
    if (s->n_memo == MOST_PARTS) {
        return dsi_form_schema_fail(s, place, NULL, "it has more than 4096 parts");
    }
    const uint32_t rule = dsi_grammar_rule(s->g);
    if (!dsi_grammar_work(s->g)) {
        return 0;
    }
    if (++s->depth > MOST_DEPTH) {
        return dsi_form_schema_fail(s, place, NULL, "it is nested deeper than 256");
    }
    s->memo[s->n_memo++] = (dsi_form_schema_memo){node, rule};
    put_node(s, s->g->rules[rule], node, place);
    s->depth -= 1;
    return rule;
}

void dsi_form_schema_read(dsi_grammar *g, const char *text, size_t n, uint32_t *root_out)
{
    json_error_t error;
    dsi_form_schema s = {.g = g,
                         .top =
                             json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error),
                         .memo = calloc(MOST_PARTS, sizeof *s.memo),
                         .made = json_array()};
    *root_out = dsi_grammar_rule(g);
    if (s.top == NULL) {
        (void)dsi_grammar_fail(g, "JSON schema: no JSON: line %d: %.200s", error.line, error.text);
    } else if (s.memo == NULL || s.made == NULL) {
        (void)dsi_grammar_fail(g, "no memory for a JSON schema");
    }
    if (!g->failed) {
        const uint32_t at = dsi_form_schema_space(&s, g->rules[*root_out]);
        dsi_grammar_end(g, dsi_grammar_call(g, at, dsi_form_schema_rule(&s, s.top, NULL)));
    }
    json_decref(s.top);
    json_decref(s.made);
    free(s.memo);
}
