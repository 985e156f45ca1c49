/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the shared-memory communicator: the process's side of a group. Shared by shm_*.c.
 *
 * Invariants (docs/internals/comm.md explains them):
 *  1. Collectives of a group have numbers 1, 2, …; n_done <= n_posted <= n_started. They are
 *     announced and worked on in that order on every rank; messages of each channel likewise.
 *  2. Slot n % SHM_SLOTS of a rank is written for collective n only when every rank's `done`
 *     is at least n - SHM_SLOTS.
 *  3. `done` = n means: this rank reads nothing of collective n any more and has written what it
 *     writes into others' memory.
 *  4. Staged chunks have numbers 0, 1, … over all collectives; buffer g % 2 is written for chunk g
 *     only when every rank has `got` at least g - 1 chunks.
 *  5. A communicator's fields are touched with its lock held: a wait moves every communicator of
 *     the process that no other thread holds.
 */
#ifndef DSI_COMM_SHM_IMPL_H
#define DSI_COMM_SHM_IMPL_H

#include "comm/reduce.h"
#include "comm/shm.h"
#include "comm/shm_layout.h"
#include <pthread.h>

enum { SHM_OPS = 256 /* started and not waited for */, SHM_PARKED = 64 };

typedef struct shm_comm shm_comm;

/* Symmetric memory: one descriptor mapped by all, rank r's part at r * stride. */
typedef struct shm_region {
    char *base;
    size_t stride, bytes;
} shm_region;

typedef struct shm_op {
    dsi_comm_call call;
    uint64_t number; /* of its kind; 0: free */
    uint64_t digest;
    double begin, arrived, end;
    shm_mode mode;
    bool complete;
    size_t data_begin; /* all-to-all: of operands beside the announcement, in bytes */
    /* SHM_MODE_PLACE: */
    bool push; /* all-reduce: results are written into everybody's `out` */
    /* SHM_MODE_STAGED: */
    uint64_t first_chunk, n_chunks; /* global numbers */
    uint64_t put, summed, got;      /* chunks of this call */
    size_t chunk_elements, total;   /* of a chunk; of the whole stream */
    uint32_t cursor_part[3];        /* where the three steps are: part … */
    size_t cursor_base[3];          /* … and its first position in the stream */
} shm_op;

/* A message in progress. */
typedef struct shm_pair_op {
    dsi_comm_call call;
    uint64_t number; /* of the channel, from 1; 0: free */
    uint64_t digest;
    double begin, arrived, end;
    size_t total, moved; /* elements */
    shm_mode mode;
    bool posted, complete;
    uint32_t cursor_part;
    size_t cursor_base;
} shm_pair_op;

/* What the communicators of one meeting share in this process. */
typedef struct shm_job {
    uint32_t rank, size;
    int socket;
    uint64_t token; /* in every datagram */
    char job_hash[33];
    bool crowded; /* more ranks than cores: do not spin */
    bool pull;    /* every rank may read and write the memory of every other */
    int *pidfds;  /* [size], -1 unknown */
    shm_comm *world;
    pthread_mutex_t lock; /* guards the list of communicators and the parked descriptors */
    shm_comm *first;
    uint32_t n_users;
    struct {
        uint64_t tag;
        int fd;
    } parked[SHM_PARKED];
} shm_job;

struct shm_comm {
    dsi_comm head;
    shm_job *job;
    shm_comm *parent, *next;
    uint64_t id, n_splits;
    uint32_t *world_rank; /* [size] */
    uint32_t *index_of;   /* [job->size] rank in this group of each rank of the job; UINT32_MAX */
    char *base;           /* the mapping */
    size_t base_bytes;
    shm_head *shared;
    shm_region region;
    atomic_flag lock;
    char *scratch;       /* of calls that pull; NULL: not allowed */
    double unread_since; /* when a rank's memory could not be read; 0: never */
    uint32_t unread_rank;
    int unread_error;
    bool failed;
    char reason[1024];
    /* collectives */
    uint64_t n_started, n_posted, n_done, known_done, n_chunks;
    shm_op ops[SHM_OPS];
    /* messages */
    uint64_t n_pairs, oldest_pair; /* tickets given; the first that may be in progress */
    struct shm_traffic {           /* with each other rank */
        uint64_t n_sent, n_handed; /* messages started; handed over */
        uint64_t n_received;
        uint64_t known_taken; /* at least so many of those handed over were taken */
        uint64_t chunks_out, chunks_in;
    } * traffic; /* [size] */
    shm_pair_op pairs[SHM_OPS];
};

static inline shm_block *shm_block_of(const shm_comm *comm, uint32_t rank)
{
    return (shm_block *)(comm->base + 4096 + shm_block_bytes(comm->head.size) * rank);
}

static inline shm_block *shm_own(const shm_comm *comm)
{
    return shm_block_of(comm, comm->head.rank);
}

/* ---- shm_meet.c: sockets and descriptors ---- */

ds_status shm_meet(ds_ctx *ctx, const dsi_shm_params *params, shm_job *job, int *fd_out);
/* A new descriptor of `bytes` zero bytes. */
ds_status shm_memory_create(ds_ctx *ctx, size_t bytes, int *fd_out);
/* The first rank of the group gives `fd` to the others under `tag`. */
ds_status shm_give(ds_ctx *ctx, shm_job *job, const uint32_t *world_ranks, uint32_t n, uint64_t tag,
                   int fd);
