/* The tokens that a folder's small files name, added as transformers adds them.
 *
 * Called once while a folder is opened, behind the components and before the tables are built. The
 * order matters, since a token that is new takes the next id: those of a table of added tokens by
 * their index, then the named ones (bos, eos, unk, sep, pad, cls, mask, then names of the folder's
 * own), then the list of further ones.
 *
 * The table is "added_tokens_decoder" of tokenizer_config.json; only where that is absent count
 * special_tokens_map.json (over tokenizer_config.json), added_tokens.json and the tokens of
 * tokenizer.json. Which members count, which do not and which are refused is one table in
 * docs/internals/tokenizer.md.
 */
#include "data/tokenizer_special.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
enum { N_NAMES = sizeof names / sizeof *names };

/* A token that a file gives: a text, or a text with properties. */
typedef struct given {
    dsi_added_token token; /* content borrowed from the JSON */
    bool plain;            /* a text alone */
    bool says_normalized;
    int64_t index; /* in a table of added tokens */
} given;

typedef struct given_list {
    given *data;
    size_t n, room;
} given_list;

typedef struct reader {
    ds_tokenizer *tok;
    const dsi_folder_files *files;
    json_t *members;  /* tokenizer_config.json with what other files put into it */
    json_t *specific; /* names of the folder's own with their tokens */
    given_list table;
    given_list named;   /* in order */
    given_list further; /* extra_special_tokens */
    given_list to_add;
} reader;

/* ---- reading one token ---- */

static ds_status wrong(const reader *r, const char *file, const char *key, const char *expected)
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
static bool read_properties(const json_t *json, given *out)
{
    dsi_added_token *token = &out->token;
    const json_t *content = json_object_get(json, "content");
    *out = (given){.says_normalized = json_object_get(json, "normalized") != NULL};
    token->content = json_is_string(content) ? json_string_value(content) : "";
    token->n_content = (uint32_t)json_string_length(content);
    return (content == NULL || json_is_null(content) || json_is_string(content)) &&
           read_flag(json, "single_word", &token->single_word) &&
           read_flag(json, "lstrip", &token->lstrip) && read_flag(json, "rstrip", &token->rstrip) &&
           read_flag(json, "normalized", &token->normalized) &&
           read_flag(json, "special", &token->special);
}

static bool is_token_object(const json_t *json)
{
    const char *type = json_string_value(json_object_get(json, "__type"));
    return type != NULL && strcmp(type, "AddedToken") == 0;
}

/* "text" or {"__type": "AddedToken", "content": …, …}; older files leave "__type" out. */
static bool read_token(const json_t *json, given *out)
{
    if (is_token_object(json) || json_is_string(json_object_get(json, "content"))) {
        return read_properties(json, out);
    }
    *out = (given){.plain = true};
    out->token.content = json_string_value(json);
    out->token.n_content = (uint32_t)json_string_length(json);
    return json_is_string(json);
}

/* With what was not said filled in. */
static dsi_added_token whole(const given *g)
{
    dsi_added_token token = g->token;
    token.special = token.special || g->plain;
    token.normalized = g->says_normalized ? token.normalized : !token.special;
    return token;
}

static bool same_content(const given *a, const given *b)
{
    return a->token.n_content == b->token.n_content &&
           memcmp(a->token.content, b->token.content, a->token.n_content) == 0;
}

static bool same_properties(const dsi_added_token *a, const dsi_added_token *b)
{
    return a->single_word == b->single_word && a->lstrip == b->lstrip && a->rstrip == b->rstrip &&
           a->normalized == b->normalized && a->special == b->special;
}

static ds_status push(const reader *r, given_list *list, given g)
{
    if (list->n == list->room) {
        const size_t room = list->room == 0 ? 16 : list->room * 2;
        given *data = realloc(list->data, room * sizeof *data);
        if (data == NULL) {
            return ds_fail(r->tok->ctx, DS_ERR_NOMEM, "no memory for the added tokens");
        }
        list->data = data;
        list->room = room;
    }
    list->data[list->n++] = g;
    return DS_OK;
}

/* ---- the members that count ---- */

