/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of small integers as Parquet packs them: levels, dictionary indices, deltas. Every read is
 * bounded; a read past the end reports false and the page is bad. Source: parquet-format's
 * Encodings.md. */
#ifndef DSI_DATA_PARQUET_BITS_H
#define DSI_DATA_PARQUET_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that are read front to back. */
typedef struct dsi_span {
    const uint8_t *p, *end;
} dsi_span;

bool dsi_span_take(dsi_span *span, size_t n, const uint8_t **data_out);
bool dsi_span_u32(dsi_span *span, uint32_t *value_out); /* little endian */

/* The n bits (at most 64) from bit `at` on, lowest first; the caller knows that they are there. */
uint64_t dsi_bits_get(const uint8_t *data, uint64_t at, uint32_t n);

/* RLE / bit-packing hybrid. */
typedef struct dsi_hybrid {
    dsi_span span;
    uint32_t width; /* of a value in bits, 0 to 32 */
    uint64_t left;  /* values of the current run */
    bool packed; /* the run is packed at `bits`, and `at` is its next bit; else all are `value` */
    const uint8_t *bits;
    uint64_t n_bits, at;
    uint32_t value;
} dsi_hybrid;

dsi_hybrid dsi_hybrid_make(dsi_span span, uint32_t width);
bool dsi_hybrid_next(dsi_hybrid *hybrid, uint32_t *value_out);

/* DELTA_BINARY_PACKED. */
typedef struct dsi_delta {
    dsi_span span;
    uint64_t n_left;              /* values not given yet */
    uint64_t n_mini, mini_values; /* miniblocks of a block, values of a miniblock */
    uint64_t value;               /* the next one to give; arithmetic is modulo 2^64 */
    uint64_t min_delta;
    const uint8_t *widths; /* of the block's miniblocks */
    uint64_t mini;         /* the current one; n_mini: the block is over */
    uint64_t mini_left;    /* deltas of it */
    const uint8_t *bits;
    uint64_t at;
} dsi_delta;

/* Reads the head; n_values_out: how many values there are in all. */
bool dsi_delta_open(dsi_span span, dsi_delta *delta_out);
bool dsi_delta_next(dsi_delta *delta, uint64_t *value_out);
/* Behind the last value: the bytes behind the last miniblock. */
dsi_span dsi_delta_rest(const dsi_delta *delta);

#endif
