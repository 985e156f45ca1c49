/* SPDX-License-Identifier: Apache-2.0 */
/* Copies past the caches of the processor that writes. */
#ifndef DSI_COMM_STREAM_COPY_H
#define DSI_COMM_STREAM_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__x86_64__)
static inline void dsi_stream_line(char *out, const char *in)
{
    const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)in);
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(in + 16));
    const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(in + 32));
    const __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(in + 48));
    _mm_stream_si128((__m128i *)(void *)out, a);
    _mm_stream_si128((__m128i *)(void *)(out + 16), b);
    _mm_stream_si128((__m128i *)(void *)(out + 32), c);
    _mm_stream_si128((__m128i *)(void *)(out + 48), d);
}
#endif

/* As memcpy; other processors see the bytes after dsi_stream_fence and what follows it. Four pages
 * side by side: the hardware looks ahead inside of each. */
static inline void dsi_stream_copy(void *to, const void *from, size_t bytes)
{
    char *out = to;
    const char *in = from;
#if defined(__x86_64__)
    enum { PAGE = 4096, SIDE = 4 };
    const size_t head = (size_t)(-(uintptr_t)to & 63u);
    if (bytes >= 128) {
        memcpy(out, in, head);
        out += head;
        in += head;
        bytes -= head;
        for (; bytes >= SIDE * PAGE; bytes -= SIDE * PAGE, out += SIDE * PAGE, in += SIDE * PAGE) {
            for (size_t line = 0; line < PAGE; line += 64) {
                for (size_t page = 0; page < SIDE; ++page) {
                    dsi_stream_line(out + page * PAGE + line, in + page * PAGE + line);
                }
            }
        }
        for (; bytes >= 64; bytes -= 64, out += 64, in += 64) {
            dsi_stream_line(out, in);
        }
    }
#endif
    memcpy(out, in, bytes);
}

/* As memcpy, through the caches; asks early for lines that another processor holds, on both sides.
 * Ahead by half a page: the hardware looks ahead inside of a page only. */
static inline void dsi_near_copy(void *to, const void *from, size_t bytes)
{
#if defined(__x86_64__)
    char *out = to;
    const char *in = from;
    for (; bytes >= 64; bytes -= 64, out += 64, in += 64) {
        _mm_prefetch(in + 2048, _MM_HINT_T0);
        _mm_prefetch(out + 2048, _MM_HINT_ET0);
        const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)in);
        const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(in + 16));
        const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(in + 32));
        const __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(in + 48));
        _mm_storeu_si128((__m128i *)(void *)out, a);
        _mm_storeu_si128((__m128i *)(void *)(out + 16), b);
        _mm_storeu_si128((__m128i *)(void *)(out + 32), c);
        _mm_storeu_si128((__m128i *)(void *)(out + 48), d);
    }
    memcpy(out, in, bytes);
#else
    memcpy(to, from, bytes);
#endif
}

static inline void dsi_stream_fence(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

#endif
