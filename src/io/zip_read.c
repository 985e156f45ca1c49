/* SPDX-License-Identifier: Apache-2.0 */
/* See zip_read.h. The format is PKWARE's APPNOTE.TXT: whole numbers, low byte first.
 *
 *     entries: head (30 bytes, name, extra field), data, perhaps a descriptor
 *     directory: a record (46 bytes, name, extra field, comment) an entry
 *     zip64: end record, locator         where a count or an offset needs more than 32 bits
 *     end record (22 bytes, comment)
 */
#include "io/zip_read.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    HEAD_BYTES = 30,
    RECORD_BYTES = 46,
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    MOST_COMMENT = 65535,
    FLAG_ENCRYPTED = 1,
    EXTRA_ZIP64 = 1
};

#define HEAD_MARK    UINT32_C(0x04034b50)
#define RECORD_MARK  UINT32_C(0x02014b50)
#define END_MARK     UINT32_C(0x06054b50)
#define END64_MARK   UINT32_C(0x06064b50)
#define LOCATOR_MARK UINT32_C(0x07064b50)

typedef struct reader {
    ds_ctx *ctx;
    const char *path;
    const uint8_t *data;
    size_t n;
    uint64_t begin, end; /* of the directory */
    uint64_t count;      /* entries that it lists */
} reader;

static uint64_t get(const uint8_t *at, size_t n_bytes)
{
    uint64_t value = 0;
    for (size_t i = n_bytes; i-- > 0;) {
        value = value << 8 | at[i];
    }
    return value;
}

static ds_status bad(const reader *r, const char *what)
{
    return ds_fail(r->ctx, DS_ERR_FORMAT, "%s: %s; the file is cut short or damaged", r->path,
                   what);
}

bool dsi_zip_begins(const uint8_t *data, size_t n)
{
    return n >= 4 && get(data, 4) == HEAD_MARK;
}

/* The offset of the end record: the last one whose comment reaches the end of the file. */
static bool find_end(const reader *r, size_t *at_out)
{
    for (size_t comment = 0; comment <= MOST_COMMENT && comment + END_BYTES <= r->n; ++comment) {
        const size_t at = r->n - END_BYTES - comment;
        if (get(r->data + at, 4) == END_MARK && get(r->data + at + 20, 2) == comment) {
            *at_out = at;
            return true;
        }
    }
    return false;
}

/* The zip64 end record says where a field of the end record is full of ones. */
static ds_status read_end64(reader *r, size_t end)
{
    const uint8_t *locator = r->data + end - LOCATOR_BYTES;
    if (end < LOCATOR_BYTES || get(locator, 4) != LOCATOR_MARK) {
        return bad(r, "its zip64 directory is missing");
    }
    const uint64_t at = get(locator + 8, 8);
    if (at > end - LOCATOR_BYTES || end - LOCATOR_BYTES - at < END64_BYTES ||
        get(r->data + at, 4) != END64_MARK) {
        return bad(r, "its zip64 directory is not where the file says");
    }
    r->count = get(r->data + at + 32, 8);
    r->begin = get(r->data + at + 48, 8);
    r->end = get(r->data + at + 40, 8); /* its size */
    return DS_OK;
}

static ds_status find_directory(reader *r)
{
    size_t end = 0;
    if (!find_end(r, &end)) {
        return bad(r, "this is no zip archive: it has no directory at its end");
    }
    const uint8_t *at = r->data + end;
    r->count = get(at + 10, 2);
    r->end = get(at + 12, 4);
    r->begin = get(at + 16, 4);
    if (get(at + 4, 2) != 0 || get(at + 6, 2) != 0) {
        return ds_fail(r->ctx, DS_ERR_UNSUPPORTED, "%s: an archive in several parts is not read",
                       r->path);
    }
    if (r->count == 0xffff || r->begin == 0xffffffff || r->end == 0xffffffff) {
        DS_TRY(read_end64(r, end));
    }
    if (r->begin > end || r->end > end - r->begin) {
        return bad(r, "its directory is not inside of the file");
    }
    r->end += r->begin;
    return r->count <= (r->end - r->begin) / RECORD_BYTES
               ? DS_OK
               : bad(r, "its directory lists more entries than it has room for");
}

/* What an entry's extra field has in place of fields full of ones, in this order. */
static bool widen(const uint8_t *extra, size_t n, uint64_t *const *fields, size_t n_fields)
{
    while (n >= 4) {
        const size_t length = (size_t)get(extra + 2, 2);
        if (length > n - 4) {
            return false;
        }
        if (get(extra, 2) == EXTRA_ZIP64) {
            size_t at = 0;
            for (size_t i = 0; i < n_fields; ++i) {
                if (*fields[i] != 0xffffffff) {
                    continue;
                }
                if (at + 8 > length) {
                    return false;
                }
                *fields[i] = get(extra + 4 + at, 8);
                at += 8;
            }
            return true;
        }
        extra += 4 + length;
        n -= 4 + length;
    }
    for (size_t i = 0; i < n_fields; ++i) {
        if (*fields[i] == 0xffffffff) {
            return false;
        }
    }
    return true;
}

