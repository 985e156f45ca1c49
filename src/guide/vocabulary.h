/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of all tokens of a vocabulary, as a tree of their beginnings. Made once for a
 * tokenizer; const then. Tokens without bytes (special ones stand for nothing) are not in it. */
#ifndef DSI_GUIDE_VOCABULARY_H
#define DSI_GUIDE_VOCABULARY_H

#include "guide/text_run.h"

#include <deepspeed/tokenizer.h>
#include <stdbool.h>

enum { DSI_VOCABULARY_TEXTS = 16 };

/* Nodes stand in the order of their bytes, each before those that go on from it. */
typedef struct dsi_vocabulary_node {
    uint32_t size; /* nodes of this branch, itself included */
    uint32_t ids;  /* where its tokens begin in the tree's ids; they end where the next node's do */
    uint16_t depth;  /* bytes, 1 and more */
    uint16_t height; /* characters that begin with this byte or behind it, in the longest */
    uint8_t byte;
    uint8_t state; /* dsi_utf8 behind the byte */
    bool text;     /* all bytes of the branch are text, with what stands before them */
} dsi_vocabulary_node;

typedef struct dsi_vocabulary_tree {
    dsi_vocabulary_node *nodes; /* [n_nodes + 1] */
    uint32_t n_nodes;
    uint32_t *ids; /* by bytes */
} dsi_vocabulary_tree;

typedef struct dsi_vocabulary {
    uint32_t n;      /* tokens */
    uint32_t *at;    /* [n + 1]: where the bytes of a token begin */
    uint8_t *bytes;  /* as a token is decoded behind another one */
    uint32_t *begun; /* [n + 1] and the bytes at the begin of a text; NULL: the same */
    uint8_t *begin_bytes;
    uint32_t longest;
    dsi_vocabulary_tree all;
    dsi_vocabulary_tree others; /* of tokens that are not text alone (text_run.h) */
    /* Sets of tokens, a bit each: of text (text_run.h) all that begin at most so many characters;
     * the last: all of them. */
    uint64_t *texts[DSI_VOCABULARY_TEXTS];
} dsi_vocabulary;

/* Errors: ERR_NOMEM; ERR_LIMIT (tokens of more than 65535 bytes). */
ds_status dsi_vocabulary_create(ds_ctx *ctx, const ds_tokenizer *tokenizer,
                                dsi_vocabulary **words_out);
/* Of n tokens that are given: for tests. Borrowed for the call. */
ds_status dsi_vocabulary_of(ds_ctx *ctx, const char *const *texts, const size_t *sizes, uint32_t n,
                            dsi_vocabulary **words_out);
void dsi_vocabulary_destroy(dsi_vocabulary **words);

#endif
