/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the accelerator `sim`. Shared by sim_*.c alone:
 *
 *     sim_accel.c     open, close, the tables
 *     sim_memory.c    memory that the host cannot touch
 *     sim_stream.c    queues, events, and what runs next
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

enum { SIM_MAX_REGIONS = 64, SIM_MAX_STREAMS = 16, SIM_QUEUE = 1024 };

/* What the device reaches: memory of its own, or of the host that was adopted (real == seen). */
typedef struct sim_region {
    unsigned char *seen, *real;
    size_t bytes;
} sim_region;

struct ds_accel_device {
    ds_ctx *ctx;
    pthread_mutex_t lock; /* of all below */
    uint64_t random;
    size_t turn_bytes; /* most that a copy moves in one turn */
    sim_region regions[SIM_MAX_REGIONS];
    uint32_t n_regions;
    ds_accel_stream *streams[SIM_MAX_STREAMS];
    uint32_t n_streams;
    const ds_accel_stream *starved; /* runs when nothing else can, for that many turns; or NULL */
    uint32_t starved_for;
};

/* Where the bytes of `n` from `memory` on lie; NULL when the device does not reach them. */
void *dsi_sim_real(const ds_accel_device *device, const void *memory, size_t n);

extern const ds_accel_memory dsi_sim_memory;
extern const ds_accel_streams dsi_sim_streams;

#endif