static ds_status fail_entry(const reader *r, ds_status status, const dsi_zip_entry *e,
                            const char *what)
{
    return ds_fail(r->ctx, status, "%s: entry '%.120s' %s", r->path, e->name, what);
}

/* The record at `at`, whose fixed part, name, extra field and comment lie in the directory. */
static ds_status read_record(const reader *r, const uint8_t *at, dsi_zip_entry *e)
{
    const size_t n_name = (size_t)get(at + 28, 2);
    const size_t n_extra = (size_t)get(at + 30, 2);
    uint64_t packed = get(at + 20, 4);
    uint64_t bytes = get(at + 24, 4);
    uint64_t head = get(at + 42, 4);
    uint64_t *const fields[] = {&bytes, &packed, &head};
    e->crc = (uint32_t)get(at + 16, 4);
    if (!widen(at + RECORD_BYTES + n_name, n_extra, fields, 3)) {
        return fail_entry(r, DS_ERR_FORMAT, e, "has a damaged zip64 field");
    }
    if ((get(at + 8, 2) & FLAG_ENCRYPTED) != 0) {
        return fail_entry(r, DS_ERR_UNSUPPORTED, e, "is encrypted, which is not read");
    }
    if (get(at + 10, 2) != 0 || packed != bytes) {
        return fail_entry(r, DS_ERR_UNSUPPORTED, e,
                          "is compressed, which torch.save never does; it is not read");
    }
    if (head > r->begin || r->begin - head < HEAD_BYTES || get(r->data + head, 4) != HEAD_MARK) {
        return fail_entry(r, DS_ERR_FORMAT, e, "has no head where the directory says");
    }
    const uint8_t *local = r->data + head;
    const uint64_t skip = HEAD_BYTES + get(local + 26, 2) + get(local + 28, 2);
    const uint64_t room = r->begin - head;
    if (skip > room || bytes > room - skip) {
        return fail_entry(r, DS_ERR_FORMAT, e, "is not inside of the file");
    }
    if (get(local + 26, 2) != n_name ||
        memcmp(local + HEAD_BYTES, at + RECORD_BYTES, n_name) != 0) {
        return fail_entry(r, DS_ERR_FORMAT, e, "has another name at its head");
    }
    e->data = local + skip;
    e->bytes = (size_t)bytes;
    return DS_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const dsi_zip_entry *)a)->name, ((const dsi_zip_entry *)b)->name);
}

static ds_status read_directory(const reader *r, dsi_arena *arena, dsi_zip *zip)
{
    uint64_t at = r->begin;
    for (; zip->n < r->count; ++zip->n) {
        dsi_zip_entry *e = &zip->entries[zip->n];
        if (r->end - at < RECORD_BYTES || get(r->data + at, 4) != RECORD_MARK) {
            return bad(r, "its directory ends too early");
        }
        const uint8_t *record = r->data + at;
        const uint64_t n_name = get(record + 28, 2);
        const uint64_t n = RECORD_BYTES + n_name + get(record + 30, 2) + get(record + 32, 2);
        if (n > r->end - at) {
            return bad(r, "its directory ends too early");
        }
        if (n_name == 0 || memchr(record + RECORD_BYTES, 0, n_name) != NULL) {
            return bad(r, "an entry's name is empty or has a zero byte");
        }
        e->name = dsi_arena_strndup(arena, (const char *)record + RECORD_BYTES, n_name);
        if (e->name == NULL) {
            return ds_fail(r->ctx, DS_ERR_NOMEM, "no memory for the directory of %s", r->path);
        }
        DS_TRY(read_record(r, record, e));
        at += n;
    }
    qsort(zip->entries, zip->n, sizeof *zip->entries, compare_names);
    for (size_t i = 1; i < zip->n; ++i) {
        if (strcmp(zip->entries[i - 1].name, zip->entries[i].name) == 0) {
            return fail_entry(r, DS_ERR_FORMAT, &zip->entries[i], "is there twice");
        }
    }
    return DS_OK;
}

ds_status dsi_zip_read(ds_ctx *ctx, const char *path, const uint8_t *data, size_t n,
                       dsi_arena *arena, dsi_zip *zip_out)
{
    reader r = {.ctx = ctx, .path = path, .data = data, .n = n};
    dsi_zip zip = {0};
    DS_TRY(find_directory(&r));
    zip.entries = dsi_arena_array(arena, (size_t)r.count + 1, sizeof *zip.entries);
    if (zip.entries == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the directory of %s", path);
    }
    DS_TRY(read_directory(&r, arena, &zip));
    *zip_out = zip;
    return DS_OK;
}

const dsi_zip_entry *dsi_zip_find(const dsi_zip *zip, const char *name)
{
    const dsi_zip_entry key = {.name = name};
    return zip->n > 0 ? bsearch(&key, zip->entries, zip->n, sizeof key, compare_names) : NULL;
}

bool dsi_zip_is_right(const dsi_zip_entry *entry)
{
    return crc32_z(crc32_z(0, NULL, 0), entry->data, entry->bytes) == entry->crc;
}
