/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of rows for encoders: one, or two that are read together, as transformers' tokenizer(a, b)
 * takes them; their numbers; and rows of contrast, {"anchor","positive"} with negatives, texts of
 * their own. See schema.h.
 *
 * Of contrast the flag of each text's first token is 1, of all others 0.
 */
#include "data/schema/schema.h"

#include <deepspeed/nn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool dsi_schema_encode(const dsi_schema_row *r, ds_tokenizer_scratch *scratch, const char *text,
                       size_t n, uint32_t flags, ds_tokens *tokens)
{
    const ds_status status =
        ds_tokenizer_encode(r->params->tokenizer, scratch, text, n, flags, tokens);
    return status >= 0 ||
           dsi_schema_refuse(r, status, "the row cannot be tokenized: too long, or no memory");
}

/* Room for n tokens more. */
static bool make_room(const dsi_schema_row *r, size_t n)
{
    dsi_line *line = r->line;
    uint32_t *grown = realloc(line->ids, (line->n + n + 1) * sizeof *grown);
    line->ids = grown != NULL ? grown : line->ids;
    uint8_t *flags = realloc(line->counted, line->n + n + 1);
    line->counted = flags != NULL ? flags : line->counted;
    return (grown != NULL && flags != NULL) || dsi_schema_no_memory(r);
}

bool dsi_schema_append(const dsi_schema_row *r, const ds_tokens *tokens)
{
    dsi_line *line = r->line;
    if (!make_room(r, tokens->n)) {
        return false;
    }
    for (size_t i = 0; i < tokens->n; ++i) {
        line->ids[line->n + i] = tokens->ids[i];
        line->counted[line->n + i] = tokens->types != NULL ? tokens->types[i] : 0;
    }
    line->n += tokens->n;
    return true;
}

int64_t dsi_schema_class(const dsi_schema_row *r, const char *name)
{
    const ds_dataset_params *p = r->params;
    for (uint64_t i = 0; p->classes != NULL && i < p->n_classes; ++i) {
        if (strcmp(p->classes[i], name) == 0) {
            return (int64_t)i;
        }
    }
    return -1;
}

/* ---- texts ---- */

static const char *const columns[][2] = {{"text", "text_pair"},
                                         {"sentence1", "sentence2"},
                                         {"premise", "hypothesis"},
                                         {"question1", "question2"}};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

bool dsi_schema_is_text(const char *key)
{
    for (size_t i = 0; i < N_COLUMNS; ++i) {
        if (strcmp(key, columns[i][0]) == 0 || strcmp(key, columns[i][1]) == 0) {
            return true;
        }
    }
    return false;
}

bool dsi_schema_texts(const dsi_schema_row *r, dsi_text_columns *out)
{
    size_t found = N_COLUMNS;
    for (size_t i = 0; i < N_COLUMNS; ++i) {
        const json_t *first = dsi_schema_field(r, columns[i][0]);
        const json_t *second = dsi_schema_field(r, columns[i][1]);
        if (first == NULL && second == NULL) {
            continue;
        }
        if (found < N_COLUMNS) {
            return dsi_schema_refuse(r, DS_ERR_FORMAT,
                                     "\"%s\" and \"%s\" are texts of two kinds of rows: "
                                     "--column_map text=COLUMN,text_pair=COLUMN names the two, and "
                                     "others must not be there",
                                     columns[found][0], columns[i][first != NULL ? 0 : 1]);
        }
        if (!json_is_string(first) || (second == NULL ? i > 0 : !json_is_string(second))) {
            return dsi_schema_refuse(
                r, DS_ERR_FORMAT, "expected \"%s\"%s \"%s\" to be strings; found %s and %s",
                columns[i][0], i == 0 ? ", and where it is there" : " and", columns[i][1],
                dsi_schema_kind(first), dsi_schema_kind(second));
        }
        *out = (dsi_text_columns){first, second};
        found = i;
    }
    return found < N_COLUMNS ||
           dsi_schema_refuse(
               r, DS_ERR_FORMAT,
               "expected \"text\", a string, or two texts: \"text\" and \"text_pair\", "
               "\"sentence1\" and \"sentence2\", \"premise\" and \"hypothesis\" "
               "(--column_map names other columns)");
}

