/* SPDX-License-Identifier: Apache-2.0 */
/* See proto.h. A field is its number and wire type as a varint, then the value: a varint (type 0),
 * or bytes behind their count (type 2). */
#include "monitor/proto.h"

#include <string.h>

enum { WIRE_VARINT = 0, WIRE_BYTES = 2 };

static void put_varint(dsi_buf *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) {
        dsi_buf_putc(out, (char)(unsigned char)(value | 0x80));
    }
    dsi_buf_putc(out, (char)value);
}

static void put_key(dsi_buf *out, uint32_t field, uint32_t wire)
{
    put_varint(out, (uint64_t)field << 3 | wire);
}

void dsi_proto_whole(dsi_buf *out, uint32_t field, uint64_t value)
{
    put_key(out, field, WIRE_VARINT);
    put_varint(out, value);
}

static void put_bytes(dsi_buf *out, uint32_t field, const void *data, size_t n)
{
    put_key(out, field, WIRE_BYTES);
    put_varint(out, n);
    dsi_buf_append(out, data, n);
}

void dsi_proto_text(dsi_buf *out, uint32_t field, const char *text)
{
    if (text != NULL) {
        put_bytes(out, field, text, strlen(text));
    }
}

void dsi_proto_message(dsi_buf *out, uint32_t field, const dsi_buf *message)
{
    put_bytes(out, field, dsi_buf_text(message), message->size);
    out->failed = out->failed || message->failed;
}
