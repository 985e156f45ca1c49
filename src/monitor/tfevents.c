/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard event files. See tfevents.h. */
#include "monitor/tfevents.h"

#include "base/buf.h"

#include <errno.h>
#include <string.h>

enum { RECORD_CEILING = 1 << 16 };

/* CRC-32C (Castagnoli), bit by bit: records are tens of bytes. */
static uint32_t crc32c(const void *data, size_t n)
{
    const unsigned char *bytes = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; ++i) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

/* TFRecord stores checksums masked, so that checksums of data with checksums stay good. */
static uint32_t masked(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static void put_varint(dsi_buf *buf, uint64_t value)
{
    while (value >= 0x80) {
        dsi_buf_putc(buf, (char)(value | 0x80));
        value >>= 7;
    }
    dsi_buf_putc(buf, (char)value);
}

/* Field keys: number << 3 | wire type (0 varint, 1 64-bit, 2 bytes, 5 32-bit). */
static void put_bytes(dsi_buf *buf, uint32_t field, const void *data, size_t n)
{
    put_varint(buf, field << 3 | 2);
    put_varint(buf, n);
    dsi_buf_append(buf, data, n);
}

static void put_double(dsi_buf *buf, uint32_t field, double value)
{
    put_varint(buf, field << 3 | 1);
    dsi_buf_append(buf, &value, sizeof value);
}

static ds_status write_record(ds_ctx *ctx, FILE *stream, const dsi_buf *event)
{
    const uint64_t length = event->size;
    const uint32_t length_crc = masked(crc32c(&length, sizeof length));
    const uint32_t data_crc = masked(crc32c(event->data, event->size));
    if (event->failed) {
        return ds_fail(ctx, DS_ERR_LIMIT, "a tag is too long for TensorBoard, or memory ran out");
    }
    if (fwrite(&length, sizeof length, 1, stream) != 1 ||
        fwrite(&length_crc, sizeof length_crc, 1, stream) != 1 ||
        fwrite(event->data, event->size, 1, stream) != 1 ||
        fwrite(&data_crc, sizeof data_crc, 1, stream) != 1) {
        return ds_fail(ctx, DS_ERR_IO, "cannot write the TensorBoard file: %s", strerror(errno));
    }
    return DS_OK;
}

ds_status dsi_tfevents_begin(ds_ctx *ctx, FILE *stream, double wall_time)
{
    static const char version[] = "brain.Event:2";
    dsi_buf event = dsi_buf_make(RECORD_CEILING);
    put_double(&event, 1, wall_time);
    put_bytes(&event, 3, version, sizeof version - 1);
    const ds_status status = write_record(ctx, stream, &event);
    dsi_buf_free(&event);
    return status;
}

ds_status dsi_tfevents_scalar(ds_ctx *ctx, FILE *stream, double wall_time, uint64_t step,
                              const char *tag, double value)
{
    const float narrow = (float)value;
    dsi_buf scalar = dsi_buf_make(RECORD_CEILING);
    dsi_buf summary = dsi_buf_make(RECORD_CEILING);
    dsi_buf event = dsi_buf_make(RECORD_CEILING);
    put_bytes(&scalar, 1, tag, strlen(tag));
    put_varint(&scalar, 2 << 3 | 5);
    dsi_buf_append(&scalar, &narrow, sizeof narrow);
    put_bytes(&summary, 1, scalar.data, scalar.size);
    put_double(&event, 1, wall_time);
    put_varint(&event, 2 << 3 | 0);
    put_varint(&event, step);
    put_bytes(&event, 5, summary.data, summary.size);
    event.failed = event.failed || scalar.failed || summary.failed;
    const ds_status status = write_record(ctx, stream, &event);
    dsi_buf_free(&scalar);
    dsi_buf_free(&summary);
    dsi_buf_free(&event);
    return status;
}
