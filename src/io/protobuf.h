/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format of protocol buffers, read: the fields of a message one after another. Groups,
 * which nobody has written since 2009, are refused. (Written: monitor/proto.h.) */
#ifndef DSI_IO_PROTOBUF_H
#define DSI_IO_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DSI_WIRE_WHOLE = 0, DSI_WIRE_64 = 1, DSI_WIRE_BYTES = 2, DSI_WIRE_32 = 5 };

typedef struct dsi_proto_reader {
    const unsigned char *p, *end;
} dsi_proto_reader;

typedef struct dsi_proto_field {
    uint32_t number;
    uint32_t wire;
    uint64_t whole;   /* of all kinds but BYTES */
    const char *data; /* of BYTES: borrowed from the message */
    size_t n;
} dsi_proto_field;

dsi_proto_reader dsi_proto_reader_make(const char *data, size_t n);

/* The next field; false at the end of the message, and with *bad_out where it is malformed. */
bool dsi_proto_next(dsi_proto_reader *r, dsi_proto_field *field_out, bool *bad_out);

#endif
