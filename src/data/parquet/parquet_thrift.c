/* SPDX-License-Identifier: Apache-2.0 */
/* Thrift's compact protocol. See parquet_thrift.h. */
#include "data/parquet/parquet_thrift.h"

enum { MAX_DEPTH = 32 };

static void spoil(dsi_thrift *t)
{
    t->bad = true;
    t->p = t->end;
}

static uint8_t byte(dsi_thrift *t)
{
    if (t->p == t->end) {
        t->bad = true;
        return 0;
    }
    return *t->p++;
}

static uint64_t varint(dsi_thrift *t)
{
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 64; shift += 7) {
        const uint8_t b = byte(t);
        value |= (uint64_t)(b & 0x7F) << shift;
        if ((b & 0x80) == 0) {
            return t->bad ? 0 : value;
        }
    }
    spoil(t);
    return 0;
}

static int64_t zigzag(dsi_thrift *t)
{
    const uint64_t value = varint(t);
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

bool dsi_thrift_next(dsi_thrift *t, dsi_thrift_field *field)
{
    const uint8_t head = byte(t);
    if (t->bad || head == DSI_THRIFT_STOP) {
        return false;
    }
    field->type = head & 0x0F;
    if (head >> 4 != 0) {
        field->id += head >> 4;
        if (field->id > INT16_MAX) {
            spoil(t);
        }
    } else {
        const int64_t id = zigzag(t);
        if (id < INT16_MIN || id > INT16_MAX) {
            spoil(t);
        }
        field->id = (int32_t)id;
    }
    return !t->bad;
}

static void jump(dsi_thrift *t, uint64_t n)
{
    if (n > (uint64_t)(t->end - t->p)) {
        spoil(t);
    } else {
        t->p += n;
    }
}

static void skip(dsi_thrift *t, uint8_t type, bool element, uint32_t depth);

static uint32_t list_head(dsi_thrift *t, uint8_t *type_out)
{
    const uint8_t head = byte(t);
    const uint64_t n = head >> 4 == 15 ? varint(t) : head >> 4;
    *type_out = head & 0x0F;
    if (n > (uint64_t)(t->end - t->p)) { /* each element takes a byte at least */
        spoil(t);
        return 0;
    }
    return (uint32_t)(n > UINT32_MAX ? UINT32_MAX : n);
}

static void skip_many(dsi_thrift *t, uint8_t type, uint32_t depth)
{
    if (type == DSI_THRIFT_MAP) {
        const uint64_t n = varint(t);
        const uint8_t types = n > 0 ? byte(t) : 0;
        for (uint64_t i = 0; i < n && !t->bad; ++i) {
            skip(t, types >> 4, true, depth);
            skip(t, types & 0x0F, true, depth);
        }
        return;
    }
    uint8_t inner = 0;
    const uint32_t n = list_head(t, &inner);
    for (uint32_t i = 0; i < n && !t->bad; ++i) {
        skip(t, inner, true, depth);
    }
}

/* element: of a list or map, where a truth value takes a byte. */
static void skip(dsi_thrift *t, uint8_t type, bool element, uint32_t depth)
{
    dsi_thrift_field field = {0};
    if (depth > MAX_DEPTH) {
        spoil(t);
        return;
    }
    switch (type) {
    case DSI_THRIFT_TRUE:
    case DSI_THRIFT_FALSE:
        jump(t, element ? 1 : 0);
        break;
    case DSI_THRIFT_I8:
        jump(t, 1);
        break;
    case DSI_THRIFT_I16:
    case DSI_THRIFT_I32:
    case DSI_THRIFT_I64:
        (void)varint(t);
        break;
    case DSI_THRIFT_DOUBLE:
        jump(t, 8);
        break;
    case DSI_THRIFT_BINARY:
        jump(t, varint(t));
        break;
    case DSI_THRIFT_LIST:
    case DSI_THRIFT_SET:
    case DSI_THRIFT_MAP:
        skip_many(t, type, depth + 1);
        break;
    case DSI_THRIFT_STRUCT:
        while (dsi_thrift_next(t, &field)) {
            skip(t, field.type, false, depth + 1);
        }
        break;
    default:
        spoil(t);
        break;
    }
}

void dsi_thrift_skip(dsi_thrift *t, uint8_t type)
{
    skip(t, type, false, 0);
}

int64_t dsi_thrift_int(dsi_thrift *t, const dsi_thrift_field *field)
{
    switch (field->type) {
    case DSI_THRIFT_I8:
        return (int8_t)byte(t);
    case DSI_THRIFT_I16:
    case DSI_THRIFT_I32:
    case DSI_THRIFT_I64:
        return zigzag(t);
    default:
        spoil(t);
        return 0;
    }
}

bool dsi_thrift_bool(dsi_thrift *t, const dsi_thrift_field *field)
{
    if (field->type != DSI_THRIFT_TRUE && field->type != DSI_THRIFT_FALSE) {
        spoil(t);
    }
    return field->type == DSI_THRIFT_TRUE;
}

const uint8_t *dsi_thrift_binary(dsi_thrift *t, const dsi_thrift_field *field, size_t *n_out)
{
    if (field->type != DSI_THRIFT_BINARY) {
        spoil(t);
    }
    const uint64_t n = varint(t);
    const uint8_t *data = t->p;
    jump(t, n);
    *n_out = t->bad ? 0 : (size_t)n;
    return t->bad ? (const uint8_t *)"" : data;
}

uint32_t dsi_thrift_list(dsi_thrift *t, const dsi_thrift_field *field, uint8_t type)
{
    uint8_t inner = 0;
    if (field->type != DSI_THRIFT_LIST) {
        spoil(t);
    }
    const uint32_t n = list_head(t, &inner);
    if (n > 0 && inner != type) {
        spoil(t);
    }
    return t->bad ? 0 : n;
}

void dsi_thrift_struct(dsi_thrift *t, const dsi_thrift_field *field)
{
    if (field->type != DSI_THRIFT_STRUCT) {
        spoil(t);
    }
}
