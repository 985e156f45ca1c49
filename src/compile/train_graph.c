/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the training graph. See train_graph.h. */
#include "compile/adafactor_graph.h"
#include "compile/adapter_graph.h"
#include "compile/muon_graph.h"
#include "compile/train_graph_build.h"

#include "grad/grad.h"
#include "ir/graph.h"
#include "model/adapter.h"
#include "nn/nn.h"
#include "op/constants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = DSI_TRAIN_PATH_BYTES, CHAIN = 16 };

typedef dsi_train_builder builder;

ds_status dsi_forward_graph(const ds_model *model, const ds_trace *trace, dsi_loss_fn loss,
                            void *loss_user, ds_cells *cells, ds_graph **graph_out)
{
    ds_graph *graph = NULL;
    ds_nn *nn = NULL;
    ds_ctx *ctx = cells->ctx;
    ds_status status = ds_graph_create(ctx, cells, &graph);
    if (status >= 0) {
        status = ds_nn_create(graph, trace, &nn);
    }
    if (status >= 0) {
        status = ds_model_trace(model, nn);
    }
    if (status >= 0 && loss != NULL && trace->mode != DS_TRACE_GENERATE) {
        loss(nn, loss_user);
        status = ds_nn_status(nn);
    }
    if (status >= 0 && graph->region != 0) {
        status = ds_fail(ctx, DS_ERR_STATE, "the model ends inside a region: ds_nn_region_end()");
    }
    ds_nn_destroy(&nn);
    if (status < 0) {
        ds_graph_destroy(&graph);
        return status;
    }
    *graph_out = graph;
    return DS_OK;
}

ds_status dsi_train_add_cell(builder *b, ds_cell_kind kind, const char *name, ds_meta meta,
                             ds_cell of, ds_cell *cell_out)
{
    const ds_cell_info info = {.name = name, .kind = kind, .meta = meta, .of = of};
    return ds_cells_add(b->cells, &info, cell_out);
}

ds_status dsi_train_apply(builder *b, const ds_op *op, const void *attrs, const ds_value *in,
                          uint32_t n_in, ds_value *out)
{
    return ds_graph_apply(b->graph, op, attrs, in, n_in, out);
}

/* Roots: the loss seeded by a scalar cell, and outputs seeded by input cells of the caller. */
static ds_status build_gradients(builder *b)
{
    const uint32_t room = b->spec->n_gradient_outputs + 1;
    ds_value *roots = calloc((size_t)room * 2, sizeof *roots);
    ds_value *seeds = roots + room;
    ds_status status = DS_OK;
    uint32_t n = 0;
    if (roots == NULL) {
        return ds_fail(b->ctx, DS_ERR_NOMEM, "no memory for gradients");
    }
    const ds_value loss = ds_graph_find_output(b->graph, "loss");
    if (loss != DS_NONE) {
        const ds_meta scalar = {DS_DTYPE_F32, {0}};
        DS_TRY_GOTO(
            status,
            dsi_train_add_cell(b, DS_CELL_SCALAR, "loss_seed", scalar, DS_NONE, &b->own->loss_seed),
            done);
        DS_TRY_GOTO(status, ds_graph_read(b->graph, b->own->loss_seed, &seeds[n]), done);
        roots[n++] = loss;
    }
    for (uint32_t i = 0; i < b->spec->n_gradient_outputs; ++i) {
        char name[PATH_BYTES];
        ds_cell cell = DS_NONE;
        roots[n] = ds_graph_find_output(b->graph, b->spec->gradient_outputs[i]);
        if (roots[n] == DS_NONE) {
            status = ds_fail(b->ctx, DS_ERR_NOT_FOUND, "the model has no output named %s",
                             b->spec->gradient_outputs[i]);
            goto done;
        }
        (void)snprintf(name, sizeof name, "gradient/%s", b->spec->gradient_outputs[i]);
        DS_TRY_GOTO(status,
                    dsi_train_add_cell(b, DS_CELL_INPUT, name, ds_graph_meta(b->graph, roots[n]),
                                       DS_NONE, &cell),
                    done);
        DS_TRY_GOTO(status, ds_graph_read(b->graph, cell, &seeds[n]), done);
        ++n;
    }
    if (n == 0) {
        status = ds_fail(b->ctx, DS_ERR_ARG,
                         "the model declares no \"loss\" and no output takes a gradient");
        goto done;
    }
    b->d_cell = calloc((size_t)ds_cells_count(b->cells) + 1, sizeof *b->d_cell);
    status = b->d_cell == NULL ? ds_fail(b->ctx, DS_ERR_NOMEM, "no memory for gradients")
                               : dsi_grad_build(b->graph, roots, seeds, n, b->d_cell);
done:
    free(roots);
    return status;
}

