/* SPDX-License-Identifier: Apache-2.0 */
/* 1-bit optimizers behind their warm-up: the phases own_norm and frozen of the training graph, and
 * what 1-bit Adam does in the latter (LAMB: onebit_lamb_graph.c). In the warm-up, norm and update
 * are those of every optimizer. docs/internals/onebit.md.
 *
 * Invariants: gradient cells hold this rank's own terms, so that norm may reduce them and frozen
 * need not; own_norm leaves values to frozen alone; parameters and moments are the same on every
 * rank after frozen as after update. */
#include "compile/train_graph_build.h"

#include "ir/graph.h"

#include <math.h>
#include <stdlib.h>

typedef dsi_train_builder builder;

enum { BITS = 8 };

/* Whether ranks keep gradients of their own, and exchange signs behind the warm-up. */
static bool exchanges(const dsi_train_spec *spec)
{
    return spec->onebit.on && spec->onebit.n_ranks > 1;
}

ds_status dsi_onebit_add_phases(builder *b)
{
    dsi_onebit_phases *own = &b->own->phases.onebit;
    if (exchanges(b->spec)) {
        DS_TRY(ds_graph_add_phase(b->graph, "own_norm", 0, &own->own_norm));
    }
    if (b->spec->optimizer == DS_OPTIMIZER_ONEBIT_LAMB) {
        DS_TRY(ds_graph_add_phase(b->graph, "freeze", DS_PHASE_SKIPPABLE, &own->freeze));
    }
    if (b->spec->optimizer == DS_OPTIMIZER_ZERO_ONE_ADAM) {
        return dsi_zero_one_add_phases(b);
    }
    return ds_graph_add_phase(b->graph, "frozen", DS_PHASE_SKIPPABLE, &own->frozen);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Elements with padding: each rank serves an equal part of whole bytes, as many in DeepSpeed. */
static int64_t padded(int64_t count, int64_t n_ranks)
{
    const int64_t unit = n_ranks * (n_ranks * BITS / common_divisor(n_ranks, BITS));
    return (count + unit - 1) / unit * unit;
}

/* Each gradient as this rank made it. own: per cell below n_params. */
static ds_status read_own(builder *b, ds_value *own)
{
    for (ds_cell c = 0; c < b->n_params; ++c) {
        own[c] = DS_NONE;
        if (b->reduced[c] != DS_NONE) {
            const dsi_ranks_attrs attrs = {0};
            ds_value out[DS_MAX_OUT];
            DS_TRY(dsi_train_apply(b, &dsi_op_own_term, &attrs, &b->reduced[c], 1, out));
            own[c] = out[0];
        }
    }
    return DS_OK;
}

static ds_status join(builder *b, const ds_op *op, ds_value own, ds_value *all_out)
{
    const dsi_ranks_attrs attrs = {0};
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_train_apply(b, op, &attrs, &own, 1, out));
    *all_out = out[0];
    return DS_OK;
}

/* The norms of the ranks' own gradients: each clips by its own; what is reported is the root of
 * their mean square. A gradient that is not finite on one rank is so for all. */
static ds_status build_own_norm(builder *b, const ds_value *own, ds_value *factor_out)
{
    const dsi_clip_attrs clip = {.max_norm = b->spec->max_norm};
    const dsi_clip_attrs all = {.max_norm = 0.0};
    const dsi_scale_attrs mean = {.factor = 1.0 / sqrt((double)b->spec->onebit.n_ranks)};
    ds_value top = DS_NONE;
    ds_value squares = DS_NONE;
    ds_value in[3];
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_train_read_inverse_scale(b, &in[2]));
    DS_TRY(dsi_train_map_fold(b, own, &dsi_op_abs_max, DS_NONE, &dsi_op_max_of, &top));
    DS_TRY(join(b, &dsi_op_largest_of_ranks, top, &in[1]));
    DS_TRY(dsi_train_map_fold(b, own, &dsi_op_sum_squares, in[1], &dsi_op_sum_parts, &squares));
    DS_TRY(join(b, &dsi_op_sum_of_ranks, squares, &in[0]));
    DS_TRY(dsi_train_apply(b, &dsi_op_clip_factor, &all, in, 3, out));
    *factor_out = out[1];
    DS_TRY(dsi_train_apply(b, &dsi_op_scale, &mean, &out[0], 1, out));
    DS_TRY(ds_graph_output(b->graph, "own_norm", out[0]));
    DS_TRY(ds_graph_output(b->graph, "own_top", in[1]));
    if (b->spec->max_norm > 0.0) {
        in[0] = squares;
        DS_TRY(dsi_train_apply(b, &dsi_op_clip_factor, &clip, in, 3, out));
        *factor_out = out[1];
    } else if (b->spec->keep_nonfinite) {
        return dsi_train_read_inverse_scale(b, factor_out);
    }
    return DS_OK;
}

