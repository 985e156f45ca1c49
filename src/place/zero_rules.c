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

/* Axes without ep and sp, which shard what is an expert's. */
static dsi_axes apart_from_ep(dsi_axes axes, bool is_expert)
{
    dsi_axes others = {0};
    for (uint32_t i = 0; i < axes.n; ++i) {
        if (!is_expert || (axes.axis[i] != DSI_AXIS_EP && axes.axis[i] != DSI_AXIS_SP)) {
            dsi_axes_add(&others, (dsi_axis)axes.axis[i]);
        }
    }
    return others;
}

/* The value of each rank's own samples, or with `term` a term of the mean over them. */
static dsi_spread over_data(const dsi_mesh *mesh, bool term, bool is_expert)
{
    const dsi_axes data = apart_from_ep(dsi_axes_data(), is_expert);
    dsi_spread s = {0};
    for (uint32_t i = 0; i < data.n; ++i) {
        s.at = dsi_own(s.at, (dsi_axis)data.axis[i]);
    }
    s.at = dsi_placement_simplify(mesh, &s.at);
    if (!term) {
        return s;
    }
    s = dsi_completed_spread(&s);
    s.averaged |= is_expert && mesh->size[DSI_AXIS_EP] > 1 ? 1u << DSI_AXIS_EP : 0;
    if (mesh->size[DSI_AXIS_SP] > 1 &&
        !is_expert) { /* of what the rank's part of the sequences adds */
        s.at = dsi_partial(s.at, DSI_AXIS_SP);
    }
    return s;
}

/* Gradients and states: over the ranks of a group, with hpZ each slice again over the groups. */
static dsi_spread cut(const dsi_zero_spec *spec, bool flat, bool is_expert)
{
    dsi_axes axes = apart_from_ep(dsi_axes_zero(false), is_expert);
    if (spec->hpz > 1) {
        dsi_axes_add(&axes, DSI_AXIS_DPR);
    }
    const dsi_placement at = flat ? dsi_flat(dsi_replicate(), axes) : dsi_replicate();
    return (dsi_spread){.at = dsi_placement_simplify(&spec->mesh, &at)};
}

/* A parameter: as its states, or over a group's ranks alone where its slice there is exactly the
 * slices of all groups. */
static dsi_spread cut_parameter(const dsi_zero_spec *spec, int64_t count, bool is_expert)
{
    const dsi_placement at =
        dsi_flat(dsi_replicate(), apart_from_ep(dsi_axes_zero(false), is_expert));
    const dsi_axes whole = apart_from_ep(dsi_axes_zero(true), is_expert);
    const bool aligned = count % dsi_axes_size(&spec->mesh, &whole) == 0;
    return aligned ? (dsi_spread){.at = dsi_placement_simplify(&spec->mesh, &at)}
                   : cut(spec, true, is_expert);
}

/* On the data axes. count: elements of the shard. is_expert: ep shards it. */
static dsi_spread place_on_data(const dsi_zero_spec *spec, const ds_cell_info *cell, int64_t count,
                                bool is_expert, int64_t *kept)
{
    switch (cell->kind) {
    case DS_CELL_PARAM:
        if (spec->own_states) {
            return over_data(&spec->mesh, false, is_expert);
        }
        if (spec->stage < 3) {
            return cut(spec, false, is_expert);
        }
        if (count < spec->persistence_threshold && count <= spec->model_persistence - *kept) {
            *kept += count;
            return cut(spec, false, is_expert);
        }
        return cut_parameter(spec, count, is_expert);
    case DS_CELL_GRAD:
        if (spec->stage < 2 && !spec->reduce_each) {
            return over_data(&spec->mesh, true, is_expert);
        }
        return cut(spec, spec->stage >= 1, is_expert);
    case DS_CELL_MASTER:
    case DS_CELL_EXP_AVG:
    case DS_CELL_EXP_AVG_SQ:
    case DS_CELL_FROZEN:
        return spec->own_states ? over_data(&spec->mesh, false, is_expert)
                                : cut(spec, spec->stage >= 1, is_expert);
    case DS_CELL_MOMENTUM:
    case DS_CELL_WAITING:
    case DS_CELL_HANDED:
    case DS_CELL_Z:
        return cut(spec, spec->stage >= 1, is_expert);
    case DS_CELL_INPUT:
    case DS_CELL_OUTPUT:
    case DS_CELL_KV:
    case DS_CELL_WORKER_ERROR:
    case DS_CELL_SERVER_ERROR:
    case DS_CELL_LOCAL:
        return over_data(&spec->mesh, false, is_expert);
    default:
        return cut(spec, false, is_expert);
    }
}

/* How a list of parameters shards a cell over so many ranks; {0}: it does not. */
static dsi_place_on on_shards(const dsi_place_on *shards, uint32_t n_ranks, const ds_cells *cells,
                              ds_cell c)
{
    const ds_cell_info *cell = ds_cells_get(cells, c);
    const bool is_sharded = shards != NULL && n_ranks > 1;
    const ds_cell param = cell->of != DS_NONE && cell->kind != DS_CELL_PARAM ? cell->of : c;
    /* a state that has not its parameter's shape (one number for the tensor) is not cut */
    const bool alike = ds_shape_equal(cell->meta.shape, ds_cells_get(cells, param)->meta.shape);
    return is_sharded && alike ? shards[param] : (dsi_place_on){0};
}

void dsi_zero_rules(const dsi_zero_spec *spec, const ds_cells *cells, dsi_spread *spreads)
{
    const uint32_t *size = spec->mesh.size;
    const uint32_t n_experts = size[DSI_AXIS_EP] * size[DSI_AXIS_SP]; /* ranks that share them */
    int64_t kept = 0;
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        const dsi_place_on on = on_shards(spec->tensor, size[DSI_AXIS_TP], cells, c);
        const dsi_place_on dealt = on_shards(spec->expert, n_experts, cells, c);
        const bool is_expert = dealt.kind == DSI_SHARD;
        dsi_placement shard = {0};
        shard.on[DSI_AXIS_TP] = on;
        shard.on[DSI_AXIS_EP] = shard.on[DSI_AXIS_SP] = dealt;
        const int64_t count = dsi_placement_slots(&spec->mesh, &shard, cell->meta.shape);
        spreads[c] = place_on_data(spec, cell, count, is_expert, &kept);
        if (is_expert) {
            spreads[c].at.on[DSI_AXIS_EP] = spreads[c].at.on[DSI_AXIS_SP] = dealt;
        }
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
