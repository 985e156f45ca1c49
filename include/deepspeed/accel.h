/* SPDX-License-Identifier: Apache-2.0 */
/* Accelerators: what the library asks of a device that computes, as tables. Who writes one for a
 * device that the library does not know includes this.
 *
 * An accelerator is one const ds_accel with a table for each noun: memory, kernels, streams. What
 * it can leave out says what its absence means. A shared object exports the function that
 * DS_ACCEL_SYMBOL names, which returns it, and is chosen by its path (ds_engine_params.accelerator,
 * --accelerator ./libmine.so); the program ds_accel_test checks it. The object is linked against
 * nothing of the library: what it may call is passed to that function. docs/internals/accel.md
 * shows one.
 *
 * Thread rule: one device has one owner at a time, the thread that called open, unless a slot says
 * otherwise.
 */
#ifndef DEEPSPEED_ACCEL_H
#define DEEPSPEED_ACCEL_H

#include <deepspeed/comm.h>
#include <deepspeed/op.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 4: pin, probe; 5: groups; 6: disks; 7: prepare, log; 8: call; 9: about */
#define DS_ACCEL_VERSION 9u
/* A shared object's function, a ds_accel_entry; another version has another name. */
#define DS_ACCEL_SYMBOL "ds_accel_v9"

/* An open accelerator: its state, its own to define. */
typedef struct ds_accel_device ds_accel_device;

typedef struct ds_accel_memory {
    /* Zeroed memory, aligned to 64. what: for the message. Errors: ERR_NOMEM naming the bytes. */
    ds_status (*alloc)(ds_accel_device *device, ds_ctx *ctx, size_t bytes, const char *what,
                       void **memory_out);
    /* What alloc gave, and its bytes. */
    void (*release)(ds_accel_device *device, void *memory, size_t bytes);
    /* Optional; default: kernels reach no memory that alloc has not given. Memory of the host, such
     * as a communicator's, that kernels are to read and write at its own address. */
    ds_status (*adopt)(ds_accel_device *device, ds_ctx *ctx, void *memory, size_t bytes);
    /* Optional; default: nowhere, and plans with collectives, or cells on disk that the device does
     * not reach by itself (ds_accel_disks), are refused; where on_host: at its own. The address by
     * which communicators and disks of this process reach what lies at `memory`. */
    void *(*peer_view)(ds_accel_device *device, void *memory);
    /* Copies between two places of device memory, or between it and the host, not overlapping; as
     * fill it is done when it returns, whatever streams do meanwhile with other memory. */
    ds_status (*copy)(ds_accel_device *device, void *to, const void *from, size_t bytes);
    ds_status (*fill)(ds_accel_device *device, void *to, int byte, size_t bytes);
    bool on_host; /* addresses of the host and of the device are one memory; else the host copies */
    /* Optional, both or none; default: nothing need be done. Memory of the host that streams copy
     * to and from, until unpin: without it a copy may hold up the host. No block is pinned twice.
     * Errors: ERR_NOMEM naming the bytes. */
    ds_status (*pin)(ds_accel_device *device, ds_ctx *ctx, void *memory, size_t bytes);
    void (*unpin)(ds_accel_device *device, void *memory, size_t bytes);
} ds_accel_memory;

typedef struct ds_accel_kernels {
    /* For a plan: the kernel of a step, or NULL when no kernel supports the case. Any thread. */
    /* It needs no bit that `has` lacks. */
    const ds_kernel *(*choose)(const ds_kernel_sig *sig, ds_isa has);
    /* Optional; default: those of the processor. The bits that kernels may need: of the processor,
     * which `cpu` are, and of DS_ISA_OWN. Any thread. */
    ds_isa (*has)(ds_isa cpu);
    /* Optional; default: nothing need be done. What a step's kernel, which choose gave, needs of
     * the device before its first launch, such as to be compiled: when memory is allocated, for
     * each step of a plan. Errors end that. */
    ds_status (*prepare)(ds_accel_device *device, ds_ctx *ctx, const ds_kernel *kernel,
                         const ds_kernel_sig *sig);
} ds_accel_kernels;

/* A stream runs what is queued on it one after another, concurrently with the host and other
 * streams. What is queued stays as it is, calls and operands and host memory too, until the stream
 * has passed it. Queueing may fail because what was queued before has: synchronize says what that
 * was. */
typedef struct ds_accel_stream ds_accel_stream;
typedef struct ds_accel_event ds_accel_event;

