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

static shares count_shares(const ds_engine *engine, dsi_axis axis)
{
    shares s = {0};
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        if (cell->kind == DS_CELL_PARAM) {
            const bool is_sharded = engine->places[c].at.on[axis].kind == DSI_SHARD;
            const double count = (double)ds_shape_count(cell->meta.shape);
            s.n += 1;
            s.n_sharded += is_sharded ? 1 : 0;
            s.all += count;
            s.sharded += is_sharded ? count : 0;
        }
    }
    return s;
}

void dsi_engine_say_experts(const ds_engine *engine)
{
    const uint32_t *size = engine->spec.zero.mesh.size;
    const uint32_t ranks = size[DSI_AXIS_EP] * size[DSI_AXIS_SP];
    const shares s = count_shares(engine, size[DSI_AXIS_EP] > 1 ? DSI_AXIS_EP : DSI_AXIS_SP);
    if (ranks > 1 && s.n_sharded > 0) {
        ds_log(engine->ctx, DS_LOG_JOB,
               "expert parallel: %" PRIu32 " ranks share %" PRIu32 " of %" PRIu32
               " parameters, %.0f %% of the elements",
               ranks, s.n_sharded, s.n, 100 * s.sharded / s.all);
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
