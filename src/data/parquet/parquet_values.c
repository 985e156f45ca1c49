/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a page, by their encoding. See parquet_page.h. */
#include "data/parquet/parquet_page.h"

#include <stdlib.h>
#include <string.h>

enum {
    PLAIN = 0,
    PLAIN_DICTIONARY = 2,
    RLE = 3,
    DELTA_BINARY = 5,
    DELTA_LENGTH = 6,
    DELTA_TEXT = 7,
    RLE_DICTIONARY = 8,
    STREAM_SPLIT = 9
};

static const char *const ends_early = "a page ends within its values";

const char *dsi_parquet_room_grow(dsi_parquet_account *account, dsi_parquet_room *room, size_t n)
{
    if (n <= room->size && room->data != NULL) {
        return NULL;
    }
    const size_t size = n + n / 4 + 64;
    if (size > account->limit || account->used - room->size > account->limit - size) {
        return "the pages that are held at once are larger than the limit for a file, 1 GiB";
    }
    void *data = realloc(room->data, size);
    if (data == NULL) {
        return "no memory for a page";
    }
    account->used += size - room->size;
    room->data = data;
    room->size = size;
    return NULL;
}

static uint32_t width_of(dsi_parquet_physical type)
{
    return type == DSI_PARQUET_INT32 || type == DSI_PARQUET_FLOAT ? 4 : 8;
}

const char *dsi_parquet_plain(dsi_parquet_physical type, dsi_span *span, uint64_t *at,
                              dsi_parquet_value *value_out)
{
    const uint8_t *data = NULL;
    uint32_t n = 0;
    switch (type) {
    case DSI_PARQUET_BOOLEAN:
        if (*at / 8 >= (uint64_t)(span->end - span->p)) {
            return ends_early;
        }
        value_out->number = span->p[*at / 8] >> (*at % 8) & 1;
        ++*at;
        return NULL;
    case DSI_PARQUET_BYTE_ARRAY:
        if (!dsi_span_u32(span, &n) || !dsi_span_take(span, n, &value_out->text)) {
            return ends_early;
        }
        value_out->n_text = n;
        return NULL;
    default:
        n = width_of(type);
        if (!dsi_span_take(span, n, &data)) {
            return ends_early;
        }
        value_out->number = dsi_bits_get(data, 0, 8 * n);
        return NULL;
    }
}

/* Opens lengths of a delta encoding, and leaves what is behind them: they are walked through once
 * here, and read again value by value, so that no memory is needed for what a page claims. */
static const char *open_deltas(dsi_span *data, dsi_delta *lengths_out)
{
    dsi_delta walk;
    uint64_t length = 0;
    if (!dsi_delta_open(*data, &walk)) {
        return "the lengths of a page are damaged";
    }
    *lengths_out = walk;
    while (walk.n_left > 0) {
        if (!dsi_delta_next(&walk, &length) || length > INT32_MAX) {
            return "the lengths of a page are damaged";
        }
    }
    *data = dsi_delta_rest(&walk);
    return NULL;
}

static const char *open_lengths(dsi_parquet_column *c, int32_t encoding, dsi_span data)
{
    dsi_parquet_values *v = &c->values;
    const char *bad = encoding == DELTA_TEXT ? open_deltas(&data, &v->prefixes) : NULL;
    bad = bad != NULL ? bad : open_deltas(&data, &v->lengths);
    if (bad == NULL && encoding == DELTA_TEXT && v->prefixes.n_left != v->lengths.n_left) {
        bad = "a page has not as many prefixes as texts";
    }
    v->plain = data;
    c->n_text = 0;
    return bad;
}

static const char *open_indices(dsi_parquet_column *c, dsi_span data)
{
    const uint8_t *width = NULL;
    if (c->dictionary == NULL) {
        return "a page names values of a dictionary, and there is none";
    }
    if (data.p == data.end) { /* only nulls */
        c->values.indices = dsi_hybrid_make(data, 0);
        return NULL;
    }
    (void)dsi_span_take(&data, 1, &width);
    if (*width > 32) {
        return "the indices of a page are damaged";
    }
    c->values.indices = dsi_hybrid_make(data, *width);
    return NULL;
}

static const char *open_booleans(dsi_parquet_column *c, dsi_span data)
{
    uint32_t n = 0;
    const uint8_t *bytes = NULL;
    if (data.p != data.end && (!dsi_span_u32(&data, &n) || !dsi_span_take(&data, n, &bytes))) {
        return ends_early;
    }
    c->values.indices = dsi_hybrid_make((dsi_span){bytes, bytes == NULL ? NULL : bytes + n}, 1);
    return NULL;
}

