/* SPDX-License-Identifier: Apache-2.0 */
/* Folders that a server reads while it serves must not make it wait. See open.h. */
#include "open.h"

#include <dirent.h>
#include <sys/stat.h>

enum { PATH_BYTES = 4096 };

static ds_status check(ds_ctx *ctx, const char *path)
{
    struct stat st;
    return stat(path, &st) != 0 || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)
               ? DS_OK /* what is not there is named where it is read */
               : ds_fail(ctx, DS_ERR_IO,
                         "cannot read %s: it is a device or pipe, not a regular file", path);
}

/* Files of a folder, and of the folders in it down to `depth`. */
static ds_status look(ds_ctx *ctx, const char *path, int depth)
{
    char file[PATH_BYTES];
    DS_TRY(check(ctx, path));
    DIR *folder = depth >= 0 ? opendir(path) : NULL;
    ds_status status = DS_OK;
    for (const struct dirent *one = folder != NULL ? readdir(folder) : NULL;
         one != NULL && status >= 0; one = readdir(folder)) {
        const int n = snprintf(file, sizeof file, "%s/%s", path, one->d_name);
        if (n > 0 && (size_t)n < sizeof file && one->d_name[0] != '.') {
            status = look(ctx, file, depth - 1);
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return status;
}

ds_status no_pipes(ds_ctx *ctx, const char *path)
{
    return look(ctx, path, 1); /* 1_Pooling/config.json */
}
