/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the accelerator `sim`. Shared by sim_*.c alone:
 *
 *     sim_accel.c     open, close, the tables
 *     sim_memory.c    memory that the host cannot touch
 *     sim_stream.c    queues, events, and what runs next
 *     sim_graph.c     captured work
 *     sim_clock.c     how long it would take
 *
 * Invariants: an address of device memory is mapped without any permission, its bytes lie at
 * another address that only this folder knows; work of a stream runs in the order of its queue, and
 * of several streams in any order that the events allow; everything runs on a thread that calls
 * synchronize, or that queues something, for streams of one context.
 */
#ifndef DSI_ACCEL_SIM_DEVICE_H
#define DSI_ACCEL_SIM_DEVICE_H

#include "accel/accel.h"

#include <pthread.h>
#include <stdbool.h>

enum {
    SIM_MAX_REGIONS = 64,
    SIM_MAX_STREAMS = 16,
    SIM_QUEUE = 1024,
    SIM_MAX_HOSTS = 4,
    SIM_MAX_TIMES = 32
};

/* Simulated nanoseconds. Streams are in the order of their creation, the last has those that there
 * is no row for; a destroyed one keeps its row. */
typedef struct sim_times {
    uint64_t total;       /* when the last work ends, or the last host is done with waiting */
    uint64_t host_copies; /* of the memory table, in which nothing of that host is queued */
    uint64_t kernels[SIM_MAX_TIMES], copies[SIM_MAX_TIMES]; /* in which a stream is busy */
    uint32_t n_streams;
} sim_times;

typedef struct sim_clock {
    uint64_t now;
    uint32_t row; /* of sim_times */
} sim_clock;

/* What the device reaches: memory of its own, or of the host that was adopted (real == seen). */
typedef struct sim_region {
    unsigned char *seen, *real;
    size_t bytes;
} sim_region;

typedef enum sim_kind { SIM_LAUNCH, SIM_COPY, SIM_FILL, SIM_RECORD, SIM_WAIT, SIM_CALL } sim_kind;

typedef struct sim_work {
    sim_kind kind;
    const ds_kernel *kernel;
    const ds_kernel_call *call, *told; /* what runs; what a failure names */
    void (*fn)(void *arg);             /* of a call of the host's */
    void *arg;
    void *to;
    const void *from;
    size_t bytes, done;
    int byte;
    ds_accel_event *event;
    uint64_t ticket; /* of a record; of a wait: which record */
} sim_work;

struct ds_accel_event {
    ds_accel_device *device;
    uint64_t recorded, done; /* tickets: queued last; passed last */
    uint64_t time;           /* simulated, of the newest record */
    ds_accel_graph *capture; /* being captured, with a record; NULL: none */
};

struct ds_accel_stream {
    ds_accel_device *device;
    ds_ctx *ctx;
    ds_status failed; /* of the work at the head, which stays there */
    uint32_t head, n;
    sim_clock clock;
    ds_accel_graph *capture; /* to which what is queued goes; NULL: none */
    sim_work queue[SIM_QUEUE];
};

struct ds_accel_device {
    ds_ctx *ctx;
    pthread_mutex_t lock; /* of all below */
    uint64_t random;
    uint64_t turn_bytes;           /* most that a copy moves in one turn */
    uint64_t has_graphs;           /* 0: none are captured */
    uint64_t copy_gbps, kernel_us; /* 0: no time */
    struct {
        const ds_ctx *ctx;
        uint64_t now;
    } hosts[SIM_MAX_HOSTS];
    sim_times times;
    sim_region regions[SIM_MAX_REGIONS];
    uint32_t n_regions;
    ds_accel_stream *streams[SIM_MAX_STREAMS];
    uint32_t n_streams;
    const ds_accel_stream *starved; /* runs when nothing else can, for that many turns; or NULL */
    uint32_t starved_for;
};

/* Where the bytes of `n` from `memory` on lie; NULL when the device does not reach them. */
void *dsi_sim_real(const ds_accel_device *device, const void *memory, size_t n);

/* sim_stream.c: queues work; a full queue makes room, which it cannot where all is held. */
ds_status dsi_sim_put(ds_accel_stream *s, sim_work work);

/* sim_graph.c, with the device's lock held: keeps work that is queued while its stream is captured.
 * *kept_out: whether that is so. */
ds_status dsi_sim_capture(ds_accel_stream *s, const sim_work *work, bool *kept_out);

/* sim_clock.c, with the device's lock held: what a call of the streams or memory table does to the
 * clocks. ctx: whose host calls. */
void dsi_sim_time_new_stream(ds_accel_device *device, sim_clock *clock);
void dsi_sim_time_kernel(ds_accel_device *device, const ds_ctx *ctx, sim_clock *clock);
void dsi_sim_time_copy(ds_accel_device *device, const ds_ctx *ctx, sim_clock *clock, size_t bytes);
void dsi_sim_time_record(ds_accel_device *device, const ds_ctx *ctx, sim_clock *clock,
                         uint64_t *event);
void dsi_sim_time_wait(ds_accel_device *device, sim_clock *clock, uint64_t event);
void dsi_sim_time_synchronize(ds_accel_device *device, const ds_ctx *ctx, const sim_clock *clock);
void dsi_sim_time_host_copy(ds_accel_device *device, size_t bytes);
/* Without the lock: what it has come to; and the lines that say so, where a time was asked for. */
sim_times dsi_sim_times(ds_accel_device *device);
void dsi_sim_say_times(ds_accel_device *device);

extern const ds_accel_memory dsi_sim_memory;
extern const ds_accel_streams dsi_sim_streams;
extern const ds_accel_graphs dsi_sim_graphs;

#endif
