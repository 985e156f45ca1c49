/* SPDX-License-Identifier: Apache-2.0 */
/* Where a text stands in a grammar. A position is a set of states with stacks of rules to come back
 * to; positions are numbered, and what follows a position on a byte is kept.
 *
 * What is kept has a bound: when it is full all of it goes but the root and the position that a
 * step begins at. So numbers are valid while `epoch` is the same. What a position is, and what
 * follows it, depends on the text alone, never on what is kept.
 */
#ifndef DSI_GUIDE_FORM_WALK_H
#define DSI_GUIDE_FORM_WALK_H

#include "guide/grammar.h"

#define DSI_FORM_WALK_DEAD UINT16_MAX
enum { DSI_FORM_WALK_MOST = 2048 }; /* positions that are kept */

typedef struct dsi_form_walk_pair {
    uint32_t state, stack;
} dsi_form_walk_pair;

typedef struct dsi_form_walk_node {
    uint32_t state, parent; /* where to go on, and behind that */
    uint16_t depth;
} dsi_form_walk_node;

typedef struct dsi_form_walk_position {
    uint32_t first, n; /* pairs */
    bool may_end;
} dsi_form_walk_position;

typedef struct dsi_form_walk {
    const dsi_grammar *g;
    uint32_t epoch;
    uint16_t root; /* a position that stays */
    dsi_form_walk_position *positions;
    uint32_t n_positions;
    dsi_form_walk_pair *pairs;
    uint32_t n_pairs;
    dsi_form_walk_node *nodes; /* 0: nothing to come back to */
    uint32_t n_nodes;
    uint16_t *follows;               /* [positions][classes] */
    uint32_t *of_node, *of_position; /* hash tables; 0: free, else number plus 1 */
    /* of a step */
    dsi_form_walk_pair *todo;
    uint32_t n_todo;
    uint32_t *seen, *seen_turn; /* a hash table of todo; an entry is valid in its turn */
    uint32_t turn;
    uint32_t *marks; /* [nodes]; also: where a node goes when the rest is dropped */
    uint32_t mark;
    void *memory; /* all of the arrays */
} dsi_form_walk;

/* Errors: ERR_NOMEM. The grammar is borrowed. */
ds_status dsi_form_walk_create(ds_ctx *ctx, const dsi_grammar *g, dsi_form_walk *m);
void dsi_form_walk_free(dsi_form_walk *m);
/* The position before a text; it is the root now. */
uint16_t dsi_form_walk_begin(dsi_form_walk *m);
/* The position behind a byte; DSI_FORM_WALK_DEAD: it cannot come here. Allocates nothing. */
uint16_t dsi_form_walk_step(dsi_form_walk *m, uint16_t at, uint8_t byte);
/* Whether the text may end here, and whether it can go on. */
bool dsi_form_walk_may_end(const dsi_form_walk *m, uint16_t at);
bool dsi_form_walk_goes_on(const dsi_form_walk *m, uint16_t at);

#endif
