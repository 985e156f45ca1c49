/* SPDX-License-Identifier: Apache-2.0 */
/* What the small files of a folder say of its tokens: between tokenizer_said.c with
 * tokenizer_said_token.c, which read it, and tokenizer_special.c, which adds the tokens. */
#ifndef DSI_DATA_TOKENIZER_SAID_H
#define DSI_DATA_TOKENIZER_SAID_H

#include "data/tokenizer_special.h"

enum {
    DSI_SAID_NAMES = 7,
    DSI_SAID_BOS = 0,
    DSI_SAID_EOS = 1,
    DSI_SAID_UNK = 2,
    DSI_SAID_PAD = 4,
    DSI_SAID_MASK = 6
};
extern const char *const dsi_said_names[DSI_SAID_NAMES];

/* A token that a file gives: a text, or a text with properties. */
typedef struct dsi_said {
    dsi_added_token token; /* content borrowed from the JSON */
    bool plain;            /* a text alone */
    bool says_normalized;
    int64_t index; /* in a table of added tokens */
    size_t turn;   /* of the list that it is on, as read */
} dsi_said;

typedef struct dsi_said_list {
    dsi_said *data; /* of malloc */
    size_t n, room;
} dsi_said_list;

typedef struct dsi_said_reader {
    ds_tokenizer *tok;
    const dsi_folder_files *files;
    json_t *members;                /* tokenizer_config.json with what other files put into it */
    bool spiece_tokens;             /* the further tokens are those of SentencePiece's model */
    json_t *specific;               /* names of the folder's own with their tokens */
    dsi_said found[DSI_SAID_NAMES]; /* by dsi_said_names */
    bool is_there[DSI_SAID_NAMES];
    dsi_said_list table;   /* of added tokens, as read: of those with one index the last counts */
    dsi_said_list named;   /* all with a name, in order */
    dsi_said_list further; /* extra_special_tokens */
    dsi_said_list to_add;  /* for tokenizer_special.c */
} dsi_said_reader;

/* Fills the lists. tree: of tokenizer.json as the file has it. */
ds_status dsi_said_read(dsi_said_reader *r, const json_t *tree);

/* ---- one token (tokenizer_said_token.c) ---- */

/* "text" or {"__type": "AddedToken", "content": …, …}; older files leave "__type" out. */
bool dsi_said_token(const json_t *json, dsi_said *out);
bool dsi_said_is_object(const json_t *json);
/* With what was not said filled in. */
dsi_added_token dsi_said_whole(const dsi_said *said);
bool dsi_said_same_text(const dsi_said *a, const dsi_said *b);
ds_status dsi_said_push(const dsi_said_reader *r, dsi_said_list *list, dsi_said said);
/* Whether a value counts as nothing: null, false, an empty text, list or object. */
bool dsi_said_is_empty(const json_t *value);
/* The error that a member of a file is not what it must be. */
ds_status dsi_said_wrong(const dsi_said_reader *r, const char *file, const char *key,
                         const char *expected);

/* The three sources of the table. */
ds_status dsi_said_table_of_config(dsi_said_reader *r, const json_t *table);
ds_status dsi_said_table_of_added(dsi_said_reader *r);
ds_status dsi_said_table_of_tree(dsi_said_reader *r, const json_t *tree);

#endif
