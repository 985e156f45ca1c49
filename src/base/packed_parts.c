/* SPDX-License-Identifier: Apache-2.0 */
/* Packed matrices in parts. See packed_parts.h. */
#include "base/packed_parts.h"

#include "base/packed.h"

#include <stdlib.h>
#include <string.h>

enum { NESTED_ELEMENTS = DSI_PACKED_BLOCK * DSI_PACKED_NESTED };

static bool divides(int64_t n, int64_t ranks)
{
    return n % ranks == 0;
}

static ds_packed part_of(const dsi_packed_parts *p)
{
    ds_packed part = *p->whole;
    part.transposed = 0;
    part.rows = p->cut == DSI_PACKED_ROWS ? part.rows / p->ranks : part.rows;
    part.columns = p->cut == DSI_PACKED_COLUMNS ? part.columns / p->ranks : part.columns;
    return part;
}

/* Bytes of a rank's part; 0: the matrix is not divided evenly. */
static int64_t bytes_of(const ds_packed *whole, dsi_packed_cut cut, int64_t ranks)
{
    const dsi_packed_parts parts = {whole, cut, ranks};
    const ds_packed part = part_of(&parts);
    return divides(cut == DSI_PACKED_ROWS ? whole->rows : whole->columns, ranks)
               ? (int64_t)ds_packed_bytes(&part)
               : 0;
}

ds_shape dsi_packed_shape(const ds_packed *whole, int64_t ranks)
{
    const int64_t all = (int64_t)ds_packed_bytes(whole);
    if (ranks <= 1) {
        return ds_shape_1d(all);
    }
    int64_t each = (all + ranks - 1) / ranks;
    for (dsi_packed_cut cut = DSI_PACKED_ROWS; cut <= DSI_PACKED_COLUMNS; ++cut) {
        const int64_t n = bytes_of(whole, cut, ranks);
        each = n > each ? n : each;
    }
    const int64_t unit = 4 * ranks;
    return ds_shape_2d(ranks, (each + unit - 1) / unit * unit);
}

/* Elements side by side that are in one rank's part. */
static int64_t run_of(const dsi_packed_parts *p)
{
    const ds_packed part = part_of(p);
    return p->cut == DSI_PACKED_COLUMNS ? part.columns : part.rows * part.columns;
}

bool dsi_packed_can_cut(const dsi_packed_parts *p)
{
    const int64_t n = p->cut == DSI_PACKED_ROWS ? p->whole->rows : p->whole->columns;
    const int64_t unit = p->whole->format == DS_PACKING_NF4          ? DSI_PACKED_BLOCK
                         : p->whole->format == DS_PACKING_NF4_DOUBLE ? NESTED_ELEMENTS
                                                                     : 1;
    return p->cut == DSI_PACKED_WHOLE || (divides(n, p->ranks) && divides(run_of(p), unit));
}

/* ---- a rank's part ---------------------------------------------------------------------------
 */

/* One of the two is written: part from whole, or back. */
typedef struct copier {
    const dsi_packed_parts *parts;
    unsigned char *whole, *part;
    bool back;
} copier;

static void copy(const copier *c, int64_t at_whole, int64_t at_part, int64_t n)
{
    if (c->back) {
        memcpy(c->whole + at_whole, c->part + at_part, (size_t)n);
    } else {
        memcpy(c->part + at_part, c->whole + at_whole, (size_t)n);
    }
}

static int64_t front_of(const ds_packed *p)
{
    static const unsigned char none;
    return p->rows > 0 ? dsi_packed_codes(p, &none) - &none : 0;
}

static int64_t groups_of(const ds_packed *p)
{
    const int64_t blocks = (p->rows * p->columns + DSI_PACKED_BLOCK - 1) / DSI_PACKED_BLOCK;
    return (blocks + DSI_PACKED_NESTED - 1) / DSI_PACKED_NESTED;
}

