/* SPDX-License-Identifier: Apache-2.0 */
/* One token as a file of the folder gives it, and the tables of added tokens.
 *
 * Called by tokenizer_said.c. Contents are borrowed from the JSON.
 */
#include "data/tokenizer_said.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading one token ---- */

ds_status dsi_said_wrong(const dsi_said_reader *r, const char *file, const char *key,
                         const char *expected)
{
    return ds_fail(r->tok->ctx, DS_ERR_FORMAT, "%s/%s: \"%s\" must be %s", r->files->folder, file,
                   key, expected);
}

static bool read_flag(const json_t *json, const char *key, bool *out)
{
    const json_t *value = json_object_get(json, key);
    if (value == NULL) {
        return true;
    }
    *out = json_is_true(value);
    return json_is_boolean(value);
}

/* {"content": …, …}, each part of which may be absent. */
static bool read_properties(const json_t *json, dsi_said *out)
{
    dsi_added_token *token = &out->token;
    const json_t *content = json_object_get(json, "content");
    *out = (dsi_said){.says_normalized = json_object_get(json, "normalized") != NULL};
    token->content = json_is_string(content) ? json_string_value(content) : "";
    token->n_content = (uint32_t)json_string_length(content);
    return (content == NULL || json_is_null(content) || json_is_string(content)) &&
           read_flag(json, "single_word", &token->single_word) &&
           read_flag(json, "lstrip", &token->lstrip) && read_flag(json, "rstrip", &token->rstrip) &&
           read_flag(json, "normalized", &token->normalized) &&
           read_flag(json, "special", &token->special);
}

bool dsi_said_is_object(const json_t *json)
{
    const char *type = json_string_value(json_object_get(json, "__type"));
    return type != NULL && strcmp(type, "AddedToken") == 0;
}

/* "text" or {"__type": "AddedToken", "content": …, …}; older files leave "__type" out. */
bool dsi_said_token(const json_t *json, dsi_said *out)
{
    if (dsi_said_is_object(json) || json_is_string(json_object_get(json, "content"))) {
        return read_properties(json, out);
    }
    *out = (dsi_said){.plain = true};
    out->token.content = json_string_value(json);
    out->token.n_content = (uint32_t)json_string_length(json);
    return json_is_string(json);
}

/* With what was not said filled in. */
dsi_added_token dsi_said_whole(const dsi_said *g)
{
    dsi_added_token token = g->token;
    token.special = token.special || g->plain;
    token.normalized = g->says_normalized ? token.normalized : !token.special;
    return token;
}

bool dsi_said_same_text(const dsi_said *a, const dsi_said *b)
{
    return a->token.n_content == b->token.n_content &&
           memcmp(a->token.content, b->token.content, a->token.n_content) == 0;
}

ds_status dsi_said_push(const dsi_said_reader *r, dsi_said_list *list, dsi_said g)
{
    if (list->n == list->room) {
        const size_t room = list->room == 0 ? 16 : list->room * 2;
        dsi_said *data = realloc(list->data, room * sizeof *data);
        if (data == NULL) {
            return ds_fail(r->tok->ctx, DS_ERR_NOMEM, "no memory for the added tokens");
        }
        list->data = data;
        list->room = room;
    }
    list->data[list->n++] = g;
    return DS_OK;
}

bool dsi_said_is_empty(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

/* ---- the table of added tokens ---- */

static ds_status put_in_table(dsi_said_reader *r, int64_t index, dsi_said g)
{
    g.index = index;
    g.turn = r->table.n;
    return dsi_said_push(r, &r->table, g);
}

ds_status dsi_said_table_of_config(dsi_said_reader *r, const json_t *table)
{
    static const char file[] = "tokenizer_config.json";
    if (!json_is_object(table)) {
        return dsi_said_wrong(r, file, "added_tokens_decoder", "an object");
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)table, key, value)
    {
        char *end;
        const long long index = strtoll(key, &end, 10);
        dsi_said g;
        if (*key == '\0' || *end != '\0' || !json_is_object(value) || !read_properties(value, &g)) {
            return dsi_said_wrong(r, file, "added_tokens_decoder",
                                  "{\"number\": {\"content\": text, …}, …}");
        }
        DS_TRY(put_in_table(r, index, g));
    }
    return DS_OK;
}

/* Whether a file of the folder calls this text special: by a name, or in the list. */
static bool is_called_special(const dsi_said_reader *r, const char *text)
{
    for (size_t i = 0; i < DSI_SAID_NAMES; ++i) {
        const json_t *value = json_object_get(r->members, dsi_said_names[i]);
        value = json_is_true(json_object_get(value, "__map")) ? json_object_get(value, "content")
                                                              : value;
        if (json_is_string(value) && *text != '\0' && strcmp(json_string_value(value), text) == 0) {
            return true;
        }
    }
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(r->members, "extra_special_tokens"), i, one)
    {
        one = json_is_true(json_object_get(one, "__map")) ? json_object_get(one, "content") : one;
        if (json_is_string(one) && strcmp(json_string_value(one), text) == 0) {
            return true;
        }
    }
    return false;
}

ds_status dsi_said_table_of_added(dsi_said_reader *r)
{
    const char *key;
    json_t *value;
    json_object_foreach(r->files->added, key, value)
    {
        dsi_said g = {.says_normalized = true};
        g.token.content = key;
        g.token.n_content = (uint32_t)strlen(key);
        g.token.special = is_called_special(r, key);
        g.token.normalized = !g.token.special;
        if (!json_is_integer(value)) {
            return dsi_said_wrong(r, "added_tokens.json", key, "a whole number");
        }
        DS_TRY(put_in_table(r, json_integer_value(value), g));
    }
    return DS_OK;
}

ds_status dsi_said_table_of_tree(dsi_said_reader *r, const json_t *tree)
{
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(tree, "added_tokens"), i, one)
    {
        dsi_said g;
        if (!read_properties(one, &g)) {
            return dsi_said_wrong(r, "tokenizer.json", "added_tokens", "a list of tokens");
        }
        DS_TRY(put_in_table(r, json_integer_value(json_object_get(one, "id")), g));
    }
    return DS_OK;
}
