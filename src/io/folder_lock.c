/* SPDX-License-Identifier: Apache-2.0 */
/* Locks on folders. See folder_lock.h.
 *
 * The file is removed under its lock. Whoever locked it after that holds a file without a name, and
 * tries again: two processes never hold two files of one name.
 */
#include "io/folder_lock.h"

#include "base/machine_id.h"
#include "io/file.h"
#include <deepspeed/context.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOCK_NAME ".ds_lock"

/* A killed process of hundreds of GiB holds its files until its memory is gone. */
enum { TEXT_BYTES = 512, TRIES = 10, PAUSE_NS = 100000000 };

static void read_line(const char *path, char *text, size_t n)
{
    FILE *file = fopen(path, "re");
    text[0] = '\0';
    if (file != NULL) {
        (void)!fgets(text, (int)n, file);
        (void)fclose(file);
    }
    text[strcspn(text, "\n")] = '\0';
}

/* Start of this process in ticks since boot: field 22, after the name in brackets. */
static unsigned long long own_start(void)
{
    char text[1024];
    read_line("/proc/self/stat", text, sizeof text);
    const char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; ++field) {
        at = strchr(at + 1, ' ');
    }
    return at != NULL ? strtoull(at, NULL, 10) : 0;
}

static void owner_text(char text[TEXT_BYTES])
{
    char host[256] = "";
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(text, TEXT_BYTES, "host %s process %ld start %llu machine %016llx\n", host,
                   (long)getpid(), own_start(), (unsigned long long)dsi_machine_id());
}

typedef enum lock_state { HELD, BUSY, OWN, GONE, NO_FLOCK } lock_state;

/* Who holds the file, in `owner`. */
static lock_state try_lock(int fd, const char *path, const char *self, char owner[TEXT_BYTES])
{
    struct stat mine;
    struct stat there;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const int reason = errno;
        const ssize_t n = pread(fd, owner, TEXT_BYTES - 1, 0);
        owner[n > 0 ? n : 0] = '\0';
        if (reason != EWOULDBLOCK && reason != EINTR) {
            return NO_FLOCK;
        }
        return strcmp(owner, self) == 0 ? OWN : BUSY;
    }
    const bool named = fstat(fd, &mine) == 0 && stat(path, &there) == 0 &&
                       mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
    return named ? HELD : GONE;
}

static ds_status fail_busy(ds_ctx *ctx, const char *folder, const char *owner)
{
    char host[256] = "?";
    long pid = 0;
    if (sscanf(owner, "host %255s process %ld", host, &pid) != 2) {
        return ds_fail(ctx, DS_ERR_STATE, "another process writes in folder %s", folder);
    }
    return ds_fail(ctx, DS_ERR_STATE,
                   "another process writes in folder %s: process %ld on host %s; wait for it, end "
                   "it, or write into another folder",
                   folder, pid, host);
}

static ds_status write_owner(ds_ctx *ctx, int fd, const char *path, const char *self)
{
    const size_t n = strlen(self);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, self, n, 0) != (ssize_t)n) {
        return dsi_io_fail(ctx, "write", path, errno);
    }
    return DS_OK;
}

/* One opening of the file; BUSY and GONE may be tried again. On HELD *fd_out is open. */
static ds_status open_and_lock(ds_ctx *ctx, const char *path, char owner[TEXT_BYTES],
                               lock_state *state_out, int *fd_out)
{
    char self[TEXT_BYTES];
    owner_text(self);
    const int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) {
        return dsi_io_fail(ctx, "write", path, errno);
    }
    *state_out = try_lock(fd, path, self, owner);
    const ds_status status = *state_out == HELD ? write_owner(ctx, fd, path, self) : DS_OK;
    if (status < 0 || *state_out != HELD) {
        (void)close(fd);
        return status;
    }
    *fd_out = fd;
    return DS_OK;
}

ds_status dsi_folder_lock_take(ds_ctx *ctx, const char *folder, dsi_folder_lock *lock_out)
{
    char owner[TEXT_BYTES] = "";
    lock_state state = BUSY;
    int fd = -1;
    char *path = dsi_path_join(folder, LOCK_NAME);
    if (path == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory locking %s", folder);
    }
    ds_status status = open_and_lock(ctx, path, owner, &state, &fd);
    for (int i = 1; i < TRIES && status == DS_OK && (state == BUSY || state == GONE); ++i) {
        (void)nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        status = open_and_lock(ctx, path, owner, &state, &fd);
    }
    if (status == DS_OK && (state == BUSY || state == GONE)) {
        status = fail_busy(ctx, folder, owner);
    }
    if (status == DS_OK && state == NO_FLOCK) {
        ds_log(ctx, DS_LOG_WARN,
               "%s: this file system has no locks (flock); nothing keeps a second job from writing "
               "there",
               folder);
    }
    *lock_out = (dsi_folder_lock){0};
    if (status == DS_OK && state == HELD) {
        *lock_out = (dsi_folder_lock){.path = path, .fd = fd};
        return DS_OK;
    }
    free(path);
    return status;
}

void dsi_folder_lock_release(dsi_folder_lock *lock)
{
    if (lock->path != NULL) {
        (void)unlink(lock->path);
        (void)close(lock->fd);
        free(lock->path);
    }
    *lock = (dsi_folder_lock){0};
}
