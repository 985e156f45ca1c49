/* SPDX-License-Identifier: Apache-2.0 */
/* Training with a batch that has a token without a row in the embedding. For tests of accelerators
 * that say so late. */
#ifndef DS_TEST_BAD_TOKEN_H
#define DS_TEST_BAD_TOKEN_H

#include "train/engine.h"

/* One good step, then the bad one, whole or, with split, by its calls: what the device says too
 * late is never trained on. The call says so that brings the batch, or ends its step, and either
 * the states are those of before, or the engine is usable no longer. what: of a failure. */
void bad_token_check(ds_ctx *ctx, const char *folder, const dsi_engine_spec *spec, bool split,
                     const char *what);

#endif