/* Whether a text's last token is what the tokenizer puts behind texts: the last of an empty one. */
static bool ends(const dsi_schema_row *r, ds_tokenizer_scratch *scratch)
{
    dsi_line *line = r->line;
    ds_tokens tokens;
    if (!dsi_schema_encode(r, scratch, "", 0, DS_ENCODE_ADD_SPECIAL, &tokens)) {
        return false;
    }
    line->ends = tokens.n > 0 && line->n > 1 && line->ids[line->n - 1] == tokens.ids[tokens.n - 1];
    return true;
}

static bool append_text(const dsi_schema_row *r, ds_tokenizer_scratch *scratch, const json_t *text)
{
    ds_tokens tokens;
    return dsi_schema_encode(r, scratch, json_string_value(text), json_string_length(text),
                             DS_ENCODE_ADD_SPECIAL, &tokens) &&
           dsi_schema_append(r, &tokens);
}

/* Cut here, as the longer text is; left whole where a long row is to be left out. */
static bool append_pair(const dsi_schema_row *r, ds_tokenizer_scratch *scratch,
                        const dsi_text_columns *texts)
{
    ds_tokens tokens;
    const size_t most = (size_t)r->params->seq_length;
    ds_two_texts pair = {
        .text = {json_string_value(texts->first), json_string_value(texts->second)},
        .n = {json_string_length(texts->first), json_string_length(texts->second)}};
    for (int k = 0; k < 2; ++k) {
        const ds_status status = ds_tokenizer_encode_pair(r->params->tokenizer, scratch, &pair,
                                                          DS_ENCODE_ADD_SPECIAL, &tokens);
        if (status < 0) {
            return dsi_schema_refuse(
                r, status,
                "the two texts cannot be tokenized: too long, no memory, or no "
                "room for what stands around them in %zu tokens",
                most);
        }
        if (tokens.n <= most || r->params->too_long == DS_TOO_LONG_DROP) {
            break;
        }
        pair.max_length = most;
        r->line->cut = true;
    }
    return dsi_schema_append(r, &tokens);
}

bool dsi_schema_append_texts(const dsi_schema_row *r, ds_tokenizer_scratch *scratch)
{
    dsi_text_columns texts;
    if (!dsi_schema_texts(r, &texts)) {
        return false;
    }
    return texts.second != NULL ? append_pair(r, scratch, &texts)
                                : append_text(r, scratch, texts.first) && ends(r, scratch);
}

/* ---- numbers ---- */

/* A number, or a text that is one, as in a .csv. */
static bool number_of(const json_t *value, double *out)
{
    const char *text = json_string_value(value);
    char *end = NULL;
    *out = text != NULL ? strtod(text, &end) : json_number_value(value);
    return (text != NULL ? end != text && *end == '\0' : json_is_number(value)) && isfinite(*out);
}

/* Names of the classes that hold, into numbers of n classes. */
static bool hold(const dsi_schema_row *r, const json_t *names, float *numbers)
{
    for (size_t i = 0; i < json_array_size(names); ++i) {
        const char *name = json_string_value(json_array_get(names, i));
        const int64_t class = name != NULL ? dsi_schema_class(r, name) : -1;
        if (class < 0) {
            return dsi_schema_refuse(r, DS_ERR_FORMAT, "\"label\": \"%.40s\" is no name of a class",
                                     name != NULL ? name : dsi_schema_kind(names));
        }
        numbers[class] = 1.0f;
    }
    return true;
}

