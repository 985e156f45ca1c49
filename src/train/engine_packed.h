/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of an engine's packed parameters. */
#ifndef DSI_TRAIN_ENGINE_PACKED_H
#define DSI_TRAIN_ENGINE_PACKED_H

#include "train/engine.h"

/* As one rank would hold them, whatever ranks share the matrix: ds_packed_bytes(). Collective. */
ds_status dsi_engine_packed(const ds_engine *engine, ds_cell cell, void *packed);

#endif
