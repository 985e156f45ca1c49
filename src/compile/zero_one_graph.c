/* SPDX-License-Identifier: Apache-2.0 */
/* 0/1 Adam in the training graph: the phases signs, local and sync. docs/internals/onebit.md.
 *
 * Between two exchanges each rank has parameters and first moments of its own, so their cells are
 * the ranks' own (dsi_zero_spec.own_states); they have the same bits on all ranks behind update,
 * signs and sync. Cells of a parameter (kind LOCAL): NAME, the rank's updates since the last
 * exchange; NAME/lrs, the sum of their rates. Kind FROZEN: NAME/weight, the parameter in fp32 as
 * the last exchange left it, so that the ranks' rounding of updates that are taken back leaves no
 * trace.
 */
#include "compile/train_graph_build.h"

#include "ir/graph.h"

#include <stdio.h>

typedef dsi_train_builder builder;

enum { N_UPDATE = 7, IN_LOCAL = N_UPDATE, IN_LRS, IN_WEIGHT, N_IN };

ds_status dsi_zero_one_add_phases(builder *b)
{
    dsi_onebit_phases *own = &b->own->phases.onebit;
    DS_TRY(ds_graph_add_phase(b->graph, "signs", DS_PHASE_SKIPPABLE, &own->frozen));
    DS_TRY(ds_graph_add_phase(b->graph, "freeze", DS_PHASE_SKIPPABLE, &own->freeze));
    DS_TRY(ds_graph_add_phase(b->graph, "local", DS_PHASE_SKIPPABLE, &own->local));
    return ds_graph_add_phase(b->graph, "sync", DS_PHASE_SKIPPABLE, &own->sync);
}

/* NAME or NAME/what, made at its first use. */
static ds_status read_own(builder *b, ds_cell_kind kind, const char *what, ds_shape shape,
                          ds_cell of, ds_value *value_out)
{
    const ds_meta meta = {DS_DTYPE_F32, shape};
    char name[DSI_TRAIN_PATH_BYTES];
    (void)snprintf(name, sizeof name, "%s%s", ds_cells_get(b->cells, of)->name, what);
    ds_cell cell = ds_cells_find(b->cells, kind, name);
    if (cell == DS_NONE) {
        DS_TRY(dsi_train_add_cell(b, kind, name, meta, of, &cell));
    }
    return ds_graph_read(b->graph, cell, value_out);
}

/* Operands of an update, and what the rank has done by itself. in: N_IN. */
static ds_status read_operands(builder *b, const dsi_train_update *update, ds_value *in)
{
    const ds_cell param = update->param;
    const ds_shape shape = ds_cells_get(b->cells, param)->meta.shape;
    DS_TRY(dsi_train_read_update(b, update, in));
    DS_TRY(read_own(b, DS_CELL_LOCAL, "", shape, param, &in[IN_LOCAL]));
    DS_TRY(read_own(b, DS_CELL_LOCAL, "/lrs", (ds_shape){0}, param, &in[IN_LRS]));
    return read_own(b, DS_CELL_FROZEN, "/weight", shape, param, &in[IN_WEIGHT]);
}

/* The second moment stays, the first one goes on by the mean of gradients exchanged as signs. */
static ds_status build_signs(builder *b, const dsi_train_update *update)
{
    const dsi_optim_attrs attrs = dsi_train_update_attrs(b->spec);
    const char *name = ds_cells_get(b->cells, update->param)->name;
    ds_value in[N_UPDATE];
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_train_read_update(b, update, in));
    const ds_value gradient[2] = {in[1], in[3]};
    DS_TRY(dsi_train_apply(b, &dsi_op_times, NULL, gradient, 2, out));
    ds_value mean = out[0];
    DS_TRY(dsi_onebit_mean(b, name, update->param, &mean));
    const ds_value moment[4] = {in[5], mean, in[2], DS_NONE};
    DS_TRY(dsi_train_apply(b, &dsi_op_first_moment, NULL, moment, 4, out));
    in[1] = out[0];
    in[3] = DS_NONE;
    return dsi_train_apply(b, &dsi_op_frozen_adam, &attrs, in, N_UPDATE, out);
}

/* Before ranks go apart. */
static ds_status build_freeze(builder *b, const dsi_train_update *update)
{
    ds_value in[N_IN];
    ds_value out[DS_MAX_OUT];
    DS_TRY(read_operands(b, update, in));
    const ds_value weight[2] = {in[IN_WEIGHT], in[4] != DS_NONE ? in[4] : in[0]};
    return dsi_train_apply(b, &dsi_op_store, NULL, weight, 2, out);
}

static ds_status build_local(builder *b, const dsi_train_update *update)
{
    const dsi_optim_attrs attrs = dsi_train_update_attrs(b->spec);
    ds_value in[N_IN];
    ds_value out[DS_MAX_OUT];
    DS_TRY(read_operands(b, update, in));
    return dsi_train_apply(b, &dsi_op_local_adam, &attrs, in, IN_WEIGHT, out);
}

/* What the mean of the ranks' updates comes to is made in their place. */
static ds_status build_sync(builder *b, const dsi_train_update *update)
{
    const dsi_optim_attrs attrs = dsi_train_update_attrs(b->spec);
    const char *name = ds_cells_get(b->cells, update->param)->name;
    ds_value in[N_IN];
    ds_value out[DS_MAX_OUT];
    DS_TRY(read_operands(b, update, in));
    const ds_value take[2] = {in[IN_LOCAL], in[6]};
    DS_TRY(dsi_train_apply(b, &dsi_op_local_take, &attrs, take, 2, out));
    in[1] = out[0];
    in[2] = in[3] = DS_NONE;
    DS_TRY(dsi_onebit_mean(b, name, update->param, &in[1]));
    return dsi_train_apply(b, &dsi_op_local_put, &attrs, in, N_IN, out);
}

ds_status dsi_zero_one_build(builder *b, const ds_value *own, ds_value factor)
{
    const dsi_onebit_phases *phases = &b->own->phases.onebit;
    const struct {
        ds_phase phase;
        ds_status (*build)(builder *b, const dsi_train_update *update);
    } rows[] = {{phases->frozen, build_signs},
                {phases->freeze, build_freeze},
                {phases->local, build_local},
                {phases->sync, build_sync}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        ds_graph_set_phase(b->graph, rows[i].phase);
        for (ds_cell c = 0; c < b->n_params; ++c) {
            const dsi_train_update update = {c, own[c], factor, b->own->hyper};
            if (update.gradient != DS_NONE) {
                DS_TRY(rows[i].build(b, &update));
            }
        }
    }
    return DS_OK;
}
