/* SPDX-License-Identifier: Apache-2.0 */
/* Placements as text, and back. See placement.h. */
#include "place/placement.h"

#include <stdio.h>
#include <string.h>

static const char *const partial_names[] = {[DSI_TERMS_SUM] = "P",
                                            [DSI_TERMS_MAX] = "Pmax",
                                            [DSI_TERMS_EXACT] = "Pexact",
                                            [DSI_TERMS_SIDE] = "Pside"};

void dsi_placement_text(const dsi_placement *p, dsi_buf *buf)
{
    const char *blank = "";
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (p->on[a].kind == DSI_SHARD) {
            dsi_buf_printf(buf, "%s%s:S(%u", blank, dsi_axis_name((dsi_axis)a), p->on[a].dim);
            if (p->on[a].blocks == DSI_PADDED) {
                dsi_buf_puts(buf, ";padded");
            } else if (p->on[a].blocks > 0) {
                dsi_buf_printf(buf, ";%u", p->on[a].blocks);
            }
            dsi_buf_putc(buf, ')');
            blank = " ";
        } else if (p->on[a].kind == DSI_AT || p->on[a].kind == DSI_FROM) {
            dsi_buf_printf(buf, "%s%s:%s(%u,%u)", blank, dsi_axis_name((dsi_axis)a),
                           p->on[a].kind == DSI_AT ? "at" : "from", p->on[a].dim, p->on[a].blocks);
            blank = " ";
        } else if (p->on[a].kind != DSI_REPLICATE) {
            const bool own = p->on[a].kind == DSI_OWN;
            dsi_buf_printf(buf, "%s%s:%s", blank, dsi_axis_name((dsi_axis)a),
                           own ? "own" : partial_names[p->on[a].dim % 4]);
            blank = " ";
        }
    }
    if (p->flat.n > 0) {
        dsi_buf_printf(buf, "%sflat(", blank);
        for (uint32_t i = 0; i < p->flat.n; ++i) {
            dsi_buf_printf(buf, "%s%s", i == 0 ? "" : ",",
                           dsi_axis_name((dsi_axis)p->flat.axis[i]));
        }
        if (p->cut == DSI_CUT_TENSOR) {
            dsi_buf_printf(buf, ";tensor@%u", p->owner);
        }
        dsi_buf_putc(buf, ')');
    } else if (*blank == '\0') {
        dsi_buf_putc(buf, 'R');
    }
}

const char *dsi_placement_str(const dsi_placement *p, char text[DSI_PLACEMENT_TEXT])
{
    dsi_buf buf = dsi_buf_make(DSI_PLACEMENT_TEXT);
    dsi_placement_text(p, &buf);
    (void)snprintf(text, DSI_PLACEMENT_TEXT, "%s", dsi_buf_text(&buf));
    dsi_buf_free(&buf);
    return text;
}

/* ---- reading: each step returns the text behind what it read, NULL when it is not there -------
 */

static const char *expect(const char *at, const char *text)
{
    const size_t n = strlen(text);
    return at != NULL && strncmp(at, text, n) == 0 ? at + n : NULL;
}

static const char *read_number(const char *at, uint32_t most, uint32_t *number_out)
{
    uint32_t number = 0;
    if (at == NULL || *at < '0' || *at > '9') {
        return NULL;
    }
    for (; *at >= '0' && *at <= '9'; ++at) {
        number = number * 10 + (uint32_t)(*at - '0');
        if (number > most) {
            return NULL;
        }
    }
    *number_out = number;
    return at;
}

static const char *read_axis(const char *at, dsi_axis *axis_out)
{
    const size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz");
    *axis_out = dsi_axis_from_name(at, n);
    return *axis_out == DSI_AXIS_COUNT ? NULL : at + n;
}

static const char *read_flat(const char *at, dsi_placement *p)
{
    if (p->flat.n > 0) {
        return NULL;
    }
    do {
        dsi_axis axis;
        at = read_axis(at, &axis);
        if (at == NULL || dsi_axes_has(&p->flat, axis)) {
            return NULL;
        }
        dsi_axes_add(&p->flat, axis);
    } while (*at == ',' && ++at);
    p->cut = DSI_CUT_ELEMENT;
    if (*at == ';') {
        p->cut = DSI_CUT_TENSOR;
        at = read_number(expect(at, ";tensor@"), DSI_MESH_MOST, &p->owner);
    }
    return expect(at, ")");
}

static const char *read_on(const char *at, dsi_placement *p)
{
    dsi_axis axis;
    at = read_axis(at, &axis);
    if (at == NULL || p->on[axis].kind != DSI_REPLICATE) {
        return NULL;
    }
    const char *shard = expect(at, ":S(");
    if (shard != NULL) {
        uint32_t dim = 0;
        uint32_t blocks = 0;
        at = read_number(shard, DS_MAX_DIMS - 1, &dim);
        const char *padded = expect(at, ";padded");
        const char *more = expect(at, ";");
        if (padded != NULL) {
            at = padded;
            blocks = DSI_PADDED;
        } else if (more != NULL) {
            at = read_number(more, DSI_PART_MOST_BLOCKS, &blocks);
            at = blocks < 2 ? NULL : at;
        }
        *p = dsi_shard_blocks(*p, axis, dim, blocks);
        return expect(at, ")");
    }
    const char *from = expect(at, ":from(");
    const char *indices = from != NULL ? from : expect(at, ":at(");
    if (indices != NULL) {
        uint32_t first = 0;
        uint32_t last = 0;
        at = read_number(indices, UINT8_MAX, &first);
        at = read_number(expect(at, ","), UINT8_MAX, &last);
        *p = from != NULL ? dsi_from(*p, axis, first, last) : dsi_at(*p, axis, first, last);
        return expect(at, ")");
    }
    if (expect(at, ":own") != NULL) {
        *p = dsi_own(*p, axis);
        return expect(at, ":own");
    }
    for (int how = DSI_TERMS_SIDE; how >= 0; --how) { /* "P" is the beginning of the others */
        const char *next = expect(expect(at, ":"), partial_names[how]);
        if (next != NULL) {
            *p = dsi_partial_of(*p, axis, (dsi_terms)how);
            return next;
        }
    }
    return NULL;
}

ds_status dsi_placement_parse(ds_ctx *ctx, const char *text, dsi_placement *p_out)
{
    dsi_placement p = {0};
    const char *at = text;
    const char *next = strcmp(text, "R") == 0 ? text + 1 : text;
    while (next != NULL && *next != '\0') {
        at = next;
        const char *flat = expect(at, "flat(");
        next = flat != NULL ? read_flat(flat, &p) : read_on(at, &p);
        if (next != NULL && *next != '\0') { /* one blank, and something behind it */
            next = *next == ' ' && next[1] != '\0' ? next + 1 : NULL;
        }
    }
    if (next == NULL || *text == '\0') {
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "placement: \"%.100s\", expected R or a list of axis:S(dim), "
                       "axis:S(dim;blocks), axis:S(0;padded), axis:P, axis:own, "
                       "axis:at(first,last), axis:from(first,last), flat(axes), "
                       "flat(axes;tensor@owner); wrong at \"%.20s\"",
                       text, at);
    }
    *p_out = p;
    return DS_OK;
}
