/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of classes, for encoders: {"text","label"}, a class of the whole text or of a pair of texts,
 * and {"tokens","tags"}, words with a class each. See schema.h; texts are schema_texts.c's.
 *
 * In the place of a token's flag, whether it counts in the loss, stands its class and one more; 0:
 * it has none. Of texts that is the first token, and the flags of the others are their types. Of a
 * word it is the first of its tokens, as transformers' examples have it; a class of -100 is none.
 */
#include "data/schema/schema.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_CLASSES = 255, NO_CLASS = -100 };

/* A class by number or name; false: an error was recorded. */
static bool class_of(const dsi_schema_row *r, const json_t *value, bool may_be_none, uint8_t *out)
{
    const ds_dataset_params *p = r->params;
    const json_int_t most = p->n_classes > 0 ? p->n_classes : MOST_CLASSES;
    const char *name = json_string_value(value);
    const json_int_t number = json_is_integer(value) ? json_integer_value(value)
                              : name != NULL         ? dsi_schema_class(r, name)
                                                     : -1;
    if (number == NO_CLASS && may_be_none) {
        *out = 0;
        return true;
    }
    if (number >= 0 && number < most) {
        *out = (uint8_t)(number + 1);
        return true;
    }
    if (name != NULL) {
        return dsi_schema_refuse(r, DS_ERR_FORMAT, "\"%.40s\" is no name of a class%s", name,
                                 p->classes == NULL ? ": none were given (--labels)" : "");
    }
    return json_is_integer(value)
               ? dsi_schema_refuse(r, DS_ERR_FORMAT, "class %lld is not below %lld, their number",
                                   (long long)number, (long long)most)
               : dsi_schema_refuse(r, DS_ERR_FORMAT, "a class must be a number or a name; found %s",
                                   dsi_schema_kind(value));
}

/* What the tokenizer puts around a text: one token before it, one behind it, both or none. */
static bool around(const dsi_schema_row *r, ds_tokenizer_scratch *scratch, bool *before,
                   bool *behind, uint32_t ids[2])
{
    ds_tokens tokens;
    if (!dsi_schema_encode(r, scratch, "", 0, DS_ENCODE_ADD_SPECIAL, &tokens)) {
        return false;
    }
    if (tokens.n == 1 || tokens.n > 2) {
        return dsi_schema_refuse(
            r, DS_ERR_UNSUPPORTED,
            "the tokenizer puts %zu tokens around a text; words are read where "
            "it is one before and one behind, or none",
            tokens.n);
    }
    *before = *behind = tokens.n == 2;
    for (size_t i = 0; i < tokens.n; ++i) {
        ids[i] = tokens.ids[i];
    }
    return true;
}

/* One word, as behind a space. */
static bool read_word(const dsi_schema_row *r, ds_tokenizer_scratch *scratch, const json_t *word,
                      const json_t *tag)
{
    const size_t n = json_string_length(word);
    const uint64_t at = r->line->n;
    uint8_t class = 0;
    ds_tokens tokens;
    if (!json_is_string(word)) {
        return dsi_schema_refuse(r, DS_ERR_FORMAT, "\"tokens\" must be words; found %s",
                                 dsi_schema_kind(word));
    }
    char *text = malloc(n + 2);
    if (text == NULL) {
        return dsi_schema_no_memory(r);
    }
    text[0] = ' ';
    memcpy(text + 1, json_string_value(word), n + 1);
    const bool fine = class_of(r, tag, true, &class) &&
                      dsi_schema_encode(r, scratch, text, n + 1, 0, &tokens) &&
                      dsi_schema_append(r, &tokens);
    free(text);
    if (fine && r->line->n > at) {
        r->line->counted[at] = class;
    }
    return fine;
}

static bool read_words(const dsi_schema_row *r, ds_tokenizer_scratch *scratch)
{
    const json_t *words = dsi_schema_field(r, "tokens");
    const json_t *tags = dsi_schema_field(r, "tags");
    bool before = false;
    bool behind = false;
    uint32_t ids[2] = {0, 0};
    if (!json_is_array(words) || !json_is_array(tags) ||
        json_array_size(words) != json_array_size(tags)) {
        return dsi_schema_refuse(
            r, DS_ERR_FORMAT,
            "expected \"tokens\" and \"tags\", lists of the same length; found "
            "%s and %s (--column_map tags=ner_tags names another column)",
            dsi_schema_kind(words), dsi_schema_kind(tags));
    }
    if (!around(r, scratch, &before, &behind, ids) ||
        (before && !dsi_schema_append(r, &(ds_tokens){.ids = ids, .n = 1}))) {
        return false;
    }
    for (size_t i = 0; i < json_array_size(words); ++i) {
        if (!read_word(r, scratch, json_array_get(words, i), json_array_get(tags, i))) {
            return false;
        }
    }
    r->line->ends = behind;
    return !behind || dsi_schema_append(r, &(ds_tokens){.ids = ids + 1, .n = 1});
}

/* Numbers before the texts, or the class as the flag of the first token. */
static bool read_texts(const dsi_schema_row *r, ds_tokenizer_scratch *scratch)
{
    const json_t *label = dsi_schema_field(r, "label");
    uint8_t class = 0;
    if (label == NULL) {
        return dsi_schema_refuse(r, DS_ERR_FORMAT,
                                 "expected a text and its \"label\"; found no label (--column_map "
                                 "names another column)");
    }
    if (r->params->rows == DS_ROWS_VALUES) {
        return dsi_schema_values(r, label) && dsi_schema_append_texts(r, scratch);
    }
    if (!class_of(r, label, false, &class) || !dsi_schema_append_texts(r, scratch)) {
        return false;
    }
    if (r->line->n > 0) {
        r->line->counted[0] = class;
    }
    return true;
}

bool dsi_schema_classes(const dsi_schema_row *r, ds_tokenizer_scratch *scratch)
{
    const bool words = r->params->rows == DS_ROWS_TOKEN_CLASSES;
    const char *key = NULL;
    json_t *value = NULL;
    if (!json_is_object(r->row)) {
        return dsi_schema_refuse(r, DS_ERR_FORMAT, "a row must be a JSON object; found %s",
                                 dsi_schema_kind(r->row));
    }
    r->line->schema = DSI_SCHEMA_CLASSES;
    r->line->sample = true;
    json_object_foreach((json_t *)(uintptr_t)r->row, key, value)
    {
        if (words ? strcmp(key, "tokens") != 0 && strcmp(key, "tags") != 0
                  : !dsi_schema_is_text(key) && strcmp(key, "label") != 0) {
            dsi_schema_note(r, "", key);
        }
    }
    return words ? read_words(r, scratch) : read_texts(r, scratch);
}