bool dsi_train_is_early(const dsi_train_spec *spec)
{
    return spec->keep_nonfinite && spec->max_norm == 0.0 && spec->accumulation == 1 &&
           spec->dtype != DS_DTYPE_F16 && !spec->zenflow.on && !spec->onebit.on && !spec->muon.on &&
           !spec->adafactor.on && spec->stages <= 1;
}

/* Nodes applied from now on are of the stage that updates a parameter. */
static void stand_at_stage_of(const builder *b, ds_cell param)
{
    b->graph->stage = b->stages != NULL ? b->stages[param].first : 0;
}

/* Rounds a complete gradient to the communication dtype and stores or accumulates it; when it is
 * used up at once it has no cell. */
static ds_status reduce_gradient(builder *b, ds_cell param)
{
    const bool accumulate = b->spec->accumulation > 1;
    const bool early = dsi_train_is_early(b->spec);
    const ds_cell_info info = *ds_cells_get(b->cells, param);
    const ds_dtype dtype = accumulate ? b->spec->accumulate_dtype : b->spec->comm_dtype;
    const ds_meta meta = {dtype, info.meta.shape};
    ds_value gradient = b->d_cell[param];
    ds_value out[DS_MAX_OUT];
    ds_cell cell = DS_NONE;
    DS_TRY(ds_graph_set_scope(b->graph, info.name));
    stand_at_stage_of(b, param);
    if (!early) {
        DS_TRY(dsi_train_add_cell(b, DS_CELL_GRAD, info.name, meta, param, &cell));
    }
    if (ds_graph_meta(b->graph, gradient).dtype != b->spec->comm_dtype) {
        const dsi_cast_attrs cast = {.dtype = b->spec->comm_dtype};
        DS_TRY(dsi_train_apply(b, &dsi_op_cast, &cast, &gradient, 1, out));
        gradient = out[0];
    }
    DS_TRY(dsi_train_add_errors(b, param));
    ds_value in[2] = {DS_NONE, gradient};
    if (early) {
        DS_TRY(dsi_train_apply(b, &dsi_op_gradient, NULL, &gradient, 1, out));
        b->reduced[param] = out[0];
        return DS_OK;
    }
    DS_TRY(ds_graph_read(b->graph, cell, &in[0]));
    DS_TRY(dsi_train_apply(b, accumulate ? &dsi_op_accumulate : &dsi_op_store, NULL, in, 2, out));
    b->reduced[param] = out[0];
    return DS_OK;
}

/* Folds n values by an operator of up to CHAIN inputs. */
static ds_status fold(builder *b, const ds_op *op, ds_value *values, uint32_t n, ds_value *out)
{
    while (n > 1) {
        uint32_t kept = 0;
        for (uint32_t at = 0; at < n; at += CHAIN) {
            ds_value result[DS_MAX_OUT];
            const uint32_t part = n - at < CHAIN ? n - at : CHAIN;
            DS_TRY(dsi_train_apply(b, op, NULL, values + at, part, result));
            values[kept++] = result[0];
        }
        n = kept;
    }
    *out = values[0];
    return DS_OK;
}

/* What a stage without gradients has to add: the map of a zero. */
static ds_status map_nothing(builder *b, const ds_op *map, ds_value extra, ds_value *value_out)
{
    const dsi_constants_attrs zero = {.n = 1};
    ds_value in[2] = {DS_NONE, extra};
    ds_value result[DS_MAX_OUT];
    DS_TRY(dsi_train_apply(b, &dsi_op_constants, &zero, NULL, 0, result));
    in[0] = result[0];
    DS_TRY(dsi_train_apply(b, map, NULL, in, extra == DS_NONE ? 1 : 2, result));
    *value_out = result[0];
    return DS_OK;
}

ds_status dsi_train_map_fold(builder *b, const ds_value *gradients, const ds_op *map,
                             ds_value extra, const ds_op *combine, ds_value *out)
{
    const uint32_t most = b->stages != NULL ? b->spec->stages : 1;
    ds_value whole[DSI_STAGES_MOST]; /* per stage; of several, folded on each of them */
    ds_value *parts = calloc((size_t)b->n_params + 1, sizeof *parts);
    ds_status status = DS_OK;
    if (parts == NULL) {
        return ds_fail(b->ctx, DS_ERR_NOMEM, "no memory for the training graph");
    }
    for (uint32_t stage = 0; stage < most && status >= 0; ++stage) {
        uint32_t n = 0;
        for (ds_cell c = 0; c < b->n_params && status >= 0; ++c) {
            stand_at_stage_of(b, c);
            if (gradients[c] == DS_NONE || (most > 1 && b->graph->stage != stage + 1)) {
                continue;
            }
            const ds_value in[2] = {gradients[c], extra};
            ds_value result[DS_MAX_OUT];
            status = dsi_train_apply(b, map, NULL, in, extra == DS_NONE ? 1 : 2, result);
            parts[n++] = result[0];
        }
        b->graph->stage = most > 1 ? stage + 1 : 0;
        if (status >= 0 && n == 0) { /* all of it is frozen */
            status = map_nothing(b, map, extra, &parts[n++]);
        }
        status = status >= 0 ? fold(b, combine, parts, n, &whole[stage]) : status;
    }
    b->graph->stage = 0;
    status = status >= 0 ? fold(b, combine, whole, most, out) : status;
    free(parts);
    return status;
}

