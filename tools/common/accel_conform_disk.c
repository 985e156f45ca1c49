/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the device itself reads and writes: random ranges between a file and two blocks of
 * device memory, one of them mapped, against a copy of both in host memory. See accel_conform.h.
 */
#include "common/accel_conform.h"

#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 2, BYTES = 50000, OPERATIONS = 60, SITE = 40 };

typedef struct bench {
    unsigned char *device[BLOCKS], *host[BLOCKS], *content; /* of the file */
    unsigned char *seen;
    char path[4096];
    int fd;
    ds_accel_file *file;
    bool mapped;
} bench;

static size_t below(const accel_conform *c, uint32_t site, uint64_t at, size_t n)
{
    return (size_t)dsi_rng_below(c->seed, SITE + site, at, (uint32_t)n);
}

static void drop(accel_conform *c, bench *b)
{
    c->accel->disks->close(&b->file);
    if (b->mapped) {
        c->accel->disks->unmap(c->device, b->device[0]);
    }
    for (int i = 0; i < BLOCKS; ++i) {
        if (b->device[i] != NULL) {
            c->accel->memory->release(c->device, b->device[i], BYTES);
        }
        free(b->host[i]);
    }
    free(b->content);
    free(b->seen);
    if (b->fd >= 0) {
        (void)close(b->fd);
        (void)unlink(b->path);
    }
}

static ds_status open_file(accel_conform *c, bench *b)
{
    const char *folder = getenv("TMPDIR");
    (void)snprintf(b->path, sizeof b->path, "%.4000s/ds_accel_test_%ld.tmp",
                   folder != NULL ? folder : "/tmp", (long)getpid());
    b->fd = open(b->path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
    if (b->fd < 0 || ftruncate(b->fd, BYTES) != 0) {
        return ds_fail(c->ctx, DS_ERR_IO, "%s: no file with O_DIRECT: %s; another TMPDIR?", b->path,
                       strerror(errno));
    }
    return c->accel->disks->open(c->device, c->ctx, b->fd, b->path, &b->file);
}

static ds_status make(accel_conform *c, bench *b)
{
    b->content = calloc(1, BYTES);
    b->seen = malloc(BYTES);
    bool whole = b->content != NULL && b->seen != NULL;
    for (int i = 0; i < BLOCKS; ++i) {
        void *memory = NULL;
        DS_TRY(c->accel->memory->alloc(c->device, c->ctx, BYTES, "a check", &memory));
        b->device[i] = memory;
        b->host[i] = calloc(1, BYTES);
        whole = whole && b->host[i] != NULL;
        for (size_t k = 0; whole && k < BYTES; ++k) {
            b->host[i][k] = (unsigned char)(k * 7 + (size_t)i * 31 + k / 256);
        }
    }
    if (!whole) {
        return ds_fail(c->ctx, DS_ERR_NOMEM, "no memory for a check");
    }
    for (int i = 0; i < BLOCKS; ++i) {
        DS_TRY(c->accel->memory->copy(c->device, b->device[i], b->host[i], BYTES));
    }
    DS_TRY(open_file(c, b));
    const ds_status mapped = c->accel->disks->map(c->device, c->ctx, b->device[0], BYTES);
    b->mapped = mapped >= 0;
    return mapped == DS_ERR_LIMIT ? DS_OK : mapped;
}

/* All of a range, however many bytes each call moves. */
static ds_status move(accel_conform *c, const bench *b, bool write, unsigned char *memory, size_t n,
                      size_t at)
{
    for (size_t done = 0; done < n;) {
        const int64_t moved =
            c->accel->disks->move(b->file, write, memory + done, n - done, at + done);
        if (moved <= 0) {
            const char *text = c->accel->disks->text((int)-moved);
            return ds_fail(c->ctx, DS_ERR_IO, "disks: %s of %zu bytes at %zu: %s",
                           write ? "a write" : "a read", n, at,
                           moved == 0     ? "it moved none"
                           : text != NULL ? text
                                          : strerror((int)-moved));
        }
        done += (size_t)moved;
    }
    return DS_OK;
}

static ds_status compare(accel_conform *c, const bench *b)
{
    for (int i = 0; i < BLOCKS; ++i) {
        DS_TRY(c->accel->memory->copy(c->device, b->seen, b->device[i], BYTES));
        if (memcmp(b->seen, b->host[i], BYTES) != 0) {
            return ds_fail(c->ctx, DS_ERR_STATE,
                           "disks: block %d has other bytes than the file (seed %" PRIu64 ")", i,
                           c->seed);
        }
    }
    const int plain = open(b->path, O_RDONLY | O_CLOEXEC);
    const bool read_all = plain >= 0 && pread(plain, b->seen, BYTES, 0) == BYTES;
    (void)(plain >= 0 ? close(plain) : 0);
    return read_all && memcmp(b->seen, b->content, BYTES) == 0
               ? DS_OK
               : ds_fail(c->ctx, DS_ERR_STATE,
                         "disks: the file has other bytes than were written (seed %" PRIu64 ")",
                         c->seed);
}

static ds_status run(accel_conform *c, bench *b)
{
    for (uint32_t i = 0; i < c->rounds * OPERATIONS; ++i) {
        const size_t block = below(c, 0, i, BLOCKS);
        const size_t n = 1 + below(c, 1, i, i % 2 == 0 ? 300 : BYTES);
        const size_t at = below(c, 2, i, BYTES - n + 1);
        const size_t in_block = below(c, 3, i, BYTES - n + 1);
        const bool write = below(c, 4, i, 2) == 1;
        DS_TRY(move(c, b, write, b->device[block] + in_block, n, at));
        memcpy(write ? b->content + at : b->host[block] + in_block,
               write ? b->host[block] + in_block : b->content + at, n);
    }
    return compare(c, b);
}

ds_status accel_conform_disks(accel_conform *c)
{
    bench b = {.fd = -1};
    DS_TRY(c->accel->disks->check(c->device, c->ctx));
    ds_status status = make(c, &b);
    status = status < 0 ? status : run(c, &b);
    drop(c, &b);
    return status;
}
