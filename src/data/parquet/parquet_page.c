/* SPDX-License-Identifier: Apache-2.0 */
/* A column's pages, one after another. See parquet_page.h. */
#include "data/parquet/parquet_page.h"

#include <stdlib.h>
#include <zlib.h>

enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3 };

/* A page larger than this is no page that anybody writes; it would be memory that a small file
 * asks for. */
enum { PAGE_BYTES_MAX = 1 << 30 };

static uint32_t bits_of(uint32_t max_level)
{
    uint32_t bits = 0;
    while (max_level >> bits != 0) {
        ++bits;
    }
    return bits;
}

void dsi_parquet_column_open(dsi_parquet_column *c, const dsi_map *map,
                             const dsi_parquet_chunk *chunk)
{
    const uint8_t *begin = map->data + chunk->begin;
    c->codec = chunk->codec;
    c->chunk = (dsi_span){begin, begin + chunk->size};
    c->n_left = chunk->n_entries;
    c->n_page = 0;
    c->dictionary = NULL;
    c->n_dictionary = 0;
    c->has_entry = false;
}

void dsi_parquet_column_free(dsi_parquet_column *c)
{
    free(c->page.data);
    free(c->dictionary_page.data);
    free(c->dictionary_room.data);
    free(c->text.data);
}

/* The bytes of a page as they were before compression; `plain` of them at the front are not
 * compressed. */
static const char *unpack(const dsi_parquet_column *c, const dsi_parquet_page *page,
                          const uint8_t *data, size_t plain, dsi_parquet_room *room,
                          dsi_span *span_out)
{
    dsi_parquet_account *account = c->account;
    const size_t n = page->full - plain;
    if (c->codec == DSI_PARQUET_UNCOMPRESSED || !page->compressed) {
        *span_out = (dsi_span){data + plain, data + page->packed};
        return page->packed == page->full ? NULL : "a page is not as large as its header says";
    }
    if (page->full > PAGE_BYTES_MAX) {
        return "a page is larger than 1 GiB";
    }
    const char *bad = dsi_parquet_room_grow(account, room, n > 0 ? n : 1);
    if (bad != NULL) {
        return bad;
    }
    *span_out = (dsi_span){room->data, (const uint8_t *)room->data + n};
    if (n == 0 && page->packed == plain) {
        return NULL;
    }
    return dsi_parquet_unpack(c->codec, data + plain, page->packed - plain, room->data, n);
}

static const char *read_dictionary(dsi_parquet_column *c, const dsi_parquet_page *page,
                                   const uint8_t *data)
{
    dsi_span span;
    uint64_t at = 0;
    if (c->dictionary != NULL) {
        return "a column has two dictionaries in one row group";
    }
    if (page->encoding != PLAIN && page->encoding != PLAIN_DICTIONARY) {
        return "the dictionary's encoding is not known";
    }
    const char *bad = unpack(c, page, data, 0, &c->dictionary_page, &span);
    if (bad != NULL) {
        return bad;
    }
    /* each value takes four bytes at least, so that a small page cannot ask for much memory */
    if (c->type == DSI_PARQUET_BOOLEAN) {
        return "a dictionary of truth values";
    }
    if (page->n_entries > (uint64_t)(span.end - span.p) / 4) {
        return "the dictionary has fewer values than its header says";
    }
    bad = dsi_parquet_room_grow(c->account, &c->dictionary_room,
                                ((size_t)page->n_entries + 1) * sizeof *c->dictionary);
    if (bad != NULL) {
        return bad;
    }
    c->dictionary = c->dictionary_room.data;
    for (uint32_t i = 0; i < page->n_entries && bad == NULL; ++i) {
        c->dictionary[i] = (dsi_parquet_value){.text = (const uint8_t *)""};
        bad = dsi_parquet_plain(c->type, &span, &at, &c->dictionary[i]);
    }
    c->n_dictionary = bad == NULL ? page->n_entries : 0;
    return bad;
}

/* Levels of a first version's page: their size, then the hybrid. */
static const char *open_levels(dsi_span *span, int32_t encoding, uint32_t max, dsi_hybrid *out)
{
    uint32_t n = 0;
    const uint8_t *data = NULL;
    if (max == 0) {
        return NULL;
    }
    if (encoding != RLE) {
        return "the encoding of a page's levels is not read here";
    }
    if (!dsi_span_u32(span, &n) || !dsi_span_take(span, n, &data)) {
        return "a page ends within its levels";
    }
    *out = dsi_hybrid_make((dsi_span){data, data + n}, bits_of(max));
    return NULL;
}

