/* SPDX-License-Identifier: Apache-2.0 */
/* Doorbells of processes, sleeping, and who is dead. See shm_layout.h.
 *
 * The order that makes it safe: a rank changes a counter, then looks for sleepers; a sleeper makes
 * itself known, then looks at the counters once more. Both are sequentially consistent.
 */
#include "comm/shm_impl.h"

#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { SLEEP_NANOSECONDS = 50000000 };

void shm_relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

static void ring(const shm_comm *world, uint32_t world_rank)
{
    shm_bell *bell = &shm_block_of(world, world_rank)->bell;
    if (atomic_load(&bell->n_sleepers) > 0) {
        atomic_fetch_add(&bell->rings, 1);
        (void)syscall(SYS_futex, &bell->rings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

void shm_ring(const shm_comm *comm, uint32_t rank)
{
    ring(comm->job->world, comm->world_rank[rank]);
}

void shm_ring_all(const shm_comm *comm)
{
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        if (r != comm->head.rank) {
            shm_ring(comm, r);
        }
    }
}

uint32_t shm_bell_begin(shm_job *job)
{
    shm_bell *bell = &shm_own(job->world)->bell;
    atomic_fetch_add(&bell->n_sleepers, 1);
    return atomic_load(&bell->rings);
}

void shm_sleep(shm_job *job, uint32_t rings)
{
    const struct timespec span = {0, SLEEP_NANOSECONDS};
    (void)syscall(SYS_futex, &shm_own(job->world)->bell.rings, FUTEX_WAIT, rings, &span, NULL, 0);
}

void shm_bell_end(shm_job *job)
{
    atomic_fetch_sub(&shm_own(job->world)->bell.n_sleepers, 1);
}

const char *shm_process_state(int64_t pid)
{
    char path[64];
    char text[512];
    (void)snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "re");
    const size_t n = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL) {
        (void)fclose(file);
    }
    text[n] = '\0';
    const char *name_end = strrchr(text, ')');
    switch (name_end != NULL && name_end[1] == ' ' ? name_end[2] : '?') {
    case 'R':
        return "running";
    case 'S':
        return "sleeping";
    case 'D':
        return "waiting for a device";
    case 'T':
    case 't':
        return "stopped by a signal";
    case 'Z':
    case 'X':
        return "dead";
    default:
        return "";
    }
}

bool shm_is_dead(shm_job *job, uint32_t world_rank)
{
    const shm_block *block = shm_block_of(job->world, world_rank);
    if (block->pid_space != shm_own(job->world)->pid_space) {
        return false; /* its number means nothing here: only time will tell */
    }
    if (job->pidfds[world_rank] >= 0) {
        struct pollfd ended = {.fd = job->pidfds[world_rank], .events = POLLIN};
        return poll(&ended, 1, 0) == 1 && (ended.revents & POLLIN) != 0;
    }
    const char *state = shm_process_state(block->pid);
    return state[0] == '\0' || strcmp(state, "dead") == 0;
}
