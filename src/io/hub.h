/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ds_hub_find: a snapshot in the cache of the Hugging Face Hub, and what it has.
 *
 *     CACHE/models--ORG--NAME/refs/REVISION          a commit, as text
 *                            /snapshots/COMMIT/FILE  links to blobs, or files where links fail
 *                            /blobs/ETAG             ETAG.incomplete, ETAG.XXXX.incomplete: begun
 *                            /.no_exist/COMMIT/FILE  the Hub does not have this file
 *                            /trees/COMMIT.json      all files of the commit, with newer versions
 */
#ifndef DSI_IO_HUB_H
#define DSI_IO_HUB_H

#include <deepspeed/hub.h>
#include <stdbool.h>

typedef struct dsi_hub_model {
    const char *name;     /* as the user wrote it: "org/name" */
    const char *revision; /* NULL: not given, "main" */
    char *repo;           /* CACHE/models--org--name */
    char *commit;
    char *snapshot; /* folder */
} dsi_hub_model;

/* The command that downloads the model, whole; from malloc, NULL when out of memory. */
char *dsi_hub_command(const dsi_hub_model *model);

/* Whether what is needed of the snapshot is there and whole. Errors: ERR_NOT_FOUND, ERR_FORMAT. */
ds_status dsi_hub_check(ds_ctx *ctx, const dsi_hub_model *model, uint32_t needs);

#endif
