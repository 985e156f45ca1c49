/* SPDX-License-Identifier: Apache-2.0 */
/* Loaders of tests. See loader_world.h. */
#include "common/loader_world.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

ds_loader *loader_make(const loader_world *world, uint32_t rank, bool shuffle)
{
    const ds_loader_params params = {.batch = world->batch,
                                     .seq_length = world->length,
                                     .seed = 9,
                                     .shuffle = shuffle,
                                     .rank = rank,
                                     .n_ranks = world->n_ranks};
    ds_loader *loader = NULL;
    CHECK_OK(world->ctx, world->n_data == 1
                             ? ds_loader_create(world->ctx, world->data[0], &params, &loader)
                             : ds_loader_create_mixed(world->ctx, world->data, world->weights,
                                                      world->n_data, &params, &loader));
    return loader;
}

char *loader_read_on(const loader_world *world, int calls, const char *cursor, int32_t *out)
{
    char *after = NULL;
    const int64_t cells = world->batch * world->length;
    for (uint32_t r = 0; r < world->n_ranks; ++r) {
        ds_loader *loader = loader_make(world, r, true);
        if (cursor != NULL) {
            CHECK_OK(world->ctx, ds_loader_restore(loader, cursor));
        }
        for (int call = 0; call < calls; ++call) {
            ds_loader_batch own;
            CHECK_OK(world->ctx, ds_loader_next(loader, &own));
            memcpy(out + (call * (int64_t)world->n_ranks + r) * cells, own.input_ids.data,
                   (size_t)cells * sizeof *out);
        }
        free(after);
        CHECK_OK(world->ctx, ds_loader_save(loader, &after));
        ds_loader_destroy(&loader);
    }
    return after;
}
