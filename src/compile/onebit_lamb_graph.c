/* SPDX-License-Identifier: Apache-2.0 */
/* 1-bit LAMB in the training graph: what the warm-up keeps for later, what is fixed when the second
 * moments freeze, and the update behind that, in which all first moments are exchanged as one
 * vector with one scale. docs/internals/onebit.md.
 *
 * Cells of a parameter (kind FROZEN): NAME/ratio, the running average of its trust ratios;
 * NAME/scaling, which brings its first moment to the size of the others' in the exchange;
 * NAME/factor, what the trust ratio was multiplied by last; NAME/exp_avg_sq, the second moment that
 * goes on. */
#include "compile/train_graph_build.h"

#include "ir/graph.h"

#include <stdio.h>
#include <stdlib.h>

typedef dsi_train_builder builder;

static const ds_meta number = {DS_DTYPE_F32, {0}};

static dsi_onebit_lamb_attrs attrs_of(const builder *b)
{
    const dsi_train_spec *spec = b->spec;
    return (dsi_onebit_lamb_attrs){.eps = spec->eps,
                                   .max_coeff = spec->max_coeff,
                                   .min_coeff = spec->min_coeff,
                                   .coeff_beta = spec->onebit.coeff_beta,
                                   .factor_max = spec->onebit.factor_max,
                                   .factor_min = spec->onebit.factor_min,
                                   .factor_threshold = spec->onebit.factor_threshold};
}

/* NAME/what, made at its first use. */
static ds_status read_frozen(builder *b, ds_cell param, const char *what, ds_meta meta,
                             ds_value *value_out)
{
    char name[DSI_TRAIN_PATH_BYTES];
    (void)snprintf(name, sizeof name, "%s/%s", ds_cells_get(b->cells, param)->name, what);
    ds_cell cell = ds_cells_find(b->cells, DS_CELL_FROZEN, name);
    if (cell == DS_NONE) {
        DS_TRY(dsi_train_add_cell(b, DS_CELL_FROZEN, name, meta, param, &cell));
    }
    return ds_graph_read(b->graph, cell, value_out);
}

static ds_meta fresh_meta(const builder *b, ds_cell param)
{
    return (ds_meta){DS_DTYPE_F32, ds_cells_get(b->cells, param)->meta.shape};
}

static ds_status read_moment(builder *b, ds_cell_kind kind, ds_cell param, ds_value *value_out)
{
    return ds_graph_read(
        b->graph, ds_cells_find(b->cells, kind, ds_cells_get(b->cells, param)->name), value_out);
}

ds_status dsi_onebit_lamb_warm_up(builder *b, ds_cell param, ds_value sums)
{
    const dsi_onebit_lamb_attrs attrs = attrs_of(b);
    ds_value in[2] = {DS_NONE, sums};
    ds_value out[DS_MAX_OUT];
    DS_TRY(read_frozen(b, param, "ratio", number, &in[0]));
    return dsi_train_apply(b, &dsi_op_average_ratio, &attrs, in, 2, out);
}

/* ---- freeze ---------------------------------------------------------------------------------- */

/* The root of the mean square of a first moment. */
static ds_status build_root(builder *b, ds_cell param, ds_value *root_out)
{
    dsi_onebit_lamb_attrs attrs = attrs_of(b);
    ds_value moment = DS_NONE;
    ds_value out[DS_MAX_OUT];
    attrs.count = ds_shape_count(ds_cells_get(b->cells, param)->meta.shape);
    DS_TRY(read_moment(b, DS_CELL_EXP_AVG, param, &moment));
    DS_TRY(dsi_train_apply(b, &dsi_op_sum_squares, NULL, &moment, 1, out));
    moment = out[0];
    DS_TRY(dsi_train_apply(b, &dsi_op_root_mean, &attrs, &moment, 1, out));
    *root_out = out[0];
    return DS_OK;
}