static const char *open_first(dsi_parquet_column *c, const dsi_parquet_page *page,
                              const uint8_t *data)
{
    dsi_span span = {NULL, NULL};
    const char *bad = unpack(c, page, data, 0, &c->page, &span);
    bad = bad != NULL ? bad : open_levels(&span, page->rep_encoding, c->max_rep, &c->rep);
    bad = bad != NULL ? bad : open_levels(&span, page->def_encoding, c->max_def, &c->def);
    return bad != NULL ? bad : dsi_parquet_values_open(c, page->encoding, span);
}

static const char *open_second(dsi_parquet_column *c, const dsi_parquet_page *page,
                               const uint8_t *data)
{
    dsi_span span = {NULL, NULL};
    const uint64_t levels = (uint64_t)page->rep_bytes + page->def_bytes;
    if (levels > page->packed || levels > page->full) {
        return "the levels of a page are larger than the page";
    }
    const uint8_t *def = data + page->rep_bytes;
    c->rep = dsi_hybrid_make((dsi_span){data, def}, bits_of(c->max_rep));
    c->def = dsi_hybrid_make((dsi_span){def, def + page->def_bytes}, bits_of(c->max_def));
    const char *bad = unpack(c, page, data, (size_t)levels, &c->page, &span);
    return bad != NULL ? bad : dsi_parquet_values_open(c, page->encoding, span);
}

static const char *open_page(dsi_parquet_column *c, const dsi_parquet_page *page,
                             const uint8_t *data)
{
    if (page->has_crc && crc32(0, data, page->packed) != page->crc) {
        return "a page's checksum is wrong: the file is damaged";
    }
    if (page->kind == DSI_PARQUET_DICTIONARY_PAGE) {
        return read_dictionary(c, page, data);
    }
    if (page->kind != DSI_PARQUET_DATA_PAGE && page->kind != DSI_PARQUET_DATA_PAGE_V2) {
        return NULL; /* an index, or something newer: nothing that a row needs */
    }
    if (page->n_entries > c->n_left) {
        return "the pages of a column have more values than its row group says";
    }
    c->n_left -= page->n_entries;
    c->n_page = page->n_entries;
    return page->kind == DSI_PARQUET_DATA_PAGE ? open_first(c, page, data)
                                               : open_second(c, page, data);
}

static const char *next_page(dsi_parquet_column *c)
{
    dsi_parquet_page page;
    const uint8_t *data = NULL;
    if (c->chunk.p == c->chunk.end) {
        return "the pages of a column end before its values";
    }
    const char *bad = dsi_parquet_page_read(&c->chunk.p, c->chunk.end, &page);
    if (bad != NULL) {
        return bad;
    }
    (void)dsi_span_take(&c->chunk, page.packed, &data);
    return open_page(c, &page, data);
}

static const char *next_level(dsi_hybrid *hybrid, uint32_t max, uint32_t *level_out)
{
    *level_out = 0;
    if (max == 0) {
        return NULL;
    }
    if (!dsi_hybrid_next(hybrid, level_out)) {
        return "a page ends within its levels";
    }
    return *level_out <= max ? NULL : "a level of a page is higher than its column's";
}

const char *dsi_parquet_column_peek(dsi_parquet_column *c, bool *end_out)
{
    const char *bad = NULL;
    *end_out = false;
    if (c->has_entry) {
        return NULL;
    }
    while (c->n_page == 0) {
        if (c->n_left == 0) {
            *end_out = true;
            return NULL;
        }
        bad = next_page(c);
        if (bad != NULL) {
            return bad;
        }
    }
    --c->n_page;
    bad = next_level(&c->rep, c->max_rep, &c->entry_rep);
    bad = bad != NULL ? bad : next_level(&c->def, c->max_def, &c->entry_def);
    if (bad == NULL && c->entry_def == c->max_def) {
        bad = dsi_parquet_values_next(c, &c->value);
    }
    c->has_entry = bad == NULL;
    return bad;
}

void dsi_parquet_column_take(dsi_parquet_column *c)
{
    c->has_entry = false;
}
