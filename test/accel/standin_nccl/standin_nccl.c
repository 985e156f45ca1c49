/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for NVIDIA's libnccl.so.2 over the stand-in of the driver (standin/), between
 * processes of one machine: what NCCL's documentation says of the functions that nccl_api.h lists,
 * for communicators that do not block. A pair of ranks has a channel of a few hundred bytes in
 * shared memory; operations of a group move together, a piece a turn, each pair's in their order.
 * What is queued on a stream runs late, and not before ncclCommGetAsyncError has said some times
 * that the group is in progress: an event recorded before is passed too early.
 *
 * DS_NCCL_STANDIN="rank=R,fail=N" or "rank=R,hang=N": in rank R the N-th group of operations, from
 * 1, is an asynchronous error, or never ends. standin_nccl_sent: a sum over what this process has
 * sent, whatever the order.
 */
#include "accel/cuda/driver/nccl_api.h"
#include "accel/standin/standin.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { CHANNEL = 300, MOST_RANKS = 16, PROGRESS = 3 };

typedef struct channel {
    _Atomic uint64_t written, read;
    unsigned char bytes[CHANNEL];
} channel;

typedef struct world {
    _Atomic uint32_t n_there;
    _Atomic bool aborted;
    channel channels[MOST_RANKS][MOST_RANKS]; /* from, to */
} world;

typedef enum move_kind { SEND, RECEIVE, KEEP } move_kind;

typedef struct move {
    move_kind kind;
    uint32_t peer;
    const unsigned char *from;
    unsigned char *to;
    size_t bytes, done;
} move;

typedef struct batch {
    struct ncclComm *comm;
    dsc_cu_stream stream;
    move *moves;
    uint32_t n, capacity;
    uint64_t number; /* of its communicator's groups */
    bool hangs;
} batch;

struct ncclComm {
    world *world;
    uint32_t rank, size;
    char name[64];
    uint32_t in_progress; /* times that a question is answered so */
    batch *pending;       /* a group that is not queued yet */
    uint32_t n_batches;
    uint64_t n_groups;
    dsc_nccl_result error;
    bool aborted, finalized;
    bool gone;             /* destroyed or aborted: it may not be named any more */
    struct ncclComm *next; /* of those that are gone, kept to know them */
};

#define X(type, member, symbol, params) STANDIN_API type symbol params;
DSC_NCCL_LIST(X)
#undef X

static struct ncclComm *all_gone;
static const char *last = "";
static _Thread_local int depth;
static _Thread_local batch *open_batch;
static _Atomic uint64_t sent;

STANDIN_API uint64_t standin_nccl_sent(void);

uint64_t standin_nccl_sent(void)
{
    return sent;
}

dsc_nccl_result ncclGetVersion(int *version_out)
{
    *version_out = 22809;
    return DSC_NCCL_SUCCESS;
}

const char *ncclGetErrorString(dsc_nccl_result result)
{
    return result == DSC_NCCL_SUCCESS            ? "no error"
           : result == DSC_NCCL_INVALID_ARGUMENT ? "invalid argument"
           : result == DSC_NCCL_INVALID_USAGE    ? "invalid usage"
           : result == DSC_NCCL_REMOTE_ERROR ? "remote process exited or there was a network error"
           : result == DSC_NCCL_INTERNAL_ERROR ? "internal error"
                                               : "unhandled cuda error";
}

const char *ncclGetLastError(dsc_nccl_comm c)
{
    (void)c;
    return last;
}

/* What the reference forbids and the library does not notice: it reads memory that is free. */
static void must_be_there(const struct ncclComm *c, const char *call)
{
    if (c->gone) {
        (void)fprintf(stderr, "stand-in: %s of a communicator that was destroyed\n", call);
        abort();
    }
}

/* ---- communicators ------------------------------------------------------------------------- */

dsc_nccl_result ncclGetUniqueId(dsc_nccl_id *id_out)
{
    static _Atomic uint32_t n;
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    memset(id_out, 0, sizeof *id_out);
    (void)snprintf(id_out->bytes, sizeof id_out->bytes, "/ds_nccl_%ld_%u_%lld%ld", (long)getpid(),
                   n++, (long long)t.tv_sec, t.tv_nsec);
    return DSC_NCCL_SUCCESS;
}

