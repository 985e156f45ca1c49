/* SPDX-License-Identifier: Apache-2.0 */
/* What the small files of a folder say of its tokens, brought into lists.
 *
 * Called once by tokenizer_special.c, which adds them. The table of added tokens is
 * "added_tokens_decoder" of tokenizer_config.json; only where that is absent count
 * special_tokens_map.json (over tokenizer_config.json), added_tokens.json and the tokens of
 * tokenizer.json. Which members count, which do not and which are refused is one table in
 * docs/internals/tokenizer.md.
 */
#include "data/tokenizer_said.h"

#include <string.h>

const char *const dsi_said_names[DSI_SAID_NAMES] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

/* ---- the members that count ---- */

static bool is_name(const char *key)
{
    for (size_t i = 0; i < DSI_SAID_NAMES; ++i) {
        if (strcmp(key, dsi_said_names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool names_a_token(const char *key)
{
    const size_t n = strlen(key);
    return n >= 6 && strcmp(key + n - 6, "_token") == 0 && !is_name(key);
}

/* Moves the tokens with names of the folder's own out of the members. */
static void take_specific(dsi_said_reader *r)
{
    json_t *extra = json_object_get(r->members, "extra_special_tokens");
    json_t *additional = json_object_get(r->members, "additional_special_tokens");
    if (additional != NULL && dsi_said_is_empty(extra)) {
        (void)json_object_set(r->members, "extra_special_tokens", additional);
        (void)json_object_del(r->members, "additional_special_tokens");
    }
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(r->members, next, key, value)
    {
        if (names_a_token(key) && json_is_string(value)) {
            (void)json_object_set(r->specific, key, value);
            (void)json_object_del(r->members, key);
        }
    }
    extra = json_object_get(r->members, "extra_special_tokens");
    if (json_is_object(extra) && !dsi_said_is_object(extra)) {
        (void)json_object_update(r->specific, extra);
        (void)json_object_del(r->members, "extra_special_tokens");
    }
}

/* A token of special_tokens_map.json is special, whatever it says. */
static json_t *map_token(const json_t *value)
{
    json_t *token = json_copy((json_t *)value);
    (void)json_object_set_new(token, "__type", json_string("AddedToken"));
    (void)json_object_set_new(token, "special", json_true());
    (void)json_object_set_new(token, "__map", json_true());
    return token;
}

static json_t *joined_extra(const dsi_said_reader *r, const json_t *value)
{
    const json_t *old = json_object_get(r->members, "extra_special_tokens");
    json_t *all = json_is_array(old) ? json_copy((json_t *)old) : json_array();
    size_t i;
    const json_t *one;
    json_array_foreach(value, i, one)
    {
        json_t *token = json_is_object(one) ? map_token(one) : json_incref((json_t *)one);
        bool there = false;
        for (size_t k = 0; !there && k < json_array_size(all); ++k) {
            there = json_equal(json_array_get(all, k), token) != 0;
        }
        if (!there) {
            (void)json_array_append(all, token);
        }
        json_decref(token);
    }
    return all;
}

static void merge_special_map(dsi_said_reader *r)
{
    const char *key;
    json_t *value;
    json_object_foreach(r->files->special_map, key, value)
    {
        const bool extra = strcmp(key, "extra_special_tokens") == 0;
        if (json_is_object(value) && !extra) {
            (void)json_object_set_new(r->members, key, map_token(value));
        } else if (extra && json_is_array(value)) {
            (void)json_object_set_new(r->members, key, joined_extra(r, value));
        } else {
            (void)json_object_set(r->members, key, value);
        }
    }
    json_t *extra = json_object_get(r->members, "extra_special_tokens");
    if (json_is_object(extra)) {
        (void)json_object_update(r->specific, extra);
        (void)json_object_del(r->members, "extra_special_tokens");
    }
}

static ds_status read_table(dsi_said_reader *r, const json_t *tree)
{
    const json_t *table = json_object_get(r->members, "added_tokens_decoder");
    if (table != NULL) {
        DS_TRY(dsi_said_table_of_config(r, table));
    } else {
        merge_special_map(r);
        DS_TRY(dsi_said_table_of_added(r));
        DS_TRY(dsi_said_table_of_tree(r, tree));
    }
    return DS_OK;
}

/* ---- the named tokens and the further ones ---- */

/* The properties that the table gives a text; the entry read last counts, also when another text
 * took its index. */
static void look_up(const dsi_said_reader *r, dsi_said *g)
{
    for (size_t i = r->table.n; i > 0; --i) {
        if (dsi_said_same_text(&r->table.data[i - 1], g)) {
            *g = r->table.data[i - 1];
            return;
        }
    }
}

/* Named tokens that a file gives no value; pad may stand in tokenizer.json's padding. */
static const char *default_of(const dsi_said_reader *r, const char *key, const json_t *tree)
{
    const json_t *padding = json_object_get(tree, "padding");
    const bool own = r->files->kind == DSI_CLASS_FILE || r->files->kind == DSI_CLASS_LLAMA;
    if (strcmp(key, "pad_token") == 0 && own && json_is_object(padding)) {
        return json_string_value(json_object_get(padding, "pad_token"));
    }
    return dsi_class_default(r->files->kind, key);
}

static ds_status read_named(dsi_said_reader *r, const json_t *tree)
{
    dsi_said *found = r->found;
    bool *is_there = r->is_there;
    for (size_t i = 0; i < DSI_SAID_NAMES; ++i) {
        const json_t *value = json_object_get(r->members, dsi_said_names[i]);
        const char *otherwise = value == NULL ? default_of(r, dsi_said_names[i], tree) : NULL;
        is_there[i] = otherwise != NULL || (value != NULL && !json_is_null(value));
        if (otherwise != NULL) {
            found[i] = (dsi_said){.plain = true};
            found[i].token.content = otherwise;
            found[i].token.n_content = (uint32_t)strlen(otherwise);
        } else if (is_there[i] && !dsi_said_token(value, &found[i])) {
            return dsi_said_wrong(r, "tokenizer_config.json", dsi_said_names[i],
                                  "a text, {\"content\": text, …} or null");
        } else if (is_there[i]) {
            look_up(r, &found[i]);
        }
        if (is_there[i]) {
            DS_TRY(dsi_said_push(r, &r->named, found[i]));
        }
    }
    return DS_OK;
}

static ds_status read_specific(dsi_said_reader *r)
{
    json_t *all = json_object(); /* those of special_tokens_map.json stand first */
    const char *key;
    json_t *value;
    json_object_foreach(r->members, key, value)
    {
        if (names_a_token(key) && (json_is_string(value) || dsi_said_is_object(value))) {
            (void)json_object_set(all, key, value);
        }
    }
    (void)json_object_update(all, r->specific);
    ds_status status = DS_OK;
    json_object_foreach(all, key, value)
    {
        dsi_said g;
        if (!dsi_said_token(value, &g)) {
            status = dsi_said_wrong(r, "tokenizer_config.json", key, "a token");
        } else if (status >= 0) {
            status = dsi_said_push(r, &r->named, g);
        }
    }
    json_decref(all);
    return status;
}

static ds_status read_further(dsi_said_reader *r)
{
    const json_t *list = json_object_get(r->members, "extra_special_tokens");
    list = list == NULL ? json_object_get(r->members, "additional_special_tokens") : list;
    if (list != NULL && !json_is_null(list) && !json_is_array(list)) {
        return dsi_said_wrong(r, "tokenizer_config.json", "extra_special_tokens",
                              "a list or an object");
    }
    size_t i;
    const json_t *one;
    json_array_foreach(list, i, one)
    {
        dsi_said g;
        if (!dsi_said_token(one, &g)) {
            return dsi_said_wrong(r, "tokenizer_config.json", "extra_special_tokens",
                                  "a list of tokens");
        }
        DS_TRY(dsi_said_push(r, &r->further, g));
    }
    return DS_OK;
}

ds_status dsi_said_read(dsi_said_reader *r, const json_t *tree)
{
    if (r->files->has_file) { /* its post-processor decides */
        (void)json_object_del(r->members, "add_bos_token");
        (void)json_object_del(r->members, "add_eos_token");
    }
    take_specific(r);
    DS_TRY(read_table(r, tree));
    if (r->files->spiece_tokens != NULL &&
        json_object_get(r->members, "extra_special_tokens") == NULL) {
        (void)json_object_set(r->members, "extra_special_tokens", r->files->spiece_tokens);
        r->spiece_tokens = true;
    }
    DS_TRY(read_named(r, tree));
    DS_TRY(read_specific(r));
    return read_further(r);
}
