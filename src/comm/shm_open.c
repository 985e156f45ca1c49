/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of the shared-memory communicator: the first, those split from it, symmetric memory. */
#include "base/clock.h"
#include "comm/shm_impl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return (hash ^ hash >> 30) | 2; /* a tag: not 0, not 1 */
}

static void free_job(shm_job *job)
{
    for (uint32_t r = 0; r < job->size && job->pidfds != NULL; ++r) {
        if (job->pidfds[r] >= 0) {
            (void)close(job->pidfds[r]);
        }
    }
    for (uint32_t i = 0; i < SHM_PARKED; ++i) {
        if (job->parked[i].tag != 0) {
            (void)close(job->parked[i].fd);
        }
    }
    if (job->socket >= 0) {
        (void)close(job->socket);
    }
    (void)pthread_mutex_destroy(&job->lock);
    free(job->pidfds);
    free(job);
}

static void free_comm(shm_comm *comm)
{
    if (comm->base != NULL) {
        (void)munmap(comm->base, comm->base_bytes);
    }
    if (comm->region.base != NULL) {
        (void)munmap(comm->region.base, comm->region.stride * comm->head.size);
    }
    free(comm->scratch);
    free(comm->world_rank);
    free(comm->index_of);
    free(comm->traffic);
    free(comm);
}

/* A communicator without memory yet. members[size]: ranks of the job. */
static ds_status make_comm(ds_ctx *ctx, shm_job *job, const uint32_t *members, uint32_t size,
                           uint32_t rank, double timeout, shm_comm **comm_out)
{
    shm_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a communicator");
    }
    comm->head = (dsi_comm){.transport = &dsi_shm_transport,
                            .ctx = ctx,
                            .rank = rank,
                            .size = size,
                            .timeout = timeout};
    comm->job = job;
    atomic_flag_clear(&comm->lock);
    comm->world_rank = calloc(size, sizeof *comm->world_rank);
    comm->index_of = calloc(job->size, sizeof *comm->index_of);
    comm->traffic = calloc(size, sizeof *comm->traffic);
    if (comm->world_rank == NULL || comm->index_of == NULL || comm->traffic == NULL) {
        free_comm(comm);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a communicator of %u ranks", size);
    }
    memset(comm->index_of, 0xff, job->size * sizeof *comm->index_of);
    for (uint32_t r = 0; r < size; ++r) {
        comm->world_rank[r] = members[r];
        comm->index_of[members[r]] = r;
    }
    *comm_out = comm;
    return DS_OK;
}

static ds_status map_group(shm_comm *comm, int fd)
{
    comm->base_bytes = shm_group_bytes(comm->head.size);
    DS_TRY(shm_map(comm->head.ctx, fd, comm->base_bytes, &comm->base));
    comm->shared = (shm_head *)(void *)comm->base;
    shm_touch_blocks(comm);
    return DS_OK;
}

/* For what is pulled and then summed; no page is touched before. */
static ds_status make_scratch(shm_comm *comm)
{
    if (comm->job->pull && comm->head.size > 1) {
        comm->scratch = malloc(SHM_SCRATCH);
        if (comm->scratch == NULL) {
            return ds_fail(comm->head.ctx, DS_ERR_NOMEM, "no memory for a communicator");
        }
    }
    return DS_OK;
}

static void enlist(shm_comm *comm)
{
    (void)pthread_mutex_lock(&comm->job->lock);
    comm->next = comm->job->first;
    comm->job->first = comm;
    ++comm->job->n_users;
    (void)pthread_mutex_unlock(&comm->job->lock);
}

void shm_destroy(dsi_comm *head)
{
    shm_comm *comm = (shm_comm *)head;
    shm_job *job = comm->job;
    (void)pthread_mutex_lock(&job->lock);
    for (shm_comm **link = &job->first; *link != NULL; link = &(*link)->next) {
        if (*link == comm) {
            *link = comm->next;
            break;
        }
    }
    const bool last = --job->n_users == 0;
    atomic_store(&shm_own(comm)->left, 1);
    shm_ring_all(comm);
    (void)pthread_mutex_unlock(&job->lock);
    free_comm(comm);
    if (last) {
        free_job(job);
    }
}

/* Memory that the group's first rank makes and gives to the others. */
static ds_status share_memory(shm_comm *comm, uint64_t tag, size_t bytes, int *fd_out)
{
    ds_ctx *ctx = comm->head.ctx;
    if (comm->head.rank > 0) {
        return shm_receive(ctx, comm->job, tag, comm->head.timeout, fd_out);
    }
    int fd = -1;
    DS_TRY(shm_memory_create(ctx, bytes, &fd));
    const ds_status status = shm_give(ctx, comm->job, comm->world_rank, comm->head.size, tag, fd);
    if (status < 0) {
        (void)close(fd);
        return status;
    }
    *fd_out = fd;
    return DS_OK;
}

