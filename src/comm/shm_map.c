/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings of shared memory: where they lie, in which pages, which of them are there before use.
 * Called by shm_open.c.
 *
 * Large pages and pages in advance are for speed alone: where the system refuses, memory is what
 * it was without. Who refuses what: madvise(2), MADV_COLLAPSE and MADV_POPULATE_WRITE.
 */
#include "comm/shm_impl.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

enum { KNOWN_RANKS = 16 /* of a group whose blocks are mapped in advance */ };

/* A shared mapping that begins where a large page may: a place is reserved that has one in it. */
static void *map_aligned(int fd, size_t bytes)
{
    char *room = mmap(NULL, bytes + SHM_LARGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) {
        return MAP_FAILED;
    }
    const size_t before = (size_t)(-(uintptr_t)room % SHM_LARGE_PAGE);
    void *base = mmap(room + before, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    const int error = errno;
    if (base == MAP_FAILED) {
        (void)munmap(room, bytes + SHM_LARGE_PAGE);
        errno = error;
        return MAP_FAILED;
    }
    if (before > 0) {
        (void)munmap(room, before);
    }
    const size_t end = (bytes + 4095) / 4096 * 4096;
    if (before + end < bytes + SHM_LARGE_PAGE) {
        (void)munmap(room + before + end, SHM_LARGE_PAGE + bytes - before - end);
    }
    return base;
}

ds_status shm_map(ds_ctx *ctx, int fd, size_t bytes, char **base_out)
{
    struct stat file;
    const bool whole = fstat(fd, &file) == 0 && (size_t)file.st_size == bytes;
    void *base = whole ? map_aligned(fd, bytes) : MAP_FAILED;
    const int error = errno;
    (void)close(fd);
    if (base == MAP_FAILED) {
        return ds_fail(ctx, whole ? DS_ERR_NOMEM : DS_ERR_PEER, "%zu bytes of shared memory: %s",
                       bytes, whole ? strerror(error) : "the ranks disagree about the size");
    }
    *base_out = base;
    return DS_OK;
}

size_t shm_enlarge_pages(char *memory, size_t bytes, int *error_out)
{
    *error_out = 0;
    for (size_t at = 0; bytes - at >= SHM_LARGE_PAGE; at += SHM_LARGE_PAGE) {
        memory[at] = 0; /* of a page that has nothing yet none is made */
        if (madvise(memory + at, SHM_LARGE_PAGE, MADV_COLLAPSE) != 0) {
            *error_out = errno;
            return at;
        }
    }
    return bytes / SHM_LARGE_PAGE * SHM_LARGE_PAGE;
}

void shm_touch_blocks(const shm_comm *comm)
{
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        if (r == comm->head.rank || comm->head.size <= KNOWN_RANKS) {
            (void)madvise(shm_block_of(comm, r), offsetof(shm_block, stage_in),
                          MADV_POPULATE_WRITE);
        }
    }
}