ds_status dsi_train_read_inverse_scale(builder *b, ds_value *value_out)
{
    const ds_meta scalar = {DS_DTYPE_F32, {0}};
    if (b->own->inverse_scale == DS_NONE) {
        DS_TRY(dsi_train_add_cell(b, DS_CELL_SCALAR, "inverse_scale", scalar, DS_NONE,
                                  &b->own->inverse_scale));
    }
    return ds_graph_read(b->graph, b->own->inverse_scale, value_out);
}

/* Gradient norm and the factor that every gradient is multiplied by. */
static ds_status build_norm(builder *b, ds_value *factor_out)
{
    const dsi_clip_attrs clip = {.max_norm = b->spec->max_norm};
    ds_value in[3];
    ds_value out[DS_MAX_OUT];
    ds_graph_set_phase(b->graph, b->own->phases.norm);
    DS_TRY(ds_graph_set_scope(b->graph, "grad_norm"));
    DS_TRY(dsi_train_read_inverse_scale(b, &in[2]));
    DS_TRY(dsi_train_map_fold(b, b->reduced, &dsi_op_abs_max, DS_NONE, &dsi_op_max_of, &in[1]));
    DS_TRY(
        dsi_train_map_fold(b, b->reduced, &dsi_op_sum_squares, in[1], &dsi_op_sum_parts, &in[0]));
    DS_TRY(dsi_train_apply(b, &dsi_op_clip_factor, &clip, in, 3, out));
    DS_TRY(ds_graph_output(b->graph, "grad_norm", out[0]));
    DS_TRY(ds_graph_output(b->graph, "grad_top", in[1]));
    DS_TRY(b->spec->speculative ? ds_graph_output(b->graph, "grad_factor", out[1]) : DS_OK);
    *factor_out = out[1];
    return DS_OK;
}

typedef struct optimizer_row {
    const ds_op *op;
    uint32_t n_states;
    ds_cell_kind states[3];
} optimizer_row;

static optimizer_row optimizer_of(const dsi_train_spec *spec)
{
    switch (spec->optimizer) {
    case DS_OPTIMIZER_ADAM:
    case DS_OPTIMIZER_ONEBIT_ADAM: /* in their warm-up */
    case DS_OPTIMIZER_ZERO_ONE_ADAM:
    case DS_OPTIMIZER_MUON: /* what is none of its matrices */
        return (optimizer_row){&dsi_op_adam, 2, {DS_CELL_EXP_AVG, DS_CELL_EXP_AVG_SQ}};
    case DS_OPTIMIZER_LAMB:
    case DS_OPTIMIZER_ONEBIT_LAMB:
        return (optimizer_row){&dsi_op_lamb_moments, 2, {DS_CELL_EXP_AVG, DS_CELL_EXP_AVG_SQ}};
    case DS_OPTIMIZER_LION:
        return (optimizer_row){&dsi_op_lion, 1, {DS_CELL_EXP_AVG}};
    case DS_OPTIMIZER_ADAGRAD:
        return (optimizer_row){&dsi_op_adagrad, 1, {DS_CELL_EXP_AVG_SQ}};
    case DS_OPTIMIZER_ADAFACTOR: /* the other moments are its own */
        return (optimizer_row){&dsi_op_adafactor, spec->momentum ? 1 : 0, {DS_CELL_EXP_AVG}};
    case DS_OPTIMIZER_SCHEDULE_FREE:
        return (optimizer_row){&dsi_op_schedule_free, 2, {DS_CELL_Z, DS_CELL_EXP_AVG_SQ}};
    case DS_OPTIMIZER_ADAMW_8BIT: /* small parameters; the others: build_8bit */
        return (optimizer_row){&dsi_op_adam, 2, {DS_CELL_EXP_AVG, DS_CELL_EXP_AVG_SQ}};
    case DS_OPTIMIZER_ADEMAMIX:
        return (optimizer_row){
            &dsi_op_ademamix, 3, {DS_CELL_EXP_AVG, DS_CELL_EXP_AVG_SQ, DS_CELL_EXP_AVG_SLOW}};
    default: /* SGD */
        break;
    }
    return (optimizer_row){&dsi_op_sgd, spec->momentum ? 1 : 0, {DS_CELL_MOMENTUM}};
}