/* Each rank gives `n` words, out gets those of all. */
static ds_status gather_words(shm_comm *comm, int64_t *words, size_t n, int64_t *out,
                              const char *what)
{
    const dsi_comm_part part = {.in = words, .out = out, .count = n * comm->head.size};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_GATHER,
                                .dtype = DS_DTYPE_I64,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = what};
    return dsi_comm_run(&comm->head, &call);
}

/* The ranks of `color` in the order of key, then rank; returns their number and this rank's place.
 */
static uint32_t find_members(const shm_comm *comm, const int64_t *asked, uint32_t color,
                             uint32_t *members, uint32_t *place_out)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        if (asked[2 * r] != (int64_t)color) {
            continue;
        }
        uint32_t at = n++;
        for (; at > 0 && asked[2 * members[at - 1] + 1] > asked[2 * r + 1]; --at) {
            members[at] = members[at - 1];
        }
        members[at] = r;
    }
    for (uint32_t i = 0; i < n; ++i) {
        *place_out = members[i] == comm->head.rank ? i : *place_out;
        members[i] = comm->world_rank[members[i]];
    }
    return n;
}

ds_status shm_split(dsi_comm *head, uint32_t color, uint32_t key, dsi_comm **comm_out)
{
    shm_comm *parent = (shm_comm *)head;
    int64_t mine[2] = {color, key};
    int64_t asked[2 * DSI_SHM_MAX_RANKS];
    uint32_t members[DSI_SHM_MAX_RANKS];
    uint32_t place = 0;
    DS_TRY(gather_words(parent, mine, 2, asked, "split"));
    const uint64_t id = mix(mix(parent->id, ++parent->n_splits), color);
    if (color == DSI_COLOR_NONE) {
        *comm_out = NULL;
        return DS_OK;
    }
    const uint32_t n = find_members(parent, asked, color, members, &place);
    shm_comm *comm = NULL;
    int fd = -1;
    DS_TRY(make_comm(head->ctx, parent->job, members, n, place, head->timeout, &comm));
    comm->parent = parent;
    comm->id = id;
    comm->head.pool = head->pool;
    (void)pthread_mutex_lock(&parent->job->lock);
    ds_status status = share_memory(comm, id, shm_group_bytes(n), &fd);
    (void)pthread_mutex_unlock(&parent->job->lock);
    if (status == DS_OK) {
        status = map_group(comm, fd);
    }
    if (status < 0) {
        free_comm(comm);
        return status;
    }
    status = make_scratch(comm);
    if (status < 0) {
        free_comm(comm);
        return status;
    }
    enlist(comm);
    *comm_out = &comm->head;
    return DS_OK;
}

ds_status shm_symmetric(dsi_comm *head, size_t bytes, void **memory_out)
{
    shm_comm *comm = (shm_comm *)head;
    int64_t mine = (int64_t)bytes;
    int64_t asked[DSI_SHM_MAX_RANKS];
    const size_t most = (SIZE_MAX >> 8) / DSI_SHM_MAX_RANKS;
    DS_TRY(gather_words(comm, &mine, 1, asked, "symmetric memory"));
    for (uint32_t r = 0; r < head->size; ++r) {
        if (asked[r] != mine || bytes > most) {
            return ds_fail(head->ctx, DS_ERR_PEER,
                           "symmetric memory: rank %u asks for %lld bytes, rank %u for %zu", r,
                           (long long)asked[r], head->rank, bytes);
        }
    }
    const size_t unit = bytes >= SHM_LARGE_PAGE ? SHM_LARGE_PAGE : 4096;
    const size_t stride = (bytes + unit - 1) / unit * unit;
    int fd = -1;
    char *base = NULL;
    (void)pthread_mutex_lock(&comm->job->lock);
    const ds_status status =
        share_memory(comm, mix(comm->id, UINT64_C(0x73796d)), stride * head->size, &fd);
    (void)pthread_mutex_unlock(&comm->job->lock);
    DS_TRY(status);
    DS_TRY(shm_map(head->ctx, fd, stride * head->size, &base));
    (void)madvise(base, stride * head->size, MADV_HUGEPAGE); /* a wish */
    int error = 0;
    const size_t large = shm_enlarge_pages(base + stride * head->rank, bytes, &error);
    ds_log(head->ctx, DS_LOG_OBJECT, "symmetric memory: %zu bytes, %zu of them in large pages%s%s",
           bytes, large, error != 0 ? "; then: " : "", error != 0 ? strerror(error) : "");
    comm->region = (shm_region){base, stride, bytes};
    head->memory = base + stride * head->rank;
    head->memory_bytes = bytes;
    *memory_out = head->memory;
    return DS_OK;
}

