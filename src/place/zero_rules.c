/* SPDX-License-Identifier: Apache-2.0 */
/* Where each cell lies, for a ZeRO stage. See zero.h. */
#include "place/zero.h"

#include <stdlib.h>

ds_status dsi_zero_set_ranks(ds_ctx *ctx, dsi_zero_spec *spec, uint32_t n_ranks)
{
    const uint32_t pp = spec->pp > 0 ? spec->pp : 1;
    const uint32_t data = n_ranks / pp / (spec->tp > 0 ? spec->tp : 1);
    const uint32_t mics = spec->mics > data ? data : spec->mics;
    const dsi_mesh_params params = {.world_size = n_ranks,
                                    .pp = pp,
                                    .tp = spec->tp,
                                    .sp = spec->sp,
                                    .ep = spec->ep,
                                    .mics = mics,
                                    .hpz = spec->hpz};
    return dsi_mesh_make(ctx, &params, &spec->mesh);
}

/* Axes without those that shard what is an expert's (a mask). */
static dsi_axes apart_from(dsi_axes axes, uint32_t experts)
{
    return dsi_axes_of(dsi_axes_mask(&axes) & ~experts);
}

/* The value of each rank's own samples, or with `term` a term of the mean over them. */
static dsi_spread over_data(const dsi_mesh *mesh, bool term, uint32_t experts)
{
    const dsi_axes data = apart_from(dsi_axes_data(), experts);
    dsi_spread s = {0};
    for (uint32_t i = 0; i < data.n; ++i) {
        s.at = dsi_own(s.at, (dsi_axis)data.axis[i]);
    }
    s.at = dsi_placement_simplify(mesh, &s.at);
    if (!term) {
        return s;
    }
    s = dsi_completed_spread(&s);
    s.averaged |= mesh->size[DSI_AXIS_EP] > 1 ? experts & 1u << DSI_AXIS_EP : 0;
    if (mesh->size[DSI_AXIS_SP] > 1 &&
        (experts >> DSI_AXIS_SP & 1u) == 0) { /* of what the rank's part of the sequences adds */
        s.at = dsi_partial(s.at, DSI_AXIS_SP);
    }
    return s;
}

/* Gradients and states: over the ranks of a group, with hpZ each slice again over the groups. */
static dsi_spread cut(const dsi_zero_spec *spec, bool flat, uint32_t experts)
{
    dsi_axes axes = apart_from(dsi_axes_zero(false), experts);
    if (spec->hpz > 1) {
        dsi_axes_add(&axes, DSI_AXIS_DPR);
    }
    const dsi_placement at = flat ? dsi_flat(dsi_replicate(), axes) : dsi_replicate();
    return (dsi_spread){.at = dsi_placement_simplify(&spec->mesh, &at)};
}

/* A parameter: as its states, or over a group's ranks alone where its slice there is exactly the
 * slices of all groups. */
static dsi_spread cut_parameter(const dsi_zero_spec *spec, int64_t count, uint32_t experts)
{
    const dsi_placement at = dsi_flat(dsi_replicate(), apart_from(dsi_axes_zero(false), experts));
    const dsi_axes whole = apart_from(dsi_axes_zero(true), experts);
    const bool aligned = count % dsi_axes_size(&spec->mesh, &whole) == 0;
    return aligned ? (dsi_spread){.at = dsi_placement_simplify(&spec->mesh, &at)}
                   : cut(spec, true, experts);
}

/* On the data axes. count: elements of the shard. experts: the axes that shard it as
 * experts, a mask. */
static dsi_spread place_on_data(const dsi_zero_spec *spec, const ds_cell_info *cell, int64_t count,
                                uint32_t experts, int64_t *kept)
{
    switch (cell->kind) {
    case DS_CELL_PARAM:
        if (spec->own_states) {
            return over_data(&spec->mesh, false, experts);
        }
        if (spec->stage < 3) {
            return cut(spec, false, experts);
        }
        if (count < spec->persistence_threshold && count <= spec->model_persistence - *kept) {
            *kept += count;
            return cut(spec, false, experts);
        }
        return cut_parameter(spec, count, experts);
    case DS_CELL_GRAD:
        if (spec->stage < 2 && !spec->reduce_each) {
            return over_data(&spec->mesh, true, experts);
        }
        return cut(spec, spec->stage >= 1, experts);
    case DS_CELL_MASTER:
    case DS_CELL_EXP_AVG:
    case DS_CELL_EXP_AVG_SQ:
    case DS_CELL_FROZEN:
        return spec->own_states ? over_data(&spec->mesh, false, experts)
                                : cut(spec, spec->stage >= 1, experts);
    case DS_CELL_MOMENTUM:
    case DS_CELL_WAITING:
    case DS_CELL_HANDED:
    case DS_CELL_Z:
    case DS_CELL_EXP_AVG_SLOW:
        return cut(spec, spec->stage >= 1, experts);
    case DS_CELL_INPUT:
    case DS_CELL_OUTPUT:
    case DS_CELL_KV:
    case DS_CELL_WORKER_ERROR:
    case DS_CELL_SERVER_ERROR:
    case DS_CELL_LOCAL:
        return over_data(&spec->mesh, false, experts);
    default:
        return cut(spec, false, experts);
    }
}

