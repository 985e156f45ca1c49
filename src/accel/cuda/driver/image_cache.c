/* SPDX-License-Identifier: Apache-2.0 */
/* See image_cache.h. An entry is HASH.cubin: a header, the key, the code. HASH.tmp is one that is
 * being written, or that a killed process has left; the next writer of that hash begins it anew.
 * Byte HASH of the file `lock` is locked by who makes that entry. */
#include "accel/cuda/driver/image_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, NAME_BYTES = 32, WAIT_SECONDS = 600, MOST_BYTES = 1 << 28 };

typedef struct header {
    char magic[8];
    uint64_t checksum; /* of all behind it */
    uint64_t key_bytes, code_bytes;
} header;

static const char magic[8] = {'D', 'S', 'C', 'U', 'B', 'I', 'N', '1'};

typedef enum found { FOUND_NONE, FOUND, FOUND_DAMAGED } found;

typedef struct entry {
    const dsc_cache_request *request;
    char folder[PATH_BYTES];
    int dir; /* -1: there is no folder */
    uint64_t hash;
    void *code;
    size_t bytes;
} entry;

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* FNV-1a */
static uint64_t mix(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; ++i) {
        hash = (hash ^ at[i]) * 0x100000001b3u;
    }
    return hash;
}

static const uint64_t mix_begin = 0xcbf29ce484222325u;

static void warn(const entry *e, const char *what, const char *why)
{
    char text[PATH_BYTES + 512];
    (void)snprintf(text, sizeof text, "warning: cuda: the cache %s: %s: %s; %s", e->folder, what,
                   why, e->request->what);
    e->request->warn(e->request->user, text);
}

/* ---- the folder ---------------------------------------------------------------------------- */

/* False: there shall be none. */
static bool folder_path(char path_out[PATH_BYTES])
{
    const char *asked = getenv("DS_CUDA_CACHE");
    const char *caches = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int n = -1;
    if (asked != NULL && asked[0] != '\0') {
        n = strcmp(asked, "none") != 0 ? snprintf(path_out, PATH_BYTES, "%s", asked) : -1;
    } else if (caches != NULL && caches[0] == '/') { /* others are to be passed over */
        n = snprintf(path_out, PATH_BYTES, "%s/deepspeed_native/cuda", caches);
    } else if (home != NULL && home[0] == '/') {
        n = snprintf(path_out, PATH_BYTES, "%s/.cache/deepspeed_native/cuda", home);
    }
    return n > 0 && n < PATH_BYTES;
}

static int make_folders(const char *path)
{
    char part[PATH_BYTES];
    (void)snprintf(part, sizeof part, "%s", path);
    for (char *at = part + 1; *at != '\0'; ++at) {
        if (*at == '/') {
            *at = '\0';
            if (mkdir(part, 0700) != 0 && errno != EEXIST) {
                return -1;
            }
            *at = '/';
        }
    }
    return mkdir(part, 0700) != 0 && errno != EEXIST ? -1 : 0;
}