/* The value of a state of a parameter, which is made at its first use. */
static ds_status read_state(builder *b, ds_cell_kind kind, ds_meta meta, ds_cell param,
                            ds_value *value_out)
{
    const ds_cell_info info = *ds_cells_get(b->cells, param);
    ds_cell cell = ds_cells_find(b->cells, kind, info.name);
    if (cell == DS_NONE) {
        DS_TRY(dsi_train_add_cell(b, kind, info.name, meta, param, &cell));
    }
    return ds_graph_read(b->graph, cell, value_out);
}

/* LAMB: the moments, the norms of the whole tensor, the update. in: operands of an update. */
static ds_status build_lamb(builder *b, const dsi_optim_attrs *attrs, ds_cell param,
                            const ds_value *in)
{
    const ds_value weight = in[4] != DS_NONE ? in[4] : in[0];
    const ds_value moments[6] = {in[5], in[1], in[2], in[3], DS_NONE, in[6]};
    ds_value made[DS_MAX_OUT];
    ds_value sums[DS_MAX_OUT];
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_train_apply(b, &dsi_op_lamb_moments, attrs, moments, 6, made));
    const ds_value parts[4] = {made[0], made[2], weight, in[2]};
    DS_TRY(dsi_train_apply(b, &dsi_op_lamb_sums, attrs, parts, 4, sums));
    const ds_value update[7] = {in[0], sums[0], in[2], DS_NONE, in[4], made[0], made[2]};
    DS_TRY(dsi_train_apply(b, &dsi_op_lamb, attrs, update, 7, out));
    return b->spec->onebit.on ? dsi_onebit_lamb_warm_up(b, param, sums[0]) : DS_OK;
}

/* Whether rows of the parameter are looked up somewhere. */
static bool is_table(const builder *b, ds_cell param)
{
    const ds_graph *g = b->graph;
    for (uint32_t i = 0; i < g->n_nodes; ++i) {
        const dsi_node_info *node = &g->nodes[i];
        for (uint32_t k = 0; node->op == &dsi_op_embedding && k < node->n_in; k += 2) {
            const ds_value in = g->operands[node->in_at + k];
            if (in != DS_NONE && g->values[in].cell == param) {
                return true;
            }
        }
    }
    return false;
}

/* Whether a parameter's states have 8 bits an element. */
static bool is_8bit(const builder *b, ds_cell param)
{
    const dsi_adam_8bit_spec *spec = &b->spec->adam_8bit;
    return spec->on &&
           ds_shape_count(ds_cells_get(b->cells, param)->meta.shape) >= spec->min_size &&
           !(spec->embeddings_fp32 && is_table(b, param));
}

/* The same in two, of a whole tensor and of slices. all: operands of the one operator. */
static ds_status build_8bit_parts(builder *b, const dsi_optim_attrs *attrs, uint32_t n_states,
                                  const ds_value *all)
{
    const bool mixes = n_states == 3;
    const dsi_scale_attrs same = {.factor = 1.0};
    const dsi_8bit_step_attrs step = {.mixes = mixes};
    ds_value in[DSI_UPDATE_IN + 3] = {DS_NONE, all[2], all[3]};
    ds_value made[DS_MAX_OUT];
    ds_value out[DS_MAX_OUT];
    /* an accumulated gradient would be gathered in the communication dtype (adafactor_graph.c) */
    DS_TRY(dsi_train_apply(b, &dsi_op_scale, &same, &all[1], 1, out));
    in[0] = out[0];
    memcpy(in + 3, all + 5, 2 * n_states * sizeof *in);
    DS_TRY(dsi_train_apply(b, mixes ? &dsi_op_ademamix_8bit_direction : &dsi_op_adam_8bit_direction,
                           attrs, in, 3 + 2 * n_states, made));
    for (uint32_t i = 0; i < 2 * n_states; ++i) {
        const ds_value stored[2] = {all[5 + i], made[1 + i]};
        DS_TRY(dsi_train_apply(b, &dsi_op_store, NULL, stored, 2, out));
    }
    const ds_value update[5] = {all[0], made[0], all[2], DS_NONE, all[4]};
    return dsi_train_apply(b, &dsi_op_adam_8bit_step, &step, update, 5, out);
}

/* AdamW or AdEMAMix with the largest magnitudes of blocks beside states in 8 bits. in: operands of
 * an update. */
