/* SPDX-License-Identifier: Apache-2.0 */
/* The files of asynchronous I/O: opened twice, with O_DIRECT and without; scratch files striped
 * over folders. See aio.h. */
#include "io/aio_impl.h"

#include "base/arena.h"
#include "io/file.h"
#include "io/file_temp.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

void dsi_aio_file_close(dsi_aio *aio, aio_file *file)
{
    for (uint32_t i = 0; file->parts != NULL && i < file->n_parts; ++i) {
        aio_part *part = &file->parts[i];
        if (part->moved != NULL) {
            aio->mover.close(aio->mover.user, part->moved);
        }
        if (part->own >= 0) {
            (void)close(part->own);
        }
        if (part->direct >= 0) {
            (void)close(part->direct);
        }
        if (part->plain >= 0) {
            (void)close(part->plain);
        }
        free(part->path);
    }
    free(file->parts);
    *file = (aio_file){0};
}

void dsi_aio_file_locate(const aio_file *file, uint64_t offset, uint32_t *part_out,
                         uint64_t *offset_out, uint64_t *run_out)
{
    if (file->n_parts == 1) {
        *part_out = 0;
        *offset_out = offset;
        *run_out = UINT64_MAX;
        return;
    }
    const uint64_t stripe = offset / file->stripe_bytes;
    const uint64_t within = offset % file->stripe_bytes;
    *part_out = (uint32_t)(stripe % file->n_parts);
    *offset_out = stripe / file->n_parts * file->stripe_bytes + within;
    *run_out = file->stripe_bytes - within;
}

/* Bytes of part i of a striped file. */
static uint64_t part_bytes(const aio_file *file, uint32_t i)
{
    const uint64_t n_whole = file->bytes / file->stripe_bytes;
    const uint64_t n_mine = n_whole / file->n_parts + (i < n_whole % file->n_parts ? 1 : 0);
    const uint64_t rest = n_whole % file->n_parts == i ? file->bytes % file->stripe_bytes : 0;
    return n_mine * file->stripe_bytes + rest;
}

static void say_plain(dsi_aio *aio, const char *path)
{
    (void)pthread_mutex_lock(&aio->lock);
    const bool told = aio->told_plain;
    aio->told_plain = true;
    (void)pthread_mutex_unlock(&aio->lock);
    if (!told) {
        ds_log(aio->ctx, DS_LOG_WARN,
               "aio: the file system of %s does not allow O_DIRECT: transfers go through the page "
               "cache, which is slower and takes memory",
               path);
    }
}

void dsi_aio_file_refused(dsi_aio *aio, const aio_piece *piece)
{
    aio_file *file = &aio->files[piece->request->file];
    (void)pthread_mutex_lock(&aio->lock);
    file->direct = false;
    (void)pthread_mutex_unlock(&aio->lock);
    say_plain(aio, file->parts[piece->part].path);
}

/* Whether the kernel says that transfers aligned to DSI_AIO_ALIGN may be direct. Kernels before 6.1
 * say nothing; then the open reports it. */
static bool allows_direct(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 &&
        (st.stx_mask & STATX_DIOALIGN) != 0) {
        return st.stx_dio_offset_align > 0 && st.stx_dio_offset_align <= DSI_AIO_ALIGN &&
               st.stx_dio_mem_align <= DSI_AIO_ALIGN;
    }
#else
    (void)fd;
#endif
    return true;
}

/* part->plain is open: opens the same file for direct transfers where that is possible. */
static void open_direct(dsi_aio *aio, aio_file *file, aio_part *part, int flags)
{
    if (allows_direct(part->plain)) {
        part->direct = open(part->path, flags | O_DIRECT | O_CLOEXEC);
    }
    if (part->direct < 0) {
        file->direct = false;
        say_plain(aio, part->path);
        return;
    }
    /* Edges only: what is read ahead there would be in the way of direct transfers. */
    (void)posix_fadvise(part->plain, 0, 0, POSIX_FADV_RANDOM);
}

/* The file once more for the mover, while it has its name: with a descriptor of its own, for the
 * flags that others have (O_NOFOLLOW) are not allowed there. */
