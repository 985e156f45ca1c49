/* ZeRO as placements on the data-parallel axis: where each cell lies, and the lowering of a graph
 * of one rank's batch to local shapes with explicit collectives. DESIGN section 4 is the table.
 *
 * Cells: LOCAL (the same on every rank, or the rank's own batch), PARTIAL (a term of a sum over
 * ranks), FLAT (padded and cut into equal slices of ceil(P/N) elements; rank r owns the r-th).
 */
#ifndef DSI_PLACE_ZERO_H
#define DSI_PLACE_ZERO_H

#include "ir/graph.h"

typedef enum dsi_zero_place { DSI_ZERO_LOCAL, DSI_ZERO_PARTIAL, DSI_ZERO_FLAT } dsi_zero_place;

typedef struct dsi_zero_spec {
    uint32_t n_ranks; /* 1: nothing is done */
    uint32_t stage;   /* 0 to 3 */
    bool reduce_each; /* reduce every micro-batch, not their sum: accumulation is 1, or the run is
                         deterministic. Stages 2 and 3 always do */
    bool sum;         /* gradients are summed over ranks, not averaged */
    ds_dtype comm_dtype;
    int64_t reduce_bucket, gather_bucket; /* elements */
    /* stage 3, elements */
    int64_t persistence_threshold, model_persistence, max_live, max_reuse_distance;
} dsi_zero_spec;

/* Fills places[0 .. count of cells). Pure. Parameters below the persistence threshold stay LOCAL in
 * stage 3, in cell order, until model_persistence elements are kept. */
void dsi_zero_rules(const dsi_zero_spec *spec, const ds_cells *cells, dsi_zero_place *places);

/* The local form of a cell: a FLAT one is one-dimensional, its slice. */
ds_meta dsi_zero_meta(const dsi_zero_spec *spec, ds_meta whole, dsi_zero_place place);

/* Elements [begin, begin + count) of a tensor of `whole` elements that a rank owns; count is 0
 * where all of the slice is padding. */
void dsi_zero_own(const dsi_zero_spec *spec, int64_t whole, uint32_t rank, int64_t *begin_out,
                  int64_t *count_out);

/* Lowers a graph (after fusion). `local` receives the local form of each cell that it lacks: its
 * ids are those of graph's table. Errors: ERR_UNSUPPORTED names an operator that cannot work on
 * slices. Pure. The caller destroys *local_out. */
ds_status dsi_zero_localize(const ds_graph *graph, const dsi_zero_spec *spec, ds_cells *local,
                            ds_graph **local_out);

#endif
