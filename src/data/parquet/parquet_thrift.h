/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of Thrift's compact protocol, as far as Parquet's footers and page headers need it.
 *
 * The bytes are not trusted. A read past the end, or a number that is too long, sets `bad`; from
 * then on every read gives zero and every struct and list ends, so that a caller checks once, at
 * the end. Source: thrift-compact-protocol.md of Apache Thrift.
 */
#ifndef DSI_DATA_THRIFT_H
#define DSI_DATA_THRIFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum dsi_thrift_type {
    DSI_THRIFT_STOP = 0,
    DSI_THRIFT_TRUE = 1, /* of a field: the value is in the type */
    DSI_THRIFT_FALSE = 2,
    DSI_THRIFT_I8 = 3,
    DSI_THRIFT_I16 = 4,
    DSI_THRIFT_I32 = 5,
    DSI_THRIFT_I64 = 6,
    DSI_THRIFT_DOUBLE = 7,
    DSI_THRIFT_BINARY = 8,
    DSI_THRIFT_LIST = 9,
    DSI_THRIFT_SET = 10,
    DSI_THRIFT_MAP = 11,
    DSI_THRIFT_STRUCT = 12
} dsi_thrift_type;

typedef struct dsi_thrift {
    const uint8_t *p, *end;
    bool bad;
} dsi_thrift;

/* One field of a struct; id 0 before the first. */
typedef struct dsi_thrift_field {
    int32_t id;
    uint8_t type;
} dsi_thrift_field;

/* Moves to the next field of a struct; false at its end. The caller reads or skips the value. */
bool dsi_thrift_next(dsi_thrift *t, dsi_thrift_field *field);
/* Skips the value of a field. */
void dsi_thrift_skip(dsi_thrift *t, uint8_t type);

/* Values of a field. One of another type than asked for is bad. */
int64_t dsi_thrift_int(dsi_thrift *t, const dsi_thrift_field *field); /* i8 to i64 */
bool dsi_thrift_bool(dsi_thrift *t, const dsi_thrift_field *field);
const uint8_t *dsi_thrift_binary(dsi_thrift *t, const dsi_thrift_field *field, size_t *n_out);
/* The number of elements of a list whose elements have `type`; they follow. */
uint32_t dsi_thrift_list(dsi_thrift *t, const dsi_thrift_field *field, uint8_t type);
/* Begins a struct that is a field. */
void dsi_thrift_struct(dsi_thrift *t, const dsi_thrift_field *field);

#endif
