/* SPDX-License-Identifier: Apache-2.0 */
/* --column_map: which column of the rows stands for which field. See schema.h.
 *
 * A map is "FIELD=COLUMN,FIELD=COLUMN…". A comma parts two of them only before a field's name and
 * "=", so that a column's name may hold commas.
 */
#include "data/schema/schema.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <string.h>

static const char *const fields[] = {"text",       "messages",    "conversations",
                                     "prompt",     "chosen",      "rejected",
                                     "completion", "label",       "input",
                                     "output",     "instruction", "system",
                                     "history",    "tools",       "chat_template_kwargs",
                                     "documents",  "tokens",      "tags",
                                     "text_pair",  "anchor",      "positive",
                                     "negative",   NULL};

typedef struct mapping {
    const char *field, *column; /* neither is terminated */
    size_t n_field, n_column;
} mapping;

/* Whether FIELD= stands here; how long FIELD is. */
static bool begins_mapping(const char *text, size_t *n_out)
{
    for (const char *const *f = fields; *f != NULL; ++f) {
        const size_t n = strlen(*f);
        if (strncmp(text, *f, n) == 0 && text[n] == '=') {
            *n_out = n;
            return true;
        }
    }
    static const char numbered[] = "negative_";
    const size_t n = sizeof numbered - 1;
    const size_t digits = strncmp(text, numbered, n) == 0 ? strspn(text + n, "0123456789") : 0;
    *n_out = n + digits;
    return digits > 0 && *n_out < DSI_COLUMN_NAME && text[n + digits] == '=';
}

/* The next mapping; *at is moved behind it. False at the end, or where none stands. */
static bool next_mapping(const char **at, mapping *out)
{
    size_t n = 0;
    if (*at == NULL || !begins_mapping(*at, &n)) {
        return false;
    }
    const char *column = *at + n + 1;
    const char *end = column;
    size_t ignored = 0;
    while (*end != '\0' && !(*end == ',' && begins_mapping(end + 1, &ignored))) {
        ++end;
    }
    *out = (mapping){*at, column, n, (size_t)(end - column)};
    *at = *end == ',' ? end + 1 : end;
    return true;
}

static bool is_field(const mapping *m, const char *field)
{
    return strlen(field) == m->n_field && memcmp(field, m->field, m->n_field) == 0;
}

static bool find(const ds_dataset_params *params, const char *field, mapping *out)
{
    const char *at = params->column_map;
    while (next_mapping(&at, out)) {
        if (is_field(out, field)) {
            return true;
        }
    }
    return false;
}

bool dsi_columns_maps(const ds_dataset_params *params, const char *field)
{
    mapping m;
    return find(params, field, &m);
}

const char *dsi_columns_name(const ds_dataset_params *params, const char *field,
                             char name[DSI_COLUMN_NAME])
{
    mapping m;
    if (!find(params, field, &m)) {
        return field;
    }
    (void)snprintf(name, DSI_COLUMN_NAME, "%.*s", (int)m.n_column, m.column);
    return name;
}

/* The row's own columns that are of another name now, or that a field's name hides. */
static bool remove_mapped(const dsi_schema_row *r, json_t *out)
{
    const char *at = r->params->column_map;
    mapping m;
    while (next_mapping(&at, &m)) {
        (void)json_object_deln(out, m.column, m.n_column);
    }
    at = r->params->column_map;
    while (next_mapping(&at, &m)) {
        char field[DSI_COLUMN_NAME];
        (void)snprintf(field, sizeof field, "%.*s", (int)m.n_field, m.field);
        if (json_object_get(out, field) != NULL) {
            dsi_schema_note(r, "the column ", field);
            (void)json_object_del(out, field);
        }
    }
    return true;
}

json_t *dsi_columns_apply(const dsi_schema_row *r, json_t *row)
{
    const char *at = r->params->column_map;
    uint32_t i = 0;
    mapping m;
    if (at == NULL || !json_is_object(row)) {
        return json_incref(row);
    }
    json_t *out = json_copy(row);
    if (out == NULL || !remove_mapped(r, out)) {
        return NULL;
    }
    for (; next_mapping(&at, &m); ++i) {
        json_t *value = json_object_getn(row, m.column, m.n_column);
        r->line->columns |= value != NULL ? UINT32_C(1) << i : 0;
        if (value != NULL && json_object_setn(out, m.field, m.n_field, value) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

ds_status dsi_columns_check(ds_ctx *ctx, const char *column_map)
{
    const char *at = column_map;
    mapping m;
    mapping other;
    for (uint32_t n = 0; next_mapping(&at, &m); ++n) {
        const char *rest = at;
        if (n == DSI_MOST_COLUMNS) {
            return ds_fail(ctx, DS_ERR_LIMIT, "--column_map: more than %d fields",
                           DSI_MOST_COLUMNS);
        }
        if (m.n_column == 0) {
            return ds_fail(ctx, DS_ERR_ARG, "--column_map %s: %.*s= names no column", column_map,
                           (int)m.n_field, m.field);
        }
        while (next_mapping(&rest, &other)) {
            const bool field =
                other.n_field == m.n_field && memcmp(other.field, m.field, m.n_field) == 0;
            const bool column =
                other.n_column == m.n_column && memcmp(other.column, m.column, m.n_column) == 0;
            if (field || column) {
                return ds_fail(ctx, DS_ERR_ARG, "--column_map %s: %.*s is there twice", column_map,
                               (int)(field ? m.n_field : m.n_column), field ? m.field : m.column);
            }
        }
    }
    if (at != NULL && (*at != '\0' || at == column_map)) {
        return ds_fail(
            ctx, DS_ERR_ARG,
            "--column_map %s: expected FIELD=COLUMN,… with the fields text, messages, "
            "conversations, prompt, completion, label, chosen, rejected, instruction, "
            "input, output, system, history, tools, documents, chat_template_kwargs, tokens, tags, "
            "text_pair, anchor, positive, negative, negative_1 …",
            column_map);
    }
    return DS_OK;
}

ds_status dsi_columns_seen(ds_ctx *ctx, const char *path, const char *column_map, uint32_t columns)
{
    const char *at = column_map;
    mapping m;
    for (uint32_t i = 0; next_mapping(&at, &m); ++i) {
        if ((columns >> i & 1) == 0) {
            return ds_fail(ctx, DS_ERR_ARG, "%s: no row has the column \"%.*s\" of --column_map",
                           path, (int)m.n_column, m.column);
        }
    }
    return DS_OK;
}