static ds_status build_8bit(builder *b, const dsi_optim_attrs *attrs, ds_cell param,
                            const ds_value *in)
{
    const int64_t n = ds_shape_count(ds_cells_get(b->cells, param)->meta.shape);
    const ds_meta sizes = {DS_DTYPE_F32, ds_shape_1d((n + DSI_8BIT_BLOCK - 1) / DSI_8BIT_BLOCK)};
    static const ds_cell_kind kinds[] = {DS_CELL_ABSMAX, DS_CELL_ABSMAX_SQ, DS_CELL_ABSMAX_SLOW};
    const uint32_t n_states = b->spec->ademamix.on ? 3 : 2;
    ds_value all[DSI_UPDATE_IN + 3];
    ds_value out[DS_MAX_OUT];
    memcpy(all, in, (5 + n_states) * sizeof *all);
    for (uint32_t i = 0; i < n_states; ++i) {
        DS_TRY(read_state(b, kinds[i], sizes, param, &all[5 + n_states + i]));
    }
    if (b->spec->adam_8bit.cut) {
        return build_8bit_parts(b, attrs, n_states, all);
    }
    return dsi_train_apply(b, n_states == 3 ? &dsi_op_ademamix_8bit : &dsi_op_adam_8bit, attrs, all,
                           5 + 2 * n_states, out);
}

dsi_optim_attrs dsi_train_update_attrs(const dsi_train_spec *spec)
{
    return (dsi_optim_attrs){.eps = spec->eps,
                             .adamw = spec->decoupled_decay,
                             .dampening = spec->dampening,
                             .nesterov = spec->nesterov,
                             .max_coeff = spec->max_coeff,
                             .min_coeff = spec->min_coeff};
}

ds_status dsi_train_read_update(builder *b, const dsi_train_update *update, ds_value *in)
{
    const dsi_train_spec *spec = b->spec;
    const ds_cell_info info = *ds_cells_get(b->cells, update->param);
    const bool muon = spec->muon.on && dsi_muon_takes(&info);
    const optimizer_row row =
        muon ? (optimizer_row){NULL, 1, {DS_CELL_MOMENTUM}} : optimizer_of(spec);
    const ds_meta master = {DS_DTYPE_F32, info.meta.shape};
    const ds_meta state = {is_8bit(b, update->param) ? DS_DTYPE_U8 : spec->state_dtype,
                           info.meta.shape};
    const uint32_t group = info.no_decay ? DSI_GROUP_NO_DECAY : DSI_GROUP_DECAY;
    in[1] = update->gradient;
    in[3] = update->factor;
    in[4] = in[5] = in[6] = DS_NONE;
    DS_TRY(ds_graph_set_scope(b->graph, info.name));
    stand_at_stage_of(b, update->param);
    DS_TRY(ds_graph_read(b->graph, update->param, &in[0]));
    DS_TRY(ds_graph_read(b->graph, (muon ? b->own->muon_hyper : update->hyper)[group], &in[2]));
    if (spec->schedule_free.on || (spec->master && info.meta.dtype != DS_DTYPE_F32)) {
        DS_TRY(read_state(b, DS_CELL_MASTER, master, update->param, &in[4]));
    }
    for (uint32_t i = 0; i < row.n_states; ++i) {
        DS_TRY(read_state(b, row.states[i], row.states[i] == DS_CELL_Z ? master : state,
                          update->param, &in[5 + i]));
    }
    return DS_OK;
}

/* Schedule-free: a parameter becomes the point between average and z, or the average. */
static ds_status store_point(builder *b, const ds_value *parts, bool average, ds_value param)
{
    const dsi_point_attrs attrs = {.average = average};
    const dsi_cast_attrs narrow = {.dtype = ds_graph_meta(b->graph, param).dtype};
    ds_value stored[2] = {param, DS_NONE};
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_train_apply(b, &dsi_op_schedule_free_point, &attrs, parts, 3, out));
    if (narrow.dtype != DS_DTYPE_F32) {
        DS_TRY(dsi_train_apply(b, &dsi_op_cast, &narrow, out, 1, out));
    }
    stored[1] = out[0];
    return dsi_train_apply(b, &dsi_op_store, NULL, stored, 2, out);
}

/* The update; the average is the master. in: operands of an update. */
static ds_status build_schedule_free(builder *b, const dsi_optim_attrs *attrs, const ds_value *in)
{
    const ds_value update[7] = {in[4], in[1], in[2], in[3], DS_NONE, in[5], in[6]};
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_train_apply(b, &dsi_op_schedule_free, attrs, update, 7, out));
    const ds_value parts[3] = {out[0], out[2], in[2]};
    return store_point(b, parts, false, in[0]);
}