const char *dsi_parquet_values_open(dsi_parquet_column *c, int32_t encoding, dsi_span data)
{
    const bool text = c->type == DSI_PARQUET_BYTE_ARRAY;
    const bool whole = c->type == DSI_PARQUET_INT32 || c->type == DSI_PARQUET_INT64;
    const bool real = c->type == DSI_PARQUET_FLOAT || c->type == DSI_PARQUET_DOUBLE;
    c->values = (dsi_parquet_values){.encoding = encoding, .plain = data};
    switch (encoding) {
    case PLAIN:
        return NULL;
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY:
        return open_indices(c, data);
    case RLE:
        return c->type == DSI_PARQUET_BOOLEAN ? open_booleans(c, data)
                                              : "RLE is an encoding of truth values";
    case DELTA_BINARY:
        if (!whole) {
            return "DELTA_BINARY_PACKED is an encoding of whole numbers";
        }
        return data.p == data.end || dsi_delta_open(data, &c->values.delta)
                   ? NULL
                   : "the deltas of a page are damaged";
    case DELTA_LENGTH:
    case DELTA_TEXT:
        if (!text) {
            return "the page's encoding is one of texts";
        }
        return data.p == data.end ? NULL : open_lengths(c, encoding, data);
    case STREAM_SPLIT:
        c->values.n_values = (uint64_t)(data.end - data.p) / width_of(c->type);
        return whole || real ? NULL : "BYTE_STREAM_SPLIT is read of numbers only";
    default:
        return "a page's encoding is not known";
    }
}

/* The last text's first bytes, and those that are given. */
static const char *next_joined(dsi_parquet_column *c, const uint8_t *suffix, uint32_t n,
                               uint32_t prefix, dsi_parquet_value *value_out)
{
    if (prefix > c->n_text) {
        return "a text of a page begins with more than the one before it has";
    }
    if ((uint64_t)prefix + n > INT32_MAX) {
        return "a text of a page is longer than 2 GiB";
    }
    const char *bad = dsi_parquet_room_grow(c->account, &c->text, (size_t)prefix + n);
    if (bad != NULL) {
        return bad;
    }
    if (n > 0) {
        memcpy((uint8_t *)c->text.data + prefix, suffix, n);
    }
    c->n_text = (size_t)prefix + n;
    value_out->text = c->text.data;
    value_out->n_text = c->n_text;
    return NULL;
}

static const char *next_by_length(dsi_parquet_column *c, dsi_parquet_value *value_out)
{
    dsi_parquet_values *v = &c->values;
    const uint8_t *data = NULL;
    uint64_t n = 0;
    uint64_t prefix = 0;
    if (!dsi_delta_next(&v->lengths, &n) ||
        (v->encoding == DELTA_TEXT && !dsi_delta_next(&v->prefixes, &prefix)) ||
        !dsi_span_take(&v->plain, n, &data)) {
        return ends_early;
    }
    if (v->encoding == DELTA_TEXT) {
        return next_joined(c, data, (uint32_t)n, (uint32_t)prefix, value_out);
    }
    value_out->text = data;
    value_out->n_text = n;
    return NULL;
}

static const char *next_split(dsi_parquet_column *c, dsi_parquet_value *value_out)
{
    dsi_parquet_values *v = &c->values;
    if (v->at >= v->n_values) {
        return ends_early;
    }
    value_out->number = 0;
    for (uint32_t i = 0; i < width_of(c->type); ++i) {
        value_out->number |= (uint64_t)v->plain.p[i * v->n_values + v->at] << (8 * i);
    }
    ++v->at;
    return NULL;
}

const char *dsi_parquet_values_next(dsi_parquet_column *c, dsi_parquet_value *value_out)
{
    dsi_parquet_values *v = &c->values;
    uint32_t index = 0;
    *value_out = (dsi_parquet_value){.text = (const uint8_t *)""};
    switch (v->encoding) {
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY:
        if (!dsi_hybrid_next(&v->indices, &index)) {
            return ends_early;
        }
        if (index >= c->n_dictionary) {
            return "a page names a value that its dictionary has not";
        }
        *value_out = c->dictionary[index];
        return NULL;
    case RLE:
        if (!dsi_hybrid_next(&v->indices, &index)) {
            return ends_early;
        }
        value_out->number = index;
        return NULL;
    case DELTA_BINARY:
        return dsi_delta_next(&v->delta, &value_out->number) ? NULL : ends_early;
    case DELTA_LENGTH:
    case DELTA_TEXT:
        return next_by_length(c, value_out);
    case STREAM_SPLIT:
        return next_split(c, value_out);
    default:
        return dsi_parquet_plain(c->type, &v->plain, &v->at, value_out);
    }
}
