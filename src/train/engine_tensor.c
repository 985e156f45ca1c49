/* SPDX-License-Identifier: Apache-2.0 */
/* What tensor and expert parallelism shard of a model, said where a run begins. */
#include "train/engine.h"

#include <inttypes.h>

enum { NAMES_BYTES = 160 };

/* Matrices that every rank has whole: the first names, then how many more there are. */
static void name_whole(const ds_engine *engine, dsi_buf *names)
{
    uint32_t more = 0;
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        const bool is_whole = engine->places[c].at.on[DSI_AXIS_TP].kind != DSI_SHARD;
        if (cell->kind != DS_CELL_PARAM || cell->meta.shape.n_dims < 2 || !is_whole) {
            continue;
        }
        if (more == 0 && names->size < NAMES_BYTES) {
            dsi_buf_printf(names, "%s%s", names->size > 0 ? ", " : "; whole on each: ", cell->name);
        } else {
            ++more;
        }
    }
    if (more > 0) {
        dsi_buf_printf(names, " and %" PRIu32 " more", more);
    }
}

/* Parameters, and of those the ones that are sharded along an axis. */
typedef struct shares {
    uint32_t n, n_sharded;
    double all, sharded; /* elements */
} shares;

static void count_cell(shares *s, const ds_cell_info *cell, bool is_sharded)
{
    const double count = (double)ds_shape_count(cell->meta.shape);
    s->n += 1;
    s->n_sharded += is_sharded ? 1 : 0;
    s->all += count;
    s->sharded += is_sharded ? count : 0;
}

static shares count_shares(const ds_engine *engine, dsi_axis axis)
{
    shares s = {0};
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        if (cell->kind == DS_CELL_PARAM) {
            count_cell(&s, cell, engine->places[c].at.on[axis].kind == DSI_SHARD);
        }
    }
    return s;
}

enum { STACKED = 3 }; /* dims of the weights of all experts of a layer */

/* Likewise along ep and sp, and tp where experts are folded over it. *ranks: that share experts. */
static shares count_experts(const ds_engine *engine, uint32_t *ranks)
{
    const dsi_mesh *mesh = &engine->spec.zero.mesh;
    shares s = {0};
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        const dsi_place_on *on = engine->places[c].at.on;
        const bool dealt = on[DSI_AXIS_EP].kind == DSI_SHARD || on[DSI_AXIS_SP].kind == DSI_SHARD;
        const bool folded = (engine->spec.zero.folded >> DSI_AXIS_TP & 1u) != 0 &&
                            cell->meta.shape.n_dims == STACKED &&
                            on[DSI_AXIS_TP].kind == DSI_SHARD && on[DSI_AXIS_TP].dim == 0;
        if (cell->kind != DS_CELL_PARAM) {
            continue;
        }
        uint32_t n = 1;
        for (uint32_t a = DSI_AXIS_EP; a <= DSI_AXIS_TP; ++a) {
            n *= (dealt || folded) && on[a].kind == DSI_SHARD ? mesh->size[a] : 1;
        }
        count_cell(&s, cell, dealt || folded);
        *ranks = n > *ranks ? n : *ranks;
    }
    return s;
}

void dsi_engine_say_experts(const ds_engine *engine)
{
    uint32_t ranks = 1;
    const shares s = count_experts(engine, &ranks);
    if (ranks > 1 && s.n_sharded > 0) {
        ds_log(engine->ctx, DS_LOG_JOB,
               "expert parallel: %" PRIu32 " ranks share %" PRIu32 " of %" PRIu32
               " parameters, %.0f %% of the elements",
               ranks, s.n_sharded, s.n, 100 * s.sharded / s.all);
    }
    if (dsi_train_routing(&engine->spec.train) != NULL) {
        ds_log(engine->ctx, DS_LOG_JOB,
               "expert_parallel says how tokens are routed in this run; what is exported keeps the "
               "model's own config.json, by which others route");
    }
}

ds_status dsi_engine_say_tensor(const ds_engine *engine)
{
    const uint32_t tp = engine->spec.zero.mesh.size[DSI_AXIS_TP];
    if (tp < 2 || engine->spec.no_shards) {
        return DS_OK;
    }
    const shares s = count_shares(engine, DSI_AXIS_TP);
    dsi_buf names = dsi_buf_make(4 * NAMES_BYTES);
    name_whole(engine, &names);
    ds_log(engine->ctx, DS_LOG_JOB,
           "tensor parallel: %" PRIu32 " ranks share %" PRIu32 " of %" PRIu32
           " parameters, %.0f %% of the elements%s%s",
           tp, s.n_sharded, s.n, 100 * s.sharded / s.all, dsi_buf_text(&names),
           engine->spec.domino ? "; halves of a micro-batch take turns" : "");
    dsi_buf_free(&names);
    return DS_OK;
}