ds_status dsi_train_build_update(builder *b, const dsi_train_update *update)
{
    const optimizer_row row = optimizer_of(b->spec);
    const dsi_optim_attrs attrs = dsi_train_update_attrs(b->spec);
    ds_value in[DSI_UPDATE_IN];
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_train_read_update(b, update, in));
    if (b->spec->muon.on && dsi_muon_takes(ds_cells_get(b->cells, update->param))) {
        return dsi_muon_build_update(b, in);
    }
    if (b->spec->adafactor.on) {
        return dsi_adafactor_build_update(b, update->param, in);
    }
    if (b->spec->schedule_free.on) {
        return build_schedule_free(b, &attrs, in);
    }
    if (is_8bit(b, update->param)) {
        return build_8bit(b, &attrs, update->param, in);
    }
    return row.op == &dsi_op_lamb_moments
               ? build_lamb(b, &attrs, update->param, in)
               : dsi_train_apply(b, row.op, &attrs, in, 5 + row.n_states, out);
}

ds_status dsi_train_add_hyper(builder *b, const char *name, ds_cell cells_out[2])
{
    static const char *const groups[2] = {"decay", "no_decay"};
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_1d(DSI_HYPER_COUNT)};
    for (uint32_t i = 0; i < 2; ++i) {
        char text[64];
        (void)snprintf(text, sizeof text, "%s.%s", name, groups[i]);
        DS_TRY(dsi_train_add_cell(b, DS_CELL_SCALAR, text, meta, DS_NONE, &cells_out[i]));
    }
    return DS_OK;
}

/* The phases that make parameters the average, and the point again. */
static ds_status build_points(builder *b)
{
    const ds_phase phases[2] = {b->own->phases.average, b->own->phases.point};
    for (int k = 0; k < 2; ++k) {
        ds_graph_set_phase(b->graph, phases[k]);
        for (ds_cell c = 0; c < b->n_params; ++c) {
            const dsi_train_update update = {c, DS_NONE, DS_NONE, b->own->hyper};
            ds_value in[DSI_UPDATE_IN];
            if (b->reduced[c] != DS_NONE) {
                DS_TRY(dsi_train_read_update(b, &update, in));
                const ds_value parts[3] = {in[4], in[5], in[2]};
                DS_TRY(store_point(b, parts, k == 0, in[0]));
            }
        }
    }
    return DS_OK;
}

static ds_status build_updates(builder *b, ds_phase phase, ds_value factor)
{
    DS_TRY(dsi_train_add_hyper(b, "hyper", b->own->hyper));
    if (b->spec->muon.on) {
        DS_TRY(dsi_train_add_hyper(b, "muon_hyper", b->own->muon_hyper));
    }
    if (b->spec->zenflow.on) {
        return dsi_zenflow_build(b, factor);
    }
    ds_graph_set_phase(b->graph, phase);
    for (ds_cell c = 0; c < b->n_params; ++c) {
        const dsi_train_update update = {c, b->reduced[c], factor, b->own->hyper};
        if (update.gradient != DS_NONE) {
            DS_TRY(dsi_train_build_update(b, &update));
        }
    }
    DS_TRY(b->spec->schedule_free.on ? build_points(b) : DS_OK);
    return b->spec->onebit.on ? dsi_onebit_build(b, factor) : DS_OK;
}

/* The norm of gradients that are gone when it is asked for: squares are summed exactly before. */
static ds_status build_late_norm(builder *b, ds_value *squares, uint32_t n)
{
    const dsi_clip_attrs clip = {.max_norm = 0.0};
    ds_value in[3] = {DS_NONE, DS_NONE, DS_NONE};
    ds_value out[DS_MAX_OUT];
    ds_graph_set_phase(b->graph, b->own->phases.norm);
    DS_TRY(ds_graph_set_scope(b->graph, "grad_norm"));
    DS_TRY(dsi_train_read_inverse_scale(b, &in[2]));
    DS_TRY(fold(b, &dsi_op_sum_parts, squares, n, &in[0]));
    DS_TRY(dsi_train_apply(b, &dsi_op_clip_factor, &clip, in, 3, out));
    return ds_graph_output(b->graph, "grad_norm", out[0]);
}

static ds_status build_early(builder *b)
{
    ds_value factor = DS_NONE;
    uint32_t n = 0;
    ds_value *squares = calloc((size_t)b->n_params + 1, sizeof *squares);
    ds_status status = DS_OK;
    if (squares == NULL) {
        return ds_fail(b->ctx, DS_ERR_NOMEM, "no memory for the training graph");
    }
    for (ds_cell c = 0; c < b->n_params; ++c) {
        ds_value out[DS_MAX_OUT];
        if (b->reduced[c] != DS_NONE) {
            DS_TRY_GOTO(status, ds_graph_set_scope(b->graph, ds_cells_get(b->cells, c)->name),
                        done);
            DS_TRY_GOTO(status,
                        dsi_train_apply(b, &dsi_op_sum_squares, NULL, &b->reduced[c], 1, out),
                        done);
            squares[n++] = out[0];
        }
    }
    DS_TRY_GOTO(status, dsi_train_read_inverse_scale(b, &factor), done);
    DS_TRY_GOTO(status, build_updates(b, DS_PHASE_BACKWARD, factor), done);
    status = build_late_norm(b, squares, n);
done:
    free(squares);
    return status;
}