static bool read_numbers(const dsi_schema_row *r, const json_t *label, float *numbers)
{
    const size_t n = (size_t)r->params->n_classes;
    const bool list = json_is_array(label);
    const bool named = r->params->problem != DS_PROBLEM_REGRESSION;
    if (named && list &&
        (json_array_size(label) == 0 || json_is_string(json_array_get(label, 0)))) {
        return hold(r, label, numbers);
    }
    if (list ? json_array_size(label) != n : n != 1) {
        return dsi_schema_refuse(
            r, DS_ERR_FORMAT, "\"label\" must be %zu numbers%s%s; found %s of %zu", n,
            n == 1 ? ", or one alone" : "", named ? ", or names of classes" : "",
            dsi_schema_kind(label), list ? json_array_size(label) : 1);
    }
    for (size_t i = 0; i < n; ++i) {
        double number = 0.0;
        if (!number_of(list ? json_array_get(label, i) : label, &number)) {
            return dsi_schema_refuse(r, DS_ERR_FORMAT, "\"label\" must be numbers; found %s",
                                     dsi_schema_kind(list ? json_array_get(label, i) : label));
        }
        if (r->params->problem == DS_PROBLEM_MULTI_LABEL && (number < 0.0 || number > 1.0)) {
            return dsi_schema_refuse(r, DS_ERR_FORMAT,
                                     "\"label\" of many labels must be numbers of 0 to 1; found %g",
                                     number);
        }
        numbers[i] = (float)number;
    }
    return true;
}

bool dsi_schema_values(const dsi_schema_row *r, const json_t *label)
{
    float numbers[UINT8_MAX + 1] = {0};
    dsi_line *line = r->line;
    const size_t n = dsi_values_head(r->params);
    if (!read_numbers(r, label, numbers) || !make_room(r, n)) {
        return false;
    }
    memset(line->ids + line->n, 0, n * sizeof *line->ids);
    memcpy(line->counted + line->n, numbers, n);
    line->n += n;
    return true;
}

/* ---- contrast ---- */

/* The name of part i: anchor, positive, then negatives; of one "negative", of more with numbers. */
static void part_name(const dsi_schema_row *r, uint64_t i, char name[32])
{
    if (i < 2 || r->params->n_negatives < 2) {
        (void)snprintf(name, 32, "%s", i == 0 ? "anchor" : i == 1 ? "positive" : "negative");
    } else {
        (void)snprintf(name, 32, "negative_%llu", (unsigned long long)i - 1);
    }
}

static bool read_part(const dsi_schema_row *r, ds_tokenizer_scratch *scratch, const char *name)
{
    const json_t *text = dsi_schema_field(r, name);
    const uint64_t at = r->line->n;
    if (!json_is_string(text)) {
        return dsi_schema_refuse(r, DS_ERR_FORMAT,
                                 "expected \"%s\", a string; found %s (--column_map names other "
                                 "columns)",
                                 name, dsi_schema_kind(text));
    }
    if (!append_text(r, scratch, text)) {
        return false;
    }
    if (r->line->n == at) {
        return dsi_schema_refuse(r, DS_ERR_FORMAT, "\"%s\" is a text without any token", name);
    }
    r->line->counted[at] = 1;
    return true;
}

bool dsi_schema_contrast(const dsi_schema_row *r, ds_tokenizer_scratch *scratch)
{
    const uint64_t n = 2 + r->params->n_negatives;
    const char *key = NULL;
    json_t *value = NULL;
    char name[32];
    if (!json_is_object(r->row)) {
        return dsi_schema_refuse(r, DS_ERR_FORMAT, "a row must be a JSON object; found %s",
                                 dsi_schema_kind(r->row));
    }
    r->line->schema = DSI_SCHEMA_CLASSES;
    r->line->sample = true;
    for (uint64_t i = 0; i < n; ++i) {
        part_name(r, i, name);
        if (!read_part(r, scratch, name)) {
            return false;
        }
    }
    json_object_foreach((json_t *)(uintptr_t)r->row, key, value)
    {
        bool known = false;
        for (uint64_t i = 0; i < n && !known; ++i) {
            part_name(r, i, name);
            known = strcmp(key, name) == 0;
        }
        if (!known && strncmp(key, "negative", 8) == 0 && !json_is_null(value)) {
            return dsi_schema_refuse(r, DS_ERR_FORMAT,
                                     "\"%s\": %llu negatives a row are read (--negatives)", key,
                                     (unsigned long long)r->params->n_negatives);
        }
        if (!known) {
            dsi_schema_note(r, "", key);
        }
    }
    return ends(r, scratch);
}