/* Machine code is taken from nobody but this user and root. */
static bool is_own(const struct stat *st)
{
    return (st->st_uid == geteuid() || st->st_uid == 0) && (st->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static int open_folder(const entry *e)
{
    struct stat st;
    if (make_folders(e->folder) != 0) {
        warn(e, "it cannot be made", strerror(errno));
        return -1;
    }
    const int dir = open(e->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || fstat(dir, &st) != 0) {
        warn(e, "it cannot be opened", strerror(errno));
    } else if (!is_own(&st)) {
        warn(e, "it is not used", "another user owns it or may write to it");
    } else {
        return dir;
    }
    if (dir >= 0) {
        (void)close(dir);
    }
    return -1;
}

/* ---- entries ------------------------------------------------------------------------------- */

static void name_of(const entry *e, const char *suffix, char name_out[NAME_BYTES])
{
    (void)snprintf(name_out, NAME_BYTES, "%016llx.%s", (unsigned long long)e->hash, suffix);
}

static bool read_all(int file, void *to, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = read(file, (char *)to + done, n - done);
        if (got <= 0 && !(got < 0 && errno == EINTR)) {
            return false;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

/* Whether bytes are an entry of the key; then its code is taken. */
static found take(entry *e, const char *bytes, size_t n)
{
    header h;
    memcpy(&h, bytes, sizeof h);
    const size_t rest = n - sizeof h;
    if (memcmp(h.magic, magic, sizeof magic) != 0 || h.key_bytes > rest ||
        h.code_bytes != rest - h.key_bytes || h.code_bytes == 0 ||
        h.checksum !=
            mix(mix_begin, bytes + offsetof(header, key_bytes), n - offsetof(header, key_bytes))) {
        return FOUND_DAMAGED;
    }
    if (h.key_bytes != e->request->key_bytes ||
        memcmp(bytes + sizeof h, e->request->key, e->request->key_bytes) != 0) {
        return FOUND_NONE; /* another key's, of this hash */
    }
    e->code = malloc(h.code_bytes);
    if (e->code == NULL) {
        return FOUND_NONE;
    }
    memcpy(e->code, bytes + sizeof h + h.key_bytes, h.code_bytes);
    e->bytes = h.code_bytes;
    return FOUND;
}

static found read_entry(entry *e)
{
    char name[NAME_BYTES];
    struct stat st;
    name_of(e, "cubin", name);
    const int file = openat(e->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) {
        return errno == ENOENT ? FOUND_NONE : FOUND_DAMAGED;
    }
    found result = FOUND_DAMAGED;
    if (fstat(file, &st) == 0 && S_ISREG(st.st_mode) && is_own(&st) && st.st_size <= MOST_BYTES &&
        st.st_size > (off_t)sizeof(header)) {
        char *bytes = malloc((size_t)st.st_size);
        if (bytes != NULL && read_all(file, bytes, (size_t)st.st_size)) {
            result = take(e, bytes, (size_t)st.st_size);
        }
        free(bytes);
    }
    (void)close(file);
    return result;
}

static bool write_all(int file, const void *from, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t put = write(file, (const char *)from + done, n - done);
        if (put < 0 && errno != EINTR) {
            return false;
        }
        done += put > 0 ? (size_t)put : 0;
    }
    return true;
}

static void write_entry(const entry *e)
{
    if (sizeof(header) + e->request->key_bytes + e->bytes > MOST_BYTES) { /* nobody would read it */
        return;
    }
    char aside[NAME_BYTES];
    char name[NAME_BYTES];
    header h = {.key_bytes = e->request->key_bytes, .code_bytes = e->bytes};
    memcpy(h.magic, magic, sizeof magic);
    const size_t from = offsetof(header, key_bytes);
    h.checksum = mix(mix_begin, (const char *)&h + from, sizeof h - from);
    h.checksum = mix(h.checksum, e->request->key, e->request->key_bytes);
    h.checksum = mix(h.checksum, e->code, e->bytes);
    name_of(e, "tmp", aside);
    name_of(e, "cubin", name);
    const int file =
        openat(e->dir, aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool done = file >= 0 && write_all(file, &h, sizeof h) &&
                write_all(file, e->request->key, e->request->key_bytes) &&
                write_all(file, e->code, e->bytes);
    int why = errno;
    if (file >= 0 && close(file) != 0 && done) { /* network file systems report here */
        why = errno;
        done = false;
    }
    if (done && renameat(e->dir, aside, e->dir, name) != 0) {
        why = errno;
        done = false;
    }
    if (!done) {
        (void)unlinkat(e->dir, aside, 0);
        warn(e, "an entry cannot be written", strerror(why));
    }
}

/* ---- the lock ------------------------------------------------------------------------------ */

static double patience(void)
{
    const char *text = getenv("DS_CUDA_CACHE_SECONDS");
    char *end = NULL;
    const long seconds = text != NULL && text[0] != '\0' ? strtol(text, &end, 10) : WAIT_SECONDS;
    return (end == NULL || *end == '\0') && seconds >= 0 ? (double)seconds : WAIT_SECONDS;
}

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_shortly(uint32_t tries)
{
    const long ms = tries < 10 ? 2 : 50;
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static struct flock byte_of(const entry *e, short type)
{
    return (struct flock){.l_type = type,
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)(e->hash & 0x3fffffffffffffffu),
                          .l_len = 1};
}

/* A descriptor that holds the lock until it is closed; -1 with a warning. */
static int lock(const entry *e)
{
    const int file = openat(e->dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) {
        warn(e, "its lock cannot be opened", strerror(errno));
        return -1;
    }
    const double until = now() + patience();
    for (uint32_t tries = 0;; ++tries) {
        struct flock byte = byte_of(e, F_WRLCK);
        if (fcntl(file, F_SETLK, &byte) == 0) {
            return file;
        }
        if (errno != EACCES && errno != EAGAIN && errno != EINTR) {
            warn(e, "it cannot be locked", strerror(errno));
            break;
        }
        if (now() > until) {
            char who[64] = "another process has held its lock for too long";
            byte = byte_of(e, F_WRLCK);
            if (fcntl(file, F_GETLK, &byte) == 0 && byte.l_type != F_UNLCK && byte.l_pid > 0) {
                (void)snprintf(who, sizeof who, "process %ld has held its lock for too long",
                               (long)byte.l_pid);
            }
            warn(e, "an entry is not waited for (DS_CUDA_CACHE_SECONDS)", who);
            break;
        }
        pause_shortly(tries);
    }
    (void)close(file);
    return -1;
}

/* ---- together ------------------------------------------------------------------------------ */

static bool make(entry *e)
{
    return e->request->make(e->request->user, &e->code, &e->bytes);
}

static bool get(entry *e)
{
    if (read_entry(e) == FOUND) {
        return true;
    }
    const int locked = lock(e);
    const found there = locked >= 0 ? read_entry(e) : FOUND_NONE;
    if (there == FOUND_DAMAGED) {
        char name[NAME_BYTES];
        name_of(e, "cubin", name);
        warn(e, name, "it is damaged or another user's, and made again");
    }
    const bool done = there == FOUND || make(e);
    if (done && there != FOUND && locked >= 0) {
        write_entry(e);
    }
    if (locked >= 0) {
        (void)close(locked);
    }
    return done;
}

bool dsc_cache_get(const dsc_cache_request *request, void **code_out, size_t *bytes_out)
{
    entry e = {
        .request = request, .dir = -1, .hash = mix(mix_begin, request->key, request->key_bytes)};
    (void)pthread_mutex_lock(&one_at_a_time);
    if (folder_path(e.folder)) {
        e.dir = open_folder(&e);
    }
    const bool done = e.dir >= 0 ? get(&e) : make(&e);
    if (e.dir >= 0) {
        (void)close(e.dir);
    }
    (void)pthread_mutex_unlock(&one_at_a_time);
    if (done) {
        *code_out = e.code;
        *bytes_out = e.bytes;
    }
    return done;
}

void dsc_cache_say(char *text_out, size_t n)
{
    char folder[PATH_BYTES];
    uint32_t n_entries = 0;
    double bytes = 0.0;
    if (!folder_path(folder)) {
        (void)snprintf(text_out, n, "not cached");
        return;
    }
    DIR *dir = opendir(folder);
    const struct dirent *at = NULL;
    while (dir != NULL && (at = readdir(dir)) != NULL) {
        struct stat st;
        const size_t length = strlen(at->d_name);
        if (length > 6 && strcmp(at->d_name + length - 6, ".cubin") == 0 &&
            fstatat(dirfd(dir), at->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
            n_entries += 1;
            bytes += (double)st.st_size;
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    (void)snprintf(text_out, n, "cached in %.300s (%u entries, %.0f KiB)", folder, n_entries,
                   bytes / 1024.0);
}
