/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts with an answer, or with a chosen and a rejected one: texts or chats. See schema.h. */
#include "data/schema/schema.h"
#include "io/json_load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A list, or JSON text of a list of messages, as a .csv has it. */
static bool is_chat(const json_t *value)
{
    const char *text = json_string_value(value);
    json_error_t error;
    if (text == NULL || *text != '[') {
        return json_is_array(value);
    }
    json_t *list = dsi_json_parse(text, json_string_length(value), JSON_ALLOW_NUL, &error);
    const json_t *first = json_array_get(list, 0);
    const bool chat =
        json_object_get(first, "role") != NULL || json_object_get(first, "from") != NULL;
    json_decref(list);
    return chat;
}

typedef struct side {
    const char *field;
    json_t **out;
} side;

/* All sides are chats, or all are texts. */
static bool read_sides(const dsi_schema_row *r, dsi_form *form, const side *sides, size_t n)
{
    size_t n_chats = 0;
    size_t n_texts = 0;
    for (size_t i = 0; i < n; ++i) {
        n_chats += is_chat(dsi_schema_field(r, sides[i].field));
        n_texts += json_is_string(dsi_schema_field(r, sides[i].field));
    }
    if (n_chats < n && n_texts < n) {
        char names[2][DSI_COLUMN_NAME];
        const size_t last = n - 1;
        return dsi_schema_refuse(
            r, DS_ERR_FORMAT,
            "\"%s\" and \"%s\" must both be strings, or both lists of messages; found %s and %s",
            dsi_columns_name(r->params, sides[0].field, names[0]),
            dsi_columns_name(r->params, sides[last].field, names[1]),
            dsi_schema_kind(dsi_schema_field(r, sides[0].field)),
            dsi_schema_kind(dsi_schema_field(r, sides[last].field)));
    }
    if (n_chats == n && !dsi_schema_context(r, form)) {
        return false;
    }
    for (size_t i = 0; i < n; ++i) {
        *sides[i].out = n_chats == n ? dsi_schema_messages(r, form, sides[i].field, NULL)
                                     : json_incref(dsi_schema_field(r, sides[i].field));
        if (*sides[i].out == NULL) {
            return false;
        }
    }
    return true;
}

bool dsi_schema_pair(const dsi_schema_row *r, dsi_form *form)
{
    const side sides[] = {{"prompt", &form->prompt}, {"completion", &form->answer}};
    return read_sides(r, form, sides, 2);
}

/* ---- preferences whose prompt both answers begin with ---- */

static size_t common_messages(const json_t *a, const json_t *b)
{
    const size_t n =
        json_array_size(a) < json_array_size(b) ? json_array_size(a) : json_array_size(b);
    size_t i = 0;
    while (i < n && json_equal(json_array_get(a, i), json_array_get(b, i))) {
        ++i;
    }
    return i == n && n > 0 ? n - 1 : i; /* both keep an answer */
}

/* In bytes; between two characters. A space before the difference belongs to the answers. */
static size_t common_bytes(const json_t *a, const json_t *b)
{
    const char *x = json_string_value(a);
    const char *y = json_string_value(b);
    const size_t n_a = json_string_length(a);
    const size_t n = n_a < json_string_length(b) ? n_a : json_string_length(b);
    size_t i = 0;
    while (i < n && x[i] == y[i]) {
        ++i;
    }
    const bool differs = i < n;
    i -= !differs && i > 0; /* both keep an answer */
    while (i > 0 && ((unsigned char)x[i] & 0xC0) == 0x80) {
        --i;
    }
    return i - (differs && i > 0 && x[i - 1] == ' ');
}

static json_t *slice(const json_t *list, size_t begin, size_t end)
{
    json_t *out = json_array();
    for (size_t i = begin; i < end; ++i) {
        if (json_array_append(out, json_array_get(list, i)) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

static void take(json_t **at, json_t *value)
{
    json_decref(*at);
    *at = value;
}

static bool extract_prompt(const dsi_schema_row *r, dsi_form *form)
{
    json_t *a = form->answer;
    json_t *b = form->rejected;
    if (json_is_string(a)) {
        const size_t n = common_bytes(a, b);
        const char *text = json_string_value(a);
        form->prompt = json_stringn_nocheck(text, n);
        take(&form->answer, json_stringn_nocheck(text + n, json_string_length(a) - n));
        take(&form->rejected,
             json_stringn_nocheck(json_string_value(b) + n, json_string_length(b) - n));
    } else {
        const size_t n = common_messages(a, b);
        if (n == 0) {
            return dsi_schema_refuse(r, DS_ERR_FORMAT,
                                     "\"chosen\" and \"rejected\" have no first message in common, "
                                     "and there is no \"prompt\"");
        }
        form->prompt = slice(a, 0, n);
        json_t *chosen = slice(a, n, json_array_size(a));
        take(&form->rejected, slice(b, n, json_array_size(b)));
        take(&form->answer, chosen);
    }
    return (form->prompt != NULL && form->answer != NULL && form->rejected != NULL) ||
           dsi_schema_no_memory(r);
}

/* TRL's columns of log-probabilities by the reference: both numbers, or none. */
static bool read_reference(const dsi_schema_row *r)
{
    const json_t *const both[2] = {dsi_schema_field(r, "ref_chosen_logps"),
                                   dsi_schema_field(r, "ref_rejected_logps")};
    r->line->has_reference = both[0] != NULL || both[1] != NULL;
    for (int i = 0; i < 2 && r->line->has_reference; ++i) {
        char *end = NULL; /* a .csv has texts */
        const char *text = json_string_value(both[i]);
        const double value = text != NULL ? strtod(text, &end) : json_number_value(both[i]);
        const bool number =
            json_is_number(both[i]) || (text != NULL && end != text && *end == '\0');
        if (!number || !isfinite(value)) {
            return dsi_schema_refuse(r, DS_ERR_FORMAT,
                                     "\"ref_chosen_logps\" and \"ref_rejected_logps\" must both be "
                                     "numbers; found %s and %s",
                                     dsi_schema_kind(both[0]), dsi_schema_kind(both[1]));
        }
        r->line->reference[i] = (float)value;
    }
    return true;
}

bool dsi_schema_preference(const dsi_schema_row *r, dsi_form *form)
{
    const json_t *prompt = dsi_schema_field(r, "prompt");
    /* a prompt in words beside chats repeats what is in them */
    const bool implicit = prompt == NULL || (json_is_string(prompt) && !is_chat(prompt) &&
                                             is_chat(dsi_schema_field(r, "chosen")));
    const side sides[] = {
        {"prompt", &form->prompt}, {"chosen", &form->answer}, {"rejected", &form->rejected}};
    return read_sides(r, form, sides + implicit, 3 - (size_t)implicit) &&
           (!implicit || extract_prompt(r, form)) && read_reference(r);
}
