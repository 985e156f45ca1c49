/* SPDX-License-Identifier: Apache-2.0 */
/* See muon_graph.h. The iteration is Keller Jordan's quintic one: with X of norm 1 and S the
 * smaller of X·Xᵀ and Xᵀ·X, five times X ← a·X + (b·S + c·S²)·X. */
#include "compile/muon_graph.h"

#include <ctype.h>
#include <math.h>
#include <string.h>
#include <strings.h>

enum { STEPS = 5 };

static const double A = 3.4445;
static const double B = -4.7750;
static const double C = 2.0315;

bool dsi_muon_takes(const ds_cell_info *param)
{
    return param->meta.shape.n_dims >= 2 && strcasestr(param->name, "embed") == NULL &&
           strcasestr(param->name, "lm_head") == NULL;
}

static ds_status scaled(dsi_train_builder *b, ds_value x, double factor, ds_value *out)
{
    const dsi_scale_attrs attrs = {.factor = factor};
    ds_value made[DS_MAX_OUT];
    DS_TRY(dsi_train_apply(b, &dsi_op_scale, &attrs, &x, 1, made));
    *out = made[0];
    return DS_OK;
}

/* Of matrices with dims before the last two: experts. */
static bool is_stack(const dsi_train_builder *b, ds_value x)
{
    return ds_graph_meta(b->graph, x).shape.n_dims > 2;
}

static ds_status sum(dsi_train_builder *b, const ds_value *terms, ds_value *out)
{
    ds_value made[DS_MAX_OUT];
    DS_TRY(dsi_train_apply(b, &dsi_op_add, NULL, terms, 2, made));
    *out = made[0];
    return DS_OK;
}

/* x·wᵀ, or x·w (transposed), and a residual; of stacks each. */
static ds_status product(dsi_train_builder *b, ds_value x, ds_value w, bool transposed,
                         ds_value residual, ds_value *out)
{
    const dsi_linear_attrs attrs = {.transposed = transposed};
    const dsi_bmm_attrs each = {.b_transposed = !transposed};
    const ds_value in[4] = {x, w, DS_NONE, residual};
    ds_value made[DS_MAX_OUT];
    if (is_stack(b, x)) {
        DS_TRY(dsi_train_apply(b, &dsi_op_bmm, &each, in, 2, made));
        const ds_value terms[2] = {made[0], residual};
        *out = made[0];
        return residual != DS_NONE ? sum(b, terms, out) : DS_OK;
    }
    DS_TRY(dsi_train_apply(b, &dsi_op_linear, &attrs, in, residual != DS_NONE ? 4 : 2, made));
    *out = made[0];
    return DS_OK;
}

/* The smaller of x·xᵀ and xᵀ·x. */
static ds_status square(dsi_train_builder *b, ds_value x, bool tall, ds_value *out)
{
    const dsi_linear_dw_attrs attrs = {.out_dtype = (int64_t)ds_graph_meta(b->graph, x).dtype};
    const ds_value in[2] = {x, x};
    ds_value made[DS_MAX_OUT];
    if (!tall) {
        return product(b, x, x, false, DS_NONE, out);
    }
    const dsi_bmm_attrs each = {.a_transposed = 1};
    DS_TRY(is_stack(b, x) ? dsi_train_apply(b, &dsi_op_bmm, &each, in, 2, made)
                          : dsi_train_apply(b, &dsi_op_linear_dw, &attrs, in, 2, made));
    *out = made[0];
    return DS_OK;
}

static ds_status iterate(dsi_train_builder *b, bool tall, ds_value *x)
{
    ds_value s = DS_NONE;
    ds_value cs = DS_NONE;
    ds_value bs = DS_NONE;
    ds_value ax = DS_NONE;
    ds_value p = DS_NONE;
    DS_TRY(square(b, *x, tall, &s));
    DS_TRY(scaled(b, s, C, &cs));
    DS_TRY(scaled(b, s, B, &bs));
    DS_TRY(product(b, cs, s, true, bs, &p));
    DS_TRY(scaled(b, *x, A, &ax));
    return tall ? product(b, *x, p, true, ax, x) : product(b, p, *x, true, ax, x);
}

static ds_status orthogonalize(dsi_train_builder *b, ds_value u, ds_value *out)
{
    const ds_shape shape = ds_graph_meta(b->graph, u).shape;
    const int64_t rows = shape.dims[shape.n_dims - 2];
    const int64_t columns = shape.dims[shape.n_dims - 1];
    const bool tall = rows > columns;
    const dsi_unit_matrix_attrs attrs = {.out_dtype = (int64_t)b->spec->muon.dtype};
    const dsi_cast_attrs narrow = {.dtype = b->spec->muon.dtype};
    ds_value made[DS_MAX_OUT];
    if (ds_graph_meta(b->graph, u).dtype != b->spec->muon.dtype) { /* half of it to be gathered */
        DS_TRY(dsi_train_apply(b, &dsi_op_cast, &narrow, &u, 1, made));
        u = made[0];
    }
    DS_TRY(dsi_train_apply(b, &dsi_op_unit_matrix, &attrs, &u, 1, made));
    ds_value x = made[0];
    for (int i = 0; i < STEPS; ++i) {
        DS_TRY(iterate(b, tall, &x));
    }
    *out = x;
    return tall ? scaled(b, x, sqrt((double)rows / (double)columns), out) : DS_OK;
}

ds_status dsi_muon_build_update(dsi_train_builder *b, const ds_value *in)
{
    ds_value moment[4] = {in[5], in[1], in[2], in[3]};
    ds_value made[DS_MAX_OUT];
    ds_value direction = DS_NONE;
    DS_TRY(dsi_train_apply(b, &dsi_op_first_moment, NULL, moment, 4, made));
    const ds_value stored[2] = {in[5], made[0]};
    moment[0] = made[0]; /* Nesterov: the same step again */
    DS_TRY(dsi_train_apply(b, &dsi_op_store, NULL, stored, 2, made));
    DS_TRY(dsi_train_apply(b, &dsi_op_first_moment, NULL, moment, 4, made));
    DS_TRY(orthogonalize(b, made[0], &direction));
    const ds_value update[5] = {in[0], direction, in[2], DS_NONE, in[4]};
    return dsi_train_apply(b, &dsi_op_muon, NULL, update, 5, made);
}
