/* SPDX-License-Identifier: Apache-2.0 */
/* What the place rules of built-in operators share. The notation: deepspeed/place.h. */
#ifndef DSI_OP_PLACE_H
#define DSI_OP_PLACE_H

#include <deepspeed/op.h>

/* A rule where an operator states it. */
#define DSI_PLACE(...) (&(const ds_place_rule){__VA_ARGS__})
/* Element by element, 0 from zeros; linear in these groups of inputs. */
#define DSI_PLACE_EACH(groups)                                                                     \
    DSI_PLACE(.in = "*", .out = "*", .split = "*", .linear = (groups), .flags = DS_PLACE_ELEMENTS)
/* A function of each element that does not make 0 from 0. */
#define DSI_PLACE_POINTS DSI_PLACE(.in = "*", .out = "*", .split = "*")
/* Not an operator of the logical graph. */
#define DSI_PLACE_NOWHERE DSI_PLACE(.flags = DSI_PLACE_REFUSED)

/* Flags of DS_PLACE_INTERNAL. */
enum {
    DSI_PLACE_REFUSED = 1 << 16,  /* not an operator of the logical graph */
    DSI_PLACE_EXACT = 1 << 17,    /* its sums are exact (DSI_TERMS_EXACT) … */
    DSI_PLACE_SIDE = 1 << 18,     /* … or left to the readers (DSI_TERMS_SIDE) */
    DSI_PLACE_COLUMNS = 1 << 19,  /* knows by its rank which elements a slice has: also a
                                     parameter's; what it makes of a slice is completed at once */
    DSI_PLACE_WHOLE = 1 << 21,    /* gathers what is cut: that is what it is for */
    DSI_PLACE_SLICES = 1 << 20,   /* reads a parameter's slice as it is */
    DSI_PLACE_OWN_TERM = 1 << 23, /* reads this rank's term of a sum as its own; a name only */
    DSI_PLACE_JOINS = 1 << 24,    /* makes one value of the ranks' own: terms of a maximum or of an
                                     exact sum, else one that all have */
    DSI_PLACE_EXPERTS = 1 << 25,  /* between rows that ranks along ep, sp, tp have of their own and
                                     those of the experts that they have */
    DSI_PLACE_TOKENS = 1 << 27, /* between tokens that ranks along tp have alike and their parts */
    DSI_PLACE_TURNS = 1 << 26,  /* parts go from rank to rank, in a ring */
    DSI_PLACE_ROWS = 1 << 28,   /* between the rank's own rows and those of all */
    DSI_PLACE_PART = 1 << 22    /* knows by the numbers of its rows which a part of a table has */
};

/* Takes a letter out of letters that may be split. */
void dsi_place_drop(char *letters, char letter);
void dsi_place_swap_dims(char *label);
bool dsi_place_has(const ds_place_case *c, uint32_t input);
/* Operand 0 on one side has n equal blocks side by side on a dim, of which each operand on the
 * other side is one: both are split inside of the blocks. n below 2: the dim is not split. */
void dsi_place_blocks(ds_place_case *c, int64_t dim, bool in, int64_t n);

#endif
