/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of plain and compressed files. See data_bytes.h. */
#include "data/rows/data_bytes.h"

#include "data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { PIECE_BYTES = 256 << 10, FED_BYTES = 64 << 20 }; /* fed: of the file to zlib at once */

typedef enum packing { PLAIN, GZIP, ZSTD } packing;

struct dsi_bytes {
    ds_ctx *ctx;
    char *path;
    packing kind;
    dsi_map map;
    size_t at;   /* of the map, read */
    bool inside; /* a member or frame was begun and has not ended */
    z_stream gzip;
    bool gzip_open;
    ZSTD_DStream *zstd;
    char *piece; /* [PIECE_BYTES] */
};

static packing packing_of(const char *path)
{
    return dsi_path_ends(path, ".gz") ? GZIP : dsi_path_ends(path, ".zst") ? ZSTD : PLAIN;
}

size_t dsi_bytes_plain_name(const char *path)
{
    const packing kind = packing_of(path);
    return strlen(path) - (kind == GZIP ? 3 : kind == ZSTD ? 4 : 0);
}

void dsi_bytes_close(dsi_bytes **bytes)
{
    if (bytes == NULL || *bytes == NULL) {
        return;
    }
    dsi_bytes *b = *bytes;
    if (b->gzip_open) {
        (void)inflateEnd(&b->gzip);
    }
    (void)ZSTD_freeDStream(b->zstd);
    dsi_map_close(&b->map);
    free(b->piece);
    free(b->path);
    free(b);
    *bytes = NULL;
}

static bool open_packing(dsi_bytes *b)
{
    enum { GZIP_HEAD = 16 };
    b->piece = malloc(PIECE_BYTES);
    if (b->kind == GZIP) {
        b->gzip_open = inflateInit2(&b->gzip, MAX_WBITS + GZIP_HEAD) == Z_OK;
        return b->piece != NULL && b->gzip_open;
    }
    b->zstd = ZSTD_createDStream();
    return b->piece != NULL && b->zstd != NULL;
}

ds_status dsi_bytes_open(ds_ctx *ctx, const char *path, dsi_bytes **bytes_out)
{
    dsi_bytes *b = calloc(1, sizeof *b);
    if (b != NULL) {
        b->ctx = ctx;
        b->path = strdup(path);
        b->kind = packing_of(path);
    }
    if (b == NULL || b->path == NULL || (b->kind != PLAIN && !open_packing(b))) {
        dsi_bytes_close(&b);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to read %s", path);
    }
    const ds_status status = dsi_map_open(ctx, path, 0, &b->map);
    if (status < 0) {
        dsi_bytes_close(&b);
        return status;
    }
    *bytes_out = b;
    return DS_OK;
}

static ds_status damaged(const dsi_bytes *b)
{
    return ds_fail(b->ctx, DS_ERR_FORMAT,
                   "%s: no good %s data at byte %zu: damaged, or another kind", b->path,
                   b->kind == GZIP ? "gzip" : "zstd", b->at);
}

/* Zeros behind the last member are padding, as of tapes. */
static bool only_zeros(const dsi_bytes *b)
{
    for (size_t i = b->at; i < b->map.size; ++i) {
        if (b->map.data[i] != 0) {
            return false;
        }
    }
    return true;
}

/* Members may follow one another. */
static ds_status next_gzip(dsi_bytes *b, size_t *n_out)
{
    z_stream *z = &b->gzip;
    if (!b->inside && b->at > 0 && b->map.data[b->at] == 0 && only_zeros(b)) {
        b->at = b->map.size;
        *n_out = 0;
        return DS_OK;
    }
    const size_t left = b->map.size - b->at;
    const size_t fed = left < FED_BYTES ? left : FED_BYTES;
    z->next_in = (Bytef *)(uintptr_t)(b->map.data + b->at);
    z->avail_in = (uInt)fed;
    z->next_out = (Bytef *)b->piece;
    z->avail_out = PIECE_BYTES;
    const int status = inflate(z, Z_NO_FLUSH);
    b->at += fed - z->avail_in;
    *n_out = PIECE_BYTES - z->avail_out;
    if (status == Z_STREAM_END) {
        b->inside = false;
        return inflateReset(z) == Z_OK ? DS_OK : damaged(b);
    }
    b->inside = true;
    if (status == Z_MEM_ERROR) {
        return ds_fail(b->ctx, DS_ERR_NOMEM, "no memory to decompress %s", b->path);
    }
    return status == Z_OK || status == Z_BUF_ERROR ? DS_OK : damaged(b);
}

