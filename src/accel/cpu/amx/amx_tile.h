/* SPDX-License-Identifier: Apache-2.0 */
/* The tile loop: C[32,32] += A[32,K]·B[K,32] in bf16 on AMX, four accumulators.
 *
 * Tiles 0..3 hold C (row half × column half), 4 and 5 the two row halves of A, 6 and 7 the two
 * column halves of B. One step is 32 values of k: four tile loads, four products of 16 cycles.
 * A is read from the first-level cache, B streams from the second.
 *
 * Invariant: the configuration is loaded when a lane begins and released when it ends, because
 * threads are shared with code that knows nothing of tiles.
 */
#ifndef DSI_ACCEL_CPU_AMX_TILE_H
#define DSI_ACCEL_CPU_AMX_TILE_H

#include "accel/cpu/amx/amx_side.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    AMX_ROWS = 16,  /* of a tile */
    AMX_K = 32,     /* bf16 values in a tile row: k of one step */
    AMX_PANEL = 32, /* rows of A, columns of B that one call handles */
    AMX_TILE_BYTES = 1024,
    AMX_STEP_BYTES = 2048, /* packed A or B of one step */
    AMX_STAGE = 1024       /* floats in one block of C */
};

typedef struct amx_tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_tile_config;

/* Static storage: gcc 12 may drop stores to a local one before the instruction reads it. */
static const _Alignas(64) amx_tile_config amx_full_tiles = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

static inline void amx_begin(void)
{
    _tile_loadconfig(&amx_full_tiles);
}

static inline void amx_end(void)
{
    _tile_release();
}

enum { AMX_SIDES = 3 };

typedef struct amx_block {
    const char *a0, *a1;        /* rows 0-15 and 16-31 */
    size_t a_stride;            /* bytes between rows */
    size_t a_step;              /* bytes between steps */
    const char *b;              /* packed: n_steps × AMX_STEP_BYTES */
    int64_t n_steps;            /* >= 1 */
    const float *sum_in;        /* AMX_STAGE floats, or NULL: start from zero */
    float *pending;             /* where the sums of the block before go; or NULL */
    amx_side *sides[AMX_SIDES]; /* never NULL */
} amx_block;

#define AMX_INLINE static inline __attribute__((always_inline))

/* One accumulator changes hands: the block before leaves, this one enters. Done between the
 * products of the first step, so that the multiplier does not wait for the stores. */
#define AMX_ENTER(tile, x)                                                                         \
    do {                                                                                           \
        if ((x)->pending != NULL) {                                                                \
            _tile_stored(tile, (x)->pending + (tile)*256, 64);                                     \
        }                                                                                          \
        if ((x)->sum_in != NULL) {                                                                 \
            _tile_loadd(tile, (x)->sum_in + (tile)*256, 64);                                       \
        } else {                                                                                   \
            _tile_zero(tile);                                                                      \
        }                                                                                          \
    } while (0)

/* Stores the sums that are still in the tiles. */
static inline void amx_leave(float *sum)
{
    _tile_stored(0, sum, 64);
    _tile_stored(1, sum + 256, 64);
    _tile_stored(2, sum + 512, 64);
    _tile_stored(3, sum + 768, 64);
}

/* Multiplies; the result stays in the tiles until the next call or amx_leave(). two_rows,
 * two_columns: constants; a half that is not there is neither loaded nor multiplied. */
AMX_INLINE void amx_multiply(const amx_block *x, bool two_rows, bool two_columns)
{
    const char *a0 = x->a0;
    const char *a1 = x->a1;
    const char *b = x->b;
    for (int64_t step = 0; step < x->n_steps; ++step) {
        if (step == 0) {
            AMX_ENTER(0, x);
        }
        _tile_loadd(4, a0, x->a_stride);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (step == 0) {
            AMX_ENTER(1, x);
        }
        if (two_columns) {
            _tile_loadd(7, b + AMX_TILE_BYTES, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (step == 0) {
            AMX_ENTER(2, x);
        }
        if (two_rows) {
            _tile_loadd(5, a1, x->a_stride);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (step == 0) {
            AMX_ENTER(3, x);
        }
        if (two_rows && two_columns) {
            _tile_dpbf16ps(3, 5, 7);
        }
        for (int i = 0; i < AMX_SIDES; ++i) {
            amx_side_tick(x->sides[i]);
        }
        a0 += x->a_step;
        a1 += x->a_step;
        b += AMX_STEP_BYTES;
    }
}

#endif