static bool is_name(const char *key)
{
    for (size_t i = 0; i < N_NAMES; ++i) {
        if (strcmp(key, names[i]) == 0) {
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

static bool is_empty(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

/* Moves the tokens with names of the folder's own out of the members. */
static void take_specific(reader *r)
{
    json_t *extra = json_object_get(r->members, "extra_special_tokens");
    json_t *additional = json_object_get(r->members, "additional_special_tokens");
    if (additional != NULL && is_empty(extra)) {
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
    if (json_is_object(extra) && !is_token_object(extra)) {
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

static json_t *joined_extra(const reader *r, const json_t *value)
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

static void merge_special_map(reader *r)
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

/* ---- the table of added tokens ---- */

static ds_status put_in_table(reader *r, int64_t index, given g)
{
    g.index = index;
    for (size_t i = 0; i < r->table.n; ++i) {
        if (r->table.data[i].index == index) {
            r->table.data[i] = g;
            return DS_OK;
        }
    }
    return push(r, &r->table, g);
}

static ds_status table_of_config(reader *r, const json_t *table)
{
    static const char file[] = "tokenizer_config.json";
    if (!json_is_object(table)) {
        return wrong(r, file, "added_tokens_decoder", "an object");
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)table, key, value)
    {
        char *end;
        const long long index = strtoll(key, &end, 10);
        given g;
        if (*key == '\0' || *end != '\0' || !json_is_object(value) || !read_properties(value, &g)) {
            return wrong(r, file, "added_tokens_decoder",
                         "{\"number\": {\"content\": text, …}, …}");
        }
        DS_TRY(put_in_table(r, index, g));
    }
    return DS_OK;
}

/* Whether a file of the folder calls this text special: by a name, or in the list. */
static bool is_called_special(const reader *r, const char *text)
{
    for (size_t i = 0; i < N_NAMES; ++i) {
        const json_t *value = json_object_get(r->members, names[i]);
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

static ds_status table_of_added(reader *r)
{
    const char *key;
    json_t *value;
    json_object_foreach(r->files->added, key, value)
    {
        given g = {.says_normalized = true};
        g.token.content = key;
        g.token.n_content = (uint32_t)strlen(key);
        g.token.special = is_called_special(r, key);
        g.token.normalized = !g.token.special;
        if (!json_is_integer(value)) {
            return wrong(r, "added_tokens.json", key, "a whole number");
        }
        DS_TRY(put_in_table(r, json_integer_value(value), g));
    }
    return DS_OK;
}

static ds_status table_of_tree(reader *r, const json_t *tree)
{
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(tree, "added_tokens"), i, one)
    {
        given g;
        if (!read_properties(one, &g)) {
            return wrong(r, "tokenizer.json", "added_tokens", "a list of tokens");
        }
        DS_TRY(put_in_table(r, json_integer_value(json_object_get(one, "id")), g));
    }
    return DS_OK;
}

static int by_index(const void *a, const void *b)
{
    const given *x = a;
    const given *y = b;
    return x->index < y->index ? -1 : x->index > y->index;
}

static ds_status read_table(reader *r, const json_t *tree)
{
    const json_t *table = json_object_get(r->members, "added_tokens_decoder");
    if (table != NULL) {
        DS_TRY(table_of_config(r, table));
    } else {
        merge_special_map(r);
        DS_TRY(table_of_added(r));
        DS_TRY(table_of_tree(r, tree));
    }
    return DS_OK;
}

/* ---- the named tokens and the further ones ---- */

/* The properties that the table gives a text; the entry read last counts. */
static void look_up(const reader *r, given *g)
{
    for (size_t i = r->table.n; i > 0; --i) {
        if (same_content(&r->table.data[i - 1], g)) {
            *g = r->table.data[i - 1];
            return;
        }
    }
}

/* Named tokens that a file gives no value; pad may stand in tokenizer.json's padding. */
static const char *default_of(const reader *r, const char *key, const json_t *tree)
{
    const json_t *padding = json_object_get(tree, "padding");
    const bool own = r->files->kind == DSI_CLASS_FILE || r->files->kind == DSI_CLASS_LLAMA;
    if (strcmp(key, "pad_token") == 0 && own && json_is_object(padding)) {
        return json_string_value(json_object_get(padding, "pad_token"));
    }
    return dsi_class_default(r->files->kind, key);
}

static ds_status read_named(reader *r, const json_t *tree, given *found, bool *is_there)
{
    for (size_t i = 0; i < N_NAMES; ++i) {
        const json_t *value = json_object_get(r->members, names[i]);
        const char *otherwise = value == NULL ? default_of(r, names[i], tree) : NULL;
        is_there[i] = otherwise != NULL || (value != NULL && !json_is_null(value));
        if (otherwise != NULL) {
            found[i] = (given){.plain = true};
            found[i].token.content = otherwise;
            found[i].token.n_content = (uint32_t)strlen(otherwise);
        } else if (is_there[i] && !read_token(value, &found[i])) {
            return wrong(r, "tokenizer_config.json", names[i],
                         "a text, {\"content\": text, …} or null");
        } else if (is_there[i]) {
            look_up(r, &found[i]);
        }
        if (is_there[i]) {
            DS_TRY(push(r, &r->named, found[i]));
        }
    }
    return DS_OK;
}

static ds_status read_specific(reader *r)
{
    json_t *all = json_object(); /* those of special_tokens_map.json stand first */
    const char *key;
    json_t *value;
    json_object_foreach(r->members, key, value)
    {
        if (names_a_token(key) && (json_is_string(value) || is_token_object(value))) {
            (void)json_object_set(all, key, value);
        }
    }
    (void)json_object_update(all, r->specific);
    ds_status status = DS_OK;
    json_object_foreach(all, key, value)
    {
        given g;
        if (!read_token(value, &g)) {
            status = wrong(r, "tokenizer_config.json", key, "a token");
        } else if (status >= 0) {
            status = push(r, &r->named, g);
        }
    }
    json_decref(all);
    return status;
}

static ds_status read_further(reader *r)
{
    const json_t *list = json_object_get(r->members, "extra_special_tokens");
    list = list == NULL ? json_object_get(r->members, "additional_special_tokens") : list;
    if (list != NULL && !json_is_null(list) && !json_is_array(list)) {
        return wrong(r, "tokenizer_config.json", "extra_special_tokens", "a list or an object");
    }
    size_t i;
    const json_t *one;
    json_array_foreach(list, i, one)
    {
        given g;
        if (!read_token(one, &g)) {
            return wrong(r, "tokenizer_config.json", "extra_special_tokens", "a list of tokens");
        }
        DS_TRY(push(r, &r->further, g));
    }
    return DS_OK;
}

/* ---- adding ---- */

/* Puts a token on the list unless it is there: among the added ones or the table's new ones by its
 * text, among those that other names put here by all it says. */
static ds_status want(reader *r, size_t n_table, const given *g)
{
    if (dsi_tokens_find(r->tok, g->token.content, g->token.n_content) != DSI_NO_ID) {
        return DS_OK;
    }
    for (size_t i = 0; i < r->to_add.n; ++i) {
        const given *other = &r->to_add.data[i];
        const dsi_added_token a = whole(other);
        const dsi_added_token b = whole(g);
        if (same_content(other, g) &&
            (i < n_table || (other->plain == g->plain && same_properties(&a, &b)))) {
            return DS_OK;
        }
    }
    return push(r, &r->to_add, *g);
}

static ds_status add_all(reader *r)
{
    qsort(r->table.data, r->table.n, sizeof *r->table.data, by_index);
    for (size_t i = 0; i < r->table.n; ++i) {
        DS_TRY(push(r, &r->to_add, r->table.data[i]));
    }
    const size_t n_table = r->to_add.n;
    for (size_t i = 0; i < r->named.n; ++i) {
        DS_TRY(want(r, n_table, &r->named.data[i]));
    }
    for (size_t i = 0; i < r->further.n; ++i) {
        DS_TRY(want(r, n_table, &r->further.data[i]));
    }
    dsi_tokens_begin(r->tok);
    for (size_t i = 0; i < r->to_add.n; ++i) {
        given *g = &r->to_add.data[i];
        for (size_t k = 0; !g->plain && k < r->named.n; ++k) {
            g->token.special = g->token.special || same_content(&r->named.data[k], g);
        }
        const dsi_added_token token = whole(g);
        DS_TRY(dsi_tokens_add(r->tok, r->files->folder, &token));
    }
    return DS_OK;
}

/* Qwen2's class adds all that is special once more, with plain properties. */
static ds_status add_again(reader *r)
{
    dsi_tokens_begin(r->tok);
    for (size_t i = 0; i < r->named.n + r->further.n; ++i) {
        given g = i < r->named.n ? r->named.data[i] : r->further.data[i - r->named.n];
        const dsi_added_token token = {
            .content = g.token.content, .n_content = g.token.n_content, .special = true};
        DS_TRY(dsi_tokens_add(r->tok, r->files->folder, &token));
    }
    return DS_OK;
}

/* ---- bos, eos, pad, unk ---- */

static ds_status note_ids(reader *r, const given *found, const bool *is_there)
{
    ds_tokenizer *tok = r->tok;
    int64_t ids[N_NAMES];
    for (size_t i = 0; i < N_NAMES; ++i) {
        ids[i] = is_there[i]
                     ? ds_tokenizer_id(tok, found[i].token.content, found[i].token.n_content)
                     : -1;
    }
    for (size_t i = 0; i < N_NAMES; ++i) { /* a text that is no token is the unknown one */
        ids[i] = is_there[i] && ids[i] < 0 ? ids[2] : ids[i];
    }
    tok->bos = ids[0];
    tok->unk = ids[2];
    tok->pad = ids[4];
    if (ids[1] >= 0) {
        tok->eos[0] = (uint32_t)ids[1];
        tok->n_eos = 1;
    }
    for (size_t i = 0; i < 2; ++i) {
        char **text = i == 0 ? &tok->bos_text : &tok->eos_text;
        if (is_there[i]) {
            *text = dsi_arena_strndup(tok->arena, found[i].token.content, found[i].token.n_content);
            if (*text == NULL) {
                return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for the special tokens");
            }
        }
    }
    return DS_OK;
}

static bool is_on(const reader *r, const char *key)
{
    const json_t *value = json_object_get(r->members, key);
    return !is_empty(value) && !(json_is_number(value) && json_number_value(value) == 0.0);
}

/* add_bos_token and add_eos_token count for vocab.json with merges.txt alone. */
static ds_status put_around(reader *r)
{
    ds_tokenizer *tok = r->tok;
    const bool bos = is_on(r, "add_bos_token") && tok->bos >= 0;
    const bool eos = is_on(r, "add_eos_token") && tok->n_eos > 0;
    uint32_t *ids = dsi_arena_array(tok->arena, 2, sizeof *ids);
    if (ids == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for the special tokens");
    }
    ids[0] = bos ? (uint32_t)tok->bos : 0;
    ids[1] = tok->eos[0];
    uint32_t n = 0;
    if (bos) {
        tok->template_pieces[n++] = (dsi_template_piece){.ids = ids, .n_ids = 1};
    }
    tok->template_pieces[n++] = (dsi_template_piece){.sequence = true};
    if (eos) {
        tok->template_pieces[n++] = (dsi_template_piece){.ids = ids + 1, .n_ids = 1};
    }
    tok->n_template = n;
    return DS_OK;
}

static ds_status apply(reader *r, const json_t *tree)
{
    given found[N_NAMES];
    bool is_there[N_NAMES];
    if (r->files->has_file) { /* its post-processor decides */
        (void)json_object_del(r->members, "add_bos_token");
        (void)json_object_del(r->members, "add_eos_token");
    }
    take_specific(r);
    DS_TRY(read_table(r, tree));
    DS_TRY(read_named(r, tree, found, is_there));
    DS_TRY(read_specific(r));
    DS_TRY(read_further(r));
    DS_TRY(add_all(r));
    if (r->files->kind == DSI_CLASS_QWEN2) {
        DS_TRY(add_again(r));
    }
    DS_TRY(note_ids(r, found, is_there));
    const json_t *split = json_object_get(r->members, "split_special_tokens");
    if (split != NULL && !json_is_boolean(split)) {
        return wrong(r, "tokenizer_config.json", "split_special_tokens", "true or false");
    }
    r->tok->split_special = json_is_true(split);
    return r->files->has_file ? DS_OK : put_around(r);
}

ds_status dsi_special_apply(ds_tokenizer *tok, const dsi_folder_files *files, const json_t *tree)
{
    reader r = {.tok = tok, .files = files, .specific = json_object()};
    r.members = files->config != NULL ? json_copy(files->config) : json_object();
    const ds_status status =
        r.members != NULL && r.specific != NULL
            ? apply(&r, tree)
            : ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for the special tokens");
    free(r.table.data);
    free(r.named.data);
    free(r.further.data);
    free(r.to_add.data);
    json_decref(r.members);
    json_decref(r.specific);
    return status;
}

ds_status dsi_special_check(ds_tokenizer *tok, const dsi_folder_files *files)
{
    static const char *const refused[] = {
        "auto_map",
        "fast_tokenizer_files",
        "fix_mistral_regex",
        "gguf_file",
        "init_inputs",
        "merges",
        "model_specific_special_tokens",
        "post_processor",
        "tokenizer_object",
        "tokenizer_padding",
        "tokenizer_truncation",
        "vocab",
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
        if (!is_empty(json_object_get(files->config, refused[i]))) {
            return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                           "%s/tokenizer_config.json: \"%s\" is not supported; without it "
                           "transformers would read text otherwise",
                           files->folder, refused[i]);
        }
    }
    const json_t *most = json_object_get(files->config, "model_max_length");
    if (most != NULL && !json_is_null(most) && !json_is_number(most)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s/tokenizer_config.json: \"model_max_length\" must be a number or null",
                       files->folder);
    }
    if (files->kind == DSI_CLASS_OTHER) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: transformers reads this folder with the class %.60s, which builds a "
                       "tokenizer of its own and is not supported; known: LlamaTokenizer, "
                       "Qwen2Tokenizer, GPT2Tokenizer, and the general class "
                       "(PreTrainedTokenizerFast), which takes tokenizer.json as it stands",
                       files->folder, files->class_name);
    }
    return DS_OK;
}
