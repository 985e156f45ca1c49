/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a template's lexer. Shared by jinja_lex.c (text and tags) and jinja_lex_tag.c (the
 * inside of a tag) alone. */
#ifndef DSI_DATA_JINJA_LEX_IMPL_H
#define DSI_DATA_JINJA_LEX_IMPL_H

#include "data/jinja/jinja_node.h"

typedef struct dsi_ji_lexer {
    dsi_arena *arena;
    const char *begin, *p, *end;
    dsi_jt *tokens;
    size_t n, room;
    char open[DSI_JI_DEPTH_MAX]; /* the brackets that are open in this tag */
    uint32_t n_open;
    bool line_starts; /* what was read last ended with a line break */
    dsi_ji_fault *fault;
    bool failed;
    const char *counted; /* lines and columns are known up to here */
    uint32_t line;
    const char *line_begin;
} dsi_ji_lexer;

/* The first failure is kept, at the place that is read. */
DS_PRINTF(3, 4)
void dsi_ji_lex_fail(dsi_ji_lexer *l, ds_status status, const char *format, ...);
dsi_jt *dsi_ji_lex_add(dsi_ji_lexer *l, dsi_jt_kind kind, const char *at, const char *text,
                       size_t n);
bool dsi_ji_lex_at(const dsi_ji_lexer *l, const char *p, const char *what);
void dsi_ji_lex_moved(dsi_ji_lexer *l, const char *to);
/* The end of a tag at p: "-%}" with the white space behind it, "+%}", or "%}" with a line break;
 * NULL when there is none. trim: whether the line break goes. */
const char *dsi_ji_lex_end(const dsi_ji_lexer *l, const char *p, const char *close, bool plus,
                           bool trim);

/* ---- jinja_lex_tag.c ---- */

/* A token of the inside of a tag, or its end; false behind the end. */
bool dsi_ji_lex_inside(dsi_ji_lexer *l, bool block);

#endif
