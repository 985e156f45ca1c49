/* SPDX-License-Identifier: Apache-2.0 */
/* One number for all that an engine has learnt. For tests. */
#ifndef DS_TEST_ENGINE_HASH_H
#define DS_TEST_ENGINE_HASH_H

#include <deepspeed/engine.h>

/* Hash of every weight (the master where there is one) and moment, gathered from all ranks, in
 * cell order. Collective. */
ds_status engine_hash(ds_ctx *ctx, const ds_engine *engine, uint64_t *hash_out);

#endif
