/* SPDX-License-Identifier: Apache-2.0 */
/* See module.h. */
#include "base/module.h"

#include "base/library_open.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

/* The folder of the library or program that holds this code, with a slash; "" when unknown. */
static void own_folder(char *folder)
{
    Dl_info info;
    static const char anchor = 0;
    folder[0] = '\0';
    if (dladdr(&anchor, &info) != 0 && info.dli_fname != NULL && info.dli_fname[0] == '/') {
        (void)snprintf(folder, PATH_BYTES, "%s", info.dli_fname);
    } else { /* a program is known by its first argument, which PATH may have led to */
        const ssize_t n = readlink("/proc/self/exe", folder, PATH_BYTES - 1);
        folder[n > 0 ? n : 0] = '\0';
    }
    char *slash = strrchr(folder, '/');
    if (slash != NULL) {
        slash[1] = '\0';
    }
}

/* Tries one path; keeps the reason why not. */
static void *try_path(const char *folder, const char *file, int scope, bool *there_out, char *why,
                      size_t why_bytes)
{
    char path[PATH_BYTES + 128];
    (void)snprintf(path, sizeof path, "%s%s%s", folder,
                   folder[0] == '\0' || folder[strlen(folder) - 1] == '/' ? "" : "/", file);
    char text[400];
    void *handle =
        dsi_library_open(path, RTLD_NOW | RTLD_NODELETE | scope, there_out, text, sizeof text);
    if (handle == NULL) {
        const size_t used = strlen(why);
        (void)snprintf(why + used, why_bytes - used, "%s%s", used > 0 ? "; " : "", text);
    }
    return handle;
}

ds_status dsi_module_load(ds_ctx *ctx, const char *file, dsi_module_scope scope, void **object_out)
{
    char folder[PATH_BYTES];
    char beside[PATH_BYTES + 8];
    char why[1500] = "";
    const char *asked = getenv("DS_MODULE_PATH");
    void *handle = NULL;
    bool is_there = false;
    const int how = scope == DSI_MODULE_GLOBAL ? RTLD_GLOBAL : RTLD_LOCAL;
    own_folder(folder);
    (void)snprintf(beside, sizeof beside, "%s../lib", folder);
    if (asked != NULL && asked[0] != '\0') {
        handle = try_path(asked, file, how, &is_there, why, sizeof why);
        if (handle == NULL && is_there) { /* another copy is not what was asked for */
            return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                           "%s of DS_MODULE_PATH cannot be loaded (%s); replace or remove it", file,
                           why);
        }
    }
    const char *places[3] = {folder, beside, ""};
    for (size_t i = 0; i < 3 && handle == NULL; ++i) {
        handle = try_path(places[i], file, how, &is_there, why, sizeof why);
    }
    if (handle == NULL) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s cannot be loaded (%s); install it, or name its folder in DS_MODULE_PATH",
                       file, why);
    }
    *object_out = handle;
    return DS_OK;
}
