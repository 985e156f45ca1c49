/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the rows of a micro-batch in two. See domino.h; pieces.h does the work. */
#include "pass/domino.h"

#include "op/ops.h"
#include "pass/piece_experts.h"
#include "pass/pieces.h"

enum { N_HALVES = 2, ROW_DIM = 0 };

/* Half 1 has the odd row; whole: so many rows, or as many for each. */
static int64_t length(const dsi_pieces *p, int64_t whole, uint32_t half)
{
    const int64_t rows = *(const int64_t *)p->user;
    return whole * (half == 0 ? rows - rows / 2 : rows / 2) / rows;
}

static bool begins(const dsi_pieces *p, ds_value v, uint32_t dim)
{
    const ds_shape shape = p->r.from->values[v].meta.shape;
    return dim == ROW_DIM && shape.n_dims > 1 && shape.dims[ROW_DIM] == *(const int64_t *)p->user;
}

static bool is_of_rows(const dsi_pieces *p, ds_value v, uint32_t dim)
{
    (void)p;
    (void)v;
    return dim == ROW_DIM;
}

static ds_status slice(dsi_pieces *p, ds_value whole, uint32_t dim, uint32_t half,
                       ds_value *value_out)
{
    const int64_t n = ds_graph_meta(p->r.to, whole).shape.dims[dim];
    const dsi_slice_attrs attrs = {
        .dim = dim, .start = half == 0 ? 0 : length(p, n, 0), .length = length(p, n, half)};
    ds_value out[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_slice, &attrs, &whole, 1, out));
    *value_out = out[0];
    return DS_OK;
}

static ds_status join(dsi_pieces *p, const ds_value *made, uint32_t dim, ds_value *value_out)
{
    const dsi_concat_attrs attrs = {.dim = dim};
    ds_value out[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_concat, &attrs, made, N_HALVES, out));
    *value_out = out[0];
    return DS_OK;
}

/* Half 2 begins behind the samples of half 1. */
static ds_status draw_behind(dsi_pieces *p, ds_meta meta, uint32_t half, ds_value *rng)
{
    const dsi_rng_ahead_attrs attrs = {.samples = length(p, meta.shape.dims[ROW_DIM], 0)};
    ds_value out[DS_MAX_OUT];
    (void)half;
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_rng_ahead, &attrs, rng, 1, out));
    *rng = out[0];
    return DS_OK;
}

ds_status dsi_domino(const ds_graph *graph, int64_t rows, ds_graph **halves_out)
{
    static const dsi_pieces_how how = {.key = "tensor_parallel.domino",
                                       .dim = ROW_DIM,
                                       .own = 1u << DSI_PIECES_AXIS,
                                       .begins = begins,
                                       .may_slice = is_of_rows,
                                       .may_make = is_of_rows,
                                       .length = length,
                                       .slice = slice,
                                       .join = join,
                                       .draw_behind = draw_behind,
                                       .special = dsi_pieces_experts};
    if (rows < N_HALVES) {
        return ds_fail(graph->ctx, DS_ERR_CONFIG,
                       "tensor_parallel.domino needs 2 rows or more in a micro-batch to cut it in "
                       "halves, train_micro_batch_size_per_gpu is %lld; raise it, or set domino to "
                       "false",
                       (long long)rows);
    }
    return dsi_pieces_cut(graph, N_HALVES, &how, &rows, halves_out);
}
