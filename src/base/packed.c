/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights: layouts, reading, writing. See packed.h. */
#include "base/packed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16, HALVES = 128, CELLS = 65535 };

static const float INT8_UNIT = 0.007874015718698502f; /* 1 / 127 */
static const float FP8_LARGEST = 448.0f;

/* Quantiles of the normal distribution (QLoRA, appendix E). */
static const float nf4[16] = {-1.0f,
                              -0.696192800998687744f,
                              -0.525073051452636719f,
                              -0.394917488098144531f,
                              -0.284441381692886353f,
                              -0.184773430228233337f,
                              -0.0910500362515449524f,
                              0.0f,
                              0.0795802995562553406f,
                              0.160930201411247253f,
                              0.24611230194568634f,
                              0.337915241718292236f,
                              0.440709829330444336f,
                              0.562617003917694092f,
                              0.722956836223602295f,
                              1.0f};

/* The positive half of bitsandbytes' dynamic map of 8 bits: from 0.55e-6, in seven decades, to 1.
 * The negative half mirrors all but 1. */
static const float nested[HALVES] = {
    5.50000038e-07f, 3.25000019e-06f, 7.7499999e-06f,  2.12499981e-05f,
    4.37499984e-05f, 6.62500024e-05f, 8.87499991e-05f, 0.000156250011f,
    0.000268750038f, 0.000381250022f, 0.000493750034f, 0.000606250076f,
    0.00071875006f,  0.000831249985f, 0.000943750085f, 0.00128124992f,
    0.00184375001f,  0.00240624999f,  0.00296874996f,  0.00353124971f,
    0.00409374991f,  0.00465624966f,  0.00521875033f,  0.00578125007f,
    0.00634374982f,  0.00690625003f,  0.00746874977f,  0.00803124998f,
    0.00859375019f,  0.00915624946f,  0.00971874967f,  0.0114062503f,
    0.0142187504f,   0.0170312505f,   0.0198437516f,   0.0226562507f,
    0.0254687499f,   0.028281251f,    0.0310937501f,   0.0339062512f,
    0.0367187522f,   0.0395312496f,   0.0423437469f,   0.0451562516f,
    0.047968749f,    0.05078125f,     0.053593751f,    0.0564062484f,
    0.0592187531f,   0.0620312504f,   0.0648437515f,   0.0676562563f,
    0.0704687461f,   0.0732812509f,   0.0760937482f,   0.078906253f,
    0.0817187577f,   0.0845312476f,   0.0873437524f,   0.0901562497f,
    0.0929687545f,   0.0957812592f,   0.0985937491f,   0.107031256f,
    0.12109375f,     0.135156244f,    0.149218753f,    0.163281247f,
    0.177343756f,    0.19140625f,     0.205468744f,    0.219531253f,
    0.233593747f,    0.247656241f,    0.26171875f,     0.275781274f,
    0.289843738f,    0.303906262f,    0.317968726f,    0.33203125f,
    0.346093744f,    0.360156238f,    0.374218762f,    0.388281226f,
    0.40234375f,     0.416406244f,    0.430468738f,    0.444531262f,
    0.458593726f,    0.47265625f,     0.486718714f,    0.500781238f,
    0.514843702f,    0.528906226f,    0.54296875f,     0.557031274f,
    0.571093798f,    0.585156262f,    0.599218726f,    0.61328125f,
    0.627343774f,    0.641406298f,    0.655468762f,    0.669531226f,
    0.68359375f,     0.697656274f,    0.711718798f,    0.725781262f,
    0.739843726f,    0.75390625f,     0.767968774f,    0.782031238f,
    0.796093762f,    0.810156226f,    0.82421875f,     0.838281274f,
    0.852343738f,    0.866406262f,    0.880468726f,    0.89453125f,
    0.908593774f,    0.922656238f,    0.936718762f,    0.950781226f,
    0.96484375f,     0.978906274f,    0.992968738f,    1.0f,
};

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

/* Element of the dynamic map of 8 bits. */
static float nested_value(unsigned char code)
{
    return code >= HALVES       ? nested[code - HALVES]
           : code == HALVES - 1 ? 0.0f
                                : -nested[HALVES - 2 - code];
}

/* The largest magnitude of a block of nf4. */
static float block_scale(const ds_packed *p, const void *data, int64_t block)
{
    const float *front = data;
    if (p->format == DS_PACKING_NF4) {
        return front[block];
    }
    const int64_t groups = parts(parts(count_of(p), DSI_PACKED_BLOCK), DSI_PACKED_NESTED);
    const unsigned char *codes = (const unsigned char *)(front + 1 + groups);
    const float product = nested_value(codes[block]) * front[1 + block / DSI_PACKED_NESTED];
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
        values[k] = nf4[k] * scale;
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
        code += x > (nf4[k] + nf4[k + 1]) / 2.0f;
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

/* Of [-1,1] there are 65536 equal cells; the code is the map's nearest to the middle of x's cell,
 * which is how bitsandbytes looks it up on processors. */
static unsigned char nested_code(float x)
{
    const int cell = (int)((x + 1.0f) * 32767.5f + 0.5f);
    const float middle = (float)((double)(cell > CELLS ? CELLS : cell) / 32767.5 - 1.0);
    unsigned low = 0;
    unsigned high = 255;
    while (low < high) { /* the number of values half-way between neighbours below it */
        const unsigned k = (low + high) / 2;
        const float between =
            (nested_value((unsigned char)k) + nested_value((unsigned char)(k + 1))) * 0.5f;
        if (between < middle) {
            low = k + 1;
        } else {
            high = k;
        }
    }
    return (unsigned char)low;
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
        front[1 + g] = most;
        for (int64_t i = 0; i < n; ++i) {
            codes[begin + i] = most > 0.0f ? nested_code(w->scales[begin + i] / most) : 0;
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
