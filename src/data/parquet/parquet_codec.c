/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed pages: by the libraries that made the formats. See parquet_page.h. */
#include "data/parquet/parquet_page.h"

#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

enum {
    UNCOMPRESSED = DSI_PARQUET_UNCOMPRESSED,
    SNAPPY = 1,
    GZIP = 2,
    LZO = 3,
    BROTLI = 4,
    LZ4 = 5,
    ZSTD = 6,
    LZ4_RAW = 7
};

static const char *const damaged = "a compressed page is damaged";

/* gzip, or zlib without its head; members back to back. */
static const char *unpack_gzip(const uint8_t *packed, size_t n_packed, uint8_t *out, size_t n)
{
    enum { ANY_HEAD = 32 };
    z_stream z = {.next_in = (Bytef *)(uintptr_t)packed,
                  .avail_in = (uInt)n_packed, /* page sizes are below 2^31 */
                  .next_out = out,
                  .avail_out = (uInt)n};
    if (inflateInit2(&z, MAX_WBITS + ANY_HEAD) != Z_OK) {
        return "no memory to decompress a page";
    }
    int status = inflate(&z, Z_FINISH);
    while (status == Z_STREAM_END && z.avail_in > 0 && z.avail_out > 0 &&
           inflateReset(&z) == Z_OK) {
        status = inflate(&z, Z_FINISH);
    }
    (void)inflateEnd(&z);
    return status == Z_STREAM_END && z.avail_out == 0 ? NULL : damaged;
}

const char *dsi_parquet_unpack(int32_t codec, const uint8_t *packed, size_t n_packed, uint8_t *out,
                               size_t n)
{
    size_t size = n;
    switch (codec) {
    case SNAPPY:
        if (snappy_uncompressed_length((const char *)packed, n_packed, &size) != SNAPPY_OK ||
            size != n) {
            return damaged;
        }
        return snappy_uncompress((const char *)packed, n_packed, (char *)out, &size) == SNAPPY_OK
                   ? NULL
                   : damaged;
    case GZIP:
        return unpack_gzip(packed, n_packed, out, n);
    case ZSTD:
        return ZSTD_decompress(out, n, packed, n_packed) == n ? NULL : damaged;
    case LZO:
        return "it is compressed with LZO, which is not read here: write it with snappy, zstd, "
               "gzip or none";
    case BROTLI:
        return "it is compressed with Brotli, which is not read here: write it with snappy, zstd, "
               "gzip or none";
    case LZ4:
    case LZ4_RAW:
        return "it is compressed with LZ4, which is not read here: write it with snappy, zstd, "
               "gzip or none";
    default:
        return "its compression is not known";
    }
}
