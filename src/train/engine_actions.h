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

/* engine_program.c: what a backward call does. more: between the count of targets and the phase;
 * NULL: nothing. */
typedef struct dsi_engine_backward {
    ds_phase phase; /* the backward phase, or a part of it */
    uint32_t slot;
    bool of_loss;      /* it begins with the loss */
    bool may_be_first; /* of a step */
    bool ends;         /* the micro-batch is done with it */
    const dsi_program_action *more;
} dsi_engine_backward;

void dsi_engine_add_backward(const ds_engine *engine, dsi_program *p,
                             const dsi_engine_backward *how);

/* engine_speculate.c: behind the numbers of updates ahead of the norm; whether these are accepted,
 * behind the norm; what becomes of them, behind the other updates. */
extern const dsi_program_action dsi_engine_note_numbers, dsi_engine_judge_updates;
void dsi_engine_add_decision(const ds_engine *engine, dsi_program *p);

/* engine_zenflow_step.c: what a step does in place of the update, once its gradients may be used.
 */
void dsi_zenflow_program(const ds_engine *engine, dsi_program *p);

/* engine_onebit_step.c: the same where ranks exchange signs; whether gradients are averaged in this
 * step, or each rank has its own norm; forgets what exchanges have lost. */
extern const dsi_program_test dsi_onebit_by_mean, dsi_onebit_by_own;
extern const dsi_program_action dsi_onebit_clear;
void dsi_onebit_program(const ds_engine *engine, dsi_program *p);

#endif
