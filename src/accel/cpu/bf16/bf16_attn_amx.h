/* SPDX-License-Identifier: Apache-2.0 */
/* Products of packed blocks on AMX tiles, for bf16_attn_tile.h, which alone includes this.
 *
 * Tile configuration is loaded and released in each task.
 */
#ifndef DSI_ACCEL_CPU_BF16_ATTN_AMX_H
#define DSI_ACCEL_CPU_BF16_ATTN_AMX_H

typedef struct attn_tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} attn_tile_config;

/* Static storage: gcc 12 may drop stores to a local one before the instruction reads it. */
static const _Alignas(64) attn_tile_config attn_tiles = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

static inline void attn_tiles_begin(void)
{
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&attn_tiles);
}

static inline void attn_tiles_end(void)
{
    _tile_release();
}

/* rows, cols: 1 or 2, constants; add: C is read first. */
DSI_INLINE void attn_multiply(const attn_product *x, bool two_rows, bool two_cols, bool add)
{
    float *const c = x->c;
    if (add) {
        _tile_loadd(0, c, 64);
        if (two_cols) {
            _tile_loadd(1, c + x->c_col, 64);
        }
        if (two_rows) {
            _tile_loadd(2, c + x->c_row, 64);
        }
        if (two_rows && two_cols) {
            _tile_loadd(3, c + x->c_row + x->c_col, 64);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    const uint16_t *a = x->a;
    const uint16_t *b = x->b;
    for (int64_t step = 0; step < x->n_steps; ++step) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (two_cols) {
            _tile_loadd(7, b + x->b_col, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, a + x->a_row, 64);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (two_rows && two_cols) {
            _tile_dpbf16ps(3, 5, 7);
        }
        a += x->a_step;
        b += x->b_step;
    }
    _tile_stored(0, c, 64);
    if (two_cols) {
        _tile_stored(1, c + x->c_col, 64);
    }
    if (two_rows) {
        _tile_stored(2, c + x->c_row, 64);
    }
    if (two_rows && two_cols) {
        _tile_stored(3, c + x->c_row + x->c_col, 64);
    }
}

#endif
