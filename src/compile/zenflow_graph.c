/* SPDX-License-Identifier: Apache-2.0 */
/* ZenFlow's part of the training graph: of every weight matrix some columns are updated each step,
 * the rest every so many steps. docs/internals/zenflow.md says what each phase does.
 *
 * Invariants: no phase but norm leaves a value to a later one, since those between may be left out;
 * what outlives a phase is in a cell. A phase that also runs behind its place in the order (settle,
 * take) stands before all that read values of norm, so that its memory is none of theirs. A phase
 * touches a cell either whole or in parts. With overlap rest touches master, moments and what was
 * handed to it, which no phase does that may run meanwhile. */
#include "compile/train_graph_build.h"

#include <stdio.h>
#include <stdlib.h>

typedef dsi_train_builder builder;

/* What ZenFlow keeps of one matrix. */
typedef struct matrix {
    ds_cell param, truth; /* truth: the master, or the parameter itself */
    bool no_decay;
    dsi_columns_attrs columns;
    ds_cell index, value, exp_avg, exp_avg_sq, waiting, weights;
    ds_cell handed, moments[2]; /* with overlap: of the rest */
    ds_value sums;
} matrix;

typedef struct zenflow {
    builder *b;
    matrix *items;
    uint32_t n;
    ds_value factor; /* of every gradient: clipping and loss scale */
    ds_value top;    /* largest magnitude of all gradients */
} zenflow;

const char *dsi_zenflow_name(const char *param, const char *what, char *text, size_t n)
{
    (void)snprintf(text, n, "%s/%s", param, what);
    return text;
}

/* Whether columns are chosen of a parameter; the others are updated whole each step. */
static bool is_matrix(const builder *b, ds_cell c)
{
    const ds_shape shape = ds_cells_get(b->cells, c)->meta.shape;
    return b->reduced[c] != DS_NONE && shape.n_dims == 2 && shape.dims[1] > 1;
}

static int64_t count_chosen(const builder *b, int64_t columns)
{
    const int64_t n = (int64_t)((double)columns * b->spec->zenflow.ratio);
    return n > 0 ? n : 1;
}

static ds_status add_chosen(builder *b, const matrix *m, const char *what, ds_meta meta,
                            ds_cell *cell_out)
{
    char name[DSI_TRAIN_PATH_BYTES];
    (void)dsi_zenflow_name(ds_cells_get(b->cells, m->param)->name, what, name, sizeof name);
    return dsi_train_add_cell(b, DS_CELL_CHOSEN, name, meta, m->param, cell_out);
}

static ds_status add_late_cells(builder *b, matrix *m)
{
    static const ds_cell_kind kinds[2] = {DS_CELL_EXP_AVG, DS_CELL_EXP_AVG_SQ};
    const ds_cell_info info = *ds_cells_get(b->cells, m->param);
    const ds_meta sum = {DS_DTYPE_F32, info.meta.shape};
    const ds_meta moment = {b->spec->state_dtype, info.meta.shape};
    for (int i = 0; i < 2; ++i) {
        DS_TRY(dsi_train_add_cell(b, kinds[i], info.name, moment, m->param, &m->moments[i]));
    }
    return dsi_train_add_cell(b, DS_CELL_HANDED, info.name, sum, m->param, &m->handed);
}

static ds_status add_cells(builder *b, matrix *m)
{
    const ds_cell_info info = *ds_cells_get(b->cells, m->param);
    const int64_t n = count_chosen(b, m->columns.columns);
    const ds_meta index = {DS_DTYPE_I32, ds_shape_1d(n)};
    const ds_meta taken = {DS_DTYPE_F32, ds_shape_2d(m->columns.rows, n)};
    const ds_meta whole = {DS_DTYPE_F32, info.meta.shape};
    const ds_meta weights = {DS_DTYPE_F64, ds_shape_1d(2)};
    m->truth = m->param;
    if (info.meta.dtype != DS_DTYPE_F32 || b->spec->zenflow.overlap) {
        DS_TRY(dsi_train_add_cell(b, DS_CELL_MASTER, info.name, whole, m->param, &m->truth));
    }
    DS_TRY(add_chosen(b, m, "index", index, &m->index));
    DS_TRY(add_chosen(b, m, "value", taken, &m->value));
    DS_TRY(add_chosen(b, m, "exp_avg", taken, &m->exp_avg));
    DS_TRY(add_chosen(b, m, "exp_avg_sq", taken, &m->exp_avg_sq));
    DS_TRY(dsi_train_add_cell(b, DS_CELL_WAITING, info.name, whole, m->param, &m->waiting));
    DS_TRY(b->spec->zenflow.overlap ? add_late_cells(b, m) : DS_OK);
    return b->spec->zenflow.weighs ? add_chosen(b, m, "weights", weights, &m->weights) : DS_OK;
}