/* n elements, whole blocks of the format, with what belongs to them in front of the codes. */
static void copy_run(const copier *c, const ds_packed *part, int64_t from, int64_t to, int64_t n)
{
    const ds_packed *whole = c->parts->whole;
    const int64_t front[2] = {front_of(whole), front_of(part)};
    const int64_t b = DSI_PACKED_BLOCK, g = NESTED_ELEMENTS, f = (int64_t)sizeof(float);
    switch (whole->format) {
    case DS_PACKING_NF4:
        copy(c, f * (from / b), f * (to / b), f * (n / b));
        copy(c, front[0] + from / 2, front[1] + to / 2, n / 2);
        break;
    case DS_PACKING_NF4_DOUBLE:
        copy(c, 0, 0, f);
        copy(c, f * (1 + from / g), f * (1 + to / g), f * (n / g));
        copy(c, f * (1 + groups_of(whole)) + from / b, f * (1 + groups_of(part)) + to / b, n / b);
        copy(c, front[0] + from / 2, front[1] + to / 2, n / 2);
        break;
    default:
        copy(c, f * (from / whole->columns), f * (to / part->columns),
             f * (n > part->columns ? n / part->columns : 1));
        copy(c, front[0] + from, front[1] + to, n);
        break;
    }
}

static void copy_part(const copier *c, int64_t rank)
{
    const ds_packed part = part_of(c->parts);
    const int64_t n = run_of(c->parts);
    if (c->parts->cut == DSI_PACKED_ROWS) {
        copy_run(c, &part, rank * n, 0, n);
        return;
    }
    for (int64_t row = 0; row < part.rows; ++row) {
        copy_run(c, &part, row * c->parts->whole->columns + rank * n, row * n, n);
    }
}

/* ---- the cell --------------------------------------------------------------------------------
 */

/* A rank's part of the cell, in one piece or in one of every row. */
static void move_part(const copier *c, unsigned char *cell, ds_shape shape, int64_t rank)
{
    const int64_t ranks = shape.dims[0], each = shape.dims[1];
    const bool rows = c->parts->cut == DSI_PACKED_ROWS;
    const int64_t n = rows ? each : each / ranks;
    for (int64_t i = 0; i < (rows ? 1 : ranks); ++i) {
        unsigned char *at = cell + (rows ? rank * each : i * each + rank * n);
        memcpy(c->back ? c->part + i * n : at, c->back ? at : c->part + i * n, (size_t)n);
    }
}

static ds_status move_all(ds_ctx *ctx, copier *c, unsigned char *cell)
{
    const ds_shape shape = dsi_packed_shape(c->parts->whole, c->parts->ranks);
    c->part = calloc((size_t)shape.dims[1] + 1, 1);
    if (c->part == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a part of a packed matrix");
    }
    for (int64_t rank = 0; rank < c->parts->ranks; ++rank) {
        if (c->back) {
            move_part(c, cell, shape, rank);
            copy_part(c, rank);
        } else {
            copy_part(c, rank);
            move_part(c, cell, shape, rank);
        }
    }
    free(c->part);
    return DS_OK;
}

ds_status dsi_packed_split(ds_ctx *ctx, const dsi_packed_parts *parts, const void *whole,
                           void *cell)
{
    const size_t bytes = ds_packed_bytes(parts->whole);
    const size_t room = (size_t)ds_shape_count(dsi_packed_shape(parts->whole, parts->ranks));
    if (parts->cut == DSI_PACKED_WHOLE || parts->ranks <= 1) {
        memcpy(cell, whole, bytes);
        memset((unsigned char *)cell + bytes, 0, room - bytes);
        return DS_OK;
    }
    copier c = {.parts = parts, .whole = (unsigned char *)(uintptr_t)whole};
    return move_all(ctx, &c, cell);
}

ds_status dsi_packed_join(ds_ctx *ctx, const dsi_packed_parts *parts, const void *cell, void *whole)
{
    if (parts->cut == DSI_PACKED_WHOLE || parts->ranks <= 1) {
        memcpy(whole, cell, ds_packed_bytes(parts->whole));
        return DS_OK;
    }
    copier c = {.parts = parts, .whole = whole, .back = true};
    return move_all(ctx, &c, (unsigned char *)(uintptr_t)cell);
}
