/* SPDX-License-Identifier: Apache-2.0 */
/* Whether all ranks make the same call; for engine_states.c and engine_gather.c. */
#ifndef DSI_TRAIN_ENGINE_SAME_H
#define DSI_TRAIN_ENGINE_SAME_H

#include "train/engine.h"

/* Collective. what: the call in words; digest: of the values that it gives, 0 for none; own: this
 * rank's checks so far. Gives the own error, or ERR_PEER naming the first rank that failed, asks
 * for something else, or gives other values. Every rank fails when one does. */
ds_status dsi_engine_same(const ds_engine *engine, const char *what, uint64_t digest,
                          ds_status own);

/* The whole of a cell as fp32. Collective when it is sharded. */
ds_status dsi_engine_get_cell(const ds_engine *engine, ds_cell cell, float *data);
/* ERR_UNSUPPORTED naming a parameter that is packed. */
ds_status dsi_engine_check_plain(const ds_engine *engine, ds_cell cell);

#endif