static ds_status find_matrices(zenflow *z)
{
    builder *b = z->b;
    for (ds_cell c = 0; c < b->n_params; ++c) {
        if (is_matrix(b, c)) {
            const ds_cell_info *info = ds_cells_get(b->cells, c);
            matrix *m = &z->items[z->n++];
            *m = (matrix){.param = c,
                          .no_decay = info->no_decay,
                          .columns = {info->meta.shape.dims[0], info->meta.shape.dims[1]},
                          .sums = DS_NONE};
            DS_TRY(add_cells(b, m));
        }
    }
    return z->n > 0 ? DS_OK
                    : ds_fail(b->ctx, DS_ERR_CONFIG,
                              "zero_optimization.zenflow: the model has no trainable matrix to "
                              "choose columns of; remove the section");
}

static ds_status add_own(builder *b)
{
    const ds_meta real = {DS_DTYPE_F32, {0}};
    const ds_meta whole = {DS_DTYPE_I32, {0}};
    dsi_zenflow_cells *own = &b->own->zenflow;
    DS_TRY(dsi_train_add_cell(b, DS_CELL_SCALAR, "zenflow.rank", whole, DS_NONE, &own->rank));
    DS_TRY(dsi_train_add_cell(b, DS_CELL_SCALAR, "zenflow.more", real, DS_NONE, &own->more));
    DS_TRY(dsi_train_add_cell(b, DS_CELL_SCALAR, "zenflow.factor", real, DS_NONE, &own->factor));
    DS_TRY(dsi_train_add_hyper(b, "zenflow.chosen", own->chosen_hyper));
    return dsi_train_add_hyper(b, "zenflow.rest", own->rest_hyper);
}

/* An operator on cells and values; the cells among them are read. cells[i] DS_NONE: values[i]. */
static ds_status apply(const zenflow *z, const ds_op *op, const void *attrs, const ds_cell *cells,
                       ds_value *values, uint32_t n, ds_value *out)
{
    for (uint32_t i = 0; i < n; ++i) {
        if (cells[i] != DS_NONE) {
            DS_TRY(ds_graph_read(z->b->graph, cells[i], &values[i]));
        }
    }
    return dsi_train_apply(z->b, op, attrs, values, n, out);
}

/* Columns of a cell, or of a value where the cell is DS_NONE. */
static ds_status take(const zenflow *z, const matrix *m, ds_cell from, ds_value *value)
{
    const ds_cell cells[3] = {from, m->index, z->b->own->zenflow.rank};
    ds_value in[3] = {*value, DS_NONE, DS_NONE};
    ds_value out[DS_MAX_OUT];
    DS_TRY(apply(z, &dsi_op_take_columns, &m->columns, cells, in, 3, out));
    *value = out[0];
    return DS_OK;
}

static ds_status put(const zenflow *z, const matrix *m, ds_cell to)
{
    const ds_cell cells[4] = {to, m->value, m->index, z->b->own->zenflow.rank};
    ds_value in[4];
    ds_value out[DS_MAX_OUT];
    return apply(z, &dsi_op_put_columns, &m->columns, cells, in, 4, out);
}

static ds_status store(const zenflow *z, ds_cell cell, ds_value x)
{
    const ds_cell cells[2] = {cell, DS_NONE};
    ds_value in[2] = {DS_NONE, x};
    ds_value out[DS_MAX_OUT];
    return apply(z, &dsi_op_store, NULL, cells, in, 2, out);
}

static ds_status build_sums(const zenflow *z, matrix *m)
{
    const ds_cell cells[3] = {DS_NONE, DS_NONE, z->b->own->zenflow.rank};
    ds_value in[3] = {z->b->reduced[m->param], z->top, DS_NONE};
    ds_value out[DS_MAX_OUT];
    DS_TRY(apply(z, &dsi_op_column_sums, &m->columns, cells, in, 3, out));
    m->sums = out[0];
    return DS_OK;
}

