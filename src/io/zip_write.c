/* SPDX-License-Identifier: Apache-2.0 */
/* See zip_write.h, and zip_read.c for the parts of the format. */
#include "io/zip_write.h"

#include <assert.h>
#include <deepspeed/context.h>
#include <string.h>
#include <zlib.h>

enum {
    HEAD_BYTES = 30,
    ALIGNMENT = 64,
    FLAG_DESCRIPTOR = 8,
    VERSION_ZIP64 = 45,
    EXTRA_ZIP64 = 1,
    EXTRA_PADDING = 0x4246, /* "FB", by which PyTorch aligns */
    MOST_PUT = 256          /* bytes of a head, record or end */
};

#define HEAD_MARK       UINT32_C(0x04034b50)
#define RECORD_MARK     UINT32_C(0x02014b50)
#define DESCRIPTOR_MARK UINT32_C(0x08074b50)
#define END_MARK        UINT32_C(0x06054b50)
#define END64_MARK      UINT32_C(0x06064b50)
#define LOCATOR_MARK    UINT32_C(0x07064b50)

/* Whole numbers, low byte first. */
typedef struct bytes {
    uint8_t data[MOST_PUT];
    size_t n;
} bytes;

static void put(bytes *b, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        b->data[b->n++] = (uint8_t)(value >> (8 * i));
    }
}

static void put_name(bytes *b, const char *name)
{
    const size_t n = strlen(name);
    memcpy(b->data + b->n, name, n);
    b->n += n;
}

static bool is_large(uint64_t value)
{
    return value >= UINT32_MAX;
}

static uint64_t small(uint64_t value)
{
    return is_large(value) ? UINT32_MAX : value;
}

dsi_zip_out dsi_zip_out_make(ds_ctx *ctx, dsi_file_out *file)
{
    return (dsi_zip_out){.ctx = ctx, .file = file, .directory = dsi_buf_make((size_t)1 << 30)};
}

void dsi_zip_out_free(dsi_zip_out *zip)
{
    dsi_buf_free(&zip->directory);
}

ds_status dsi_zip_out_begin(dsi_zip_out *zip, const char *name, uint64_t size)
{
    const size_t n = strlen(name);
    assert(n < sizeof zip->name);
    memcpy(zip->name, name, n + 1);
    zip->begin = dsi_file_size(zip->file);
    zip->bytes = size;
    zip->given = 0;
    zip->crc = (uint32_t)crc32_z(0, NULL, 0);
    const size_t large = is_large(size) ? 20 : 0; /* the extra field of zip64 */
    const uint64_t before = zip->begin + HEAD_BYTES + n + large + 4;
    const size_t padding = (size_t)(-before & (ALIGNMENT - 1));
    bytes head = {.n = 0};
    put(&head, HEAD_MARK, 4);
    put(&head, large > 0 ? VERSION_ZIP64 : 0, 2);
    put(&head, FLAG_DESCRIPTOR, 2);
    put(&head, 0, 2); /* stored */
    put(&head, 0, 4); /* time and date */
    put(&head, 0, 4); /* CRC-32 and, below, sizes: in the descriptor */
    put(&head, large > 0 ? UINT32_MAX : 0, 4);
    put(&head, large > 0 ? UINT32_MAX : 0, 4);
    put(&head, n, 2);
    put(&head, large + 4 + padding, 2);
    put_name(&head, name);
    if (large > 0) {
        put(&head, EXTRA_ZIP64, 2);
        put(&head, 16, 2);
        put(&head, 0, 8);
        put(&head, 0, 8);
    }
    put(&head, EXTRA_PADDING, 2);
    put(&head, padding, 2);
    memset(head.data + head.n, 'Z', padding);
    return dsi_file_write(zip->file, head.data, head.n + padding);
}

ds_status dsi_zip_out_give(dsi_zip_out *zip, const void *data, size_t n)
{
    assert(n <= zip->bytes - zip->given);
    zip->crc = (uint32_t)crc32_z(zip->crc, data, n);
    zip->given += n;
    return dsi_file_write(zip->file, data, n);
}

static void add_record(dsi_zip_out *zip)
{
    const bool far = is_large(zip->begin);
    const bool large = is_large(zip->bytes);
    const size_t extra = (large ? 16u : 0u) + (far ? 8u : 0u);
    bytes record = {.n = 0};
    put(&record, RECORD_MARK, 4);
    put(&record, extra > 0 ? VERSION_ZIP64 : 0, 2); /* made by */
    put(&record, extra > 0 ? VERSION_ZIP64 : 0, 2); /* needed */
    put(&record, FLAG_DESCRIPTOR, 2);
    put(&record, 0, 2);
    put(&record, 0, 4);
    put(&record, zip->crc, 4);
    put(&record, small(zip->bytes), 4);
    put(&record, small(zip->bytes), 4);
    put(&record, strlen(zip->name), 2);
    put(&record, extra > 0 ? 4 + extra : 0, 2);
    put(&record, 0, 2); /* comment */
    put(&record, 0, 2); /* disk */
    put(&record, 0, 2);
    put(&record, 0, 4); /* attributes */
    put(&record, small(zip->begin), 4);
    put_name(&record, zip->name);
    if (extra > 0) {
        put(&record, EXTRA_ZIP64, 2);
        put(&record, extra, 2);
        put(&record, zip->bytes, large ? 8 : 0);
        put(&record, zip->bytes, large ? 8 : 0);
        put(&record, zip->begin, far ? 8 : 0);
    }
    dsi_buf_append(&zip->directory, record.data, record.n);
}

ds_status dsi_zip_out_end(dsi_zip_out *zip)
{
    assert(zip->given == zip->bytes);
    const size_t width = is_large(zip->bytes) ? 8 : 4;
    bytes descriptor = {.n = 0};
    put(&descriptor, DESCRIPTOR_MARK, 4);
    put(&descriptor, zip->crc, 4);
    put(&descriptor, zip->bytes, width);
    put(&descriptor, zip->bytes, width);
    add_record(zip);
    ++zip->n;
    return dsi_file_write(zip->file, descriptor.data, descriptor.n);
}

ds_status dsi_zip_out_finish(dsi_zip_out *zip)
{
    const uint64_t begin = dsi_file_size(zip->file);
    const uint64_t size = zip->directory.size;
    bytes end = {.n = 0};
    if (zip->directory.failed) {
        return ds_fail(zip->ctx, DS_ERR_NOMEM, "no memory for the directory of an archive");
    }
    if (is_large(begin) || zip->n >= UINT16_MAX) {
        put(&end, END64_MARK, 4);
        put(&end, 44, 8);
        put(&end, VERSION_ZIP64, 2);
        put(&end, VERSION_ZIP64, 2);
        put(&end, 0, 4); /* disks */
        put(&end, 0, 4);
        put(&end, zip->n, 8);
        put(&end, zip->n, 8);
        put(&end, size, 8);
        put(&end, begin, 8);
        put(&end, LOCATOR_MARK, 4);
        put(&end, 0, 4);
        put(&end, begin + size, 8);
        put(&end, 1, 4);
    }
    const uint64_t n = zip->n < UINT16_MAX ? zip->n : UINT16_MAX;
    put(&end, END_MARK, 4);
    put(&end, 0, 4);
    put(&end, n, 2);
    put(&end, n, 2);
    put(&end, small(size), 4);
    put(&end, small(begin), 4);
    put(&end, 0, 2);
    DS_TRY(dsi_file_write(zip->file, zip->directory.data, zip->directory.size));
    return dsi_file_write(zip->file, end.data, end.n);
}
