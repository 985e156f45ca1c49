/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for NVIDIA's libcuda.so.1 on the processor, for tests: what the CUDA Driver API
 * reference says of the functions that the accelerator `cuda` calls, and no more. Kernels are those
 * of src/accel/cuda/kernels on the host layer. Shared by standin_*.c alone:
 *
 *     standin_driver.c    devices, contexts, modules; the lock
 *     standin_memory.c    memory of the device, which the host cannot touch; pinned memory
 *     standin_stream.c    queues, events, launches
 *     standin_graph.c     captures, and graphs as nodes with what they depend on
 *     standin_run.c       what runs next
 *
 * Work runs late and in an order drawn from a seed among all that the documentation allows: on the
 * thread that waits, and now and then when something is queued. Nodes of a graph are ordered by
 * their dependencies alone. Copies move a piece a turn. A copy between the device and memory that
 * is not pinned may hold the host up until it is done, and is refused in a capture.
 *
 * DS_CUDA_STANDIN="seed=7,turn=4096,ignore=N,least=8,broken=N,late=N,name=TEXT,mib=N,init=802,
 * version=12040,devices=8" or standin_set: the seed; bytes that a copy moves in a turn; the N-th
 * wait (of a stream for an event, of the host for a stream) does nothing, 0: none; the major number
 * of the compute capability; from the host's N-th wait for a stream on memory has an error that
 * cannot be corrected (0: never); the N-th stream has no turn before the host waits and no other
 * can run (0: none): what does not wait for it runs first; the name that devices report, up to a
 * comma, and their memory; what cuInit returns; the driver's version, below 13000 an older driver,
 * which knows no image of the tests; devices, which have one memory. standin_waits: waits so far.
 */
#ifndef DS_TEST_STANDIN_H
#define DS_TEST_STANDIN_H

#include "accel/cuda/driver/driver_api.h"
#include "accel/cuda/host/kernel_table.h"

#include <pthread.h>
#include <stdbool.h>

enum { MOST_REGIONS = 256, MOST_STREAMS = 64, ARGS_BYTES = 4096 };

typedef struct region {
    unsigned char *at;
    size_t bytes;
    bool on_device; /* else pinned memory of the host */
    bool own;       /* of the host, by cuMemHostAlloc */
} region;

typedef enum kind { LAUNCH, COPY, FILL, RECORD, WAIT, GRAPH, CALL, HOST } kind;

typedef struct work {
    kind kind;
    const dsc_host_row *kernel;
    bool (*call)(const void *args); /* of another library's stand-in; whether it is done */
    void (*fn)(void *arg);          /* of HOST */
    void *arg;
    unsigned grid[3], block[3];
    unsigned char args[ARGS_BYTES];
    unsigned char *to;
    const unsigned char *from;
    size_t bytes, done;
    unsigned char byte;
    bool begun; /* a copy of the late stream */
    struct CUevent_st *event;
    uint64_t ticket; /* of a record; of a wait: which record */
    struct CUgraphExec_st *graph;
} work;

/* Nodes that others depend on. */
typedef struct nodes {
    uint32_t *items;
    uint32_t n, capacity;
} nodes;

typedef struct node {
    work work;
    nodes after;
    bool done;
} node;

struct CUgraph_st {
    node *nodes;
    uint32_t n, capacity;
    uint64_t id;
    bool broken;  /* a call failed that makes the capture invalid */
    bool relaxed; /* its thread may make calls that are unsafe in a capture */
    struct CUstream_st *origin;
};

struct CUgraphExec_st {
    node *nodes;
    uint32_t n, n_done;
    bool active; /* at the head of a stream */
};

struct CUevent_st {
    uint64_t recorded, done;
    uint64_t capture; /* id of that which its newest record is in; 0: none */
    nodes after;
};

struct CUstream_st {
    work *queue;
    uint32_t head, n, capacity;
    struct CUgraph_st *capture;
    nodes after; /* while it is captured: what its next node depends on */
};

