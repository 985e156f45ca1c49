/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: a group of ranks, and the collectives among them, whatever carries the bytes.
 *
 * A call is started, then waited for; calls on one communicator are started by every rank of it in
 * the same order with the same kind, counts and types. A call carries a list of tensors (a bucket)
 * in one synchronisation. Sums follow LAW 4b: the contributions are converted to fp32,
 * added in the canonical order (aligned binary tree over rank index: ((0+1)+(2+3))+…; with 3 ranks
 * (0+1)+2), multiplied by `factor` in fp32, rounded once to the type. The result is the same bits
 * on every transport. F64 likewise, added in fp64. Integers wrap, their factor is 1. reduce.h
 * states NaN, zeros and MAX. With one rank and factor 1 a reduction is a copy.
 *
 * Thread rule: one thread at a time for a communicator and those split from it; a twin of it
 * (dsi_comm_twin) may be used by another. Starting and waiting allocate nothing
 * after the first call of each kind and size (staging is made by dsi_comm_reserve).
 */
#ifndef DSI_COMM_COMM_H
#define DSI_COMM_COMM_H

#include "base/pool.h"
#include <deepspeed/comm.h>
#include <deepspeed/context.h>
#include <deepspeed/tensor.h>

typedef struct dsi_comm dsi_comm;
typedef struct dsi_comm_log dsi_comm_log;
typedef struct dsi_rank_names dsi_rank_names; /* see rank_names.h */

typedef enum dsi_reduction { DSI_REDUCE_SUM, DSI_REDUCE_MAX } dsi_reduction;

/* One tensor of a call; `count` elements of the whole, P. Over N ranks a tensor is cut into equal
 * slices of S = ceil(P/N) elements: rank r owns [r·S, min((r+1)·S, P)); what lies beyond P is
 * padding, is never carried, and reads as zero.
 *
 *   ALL_REDUCE      in P -> out P (may be the same address)
 *   REDUCE_SCATTER  in P -> out S: the own slice, padding written as zero (out may be the own
 *                   slice's place inside of in)
 *   ALL_GATHER      in S: the own slice -> out P (in may lie at its place inside of out)
 *   BROADCAST       in P at the root (others: ignored) -> out P (the root may give out == in)
 *   ALL_TO_ALL      in: for each rank in order counts_in[rank] elements -> out: counts_out[rank]
 *   SEND / RECV     in P / out P; matched by order for each pair of ranks, apart from the order of
 *                   the other calls. A SEND's wait may last until the peer waits for anything.
 */
typedef struct dsi_comm_part {
    const void *in;
    void *out;
    size_t count;
    const size_t *counts_in, *counts_out; /* ALL_TO_ALL only; borrowed until the wait */
} dsi_comm_part;

typedef struct dsi_comm_call {
    ds_comm_op kind;
    ds_dtype dtype;
    dsi_reduction reduction;    /* default SUM */
    float factor;               /* of SUM; 1 for none. 0 is refused: a forgotten field */
    uint32_t peer;              /* root of BROADCAST, other side of SEND and RECV */
    const dsi_comm_part *parts; /* borrowed until the wait; n_parts 0 for BARRIER */
    uint32_t n_parts;
    bool symmetric; /* every `in` lies in dsi_comm_symmetric memory at the same offset on each rank
                       and stays unchanged until the wait: peers may read it in place */
    const char *what; /* names the step and parameter in a diagnosis; borrowed until the wait */
} dsi_comm_call;

/* Names a started call until its wait. */
typedef uint64_t dsi_comm_ticket;

/* What a call did, for logs: asked after its wait. */
typedef struct dsi_comm_times {
    double seconds; /* from start to end, this rank */
    double waited;  /* of which: until the last rank had arrived (straggler effect) */
} dsi_comm_times;

/* One implementation. Slots marked optional may be NULL. */
typedef struct dsi_transport {
    uint32_t version; /* DSI_TRANSPORT_VERSION */
    const char *name; /* "self", "shm", "mpi", "ucx", "sim" */
    ds_status (*start)(dsi_comm *comm, const dsi_comm_call *call, dsi_comm_ticket *ticket_out);
    ds_status (*wait)(dsi_comm *comm, dsi_comm_ticket ticket, dsi_comm_times *times_out);
    ds_status (*split)(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out);
    /* optional: default says that every call is done, so that its wait may last. See dsi_comm_test
     */
    ds_status (*test)(dsi_comm *comm, dsi_comm_ticket ticket, bool late, bool *done_out);
    /* optional: default memory of its own, not readable by peers */
    ds_status (*symmetric)(dsi_comm *comm, size_t bytes, void **memory_out);
    /* optional: default a split that keeps all ranks in their order. See dsi_comm_twin */
    ds_status (*twin)(dsi_comm *comm, ds_ctx *ctx, dsi_comm **comm_out);
    /* optional: default nobody gets more time. See dsi_comm_away */
    void (*away)(dsi_comm *comm, double until);
    /* optional: default nothing: the communicator's names of ranks are others now */
    void (*named)(dsi_comm *comm);
    /* optional: default nothing to prepare */
    ds_status (*reserve)(dsi_comm *comm, size_t bytes);
    /* optional: default peers learn of the end by their timeout */
    void (*abort)(dsi_comm *comm, const char *reason);
    void (*destroy)(dsi_comm *comm);
} dsi_transport;

#define DSI_TRANSPORT_VERSION 2u

enum { DSI_COMM_AXES_BYTES = 32 };