/* The mean of all that are there. */
static ds_status build_mean(builder *b, const ds_value *roots, ds_value *mean_out)
{
    ds_value sum = DS_NONE;
    ds_value out[DS_MAX_OUT];
    int64_t n = 0;
    for (ds_cell c = 0; c < b->n_params; ++c) {
        const ds_value in[2] = {sum, roots[c]};
        if (roots[c] == DS_NONE) {
            continue;
        }
        if (n++ == 0) {
            sum = roots[c];
        } else {
            DS_TRY(dsi_train_apply(b, &dsi_op_add, NULL, in, 2, out));
            sum = out[0];
        }
    }
    const dsi_scale_attrs mean = {.factor = 1.0 / (double)n};
    DS_TRY(dsi_train_apply(b, &dsi_op_scale, &mean, &sum, 1, out));
    *mean_out = out[0];
    return DS_OK;
}

static ds_status freeze(builder *b, ds_cell param, ds_value united, ds_value own)
{
    const dsi_onebit_lamb_attrs attrs = attrs_of(b);
    ds_value in[4] = {DS_NONE, DS_NONE, united, own};
    ds_value fresh[2];
    ds_value out[DS_MAX_OUT];
    DS_TRY(read_frozen(b, param, "scaling", number, &in[0]));
    DS_TRY(read_frozen(b, param, "factor", number, &in[1]));
    DS_TRY(dsi_train_apply(b, &dsi_op_freeze_lamb, &attrs, in, 4, out));
    DS_TRY(read_frozen(b, param, "exp_avg_sq", fresh_meta(b, param), &fresh[0]));
    DS_TRY(read_moment(b, DS_CELL_EXP_AVG_SQ, param, &fresh[1]));
    return dsi_train_apply(b, &dsi_op_store, NULL, fresh, 2, out);
}

static ds_status freeze_all(builder *b, ds_value *roots)
{
    ds_value united = DS_NONE;
    for (ds_cell c = 0; c < b->n_params; ++c) {
        roots[c] = DS_NONE;
        if (b->reduced[c] != DS_NONE) {
            DS_TRY(ds_graph_set_scope(b->graph, ds_cells_get(b->cells, c)->name));
            DS_TRY(build_root(b, c, &roots[c]));
        }
    }
    DS_TRY(build_mean(b, roots, &united));
    for (ds_cell c = 0; c < b->n_params; ++c) {
        if (b->reduced[c] != DS_NONE) {
            DS_TRY(ds_graph_set_scope(b->graph, ds_cells_get(b->cells, c)->name));
            DS_TRY(freeze(b, c, united, roots[c]));
        }
    }
    return DS_OK;
}

ds_status dsi_onebit_lamb_freeze(builder *b)
{
    ds_value *roots = calloc((size_t)b->n_params + 1, sizeof *roots);
    if (roots == NULL) {
        return ds_fail(b->ctx, DS_ERR_NOMEM, "no memory for the training graph");
    }
    const ds_status status = freeze_all(b, roots);
    free(roots);
    return status;
}

/* ---- frozen ---------------------------------------------------------------------------------- */

static ds_status flatten(builder *b, ds_value *value)
{
    const ds_shape shape = ds_graph_meta(b->graph, *value).shape;
    const dsi_reshape_attrs attrs = {.n_dims = 1, .dims = {ds_shape_count(shape)}};
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_train_apply(b, &dsi_op_reshape, &attrs, value, 1, out));
    *value = out[0];
    return DS_OK;
}

/* The next first moment of a parameter, by this rank's gradient, scaled and flat. */
static ds_status build_moment(builder *b, const dsi_train_update *update, ds_value *moment_out)
{
    ds_value in[DSI_UPDATE_IN];
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_train_read_update(b, update, in));
    ds_value moment[5] = {in[5], in[1], in[2], in[3], DS_NONE};
    DS_TRY(read_frozen(b, update->param, "scaling", number, &moment[4]));
    DS_TRY(dsi_train_apply(b, &dsi_op_first_moment, NULL, moment, 5, out));
    *moment_out = out[0];
    return flatten(b, moment_out);
}

