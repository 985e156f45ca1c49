/* SPDX-License-Identifier: Apache-2.0 */
/* Loaders of tests: one rank's of some datasets, and what all ranks read from a cursor on. */
#ifndef DS_TEST_LOADER_WORLD_H
#define DS_TEST_LOADER_WORLD_H

#include <deepspeed/data.h>

typedef struct loader_world {
    ds_ctx *ctx;
    const ds_dataset *const *data; /* one: a plain loader; more: mixed */
    const double *weights;
    uint32_t n_data;
    int64_t length, batch;
    uint32_t n_ranks;
} loader_world;

ds_loader *loader_make(const loader_world *world, uint32_t rank, bool shuffle);

/* Reads `calls` batches of each rank from a cursor (NULL: from the start), writes their ids in the
 * order of one rank to out, and returns the cursor behind them, for free(). */
char *loader_read_on(const loader_world *world, int calls, const char *cursor, int32_t *out);

#endif
