/* SPDX-License-Identifier: Apache-2.0 */
/* A small model trained for a few steps, with what it has in memory, on the host or on disk. For
 * tests. */
#ifndef DS_TEST_SMALL_RUN_H
#define DS_TEST_SMALL_RUN_H

#include "train/engine.h"

enum { SMALL_BATCH = 2, SMALL_SEQ = 48, SMALL_VOCABULARY = 211, SMALL_WIDTH = 48 };
enum { SMALL_MEMORY = 1 }; /* of a rank: no room to keep what the plan need not keep */

/* config.json of three layers: GPT-2 with dropout and tied embeddings, Llama with neither. */
extern const char small_gpt2[];
extern const char small_llama[];

/* As much traffic as there can be: small chunks, small parameters too, nothing reused. */
dsi_offload_spec small_away(const char *folder, dsi_residency states, dsi_residency params);

/* AdamW with weight decay; states in fp32, a master where dtype is narrower. Nothing is offloaded.
 */
dsi_engine_spec small_spec(ds_dtype dtype);

/* The caller destroys them. A failure fails the test. */
ds_model *small_model(ds_ctx *ctx, const char *folder, const char *config);
ds_engine *small_engine(ds_ctx *ctx, const ds_model *model, const dsi_engine_spec *spec);

typedef struct small_batch {
    ds_named_tensor tensors[4];
    int32_t data[4][SMALL_BATCH * SMALL_SEQ];
} small_batch;

/* The batch of a step: the same for the same step, valid as long as *batch stays where it is. */
ds_batch small_feed(int32_t step, small_batch *batch);
/* For ds_engine_train_batch; user: an int32_t, the step, which it counts up. One run at a time. */
ds_status small_next(void *user, ds_batch *batch_out);

/* As small_spec, on an accelerator, clipped at 0.1. away: states, and with params those too, in
 * host memory, updated there. */
dsi_engine_spec small_host_spec(ds_ctx *ctx, const char *folder, ds_dtype dtype, const char *accel,
                                bool away, bool params);

#endif
