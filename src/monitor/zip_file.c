/* SPDX-License-Identifier: Apache-2.0 */
/* See zip_file.h. Each entry is a head, deflated data and a descriptor with its CRC and sizes (flag
 * 3), since a file is read once; the directory at the end has them too. Times are 1980-01-01, so
 * that the same files give the same archive. */
#include "monitor/zip_file.h"

#include "io/file.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

enum { MOST = 8, CHUNK = 1 << 16, WINDOW = -15 /* no head of zlib's */, MEMORY = 8 };
enum { VERSION = 20, FLAG_DESCRIPTOR = 8, DEFLATED = 8, DATE_1980 = 33 };

typedef struct part {
    uint32_t at, crc, packed, size;
} part;

typedef struct packer {
    ds_ctx *ctx;
    const char *path;
    dsi_file_out *out;
} packer;

/* A record of the format: whole numbers, low byte first. */
typedef struct record {
    unsigned char bytes[64];
    size_t n;
} record;

static void put(record *r, uint32_t value, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; ++i) {
        r->bytes[r->n++] = (unsigned char)(value >> (8 * i));
    }
}

static ds_status check_size(const packer *p, uint64_t bytes)
{
    return bytes <= UINT32_MAX ? DS_OK
                               : ds_fail(p->ctx, DS_ERR_LIMIT,
                                         "%s would be larger than 4 GiB, the most that such an "
                                         "archive holds",
                                         p->path);
}

static ds_status put_head(const packer *p, const char *name)
{
    record r = {.n = 0};
    put(&r, 0x04034b50, 4);
    put(&r, VERSION, 2);
    put(&r, FLAG_DESCRIPTOR, 2);
    put(&r, DEFLATED, 2);
    put(&r, 0, 2);
    put(&r, DATE_1980, 2);
    put(&r, 0, 4); /* CRC and sizes: in the descriptor */
    put(&r, 0, 4);
    put(&r, 0, 4);
    put(&r, (uint32_t)strlen(name), 2);
    put(&r, 0, 2);
    DS_TRY(dsi_file_write(p->out, r.bytes, r.n));
    return dsi_file_write(p->out, name, strlen(name));
}

static ds_status deflate_some(const packer *p, z_stream *z, int flush)
{
    unsigned char packed[CHUNK];
    do {
        z->next_out = packed;
        z->avail_out = sizeof packed;
        (void)deflate(z, flush);
        DS_TRY(dsi_file_write(p->out, packed, sizeof packed - z->avail_out));
    } while (z->avail_out == 0);
    return DS_OK;
}

static ds_status deflate_file(const packer *p, FILE *in, const char *path, part *out)
{
    unsigned char data[CHUNK];
    z_stream z = {0};
    uint64_t size = 0;
    if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, WINDOW, MEMORY, Z_DEFAULT_STRATEGY) !=
        Z_OK) {
        return ds_fail(p->ctx, DS_ERR_NOMEM, "no memory to pack %s", path);
    }
    ds_status status = DS_OK;
    for (bool end = false; !end && status == DS_OK;) {
        const size_t n = fread(data, 1, sizeof data, in);
        end = n < sizeof data;
        z.next_in = data;
        z.avail_in = (uInt)n;
        out->crc = (uint32_t)crc32(out->crc, data, (uInt)n);
        size += n;
        status = ferror(in) ? dsi_io_fail(p->ctx, "read", path, errno)
                            : deflate_some(p, &z, end ? Z_FINISH : Z_NO_FLUSH);
    }
    const uint64_t packed = z.total_out;
    (void)deflateEnd(&z);
    DS_TRY(status);
    DS_TRY(check_size(p, size > packed ? size : packed));
    out->size = (uint32_t)size;
    out->packed = (uint32_t)packed;
    return DS_OK;
}

static ds_status put_entry(const packer *p, const dsi_zip_entry *entry, part *out)
{
    record r = {.n = 0};
    FILE *in = fopen(entry->path, "rbe");
    if (in == NULL) {
        return dsi_io_fail(p->ctx, "open", entry->path, errno);
    }
    *out = (part){.at = (uint32_t)dsi_file_size(p->out)};
    ds_status status = put_head(p, entry->name);
    status = status < 0 ? status : deflate_file(p, in, entry->path, out);
    (void)fclose(in);
    DS_TRY(status);
    put(&r, 0x08074b50, 4);
    put(&r, out->crc, 4);
    put(&r, out->packed, 4);
    put(&r, out->size, 4);
    DS_TRY(dsi_file_write(p->out, r.bytes, r.n));
    return check_size(p, dsi_file_size(p->out));
}

/* The same once more, with where the entry stands and that it may be read by its owner and others.
 */
static ds_status put_directory(const packer *p, const char *name, const part *one)
{
    record r = {.n = 0};
    put(&r, 0x02014b50, 4);
    put(&r, VERSION | 3 << 8, 2); /* made on Unix */
    put(&r, VERSION, 2);
    put(&r, FLAG_DESCRIPTOR, 2);
    put(&r, DEFLATED, 2);
    put(&r, 0, 2);
    put(&r, DATE_1980, 2);
    put(&r, one->crc, 4);
    put(&r, one->packed, 4);
    put(&r, one->size, 4);
    put(&r, (uint32_t)strlen(name), 2);
    put(&r, 0, 2); /* extra field, comment, disk, inner attributes */
    put(&r, 0, 2);
    put(&r, 0, 2);
    put(&r, 0, 2);
    put(&r, 0100644U << 16, 4);
    put(&r, one->at, 4);
    DS_TRY(dsi_file_write(p->out, r.bytes, r.n));
    return dsi_file_write(p->out, name, strlen(name));
}

static ds_status put_all(const packer *p, const dsi_zip_entry *entries, size_t n)
{
    part parts[MOST];
    record r = {.n = 0};
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(put_entry(p, &entries[i], &parts[i]));
    }
    const uint64_t at = dsi_file_size(p->out);
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(put_directory(p, entries[i].name, &parts[i]));
    }
    put(&r, 0x06054b50, 4);
    put(&r, 0, 2);
    put(&r, 0, 2);
    put(&r, (uint32_t)n, 2);
    put(&r, (uint32_t)n, 2);
    put(&r, (uint32_t)(dsi_file_size(p->out) - at), 4);
    put(&r, (uint32_t)at, 4);
    put(&r, 0, 2);
    return dsi_file_write(p->out, r.bytes, r.n);
}

ds_status dsi_zip_pack(ds_ctx *ctx, const char *path, const dsi_zip_entry *entries, size_t n)
{
    packer p = {.ctx = ctx, .path = path};
    if (n > MOST) {
        return ds_fail(ctx, DS_ERR_LIMIT, "%s: more than %d files", path, MOST);
    }
    DS_TRY(dsi_file_stage(ctx, path, &p.out));
    const ds_status status = put_all(&p, entries, n);
    if (status < 0) {
        dsi_file_abort(&p.out);
        return status;
    }
    return dsi_file_commit(&p.out);
}
