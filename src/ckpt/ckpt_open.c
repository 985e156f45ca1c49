/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a checkpoint on several ranks. See checkpoint_on.h. */
#include "ckpt/checkpoint_on.h"
#include "ckpt/ckpt_group.h"
#include "ckpt/ckpt_internal.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_BYTES = 256 };

/* Rank 0's choice of tag, on every rank. */
static ds_status agree_tag(dsi_ckpt_group *g, const char *dir, const char *wanted, char *tag)
{
    ds_status status = DS_OK;
    if (g->rank == 0 && wanted != NULL && strlen(wanted) >= TAG_BYTES) {
        status = ds_fail(g->ctx, DS_ERR_ARG, "'%.80s...' is not the tag of a checkpoint", wanted);
    } else if (g->rank == 0 && wanted != NULL) {
        (void)snprintf(tag, TAG_BYTES, "%s", wanted);
    } else if (g->rank == 0) {
        status = dsi_ckpt_read_latest(g->ctx, dir, tag);
    }
    DS_TRY(dsi_ckpt_agree(g, status));
    DS_TRY(dsi_ckpt_broadcast(g, tag, TAG_BYTES, 0));
    tag[TAG_BYTES - 1] = '\0';
    return DS_OK;
}

/* Hosts with folders of their own must have parts of one save. */
static ds_status compare_manifests(dsi_ckpt_group *g, const ds_checkpoint *c)
{
    const uint64_t mine = dsi_ckpt_manifest_digest(c);
    uint64_t *all = calloc(g->size, sizeof *all);
    ds_status status = dsi_ckpt_agree(
        g, all != NULL ? DS_OK : ds_fail(g->ctx, DS_ERR_NOMEM, "out of memory for a checkpoint"));
    if (status == DS_OK) {
        status = dsi_ckpt_gather(g, &mine, sizeof mine, all);
    }
    for (uint32_t r = 0; r < g->size && status == DS_OK; ++r) {
        if (all[r] != all[0]) {
            status = ds_fail(g->ctx, DS_ERR_PEER,
                             "%s: %s sees another manifest than rank 0: their folders hold "
                             "parts of different saves; bring those of one save together, or "
                             "choose another tag",
                             ds_checkpoint_get_info(c)->path, dsi_comm_rank_name(g->comm, r).text);
        }
    }
    free(all);
    return status;
}

static ds_status open_all(dsi_ckpt_group *g, const char *dir, const char *wanted,
                          ds_checkpoint **ckpt_out)
{
    char tag[TAG_BYTES] = "";
    ds_checkpoint *c = NULL;
    ds_status status = agree_tag(g, dir, wanted, tag);
    if (status == DS_OK) {
        status = dsi_ckpt_agree(g, dsi_ckpt_open_tag(g->ctx, dir, tag, DSI_CKPT_LAZY, &c));
    }
    if (status == DS_OK) {
        status = compare_manifests(g, c);
    }
    if (status < 0) {
        ds_checkpoint_close(&c);
        if (g->rank == 0 && status != DS_ERR_NOMEM && g->broken == 0) {
            status = dsi_ckpt_fail_with_offer(g->ctx, status, dir, tag);
        }
        return dsi_ckpt_agree(g, g->rank == 0 ? status : DS_OK);
    }
    *ckpt_out = c;
    return DS_OK;
}

ds_status dsi_checkpoint_open_on(ds_ctx *ctx, const char *dir, const char *tag, dsi_comm *comm,
                                 ds_checkpoint **ckpt_out)
{
    dsi_ckpt_group group;
    if (comm == NULL || comm->size == 1) {
        return ds_checkpoint_open(ctx, dir, tag, ckpt_out);
    }
    DS_TRY(dsi_ckpt_group_open(ctx, comm, &group));
    (void)snprintf(group.what, sizeof group.what, "opening a checkpoint");
    const ds_status status = open_all(&group, dir, tag, ckpt_out);
    dsi_ckpt_group_close(&group);
    return status;
}
