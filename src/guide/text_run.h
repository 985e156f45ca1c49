/* SPDX-License-Identifier: Apache-2.0 */
/* Text: characters that stand for themselves in a string of JSON (all but controls, the quote and
 * the backslash). Within a string any of them leads to the same position, so that whole branches of
 * a vocabulary need no walk: only how many characters certainly can follow.
 */
#ifndef DSI_GUIDE_TEXT_RUN_H
#define DSI_GUIDE_TEXT_RUN_H

#include "guide/form_walk.h"

/* What a byte of UTF-8 waits for: 0, nothing; else what the next byte may be. */
typedef enum dsi_utf8 {
    DSI_UTF8_WHOLE, /* between characters */
    DSI_UTF8_1,     /* one more byte, */
    DSI_UTF8_2,     /* two, */
    DSI_UTF8_3,     /* three; */
    DSI_UTF8_E0,    /* of these the first is limited: no overlong forms, */
    DSI_UTF8_ED,    /* no surrogates, */
    DSI_UTF8_F0,
    DSI_UTF8_F4,   /* nothing above U+10FFFF */
    DSI_UTF8_WRONG /* no text */
} dsi_utf8;

dsi_utf8 dsi_utf8_next(dsi_utf8 state, uint8_t byte);

/* Whether a byte of text is the first of a character. */
static inline bool dsi_utf8_begins(uint8_t byte)
{
    return (byte & 0xc0) != 0x80;
}

#define DSI_TEXT_ENDLESS INT8_MAX

typedef struct dsi_text_run {
    int8_t n;   /* characters that may begin, whichever; DSI_TEXT_ENDLESS: any number; -1: it is not
                   known that what one has begun   may go on */
    bool ends;  /* no character of text can come behind them */
    bool known; /* no more is to be found out */
} dsi_text_run;

typedef struct dsi_text_runs {
    dsi_form_walk *walk; /* borrowed */
    dsi_text_run *kept;  /* [positions][states] of this epoch */
    uint32_t epoch;
    uint8_t bytes[DSI_UTF8_WRONG][256]; /* that go on from a state: one of those that the grammar
                                           does not tell apart */
    uint16_t n[DSI_UTF8_WRONG];
} dsi_text_runs;

/* Errors: ERR_NOMEM. */
ds_status dsi_text_runs_create(ds_ctx *ctx, dsi_form_walk *walk, dsi_text_runs *runs);
void dsi_text_runs_free(dsi_text_runs *runs);
/* Of a position where a character has come so far. May drop positions of the walk. */
dsi_text_run dsi_text_runs_at(dsi_text_runs *runs, uint16_t at, dsi_utf8 state);
/* Behind a byte, from what is known before it. */
dsi_text_run dsi_text_run_behind(dsi_text_run before, dsi_utf8 state, uint8_t byte);

#endif
