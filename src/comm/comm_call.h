/* SPDX-License-Identifier: Apache-2.0 */
/* What every transport needs to know of a call: its geometry, its digest, its words for a
 * diagnosis.
 *
 * Called by comm.c and by the transports. Pure functions of the call, the rank and the size.
 */
#ifndef DSI_COMM_COMM_CALL_H
#define DSI_COMM_COMM_CALL_H

#include "comm/comm.h"

/* A call in a form that may lie in shared memory and be printed by another rank. */
typedef struct dsi_call_info {
    uint64_t digest;   /* ranks whose digests differ disagree about the call */
    uint64_t number;   /* the sequence number on the rank that wrote it */
    uint64_t elements; /* of all parts */
    uint32_t kind, dtype, n_parts, peer;
    float factor;
    uint32_t reduction;
    char what[80]; /* cut to fit, terminated */
} dsi_call_info;

/* The own slice of `count` elements over `size` ranks: where it begins and how many it has
 * (without padding). */
typedef struct dsi_span {
    size_t begin, count;
} dsi_span;

dsi_span dsi_span_of(size_t count, uint32_t rank, uint32_t size);

static inline bool dsi_coll_is_pair(ds_comm_op kind)
{
    return kind == DS_COMM_SEND || kind == DS_COMM_RECV;
}

static inline bool dsi_coll_reduces(ds_comm_op kind)
{
    return kind == DS_COMM_ALL_REDUCE || kind == DS_COMM_REDUCE_SCATTER;
}

/* Elements that `part` reads from `in` and writes to `out` (with padding) on this rank. */
size_t dsi_part_in_count(const dsi_comm_call *call, const dsi_comm_part *part, uint32_t rank,
                         uint32_t size);
size_t dsi_part_out_count(const dsi_comm_call *call, const dsi_comm_part *part, uint32_t rank,
                          uint32_t size);

/* Hash of what all ranks of a call must agree about; of a SEND and its RECV the same. What lies in
 * counts_in and counts_out is not part of it. */
uint64_t dsi_call_digest(const dsi_comm_call *call);

void dsi_call_describe(const dsi_comm_call *call, uint64_t number, dsi_call_info *info_out);

/* "all_reduce of 1000 bf16 in 3 tensors (call 17, "grad layer 3")"; returns text. */
char *dsi_call_info_text(const dsi_call_info *info, char *text, size_t n);

/* Refuses a call that cannot be right on any transport. */
ds_status dsi_call_check(const dsi_comm *comm, const dsi_comm_call *call);

#endif