/* With weighing the sums are made in each step. */
static ds_status build_norm(zenflow *z, matrix *m)
{
    return z->b->spec->zenflow.weighs ? build_sums(z, m) : DS_OK;
}

/* What the chosen columns have become goes back to where the checkpoint looks for it. */
static ds_status build_settle(zenflow *z, matrix *m)
{
    return m->truth != m->param ? put(z, m, m->truth) : DS_OK;
}

static ds_status build_choose(zenflow *z, matrix *m)
{
    static const dsi_scale_attrs nothing = {.factor = 0.0};
    const ds_cell moments[2] = {m->exp_avg, m->exp_avg_sq};
    ds_value zero[2];
    ds_value out[DS_MAX_OUT];
    if (!z->b->spec->zenflow.weighs) {
        DS_TRY(build_sums(z, m));
    }
    const ds_cell cells[2] = {m->index, DS_NONE};
    ds_value in[2] = {DS_NONE, m->sums};
    DS_TRY(apply(z, &dsi_op_choose_columns, &m->columns, cells, in, 2, out));
    for (int i = 0; i < 2; ++i) {
        DS_TRY(apply(z, &dsi_op_scale, &nothing, &z->b->own->zenflow.more, &zero[1], 1, out));
        zero[1] = out[0];
        DS_TRY(apply(z, &dsi_op_fill, NULL, (const ds_cell[]){moments[i], DS_NONE}, zero, 2, out));
        DS_TRY(store(z, moments[i], out[0]));
    }
    return DS_OK;
}

static ds_status build_fetch(zenflow *z, matrix *m)
{
    ds_value value = DS_NONE;
    DS_TRY(take(z, m, m->truth, &value));
    return store(z, m->value, value);
}

static ds_status build_postpone(zenflow *z, matrix *m)
{
    const ds_cell cells[4] = {m->waiting, DS_NONE, z->b->own->zenflow.more, DS_NONE};
    ds_value in[4] = {DS_NONE, z->b->reduced[m->param], DS_NONE, z->factor};
    ds_value out[DS_MAX_OUT];
    DS_TRY(apply(z, &dsi_op_postpone, NULL, cells, in, 4, out));
    if (!z->b->spec->zenflow.weighs) {
        return DS_OK;
    }
    const ds_cell weighed[4] = {m->weights, DS_NONE, m->index, z->b->own->zenflow.more};
    in[1] = m->sums;
    return apply(z, &dsi_op_weigh_columns, &m->columns, weighed, in, 4, out);
}

/* Forward passes see what has become of the rest. */
static ds_status build_take(zenflow *z, matrix *m)
{
    ds_value truth = DS_NONE;
    if (!z->b->spec->zenflow.overlap) {
        return DS_OK;
    }
    DS_TRY(ds_graph_read(z->b->graph, m->truth, &truth));
    return store(z, m->param, truth);
}

/* Of the master alone: forward passes go on with the parameter as it is. */
static ds_status build_late_rest(zenflow *z, matrix *m)
{
    const dsi_optim_attrs attrs = {.eps = z->b->spec->eps, .adamw = z->b->spec->decoupled_decay};
    const ds_cell hyper =
        z->b->own->zenflow.rest_hyper[m->no_decay ? DSI_GROUP_NO_DECAY : DSI_GROUP_DECAY];
    const ds_cell cells[7] = {m->truth, m->handed,     hyper,        z->b->own->zenflow.factor,
                              DS_NONE,  m->moments[0], m->moments[1]};
    ds_value in[7] = {DS_NONE, DS_NONE, DS_NONE, DS_NONE, DS_NONE, DS_NONE, DS_NONE};
    ds_value out[DS_MAX_OUT];
    return apply(z, &dsi_op_adam, &attrs, cells, in, 7, out);
}

static ds_status build_rest(zenflow *z, matrix *m)
{
    if (z->b->spec->zenflow.overlap) {
        return build_late_rest(z, m);
    }
    dsi_train_update update = {.param = m->param, .hyper = z->b->own->zenflow.rest_hyper};
    DS_TRY(ds_graph_read(z->b->graph, m->waiting, &update.gradient));
    DS_TRY(ds_graph_read(z->b->graph, z->b->own->zenflow.factor, &update.factor));
    return dsi_train_build_update(z->b, &update);
}

