/* SPDX-License-Identifier: Apache-2.0 */
/* Storing one block of finished sums into C, with the epilogue: a side job. */
#ifndef DSI_ACCEL_CPU_AMX_STORE_H
#define DSI_ACCEL_CPU_AMX_STORE_H

#include "accel/cpu/amx/amx_tile.h"
#include "accel/cpu/gemm.h"

typedef struct amx_store { /* a unit is one row of the block of C */
    amx_side side;
    const dsi_gemm_params *p;
    float *sums;         /* AMX_STAGE */
    int64_t row, column; /* of C */
    bool plain;          /* bf16 and nothing but the rounding */
    bool swapped;        /* the sums are those of Cᵀ: transposed in place first */
} amx_store;

void amx_store_init(amx_store *job, const dsi_gemm_params *p, bool swapped);

/* Begins. m, n: panels of the sums. They must be complete when the job first runs, and stay until
 * it is done. */
void amx_store_start(amx_store *job, float *sums, int64_t m, int64_t n, int64_t n_steps);

#endif
