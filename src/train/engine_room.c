/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a rank may fill where it has the choice (compile/memory_policy.h): the same on all
 * ranks, that of the rank that has least. Called by engine_create.c. */
#include "accel/accel.h"
#include "base/machine_id.h"
#include "base/machine_memory.h"
#include "compile/memory_policy.h"
#include "train/engine.h"

#include <stdlib.h>

/* What a rank knows of the memory that is there for it. */
typedef struct own_memory {
    uint64_t machine; /* ranks of one machine share its memory */
    uint64_t all;     /* of that machine; 0: unknown */
    uint64_t most;    /* of this rank, where it is stated or its device's; else 0 */
} own_memory;

static uint64_t share_of(const own_memory *ranks, uint32_t n, uint32_t rank)
{
    uint64_t sharing = 0;
    if (ranks[rank].most > 0) {
        return ranks[rank].most;
    }
    for (uint32_t r = 0; r < n; ++r) {
        sharing += ranks[r].machine == ranks[rank].machine ? 1 : 0;
    }
    return ranks[rank].all / sharing;
}

static uint64_t least_share(const own_memory *ranks, uint32_t n)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t r = 0; r < n; ++r) {
        const uint64_t share = share_of(ranks, n, r);
        least = share < least ? share : least;
    }
    return least;
}

/* The launcher ends a rank that takes more of the machine's than --rank_memory. */
static uint64_t stated(const ds_engine *engine, const ds_engine_params *params)
{
    const char *limit = getenv("DS_RANK_MEMORY");
    const size_t device = dsi_accel_device_memory(engine->ctx, &engine->spec.accel);
    return params->memory_bytes > 0 ? params->memory_bytes
           : device > 0             ? device
           : limit != NULL          ? strtoull(limit, NULL, 10)
                                    : 0;
}

ds_status dsi_engine_find_room(ds_engine *engine, const ds_engine_params *params)
{
    const uint32_t n = engine->comm != NULL ? engine->comm->size : 1;
    const own_memory own = {dsi_machine_id(), dsi_machine_memory(), stated(engine, params)};
    own_memory *all = calloc(n, sizeof *all);
    if (all == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for an engine");
    }
    const ds_status status =
        dsi_comm_gather(engine->comm, &own, all, sizeof own, "memory of the ranks");
    if (status >= 0) {
        engine->spec.room = dsi_memory_room((size_t)least_share(all, n));
    }
    free(all);
    return status;
}