static world *map(const char *name)
{
    const int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, (off_t)sizeof(world)) != 0) {
        return NULL;
    }
    void *at = mmap(NULL, sizeof(world), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    return at != MAP_FAILED ? at : NULL;
}

dsc_nccl_result ncclCommInitRankConfig(dsc_nccl_comm *comm_out, int n_ranks, dsc_nccl_id id,
                                       int rank, dsc_nccl_config *config)
{
    if (!standin_has_context() || config == NULL || config->size != sizeof *config ||
        config->magic != DSC_NCCL_CONFIG_MAGIC || config->version != DSC_NCCL_CONFIG_VERSION ||
        config->blocking != 0 || n_ranks < 1 || n_ranks > MOST_RANKS || rank < 0 ||
        rank >= n_ranks || id.bytes[0] != '/') {
        return DSC_NCCL_INVALID_ARGUMENT;
    }
    struct ncclComm *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return DSC_NCCL_INTERNAL_ERROR;
    }
    c->rank = (uint32_t)rank;
    c->size = (uint32_t)n_ranks;
    (void)snprintf(c->name, sizeof c->name, "%.63s", id.bytes);
    c->world = map(c->name);
    if (c->world == NULL) {
        free(c);
        return DSC_NCCL_INTERNAL_ERROR;
    }
    atomic_fetch_add(&c->world->n_there, 1);
    c->in_progress = PROGRESS;
    *comm_out = c;
    return DSC_NCCL_IN_PROGRESS;
}

static void leave(struct ncclComm *c)
{
    (void)shm_unlink(c->name);
    c->gone = true;
    c->next = all_gone;
    all_gone = c;
}

static void release(struct ncclComm *c)
{
    if (c->n_batches == 0) {
        (void)munmap(c->world, sizeof *c->world);
        c->world = NULL;
    }
}

/* What is queued ends first; ncclCommGetAsyncError says when. */
dsc_nccl_result ncclCommFinalize(dsc_nccl_comm c)
{
    must_be_there(c, "ncclCommFinalize");
    if (c->finalized || c->in_progress > 0 || c->pending != NULL || c->n_batches > 0) {
        return DSC_NCCL_INVALID_USAGE; /* here: all has been waited for */
    }
    c->finalized = true;
    c->in_progress = PROGRESS;
    return DSC_NCCL_IN_PROGRESS;
}

/* It may be in progress, of a communicator that does not block, and yet nothing may ask for its
 * end. */
dsc_nccl_result ncclCommDestroy(dsc_nccl_comm c)
{
    must_be_there(c, "ncclCommDestroy");
    if (c->n_batches > 0 || c->pending != NULL || (c->finalized && c->in_progress > 0)) {
        return DSC_NCCL_INVALID_USAGE;
    }
    leave(c);
    release(c);
    return DSC_NCCL_IN_PROGRESS;
}

/* What is queued ends at its next turn. */
dsc_nccl_result ncclCommAbort(dsc_nccl_comm c)
{
    must_be_there(c, "ncclCommAbort");
    c->aborted = true;
    c->world->aborted = true;
    leave(c);
    if (c->pending != NULL) {
        free(c->pending->moves);
        free(c->pending);
        c->n_batches -= 1;
    }
    release(c);
    return DSC_NCCL_SUCCESS;
}

/* ---- what is queued ------------------------------------------------------------------------ */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* A byte of a move that sends it: which group of the communicator's, where. */
static void note_sent(const batch *b, const move *m, size_t at)
{
    uint64_t x = (b->number * 0x9e3779b97f4a7c15u) ^ ((uint64_t)(m - b->moves) << 48) ^
                 ((uint64_t)at << 8) ^ m->from[at];
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    sent += x ^ (x >> 31);
}