static void introduce(const shm_comm *world)
{
    shm_block *own = shm_own(world);
    struct stat space;
    own->pid = getpid();
    own->pid_space = stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
    CPU_ZERO(&own->cores);
    (void)sched_getaffinity(0, sizeof own->cores, &own->cores);
    atomic_store(&own->ready, 1);
}

static int open_pidfd(int64_t pid)
{
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, (int)pid, 0);
#else
    (void)pid;
    return -1;
#endif
}

/* Waits until every rank has mapped the memory; then learns who and where they are. */
static ds_status wait_for_all(shm_comm *world, double timeout)
{
    const double deadline = dsi_clock_seconds() + timeout;
    shm_job *job = world->job;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (uint32_t r = 0; r < job->size; ++r) {
        const shm_block *block = shm_block_of(world, r);
        while (atomic_load(&block->ready) == 0) {
            const struct timespec pause = {0, 200000};
            (void)nanosleep(&pause, NULL);
            if (timeout > 0.0 && dsi_clock_seconds() > deadline) {
                return ds_fail(world->head.ctx, DS_ERR_PEER,
                               "rank %u of this host came and went while the ranks met", r);
            }
        }
        CPU_OR(&cores, &cores, &block->cores);
        if (r != job->rank && block->pid_space == shm_own(world)->pid_space) {
            job->pidfds[r] = open_pidfd(block->pid);
        }
    }
    job->crowded = (uint32_t)CPU_COUNT(&cores) < job->size;
    return DS_OK;
}

/* Whether every rank can read and write a word of every other. The calls are this file's own:
 * numbers of calls in diagnoses begin anew. */
static ds_status find_pull(shm_comm *world, bool wanted)
{
    uint64_t word = mix(world->job->token, world->head.rank);
    int64_t mine[2] = {(int64_t)(uintptr_t)&word, (int64_t)word};
    int64_t all[2 * DSI_SHM_MAX_RANKS];
    int64_t works = wanted ? 1 : 0;
    DS_TRY(gather_words(world, mine, 2, all, "meeting"));
    for (uint32_t r = 0; r < world->head.size && works != 0; ++r) {
        works = shm_pull_try(world, r, (uint64_t)all[2 * r], (uint64_t)all[2 * r + 1]) ? 1 : 0;
    }
    DS_TRY(gather_words(world, &works, 1, all, "meeting"));
    world->job->pull = true;
    for (uint32_t r = 0; r < world->head.size; ++r) {
        world->job->pull = world->job->pull && all[r] != 0;
    }
    world->head.sequence = 0;
    return make_scratch(world);
}

static ds_status make_job(ds_ctx *ctx, const dsi_shm_params *params, shm_job **job_out)
{
    shm_job *job = calloc(1, sizeof *job);
    int *pidfds = calloc(params->size, sizeof *pidfds);
    if (job == NULL || pidfds == NULL) {
        free(job);
        free(pidfds);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a communicator");
    }
    memset(pidfds, 0xff, params->size * sizeof *pidfds);
    (void)pthread_mutex_init(&job->lock, NULL);
    job->rank = params->rank;
    job->size = params->size;
    job->socket = -1;
    job->pidfds = pidfds;
    *job_out = job;
    return DS_OK;
}

ds_status dsi_comm_shm_open(ds_ctx *ctx, const dsi_shm_params *params, dsi_comm **comm_out)
{
    if (params->size == 0 || params->size > DSI_SHM_MAX_RANKS || params->rank >= params->size ||
        params->job == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "rank %u of %u ranks over shared memory; 1 to %u ranks",
                       params->rank, params->size, DSI_SHM_MAX_RANKS);
    }
    shm_job *job = NULL;
    shm_comm *world = NULL;
    uint32_t members[DSI_SHM_MAX_RANKS];
    int fd = -1;
    for (uint32_t r = 0; r < params->size; ++r) {
        members[r] = r;
    }
    DS_TRY(make_job(ctx, params, &job));
    ds_status status = shm_meet(ctx, params, job, &fd);
    DS_TRY_GOTO(status, status, drop_job);
    DS_TRY_GOTO(status,
                make_comm(ctx, job, members, params->size, params->rank, params->timeout, &world),
                close_memory);
    world->id = 3;
    job->world = world;
    DS_TRY_GOTO(status, map_group(world, fd), drop_comm);
    introduce(world);
    DS_TRY_GOTO(status, wait_for_all(world, params->timeout), drop_comm);
    enlist(world);
    status = world->head.size > 1 ? find_pull(world, !params->no_pull) : DS_OK;
    if (status < 0) {
        shm_destroy(&world->head);
        return status;
    }
    *comm_out = &world->head;
    return DS_OK;

close_memory:
    (void)close(fd);
    goto drop_job;
drop_comm:
    free_comm(world);
drop_job:
    free_job(job);
    return status;
}
