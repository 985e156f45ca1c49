/* SPDX-License-Identifier: Apache-2.0 */
/* How one product is cut for the tile loop: blocks of C, chunks and blocks of k, and what lies
 * where in the workspace. A pure function of the shape, so that it can be part of a plan.
 *
 * C is cut into blocks of mb × nb panels, claimed by lanes (one a thread). For each block k is cut
 * into chunks: one chunk of B is packed at a time. Within a chunk k is cut into blocks of
 * `block_steps`, so that one panel of A fits the first-level cache. Partial sums of a block of C
 * stay in the second-level cache.
 */
#ifndef DSI_ACCEL_CPU_AMX_PLAN_H
#define DSI_ACCEL_CPU_AMX_PLAN_H

#include "accel/cpu/gemm.h"

typedef enum amx_a_mode {
    AMX_A_DIRECT, /* tiles are loaded from the matrix itself */
    AMX_A_ROWS,   /* each panel is copied by the lane that needs it */
    AMX_A_PACKED  /* all panels are packed first, in parallel */
} amx_a_mode;

typedef struct amx_plan {
    int64_t n_steps;     /* of 32 values of k */
    int64_t block_steps; /* of one block of k */
    int64_t chunk_steps; /* of one chunk: a multiple of block_steps, or n_steps */
    int64_t n_chunks;
    int64_t m_panels, n_panels; /* of C */
    int64_t mb, nb;             /* panels of one block of C */
    int64_t n_mblocks, n_nblocks;
    uint32_t n_lanes;
    amx_a_mode a_mode;
    bool pack_b_first;  /* all of B, when many blocks of C would pack the same part */
    size_t a_bytes;     /* of A packed */
    size_t all_b_bytes; /* of B packed; then come the lanes */
    size_t lane_bytes;
    size_t b_bytes;     /* of one of the two buffers for B in a lane */
    size_t panel_bytes; /* of the copy of a panel of A in a lane */
    size_t sums_bytes;
} amx_plan;

void amx_plan_make(const dsi_gemm_params *p, amx_plan *plan_out);
size_t amx_plan_bytes(const amx_plan *plan);

#endif