static ds_status open_moved(dsi_aio *aio, aio_part *part, int flags)
{
    struct stat here;
    struct stat there;
    if (aio->mover.move == NULL) {
        return DS_OK;
    }
    part->own = part->direct >= 0 ? open(part->path, flags | O_DIRECT | O_CLOEXEC) : -1;
    if (part->direct < 0 || part->own < 0) {
        const int reason = part->direct < 0 ? EINVAL : errno;
        return ds_fail(aio->ctx, reason == EINVAL ? DS_ERR_UNSUPPORTED : DS_ERR_IO,
                       "a device cannot move %s by itself: the file system does not open it with "
                       "O_DIRECT (%s)",
                       part->path, strerror(reason));
    }
    if (fstat(part->plain, &here) != 0 || fstat(part->own, &there) != 0 ||
        here.st_dev != there.st_dev || here.st_ino != there.st_ino) {
        return ds_fail(aio->ctx, DS_ERR_IO, "%s has become another file", part->path);
    }
    return aio->mover.open(aio->mover.user, part->own, part->path, &part->moved);
}

static ds_status find_entry(dsi_aio *aio, uint32_t *file_out)
{
    for (uint32_t i = 0; i < aio->max_files; ++i) {
        if (aio->files[i].parts == NULL) {
            *file_out = i;
            return DS_OK;
        }
    }
    return ds_fail(aio->ctx, DS_ERR_LIMIT, "aio: more than %" PRIu32 " files are open at once",
                   aio->max_files);
}

/* A file with n closed parts. */
static ds_status new_file(dsi_aio *aio, uint32_t n_parts, aio_file *file_out)
{
    *file_out = (aio_file){
        .n_parts = n_parts, .stripe_bytes = aio->stripe_bytes, .bytes = UINT64_MAX, .direct = true};
    file_out->parts = calloc(n_parts, sizeof *file_out->parts);
    if (file_out->parts == NULL) {
        return ds_fail(aio->ctx, DS_ERR_NOMEM, "aio: out of memory for a file");
    }
    for (uint32_t i = 0; i < n_parts; ++i) {
        file_out->parts[i].direct = -1;
        file_out->parts[i].plain = -1;
        file_out->parts[i].own = -1;
    }
    return DS_OK;
}

static void enter(dsi_aio *aio, uint32_t id, const aio_file *file)
{
    (void)pthread_mutex_lock(&aio->lock);
    aio->files[id] = *file;
    (void)pthread_mutex_unlock(&aio->lock);
}

/* ---- scratch files ---- */

static ds_status no_room(dsi_aio *aio, const char *name, const char *folder, uint64_t bytes,
                         int reason)
{
    struct statvfs st;
    const uint64_t free_bytes =
        statvfs(folder, &st) == 0 ? (uint64_t)st.f_bavail * (uint64_t)st.f_frsize : 0;
    const char *remedy = reason == EFBIG ? "raise `ulimit -f`" : "free some space";
    return ds_fail(aio->ctx, DS_ERR_IO,
                   "cannot make room for the %" PRIu64 " bytes of %s in %s: %s; %" PRIu64
                   " bytes are free there; %s or choose another folder",
                   bytes, name, folder, strerror(reason), free_bytes, remedy);
}

/* Takes the room; errno or 0. A file beyond `ulimit -f` must be an error, not the end of the
 * process, whose signal is therefore taken back. */
