/* SPDX-License-Identifier: Apache-2.0 */
/* See record_log.h. A part has a head of 7 bytes: CRC-32 of type and data, length (two bytes, low
 * one first), type. Where less than a head is left in a block, zeros fill it. */
#include "monitor/record_log.h"

#include <string.h>
#include <zlib.h>

enum { BLOCK = 32768, HEAD = 7 };
enum { WHOLE = 1, FIRST = 2, MIDDLE = 3, LAST = 4 };

static const unsigned char file_head[HEAD] = {':', 'W', '&', 'B', 0xe1, 0xbe, 0};

static bool put(dsi_record_log *log, const void *data, size_t n)
{
    log->at = (log->at + n) % BLOCK;
    return n == 0 || fwrite(data, 1, n, log->file) == n;
}

bool dsi_record_log_begin(dsi_record_log *log, FILE *file)
{
    *log = (dsi_record_log){.file = file};
    return put(log, file_head, sizeof file_head) && fflush(file) == 0;
}

static bool put_part(dsi_record_log *log, unsigned char type, const unsigned char *data, size_t n)
{
    const unsigned long crc = crc32(crc32(0, &type, 1), data, (unsigned)n);
    const unsigned char head[HEAD] = {(unsigned char)crc,
                                      (unsigned char)(crc >> 8),
                                      (unsigned char)(crc >> 16),
                                      (unsigned char)(crc >> 24),
                                      (unsigned char)n,
                                      (unsigned char)(n >> 8),
                                      type};
    return put(log, head, sizeof head) && put(log, data, n);
}

bool dsi_record_log_add(dsi_record_log *log, const void *data, size_t n)
{
    static const unsigned char zeros[HEAD] = {0};
    const unsigned char *at = data;
    bool begun = false;
    for (bool done = false; !done;) {
        if (BLOCK - log->at < HEAD && !put(log, zeros, BLOCK - log->at)) {
            return false;
        }
        const size_t room = BLOCK - log->at - HEAD;
        const size_t part = n < room ? n : room;
        done = part == n;
        if (!put_part(log,
                      (unsigned char)(done ? (begun ? LAST : WHOLE) : (begun ? MIDDLE : FIRST)), at,
                      part)) {
            return false;
        }
        begun = true;
        at += part;
        n -= part;
    }
    return fflush(log->file) == 0;
}
