/* SPDX-License-Identifier: Apache-2.0 */
/* See adafactor_graph.h. The operators: op/adafactor.c. */
#include "compile/adafactor_graph.h"

/* The moment of rows or columns, updated and kept. */
static ds_status moment(dsi_train_builder *b, const dsi_adafactor_attrs *attrs, ds_cell param,
                        bool columns, const ds_value *in, ds_value *out)
{
    const ds_cell_info info = *ds_cells_get(b->cells, param);
    const uint32_t n = info.meta.shape.n_dims;
    ds_meta meta = {DS_DTYPE_F32, info.meta.shape};
    ds_cell cell = DS_NONE;
    ds_value own[4] = {DS_NONE, in[1], in[2], in[3]};
    ds_value made[DS_MAX_OUT];
    if (n > 1) {
        meta.shape.dims[n - 2] = info.meta.shape.dims[columns ? n - 1 : n - 2];
        meta.shape.dims[--meta.shape.n_dims] = 0;
    }
    DS_TRY(dsi_train_add_cell(b, columns ? DS_CELL_EXP_AVG_SQ_COL : DS_CELL_EXP_AVG_SQ_ROW,
                              info.name, meta, param, &cell));
    DS_TRY(ds_graph_read(b->graph, cell, &own[0]));
    DS_TRY(dsi_train_apply(b, columns ? &dsi_op_adafactor_columns : &dsi_op_adafactor_rows, attrs,
                           own, 4, made));
    const ds_value stored[2] = {own[0], made[0]};
    *out = made[0];
    return dsi_train_apply(b, &dsi_op_store, NULL, stored, 2, made);
}

/* A gradient would be gathered in the communication dtype, which an accumulated one is wider than;
 * what is made of it is gathered as it is. */
static ds_status own_gradient(dsi_train_builder *b, ds_value *gradient)
{
    const dsi_scale_attrs same = {.factor = 1.0};
    ds_value made[DS_MAX_OUT];
    DS_TRY(dsi_train_apply(b, &dsi_op_scale, &same, gradient, 1, made));
    *gradient = made[0];
    return DS_OK;
}

ds_status dsi_adafactor_build_update(dsi_train_builder *b, ds_cell param, const ds_value *given)
{
    const ds_shape shape = ds_cells_get(b->cells, param)->meta.shape;
    const dsi_adafactor_spec *spec = &b->spec->adafactor;
    const dsi_adafactor_attrs attrs = {.eps = spec->eps,
                                       .scale_eps = spec->scale_eps,
                                       .clip_threshold = spec->clip_threshold,
                                       .scales = spec->scales,
                                       .count = ds_shape_count(shape)};
    const ds_value weight = given[4] != DS_NONE ? given[4] : given[0];
    ds_value in[6] = {given[0], given[1], given[2], given[3], given[4], given[5]};
    ds_value parts[4] = {DS_NONE, given[3], DS_NONE, DS_NONE};
    ds_value direction[DS_MAX_OUT];
    ds_value squares[2][DS_MAX_OUT];
    ds_value made[DS_MAX_OUT];
    DS_TRY(own_gradient(b, &in[1]));
    parts[0] = in[1];
    DS_TRY(moment(b, &attrs, param, false, in, &parts[2]));
    DS_TRY(shape.n_dims > 1 ? moment(b, &attrs, param, true, in, &parts[3]) : DS_OK);
    DS_TRY(dsi_train_apply(b, &dsi_op_adafactor_direction, NULL, parts, shape.n_dims > 1 ? 4 : 3,
                           direction));
    DS_TRY(dsi_train_apply(b, &dsi_op_sum_squares, NULL, direction, 1, squares[0]));
    DS_TRY(dsi_train_apply(b, &dsi_op_sum_squares, NULL, &weight, 1, squares[1]));
    const ds_value update[7] = {in[0], direction[0], in[2],        squares[0][0],
                                in[4], in[5],        squares[1][0]};
    return dsi_train_apply(b, &dsi_op_adafactor, &attrs, update, 7, made);
}