/* All of them one behind the other, DS_MAX_IN at a time. values: n, which are used up. */
static ds_status join(builder *b, ds_value *values, uint32_t n, ds_value *joined_out)
{
    const dsi_concat_attrs attrs = {0};
    while (n > 1) {
        uint32_t kept = 0;
        for (uint32_t at = 0; at < n; at += DS_MAX_IN) {
            const uint32_t part = n - at < DS_MAX_IN ? n - at : DS_MAX_IN;
            ds_value out[DS_MAX_OUT] = {values[at]};
            if (part > 1) {
                DS_TRY(dsi_train_apply(b, &dsi_op_concat, &attrs, values + at, part, out));
            }
            values[kept++] = out[0];
        }
        n = kept;
    }
    *joined_out = values[0];
    return DS_OK;
}

/* The update by this mean of the ranks' moments, which is scaled and flat. */
static ds_status build_update(builder *b, const dsi_train_update *update, ds_value moment)
{
    const dsi_onebit_lamb_attrs attrs = attrs_of(b);
    const ds_shape shape = ds_cells_get(b->cells, update->param)->meta.shape;
    dsi_reshape_attrs whole = {.n_dims = shape.n_dims};
    ds_value in[DSI_UPDATE_IN];
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = 0; i < shape.n_dims; ++i) {
        whole.dims[i] = shape.dims[i];
    }
    DS_TRY(dsi_train_read_update(b, update, in));
    DS_TRY(dsi_train_apply(b, &dsi_op_reshape, &whole, &moment, 1, out));
    ds_value moments[5] = {in[5], out[0], DS_NONE, DS_NONE, in[2]};
    DS_TRY(read_frozen(b, update->param, "scaling", number, &moments[2]));
    DS_TRY(read_frozen(b, update->param, "exp_avg_sq", fresh_meta(b, update->param), &moments[3]));
    DS_TRY(dsi_train_apply(b, &dsi_op_frozen_lamb_moments, &attrs, moments, 5, out));
    in[5] = out[0];
    ds_value factor[7] = {DS_NONE, DS_NONE, in[5], in[6], out[1], in[0], in[2]};
    factor[5] = in[4] != DS_NONE ? in[4] : in[0];
    DS_TRY(read_frozen(b, update->param, "factor", number, &factor[0]));
    DS_TRY(read_frozen(b, update->param, "ratio", number, &factor[1]));
    DS_TRY(dsi_train_apply(b, &dsi_op_frozen_lamb_factor, &attrs, factor, 7, out));
    in[1] = out[1];
    in[3] = DS_NONE;
    return dsi_train_apply(b, &dsi_op_frozen_lamb, &attrs, in, 7, out);
}

static ds_status frozen_all(builder *b, const ds_value *own, ds_value factor, ds_value *moments)
{
    ds_value all = DS_NONE;
    uint32_t n = 0;
    int64_t at = 0;
    for (ds_cell c = 0; c < b->n_params; ++c) {
        const dsi_train_update update = {c, own[c], factor, b->own->hyper};
        if (own[c] != DS_NONE) {
            DS_TRY(build_moment(b, &update, &moments[n++]));
        }
    }
    DS_TRY(ds_graph_set_scope(b->graph, "moments"));
    DS_TRY(join(b, moments, n, &all));
    DS_TRY(dsi_onebit_mean(b, "moments", DS_NONE, &all));
    for (ds_cell c = 0; c < b->n_params; ++c) {
        const dsi_train_update update = {c, own[c], factor, b->own->hyper};
        const int64_t count = ds_shape_count(ds_cells_get(b->cells, c)->meta.shape);
        const dsi_slice_attrs attrs = {.start = at, .length = count};
        ds_value out[DS_MAX_OUT];
        if (own[c] != DS_NONE) {
            DS_TRY(ds_graph_set_scope(b->graph, ds_cells_get(b->cells, c)->name));
            DS_TRY(dsi_train_apply(b, &dsi_op_slice, &attrs, &all, 1, out));
            DS_TRY(build_update(b, &update, out[0]));
            at += count;
        }
    }
    return DS_OK;
}

ds_status dsi_onebit_lamb_frozen(builder *b, const ds_value *own, ds_value factor)
{
    ds_value *moments = calloc((size_t)b->n_params + 1, sizeof *moments);
    if (moments == NULL) {
        return ds_fail(b->ctx, DS_ERR_NOMEM, "no memory for the training graph");
    }
    const ds_status status = frozen_all(b, own, factor, moments);
    free(moments);
    return status;
}
