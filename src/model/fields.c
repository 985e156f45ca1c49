/* SPDX-License-Identifier: Apache-2.0 */
/* Reads config.json by tables. See fields.h. */
#include "model/fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_BYTES = 48 };

static unsigned type_of(const ds_reader *reader, const json_t *value)
{
    const double real = json_number_value(value);
    switch (json_typeof(value)) {
    case JSON_NULL:
        return DS_FIELD_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return DS_FIELD_BOOL;
    case JSON_INTEGER:
        return DS_FIELD_INT;
    case JSON_REAL:
        return reader->integers_vanish && real == floor(real) ? DS_FIELD_NUMBER : DS_FIELD_REAL;
    case JSON_STRING:
        return DS_FIELD_TEXT;
    case JSON_OBJECT:
        return DS_FIELD_OBJECT;
    default:
        break;
    }
    for (size_t i = 0; i < json_array_size(value); ++i) {
        if ((type_of(reader, json_array_get(value, i)) & DS_FIELD_INT) == 0) {
            return DS_FIELD_LIST;
        }
    }
    return DS_FIELD_LIST | DS_FIELD_INTS;
}

/* The value as JSON text, its end left out where it is long. */
static const char *show(const json_t *value, char *text)
{
    char *all = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    const size_t n = all != NULL ? strlen(all) : 0;
    (void)snprintf(text, SHOWN_BYTES, "%s", all != NULL ? all : "?");
    if (n >= SHOWN_BYTES) {
        memcpy(text + SHOWN_BYTES - 4, "...", 4);
    }
    free(all);
    return text;
}

ds_status ds_field_bad(const ds_reader *reader, const char *key, const char *expected)
{
    char text[SHOWN_BYTES];
    return ds_fail(reader->ctx, DS_ERR_FORMAT, "config.json: \"%s\" must be %s, found %s", key,
                   expected, show(json_object_get(reader->json, key), text));
}

static ds_status bad_type(const ds_reader *reader, const ds_field *row)
{
    static const struct {
        unsigned type;
        const char *name;
    } names[] = {{DS_FIELD_NUMBER, "a number"},
                 {DS_FIELD_INT, "an integer"},
                 {DS_FIELD_REAL, "a number with a point or an exponent"},
                 {DS_FIELD_BOOL, "true or false"},
                 {DS_FIELD_TEXT, "a string"},
                 {DS_FIELD_INTS, "a list of integers"},
                 {DS_FIELD_LIST, "a list"},
                 {DS_FIELD_OBJECT, "an object"},
                 {DS_FIELD_NULL, "null"}};
    char expected[160] = "";
    unsigned left = row->types;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        if ((left & names[i].type) == names[i].type) {
            const size_t n = strlen(expected);
            (void)snprintf(expected + n, sizeof expected - n, "%s%s", n > 0 ? " or " : "",
                           names[i].name);
            left &= ~names[i].type;
        }
    }
    return ds_field_bad(reader, row->key, expected);
}

static ds_status bad_range(const ds_reader *reader, const ds_field *row)
{
    char text[SHOWN_BYTES];
    (void)show(json_object_get(reader->json, row->key), text);
    if (row->max >= INT32_MAX) {
        return ds_fail(reader->ctx, DS_ERR_FORMAT,
                       "config.json: \"%s\" is out of range: %s, expected at least %.10g and at "
                       "most 2147483647",
                       row->key, text, row->min);
    }
    return ds_fail(reader->ctx, DS_ERR_FORMAT,
                   "config.json: \"%s\" is out of range: %s, expected %.10g to %.10g", row->key,
                   text, row->min, row->max);
}

static ds_status refuse(const ds_reader *reader, const ds_field *row, const json_t *value)
{
    char text[SHOWN_BYTES];
    char *whole = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    const char *at = row->only;
    bool found = false;
    while (whole != NULL && at != NULL && *at != '\0' && !found) {
        const size_t n = strcspn(at, " ");
        found = strlen(whole) == n && strncmp(at, whole, n) == 0;
        at += n + strspn(at + n, " ");
    }
    free(whole);
    if (found || (json_is_null(value) && row->only == NULL)) {
        return DS_OK;
    }
    return ds_fail(reader->ctx, DS_ERR_UNSUPPORTED, "config.json: \"%s\": %s is not supported: %s",
                   row->key, show(value, text), row->why);
}

