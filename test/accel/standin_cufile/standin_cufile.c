/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for NVIDIA's libcufile.so.0 over the stand-in of the driver (standin/): what the
 * cuFile API reference says of the functions that cufile_api.h lists, and no more. Files are read
 * and written in pieces, so that device memory is seen half done; any offset and size is right.
 *
 * Refused as documented: no context of the caller's thread, a descriptor with a flag that is not
 * supported or without a name, one that is registered already, memory that is not the device's or
 * is registered already, registered memory by another base than its own, an offset with memory that
 * is not. Stricter: a file without O_DIRECT, and any call while the driver is not open.
 *
 * DS_CUFILE_STANDIN="driver=5001,file=5008,map=5016,fail=N,code=C,short=1,hang=N" or
 * standin_cufile_set: cuFileDriverOpen, cuFileHandleRegister, cuFileBufRegister answer so; the N-th
 * transfer fails (EIO, or error C of cuFile's), never ends; each moves a part of what is asked for.
 * standin_cufile_counts: bytes read and written so far, transfers of registered memory.
 */
#include "accel/cuda/driver/cufile_api.h"
#include "accel/standin/standin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_FILES = 64, MOST_BUFFERS = 16, PIECE = 1000 };

#define X(type, member, symbol, params) STANDIN_API type symbol params;
DSC_CUFILE_LIST(X)
#undef X
STANDIN_API void standin_cufile_set(const char *options);
STANDIN_API void standin_cufile_counts(uint64_t counts_out[3]);

typedef struct file {
    int given, own; /* own: the same file through the page cache, which any offset fits */
    bool used;
} file;

static struct {
    pthread_mutex_t lock;
    uint32_t n_opened; /* cuFileDriverOpen */
    file files[MOST_FILES];
    struct {
        const unsigned char *base;
        size_t bytes;
    } buffers[MOST_BUFFERS];
    uint64_t driver, map, file, fail, code, shorter, hang, n_moved;
    uint64_t counts[3];
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

void standin_cufile_set(const char *options)
{
    static const struct {
        const char *key;
        uint64_t *value;
    } rows[] = {{"driver=", &all.driver}, {"map=", &all.map},   {"file=", &all.file},
                {"fail=", &all.fail},     {"code=", &all.code}, {"short=", &all.shorter},
                {"hang=", &all.hang}};
    (void)pthread_mutex_lock(&all.lock);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const char *at = options != NULL ? strstr(options, rows[i].key) : NULL;
        *rows[i].value = at != NULL ? strtoull(at + strlen(rows[i].key), NULL, 10) : 0;
    }
    all.n_moved = 0;
    memset(all.counts, 0, sizeof all.counts);
    (void)pthread_mutex_unlock(&all.lock);
}

void standin_cufile_counts(uint64_t counts_out[3])
{
    (void)pthread_mutex_lock(&all.lock);
    memcpy(counts_out, all.counts, sizeof all.counts);
    (void)pthread_mutex_unlock(&all.lock);
}

static dsc_cufile_error answer(int code)
{
    return (dsc_cufile_error){code, DSC_CU_SUCCESS};
}

dsc_cufile_error cuFileGetVersion(int *version_out)
{
    *version_out = 1140;
    return answer(DSC_CUFILE_SUCCESS);
}

dsc_cufile_error cuFileDriverOpen(void)
{
    const char *options = getenv("DS_CUFILE_STANDIN");
    if (options != NULL) {
        standin_cufile_set(options);
    }
    (void)pthread_mutex_lock(&all.lock);
    const int code = all.driver != 0 ? (int)all.driver : DSC_CUFILE_SUCCESS;
    all.n_opened += code == DSC_CUFILE_SUCCESS ? 1 : 0;
    (void)pthread_mutex_unlock(&all.lock);
    return answer(code);
}

/* Here: nothing of it is left. */
dsc_cufile_error cuFileDriverClose_v2(void)
{
    (void)pthread_mutex_lock(&all.lock);
    int code = all.n_opened > 0 ? DSC_CUFILE_SUCCESS : DSC_CUFILE_DRIVER_NOT_INITIALIZED;
    for (uint32_t i = 0; i < MOST_FILES && all.n_opened == 1; ++i) {
        code = all.files[i].used ? DSC_CUFILE_INTERNAL_ERROR : code;
    }
    for (uint32_t i = 0; i < MOST_BUFFERS && all.n_opened == 1; ++i) {
        code = all.buffers[i].base != NULL ? DSC_CUFILE_INTERNAL_ERROR : code;
    }
    if (code == DSC_CUFILE_INTERNAL_ERROR) {
        (void)fprintf(stderr, "libcufile (stand-in): closed with files or memory registered\n");
        abort();
    }
    all.n_opened -= code == DSC_CUFILE_SUCCESS ? 1 : 0;
    (void)pthread_mutex_unlock(&all.lock);
    return answer(code);
}

/* ---- files and memory ----------------------------------------------------------------------- */

static int check_file(int fd)
{
    const int refused = O_APPEND | O_NONBLOCK | O_DIRECTORY | O_NOFOLLOW | O_NOATIME;
    char link[64];
    char path[4096];
    struct stat st;
    const int flags = fcntl(fd, F_GETFL);
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    for (uint32_t i = 0; i < MOST_FILES; ++i) {
        if (all.files[i].used && all.files[i].given == fd) {
            return DSC_CUFILE_HANDLE_ALREADY_REGISTERED;
        }
    }
    return flags < 0 || fstat(fd, &st) != 0                  ? DSC_CUFILE_INVALID_VALUE
           : (flags & refused) != 0                          ? DSC_CUFILE_INVALID_FILE_OPEN_FLAG
           : !S_ISREG(st.st_mode) || access(path, F_OK) != 0 ? DSC_CUFILE_INVALID_FILE_TYPE
           : (flags & O_DIRECT) == 0                         ? DSC_CUFILE_DIO_NOT_SET
           : all.file != 0                                   ? (int)all.file
                                                             : DSC_CUFILE_SUCCESS;
}

dsc_cufile_error cuFileHandleRegister(dsc_cufile_handle *handle_out, dsc_cufile_descr *descr)
{
    char link[64];
    if (descr == NULL || descr->type != DSC_CUFILE_HANDLE_TYPE_OPAQUE_FD) {
        return answer(DSC_CUFILE_INVALID_VALUE);
    }
    const int fd = descr->handle.fd;
    (void)pthread_mutex_lock(&all.lock);
    int code = all.n_opened == 0 ? DSC_CUFILE_DRIVER_NOT_INITIALIZED : check_file(fd);
    file *f = NULL;
    for (uint32_t i = 0; i < MOST_FILES && f == NULL; ++i) {
        f = all.files[i].used ? NULL : &all.files[i];
    }
    if (code == DSC_CUFILE_SUCCESS && f != NULL) {
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        f->given = fd;
        f->own = open(link, (fcntl(fd, F_GETFL) & O_ACCMODE) | O_CLOEXEC);
        f->used = f->own >= 0;
        *handle_out = f;
    }
    code = code == DSC_CUFILE_SUCCESS && (f == NULL || !f->used) ? DSC_CUFILE_INTERNAL_ERROR : code;
    (void)pthread_mutex_unlock(&all.lock);
    return answer(code);
}

void cuFileHandleDeregister(dsc_cufile_handle handle)
{
    file *f = handle;
    (void)pthread_mutex_lock(&all.lock);
    (void)close(f->own);
    f->used = false;
    (void)pthread_mutex_unlock(&all.lock);
}

dsc_cufile_error cuFileBufRegister(const void *base, size_t bytes, int flags)
{
    const unsigned char *at = base;
    const bool reached = standin_has_context() && standin_is_device(base, bytes);
    (void)pthread_mutex_lock(&all.lock);
    int code = all.n_opened == 0          ? DSC_CUFILE_DRIVER_NOT_INITIALIZED
               : flags != 0 || bytes == 0 ? DSC_CUFILE_INVALID_VALUE
               : !reached                 ? DSC_CUFILE_CUDA_MEMORY_TYPE_INVALID
               : all.map != 0             ? (int)all.map
                                          : DSC_CUFILE_SUCCESS;
    uint32_t room = MOST_BUFFERS;
    for (uint32_t i = 0; i < MOST_BUFFERS; ++i) {
        const unsigned char *other = all.buffers[i].base;
        room = other == NULL ? i : room;
        if (other != NULL && at < other + all.buffers[i].bytes && other < at + bytes) {
            code = DSC_CUFILE_MEMORY_ALREADY_REGISTERED;
        }
    }
    code = code == DSC_CUFILE_SUCCESS && room == MOST_BUFFERS ? DSC_CUFILE_INTERNAL_ERROR : code;
    if (code == DSC_CUFILE_SUCCESS) {
        all.buffers[room].base = at;
        all.buffers[room].bytes = bytes;
    }
    (void)pthread_mutex_unlock(&all.lock);
    return answer(code);
}

dsc_cufile_error cuFileBufDeregister(const void *base)
{
    int code = DSC_CUFILE_MEMORY_NOT_REGISTERED;
    (void)pthread_mutex_lock(&all.lock);
    for (uint32_t i = 0; i < MOST_BUFFERS; ++i) {
        if (all.buffers[i].base == base) {
            all.buffers[i].base = NULL;
            code = DSC_CUFILE_SUCCESS;
        }
    }
    (void)pthread_mutex_unlock(&all.lock);
    return answer(code);
}

/* ---- transfers ------------------------------------------------------------------------------ */

/* Whether the range may be named so; lock held. */
static int check_range(const unsigned char *base, size_t bytes, off_t within)
{
    if (base == NULL || within < 0 || !standin_has_context()) {
        return DSC_CUFILE_INVALID_VALUE;
    }
    for (uint32_t i = 0; i < MOST_BUFFERS; ++i) {
        const unsigned char *own = all.buffers[i].base;
        if (own == NULL || base < own || base >= own + all.buffers[i].bytes) {
            continue;
        }
        if (base != own) {
            return DSC_CUFILE_INVALID_VALUE;
        }
        all.counts[2] += 1;
        return (size_t)within > all.buffers[i].bytes ||
                       bytes > all.buffers[i].bytes - (size_t)within
                   ? DSC_CUFILE_INVALID_MAPPING_RANGE
                   : DSC_CUFILE_SUCCESS;
    }
    return within != 0                       ? DSC_CUFILE_INVALID_VALUE
           : !standin_is_device(base, bytes) ? DSC_CUFILE_CUDA_POINTER_RANGE_ERROR
                                             : DSC_CUFILE_SUCCESS;
}

/* A piece; bytes, 0 at the end of the file, -1 with errno. */
static ssize_t piece(const file *f, unsigned char *memory, size_t n, off_t at, bool write)
{
    unsigned char room[PIECE];
    n = n < PIECE ? n : PIECE;
    if (write) {
        standin_copy(room, memory, n);
        return pwrite(f->own, room, n, at);
    }
    const ssize_t done = pread(f->own, room, n, at);
    if (done > 0) {
        standin_copy(memory, room, (size_t)done);
    }
    return done;
}

static ssize_t transfer(dsc_cufile_handle handle, unsigned char *base, size_t bytes, off_t offset,
                        off_t within, bool write)
{
    const file *f = handle;
    (void)pthread_mutex_lock(&all.lock);
    const uint64_t number = ++all.n_moved;
    const int code = all.n_opened == 0 ? DSC_CUFILE_DRIVER_NOT_INITIALIZED
                     : !f->used        ? DSC_CUFILE_HANDLE_NOT_REGISTERED
                                       : check_range(base, bytes, within);
    const uint64_t fail = all.fail;
    const uint64_t own = all.code;
    const bool hangs = all.hang == number;
    const bool part = all.shorter != 0 && bytes > 1;
    (void)pthread_mutex_unlock(&all.lock);
    while (hangs) {
        (void)pause();
    }
    if (code != DSC_CUFILE_SUCCESS) {
        return -code;
    }
    if (fail == number) {
        errno = EIO;
        return own != 0 ? -(ssize_t)own : -1;
    }
    const size_t wanted = part ? bytes / 2 + number % (bytes / 2 + 1) : bytes;
    size_t done = 0;
    for (ssize_t n = 1; done < wanted && n > 0; done += n > 0 ? (size_t)n : 0) {
        n = piece(f, base + within + done, wanted - done, offset + (off_t)done, write);
        if (n < 0 && done == 0) {
            return -1;
        }
    }
    (void)pthread_mutex_lock(&all.lock);
    all.counts[write ? 1 : 0] += done;
    (void)pthread_mutex_unlock(&all.lock);
    return (ssize_t)done;
}

ssize_t cuFileRead(dsc_cufile_handle handle, void *base, size_t bytes, off_t file_offset,
                   off_t base_offset)
{
    return transfer(handle, base, bytes, file_offset, base_offset, false);
}

ssize_t cuFileWrite(dsc_cufile_handle handle, const void *base, size_t bytes, off_t file_offset,
                    off_t base_offset)
{
    return transfer(handle, (unsigned char *)(uintptr_t)base, bytes, file_offset, base_offset,
                    true);
}
