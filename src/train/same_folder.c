/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a folder, compared over ranks. See same_files.h. */
#include "io/file.h"
#include "train/same_files.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_read(const char *name)
{
    static const char *const endings[] = {".safetensors", ".bin", ".json",
                                          ".jinja",       ".txt", ".model"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; ++i) {
        const size_t m = strlen(endings[i]);
        if (name[0] != '.' && n > m && strcmp(name + n - m, endings[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* The paths of what is read, in order. What cannot be listed is a path of its own, so that all
 * ranks hear of it. */
static ds_status list_folder(ds_ctx *ctx, const char *folder, char ***paths_out, uint32_t *n_out)
{
    struct stat s;
    char **names = NULL;
    size_t n_names = 0;
    const bool is_folder = stat(folder, &s) == 0 && S_ISDIR(s.st_mode);
    bool listed = is_folder;
    if (is_folder && dsi_folder_list(ctx, folder, &names, &n_names) < 0) {
        n_names = 0;
        listed = false;
    }
    char **paths = calloc(n_names + 2, sizeof *paths);
    uint32_t n = 0;
    bool whole = paths != NULL;
    for (size_t i = 0; i < n_names && whole; ++i) {
        if (is_read(names[i])) {
            paths[n] = dsi_path_join(folder, names[i]);
            whole = paths[n++] != NULL;
        }
    }
    if (!listed && whole) {
        paths[n] = strdup(folder);
        whole = paths[n++] != NULL;
    }
    dsi_names_free(names, n_names);
    if (!whole) {
        dsi_names_free(paths, n);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to compare files");
    }
    *paths_out = paths;
    *n_out = n;
    return DS_OK;
}

static ds_status same_listed(ds_ctx *ctx, dsi_comm *comm, const char *folder, const char *what)
{
    char **paths = NULL;
    uint32_t n = 0;
    if (folder != NULL) {
        DS_TRY(list_folder(ctx, folder, &paths, &n));
    }
    const ds_status status = dsi_same_names(ctx, comm, (const char *const *)paths, n, what);
    dsi_names_free(paths, n);
    return status;
}

ds_status dsi_same_folder(ds_ctx *ctx, dsi_comm *comm, const char *folder, const char *what)
{
    struct stat s;
    if (comm == NULL || comm->size == 1) {
        return DS_OK;
    }
    char *templates = folder != NULL ? dsi_path_join(folder, "additional_chat_templates") : NULL;
    ds_status status = same_listed(ctx, comm, folder, what);
    if (status >= 0) {
        const bool has = templates != NULL && stat(templates, &s) == 0 && S_ISDIR(s.st_mode);
        status = same_listed(ctx, comm, has ? templates : NULL, "folder of chat templates");
    }
    free(templates);
    return status;
}
