/* SPDX-License-Identifier: Apache-2.0 */
/* Packed integers of Parquet. See parquet_bits.h. */
#include "data/parquet/parquet_bits.h"

#include <string.h>

bool dsi_span_take(dsi_span *span, size_t n, const uint8_t **data_out)
{
    if (n > (size_t)(span->end - span->p)) {
        return false;
    }
    *data_out = span->p;
    span->p += n;
    return true;
}

bool dsi_span_u32(dsi_span *span, uint32_t *value_out)
{
    const uint8_t *data = NULL;
    if (!dsi_span_take(span, 4, &data)) {
        return false;
    }
    *value_out = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
                 (uint32_t)data[3] << 24;
    return true;
}

static bool span_varint(dsi_span *span, uint64_t *value_out)
{
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 64 && span->p < span->end; shift += 7) {
        const uint8_t b = *span->p++;
        value |= (uint64_t)(b & 0x7F) << shift;
        if ((b & 0x80) == 0) {
            *value_out = value;
            return true;
        }
    }
    return false;
}

uint64_t dsi_bits_get(const uint8_t *data, uint64_t at, uint32_t n)
{
    uint64_t value = 0;
    uint32_t got = 0;
    while (got < n) {
        const uint64_t b = data[(at + got) / 8] >> ((at + got) % 8);
        const uint32_t here = 8 - (uint32_t)((at + got) % 8);
        value |= b << got;
        got += here;
    }
    return n < 64 ? value & ((UINT64_C(1) << n) - 1) : value;
}

dsi_hybrid dsi_hybrid_make(dsi_span span, uint32_t width)
{
    return (dsi_hybrid){.span = span, .width = width};
}

/* Reads the head of the next run. A last run of packed values may be cut short behind the last
 * value that is needed. */
static bool next_run(dsi_hybrid *h)
{
    uint64_t head = 0;
    const uint8_t *data = NULL;
    if (!span_varint(&h->span, &head) || head > UINT32_MAX) {
        return false;
    }
    h->packed = (head & 1) != 0;
    if (h->packed) {
        const uint64_t there = (uint64_t)(h->span.end - h->span.p);
        const uint64_t bytes = (head >> 1) * h->width;
        h->left = (head >> 1) * 8;
        h->at = 0;
        h->n_bits = (bytes < there ? bytes : there) * 8;
        return dsi_span_take(&h->span, (size_t)(h->n_bits / 8), &h->bits);
    }
    const uint32_t bytes = (h->width + 7) / 8;
    h->left = head >> 1;
    if (!dsi_span_take(&h->span, bytes, &data)) {
        return false;
    }
    h->value = 0;
    for (uint32_t i = 0; i < bytes; ++i) {
        h->value |= (uint32_t)data[i] << (8 * i);
    }
    return true;
}

bool dsi_hybrid_next(dsi_hybrid *h, uint32_t *value_out)
{
    while (h->left == 0) {
        if (!next_run(h)) {
            return false;
        }
    }
    --h->left;
    if (!h->packed) {
        *value_out = h->value;
        return true;
    }
    if (h->n_bits - h->at < h->width) {
        return false;
    }
    *value_out = (uint32_t)dsi_bits_get(h->bits, h->at, h->width);
    h->at += h->width;
    return true;
}

static uint64_t unzigzag(uint64_t value)
{
    return value >> 1 ^ (0 - (value & 1));
}

bool dsi_delta_open(dsi_span span, dsi_delta *delta_out)
{
    dsi_delta d = {.span = span};
    uint64_t block = 0;
    uint64_t first = 0;
    if (!span_varint(&d.span, &block) || !span_varint(&d.span, &d.n_mini) ||
        !span_varint(&d.span, &d.n_left) || !span_varint(&d.span, &first)) {
        return false;
    }
    if (d.n_mini == 0 || d.n_mini > 4096 || block == 0 || block > (1 << 24) ||
        block % d.n_mini != 0 || d.n_left > INT32_MAX) {
        return false;
    }
    d.mini_values = block / d.n_mini;
    d.mini = d.n_mini;
    d.value = unzigzag(first);
    *delta_out = d;
    return true;
}

static bool next_block(dsi_delta *d)
{
    uint64_t min_delta = 0;
    if (!span_varint(&d->span, &min_delta) ||
        !dsi_span_take(&d->span, (size_t)d->n_mini, &d->widths)) {
        return false;
    }
    d->min_delta = unzigzag(min_delta);
    d->mini = 0;
    return true;
}

/* Begins the next miniblock. Those behind the last value are not there. */
static bool next_mini(dsi_delta *d)
{
    d->mini += d->mini < d->n_mini && d->bits != NULL;
    d->bits = NULL;
    if (d->mini >= d->n_mini && !next_block(d)) {
        return false;
    }
    const uint32_t width = d->widths[d->mini];
    d->mini_left = d->mini_values;
    d->at = 0;
    return width <= 64 &&
           dsi_span_take(&d->span, (size_t)((d->mini_values * width + 7) / 8), &d->bits);
}

bool dsi_delta_next(dsi_delta *d, uint64_t *value_out)
{
    if (d->n_left == 0) {
        return false;
    }
    *value_out = d->value;
    if (--d->n_left == 0) {
        return true;
    }
    if (d->mini_left == 0 && !next_mini(d)) {
        return false;
    }
    const uint32_t width = d->widths[d->mini];
    d->value += d->min_delta + dsi_bits_get(d->bits, d->at, width);
    d->at += width;
    --d->mini_left;
    return true;
}

dsi_span dsi_delta_rest(const dsi_delta *d)
{
    return d->span;
}