/* A piece; whether all of it is done. */
static bool advance(const batch *b, move *m)
{
    const struct ncclComm *c = b->comm;
    if (m->kind == KEEP) {
        if (m->to != m->from) {
            memmove(m->to, m->from, m->bytes);
        }
        m->done = m->bytes;
        return true;
    }
    const bool sends = m->kind == SEND;
    channel *ch =
        sends ? &c->world->channels[c->rank][m->peer] : &c->world->channels[m->peer][c->rank];
    const uint64_t written = atomic_load(&ch->written);
    const uint64_t read = atomic_load(&ch->read);
    const size_t room = sends ? CHANNEL - (size_t)(written - read) : (size_t)(written - read);
    const size_t n = least(room, m->bytes - m->done);
    for (size_t i = 0; i < n; ++i) {
        if (sends) {
            ch->bytes[(written + i) % CHANNEL] = m->from[m->done + i];
            note_sent(b, m, m->done + i);
        } else {
            m->to[m->done + i] = ch->bytes[(read + i) % CHANNEL];
        }
    }
    m->done += n;
    atomic_store(sends ? &ch->written : &ch->read, (sends ? written : read) + n);
    return m->done == m->bytes;
}

/* A turn of a group. */
static bool turn(const void *args)
{
    batch *b = NULL;
    memcpy(&b, args, sizeof b);
    bool blocked[2][MOST_RANKS] = {{false}};
    bool all = !b->hangs;
    bool moved = false;
    for (uint32_t i = 0; i < b->n && !b->comm->aborted && !b->hangs; ++i) {
        move *m = &b->moves[i];
        bool *waits = m->kind == KEEP ? NULL : &blocked[m->kind == SEND ? 0 : 1][m->peer];
        const size_t before = m->done;
        if (m->done < m->bytes && (waits == NULL || !*waits) && !advance(b, m)) {
            *waits = true;
        }
        moved = moved || m->done > before;
        all = all && m->done == m->bytes;
    }
    if (!all && !b->comm->aborted) {
        if (!moved) {
            (void)sched_yield(); /* to the process that has to come */
        }
        return false;
    }
    b->comm->n_batches -= 1;
    if (b->comm->aborted) {
        release(b->comm);
    }
    free(b->moves);
    free(b);
    return true;
}

static uint64_t option(const char *key)
{
    const char *options = getenv("DS_NCCL_STANDIN");
    const char *at = options != NULL ? strstr(options, key) : NULL;
    return at != NULL ? strtoull(at + strlen(key), NULL, 10) : UINT64_MAX;
}

dsc_nccl_result ncclCommGetAsyncError(dsc_nccl_comm c, dsc_nccl_result *result_out)
{
    must_be_there(c, "ncclCommGetAsyncError");
    const bool there = atomic_load(&c->world->n_there) >= c->size;
    c->in_progress -= there && c->in_progress > 0 ? 1 : 0;
    if (c->in_progress == 0 && c->pending != NULL && c->error == DSC_NCCL_SUCCESS) {
        batch *b = c->pending;
        c->pending = NULL;
        if (standin_call(b->stream, turn, &b, sizeof b) != DSC_CU_SUCCESS) {
            c->error = DSC_NCCL_UNHANDLED_CUDA_ERROR;
        }
    }
    *result_out = c->error != DSC_NCCL_SUCCESS      ? c->error
                  : atomic_load(&c->world->aborted) ? DSC_NCCL_REMOTE_ERROR
                  : c->in_progress > 0 || !there    ? DSC_NCCL_IN_PROGRESS
                                                    : DSC_NCCL_SUCCESS;
    return DSC_NCCL_SUCCESS;
}

/* ---- operations ---------------------------------------------------------------------------- */

dsc_nccl_result ncclGroupStart(void)
{
    depth += 1;
    return DSC_NCCL_SUCCESS;
}