static void store(const ds_field *row, void *config, double value, bool is_null)
{
    char *at = (char *)config + row->offset;
    if ((row->types & DS_FIELD_BOOL) != 0) {
        *(bool *)(void *)at = value != 0.0;
    } else if ((row->types & DS_FIELD_REAL) != 0) {
        *(double *)(void *)at = value;
    } else {
        *(int64_t *)(void *)at = is_null ? DS_NO_INT : (int64_t)value;
    }
}

static ds_status read_row(const ds_reader *reader, const ds_field *row, void *config)
{
    const json_t *value = json_object_get(reader->json, row->key);
    if (value == NULL) {
        if (row->use == DS_FIELD_APPLIED) {
            store(row, config, row->value, row->value == (double)DS_NO_INT);
        }
        return DS_OK;
    }
    if (row->use == DS_FIELD_REFUSED) {
        return refuse(reader, row, value);
    }
    if ((row->types & type_of(reader, value)) == 0) {
        return bad_type(reader, row);
    }
    if (row->use == DS_FIELD_CHECKED) {
        return DS_OK;
    }
    const double number = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
    if (json_is_number(value) && !(number >= row->min && number <= row->max)) {
        return bad_range(reader, row);
    }
    store(row, config, number, json_is_null(value));
    return DS_OK;
}

ds_status ds_fields_read(const ds_reader *reader, const ds_field *rows, size_t n, void *config)
{
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(read_row(reader, &rows[i], config));
    }
    return DS_OK;
}

ds_status ds_field_number(const ds_reader *reader, const char *key, double *value_out)
{
    const json_t *value = json_object_get(reader->json, key);
    if (value != NULL && !json_is_number(value)) {
        return ds_field_bad(reader, key, "a number");
    }
    *value_out = value != NULL ? json_number_value(value) : *value_out;
    return DS_OK;
}

ds_status ds_field_int(const ds_reader *reader, const char *key, int64_t min, int64_t *value_out)
{
    const json_t *value = json_object_get(reader->json, key);
    const double real = json_number_value(value);
    if (value == NULL) {
        return DS_OK;
    }
    if (!json_is_number(value) || real != floor(real) || real < (double)min || real > INT32_MAX) {
        char expected[64];
        (void)snprintf(expected, sizeof expected, "an integer of at least %lld", (long long)min);
        return ds_field_bad(reader, key, expected);
    }
    *value_out = (int64_t)real;
    return DS_OK;
}

ds_status ds_field_text(const ds_reader *reader, const char *key, const char **value_out)
{
    const json_t *value = json_object_get(reader->json, key);
    if (value != NULL && !json_is_string(value)) {
        return ds_field_bad(reader, key, "a string");
    }
    *value_out = value != NULL ? json_string_value(value) : *value_out;
    return DS_OK;
}

bool ds_field_is_falsy(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0.0) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

void ds_fields_print(const ds_field *rows, size_t n, const void *config, FILE *out)
{
    for (size_t i = 0; i < n; ++i) {
        const void *at = (const char *)config + rows[i].offset;
        if (rows[i].use != DS_FIELD_APPLIED) {
            continue;
        }
        if ((rows[i].types & DS_FIELD_BOOL) != 0) {
            (void)fprintf(out, "%s: %s\n", rows[i].key, *(const bool *)at ? "true" : "false");
        } else if ((rows[i].types & DS_FIELD_REAL) != 0) {
            (void)fprintf(out, "%s: %.17g\n", rows[i].key, *(const double *)at);
        } else if (*(const int64_t *)at == DS_NO_INT) {
            (void)fprintf(out, "%s: null\n", rows[i].key);
        } else {
            (void)fprintf(out, "%s: %lld\n", rows[i].key, (long long)*(const int64_t *)at);
        }
    }
}
