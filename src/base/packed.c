/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights: layouts, reading, writing. See packed.h. */
#include "base/packed.h"

#include "base/dynamic_map.h"
#include "base/nf4.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16 };

static const float INT8_UNIT = 0.007874015718698502f; /* 1 / 127 */
static const float FP8_LARGEST = 448.0f;

static const char *const names[DS_PACKING_COUNT] = {[DS_PACKING_NONE] = "none",
#define X(id, text) [DS_PACKING_##id] = text,
                                                    DS_PACKING_LIST(X)
#undef X
};

const char *ds_packing_name(ds_packing format)
{
    return names[format];
}

ds_packing ds_packing_from_name(const char *name)
{
    for (int i = 1; i < DS_PACKING_COUNT; ++i) {
        if (strcmp(name, names[i]) == 0) {
            return (ds_packing)i;
        }
    }
    return DS_PACKING_NONE;
}

/* ---- layout ---------------------------------------------------------------------------------- */

static int64_t count_of(const ds_packed *p)
{
    return ds_shape_count(ds_shape_2d(p->rows, p->columns));
}

static int64_t parts(int64_t n, int64_t each)
{
    return n / each + (n % each != 0);
}

static bool is_nf4(const ds_packed *p)
{
    return p->format == DS_PACKING_NF4 || p->format == DS_PACKING_NF4_DOUBLE;
}

/* Bytes in front of the codes. */
static int64_t front_bytes(const ds_packed *p)
{
    const int64_t blocks = parts(count_of(p), DSI_PACKED_BLOCK);
    switch (p->format) {
    case DS_PACKING_NF4:
        return 4 * blocks;
    case DS_PACKING_NF4_DOUBLE:
        return 4 + 4 * parts(blocks, DSI_PACKED_NESTED) + blocks;
    default:
        return 4 * p->rows;
    }
}

