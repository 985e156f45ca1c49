/* SPDX-License-Identifier: Apache-2.0 */
/* See hub_flag.h. */
#include "common/hub_flag.h"

#include "base/context.h"
#include "io/file.h"

#include <deepspeed/context.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ds_status hub_flag_find(ds_ctx *ctx, const char *flag, const char **value, const char *revision,
                        uint32_t needs, char **found_out)
{
    char *folder = NULL;
    *found_out = NULL;
    if (*value == NULL || strcmp(*value, "bytes") == 0) {
        return revision == NULL ? DS_OK
                                : ds_fail(ctx, DS_ERR_ARG, "--%s_revision %s needs --%s ORG/NAME",
                                          flag, revision, flag);
    }
    const ds_status status = ds_hub_find(ctx, *value, revision, needs, &folder);
    if (status < 0) {
        char name[64];
        (void)snprintf(name, sizeof name, "--%s", flag);
        dsi_ctx_error_within(ctx, name);
        return status;
    }
    if (strcmp(folder, *value) == 0) {
        free(folder);
        return DS_OK;
    }
    ds_log(ctx, DS_LOG_JOB, "%s %s: %s", flag, *value, folder);
    *value = *found_out = folder;
    return DS_OK;
}

/* CACHE/models--org--name of its snapshots/COMMIT, links resolved; false: none. */
static bool repo_of(const char *found, char *repo)
{
    if (realpath(found, repo) == NULL) {
        return false;
    }
    for (int i = 0; i < 2; ++i) {
        char *slash = strrchr(repo, '/');
        if (slash == NULL || slash == repo) {
            return false;
        }
        *slash = '\0';
    }
    return true;
}

/* Links resolved of the part of the path that is there. */
static bool resolve(const char *path, char *real)
{
    char *part = strdup(path);
    bool done = part != NULL && realpath(part, real) != NULL;
    while (part != NULL && !done) {
        char *above = dsi_path_folder(part);
        const bool last = above == NULL || strcmp(above, part) == 0;
        free(part);
        part = above;
        done = part != NULL && realpath(part, real) != NULL;
        if (last) {
            break;
        }
    }
    free(part);
    return done;
}

ds_status hub_flag_spare(ds_ctx *ctx, const char *found, const char *flag, const char *path)
{
    char repo[PATH_MAX];
    char real[PATH_MAX];
    if (found == NULL || path == NULL || strcmp(path, "-") == 0 || !repo_of(found, repo) ||
        !resolve(path, real)) {
        return DS_OK;
    }
    const size_t n = strlen(repo);
    return strncmp(real, repo, n) != 0 || (real[n] != '/' && real[n] != '\0')
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG,
                         "--%s %s is inside of the Hugging Face cache (%s), which this run reads; "
                         "give another path",
                         flag, path, repo);
}
