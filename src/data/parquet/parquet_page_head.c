/* SPDX-License-Identifier: Apache-2.0 */
/* The head of a page of a Parquet file. See parquet_meta.h. */
#include "data/parquet/parquet_meta.h"
#include "data/parquet/parquet_thrift.h"

static uint32_t count(dsi_thrift *t, const dsi_thrift_field *field)
{
    const int64_t number = dsi_thrift_int(t, field);
    t->bad = t->bad || number < 0 || number > INT32_MAX;
    return t->bad ? 0 : (uint32_t)number;
}

/* DataPageHeader and DictionaryPageHeader: the numbers that both have are the same. */
static void read_first(dsi_thrift *t, dsi_parquet_page *page)
{
    dsi_thrift_field field = {0};
    while (dsi_thrift_next(t, &field)) {
        switch (field.id) {
        case 1:
            page->n_entries = count(t, &field);
            break;
        case 2:
            page->encoding = (int32_t)count(t, &field);
            break;
        case 3:
            if (page->kind == DSI_PARQUET_DICTIONARY_PAGE) {
                dsi_thrift_skip(t, field.type); /* is_sorted */
            } else {
                page->def_encoding = (int32_t)count(t, &field);
            }
            break;
        case 4:
            page->rep_encoding = (int32_t)count(t, &field);
            break;
        default:
            dsi_thrift_skip(t, field.type);
            break;
        }
    }
}

static void read_second(dsi_thrift *t, dsi_parquet_page *page)
{
    dsi_thrift_field field = {0};
    while (dsi_thrift_next(t, &field)) {
        switch (field.id) {
        case 1:
            page->n_entries = count(t, &field);
            break;
        case 4:
            page->encoding = (int32_t)count(t, &field);
            break;
        case 5:
            page->def_bytes = count(t, &field);
            break;
        case 6:
            page->rep_bytes = count(t, &field);
            break;
        case 7:
            page->compressed = dsi_thrift_bool(t, &field);
            break;
        default:
            dsi_thrift_skip(t, field.type);
            break;
        }
    }
}

static void read_page(dsi_thrift *t, dsi_parquet_page *page, bool *has_head)
{
    dsi_thrift_field field = {0};
    while (dsi_thrift_next(t, &field)) {
        const bool second = field.id == 8;
        switch (field.id) {
        case 1:
            page->kind = (int32_t)count(t, &field);
            break;
        case 2:
            page->full = count(t, &field);
            break;
        case 3:
            page->packed = count(t, &field);
            break;
        case 4:
            page->crc = (uint32_t)dsi_thrift_int(t, &field);
            page->has_crc = true;
            break;
        case 5:
        case 7:
        case 8:
            dsi_thrift_struct(t, &field);
            *has_head = true;
            if (second) {
                read_second(t, page);
            } else {
                read_first(t, page);
            }
            break;
        default:
            dsi_thrift_skip(t, field.type);
            break;
        }
    }
}

const char *dsi_parquet_page_read(const uint8_t **at, const uint8_t *end,
                                  dsi_parquet_page *page_out)
{
    dsi_thrift t = {.p = *at, .end = end};
    dsi_parquet_page page = {.kind = -1, .compressed = true};
    bool has_head = false;
    read_page(&t, &page, &has_head);
    if (t.bad || page.kind < 0 || (!has_head && page.kind != DSI_PARQUET_INDEX_PAGE)) {
        return "the head of a page is damaged";
    }
    if (page.packed > (size_t)(end - t.p)) {
        return "a page reaches behind the end of its column";
    }
    *at = t.p;
    *page_out = page;
    return NULL;
}