/* The errors of an exchange, made at their first use. */
static ds_status read_error(builder *b, ds_cell_kind kind, const char *name, int64_t n, ds_cell of,
                            ds_value *value_out)
{
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_1d(n)};
    ds_cell cell = ds_cells_find(b->cells, kind, name);
    if (cell == DS_NONE) {
        DS_TRY(dsi_train_add_cell(b, kind, name, meta, of, &cell));
    }
    return ds_graph_read(b->graph, cell, value_out);
}

ds_status dsi_onebit_mean(builder *b, const char *name, ds_cell of, ds_value *x)
{
    const int64_t n_ranks = b->spec->onebit.n_ranks;
    const dsi_ranks_attrs attrs = {.n_ranks = n_ranks};
    ds_value in[3] = {*x, DS_NONE, DS_NONE};
    ds_value out[DS_MAX_OUT];
    if (!exchanges(b->spec)) {
        return DS_OK;
    }
    const int64_t n = padded(ds_shape_count(ds_graph_meta(b->graph, *x).shape), n_ranks);
    DS_TRY(read_error(b, DS_CELL_WORKER_ERROR, name, n, of, &in[1]));
    DS_TRY(read_error(b, DS_CELL_SERVER_ERROR, name, n / n_ranks, of, &in[2]));
    DS_TRY(dsi_train_apply(b, &dsi_op_mean_by_signs, &attrs, in, 3, out));
    *x = out[0];
    return DS_OK;
}

static ds_status build_frozen(builder *b, const dsi_train_update *update)
{
    const dsi_optim_attrs attrs = dsi_train_update_attrs(b->spec);
    ds_value in[DSI_UPDATE_IN];
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_train_read_update(b, update, in));
    const ds_value moment[4] = {in[5], in[1], in[2], in[3]};
    DS_TRY(dsi_train_apply(b, &dsi_op_first_moment, NULL, moment, 4, out));
    in[1] = out[0];
    in[3] = DS_NONE;
    const char *name = ds_cells_get(b->cells, update->param)->name;
    DS_TRY(dsi_onebit_mean(b, name, update->param, &in[1]));
    return dsi_train_apply(b, &dsi_op_frozen_adam, &attrs, in, 7, out);
}

static ds_status build_all(builder *b, ds_value *own, ds_value factor)
{
    const dsi_onebit_phases *phases = &b->own->phases.onebit;
    if (exchanges(b->spec)) {
        ds_graph_set_phase(b->graph, phases->own_norm);
        DS_TRY(ds_graph_set_scope(b->graph, "own_norm"));
        DS_TRY(read_own(b, own));
        DS_TRY(build_own_norm(b, own, &factor));
    }
    if (b->spec->optimizer == DS_OPTIMIZER_ONEBIT_LAMB) {
        ds_graph_set_phase(b->graph, phases->freeze);
        DS_TRY(dsi_onebit_lamb_freeze(b));
        ds_graph_set_phase(b->graph, phases->frozen);
        return dsi_onebit_lamb_frozen(b, own, factor);
    }
    if (b->spec->optimizer == DS_OPTIMIZER_ZERO_ONE_ADAM) {
        return dsi_zero_one_build(b, own, factor);
    }
    ds_graph_set_phase(b->graph, phases->frozen);
    for (ds_cell c = 0; c < b->n_params; ++c) {
        const dsi_train_update update = {c, own[c], factor, b->own->hyper};
        if (update.gradient != DS_NONE) {
            DS_TRY(build_frozen(b, &update));
        }
    }
    return DS_OK;
}

ds_status dsi_onebit_build(builder *b, ds_value factor)
{
    ds_value *own = calloc((size_t)b->n_params + 1, sizeof *own);
    if (own == NULL) {
        return ds_fail(b->ctx, DS_ERR_NOMEM, "no memory for the training graph");
    }
    for (ds_cell c = 0; c < b->n_params; ++c) {
        own[c] = b->reduced[c]; /* of one rank */
    }
    const ds_status status = build_all(b, own, factor);
    free(own);
    return status;
}
