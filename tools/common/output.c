/* SPDX-License-Identifier: Apache-2.0 */
/* See output.h. */
#include "common/output.h"

#include "common/environment.h"
#include "common/terminal.h"
#include "data/source.h"

#include "io/file.h"
#include "io/file_place.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void check(int code, void *program)
{
    const bool lost = ferror(stdout) != 0;
    const int flushed = fflush(stdout);
    if (!lost && flushed == 0) {
        return;
    }
    (void)fprintf(stderr, "%s: cannot write all of the output%s%s\n", (const char *)program,
                  flushed != 0 ? ": " : "", flushed != 0 ? strerror(errno) : "");
    _exit(code != 0 ? code : EXIT_FAILURE);
}

void output_guard(const char *program)
{
    terminal_plain();
    environment_check(program);
    (void)on_exit(check, (void *)(size_t)program);
}

ds_status output_check(ds_ctx *ctx, const char *path)
{
    return strcmp(path, "-") == 0 ? DS_OK : dsi_file_check(ctx, path);
}

ds_status output_not_input(ds_ctx *ctx, const char *path, const char *const *inputs, size_t n)
{
    struct stat out;
    struct stat in;
    if (path == NULL || strcmp(path, "-") == 0 || stat(path, &out) != 0 || !S_ISREG(out.st_mode)) {
        return DS_OK;
    }
    for (size_t i = 0; i < n; ++i) {
        if (inputs[i] != NULL && stat(inputs[i], &in) == 0 && in.st_dev == out.st_dev &&
            in.st_ino == out.st_ino) {
            return ds_fail(ctx, DS_ERR_ARG,
                           "%s is also an input (%s): it would be lost; give the output another "
                           "name",
                           path, inputs[i]);
        }
    }
    return DS_OK;
}

static bool begins_with(const char *path, const char *mark)
{
    char begin[256] = "";
    const size_t n = mark != NULL ? strlen(mark) : 0;
    FILE *file = n > 0 && n < sizeof begin ? fopen(path, "re") : NULL;
    const bool same = file != NULL && fread(begin, 1, n, file) == n && memcmp(begin, mark, n) == 0;
    if (file != NULL) {
        (void)fclose(file);
    }
    return same;
}

ds_status output_free(ds_ctx *ctx, const char *path, const char *mark, bool overwrite)
{
    dsi_place place;
    if (overwrite || path == NULL || strcmp(path, "-") == 0) {
        return DS_OK;
    }
    DS_TRY(dsi_place_look(ctx, path, &place));
    const bool lost = place.kind == DSI_PLACE_FILE && place.taken && place.st.st_size > 0 &&
                      !begins_with(place.path, mark);
    dsi_place_free(&place);
    return lost ? ds_fail(ctx, DS_ERR_ARG,
                          "%s is there already and would be lost: --overwrite replaces it; or give "
                          "another name",
                          path)
                : DS_OK;
}

static bool is_model_file(const char *name)
{
    static const char *const names[] = {"config.json", "vocab.json", "merges.txt",
                                        "generation_config.json", "chat_template.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return name[0] != '.' &&
           (dsi_path_ends(name, ".safetensors") || strncmp(name, "tokenizer", 9) == 0 ||
            (strncmp(name, "pytorch_model", 13) == 0 && dsi_path_ends(name, ".bin")));
}

char *output_model_file(ds_ctx *ctx, const char *folder)
{
    char **names = NULL;
    size_t n = 0;
    char *found = NULL;
    if (access(folder, F_OK) != 0 || dsi_folder_list(ctx, folder, &names, &n) < 0) {
        return NULL;
    }
    for (size_t i = 0; i < n && found == NULL; ++i) {
        found = is_model_file(names[i]) ? strdup(names[i]) : NULL;
    }
    dsi_names_free(names, n);
    return found;
}

ds_status output_folder_free(ds_ctx *ctx, const char *folder, bool overwrite)
{
    char *name = overwrite ? NULL : output_model_file(ctx, folder);
    const ds_status status =
        name != NULL ? ds_fail(ctx, DS_ERR_ARG,
                               "%s holds a model's files (%s) that would be replaced: --overwrite "
                               "replaces them; or give another folder",
                               folder, name)
                     : DS_OK;
    free(name);
    return status;
}

ds_status output_put(ds_ctx *ctx, const char *path, const char *text, size_t n)
{
    if (strcmp(path, "-") == 0) {
        (void)fwrite(text, 1, n, stdout);
        return DS_OK;
    }
    (void)fflush(stdout); /* the path may name it */
    return dsi_file_replace(ctx, path, text, n);
}
