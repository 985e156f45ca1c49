/* SPDX-License-Identifier: Apache-2.0 */
/* Moving staged files into a folder that is there. See file.h. */
#include "io/file.h"

#include "io/file_place.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void dress(const dsi_place *place, const char *path)
{
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) {
        dsi_place_dress(place, fd);
        (void)close(fd);
    }
}

/* A link at the new name stays: the file that it names is replaced, on another disk by a copy. */
static ds_status put(ds_ctx *ctx, const char *old, const char *new)
{
    dsi_place place;
    DS_TRY(dsi_place_look(ctx, new, &place));
    dress(&place, old);
    ds_status status = DS_OK;
    if (rename(old, place.path) != 0) {
        status = errno == EXDEV ? dsi_file_copy(ctx, old, new)
                                : dsi_io_fail(ctx, "put in place", new, errno);
    }
    dsi_place_free(&place);
    return status;
}

static ds_status move_file(ds_ctx *ctx, const char *from, const char *to, const char *name)
{
    char *old = dsi_path_join(from, name);
    char *new = dsi_path_join(to, name);
    const ds_status status = old != NULL && new != NULL
                                 ? put(ctx, old, new)
                                 : ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s", to);
    free(old);
    free(new);
    return status;
}

static ds_status check_way(ds_ctx *ctx, const char *path)
{
    dsi_place place;
    DS_TRY(dsi_place_look(ctx, path, &place));
    const bool is_file = place.kind == DSI_PLACE_FILE;
    dsi_place_free(&place);
    return is_file ? DS_OK
                   : ds_fail(ctx, DS_ERR_IO, "cannot write %s: it is no regular file", path);
}

ds_status dsi_folder_takes(ds_ctx *ctx, const char *folder, const char *const *names, size_t n)
{
    ds_status status = DS_OK;
    for (size_t i = 0; i < n && status == DS_OK; ++i) {
        char *path = dsi_path_join(folder, names[i]);
        status = path != NULL ? check_way(ctx, path)
                              : ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s", folder);
        free(path);
    }
    return status;
}

ds_status dsi_folder_merge(ds_ctx *ctx, dsi_stage *stage, const char *folder, char ***names_out,
                           size_t *n_out)
{
    char **names = NULL;
    size_t n = 0;
    ds_status status = dsi_folder_list(ctx, stage->path, &names, &n);
    if (status == DS_OK) {
        status = dsi_folder_takes(ctx, folder, (const char *const *)names, n);
    }
    for (size_t i = 0; i < n && status == DS_OK; ++i) {
        status = move_file(ctx, stage->path, folder, names[i]);
    }
    if (status == DS_OK) {
        status = dsi_folder_sync(ctx, folder);
    }
    dsi_folder_unstage(stage);
    if (status < 0) {
        dsi_names_free(names, n);
        return status;
    }
    *names_out = names;
    *n_out = n;
    return DS_OK;
}
