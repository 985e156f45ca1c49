/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a source and its target, for models that read the one and make the other (T5):
 * {"prompt","completion"}, texts. See schema.h. Each is tokenized by itself, with what the
 * tokenizer puts around a text, as transformers' tokenizer(source, text_target=target); the
 * source's tokens do not count. */
#include "data/schema/schema.h"

#include <stdlib.h>
#include <string.h>

/* Appends a text's tokens. */
static bool add(const dsi_schema_row *r, ds_tokenizer_scratch *scratch, const json_t *text,
                uint8_t counts)
{
    dsi_line *line = r->line;
    ds_tokens tokens;
    const ds_status status = ds_tokenizer_encode(
        r->params->tokenizer, scratch, json_string_value(text), json_string_length(text),
        DS_ENCODE_ADD_SPECIAL | DS_ENCODE_NO_SPECIAL_PARSE, &tokens);
    if (status < 0) {
        return dsi_schema_refuse(r, status, "the row cannot be tokenized: too long, or no memory");
    }
    uint32_t *ids = realloc(line->ids, (line->n + tokens.n + 1) * sizeof *ids);
    line->ids = ids != NULL ? ids : line->ids;
    uint8_t *counted = realloc(line->counted, line->n + tokens.n + 1);
    line->counted = counted != NULL ? counted : line->counted;
    if (ids == NULL || counted == NULL) {
        return dsi_schema_no_memory(r);
    }
    for (size_t i = 0; i < tokens.n; ++i) {
        ids[line->n + i] = tokens.ids[i];
        counted[line->n + i] = counts;
    }
    line->n += tokens.n;
    return true;
}

bool dsi_schema_sources(const dsi_schema_row *r, ds_tokenizer_scratch *scratch)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (!json_is_object(r->row)) {
        return dsi_schema_refuse(r, DS_ERR_FORMAT, "a row must be a JSON object; found %s",
                                 dsi_schema_kind(r->row));
    }
    const json_t *source = dsi_schema_field(r, "prompt");
    const json_t *target = dsi_schema_field(r, "completion");
    r->line->schema = DSI_SCHEMA_PAIR;
    r->line->sample = true;
    json_object_foreach((json_t *)(uintptr_t)r->row, key, value)
    {
        if (strcmp(key, "prompt") != 0 && strcmp(key, "completion") != 0) {
            dsi_schema_note(r, "", key);
        }
    }
    if (!json_is_string(source) || !json_is_string(target)) {
        return dsi_schema_refuse(r, DS_ERR_FORMAT,
                                 "expected \"prompt\" and \"completion\", strings: the source and "
                                 "what is made of it; found %s and %s (--column_map "
                                 "prompt=NAME,completion=NAME names other columns)",
                                 dsi_schema_kind(source), dsi_schema_kind(target));
    }
    return add(r, scratch, source, 0) && add(r, scratch, target, 1);
}
