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

ds_status no_pipes(ds_ctx *ctx, const char *path)
{
    char file[PATH_BYTES];
    DS_TRY(check(ctx, path));
    DIR *folder = opendir(path);
    ds_status status = DS_OK;
    for (const struct dirent *one = folder != NULL ? readdir(folder) : NULL;
         one != NULL && status >= 0; one = readdir(folder)) {
        const int n = snprintf(file, sizeof file, "%s/%s", path, one->d_name);
        status = n > 0 && (size_t)n < sizeof file ? check(ctx, file) : DS_OK;
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return status;
}
