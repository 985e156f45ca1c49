/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized collectives: changes of placement whose collectives carry blocks of whole numbers
 * (op/quantize_blocks.c) in place of floats. See localize_impl.h and docs/internals/quantized.md.
 *
 *     flat(dps) -> R           quantize_blocks, all_gather, dequantize_blocks
 *     dps:P -> flat(dps)       quantize_blocks, all_to_all, dequantize_sum
 *     dpr:P dps:P ->           the same over dps, then over dpr: what leaves a group of dps is
 *         flat(dps,dpr)        the group's sum
 *
 * Blocks begin where a rank's slice begins, so they do not depend on buckets, and the last of a
 * slice may be shorter. What a collective makes has the type of what went in; between two it is
 * fp32. */
#include "place/localize_impl.h"

enum {
    WEIGHT_BITS = 8,
    WEIGHT_BLOCK = 2048,
    GRADIENT_BITS = 4,
    GRADIENT_BLOCK = 256,
    ERROR_BITS = 8
};

/* ---- parameters ------------------------------------------------------------------------------ */

bool dsi_blocks_carry_parameter(const dsi_localizing *l, ds_cell cell)
{
    const dsi_quantized *q = &l->params->quantized;
    const bool frozen = ds_cells_get(l->r.from->cells, cell)->frozen;
    return l->r.to->phase < DS_PHASE_STEP && (q->weights || (q->frozen_weights && frozen));
}

/* The slices that all ranks of ZeRO together would have, of which one along these axes is made: so
 * that blocks are the same whether groups share parameters (hpZ, MiCS) or all ranks. */
static int64_t parts_of(const dsi_localizing *l, const dsi_axes *axes, int64_t count)
{
    const dsi_mesh *mesh = &l->placed->mesh;
    const dsi_axes all = dsi_axes_zero(true);
    const int64_t n = dsi_axes_size(mesh, &all);
    return count % n == 0 ? n / dsi_axes_size(mesh, axes) : 1;
}

ds_status dsi_blocks_gather(dsi_localizing *l, const dsi_axes *axes, ds_shape shape,
                            ds_value *value)
{
    const ds_meta slice = ds_graph_meta(l->r.to, *value);
    const int64_t n_parts = parts_of(l, axes, ds_shape_count(shape));
    dsi_blocks_attrs attrs = {.bits = WEIGHT_BITS,
                              .block = WEIGHT_BLOCK,
                              .n_rows = n_parts,
                              .width = ds_shape_count(slice.shape) / n_parts};
    DS_TRY(dsi_localize_apply(l, &dsi_op_quantize_blocks, &attrs, *value, value));
    attrs.n_rows *= dsi_axes_size(&l->placed->mesh, axes);
    attrs.count = ds_shape_count(shape);
    attrs.dtype = slice.dtype;
    DS_TRY(dsi_localize_gather(l, axes, ds_shape_2d(attrs.n_rows, dsi_blocks_row_bytes(&attrs)),
                               value));
    DS_TRY(dsi_localize_apply(l, &dsi_op_dequantize_blocks, &attrs, *value, value));
    return dsi_localize_reshape(l, shape, value);
}

/* ---- gradients ------------------------------------------------------------------------------- */

bool dsi_blocks_carry_gradient(const dsi_localizing *l, ds_value v, const dsi_spread *from)
{
    const uint32_t terms = dsi_placement_partial_axes(&from->at);
    return l->params->quantized.gradients && terms != 0 &&
           from->at.on[dsi_axes_of(terms).axis[0]].dim == DSI_TERMS_SUM &&
           l->r.from->values[v].meta.shape.n_dims > 1;
}

static ds_meta error_of(int64_t n_rows, int64_t width)
{
    const dsi_blocks_attrs how = {.bits = ERROR_BITS, .block = GRADIENT_BLOCK, .width = width};
    return (ds_meta){DS_DTYPE_U8, ds_shape_2d(n_rows, dsi_blocks_row_bytes(&how))};
}

void dsi_quantized_errors(int64_t n_inner, int64_t n_outer, ds_shape gradient, ds_meta *worker_out,
                          ds_meta *server_out)
{
    const int64_t n = n_inner * n_outer;
    const int64_t slice = (ds_shape_count(gradient) + n - 1) / n;
    const bool carried = gradient.n_dims > 1 && n > 1;
    *worker_out = carried ? error_of(n_inner, slice * n_outer) : (ds_meta){0};
    *server_out = carried && n_outer > 1 ? error_of(n_outer, slice) : (ds_meta){0};
}

static ds_status quantize(dsi_localizing *l, const char *name, ds_cell_kind error,
                          dsi_blocks_attrs *attrs, ds_value *value)
{
    const dsi_quantized *q = &l->params->quantized;
    const ds_cells *cells = l->r.from->cells;
    if (!q->errors) {
        return dsi_localize_apply(l, &dsi_op_quantize_blocks, attrs, *value, value);
    }
    ds_value in[3] = {*value, DS_NONE, DS_NONE};
    ds_value out[DS_MAX_OUT];
    const ds_cell cell = ds_cells_find(cells, error, name);
    if (cell == DS_NONE) {
        return ds_fail(l->r.from->ctx, DS_ERR_INTERNAL, "%s has no cell of kind %s", name,
                       ds_cell_kind_name(error));
    }
    DS_TRY(ds_graph_read(l->r.to, cell, &in[1]));
    if (q->seeded) {
        const ds_cell seed = ds_cells_find(cells, DS_CELL_SCALAR, "loss_seed");
        DS_TRY(seed != DS_NONE ? ds_graph_read(l->r.to, seed, &in[2]) : DS_OK);
    }
    attrs->beta = q->beta;
    DS_TRY(ds_graph_apply(l->r.to, &dsi_op_quantize_with_error, attrs, in, 3, out));
    *value = out[0];
    return DS_OK;
}

