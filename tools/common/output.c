/* SPDX-License-Identifier: Apache-2.0 */
/* See output.h. */
#include "common/output.h"

#include "common/environment.h"
#include "common/terminal.h"

#include "io/file.h"

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

ds_status output_put(ds_ctx *ctx, const char *path, const char *text, size_t n)
{
    if (strcmp(path, "-") == 0) {
        (void)fwrite(text, 1, n, stdout);
        return DS_OK;
    }
    (void)fflush(stdout); /* the path may name it */
    return dsi_file_replace(ctx, path, text, n);
}