/* The head of every transport's communicator. */
struct dsi_comm {
    const dsi_transport *transport;
    ds_ctx *ctx;
    uint32_t rank, size;
    double timeout; /* seconds to wait for a rank before the watchdog ends the call; 0: for ever */
    bool twin;      /* of another thread: from dsi_comm_twin, or split from such a one */
    uint64_t sequence; /* calls started so far: the number that a diagnosis names */
    dsi_comm_log *log; /* times the calls, see comm_log.h; NULL: none */
    bool owns_log;
    const dsi_rank_names *names; /* of its ranks in messages; NULL: their numbers here */
    uint32_t names_first, names_step;
    char axes[DSI_COMM_AXES_BYTES]; /* of a mesh, along which the ranks are a group; "": none */
    void *memory;                   /* of the default dsi_comm_symmetric */
    size_t memory_bytes;
    dsi_pool *pool; /* threads that a wait may use beside its own; default NULL: none. Set it when
                       no other thread runs loops on that pool during waits. */
};

/* Elements of a slice: ceil(count / size). */
static inline size_t dsi_comm_slice(size_t count, uint32_t size)
{
    return count / size + (count % size != 0 ? 1 : 0);
}

/* Checks the call (kind, types, pointers, counts), numbers it, and starts it. Errors: ERR_ARG names
 * what; ERR_PEER names the rank that failed, is missing or disagrees, with its last known step. */
ds_status dsi_comm_start(dsi_comm *comm, const dsi_comm_call *call, dsi_comm_ticket *ticket_out);
ds_status dsi_comm_wait(dsi_comm *comm, dsi_comm_ticket ticket, dsi_comm_times *times_out);

/* Moves what can be moved without waiting, of all calls; and whether the wait for this ticket would
 * return at once (0: moves only). For those that wait for several communicators in turn, and keep
 * the time themselves: with `late`, a call that is not done fails as its wait would after the
 * timeout, naming who is missing. */
ds_status dsi_comm_test(dsi_comm *comm, dsi_comm_ticket ticket, bool late, bool *done_out);

/* Reports to the others that this rank waits for somebody outside of this communicator, and will
 * have given up by `until` (seconds of dsi_clock_seconds; 0: it is back). Until then they do not
 * take it for the one that is missing: it knows better who is. */
void dsi_comm_away(dsi_comm *comm, double until);

/* Start and wait. */
ds_status dsi_comm_run(dsi_comm *comm, const dsi_comm_call *call);
ds_status dsi_comm_barrier(dsi_comm *comm, const char *what);
/* `bytes` of each rank (1 at least) into all[size][bytes], in rank order. comm NULL: one rank. */
ds_status dsi_comm_gather(dsi_comm *comm, const void *own, void *all, size_t bytes,
                          const char *what);

/* A communicator of the ranks that give the same color, ordered by key, then by rank;
 * DSI_COLOR_NONE joins none (*comm_out NULL). Collective. The caller destroys it before its parent.
 */
#define DSI_COLOR_NONE UINT32_MAX
ds_status dsi_comm_split(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out);

/* A communicator of the same ranks for another thread of each: its calls run concurrently with
 * those of comm, in an order of their own, and its errors go to ctx, which is borrowed and outlives
 * it. Collective. The caller destroys it before comm, when no thread is in it. Errors:
 * ERR_UNSUPPORTED says why two threads cannot use this transport. */
ds_status dsi_comm_twin(dsi_comm *comm, ds_ctx *ctx, dsi_comm **comm_out);

/* Zeroed memory of the same size on every rank, aligned to a page, for operands of `symmetric`
 * calls. Collective, once for each communicator; freed with it. */
ds_status dsi_comm_symmetric(dsi_comm *comm, size_t bytes, void **memory_out);

/* Makes the staging for calls of up to `bytes` so that no call allocates. Collective. */
ds_status dsi_comm_reserve(dsi_comm *comm, size_t bytes);

/* Reports to the other ranks that this one gives up, and why: their waits end with ERR_PEER. */
void dsi_comm_abort(dsi_comm *comm, const char *reason);

/* Frees; not collective. Accepts NULL and *comm == NULL. */
void dsi_comm_destroy(dsi_comm **comm);

const char *dsi_coll_name(ds_comm_op kind); /* "all_reduce" … */

/* ---- makers ---- */

/* One rank: every collective is a copy. */
ds_status dsi_comm_self(ds_ctx *ctx, dsi_comm **comm_out);

/* The world of this process, from the environment that the launcher, mpirun or srun gave it;
 * without any: one rank. docs/internals/comm.md has the variables. Errors: ERR_CONFIG names a
 * variable that is missing or contradicts another; ERR_PEER names the ranks that did not come. */
typedef struct dsi_comm_world {
    uint32_t rank, size;
    uint32_t local_rank, local_size; /* on this host */
    uint32_t node, n_nodes;
    const char *transport; /* default NULL: chosen; else "shm", "mpi", "ucx" */
    double timeout;        /* seconds; 0: default 300 */
} dsi_comm_world;

ds_status dsi_comm_world_read(ds_ctx *ctx, dsi_comm_world *world_out);
ds_status dsi_comm_open(ds_ctx *ctx, const dsi_comm_world *world, dsi_comm **comm_out);

/* In the place of a rank (world->rank) that ended and never called dsi_comm_open: the ranks that
 * wait for it, or come later, get ERR_PEER with this text. The environment is that rank's. Returns
 * DS_OK when one has taken it, and does not return before one comes. Errors: the rank has joined,
 * or a process is that rank still. Called by the launcher, in a process of its own. */
ds_status dsi_comm_stand_in(ds_ctx *ctx, const dsi_comm_world *world, const char *text);

#endif