typedef struct ds_accel_streams {
    /* ctx: whose threads run kernels of this stream, and where they say what failed. Streams of one
     * context may wait for one another's events. */
    ds_status (*create)(ds_accel_device *device, ds_ctx *ctx, ds_accel_stream **stream_out);
    void (*destroy)(ds_accel_stream **stream); /* which has been synchronized; accepts NULL */
    ds_status (*launch)(ds_accel_stream *stream, const ds_kernel *kernel,
                        const ds_kernel_call *call);
    /* As those of ds_accel_memory. */
    ds_status (*copy)(ds_accel_stream *stream, void *to, const void *from, size_t bytes);
    ds_status (*fill)(ds_accel_stream *stream, void *to, int byte, size_t bytes);
    /* The host waits for all that is queued. After a failure what does not depend on it has run,
     * the rest of the context's streams is dropped, and they can be used again. *failed_out: the
     * call that failed, NULL when it was another piece of work. */
    ds_status (*synchronize)(ds_accel_stream *stream, const ds_kernel_call **failed_out);
    ds_status (*event_create)(ds_accel_device *device, ds_ctx *ctx, ds_accel_event **event_out);
    void (*event_destroy)(ds_accel_event **event); /* accepts NULL */
    /* The event is passed when the stream comes here. All records of an event are of one stream. */
    ds_status (*record)(ds_accel_stream *stream, ds_accel_event *event);
    /* The stream goes on when the newest record before this call is passed; at once without one. */
    ds_status (*wait)(ds_accel_stream *stream, ds_accel_event *event);
    /* Optional; default: who would queue it waits for the stream, and calls. fn(arg) runs on some
     * thread of the host's when the stream comes here, and the stream goes on when it returns; when
     * it was captured, at each launch. It asks nothing of the device and touches none of its
     * memory. */
    ds_status (*call)(ds_accel_stream *stream, void (*fn)(void *arg), void *arg);
} ds_accel_streams;

/* Queued work that is kept, to be queued again as a whole. */
typedef struct ds_accel_graph ds_accel_graph;

typedef struct ds_accel_graphs {
    /* From here to `end` what is queued on the stream, and on streams that wait for an event
     * recorded since, is kept and does not run. Calls, their operands and attributes are copied,
     * what they point to in memory of host or device is not. Copies in it are of memory of the host
     * that is pinned, where there is pin. No such stream is synchronized, nor
     * waits for an event recorded before. One capture of a context at a time. Errors:
     * ERR_UNSUPPORTED without a message: not of this device as it was opened; it works without. */
    ds_status (*begin)(ds_accel_stream *stream);
    /* The stream has waited for all that others have to do. *graph_out: NULL on failure; then the
     * streams are as before `begin`, as they are behind a success. */
    ds_status (*end)(ds_accel_stream *stream, ds_accel_graph **graph_out);
    /* Queues all of it: it begins behind what the stream of its begin has to do, and that goes on
     * behind it. A failure is told by the call that was captured. */
    ds_status (*launch)(ds_accel_stream *stream, ds_accel_graph *graph);
    void (*destroy)(ds_accel_graph **graph); /* which has run; before its streams; accepts NULL */
} ds_accel_graphs;

/* Ranks whose devices move data between them, without the host. */
typedef struct ds_accel_group ds_accel_group;
enum { DS_ACCEL_GROUP_ID = 128 };

/* One tensor of a collective, in device memory. Over N ranks a tensor of `count` elements is cut
 * into slices of S = ceil(count/N): rank r owns [r·S, min((r+1)·S, count)).
 *
 *   ALL_REDUCE      in count -> out count (may be the same address)
 *   REDUCE_SCATTER  in count -> out S: the own slice, what lies beyond count zero
 *   ALL_GATHER      in: the own slice -> out count (in may lie at its place inside of out)
 *   BROADCAST       in count at the root (others: ignored) -> out count
 *   ALL_TO_ALL      in: for each rank in order counts_in[rank] elements -> out: counts_out[rank]
 *   SEND / RECV     in count / out count
 *
 * Sums are in fp32 (f64: in fp64; integers wrap) in the order of the aligned binary tree over
 * ranks, ((0+1)+(2+3))+…, times `factor`, rounded once. max: the larger instead, no factor. */
typedef struct ds_accel_part {
    const void *in;
    void *out;
    size_t count;
    const size_t *counts_in, *counts_out; /* ALL_TO_ALL only */
} ds_accel_part;

typedef struct ds_accel_collective {
    ds_comm_op kind;
    ds_dtype dtype;
    float factor;
    bool max;
    uint32_t peer; /* root of BROADCAST, other side of SEND and RECV */
    const ds_accel_part *parts;
    uint32_t n_parts; /* 0 of BARRIER */
} ds_accel_collective;

typedef struct ds_accel_groups {
    /* One rank of a group makes an id, and the caller sends it to the others. */
    ds_status (*id)(ds_ctx *ctx, unsigned char id_out[DS_ACCEL_GROUP_ID]);
    /* Collective. seconds: after which ranks that did not come are an error. */
    ds_status (*open)(ds_accel_device *device, ds_ctx *ctx,
                      const unsigned char id[DS_ACCEL_GROUP_ID], uint32_t rank, uint32_t size,
                      double seconds, ds_accel_group **group_out);
    /* Room for calls of up to so many elements' bytes, so that none allocates. */
    ds_status (*reserve)(ds_accel_group *group, size_t bytes);
    /* Begins a call whose operands are complete; a group's calls run in their order. *call is the
     * caller's again when it returns. */
    ds_status (*start)(ds_accel_group *group, const ds_accel_collective *call,
                       uint64_t *ticket_out);
    /* Whether that call is done. Errors: ERR_PEER, ERR_DEVICE say what the device reports. */
    ds_status (*test)(ds_accel_group *group, uint64_t ticket, bool *done_out);
    /* Ends what is under way: nothing follows but close. */
    void (*abort)(ds_accel_group *group);
    void (*close)(ds_accel_group **group); /* not collective; accepts NULL */
} ds_accel_groups;

