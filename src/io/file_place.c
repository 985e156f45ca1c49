/* SPDX-License-Identifier: Apache-2.0 */
/* Where an output goes: links are followed here, by name, so that what is renamed later lands on
 * the file and not on the link. See file_place.h. */
#include "io/file_place.h"

#include "io/file.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_LINKS = 40, /* as the system's */
    MAX_LOOKS = 100
};

static ds_status no_memory(ds_ctx *ctx, const char *path)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s", path);
}

/* 1 of /proc/self/fd/1, in any spelling; -1: no such path. Such a link names no place, but what is
 * open: a second opening would write over what the first one writes. */
static int own_descriptor(const char *path)
{
    char own[64];
    char real[PATH_MAX];
    const char *name = dsi_path_name(path);
    const size_t n = strlen(name);
    if (n == 0 || n > 6 || strspn(name, "0123456789") != n) {
        return -1;
    }
    char *folder = dsi_path_folder(path);
    const bool found = folder != NULL && realpath(folder, real) != NULL;
    const int n_own = snprintf(own, sizeof own, "/proc/%ld/", (long)getpid());
    const size_t n_real = found ? strlen(real) : 0;
    free(folder);
    return n_real > 3 && strncmp(real, own, (size_t)n_own) == 0 &&
                   strcmp(real + n_real - 3, "/fd") == 0
               ? atoi(name)
               : -1;
}

/* What a link's text means: relative to the folder that the link is in. */
static char *step(const char *link, const char *text)
{
    if (text[0] == '/') {
        return strdup(text);
    }
    char *folder = dsi_path_folder(link);
    char *path = folder != NULL ? dsi_path_join(folder, text) : NULL;
    free(folder);
    return path;
}

/* Follows the links at the end of place->path, to a descriptor or to what is no link. */
static ds_status follow(ds_ctx *ctx, const char *path, dsi_place *place)
{
    char text[PATH_MAX];
    for (int i = 0; i < MAX_LINKS; ++i) {
        place->descriptor = own_descriptor(place->path);
        const ssize_t n = place->descriptor < 0 ? readlink(place->path, text, sizeof text - 1) : -1;
        if (n < 0) {
            return DS_OK;
        }
        text[n] = '\0';
        char *next = step(place->path, text);
        if (next == NULL) {
            return no_memory(ctx, path);
        }
        free(place->path);
        place->path = next;
    }
    return dsi_io_fail(ctx, "write", path, ELOOP);
}

static ds_status look_descriptor(ds_ctx *ctx, const char *path, dsi_place *place)
{
    const int flags = fcntl(place->descriptor, F_GETFL);
    place->kind = DSI_PLACE_STREAM;
    if (flags < 0) {
        return dsi_io_fail(ctx, "write", path, errno);
    }
    if ((flags & O_ACCMODE) == O_RDONLY) {
        return ds_fail(ctx, DS_ERR_IO, "cannot write %s: it is open for reading only", path);
    }
    return DS_OK;
}

/* What is no file and no folder: written under the name that was given, since links of /proc to
 * pipes have none. */
static ds_status look_stream(ds_ctx *ctx, const char *path, dsi_place *place)
{
    if (S_ISBLK(place->st.st_mode)) {
        return ds_fail(ctx, DS_ERR_IO, "cannot write %s: it is a disk; name a file on it", path);
    }
    free(place->path);
    place->path = strdup(path);
    place->kind = DSI_PLACE_STREAM;
    return place->path != NULL ? DS_OK : no_memory(ctx, path);
}

/* A new file needs a folder that takes it. */
static ds_status look_folder(ds_ctx *ctx, const char *path)
{
    char *folder = dsi_path_folder(path);
    ds_status status = DS_OK;
    if (folder == NULL) {
        status = no_memory(ctx, path);
    } else if (faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) != 0) {
        status = dsi_io_fail(ctx, "write in folder", folder, errno);
    }
    free(folder);
    return status;
}

/* Whether the name at the end of the links names the file that the path names. Another job may put
 * a new file there between two looks: those are taken again. */
static bool is_end(const char *path, dsi_place *place)
{
    struct stat end;
    for (int i = 0; i < MAX_LOOKS; ++i) {
        if (stat(place->path, &end) != 0) {
            return false;
        }
        if (end.st_ino == place->st.st_ino && end.st_dev == place->st.st_dev) {
            return true;
        }
        if (stat(path, &place->st) != 0) {
            return false;
        }
    }
    return false;
}

static ds_status look(ds_ctx *ctx, const char *path, dsi_place *place)
{
    DS_TRY(follow(ctx, path, place));
    if (place->descriptor >= 0) {
        return look_descriptor(ctx, path, place);
    }
    place->taken = stat(path, &place->st) == 0;
    if (!place->taken && errno != ENOENT) {
        return dsi_io_fail(ctx, "write", path, errno);
    }
    if (place->taken ? S_ISDIR(place->st.st_mode) : dsi_path_name(place->path)[0] == '\0') {
        return ds_fail(ctx, DS_ERR_IO, "cannot write %s: it is a folder", path);
    }
    if (!place->taken) {
        return look_folder(ctx, place->path);
    }
    if (faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) != 0) {
        return dsi_io_fail(ctx, "write", path, errno);
    }
    if (!S_ISREG(place->st.st_mode)) {
        return look_stream(ctx, path, place);
    }
    if (!is_end(path, place)) {
        return ds_fail(ctx, DS_ERR_IO, "cannot write %s: its link does not say where its file is",
                       path);
    }
    return DS_OK;
}

ds_status dsi_place_look(ds_ctx *ctx, const char *path, dsi_place *place_out)
{
    dsi_place place = {.kind = DSI_PLACE_FILE, .path = strdup(path), .descriptor = -1};
    const ds_status status = place.path != NULL ? look(ctx, path, &place) : no_memory(ctx, path);
    if (status < 0) {
        dsi_place_free(&place);
        return status;
    }
    *place_out = place;
    return DS_OK;
}

ds_status dsi_place_open(ds_ctx *ctx, const dsi_place *place, const char *path, int flags,
                         int *fd_out)
{
    do {
        *fd_out = place->descriptor >= 0
                      ? fcntl(place->descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)
                      : open(place->path, O_WRONLY | O_CLOEXEC | O_NOCTTY | flags, 0666);
    } while (*fd_out < 0 && errno == EINTR);
    return *fd_out >= 0 ? DS_OK : dsi_io_fail(ctx, "write", path, errno);
}

void dsi_place_dress(const dsi_place *place, int fd)
{
    struct stat st;
    if (!place->taken || fstat(fd, &st) != 0) {
        return;
    }
    if ((st.st_uid != place->st.st_uid || st.st_gid != place->st.st_gid) &&
        fchown(fd, place->st.st_uid, place->st.st_gid) != 0) {
        return; /* another's file stays this process's, with the mode of its new files */
    }
    (void)fchmod(fd, place->st.st_mode & 07777);
}

void dsi_place_free(dsi_place *place)
{
    free(place->path);
    place->path = NULL;
}
