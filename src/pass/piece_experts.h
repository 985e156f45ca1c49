/* SPDX-License-Identifier: Apache-2.0 */
/* Experts of a graph in pieces (pieces.h): each piece sorts its own tokens by expert, sends its
 * rows and gets them back, so that what is live of rows is a piece's. No operator's rule says so,
 * since rows in the order of all tokens are no pieces side by side. Internal to pass/.
 *
 * Numbers: a row has the bits that it has anywhere, so that what comes back to a token has; the
 * gradient of a weight is added up piece by piece, in fp32.
 */
#ifndef DSI_PASS_PIECE_EXPERTS_H
#define DSI_PASS_PIECE_EXPERTS_H

#include "pass/pieces.h"

/* For `special`: makes a node of a layer of experts, *made_out; others are left. Errors:
 * ERR_UNSUPPORTED of experts with a capacity, which counts tokens of all pieces. */
ds_status dsi_pieces_experts(dsi_pieces *p, const dsi_node_info *node, bool *made_out);

#endif
