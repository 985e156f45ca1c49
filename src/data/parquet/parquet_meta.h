/* SPDX-License-Identifier: Apache-2.0 */
/* What a Parquet file says of itself: its schema, its row groups, the head of each page.
 *
 * Read from the footer and from the bytes before each page; nothing of it is trusted: numbers are
 * checked here against one another and against the size of the file. Source: parquet-format's
 * parquet.thrift (names of fields and their numbers).
 */
#ifndef DSI_DATA_PARQUET_META_H
#define DSI_DATA_PARQUET_META_H

#include "base/arena.h"
#include "io/file.h"
#include <stdint.h>

typedef enum dsi_parquet_physical {
    DSI_PARQUET_BOOLEAN,
    DSI_PARQUET_INT32,
    DSI_PARQUET_INT64,
    DSI_PARQUET_INT96,
    DSI_PARQUET_FLOAT,
    DSI_PARQUET_DOUBLE,
    DSI_PARQUET_BYTE_ARRAY,
    DSI_PARQUET_FIXED_BYTE_ARRAY
} dsi_parquet_physical;

typedef enum dsi_parquet_repetition {
    DSI_PARQUET_REQUIRED,
    DSI_PARQUET_OPTIONAL,
    DSI_PARQUET_REPEATED
} dsi_parquet_repetition;

/* What a value means: of a logical type, or of a converted type in older files. */
typedef enum dsi_parquet_meaning {
    DSI_PARQUET_PLAIN, /* the physical type says all */
    DSI_PARQUET_TEXT,  /* UTF-8, also enums and JSON */
    DSI_PARQUET_LIST,
    DSI_PARQUET_MAP,
    DSI_PARQUET_UNSIGNED,
    DSI_PARQUET_DATE,      /* days since 1970 */
    DSI_PARQUET_TIMESTAMP, /* unit: of a second since 1970 */
    DSI_PARQUET_ALWAYS_NULL,
    DSI_PARQUET_OTHER /* decimals, times, UUIDs, intervals, …: not read here */
} dsi_parquet_meaning;

/* One element of the schema; the tree is given in preorder. */
typedef struct dsi_parquet_element {
    const char *name; /* not terminated, not checked to be UTF-8 */
    size_t n_name;
    uint32_t n_children; /* 0: a leaf */
    int32_t physical;    /* of a leaf; -1 when the file gives none */
    dsi_parquet_repetition repetition;
    dsi_parquet_meaning meaning;
    uint32_t ticks_per_second; /* of a timestamp */
    bool utc;
} dsi_parquet_element;

/* The part of a column that is in one row group: pages back to back. */
typedef struct dsi_parquet_chunk {
    int32_t codec;
    uint64_t n_entries; /* values and nulls */
    uint64_t begin, size;
    bool encrypted, elsewhere; /* in another file */
} dsi_parquet_chunk;

typedef struct dsi_parquet_group {
    uint64_t n_rows;
    dsi_parquet_chunk *chunks; /* [n_leaves] */
} dsi_parquet_group;

typedef struct dsi_parquet_meta {
    dsi_parquet_element *elements;
    uint32_t n_elements, n_leaves;
    dsi_parquet_group *groups;
    uint32_t n_groups;
    uint64_t n_rows; /* of the groups */
} dsi_parquet_meta;

/* Reads the footer. What *meta_out points to is in the arena and in the map. Errors: ERR_FORMAT,
 * ERR_UNSUPPORTED (encrypted), ERR_NOMEM; with the path. */
ds_status dsi_parquet_meta_read(ds_ctx *ctx, const char *path, const dsi_map *map, dsi_arena *arena,
                                dsi_parquet_meta *meta_out);

enum {
    DSI_PARQUET_DATA_PAGE = 0,
    DSI_PARQUET_INDEX_PAGE = 1,
    DSI_PARQUET_DICTIONARY_PAGE = 2,
    DSI_PARQUET_DATA_PAGE_V2 = 3
};

typedef struct dsi_parquet_page {
    int32_t kind;          /* one of the above */
    uint32_t full, packed; /* bytes behind the head: uncompressed, and as they lie in the file */
    bool has_crc;
    uint32_t crc;
    uint32_t n_entries;
    int32_t encoding;
    int32_t rep_encoding, def_encoding; /* of a first version's page */
    uint32_t rep_bytes, def_bytes; /* of a second version's page: before the values, not packed */
    bool compressed;               /* second version */
} dsi_parquet_page;

/* Reads the head of a page at *at, moves *at behind it. NULL, or what is wrong. */
const char *dsi_parquet_page_read(const uint8_t **at, const uint8_t *end,
                                  dsi_parquet_page *page_out);

#endif