size_t ds_packed_bytes(const ds_packed *p)
{
    const int64_t n = count_of(p);
    if (n > INT64_MAX / 8) {
        return SIZE_MAX;
    }
    return (size_t)(front_bytes(p) + (is_nf4(p) ? parts(n, 2) : n));
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The largest magnitude of a block of nf4. */
static float block_scale(const ds_packed *p, const void *data, int64_t block)
{
    const float *front = data;
    if (p->format == DS_PACKING_NF4) {
        return front[block];
    }
    const int64_t groups = parts(parts(count_of(p), DSI_PACKED_BLOCK), DSI_PACKED_NESTED);
    const unsigned char *codes = (const unsigned char *)(front + 1 + groups);
    const float product =
        dsi_dynamic_map(true)[codes[block]] * front[1 + block / DSI_PACKED_NESTED];
    return product + front[0];
}

const unsigned char *dsi_packed_codes(const ds_packed *p, const void *data)
{
    return (const unsigned char *)data + front_bytes(p);
}

void dsi_packed_values(const ds_packed *p, const void *data, int64_t block, float values[16])
{
    const float scale = block_scale(p, data, block);
    for (int k = 0; k < 16; ++k) {
        values[k] = dsi_nf4[k] * scale;
    }
}

static void read_nf4(const ds_packed *p, const void *data, int64_t first, int64_t n, float *out)
{
    const unsigned char *codes = dsi_packed_codes(p, data);
    for (int64_t i = first; i < first + n;) {
        const int64_t block = i / DSI_PACKED_BLOCK;
        const int64_t end =
            (block + 1) * DSI_PACKED_BLOCK < first + n ? (block + 1) * DSI_PACKED_BLOCK : first + n;
        float values[16];
        dsi_packed_values(p, data, block, values);
        if (i % 2 != 0) {
            *out++ = values[codes[i / 2] & 15];
            ++i;
        }
        for (; i + 2 <= end; i += 2) {
            const unsigned char both = codes[i / 2];
            out[0] = values[both >> 4];
            out[1] = values[both & 15];
            out += 2;
        }
        if (i < end) {
            *out++ = values[codes[i / 2] >> 4];
            ++i;
        }
    }
}

/* e4m3: sign, four bits of exponent (bias 7), three of fraction; no infinities. */
static float fp8_value(unsigned char code)
{
    const int exponent = code >> 3 & 15;
    const int fraction = code & 7;
    const float magnitude = exponent == 15 && fraction == 7 ? NAN
                            : exponent == 0                 ? ldexpf((float)fraction, -9)
                                            : ldexpf((float)(8 + fraction), exponent - 10);
    return (code & 128) != 0 ? -magnitude : magnitude;
}

static void read_rows(const ds_packed *p, const void *data, int64_t first, int64_t n, float *out)
{
    const float *scales = data;
    const unsigned char *codes = (const unsigned char *)data + front_bytes(p);
    const float unit = p->format == DS_PACKING_FP8 ? 1.0f : INT8_UNIT;
    float values[256];
    for (int k = 0; k < 256; ++k) {
        values[k] = p->format == DS_PACKING_FP8 ? fp8_value((unsigned char)k)
                                                : (float)(k < 128 ? k : k - 256);
    }
    for (int64_t i = first; i < first + n;) {
        const int64_t row = i / p->columns;
        const int64_t end = (row + 1) * p->columns < first + n ? (row + 1) * p->columns : first + n;
        const float scale = scales[row];
        for (; i < end; ++i) {
            *out++ = values[codes[i]] * scale * unit;
        }
    }
}

void dsi_packed_read(const ds_packed *p, const void *data, int64_t first, int64_t n, float *out)
{
    if (is_nf4(p)) {
        read_nf4(p, data, first, n, out);
    } else {
        read_rows(p, data, first, n, out);
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct writer {
    ds_ctx *ctx;
    const ds_packed *p;
    dsi_packed_fn read;
    void *user;
    unsigned char *data;
    float *piece; /* PIECE, or a row where that is longer */
    float *scales;
} writer;

static float largest(const float *x, int64_t n)
{
    float most = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
        const float magnitude = fabsf(x[i]);
        most = magnitude > most || magnitude != magnitude ? magnitude : most;
    }
    return most;
}

static ds_status check_finite(const writer *w, float most, int64_t first)
{
    return isfinite(most)
               ? DS_OK
               : ds_fail(w->ctx, DS_ERR_NUMERIC,
                         "an element behind number %lld of a matrix of %lld x %lld is "
                         "not finite: it cannot be packed",
                         (long long)first, (long long)w->p->rows, (long long)w->p->columns);
}

/* How many of the 15 values half-way between neighbours are below x. */
static unsigned nf4_code(float x)
{
    unsigned code = 0;
    for (unsigned k = 0; k < 15; ++k) {
        code += x > (dsi_nf4[k] + dsi_nf4[k + 1]) / 2.0f;
    }
    return code;
}

static float bounded(float x)
{
    return x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x;
}

/* Codes of one block; the last one, where it is short, is divided, not multiplied: as bitsandbytes.
 */
static void write_block(const writer *w, int64_t first, int64_t n, const float *x)
{
    const float least = 1e-38f;
    const bool whole = n == DSI_PACKED_BLOCK;
    float most = largest(x, n);
    const float floor_of = most > least ? most : least;
    const float factor = 1.0f / floor_of;
    unsigned char *codes = w->data + front_bytes(w->p) + first / 2;
    most = whole ? most : floor_of;
    w->scales[first / DSI_PACKED_BLOCK] = most;
    for (int64_t i = 0; i < n; i += 2) {
        unsigned both[2] = {0, nf4_code(0.0f)};
        for (int64_t k = 0; k < 2 && i + k < n; ++k) {
            both[k] = nf4_code(bounded(whole ? x[i + k] * factor : x[i + k] / most));
        }
        codes[i / 2] = (unsigned char)(both[0] << 4 | both[1]);
    }
}

static ds_status write_nf4(const writer *w)
{
    const int64_t n = count_of(w->p);
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t count = n - at < PIECE ? n - at : PIECE;
        DS_TRY(w->read(w->user, at, count, w->piece));
        DS_TRY(check_finite(w, largest(w->piece, count), at));
        for (int64_t i = 0; i < count; i += DSI_PACKED_BLOCK) {
            write_block(w, at + i, count - i < DSI_PACKED_BLOCK ? count - i : DSI_PACKED_BLOCK,
                        w->piece + i);
        }
    }
    return DS_OK;
}

/* Magnitudes in 8 bits, less their mean: the exact sum over their number, rounded once. */
static ds_status write_nested(const writer *w)
{
    const int64_t blocks = parts(count_of(w->p), DSI_PACKED_BLOCK);
    const int64_t groups = parts(blocks, DSI_PACKED_NESTED);
    float *front = (float *)(void *)w->data;
    unsigned char *codes = w->data + 4 * (1 + groups);
    double sum = 0.0;
    for (int64_t b = 0; b < blocks; ++b) {
        sum += (double)w->scales[b];
    }
    front[0] = blocks > 0 ? (float)(sum / (double)blocks) : 0.0f;
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t begin = g * DSI_PACKED_NESTED;
        const int64_t n = blocks - begin < DSI_PACKED_NESTED ? blocks - begin : DSI_PACKED_NESTED;
        for (int64_t i = 0; i < n; ++i) {
            w->scales[begin + i] -= front[0];
        }
        const float most = largest(w->scales + begin, n);
        const float inverse = 1.0f / most;
        front[1 + g] = most;
        for (int64_t i = 0; i < n; ++i) {
            codes[begin + i] = most > 0.0f ? dsi_dynamic_code(dsi_dynamic_map(true),
                                                              w->scales[begin + i] * inverse)
                                           : 0;
        }
    }
    return DS_OK;
}

