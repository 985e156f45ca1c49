/* SPDX-License-Identifier: Apache-2.0 */
/* Agreement about a call before it is made. See engine_same.h. */
#include "train/engine_same.h"

#include "comm/rank_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ask {
    int64_t status;
    uint64_t digest;
    char what[240];
} ask;

static ds_status compare(const ds_engine *engine, const ask *all)
{
    for (uint32_t r = 0; r < engine->comm->size; ++r) {
        if (all[r].status < 0) {
            return ds_fail(engine->ctx, DS_ERR_PEER, "%s failed to %s: %s; see its messages",
                           dsi_comm_rank_name(engine->comm, r).text, all[r].what,
                           ds_status_text((ds_status)all[r].status));
        }
    }
    for (uint32_t r = 1; r < engine->comm->size; ++r) {
        if (strcmp(all[r].what, all[0].what) != 0) {
            return ds_fail(engine->ctx, DS_ERR_PEER,
                           "the ranks differ: rank 0 would %s, %s would %s; all ranks make "
                           "the same calls",
                           all[0].what, dsi_comm_rank_name(engine->comm, r).text, all[r].what);
        }
        if (all[r].digest != all[0].digest) {
            return ds_fail(engine->ctx, DS_ERR_PEER,
                           "%s: %s gives other values than rank 0; all ranks give the same",
                           all[0].what, dsi_comm_rank_name(engine->comm, r).text);
        }
    }
    return DS_OK;
}

ds_status dsi_engine_same(const ds_engine *engine, const char *what, uint64_t digest, ds_status own)
{
    if (engine->comm == NULL) {
        return own;
    }
    ask mine = {.status = own, .digest = digest};
    (void)snprintf(mine.what, sizeof mine.what, "%s", what);
    ask *all = calloc(engine->comm->size, sizeof *all);
    if (all == NULL) {
        dsi_comm_abort(engine->comm, "out of memory comparing a call");
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to %s", what);
    }
    ds_status status = own < 0 ? own : DS_OK;
    const ds_status met = dsi_comm_gather(engine->comm, &mine, all, sizeof mine, what);
    if (status == DS_OK) {
        status = met < 0 ? met : compare(engine, all);
    }
    free(all);
    return status;
}