static ds_status add_phases(builder *b)
{
    dsi_train_phases *phases = &b->own->phases;
    DS_TRY(ds_graph_add_phase(b->graph, "norm", 0, &phases->norm));
    DS_TRY(b->spec->zenflow.on ? dsi_zenflow_add_phases(b) : DS_OK);
    DS_TRY(ds_graph_add_phase(b->graph, "update", 0, &phases->update));
    if (b->spec->speculative) {
        DS_TRY(ds_graph_add_phase(b->graph, "accept", DS_PHASE_SKIPPABLE, &phases->accept));
        DS_TRY(ds_graph_add_phase(b->graph, "undo", DS_PHASE_SKIPPABLE, &phases->undo));
        DS_TRY(ds_graph_add_phase(b->graph, "redo", DS_PHASE_SKIPPABLE, &phases->redo));
    }
    DS_TRY(b->spec->onebit.on ? dsi_onebit_add_phases(b) : DS_OK);
    if (b->spec->schedule_free.on) {
        DS_TRY(ds_graph_add_phase(b->graph, "average", DS_PHASE_SKIPPABLE, &phases->average));
        DS_TRY(ds_graph_add_phase(b->graph, "point", DS_PHASE_SKIPPABLE, &phases->point));
    }
    return b->masks.n > 0
               ? ds_graph_add_phase(b->graph, "masks", DS_PHASE_SKIPPABLE, &phases->masks)
               : DS_OK;
}

/* The masks of compression, of the weights as they are then. */
static ds_status build_masks(builder *b)
{
    if (b->masks.n > 0) {
        ds_graph_set_phase(b->graph, b->own->phases.masks);
    }
    for (uint32_t i = 0; i < b->masks.n; ++i) {
        const dsi_compress_mask *m = &b->masks.items[i];
        const dsi_top_mask_attrs top = {m->ratio, m->by, m->transposed};
        ds_value in[2];
        ds_value out[DS_MAX_OUT];
        DS_TRY(ds_graph_set_scope(b->graph, ds_cells_get(b->cells, m->cell)->name));
        DS_TRY(ds_graph_read(b->graph, m->param, &in[0]));
        DS_TRY(dsi_train_apply(b, &dsi_op_top_mask, &top, in, 1, out));
        in[1] = out[0];
        DS_TRY(ds_graph_read(b->graph, m->cell, &in[0]));
        DS_TRY(dsi_train_apply(b, &dsi_op_store, NULL, in, 2, out));
    }
    return DS_OK;
}

/* The stages of a pipeline, before there are gradients, which are on those of what they are of. */
static ds_status build_stages(builder *b)
{
    if (b->spec->stages <= 1) {
        return DS_OK;
    }
    b->stages = calloc((size_t)b->n_params + 1, sizeof *b->stages);
    if (b->stages == NULL) {
        return ds_fail(b->ctx, DS_ERR_NOMEM, "no memory for the training graph");
    }
    DS_TRY(dsi_stages_mark(b->graph, b->spec->stages, b->spec->partition, b->spec->partition_type));
    dsi_stages_of_cells(b->graph, b->stages);
    return DS_OK;
}

static ds_status build_all(builder *b)
{
    ds_value factor = DS_NONE;
    uint32_t n = 0;
    DS_TRY(add_phases(b));
    DS_TRY(build_stages(b));
    DS_TRY(build_gradients(b));
    for (ds_cell c = 0; c < b->n_params; ++c) {
        b->reduced[c] = DS_NONE;
        if (b->d_cell[c] != DS_NONE) {
            DS_TRY(reduce_gradient(b, c));
            ++n;
        }
    }
    if (n == 0) {
        return ds_fail(b->ctx, DS_ERR_ARG, "no trainable parameter reaches the loss");
    }
    if (dsi_train_is_early(b->spec)) {
        return build_early(b);
    }
    DS_TRY(build_norm(b, &factor));
    if (b->spec->keep_nonfinite && b->spec->max_norm == 0.0) { /* it waits for nothing */
        DS_TRY(dsi_train_read_inverse_scale(b, &factor));
    }
    return build_updates(b, b->own->phases.update, factor);
}

