/* SPDX-License-Identifier: Apache-2.0 */
/* A graph whose values are cut along one dim, each node of which then stands once a piece.
 *
 * What a node may be cut along, what its attributes are then, and which results are sums its
 * operator's placement rule says (place/rule.h): a piece is a rank of an axis that is one process.
 * In place of moving values between ranks, all pieces are there. domino.c cuts the rows of a
 * micro-batch so, chunks.c the positions of its sequences; they say what differs (dsi_pieces_how).
 *
 * Invariants: 1. of a value that is cut all pieces are there; 2. pieces stay in their order; 3. a
 * value is put together, or cut, in each phase anew, so that nothing lives longer for it; 4. a mean
 * over rows is made of all rows; 5. rows of experts, which each piece sorts by itself
 * (piece_experts.h), are put together by nobody. Internal to pass/.
 */
#ifndef DSI_PASS_PIECES_H
#define DSI_PASS_PIECES_H

#include "ir/rewrite.h"
#include "place/rule.h"

/* A value of the graph made, and the phase that made it. */
typedef struct dsi_piece_form {
    ds_value value; /* DS_NONE: not there */
    ds_phase phase;
} dsi_piece_form;

typedef struct dsi_pieces dsi_pieces;

/* One way to cut a node: by its operator's rule, or as `special` says. */
typedef struct dsi_piece_cut {
    ds_place_case rule;
    dsi_strategy how;
    ds_meta in[DS_MAX_IN], out[DS_MAX_OUT];
    uint32_t chained[DS_MAX_OUT]; /* of a sum: the input that is added to it, DS_MAX_IN: none */
    bool apart;                   /* pieces of what is made are not parts of one value */
    /* Changes the node's attributes to a piece's; NULL: by the operator's rule. */
    void (*attrs)(const dsi_pieces *p, const dsi_node_info *node, uint32_t piece, void *attrs);
} dsi_piece_cut;

/* What who cuts decides. */
typedef struct dsi_pieces_how {
    const char *key; /* of the configuration, for errors */
    uint32_t dim;    /* of (B,T,..), along which samples or positions are cut */
    uint32_t own;    /* mask of axes: what draws by sample draws by the piece's own samples */
    bool backward_last_first; /* pieces of a node of the backward phase stand last first, so that
                                 sums over them are added up in that order */
    /* Whether an input of the graph is what is cut first: all else follows. */
    bool (*begins)(const dsi_pieces *p, ds_value v, uint32_t dim);
    /* Whether a value that is not cut may be, along this dim, for a node that wants it so. */
    bool (*may_slice)(const dsi_pieces *p, ds_value v, uint32_t dim);
    /* Whether a node may make pieces of a value along this dim. */
    bool (*may_make)(const dsi_pieces *p, ds_value v, uint32_t dim);
    /* Elements of a piece of a dim of so many. */
    int64_t (*length)(const dsi_pieces *p, int64_t whole, uint32_t piece);
    /* A piece of a whole value of the graph made, and the whole of all pieces. */
    ds_status (*slice)(dsi_pieces *p, ds_value whole, uint32_t dim, uint32_t piece,
                       ds_value *value_out);
    ds_status (*join)(dsi_pieces *p, const ds_value *made, uint32_t dim, ds_value *value_out);
    /* An rng for the samples of a piece; default NULL: draws go by numbers of rows. meta, on: of
     * an operand that is cut. */
    ds_status (*draw_behind)(dsi_pieces *p, ds_meta meta, uint32_t piece, ds_value *rng);
    /* Makes a node in a way of its own, or leaves it; default NULL. */
    ds_status (*special)(dsi_pieces *p, const dsi_node_info *node, bool *made_out);
} dsi_pieces_how;

struct dsi_pieces {
    dsi_rewrite r;
    const dsi_pieces_how *how;
    const void *user; /* of who cuts */
    dsi_mesh mesh;    /* of the pieces, on DSI_PIECES_AXIS */
    uint32_t n;
    bool *is_cut;          /* per value of `from`: made in pieces; else whole, or an input's cell */
    bool *apart;           /* per value that is cut: its pieces are not parts of one value */
    uint8_t *dim;          /* per value that is cut: along what */
    ds_value *made;        /* per value and piece, where is_cut */
    dsi_piece_form *whole; /* per value: put together for readers of a phase */
    dsi_piece_form *part;  /* per value and piece: cut for readers of a phase */
};

#define DSI_PIECES_AXIS DSI_AXIS_DPS /* that stands for the pieces */

/* The graph in n pieces. Errors: those of the graph, and of `special`. The caller destroys
 * *made_out. */
ds_status dsi_pieces_cut(const ds_graph *graph, uint32_t n, const dsi_pieces_how *how,
                         const void *user, ds_graph **made_out);

/* For `special`: an input for the piece whose node is made; all of an input; outputs in pieces. */
ds_status dsi_pieces_part(dsi_pieces *p, ds_value v, uint32_t dim, uint32_t piece,
                          ds_value *value_out);
ds_status dsi_pieces_whole(dsi_pieces *p, ds_value v, ds_value *value_out);
void dsi_pieces_made(dsi_pieces *p, ds_value v, uint32_t dim, const ds_value *made);

/* For `special`: what is known of a node, of which the way to cut it is to be filled in; and the
 * node in pieces, cut so. */
void dsi_pieces_describe(const dsi_pieces *p, const dsi_node_info *node, dsi_piece_cut *cut_out);
ds_status dsi_pieces_cut_node(dsi_pieces *p, const dsi_node_info *node, const dsi_piece_cut *cut);

/* The piece that is made as number i of the node that stands there, by backward_last_first. */
uint32_t dsi_pieces_turn(const dsi_pieces *p, const dsi_node_info *node, uint32_t i);

#endif
