/* SPDX-License-Identifier: Apache-2.0 */
/* Random graphs over the built-in operators: a forward pass, its backward pass through src/grad,
 * gradients that are stored, accumulated or used up at once, a norm, an update. Sizes are tiny.
 * For tests that lower graphs: the same seed makes the same graph. */
#ifndef DS_TEST_RANDOM_GRAPH_H
#define DS_TEST_RANDOM_GRAPH_H

#include "ir/graph.h"

typedef struct random_graph_params {
    uint64_t seed;
    /* Small changes of a sum make small changes of every result: no kinks, no roundings to 16 bits
     * on the way, no update that looks at signs. */
    bool smooth;
} random_graph_params;

/* Fails the test on an error. The caller destroys both; the graph first. */
void random_graph_make(ds_ctx *ctx, const random_graph_params *params, ds_cells **cells_out,
                       ds_graph **graph_out);

/* Logical contents of a cell, for the samples of own-coordinate `copy`; parameters and states do
 * not depend on it. data: the cell's elements. */
void random_graph_fill(const ds_cells *cells, ds_cell cell, uint64_t seed, uint32_t copy,
                       void *data);

/* The next number of a generator, and one below n. */
uint64_t random_next(uint64_t *state);
uint32_t random_below(uint64_t *state, uint32_t n);

#endif
