/* SPDX-License-Identifier: Apache-2.0 */
/* A Parquet file's footer. See parquet_meta.h; heads of pages are in parquet_page_head.c. */
#include "data/parquet/parquet_meta.h"

#include "data/parquet/parquet_thrift.h"

#include <string.h>

enum { TAIL_BYTES = 8 }; /* the footer's size, and "PAR1" */

typedef struct reader {
    dsi_thrift t;
    dsi_arena *arena;
    dsi_parquet_meta *meta;
    bool no_memory;
} reader;

static void *take(reader *r, size_t n, size_t size)
{
    void *memory = dsi_arena_array(r->arena, n > 0 ? n : 1, size);
    if (memory == NULL) {
        r->no_memory = true;
        r->t.bad = true;
        r->t.p = r->t.end;
    }
    return memory;
}

static dsi_parquet_meaning of_converted(int64_t type, dsi_parquet_element *e)
{
    switch (type) {
    case 0:  /* UTF8 */
    case 4:  /* ENUM */
    case 19: /* JSON */
        return DSI_PARQUET_TEXT;
    case 1: /* MAP */
    case 2: /* MAP_KEY_VALUE */
        return DSI_PARQUET_MAP;
    case 3:
        return DSI_PARQUET_LIST;
    case 6:
        return DSI_PARQUET_DATE;
    case 9:  /* TIMESTAMP_MILLIS */
    case 10: /* TIMESTAMP_MICROS */
        e->ticks_per_second = type == 9 ? 1000 : 1000000;
        e->utc = true;
        return DSI_PARQUET_TIMESTAMP;
    case 11: /* UINT_8 to UINT_64 */
    case 12:
    case 13:
    case 14:
        return DSI_PARQUET_UNSIGNED;
    case 15: /* INT_8 to INT_64 */
    case 16:
    case 17:
    case 18:
        return DSI_PARQUET_PLAIN;
    default:
        return DSI_PARQUET_OTHER;
    }
}

/* The member of the union TimeUnit that is there. */
static uint32_t ticks(dsi_thrift *t)
{
    uint32_t per_second = 0;
    dsi_thrift_field field = {0};
    while (dsi_thrift_next(t, &field)) {
        per_second = field.id == 1 ? 1000 : field.id == 2 ? 1000000 : 1000000000;
        dsi_thrift_skip(t, field.type);
    }
    return per_second;
}

static void read_timestamp(dsi_thrift *t, dsi_parquet_element *e)
{
    dsi_thrift_field field = {0};
    while (dsi_thrift_next(t, &field)) {
        if (field.id == 1) {
            e->utc = dsi_thrift_bool(t, &field);
        } else if (field.id == 2) {
            e->ticks_per_second = ticks(t);
        } else {
            dsi_thrift_skip(t, field.type);
        }
    }
}

/* Whether the members of an IntType say unsigned. */
static bool is_unsigned(dsi_thrift *t)
{
    bool with_sign = true;
    dsi_thrift_field field = {0};
    while (dsi_thrift_next(t, &field)) {
        if (field.id == 2) {
            with_sign = dsi_thrift_bool(t, &field);
        } else {
            dsi_thrift_skip(t, field.type);
        }
    }
    return !with_sign;
}

/* The member of the union LogicalType that is there. */
static void read_logical(dsi_thrift *t, dsi_parquet_element *e)
{
    dsi_thrift_field field = {0};
    while (dsi_thrift_next(t, &field)) {
        e->meaning = DSI_PARQUET_OTHER;
        switch (field.id) {
        case 1:  /* STRING */
        case 4:  /* ENUM */
        case 12: /* JSON */
            e->meaning = DSI_PARQUET_TEXT;
            break;
        case 2:
            e->meaning = DSI_PARQUET_MAP;
            break;
        case 3:
            e->meaning = DSI_PARQUET_LIST;
            break;
        case 6:
            e->meaning = DSI_PARQUET_DATE;
            break;
        case 8:
            e->meaning = DSI_PARQUET_TIMESTAMP;
            dsi_thrift_struct(t, &field);
            read_timestamp(t, e);
            continue;
        case 10:
            dsi_thrift_struct(t, &field);
            e->meaning = is_unsigned(t) ? DSI_PARQUET_UNSIGNED : DSI_PARQUET_PLAIN;
            continue;
        case 11:
            e->meaning = DSI_PARQUET_ALWAYS_NULL;
            break;
        default:
            break;
        }
        dsi_thrift_skip(t, field.type);
    }
}