/* The parameter as whose slices a cell is sharded; DS_NONE: a state that has not its parameter's
 * shape (one number for the tensor) is not. */
static ds_cell sharded_as(const ds_cells *cells, ds_cell c)
{
    const ds_cell_info *cell = ds_cells_get(cells, c);
    const bool is_state = cell->kind != DS_CELL_PARAM && cell->kind != DS_CELL_INPUT;
    const ds_cell param = cell->of != DS_NONE && is_state ? cell->of : c;
    const bool alike = ds_shape_equal(cell->meta.shape, ds_cells_get(cells, param)->meta.shape);
    return alike ? param : DS_NONE;
}

/* How tp shards a cell; {0}: it does not. */
static dsi_place_on on_tensor(const dsi_zero_spec *spec, const ds_cells *cells, ds_cell c)
{
    const ds_cell param = sharded_as(cells, c);
    const bool is = spec->tensor != NULL && spec->mesh.size[DSI_AXIS_TP] > 1 && param != DS_NONE;
    return is ? spec->tensor[param] : (dsi_place_on){0};
}

/* The axes that share the experts of a cell; 0: it has none, or each rank has all. */
static uint32_t expert_axes(const dsi_zero_spec *spec, const ds_cells *cells, ds_cell c)
{
    const ds_cell param = sharded_as(cells, c);
    return spec->expert != NULL && param != DS_NONE ? spec->expert[param] : 0;
}

static void deal(const dsi_mesh *mesh, uint32_t experts, dsi_placement *at)
{
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if ((experts >> a & 1u) != 0 && mesh->size[a] > 1) {
            at->on[a] = (dsi_place_on){DSI_SHARD, 0, 0};
        }
    }
}

void dsi_zero_rules(const dsi_zero_spec *spec, const ds_cells *cells, dsi_spread *spreads)
{
    int64_t kept = 0;
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        const dsi_place_on on = on_tensor(spec, cells, c);
        const uint32_t experts = expert_axes(spec, cells, c);
        dsi_placement shard = {0};
        shard.on[DSI_AXIS_TP] = on;
        deal(&spec->mesh, experts, &shard);
        const int64_t count = dsi_placement_slots(&spec->mesh, &shard, cell->meta.shape);
        spreads[c] = place_on_data(spec, cell, count, experts, &kept);
        deal(&spec->mesh, experts, &spreads[c].at);
        if (on.kind == DSI_SHARD) {
            spreads[c].at.on[DSI_AXIS_TP] = on;
        }
        if (spec->sequence != NULL && spec->sequence[c].kind == DSI_SHARD) {
            spreads[c].at.on[DSI_AXIS_SP] = spec->sequence[c];
        }
        if (spec->stages != NULL && spec->stages[c].first > 0) {
            const dsi_stage_of *of = &spec->stages[c];
            spreads[c].at = (of->more ? dsi_from : dsi_at)(spreads[c].at, DSI_AXIS_PP,
                                                           of->first - 1, of->last - 1);
        }
    }
}

static void cell_of(void *user, ds_cell cell, const ds_cell_info *info, dsi_spread *spread_out)
{
    const dsi_spread *spreads = user;
    (void)info;
    *spread_out = spreads[cell];
}

ds_status dsi_zero_lower(const ds_graph *graph, const dsi_zero_spec *spec, ds_cells *local,
                         ds_graph **local_out)
{
    dsi_spread *spreads = calloc((size_t)ds_cells_count(graph->cells) + 1, sizeof *spreads);
    dsi_propagation *placed = NULL;
    if (spreads == NULL) {
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to place the graph");
    }
    dsi_zero_rules(spec, graph->cells, spreads);
    const dsi_propagate_params params = {.mesh = spec->mesh,
                                         .policy = dsi_place_policy_default(),
                                         .gradient = cut(spec, spec->stage >= 1, false).at,
                                         .cell = cell_of,
                                         .user = spreads};
    ds_status status = dsi_propagate(graph, &params, &placed);
    if (status >= 0) {
        const dsi_localize_params how = {.placed = placed,
                                         .quantized = spec->quantized,
                                         .sum = spec->sum,
                                         .comm_dtype = spec->comm_dtype,
                                         .reduce_bucket = spec->reduce_bucket,
                                         .gather_bucket = spec->gather_bucket,
                                         .max_live = spec->max_live,
                                         .max_reuse_distance = spec->max_reuse_distance,
                                         .by_phase = spec->mesh.size[DSI_AXIS_PP] > 1};
        status = dsi_localize(graph, &how, local, local_out);
    }
    dsi_propagation_destroy(&placed);
    free(spreads);
    return status;
}
