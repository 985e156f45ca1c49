/* SPDX-License-Identifier: Apache-2.0 */
/* Embeddings by parts of the vocabulary, for tensor parallelism. */
#ifndef DSI_PASS_VOCAB_PARTS_H
#define DSI_PASS_VOCAB_PARTS_H

#include "ir/graph.h"
#include "place/placement.h"

/* Makes a new graph over the same cells in which embedding_part and embedding_part_dw stand in
 * place of embedding and embedding_dw (op/vocab.c), where the table is a parameter whose rows
 * `ranks` divides. The numbers are the same. tensor: per cell; only tables that are cut by rows
 * there; NULL: all. Pure. The caller destroys *parts_out. */
ds_status dsi_vocab_parts(const ds_graph *graph, uint32_t ranks, const dsi_place_on *tensor,
                          ds_graph **parts_out);

#endif
