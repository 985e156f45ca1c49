/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule-free AdamW keeps in its parameters the point at which gradients are taken; the model is
 * the average, which is in the masters. Whoever evaluates makes parameters the average and then the
 * point again, from states that this does not change. See engine.h. */
#include "train/engine.h"

ds_status dsi_engine_set_average(ds_engine *engine, bool average)
{
    const dsi_train_phases *phases = &engine->own.phases;
    const int64_t updates = dsi_engine_updates(engine);
    if (!engine->spec.train.schedule_free.on || updates == 0) { /* all three are the start */
        return DS_OK;
    }
    DS_TRY(dsi_engine_write_hyper(engine, engine->own.hyper, updates));
    return dsi_exec_run(engine->exec, engine->train_id, average ? phases->average : phases->point);
}

ds_status dsi_engine_check_set(const ds_engine *engine, ds_cell_kind kind)
{
    const bool weight = kind == DS_CELL_PARAM || kind == DS_CELL_MASTER;
    return engine->spec.train.schedule_free.on && weight && dsi_engine_updates(engine) > 0
               ? ds_fail(engine->ctx, DS_ERR_STATE,
                         "AdamWScheduleFree keeps weights three times, of which a call would set "
                         "one: set parameters before the first step")
               : DS_OK;
}
