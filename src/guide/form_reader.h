/* SPDX-License-Identifier: Apache-2.0 */
/* What the readers of regular expressions and of GBNF share: characters, counts, repetition. */
#ifndef DSI_GUIDE_FORM_READER_H
#define DSI_GUIDE_FORM_READER_H

#include "guide/grammar.h"

enum { DSI_FORM_READER_GROUPS = 64, DSI_FORM_READER_ALL = 0x10FFFF };

typedef struct dsi_form_reader {
    dsi_grammar *g;
    const char *text;
    size_t n, at;
    const char *what; /* "grammar", of messages */
    int depth;        /* groups */
    bool quoted;      /* of regular expressions */
    void *names;      /* of GBNF */
} dsi_form_reader;

/* A failure at this place. Returns 0. */
uint32_t dsi_form_reader_fail(dsi_form_reader *r, const char *message);
/* The next byte; 0: there is none. */
char dsi_form_reader_peek(const dsi_form_reader *r);
/* Whether the word stands here; it is passed. */
bool dsi_form_reader_skip(dsi_form_reader *r, const char *word);
/* The next code point, as it stands there. */
uint32_t dsi_form_reader_point(dsi_form_reader *r);
/* A number of n hexadecimal digits. */
uint32_t dsi_form_reader_hex(dsi_form_reader *r, int n);
/* A new state that `at` leads to. */
uint32_t dsi_form_reader_fresh(dsi_form_reader *r, uint32_t at);
/* What `put` reads here, as often as the * + ? {m,n} behind it says; each copy reads it again. */
uint32_t dsi_form_reader_repeated(dsi_form_reader *r, uint32_t at,
                                  uint32_t (*put)(dsi_form_reader *r, uint32_t at));

#endif
