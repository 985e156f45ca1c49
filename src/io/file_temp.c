/* SPDX-License-Identifier: Apache-2.0 */
/* Temporary names: creation under a lock, and removal of what killed writers left. See file.h.
 *
 * A name is removed under its lock, by whoever can take that. A file system without flock (some
 * network ones) gives no lock; then leftovers are taken as dead, and one writer at a time may work
 * in a folder.
 */
#include "io/file_temp.h"

#include "io/file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_TRIES = 100 };

static char *temp_path(const char *folder, const char *name)
{
    uint32_t word = 0;
    if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word) {
        word = (uint32_t)getpid();
    }
    char *path = NULL;
    if (asprintf(&path, "%s/.%s%s%08x", folder, name, DSI_TEMP_MARK, word) < 0) {
        return NULL;
    }
    return path;
}

/* Creates the entry; -1 and errno on failure. */
static int create_entry(const char *path, bool folder)
{
    if (!folder) {
        return open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    }
    if (mkdir(path, 0777) != 0) {
        return -1;
    }
    return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Whether we hold it: another process may have removed it between creation and lock. */
static bool lock_entry(int fd)
{
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return false;
    }
    return fstat(fd, &st) == 0 && st.st_nlink > 0;
}

static ds_status temp_entry(ds_ctx *ctx, const char *folder, const char *name, bool is_folder,
                            char **path_out, int *fd_out)
{
    int reason = EEXIST;
    for (int i = 0; i < MAX_TRIES; ++i) {
        char *path = temp_path(folder, name);
        if (path == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s/%s", folder, name);
        }
        const int fd = create_entry(path, is_folder);
        reason = fd < 0 ? errno : EEXIST;
        if (fd >= 0 && lock_entry(fd)) {
            *path_out = path;
            *fd_out = fd;
            return DS_OK;
        }
        if (fd >= 0) {
            (void)close(fd);
        }
        free(path);
        if (reason != EEXIST && !(is_folder && reason == ENOENT && access(folder, F_OK) == 0)) {
            break;
        }
    }
    return dsi_io_fail(ctx, "write in folder", folder, reason);
}

ds_status dsi_temp_file(ds_ctx *ctx, const char *folder, const char *name, char **path_out,
                        int *fd_out)
{
    return temp_entry(ctx, folder, name, false, path_out, fd_out);
}

ds_status dsi_temp_folder(ds_ctx *ctx, const char *folder, const char *name, char **path_out,
                          int *fd_out)
{
    return temp_entry(ctx, folder, name, true, path_out, fd_out);
}

/* Splits ".NAME.ds_tmp.1a2b3c4d" or ".NAME.ds_old"; n_out is the length of NAME. */
static bool is_leftover(const char *entry, size_t *n_out, bool *old_out)
{
    const size_t n = strlen(entry);
    const size_t n_old = strlen(DSI_OLD_MARK);
    const size_t n_temp = strlen(DSI_TEMP_MARK) + 8;
    if (entry[0] != '.') {
        return false;
    }
    if (n > n_old + 1 && strcmp(entry + n - n_old, DSI_OLD_MARK) == 0) {
        *n_out = n - n_old - 1;
        *old_out = true;
        return true;
    }
    if (n > n_temp + 1 && strncmp(entry + n - n_temp, DSI_TEMP_MARK, strlen(DSI_TEMP_MARK)) == 0 &&
        strspn(entry + n - 8, "0123456789abcdef") == 8) {
        *n_out = n - n_temp - 1;
        *old_out = false;
        return true;
    }
    return false;
}

/* Removes what no living writer holds. The lock is kept meanwhile: a writer between creation and
 * lock then finds the name taken and tries another, instead of working in what is being removed. */
static void remove_dead(const char *path)
{
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
        (void)dsi_folder_remove(NULL, path);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}

static void clean_entry(const char *parent, const char *entry, size_t n_name, bool old)
{
    char *path = dsi_path_join(parent, entry);
    char *name = strndup(entry + 1, n_name);
    char *place = name != NULL ? dsi_path_join(parent, name) : NULL;
    struct stat st;
    if (path != NULL && place != NULL) {
        if (old && lstat(place, &st) != 0 && errno == ENOENT) {
            (void)rename(path, place);
        } else {
            remove_dead(path);
        }
    }
    free(place);
    free(name);
    free(path);
}

void dsi_folder_clean(const char *parent, const char *name)
{
    DIR *dir = opendir(parent);
    if (dir == NULL) {
        return;
    }
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        size_t n_name = 0;
        bool old = false;
        if (is_leftover(e->d_name, &n_name, &old) &&
            (name == NULL ||
             (strlen(name) == n_name && strncmp(e->d_name + 1, name, n_name) == 0))) {
            clean_entry(parent, e->d_name, n_name, old);
        }
    }
    (void)closedir(dir);
}
