/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine's programs do on the host, as const rows that engine_program.c lists in order.
 * The user of each is the ds_engine. */
#ifndef DSI_TRAIN_ENGINE_ACTIONS_H
#define DSI_TRAIN_ENGINE_ACTIONS_H

#include "train/engine.h"

/* engine_batch.c */
extern const dsi_program_action dsi_engine_load_batch; /* and the random state */
extern const dsi_program_action dsi_engine_load_eval_batch;
extern const dsi_program_action dsi_engine_load_gradients; /* of outputs, with the loss scale */

extern const dsi_program_action dsi_engine_write_compression; /* engine_compress.c */

/* engine_zenflow_step.c: what a step does in place of the update, once its gradients may be used.
 */
void dsi_zenflow_program(const ds_engine *engine, dsi_program *p);

#endif