static void read_element(dsi_thrift *t, dsi_parquet_element *e)
{
    dsi_thrift_field field = {0};
    bool logical = false;
    *e = (dsi_parquet_element){.name = "", .physical = -1};
    while (dsi_thrift_next(t, &field)) {
        int64_t number = 0;
        switch (field.id) {
        case 1:
            number = dsi_thrift_int(t, &field);
            e->physical =
                number >= 0 && number <= DSI_PARQUET_FIXED_BYTE_ARRAY ? (int32_t)number : -1;
            break;
        case 3:
            number = dsi_thrift_int(t, &field);
            t->bad = t->bad || number < 0 || number > DSI_PARQUET_REPEATED;
            e->repetition = t->bad ? DSI_PARQUET_REQUIRED : (dsi_parquet_repetition)number;
            break;
        case 4:
            e->name = (const char *)dsi_thrift_binary(t, &field, &e->n_name);
            break;
        case 5:
            number = dsi_thrift_int(t, &field);
            t->bad = t->bad || number < 0 || number > INT32_MAX;
            e->n_children = t->bad ? 0 : (uint32_t)number;
            break;
        case 6:
            number = dsi_thrift_int(t, &field);
            if (!logical) {
                e->meaning = of_converted(number, e);
            }
            break;
        case 10:
            dsi_thrift_struct(t, &field);
            read_logical(t, e);
            logical = true;
            break;
        default:
            dsi_thrift_skip(t, field.type);
            break;
        }
    }
}

static void read_schema(reader *r, const dsi_thrift_field *field)
{
    dsi_parquet_meta *meta = r->meta;
    const uint32_t n = dsi_thrift_list(&r->t, field, DSI_THRIFT_STRUCT);
    meta->elements = take(r, n, sizeof *meta->elements);
    for (uint32_t i = 0; i < n && !r->t.bad; ++i) {
        read_element(&r->t, &meta->elements[i]);
        meta->n_leaves += i > 0 && meta->elements[i].n_children == 0;
        meta->n_elements = i + 1;
    }
}

/* Places in the file that a chunk's metadata gives. */
typedef struct places {
    uint64_t data, dictionary;
    bool has_data, has_dictionary;
} places;

static uint64_t natural(dsi_thrift *t, const dsi_thrift_field *field)
{
    const int64_t number = dsi_thrift_int(t, field);
    t->bad = t->bad || number < 0;
    return t->bad ? 0 : (uint64_t)number;
}

static void read_column(dsi_thrift *t, dsi_parquet_chunk *chunk)
{
    places at = {0};
    dsi_thrift_field field = {0};
    while (dsi_thrift_next(t, &field)) {
        switch (field.id) {
        case 4:
            chunk->codec = (int32_t)dsi_thrift_int(t, &field);
            break;
        case 5:
            chunk->n_entries = natural(t, &field);
            break;
        case 7:
            chunk->size = natural(t, &field);
            break;
        case 9:
            at.data = natural(t, &field);
            at.has_data = true;
            break;
        case 11:
            at.dictionary = natural(t, &field);
            at.has_dictionary = at.dictionary > 0; /* some writers give 0 where there is none */
            break;
        default:
            dsi_thrift_skip(t, field.type);
            break;
        }
    }
    t->bad = t->bad || !at.has_data;
    chunk->begin = at.has_dictionary && at.dictionary < at.data ? at.dictionary : at.data;
}

static void read_chunk(dsi_thrift *t, dsi_parquet_chunk *chunk)
{
    bool there = false;
    dsi_thrift_field field = {0};
    while (dsi_thrift_next(t, &field)) {
        size_t n = 0;
        if (field.id == 1) {
            (void)dsi_thrift_binary(t, &field, &n);
            chunk->elsewhere = n > 0;
        } else if (field.id == 3) {
            dsi_thrift_struct(t, &field);
            read_column(t, chunk);
            there = true;
        } else {
            chunk->encrypted = chunk->encrypted || field.id == 8 || field.id == 9;
            dsi_thrift_skip(t, field.type);
        }
    }
    t->bad = t->bad || !(there || chunk->encrypted);
}

static void read_group(reader *r, dsi_parquet_group *group)
{
    dsi_thrift_field field = {0};
    bool has_chunks = false;
    while (dsi_thrift_next(&r->t, &field)) {
        if (field.id == 1) {
            const uint32_t n = dsi_thrift_list(&r->t, &field, DSI_THRIFT_STRUCT);
            r->t.bad = r->t.bad || n != r->meta->n_leaves;
            group->chunks = r->t.bad ? NULL : take(r, n, sizeof *group->chunks);
            for (uint32_t i = 0; i < n && !r->t.bad; ++i) {
                read_chunk(&r->t, &group->chunks[i]);
            }
            has_chunks = true;
        } else if (field.id == 3) {
            group->n_rows = natural(&r->t, &field);
        } else {
            dsi_thrift_skip(&r->t, field.type);
        }
    }
    r->t.bad = r->t.bad || !has_chunks;
}

