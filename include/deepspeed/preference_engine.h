/* SPDX-License-Identifier: Apache-2.0 */
/* Preference training with an engine and a loader (deepspeed/preference.h says what it is):
 *
 *     ds_preference p = ds_preference_default(DS_PREFERENCE_SIGMOID);
 *     engine_params.preference = &p;         // ds_initialize
 *     dataset_params.rows = DS_ROWS_PAIRS;   // ds_dataset_open
 *     loader_params.preference = &p;         // ds_loader_create
 *     ds_engine_reference(engine, dataset);  // before the first step, and before a checkpoint
 *     for (…) {
 *         ds_loader_next(loader, &rows);
 *         ds_engine_preference_batch(engine, &rows, &inputs);
 *         ds_engine_forward(engine, &inputs.batch);
 *         …
 *     }
 *     ds_engine_preference_sums(engine, false, &sums);
 */
#ifndef DEEPSPEED_PREFERENCE_ENGINE_H
#define DEEPSPEED_PREFERENCE_ENGINE_H

#include <deepspeed/data.h>
#include <deepspeed/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Gives a data set of the engine's kind of preferences the log-probabilities of its answers by the
 * engine's weights as they are: before the first step those of the start, which is the reference.
 * One evaluation of all its rows, shared by the ranks; the same bits whatever their number.
 * Collective. Nothing where the loss has no reference. Errors: those of a loader over the data and
 * of ds_engine_eval_batch; ERR_STATE without a preference loss. */
DS_API ds_status ds_engine_reference(ds_engine *engine, ds_dataset *dataset);

/* The tensors of a batch, for ds_engine_forward and ds_engine_eval_batch; refers to itself and to
 * the loader's batch. */
enum { DS_PREFERENCE_INPUTS = 8 };
typedef struct ds_preference_inputs {
    ds_batch batch;
    ds_named_tensor tensors[DS_PREFERENCE_INPUTS];
    float kl; /* of KTO */
    DS_RESERVED(8);
} ds_preference_inputs;
/* Of KTO evaluates the mismatched rows for z, the mean over all ranks: collective then. Errors:
 * ERR_STATE without a preference loss; those of ds_engine_eval_batch. */
DS_API ds_status ds_engine_preference_batch(ds_engine *engine, const ds_loader_batch *rows,
                                            ds_preference_inputs *inputs_out);

/* What this rank's batches said since the last such call: those of ds_engine_forward, or of
 * ds_engine_eval_batch (evaluated). For all ranks add the fields up over ds_engine_data_comm. */
DS_API ds_preference_sums ds_engine_preference_sums(ds_engine *engine, bool evaluated);

#ifdef __cplusplus
}
#endif
#endif