ds_status shm_receive(ds_ctx *ctx, shm_job *job, uint64_t tag, double timeout, int *fd_out);

/* ---- shm_map.c ---- */

#define SHM_LARGE_PAGE ((size_t)2 << 20)
/* Maps all of fd where a large page may begin, and closes it. */
ds_status shm_map(ds_ctx *ctx, int fd, size_t bytes, char **base_out);
/* Gives zeroed memory of this rank large pages, as far as it fills them; returns how many bytes
 * have them. *error_out: why no more, 0: they are all that fit. IN: memory begins where one may. */
size_t shm_enlarge_pages(char *memory, size_t bytes, int *error_out);
/* Makes the pages in which small calls meet: their first use would cost more than the call. */
void shm_touch_blocks(const shm_comm *comm);

/* ---- shm_wake.c: doorbells, sleeping, the dead ---- */

/* Wakes the members of the group that sleep (all but this rank; or one). */
void shm_ring_all(const shm_comm *comm);
void shm_ring(const shm_comm *comm, uint32_t rank);
void shm_relax(void);
/* Sleeps until the bell differs from `rings` or 50 ms have gone. */
void shm_sleep(shm_job *job, uint32_t rings);
uint32_t shm_bell_begin(shm_job *job); /* announces a sleeper; returns the bell's count */
void shm_bell_end(shm_job *job);
bool shm_is_dead(shm_job *job, uint32_t world_rank);
/* "stopped", "running", … as the system says; "" when unknown. */
const char *shm_process_state(int64_t pid);

/* ---- shm_fail.c: diagnosis ---- */

ds_status shm_disagree(shm_comm *comm, const dsi_call_info *mine, uint32_t other,
                       const dsi_call_info *theirs);
/* IN: the rank waits for collective `op` or message `pair` (one of them). Looks for an abort, for
 * dead and, when `late`, for missing ranks; fails the communicator when there are any. */
ds_status shm_look_around(shm_comm *comm, const shm_op *op, const shm_pair_op *pair, bool late);
ds_status shm_fail_comm(shm_comm *comm, const char *reason);
void shm_abort_job(shm_comm *comm, const char *reason);

/* ---- work: each returns whether anything moved ---- */

/* Parts as one stream of elements. `base` is the first position of part *part; both advance. */
typedef struct shm_segment {
    uint32_t part;
    size_t offset, count; /* inside of the part */
} shm_segment;

typedef size_t (*shm_length_fn)(const dsi_comm_call *call, uint32_t part, uint32_t size);
shm_segment shm_next_segment(const dsi_comm_call *call, uint32_t size, shm_length_fn length,
                             uint32_t *part, size_t *base, size_t position, size_t most);
size_t shm_part_length(const dsi_comm_call *call, uint32_t part, uint32_t size);
size_t shm_slice_length(const dsi_comm_call *call, uint32_t part, uint32_t size);
size_t shm_stream_length(const dsi_comm_call *call, uint32_t size, shm_length_fn length);

/* Inline: write beside the announcement at the start; read when all are there. */
void shm_inline_write(const shm_comm *comm, const shm_op *op, unsigned char *to);
void shm_inline_work(shm_comm *comm, shm_op *op);
/* In place: addresses in symmetric memory in a form for other ranks. */
#define SHM_NOWHERE UINT64_MAX
uint64_t shm_encode(const shm_comm *comm, const void *address, size_t bytes);
char *shm_decode(const shm_comm *comm, uint32_t rank, uint64_t code);
/* Words beside the announcement before the addresses: totals and counts of an all-to-all. */
size_t shm_table_begin(const shm_comm *comm, const dsi_comm_call *call);
void shm_place_work(shm_comm *comm, shm_op *op);
/* Pulled. Write: the addresses of the operands. */
void shm_pull_write(const shm_comm *comm, const dsi_comm_call *call, uint64_t *to);
ds_status shm_pull_work(shm_comm *comm, shm_op *op, bool *finished_out);
ds_status shm_pull_message(shm_comm *comm, const dsi_comm_call *call, const uint64_t *table,
                           bool *done_out);
/* Whether the eight bytes at an address of another rank can be read and written, and are those. */
bool shm_pull_try(const shm_comm *world, uint32_t rank, uint64_t address, uint64_t expected);
/* Staged. */
void shm_staged_begin(shm_comm *comm, shm_op *op);
bool shm_staged_work(shm_comm *comm, shm_op *op, bool *finished_out);
/* Messages. */
ds_status shm_pair_start(shm_comm *comm, const dsi_comm_call *call, uint64_t *number_out);
ds_status shm_pair_progress(shm_comm *comm, bool *moved);

/* ---- shm_open.c: groups and their memory ---- */

extern const dsi_transport dsi_shm_transport;
ds_status shm_split(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out);
ds_status shm_symmetric(dsi_comm *comm, size_t bytes, void **memory_out);
void shm_destroy(dsi_comm *comm);

#endif