static ds_status build_chosen(zenflow *z, matrix *m)
{
    const dsi_train_spec *spec = z->b->spec;
    const dsi_optim_attrs attrs = {.eps = spec->eps,
                                   .adamw = spec->decoupled_decay,
                                   .dampening = spec->dampening,
                                   .nesterov = spec->nesterov,
                                   .max_coeff = spec->max_coeff,
                                   .min_coeff = spec->min_coeff};
    const ds_cell hyper =
        z->b->own->zenflow.chosen_hyper[m->no_decay ? DSI_GROUP_NO_DECAY : DSI_GROUP_DECAY];
    const ds_cell cells[7] = {m->value, DS_NONE,    hyper,        DS_NONE,
                              DS_NONE,  m->exp_avg, m->exp_avg_sq};
    ds_value in[7] = {DS_NONE, z->b->reduced[m->param], DS_NONE, z->factor, DS_NONE, DS_NONE,
                      DS_NONE};
    ds_value out[DS_MAX_OUT];
    DS_TRY(take(z, m, DS_NONE, &in[1]));
    DS_TRY(apply(z, &dsi_op_adam, &attrs, cells, in, 7, out));
    return put(z, m, m->param);
}

static ds_status build_whole(zenflow *z)
{
    builder *b = z->b;
    for (ds_cell c = 0; c < b->n_params; ++c) {
        const dsi_train_update update = {c, b->reduced[c], z->factor, b->own->hyper};
        if (update.gradient != DS_NONE && !is_matrix(b, c)) {
            DS_TRY(dsi_train_build_update(b, &update));
        }
    }
    return DS_OK;
}

static ds_status build_phases(zenflow *z)
{
    const dsi_train_phases *own = &z->b->own->phases;
    const struct {
        ds_phase phase;
        ds_status (*build)(zenflow *z, matrix *m);
    } phases[] = {{own->norm, build_norm},           {own->zenflow.settle, build_settle},
                  {own->zenflow.take, build_take},   {own->zenflow.choose, build_choose},
                  {own->zenflow.fetch, build_fetch}, {own->zenflow.postpone, build_postpone},
                  {own->zenflow.rest, build_rest},   {own->update, build_chosen}};
    for (size_t p = 0; p < sizeof phases / sizeof phases[0]; ++p) {
        ds_graph_set_phase(z->b->graph, phases[p].phase);
        for (uint32_t i = 0; i < z->n; ++i) {
            matrix *m = &z->items[i];
            DS_TRY(ds_graph_set_scope(z->b->graph, ds_cells_get(z->b->cells, m->param)->name));
            DS_TRY(phases[p].build(z, m));
        }
    }
    return build_whole(z);
}

/* What changes master weights, which the rest updates, runs while that is not under way. */
ds_status dsi_zenflow_add_phases(builder *b)
{
    enum { NOW_AND_THEN = DS_PHASE_SKIPPABLE, ALONE = DS_PHASE_SKIPPABLE | DS_PHASE_ALONE };
    dsi_zenflow_phases *own = &b->own->phases.zenflow;
    const uint32_t side = b->spec->zenflow.overlap ? DS_PHASE_SIDE : 0;
    DS_TRY(ds_graph_add_phase(b->graph, "settle", ALONE, &own->settle));
    DS_TRY(ds_graph_add_phase(b->graph, "take", ALONE, &own->take));
    DS_TRY(ds_graph_add_phase(b->graph, "choose", ALONE, &own->choose));
    DS_TRY(ds_graph_add_phase(b->graph, "fetch", ALONE, &own->fetch));
    DS_TRY(ds_graph_add_phase(b->graph, "postpone", 0, &own->postpone));
    return ds_graph_add_phase(b->graph, "rest", NOW_AND_THEN | side, &own->rest);
}

ds_status dsi_zenflow_build(builder *b, ds_value factor)
{
    zenflow z = {.b = b, .factor = factor, .top = ds_graph_find_output(b->graph, "grad_top")};
    z.items = calloc((size_t)b->n_params + 1, sizeof *z.items);
    if (z.items == NULL) {
        return ds_fail(b->ctx, DS_ERR_NOMEM, "no memory for the training graph");
    }
    ds_status status = add_own(b);
    if (status >= 0) {
        status = find_matrices(&z);
    }
    if (status >= 0) {
        status = build_phases(&z);
    }
    free(z.items);
    return status;
}