/* A file that a device reads and writes by itself (GPUDirect Storage). */
typedef struct ds_accel_file ds_accel_file;

typedef struct ds_accel_disks {
    /* Whether the device can. Errors: ERR_UNSUPPORTED says what is missing. */
    ds_status (*check)(ds_accel_device *device, ds_ctx *ctx);
    /* fd: a regular file opened with O_DIRECT that has its name still; it is the caller's, and open
     * until close. path: for the message. */
    ds_status (*open)(ds_accel_device *device, ds_ctx *ctx, int fd, const char *path,
                      ds_accel_file **file_out);
    void (*close)(ds_accel_file **file); /* no transfer is under way; accepts NULL */
    /* What alloc gave, that transfers will reach, until unmap, which comes before its release.
     * Errors: ERR_LIMIT: there is no room for that; transfers are right all the same, and slower.
     */
    ds_status (*map)(ds_accel_device *device, ds_ctx *ctx, void *memory, size_t bytes);
    void (*unmap)(ds_accel_device *device, void *memory);
    /* Moves bytes between the file and device memory, at any offset, and returns when they are
     * there. Returns how many: fewer than asked for where the file ends, or because the system
     * stopped there; negative: -errno, or a reason that `text` has words for. Any thread, several
     * at once. */
    int64_t (*move)(ds_accel_file *file, bool write, void *memory, size_t bytes, uint64_t offset);
    /* reason: positive, as of move; NULL: it is an errno. Any thread. */
    const char *(*text)(int reason);
} ds_accel_disks;

/* What a device is. */
typedef struct ds_accel_about {
    char name[128];  /* as its driver has it: "NVIDIA H100 80GB HBM3" */
    uint64_t memory; /* bytes that it has, used or not */
} ds_accel_about;

typedef struct ds_accel {
    uint32_t version; /* DS_ACCEL_VERSION */
    const char *name; /* [a-z0-9_]+, unique */
    const char *doc;  /* one line for lists */
    /* Optional, both or none; default: there is no state, and the device is NULL. options: what
     * stood behind the name, "" when nothing did. */
    ds_status (*open)(ds_ctx *ctx, const char *options, ds_accel_device **device_out);
    void (*close)(ds_accel_device **device);
    const ds_accel_memory *memory;
    const ds_accel_kernels *kernels;
    /* Optional; default: kernels run on the thread that calls them, copies at once. */
    const ds_accel_streams *streams;
    bool counts_only; /* its kernels compute nothing: losses mean nothing */
    /* Optional, of those with streams; default: all is queued each time. */
    const ds_accel_graphs *graphs;
    /* Optional; default: it can be opened everywhere. Whether there is a device to open, which is
     * not done: the error says what is missing. ERR_NOT_FOUND: there is none here, which `auto`
     * passes over; of one that cannot be used it warns. text_out: what there is, in lines, cut to n
     * bytes; behind an error what there is all the same. Any thread. */
    ds_status (*probe)(ds_ctx *ctx, char *text_out, size_t n);
    /* Optional; default: communicators move what peer_view shows. Then device memory need not be
     * seen by communicators: collectives of plans are the device's. */
    const ds_accel_groups *groups;
    /* Optional; default: disks reach what peer_view shows, through memory of the host. */
    const ds_accel_disks *disks;
    /* Optional; default: its devices have no names. Of the device that open would open with these
     * options, which is not done. ERR_ARG, of options alone: open would not take them. Any thread.
     */
    ds_status (*about)(ds_ctx *ctx, const char *options, ds_accel_about *about_out);
} ds_accel;

/* What a shared object may call. */
typedef struct ds_accel_library {
    uint32_t version; /* DS_ACCEL_VERSION */
    /* Records the message of an error, and returns its status. */
    ds_status (*fail)(ds_ctx *ctx, ds_status status, const char *text);
    /* ds_parallel. */
    void (*parallel)(ds_ctx *ctx, void (*fn)(void *arg, uint32_t task, uint32_t thread), void *arg,
                     uint32_t n_tasks);
    /* The processor's kernel, which computes where the host can read and write. */
    const ds_kernel *(*cpu_kernel)(const ds_kernel_sig *sig, ds_isa has);
    /* A line for people: a warning, or one of a compiler's log. */
    void (*log)(ds_ctx *ctx, const char *line);
} ds_accel_library;

/* Called once, when the object is loaded; it stays until the process ends, and so does what is
 * returned. library: likewise. */
typedef const ds_accel *(*ds_accel_entry)(const ds_accel_library *library);

#ifdef __cplusplus
}
#endif
#endif