dsc_nccl_result ncclGroupEnd(void)
{
    if (depth == 0 || --depth > 0 || open_batch == NULL) {
        return depth == 0 && open_batch == NULL ? DSC_NCCL_SUCCESS : DSC_NCCL_INVALID_USAGE;
    }
    struct ncclComm *c = open_batch->comm;
    c->n_groups += 1;
    if (option("rank=") == c->rank && option("fail=") == c->n_groups) {
        c->error = DSC_NCCL_INTERNAL_ERROR;
        last = "Call to ibv_reg_mr failed";
    }
    open_batch->hangs = option("rank=") == c->rank && option("hang=") == c->n_groups;
    open_batch->number = c->n_groups;
    c->pending = open_batch;
    c->n_batches += 1;
    c->in_progress = PROGRESS;
    open_batch = NULL;
    return DSC_NCCL_IN_PROGRESS;
}

static dsc_nccl_result put(struct ncclComm *c, dsc_cu_stream stream, const move *m)
{
    must_be_there(c, "an operation");
    if (depth == 0 || c->in_progress > 0 || c->pending != NULL || c->finalized ||
        (open_batch != NULL && (open_batch->comm != c || open_batch->stream != stream))) {
        return DSC_NCCL_INVALID_USAGE; /* single operations are not used */
    }
    if ((m->kind != RECEIVE && !standin_is_device(m->from, m->bytes)) ||
        (m->kind != SEND && !standin_is_device(m->to, m->bytes)) || m->peer >= c->size) {
        return DSC_NCCL_INVALID_ARGUMENT;
    }
    if (open_batch == NULL) {
        open_batch = calloc(1, sizeof *open_batch);
        if (open_batch == NULL) {
            return DSC_NCCL_INTERNAL_ERROR;
        }
        open_batch->comm = c;
        open_batch->stream = stream;
    }
    if (open_batch->n == open_batch->capacity) {
        open_batch->capacity = 2 * open_batch->capacity + 16;
        open_batch->moves =
            realloc(open_batch->moves, open_batch->capacity * sizeof *open_batch->moves);
        if (open_batch->moves == NULL) {
            abort();
        }
    }
    open_batch->moves[open_batch->n++] = *m;
    return DSC_NCCL_SUCCESS;
}

dsc_nccl_result ncclSend(const void *from, size_t count, int type, int peer, dsc_nccl_comm c,
                         dsc_cu_stream stream)
{
    return type != DSC_NCCL_UINT8
               ? DSC_NCCL_INVALID_ARGUMENT
               : put(c, stream,
                     &(move){.kind = SEND, .peer = (uint32_t)peer, .from = from, .bytes = count});
}

dsc_nccl_result ncclRecv(void *to, size_t count, int type, int peer, dsc_nccl_comm c,
                         dsc_cu_stream stream)
{
    return type != DSC_NCCL_UINT8
               ? DSC_NCCL_INVALID_ARGUMENT
               : put(c, stream,
                     &(move){.kind = RECEIVE, .peer = (uint32_t)peer, .to = to, .bytes = count});
}

dsc_nccl_result ncclAllGather(const void *from, void *to, size_t count, int type, dsc_nccl_comm c,
                              dsc_cu_stream stream)
{
    unsigned char *out = to;
    dsc_nccl_result result =
        put(c, stream,
            &(move){.kind = KEEP, .from = from, .to = out + c->rank * count, .bytes = count});
    for (int r = 0; r < (int)c->size && result == DSC_NCCL_SUCCESS; ++r) {
        if (r != (int)c->rank) {
            result = ncclSend(from, count, type, r, c, stream);
            result = result == DSC_NCCL_SUCCESS
                         ? ncclRecv(out + (size_t)r * count, count, type, r, c, stream)
                         : result;
        }
    }
    return result;
}

dsc_nccl_result ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                              dsc_nccl_comm c, dsc_cu_stream stream)
{
    if (root != (int)c->rank) {
        return ncclRecv(to, count, type, root, c, stream);
    }
    dsc_nccl_result result =
        put(c, stream, &(move){.kind = KEEP, .from = from, .to = to, .bytes = count});
    for (int r = 0; r < (int)c->size && result == DSC_NCCL_SUCCESS; ++r) {
        result = r != root ? ncclSend(from, count, type, r, c, stream) : result;
    }
    return result;
}
