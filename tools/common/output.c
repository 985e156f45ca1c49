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

static ds_status put_device(ds_ctx *ctx, const char *path, const char *text, size_t n)
{
    FILE *file = fopen(path, "w");
    const bool written = file != NULL && fwrite(text, 1, n, file) == n;
    const bool closed = file != NULL && fclose(file) == 0;
    return written && closed ? DS_OK : dsi_io_fail(ctx, "write", path, errno);
}

ds_status output_check(ds_ctx *ctx, const char *path)
{
    char folder[4096];
    struct stat st;
    const char *slash = strrchr(path, '/');
    const int n = slash == NULL ? 1 : slash == path ? 1 : (int)(slash - path);
    const bool there = strcmp(path, "-") != 0 && stat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode)) {
        return dsi_io_fail(ctx, "write", path, EISDIR);
    }
    if (strcmp(path, "-") == 0 || (there && !S_ISREG(st.st_mode))) {
        return DS_OK;
    }
    (void)snprintf(folder, sizeof folder, "%.*s", n, slash == NULL ? "." : path);
    if (access(folder, W_OK | X_OK) != 0) {
        return ds_fail(ctx, errno == ENOENT ? DS_ERR_NOT_FOUND : DS_ERR_IO,
                       "cannot write into the folder %s: %s", folder, strerror(errno));
    }
    return DS_OK;
}

ds_status output_put(ds_ctx *ctx, const char *path, const char *text, size_t n)
{
    struct stat st;
    if (strcmp(path, "-") == 0) {
        (void)fwrite(text, 1, n, stdout);
        return DS_OK;
    }
    const bool there = stat(path, &st) == 0;
    if (there && !S_ISREG(st.st_mode)) {
        return put_device(ctx, path, text, n);
    }
    char *real = there ? realpath(path, NULL) : NULL;
    const ds_status status = dsi_file_replace(ctx, real != NULL ? real : path, text, n);
    free(real);
    return status;
}