int64_t dsi_train_rows(const dsi_train_spec *spec)
{
    if (spec->task == DS_TASK_CONTRAST) {
        return (2 + (int64_t)spec->task_params.contrast.n_negatives) * spec->batch;
    }
    return ds_preference_is_paired(spec->preference.loss) ? 2 * spec->batch : spec->batch;
}

const ds_routing *dsi_train_routing(const dsi_train_spec *spec)
{
    const ds_routing *r = &spec->routing;
    const bool said = r->n_chosen != 0 || r->n_groups != 0 || r->factor != 0.0 || r->scale != 0.0 ||
                      r->normalise != 0 || r->sigmoid != 0 || r->weighs_first != 0;
    return said ? r : NULL;
}

ds_trace dsi_train_trace(const dsi_train_spec *spec, ds_trace_mode mode)
{
    return (ds_trace){.mode = mode,
                      .dtype = spec->dtype,
                      .batch = dsi_train_rows(spec),
                      .seq_length = spec->seq_length,
                      .mlp_rows = spec->mlp_rows,
                      .head_ranks = spec->head_ranks,
                      .sequence_ranks = spec->sequence_ranks,
                      .sequence_form = spec->sequence_form,
                      .sequence_chunk = spec->sequence_chunk,
                      .expert_ranks = spec->expert_ranks,
                      .token_ranks = spec->token_ranks,
                      .routing = dsi_train_routing(spec),
                      .data_ranks = spec->data_ranks,
                      .packing = dsi_adapter_packing(spec->adapter),
                      .task = spec->task,
                      .n_classes = spec->n_classes,
                      .task_params = &spec->task_params,
                      .distillation = mode == DS_TRACE_TRAIN && spec->distillation.teacher != NULL
                                          ? &spec->distillation
                                          : NULL,
                      .preference =
                          spec->preference.loss != DS_PREFERENCE_NONE ? &spec->preference : NULL};
}

/* Whether a node routes tokens, by a weight of the model itself and not of its teacher. */
static bool routes_own(const ds_graph *g, const dsi_node_info *node)
{
    const ds_value logits = node->op == &dsi_op_route ? dsi_node_in(g, node)[0] : DS_NONE;
    const ds_node made = logits != DS_NONE ? g->values[logits].producer : DS_NONE;
    const bool linear = made != DS_NONE && g->nodes[made].op == &dsi_op_linear;
    const ds_value w = linear ? dsi_node_in(g, &g->nodes[made])[1] : DS_NONE;
    const ds_cell cell = w != DS_NONE ? g->values[w].cell : DS_NONE;
    return logits != DS_NONE && (cell == DS_NONE || !dsi_nn_is_teacher(&g->cells->items[cell]));
}

/* Routing is of some router. */
static ds_status check_routing(const builder *b)
{
    bool routes = dsi_train_routing(b->spec) == NULL;
    for (uint32_t i = 0; i < b->graph->n_nodes && !routes; ++i) {
        routes = routes_own(b->graph, &b->graph->nodes[i]);
    }
    return routes ? DS_OK
                  : ds_fail(b->ctx, DS_ERR_CONFIG,
                            "expert_parallel: its keys say how tokens are routed, but the model "
                            "has no experts; remove the section");
}

ds_status dsi_train_graph(const ds_model *model, const dsi_train_spec *spec, ds_cells *cells,
                          ds_graph **graph_out, dsi_train_cells *cells_out)
{
    const ds_trace trace = dsi_train_trace(spec, DS_TRACE_TRAIN);
    builder b = {.spec = spec, .ctx = cells->ctx, .cells = cells, .own = cells_out};
    memset(cells_out, 0xff, sizeof *cells_out); /* all DS_NONE */
    DS_TRY(dsi_forward_graph(model, &trace, spec->loss, spec->loss_user, cells, &b.graph));
    ds_status status = check_routing(&b);
    status = status >= 0 ? dsi_compress_graph(spec->compression, &b.graph, &b.masks) : status;
    status = status >= 0 ? dsi_adapter_graph(spec->adapter, &trace, &b.graph) : status;
    b.n_params = ds_cells_count(cells);
    b.reduced = calloc((size_t)b.n_params + 1, sizeof *b.reduced);
    if (b.reduced == NULL) {
        status = ds_fail(b.ctx, DS_ERR_NOMEM, "no memory for the training graph");
    }
    status = status >= 0 ? build_all(&b) : status;
    status = status >= 0 ? build_masks(&b) : status;
    if (b.graph != NULL) {
        b.graph->stage = 0;
    }
    free(b.stages);
    free(b.masks.items);
    free(b.d_cell);
    free(b.reduced);
    if (status < 0) {
        ds_graph_destroy(&b.graph);
        return status;
    }
    *graph_out = b.graph;
    return DS_OK;
}
