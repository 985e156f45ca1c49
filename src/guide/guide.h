/* SPDX-License-Identifier: Apache-2.0 */
/* Structured output: which tokens may come next, so that a text has a given form.
 *
 * A form is compiled to a grammar over bytes; a token may come when the grammar takes all its
 * bytes. The tokens of a position are found by one walk over the vocabulary's tree, and kept for a
 * few positions. What is allowed depends on form and text alone. Called by tools/serve.
 */
#ifndef DSI_GUIDE_GUIDE_H
#define DSI_GUIDE_GUIDE_H

#include "guide/vocabulary.h"

typedef struct dsi_guide dsi_guide;

enum { DSI_GUIDE_TOOLS = 128 };

typedef enum dsi_guide_kind {
    DSI_GUIDE_SCHEMA, /* JSON that a JSON schema describes */
    DSI_GUIDE_REGEX,  /* the whole text */
    DSI_GUIDE_GBNF    /* llama.cpp's grammars */
} dsi_guide_kind;

/* Compiles a form of n bytes. words: shared; they must outlive the guide. NULL: for
 * dsi_guide_where_bytes alone. Errors: ERR_ARG: the message names the keyword, or what is wrong
 * where; ERR_LIMIT; ERR_NOMEM. */
ds_status dsi_guide_create(ds_ctx *ctx, const dsi_vocabulary *words, dsi_guide_kind kind,
                           const char *form, size_t n, dsi_guide **guide_out);
/* As a regular expression that is one of n texts. */
ds_status dsi_guide_of_texts(ds_ctx *ctx, const dsi_vocabulary *words, const char *const *texts,
                             const size_t *sizes, size_t n, dsi_guide **guide_out);

/* How a model writes a call: begin NAME middle ARGUMENTS end. */
typedef struct dsi_call_form {
    const char *begin, *middle, *end;
    const char *trigger; /* a beginning of begin that no other text of an answer has */
    const char *between; /* two calls; NULL: only one is possible */
    bool at_begin;       /* a trigger counts only at the begin of the answer */
} dsi_call_form;

typedef struct dsi_guide_tool {
    const char *name;       /* letters, digits, _ and - */
    const char *parameters; /* a JSON schema of n bytes */
    size_t n;
} dsi_guide_tool;

/* An answer that calls tools. forced: it is a call; else any text, which a call may follow.
 * several: more calls may follow. */
ds_status dsi_guide_of_calls(ds_ctx *ctx, const dsi_vocabulary *words, const dsi_call_form *form,
                             const dsi_guide_tool *tools, size_t n, bool forced, bool several,
                             dsi_guide **guide_out);
void dsi_guide_destroy(dsi_guide **guide);

typedef enum dsi_guide_state {
    DSI_GUIDE_BROKEN,  /* the text has left the form */
    DSI_GUIDE_GOES_ON, /* it lacks something */
    DSI_GUIDE_MAY_END,
    DSI_GUIDE_ENDS /* nothing can follow */
} dsi_guide_state;

/* Where a text of n tokens stands. Any thread. */
dsi_guide_state dsi_guide_where(dsi_guide *guide, const uint32_t *text, size_t n);
/* The same for bytes. */
dsi_guide_state dsi_guide_where_bytes(dsi_guide *guide, const char *text, size_t n);
/* Behind a text of n tokens: logits of tokens that cannot come next become DSI_GUIDE_NEVER. Those
 * of stop_ids stay where the text may end. Where no token can come all but stop_ids are never.
 * Allocates nothing. Any thread, one after the other. */
void dsi_guide_mask(dsi_guide *guide, const uint32_t *text, size_t n, const uint32_t *stop_ids,
                    size_t n_stop_ids, float *logits, int64_t n_logits);

#define DSI_GUIDE_NEVER (-1e30f) /* far below any logit, and finite */

#endif