static ds_status next_zstd(dsi_bytes *b, size_t *n_out)
{
    ZSTD_inBuffer in = {b->map.data, b->map.size, b->at};
    ZSTD_outBuffer out = {b->piece, PIECE_BYTES, 0};
    const size_t hint = ZSTD_decompressStream(b->zstd, &out, &in);
    if (ZSTD_isError(hint)) {
        return damaged(b);
    }
    b->inside = hint != 0;
    b->at = in.pos;
    *n_out = out.pos;
    return DS_OK;
}

ds_status dsi_bytes_next(dsi_bytes *b, const char **data_out, size_t *n_out)
{
    size_t n = 0;
    if (b->kind == PLAIN) {
        *data_out = (const char *)b->map.data + b->at;
        *n_out = b->map.size - b->at;
        b->at = b->map.size;
        return DS_OK;
    }
    while (n == 0) {
        const size_t before = b->at;
        const bool was_inside = b->inside;
        if (b->at == b->map.size && !b->inside) {
            break;
        }
        DS_TRY(b->kind == GZIP ? next_gzip(b, &n) : next_zstd(b, &n));
        if (n == 0 && b->at == before && was_inside == b->inside) {
            return ds_fail(b->ctx, DS_ERR_FORMAT, "%s: it ends within its compressed data",
                           b->path);
        }
    }
    *data_out = b->piece;
    *n_out = n;
    return DS_OK;
}

void dsi_bytes_progress(const dsi_bytes *b, uint64_t *done_out, uint64_t *all_out)
{
    *done_out = b->at;
    *all_out = b->map.size;
}

/* ---- the whole as a map ---- */

static ds_status write_all(dsi_bytes *b, int file, const char *data, size_t n)
{
    while (n > 0) {
        const ssize_t wrote = write(file, data, n);
        if (wrote < 0 && errno != EINTR) {
            return ds_fail(b->ctx, DS_ERR_IO, "cannot decompress %s to a temporary file: %s",
                           b->path, strerror(errno));
        }
        data += wrote > 0 ? wrote : 0;
        n -= wrote > 0 ? (size_t)wrote : 0;
    }
    return DS_OK;
}

static ds_status spool(dsi_bytes *b, int file, size_t *size_out)
{
    const char *data = NULL;
    size_t n = 1;
    *size_out = 0;
    while (n > 0) {
        DS_TRY(dsi_bytes_next(b, &data, &n));
        DS_TRY(write_all(b, file, data, n));
        *size_out += n;
    }
    return DS_OK;
}

static ds_status map_spooled(dsi_bytes *b, dsi_map *map_out)
{
    const char *folder = getenv("TMPDIR");
    folder = folder != NULL && *folder != '\0' ? folder : "/tmp";
    const int file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) {
        return ds_fail(b->ctx, DS_ERR_IO, "cannot decompress %s to a temporary file in %s: %s",
                       b->path, folder, strerror(errno));
    }
    size_t size = 0;
    ds_status status = spool(b, file, &size);
    const void *data = "";
    if (status >= 0 && size > 0) {
        data = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
        if (data == MAP_FAILED) {
            status = ds_fail(b->ctx, DS_ERR_IO, "cannot map the decompressed %s: %s", b->path,
                             strerror(errno));
        }
    }
    (void)close(file);
    if (status >= 0) {
        *map_out = (dsi_map){data, size};
    }
    return status;
}

ds_status dsi_bytes_map(ds_ctx *ctx, const char *path, dsi_map *map_out)
{
    dsi_bytes *bytes = NULL;
    if (packing_of(path) == PLAIN) {
        return dsi_map_open(ctx, path, 0, map_out);
    }
    DS_TRY(dsi_bytes_open(ctx, path, &bytes));
    const ds_status status = map_spooled(bytes, map_out);
    dsi_bytes_close(&bytes);
    return status;
}
