/* SPDX-License-Identifier: Apache-2.0 */
/* Reading protocol buffers. See protobuf.h. */
#include "io/protobuf.h"

dsi_proto_reader dsi_proto_reader_make(const char *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;
    return (dsi_proto_reader){p, p + n};
}

/* Seven bits a byte, the low ones first. */
static bool read_varint(dsi_proto_reader *r, uint64_t *value_out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && r->p < r->end; shift += 7) {
        const unsigned char byte = *r->p++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value_out = value;
            return true;
        }
    }
    return false;
}

static bool read_fixed(dsi_proto_reader *r, size_t n, uint64_t *value_out)
{
    uint64_t value = 0;
    if ((size_t)(r->end - r->p) < n) {
        return false;
    }
    for (size_t i = n; i > 0; --i) {
        value = value << 8 | r->p[i - 1];
    }
    r->p += n;
    *value_out = value;
    return true;
}

static bool read_bytes(dsi_proto_reader *r, dsi_proto_field *field)
{
    uint64_t n = 0;
    if (!read_varint(r, &n) || n > (uint64_t)(r->end - r->p)) {
        return false;
    }
    field->data = (const char *)r->p;
    field->n = (size_t)n;
    r->p += n;
    return true;
}

bool dsi_proto_next(dsi_proto_reader *r, dsi_proto_field *field_out, bool *bad_out)
{
    enum { MAX_NUMBER = (1 << 29) - 1 };
    uint64_t tag = 0;
    if (r->p == r->end) {
        return false;
    }
    dsi_proto_field field = {0};
    bool good = read_varint(r, &tag) && tag >> 3 >= 1 && tag >> 3 <= MAX_NUMBER;
    field.number = (uint32_t)(tag >> 3);
    field.wire = (uint32_t)(tag & 7);
    if (good) {
        switch (field.wire) {
        case DSI_WIRE_WHOLE:
            good = read_varint(r, &field.whole);
            break;
        case DSI_WIRE_64:
            good = read_fixed(r, 8, &field.whole);
            break;
        case DSI_WIRE_BYTES:
            good = read_bytes(r, &field);
            break;
        case DSI_WIRE_32:
            good = read_fixed(r, 4, &field.whole);
            break;
        default:
            good = false;
        }
    }
    *bad_out = !good;
    *field_out = field;
    return good;
}