struct CUfunc_st {
    const dsc_host_row *row;
};

typedef struct standin {
    pthread_mutex_t lock; /* of all */
    bool initialized;
    long process; /* that called cuInit: its children have no driver */
    uint64_t random, turn_bytes, ignore, n_waits, major, broken, n_syncs, late, mib, init, version,
        n_devices;
    char name[96];
    bool host_waits;
    double moved_at; /* seconds: when something ran that was no call that waits */
    region regions[MOST_REGIONS];
    uint32_t n_regions;
    struct CUstream_st *streams[MOST_STREAMS];
    uint32_t n_streams;
    const struct CUstream_st *starved;
    uint32_t starved_for;
    bool ignored; /* a wait that had something to wait for */
    bool open;    /* device memory can be touched: work runs */
    uint32_t n_contexts;
    uint64_t n_captures;
} standin;

extern standin standin_all;

#define STANDIN_API __attribute__((visibility("default")))

/* Options as of DS_CUDA_STANDIN; waits are counted from 0 again. */
STANDIN_API void standin_set(const char *options);
STANDIN_API uint64_t standin_waits(void);
/* Whether the wait that was ignored had something to wait for. */
STANDIN_API bool standin_ignored_one(void);

/* For stand-ins of libraries that queue kernels of their own: args are copied, at most ARGS_BYTES;
 * as a kernel it runs with the device's memory open, in the stream's order, until it is done. */
STANDIN_API dsc_cu_result standin_call(struct CUstream_st *s, bool (*call)(const void *args),
                                       const void *args, size_t bytes);
/* Whether the calling thread has a context; whether bytes there are memory of the device. */
STANDIN_API bool standin_has_context(void);
STANDIN_API bool standin_is_device(const void *memory, size_t bytes);
/* For those that load code of their own at first use: false in a capture whose mode forbids that to
 * the thread, which breaks the capture. */
STANDIN_API bool standin_may_load(void);
/* Copies at once, between the host and the device's memory; any thread. */
STANDIN_API void standin_copy(void *to, const void *from, size_t bytes);

/* standin_driver.c: takes the lock for a call; what is wrong before it can begin. */
dsc_cu_result standin_enter(void);
dsc_cu_result standin_leave(dsc_cu_result result);
/* Runs a function of the host's: with the device's memory closed, and no call of the driver is
 * allowed in it. */
void standin_run_host(void (*fn)(void *arg), void *arg);
/* Whether this wait is the one to be ignored. idle: it has nothing to wait for. */
bool standin_ignores(bool idle);

/* standin_memory.c */
void standin_protect(bool open);
const region *standin_find(const void *memory, size_t bytes);
/* Whether n bytes there can be copied; *pinned_out: it is no pageable memory. */
bool standin_reaches(const void *memory, size_t bytes, bool *pinned_out);

/* standin_run.c */
uint32_t standin_draw(uint32_t n);
/* A turn of something that can run; false: nothing can. */
bool standin_turn(void);
/* Some turns, now and then. */
void standin_early(void);

/* standin_stream.c: queues work, or makes a node of it. */
dsc_cu_result standin_put(struct CUstream_st *s, const work *w);
bool standin_is_stream(const struct CUstream_st *s);

/* standin_graph.c */
void standin_add(nodes *to, uint32_t node);
void standin_join(nodes *to, const nodes *from);
/* The capture under way that has this id; NULL: it has ended. */
struct CUgraph_st *standin_capture_of(uint64_t id);
dsc_cu_result standin_capture(struct CUstream_st *s, const work *w);
/* Of a call that a capture's mode may forbid to its thread: what allocates, frees, pins, loads,
 * asks for an event. Behind standin_enter, whose result is passed on. */
dsc_cu_result standin_unsafe(dsc_cu_result entered);

#endif