static void read_groups(reader *r, const dsi_thrift_field *field)
{
    dsi_parquet_meta *meta = r->meta;
    const uint32_t n = dsi_thrift_list(&r->t, field, DSI_THRIFT_STRUCT);
    meta->groups = take(r, n, sizeof *meta->groups);
    for (uint32_t i = 0; i < n && !r->t.bad; ++i) {
        read_group(r, &meta->groups[i]);
        meta->n_groups = i + 1;
        r->t.bad = r->t.bad || meta->groups[i].n_rows > INT64_MAX - meta->n_rows;
        meta->n_rows += meta->groups[i].n_rows;
    }
}

static ds_status read_footer(ds_ctx *ctx, const char *path, reader *r)
{
    dsi_thrift_field field = {0};
    uint64_t n_rows = 0;
    while (dsi_thrift_next(&r->t, &field)) {
        const bool schema = r->meta->elements != NULL;
        if ((field.id == 2 && schema) ||
            (field.id == 4 && (!schema || r->meta->groups != NULL))) { /* twice, or out of order */
            r->t.bad = true;
            r->t.p = r->t.end;
        } else if (field.id == 2) {
            read_schema(r, &field);
        } else if (field.id == 3) {
            n_rows = natural(&r->t, &field);
        } else if (field.id == 4) {
            read_groups(r, &field);
        } else {
            dsi_thrift_skip(&r->t, field.type);
        }
    }
    if (r->no_memory) {
        return ds_fail(ctx, DS_ERR_NOMEM, "%s: no memory for its footer", path);
    }
    if (r->t.bad || r->meta->n_elements == 0 || r->meta->groups == NULL) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s: no good Parquet file: its footer is damaged", path);
    }
    if (n_rows != r->meta->n_rows) {
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "%s: no good Parquet file: the footer says %llu rows, its groups of %llu",
                       path, (unsigned long long)n_rows, (unsigned long long)r->meta->n_rows);
    }
    return DS_OK;
}

/* Chunks lie inside of the file. */
static ds_status check_places(ds_ctx *ctx, const char *path, const dsi_map *map,
                              const dsi_parquet_meta *meta)
{
    for (uint32_t g = 0; g < meta->n_groups; ++g) {
        for (uint32_t c = 0; c < meta->n_leaves; ++c) {
            const dsi_parquet_chunk *chunk = &meta->groups[g].chunks[c];
            if (chunk->encrypted) {
                return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s: its columns are encrypted", path);
            }
            if (chunk->elsewhere) {
                return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s: its columns are in other files", path);
            }
            if (chunk->begin > map->size || chunk->size > map->size - chunk->begin) {
                return ds_fail(ctx, DS_ERR_FORMAT,
                               "%s: no good Parquet file: row group %u, column %u lies behind its "
                               "end",
                               path, g, c);
            }
        }
    }
    return DS_OK;
}

ds_status dsi_parquet_meta_read(ds_ctx *ctx, const char *path, const dsi_map *map, dsi_arena *arena,
                                dsi_parquet_meta *meta_out)
{
    dsi_parquet_meta meta = {0};
    uint32_t n = 0;
    if (map->size >= TAIL_BYTES && memcmp(map->data + map->size - 4, "PARE", 4) == 0) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s: its footer is encrypted", path);
    }
    if (map->size < 4 + TAIL_BYTES || memcmp(map->data, "PAR1", 4) != 0 ||
        memcmp(map->data + map->size - 4, "PAR1", 4) != 0) {
        return ds_fail(
            ctx, DS_ERR_FORMAT,
            "%s: no Parquet file, or its end is missing: \"PAR1\" must stand at both ends", path);
    }
    memcpy(&n, map->data + map->size - TAIL_BYTES, 4);
    if (n > map->size - 4 - TAIL_BYTES) {
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "%s: no good Parquet file: its footer would be larger than the file", path);
    }
    const uint8_t *end = map->data + map->size - TAIL_BYTES;
    reader r = {.t = {.p = end - n, .end = end}, .arena = arena, .meta = &meta};
    DS_TRY(read_footer(ctx, path, &r));
    DS_TRY(check_places(ctx, path, map, &meta));
    *meta_out = meta;
    return DS_OK;
}