static int reserve(int fd, const char *folder, uint64_t bytes)
{
    sigset_t only;
    sigset_t old;
    (void)sigemptyset(&only);
    (void)sigaddset(&only, SIGXFSZ);
    (void)pthread_sigmask(SIG_BLOCK, &only, &old);
    int reason = 0;
    do {
        reason = fallocate(fd, 0, 0, (off_t)bytes) == 0 ? 0 : errno;
    } while (reason == EINTR);
    if (reason == EOPNOTSUPP || reason == ENOSYS) {
        struct statvfs st;
        const bool full =
            statvfs(folder, &st) == 0 && (uint64_t)st.f_bavail * (uint64_t)st.f_frsize < bytes;
        reason = full ? ENOSPC : ftruncate(fd, (off_t)bytes) == 0 ? 0 : errno;
    }
    if (reason == EFBIG && sigismember(&old, SIGXFSZ) == 0) {
        const struct timespec at_once = {0};
        (void)sigtimedwait(&only, NULL, &at_once);
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return reason;
}

/* One part in one folder. Its name is gone before room is taken, so that a killed process leaves
 * nothing; the lock on the name keeps others from removing it in between. */
static ds_status open_scratch(dsi_aio *aio, aio_file *file, uint32_t i, const char *folder,
                              const char *name)
{
    aio_part *part = &file->parts[i];
    int lock = -1;
    dsi_folder_clean(folder, name);
    DS_TRY(dsi_temp_file(aio->ctx, folder, name, &part->path, &lock));
    ds_status status = DS_OK;
    part->plain = open(part->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (part->plain < 0) {
        status = dsi_io_fail(aio->ctx, "open", part->path, errno);
    } else {
        open_direct(aio, file, part, O_RDWR | O_NOFOLLOW);
        status = open_moved(aio, part, O_RDWR);
    }
    (void)unlink(part->path);
    (void)close(lock);
    DS_TRY(status);
    const uint64_t bytes = part_bytes(file, i);
    const int reason = bytes > 0 ? reserve(part->plain, folder, bytes) : 0;
    return reason == 0 ? DS_OK : no_room(aio, name, folder, bytes, reason);
}

ds_status dsi_aio_add_scratch(dsi_aio *aio, const char *name, uint64_t bytes, uint32_t first,
                              uint32_t n, uint32_t *file_out)
{
    uint32_t id = 0;
    aio_file file;
    if (n == 0 || first > aio->n_folders || n > aio->n_folders - first) {
        return ds_fail(aio->ctx, DS_ERR_ARG, "aio: %s needs a folder, none was given", name);
    }
    if (!dsi_path_is_plain(name) || bytes > (uint64_t)INT64_MAX - DSI_AIO_ALIGN) {
        return ds_fail(aio->ctx, DS_ERR_ARG,
                       "aio: no scratch file may be named %s, of %" PRIu64 " bytes", name, bytes);
    }
    DS_TRY(find_entry(aio, &id));
    DS_TRY(new_file(aio, n, &file));
    file.bytes = (bytes + DSI_AIO_ALIGN - 1) / DSI_AIO_ALIGN * DSI_AIO_ALIGN;
    for (uint32_t i = 0; i < file.n_parts; ++i) {
        const ds_status status = open_scratch(aio, &file, i, aio->folders[first + i], name);
        if (status < 0) {
            dsi_aio_file_close(aio, &file);
            return status;
        }
    }
    enter(aio, id, &file);
    *file_out = id;
    return DS_OK;
}

/* ---- files with a name ---- */

static ds_status open_path(dsi_aio *aio, aio_file *file, const char *path, bool write)
{
    aio_part *part = &file->parts[0];
    part->path = strdup(path);
    if (part->path == NULL) {
        return ds_fail(aio->ctx, DS_ERR_NOMEM, "out of memory opening %s", path);
    }
    /* O_NONBLOCK: opening a pipe must be an error, not a wait. */
    const int flags = (write ? O_RDWR | O_CREAT : O_RDONLY) | O_NONBLOCK | O_CLOEXEC;
    part->plain = open(path, flags, 0666);
    if (part->plain < 0) {
        return dsi_io_fail(aio->ctx, "open", path, errno);
    }
    struct stat st;
    if (fstat(part->plain, &st) != 0) {
        return dsi_io_fail(aio->ctx, "open", path, errno);
    }
    if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode)) {
        return ds_fail(aio->ctx, DS_ERR_IO, "cannot open %s: it is no regular file", path);
    }
    (void)fcntl(part->plain, F_SETFL, flags & ~O_NONBLOCK); /* io_uring would give up early */
    open_direct(aio, file, part, write ? O_RDWR : O_RDONLY);
    return open_moved(aio, part, write ? O_RDWR : O_RDONLY);
}

ds_status dsi_aio_add_path(dsi_aio *aio, const char *path, bool write, uint32_t *file_out)
{
    uint32_t id = 0;
    aio_file file;
    DS_TRY(find_entry(aio, &id));
    DS_TRY(new_file(aio, 1, &file));
    const ds_status status = open_path(aio, &file, path, write);
    if (status < 0) {
        dsi_aio_file_close(aio, &file);
        return status;
    }
    enter(aio, id, &file);
    *file_out = id;
    return DS_OK;
}

void dsi_aio_remove(dsi_aio *aio, uint32_t file)
{
    (void)pthread_mutex_lock(&aio->lock);
    aio_file gone = aio->files[file];
    aio->files[file] = (aio_file){0};
    (void)pthread_mutex_unlock(&aio->lock);
    dsi_aio_file_close(aio, &gone);
}

bool dsi_aio_is_direct(dsi_aio *aio, uint32_t file)
{
    (void)pthread_mutex_lock(&aio->lock);
    const bool direct = aio->files[file].direct;
    (void)pthread_mutex_unlock(&aio->lock);
    return direct;
}
