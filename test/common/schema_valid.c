/* SPDX-License-Identifier: Apache-2.0 */
/* See schema_valid.h. Source: JSON Schema draft 2020-12. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/schema_valid.h"

#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_type(const char *type, json_t *v)
{
    const double x = json_number_value(v);
    return strcmp(type, "null") == 0      ? json_is_null(v)
           : strcmp(type, "boolean") == 0 ? json_is_boolean(v)
           : strcmp(type, "integer") == 0 ? json_is_number(v) && x == floor(x)
           : strcmp(type, "number") == 0  ? json_is_number(v)
           : strcmp(type, "string") == 0  ? json_is_string(v)
           : strcmp(type, "array") == 0   ? json_is_array(v)
                                          : json_is_object(v);
}

static bool same(json_t *a, json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                  : json_equal(a, b) == 1;
}

static bool matches(const char *pattern, const char *text, size_t n)
{
    int code = 0;
    size_t at = 0;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                         PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code, &at, NULL);
    if (compiled == NULL) {
        abort();
    }
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(compiled, NULL);
    const bool found = pcre2_match(compiled, (PCRE2_SPTR)text, n, 0, 0, data, NULL) >= 0;
    pcre2_match_data_free(data);
    pcre2_code_free(compiled);
    return found;
}

static int64_t length_of(const char *text, size_t n)
{
    int64_t points = 0;
    for (size_t i = 0; i < n; ++i) {
        points += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return points;
}

static bool is_date(const char *text)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int y = 0;
    int m = 0;
    int d = 0;
    char rest = 0;
    const int n = sscanf(text, "%4d-%2d-%2d%c", &y, &m, &d, &rest);
    return strlen(text) >= 10 && (n == 3 || rest == 'T') && y > 0 && m >= 1 && m <= 12 && d >= 1 &&
           d <= days[m - 1] + (m == 2 && y % 4 == 0);
}

static bool is_format(const char *format, const char *text)
{
    int octets[4];
    char rest = 0;
    if (strcmp(format, "date") == 0) {
        return is_date(text) && strlen(text) == 10;
    }
    if (strcmp(format, "date-time") == 0) {
        return is_date(text) && strlen(text) >= 20;
    }
    if (strcmp(format, "uuid") == 0) {
        return strlen(text) == 36 && text[8] == '-' && text[13] == '-' && text[23] == '-';
    }
    if (strcmp(format, "ipv4") == 0) {
        const int n = sscanf(text, "%3d.%3d.%3d.%3d%c", &octets[0], &octets[1], &octets[2],
                             &octets[3], &rest);
        return n == 4 && octets[0] < 256 && octets[1] < 256 && octets[2] < 256 && octets[3] < 256;
    }
    return true;
}

static const char *text_of(json_t *schema, const char *key)
{
    return json_string_value(json_object_get(schema, key));
}

static bool string_holds(json_t *schema, json_t *v, const char **why)
{
    const char *text = json_string_value(v);
    const size_t n = json_string_length(v);
    json_t *least = json_object_get(schema, "minLength");
    json_t *most = json_object_get(schema, "maxLength");
    if (least != NULL && length_of(text, n) < json_integer_value(least)) {
        return *why = "minLength", false;
    }
    if (most != NULL && length_of(text, n) > json_integer_value(most)) {
        return *why = "maxLength", false;
    }
    if (text_of(schema, "pattern") != NULL && !matches(text_of(schema, "pattern"), text, n)) {
        return *why = "pattern", false;
    }
    if (text_of(schema, "format") != NULL && !is_format(text_of(schema, "format"), text)) {
        return *why = "format", false;
    }
    return true;
}

static bool number_holds(json_t *schema, json_t *v, const char **why)
{
    const double x = json_number_value(v);
    json_t *low = json_object_get(schema, "minimum");
    json_t *above = json_object_get(schema, "exclusiveMinimum");
    json_t *high = json_object_get(schema, "maximum");
    json_t *below = json_object_get(schema, "exclusiveMaximum");
    *why = "a bound";
    return (low == NULL || x >= json_number_value(low)) &&
           (above == NULL || x > json_number_value(above)) &&
           (high == NULL || x <= json_number_value(high)) &&
           (below == NULL || x < json_number_value(below));
}

static bool array_holds(json_t *top, json_t *schema, json_t *v, const char **why)
{
    const size_t n = json_array_size(v);
    json_t *least = json_object_get(schema, "minItems");
    json_t *most = json_object_get(schema, "maxItems");
    json_t *first = json_object_get(schema, "prefixItems");
    json_t *rest = json_object_get(schema, "items");
    if ((least != NULL && (json_int_t)n < json_integer_value(least)) ||
        (most != NULL && (json_int_t)n > json_integer_value(most))) {
        return *why = "minItems or maxItems", false;
    }
    for (size_t i = 0; i < n; ++i) {
        json_t *own = i < json_array_size(first) ? json_array_get(first, i) : rest;
        if (own != NULL && !schema_valid(top, own, json_array_get(v, i), why)) {
            return false;
        }
    }
    return true;
}

static bool object_holds(json_t *top, json_t *schema, json_t *v, const char **why)
{
    json_t *required = json_object_get(schema, "required");
    json_t *others = json_object_get(schema, "additionalProperties");
    const char *key = NULL;
    json_t *value = NULL;
    for (size_t i = 0; i < json_array_size(required); ++i) {
        if (json_object_get(v, json_string_value(json_array_get(required, i))) == NULL) {
            return *why = "required", false;
        }
    }
    json_object_foreach(v, key, value)
    {
        json_t *own = json_object_get(json_object_get(schema, "properties"), key);
        own = own != NULL ? own : others;
        if (json_is_false(own)) {
            return *why = "additionalProperties", false;
        }
        if (own != NULL && !schema_valid(top, own, value, why)) {
            return false;
        }
    }
    return true;
}

static bool combined_holds(json_t *top, json_t *schema, json_t *v, const char **why)
{
    static const char *const names[] = {"allOf", "anyOf", "oneOf"};
    for (int k = 0; k < 3; ++k) {
        json_t *all = json_object_get(schema, names[k]);
        size_t hold = 0;
        for (size_t i = 0; i < json_array_size(all); ++i) {
            hold += schema_valid(top, json_array_get(all, i), v, why);
        }
        if (all != NULL && (k == 0   ? hold < json_array_size(all)
                            : k == 1 ? hold == 0
                                     : hold != 1)) {
            return *why = names[k], false;
        }
    }
    return true;
}

static bool type_holds(json_t *type, json_t *v)
{
    bool found = type == NULL || (json_is_string(type) && is_type(json_string_value(type), v));
    for (size_t i = 0; i < json_array_size(type); ++i) {
        found = found || is_type(json_string_value(json_array_get(type, i)), v);
    }
    return found;
}

bool schema_valid(json_t *top, json_t *schema, json_t *v, const char **why)
{
    json_t *values = json_object_get(schema, "enum");
    json_t *only = json_object_get(schema, "const");
    const char *ref = text_of(schema, "$ref");
    bool found = values == NULL;
    if (json_is_boolean(schema)) {
        return *why = "false", json_is_true(schema);
    }
    if (ref != NULL) {
        json_t *to = strcmp(ref, "#") == 0
                         ? top
                         : json_object_get(json_object_get(top, "$defs"), ref + strlen("#/$defs/"));
        return schema_valid(top, to, v, why);
    }
    for (size_t i = 0; i < json_array_size(values); ++i) {
        found = found || same(json_array_get(values, i), v);
    }
    if (!found || (only != NULL && !same(only, v))) {
        return *why = "enum or const", false;
    }
    if (!type_holds(json_object_get(schema, "type"), v)) {
        return *why = "type", false;
    }
    return (!json_is_string(v) || string_holds(schema, v, why)) &&
           (!json_is_number(v) || number_holds(schema, v, why)) &&
           (!json_is_array(v) || array_holds(top, schema, v, why)) &&
           (!json_is_object(v) || object_holds(top, schema, v, why)) &&
           combined_holds(top, schema, v, why);
}
