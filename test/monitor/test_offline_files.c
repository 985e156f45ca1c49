/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of W&B's and Comet's files: the wire format's bytes, records of every size over the
 * ends of blocks, read back by a reader of its own, numbers as JSON. */
#include "common/check.h"
#include "monitor/offline_name.h"
#include "monitor/proto.h"
#include "monitor/record_log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* CRC-32 bit by bit: no code in common with zlib's tables. */
static uint32_t plain_crc(uint32_t crc, const unsigned char *data, size_t n)
{
    crc = ~crc;
    for (size_t i = 0; i < n; ++i) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; ++bit) {
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        }
    }
    return ~crc;
}

/* Varints of one, two and ten bytes, a text, a message in a message. */
static void wire_format(void **state)
{
    (void)state;
    static const unsigned char want[] = {0x08, 0x01, 0x10, 0xac, 0x02, 0x90, 0x01, 0xff, 0xff,
                                         0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0xc2,
                                         0x0c, 0x05, 0x0a, 0x03, 'a',  'b',  'c'};
    dsi_buf out = dsi_buf_make(1000);
    dsi_buf inner = dsi_buf_make(1000);
    dsi_proto_whole(&out, 1, 1);
    dsi_proto_whole(&out, 2, 300);
    dsi_proto_whole(&out, 18, (uint64_t)-1);
    dsi_proto_text(&inner, 1, "abc");
    dsi_proto_text(&inner, 2, NULL);
    dsi_proto_message(&out, 200, &inner);
    assert_int_equal(out.size, sizeof want);
    assert_memory_equal(out.data, want, sizeof want);
    dsi_buf_free(&inner);
    inner = dsi_buf_make(2);
    dsi_proto_text(&inner, 1, "too long");
    dsi_proto_message(&out, 3, &inner);
    assert_true(out.failed);
    dsi_buf_free(&inner);
    dsi_buf_free(&out);
}

enum { BLOCK = 32768, HEAD = 7, N_RECORDS = 400 };

/* The next record of the file, its parts put together; returns where it ends. */
static size_t read_record(const unsigned char *file, size_t size, size_t at, unsigned char *data,
                          size_t *n_out)
{
    size_t n = 0;
    for (bool more = true, begun = false; more; begun = true) {
        const size_t left = BLOCK - at % BLOCK;
        if (left < HEAD) {
            for (size_t i = 0; i < left; ++i) {
                assert_int_equal(file[at + i], 0);
            }
            at += left;
        }
        assert_true(at + HEAD <= size);
        const unsigned char *head = file + at;
        const uint32_t crc =
            head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 | (uint32_t)head[3] << 24;
        const size_t length = head[4] | (size_t)head[5] << 8;
        const unsigned char type = head[6];
        assert_true(length <= BLOCK - at % BLOCK - HEAD);
        assert_int_equal(crc, plain_crc(0, head + 6, length + 1));
        assert_true(begun ? type == 3 || type == 4 : type == 1 || type == 2);
        memcpy(data + n, head + HEAD, length);
        n += length;
        at += HEAD + length;
        more = type == 2 || type == 3;
    }
    *n_out = n;
    return at;
}

/* Sizes around what is left of a block come often. */
static size_t next_size(uint32_t *seed, size_t at)
{
    *seed = *seed * 1664525u + 1013904223u;
    const size_t room = BLOCK - at % BLOCK;
    const uint32_t r = *seed >> 8;
    switch (r % 4) {
    case 0:
        return r / 4 % 40;
    case 1:
        return room > 20 ? room - 20 + r / 4 % 24 : r / 4 % 24;
    case 2:
        return r / 4 % 3000;
    default:
        return r / 4 % (3 * BLOCK);
    }
}

static void records_over_blocks(void **state)
{
    (void)state;
    static unsigned char data[4 * BLOCK];
    static unsigned char got[4 * BLOCK];
    size_t sizes[N_RECORDS];
    char *file = NULL;
    size_t size = 0;
    uint32_t seed = 17;
    dsi_record_log log;
    FILE *stream = open_memstream(&file, &size);
    assert_true(dsi_record_log_begin(&log, stream));
    for (size_t i = 0; i < sizeof data; ++i) {
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    }
    for (size_t i = 0; i < N_RECORDS; ++i) {
        sizes[i] = next_size(&seed, size);
        assert_true(dsi_record_log_add(&log, data + i, sizes[i]));
    }
    (void)fclose(stream);
    assert_memory_equal(file, ":W&B\xe1\xbe\x00", HEAD);
    size_t at = HEAD;
    for (size_t i = 0; i < N_RECORDS; ++i) {
        size_t n = 0;
        at = read_record((const unsigned char *)file, size, at, got, &n);
        assert_int_equal(n, sizes[i]);
        assert_memory_equal(got, data + i, n);
    }
    assert_int_equal(at, size);
    free(file);
}

static void numbers(void **state)
{
    (void)state;
    char text[DSI_OFFLINE_NUMBER];
    assert_string_equal(dsi_offline_number(NAN, text), "\"NaN\"");
    assert_string_equal(dsi_offline_number(INFINITY, text), "\"Infinity\"");
    assert_string_equal(dsi_offline_number(-INFINITY, text), "\"-Infinity\"");
    assert_string_equal(dsi_offline_number(-2.5, text), "-2.5");
    for (double x = 1e-300; x < 1e300; x *= 1.7e11) {
        assert_true(strtod(dsi_offline_number(x / 3.0, text), NULL) == x / 3.0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(wire_format),
                                       cmocka_unit_test(records_over_blocks),
                                       cmocka_unit_test(numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
