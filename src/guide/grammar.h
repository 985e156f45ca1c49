/* SPDX-License-Identifier: Apache-2.0 */
/* A grammar over bytes: states with edges, some of which call a rule and go on behind it.
 *
 * Builders (from_schema.c, from_regex.c, from_gbnf.c) begin at a state and get the state behind
 * what they added. The first failure stays, with its message; what is added after it changes
 * nothing. A grammar that is finished is const.
 */
#ifndef DSI_GUIDE_GRAMMAR_H
#define DSI_GUIDE_GRAMMAR_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DSI_GRAMMAR_ERROR = 400, DSI_CHARS_RANGES = 512 };

typedef enum dsi_edge_kind {
    DSI_EDGE_BYTE,  /* takes a byte of low to high */
    DSI_EDGE_EMPTY, /* takes nothing */
    DSI_EDGE_CALL,  /* goes on at `to` behind a text of `rule` */
    DSI_EDGE_END    /* the rule may end here */
} dsi_edge_kind;

typedef struct dsi_edge {
    uint32_t from, to, rule;
    uint8_t kind, low, high;
} dsi_edge;

typedef struct dsi_grammar {
    dsi_edge *edges; /* when finished: by `from` */
    uint32_t n_edges, edge_room;
    uint32_t n_states;
    uint32_t *rules; /* [n_rules]: first states */
    uint32_t n_rules, rule_room;
    uint32_t root; /* rule */
    uint64_t work; /* what builders did, with a ceiling */
    bool failed;
    char error[DSI_GRAMMAR_ERROR];
    /* when finished */
    uint32_t *first;       /* [n_states + 1]: edges of a state */
    uint8_t class_of[256]; /* bytes that no edge tells apart are of one class */
    uint8_t one_of[256];   /* a byte of each class */
    uint32_t n_classes;
} dsi_grammar;

void dsi_grammar_free(dsi_grammar *g);
/* Returns 0, as a state. */
uint32_t dsi_grammar_fail(dsi_grammar *g, const char *format, ...) DS_PRINTF(2, 3);
/* Counts a step of a builder; false when there were too many, or after a failure. */
bool dsi_grammar_work(dsi_grammar *g);

uint32_t dsi_grammar_state(dsi_grammar *g);
void dsi_grammar_byte(dsi_grammar *g, uint32_t from, uint32_t to, uint8_t low, uint8_t high);
void dsi_grammar_empty(dsi_grammar *g, uint32_t from, uint32_t to);
/* A new rule, which begins at g->rules[rule]. */
uint32_t dsi_grammar_rule(dsi_grammar *g);
/* The rule whose text leads to `at` may end there. */
void dsi_grammar_end(dsi_grammar *g, uint32_t at);
/* These return the state behind. */
uint32_t dsi_grammar_call(dsi_grammar *g, uint32_t at, uint32_t rule);
uint32_t dsi_grammar_text(dsi_grammar *g, uint32_t at, const char *text, size_t n);

/* Sorts edges and finds classes. Errors: ERR_ARG: the first failure; a rule that calls itself
 * before it takes a byte. */
ds_status dsi_grammar_finish(ds_ctx *ctx, dsi_grammar *g, uint32_t root);

/* ---- chars.c: sets of code points ---- */
typedef struct dsi_chars {
    uint32_t low[DSI_CHARS_RANGES], high[DSI_CHARS_RANGES];
    uint32_t n;
    bool full; /* there were more */
} dsi_chars;

void dsi_chars_add(dsi_chars *c, uint32_t low, uint32_t high);
/* All others up to `most`. */
void dsi_chars_invert(dsi_chars *c, uint32_t most);
/* A character of the set, as UTF-8; quoted: as it stands within a string of JSON. */
uint32_t dsi_chars_put(dsi_grammar *g, uint32_t at, const dsi_chars *c, bool quoted);

/* ---- builders ---- */
/* A regular expression. whole: it describes the whole text; else a part, but for ^ and $. */
uint32_t dsi_form_regex(dsi_grammar *g, uint32_t at, const char *pattern, size_t n, bool whole,
                        bool quoted);
/* GBNF, llama.cpp's grammar; *root_out: the rule of that name. */
void dsi_form_gbnf(dsi_grammar *g, const char *text, size_t n, uint32_t *root_out);
/* A JSON schema as text. */
void dsi_form_schema_read(dsi_grammar *g, const char *text, size_t n, uint32_t *root_out);

#endif
