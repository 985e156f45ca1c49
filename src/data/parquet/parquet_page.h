/* SPDX-License-Identifier: Apache-2.0 */
/* One column of one row group as a stream of entries: repetition level, definition level, value.
 *
 * Pages are read one after another and decoded value by value; in memory are the dictionary and the
 * current page. Nothing of the file is trusted. Used by rows_parquet's assembly alone.
 */
#ifndef DSI_DATA_PARQUET_PAGE_H
#define DSI_DATA_PARQUET_PAGE_H

#include "data/parquet/parquet_bits.h"
#include "data/parquet/parquet_meta.h"

/* What all rooms of a file take together: its sizes are claims, and a small file may claim much. */
typedef struct dsi_parquet_account {
    size_t used, limit;
} dsi_parquet_account;

/* Memory that is kept from page to page. */
typedef struct dsi_parquet_room {
    void *data;
    size_t size;
} dsi_parquet_room;

/* A value: a text, or a number as its bits (a float's too). */
typedef struct dsi_parquet_value {
    const uint8_t *text;
    size_t n_text;
    uint64_t number;
} dsi_parquet_value;

/* What the values of a page are decoded with. */
typedef struct dsi_parquet_values {
    int32_t encoding;
    dsi_span plain;     /* PLAIN, and the texts of the delta encodings */
    uint64_t at;        /* of the next value: bit of PLAIN booleans, index of a split stream */
    dsi_hybrid indices; /* of the dictionary; of RLE booleans */
    dsi_delta delta;
    dsi_delta lengths, prefixes; /* of DELTA_LENGTH_ and DELTA_BYTE_ARRAY */
    uint64_t n_values;           /* of BYTE_STREAM_SPLIT */
} dsi_parquet_values;

typedef struct dsi_parquet_column {
    dsi_parquet_account *account; /* the file's */
    dsi_parquet_physical type;
    uint32_t max_def, max_rep;
    int32_t codec;
    dsi_span chunk;  /* pages not read yet */
    uint64_t n_left; /* entries behind the current page */
    uint32_t n_page; /* entries left in it */
    dsi_hybrid def, rep;
    dsi_parquet_values values;
    dsi_parquet_value *dictionary; /* in dictionary_room */
    uint32_t n_dictionary;
    dsi_parquet_room page, dictionary_page, dictionary_room, text;
    size_t n_text; /* of the last value of DELTA_BYTE_ARRAY, in text */
    /* the current entry, once dsi_parquet_column_peek found one */
    bool has_entry;
    uint32_t entry_def, entry_rep;
    dsi_parquet_value value; /* where entry_def is max_def; until the next peek */
} dsi_parquet_column;

/* Begins a row group's chunk; rooms are kept. */
void dsi_parquet_column_open(dsi_parquet_column *column, const dsi_map *map,
                             const dsi_parquet_chunk *chunk);
void dsi_parquet_column_free(dsi_parquet_column *column);

/* Makes the next entry the current one where there is none; *end_out when the chunk is over. NULL,
 * or what is wrong. */
const char *dsi_parquet_column_peek(dsi_parquet_column *column, bool *end_out);
/* The current entry is used up. */
void dsi_parquet_column_take(dsi_parquet_column *column);

/* parquet_codec.c: `packed` bytes to exactly n bytes. NULL, or what is wrong. */
const char *dsi_parquet_unpack(int32_t codec, const uint8_t *packed, size_t n_packed, uint8_t *out,
                               size_t n);
enum { DSI_PARQUET_UNCOMPRESSED = 0 };

/* parquet_values.c: begins the values of a page, n of them without nulls at most; and the next one.
 */
const char *dsi_parquet_values_open(dsi_parquet_column *column, int32_t encoding, dsi_span data);
const char *dsi_parquet_values_next(dsi_parquet_column *column, dsi_parquet_value *value_out);
/* A value of PLAIN, also of a dictionary. */
const char *dsi_parquet_plain(dsi_parquet_physical type, dsi_span *span, uint64_t *at,
                              dsi_parquet_value *value_out);

/* At least n bytes. NULL, or what is wrong: no memory, or the account's limit. */
const char *dsi_parquet_room_grow(dsi_parquet_account *account, dsi_parquet_room *room, size_t n);

#endif