/* One exchange: rows of `width` elements go to the ranks along axes, who add what comes. */
static ds_status exchange(dsi_localizing *l, const dsi_axes *axes, const char *name,
                          ds_cell_kind error, dsi_blocks_attrs *attrs, int64_t bucket,
                          ds_value *value)
{
    dsi_comm_attrs comm = dsi_localize_comm(l, axes, -1);
    dsi_blocks_attrs how = {.bits = GRADIENT_BITS,
                            .block = GRADIENT_BLOCK,
                            .n_rows = comm.n_ranks,
                            .width = attrs->width};
    attrs->bits = how.bits;
    attrs->block = how.block;
    attrs->n_rows = how.n_rows;
    DS_TRY(dsi_bucket_number(l, bucket, &dsi_op_all_to_all, DS_DTYPE_U8, &comm));
    DS_TRY(quantize(l, name, error, &how, value));
    DS_TRY(dsi_localize_apply(l, &dsi_op_all_to_all, &comm, *value, value));
    return dsi_localize_apply(l, &dsi_op_dequantize_sum, attrs, *value, value);
}

/* The axes of a slice in a group, and those of the groups. */
static void split_axes(const dsi_axes *flat, dsi_axes *inner, dsi_axes *outer)
{
    for (uint32_t i = 0; i < flat->n; ++i) {
        const dsi_axis axis = (dsi_axis)flat->axis[i];
        dsi_axes_add(axis == DSI_AXIS_DPR && i > 0 ? outer : inner, axis);
    }
}

/* What ranks have terms of beyond those that have slices (of adapters, along tp) is added up as it
 * is first: it is no gradient of more samples. */
static ds_status add_others(dsi_localizing *l, ds_value v, dsi_spread *from, const dsi_axes *flat,
                            int64_t bucket, ds_value *value)
{
    const dsi_spread terms = *from;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (from->at.on[a].kind == DSI_PARTIAL && !dsi_axes_has(flat, (dsi_axis)a)) {
            from->at.on[a] = (dsi_place_on){0};
        }
    }
    from->averaged &= dsi_placement_partial_axes(&from->at);
    const ds_dtype dtype = ds_graph_meta(l->r.to, *value).dtype;
    const dsi_cast_attrs up = {.dtype = DS_DTYPE_F32}; /* the only one whose sum may be in steps */
    const dsi_cast_attrs down = {.dtype = dtype};
    if (dtype == DS_DTYPE_F32) {
        return dsi_localize_move(l, v, &terms, from, bucket, value);
    }
    DS_TRY(dsi_localize_apply(l, &dsi_op_cast, &up, *value, value));
    DS_TRY(dsi_localize_move(l, v, &terms, from, bucket, value));
    return dsi_localize_apply(l, &dsi_op_cast, &down, *value, value);
}

ds_status dsi_blocks_reduce(dsi_localizing *l, ds_value v, const dsi_spread *from,
                            const dsi_spread *need, int64_t bucket, ds_value *value)
{
    const dsi_mesh *mesh = &l->placed->mesh;
    const dsi_axes *flat = &need->at.flat;
    const uint32_t others = dsi_placement_partial_axes(&from->at) & ~dsi_axes_mask(flat);
    dsi_spread summed = *from;
    if (others == 1u << DSI_AXIS_TP) {
        DS_TRY(add_others(l, v, &summed, flat, bucket, value));
        from = &summed;
        if (dsi_placement_equal(&from->at, &need->at)) {
            return DS_OK;
        }
    }
    const dsi_axes averaged = dsi_axes_of(from->averaged & ~need->averaged);
    const ds_dtype dtype = ds_graph_meta(l->r.to, *value).dtype;
    const int64_t slice =
        ds_shape_count(dsi_local_meta(mesh, &need->at, l->r.from->values[v].meta).shape);
    const char *name = l->r.to->scope; /* a gradient is completed in its parameter's scope */
    dsi_axes inner = {0};
    dsi_axes outer = {0};
    if (from->at.flat.n > 0 || need->at.cut != DSI_CUT_ELEMENT ||
        dsi_placement_partial_axes(&from->at) != dsi_axes_mask(flat)) {
        char a[DSI_PLACEMENT_TEXT];
        char b[DSI_PLACEMENT_TEXT];
        return ds_fail(l->r.from->ctx, DS_ERR_UNSUPPORTED,
                       "%s: a gradient goes from %s to %s, which has no quantized reduction; set "
                       "zero_optimization.zero_quantized_gradients to false",
                       name, dsi_placement_str(&from->at, a), dsi_placement_str(&need->at, b));
    }
    split_axes(flat, &inner, &outer);
    const double factor =
        l->params->sum || averaged.n == 0 ? 1.0 : 1.0 / (double)dsi_axes_size(mesh, &averaged);
    const int64_t n_outer = outer.n > 0 ? dsi_axes_size(mesh, &outer) : 1;
    dsi_blocks_attrs attrs = {.width = slice * n_outer,
                              .dtype = outer.n > 0 ? DS_DTYPE_F32 : dtype,
                              .factor = outer.n > 0 ? 1.0 : factor};
    DS_TRY(exchange(l, &inner, name, DS_CELL_WORKER_ERROR, &attrs, bucket, value));
    if (outer.n > 0) {
        attrs = (dsi_blocks_attrs){.width = slice, .dtype = dtype, .factor = factor};
        DS_TRY(exchange(l, &outer, name, DS_CELL_SERVER_ERROR, &attrs, bucket, value));
    }
    return DS_OK;
}
