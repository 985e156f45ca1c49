/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of ranks whose devices move data by NCCL. Shared by driver/group_*.c and driver_entry.c:
 *
 *     nccl_api.h      the library's functions, by name
 *     group_nccl.c    a group from open to close, its calls from start to their end
 *     group_call.c    which of NCCL's operations a collective is
 *
 * Invariants:
 *  1. NCCL moves bytes and adds nothing: sums are the kernel tree_sum's, over slices that the ranks
 *     send one another, so that they have the bits of every other transport (LAW 4b);
 *  2. no call of NCCL blocks: what is in progress is asked for, with an end;
 *  3. a call needs nothing new: its staging is reserved, its event one of a ring.
 */
#ifndef DSC_GROUP_H
#define DSC_GROUP_H

#include "accel/cuda/driver/driver_device.h"
#include "accel/cuda/driver/nccl_api.h"

enum { DSC_GROUP_EVENTS = 256 };

struct ds_accel_group {
    ds_accel_device *device;
    ds_ctx *ctx;
    const dsc_nccl_api *nccl;
    dsc_nccl_comm comm; /* NULL: aborted */
    dsc_cu_stream queue;
    dsc_cu_event events[DSC_GROUP_EVENTS]; /* of ticket t: events[t % …] */
    uint64_t n_started;
    double seconds;
    uint32_t rank, size;
    dsc_cu_ptr staging;
    size_t staging_bytes;
};

/* A line for lists: "collectives: NCCL 2.28.9", or why there is none. */
void dsc_nccl_say(char *text_out, size_t n);

/* Queues a collective on g->queue. */
ds_status dsc_group_queue(ds_accel_group *g, const ds_accel_collective *call);
/* Waits until what NCCL has in progress is queued. */
ds_status dsc_group_settle(ds_accel_group *g, dsc_nccl_result result, const char *what);

extern const ds_accel_groups dsc_groups;

#endif