/* To the nearest e4m3, ties to even; at most the largest. */
static unsigned char fp8_of(float x)
{
    const float magnitude = fabsf(x) < FP8_LARGEST ? fabsf(x) : FP8_LARGEST;
    const unsigned sign = signbit(x) ? 128 : 0;
    int exponent = 0;
    (void)frexpf(magnitude, &exponent); /* magnitude in [2^(exponent-1), 2^exponent) */
    exponent = exponent < -5 || magnitude == 0.0f ? -5 : exponent; /* subnormal: steps of 2^-9 */
    const int steps = (int)rintf(ldexpf(magnitude, 4 - exponent)); /* 8 to 16 of them, or fewer */
    return (unsigned char)(sign | (unsigned)(steps + 8 * (exponent + 5)));
}

/* A row at a time: a scale, then its elements over it. */
static ds_status write_row(const writer *w, int64_t row)
{
    const int64_t n = w->p->columns;
    const bool real = w->p->format == DS_PACKING_FP8;
    unsigned char *codes = w->data + front_bytes(w->p) + row * n;
    DS_TRY(w->read(w->user, row * n, n, w->piece));
    const float most = largest(w->piece, n);
    DS_TRY(check_finite(w, most, row * n));
    const float factor = real ? most / FP8_LARGEST : 127.0f / most;
    ((float *)(void *)w->data)[row] = real ? factor : most;
    for (int64_t i = 0; i < n; ++i) {
        const float x = w->piece[i];
        codes[i] = most <= 0.0f ? 0
                   : real       ? fp8_of(x / factor)
                                : (unsigned char)(int)rintf(x * factor);
    }
    return DS_OK;
}

static ds_status write_all(const writer *w)
{
    if (is_nf4(w->p)) {
        DS_TRY(write_nf4(w));
        return w->p->format == DS_PACKING_NF4_DOUBLE ? write_nested(w) : DS_OK;
    }
    for (int64_t row = 0; row < w->p->rows; ++row) {
        DS_TRY(write_row(w, row));
    }
    return DS_OK;
}

ds_status dsi_packed_write(ds_ctx *ctx, const ds_packed *p, dsi_packed_fn read, void *user,
                           void *data)
{
    const int64_t blocks = parts(count_of(p), DSI_PACKED_BLOCK);
    const int64_t room = p->columns > PIECE && !is_nf4(p) ? p->columns : PIECE;
    float *own = NULL;
    writer w = {.ctx = ctx, .p = p, .read = read, .user = user, .data = data, .scales = data};
    w.piece = malloc((size_t)room * sizeof *w.piece);
    if (p->format == DS_PACKING_NF4_DOUBLE) {
        w.scales = own = malloc(((size_t)blocks + 1) * sizeof *own);
    }
    const ds_status status = w.piece != NULL && w.scales != NULL
                                 ? write_all(&w)
                                 : ds_fail(ctx, DS_ERR_NOMEM, "no memory to pack a matrix");
    free(w.piece);
    free(own);
    return status;
}
