/* SPDX-License-Identifier: Apache-2.0 */
/* See shm_copy.h. */
#include "comm/shm_copy.h"

#include "comm/stream_copy.h"
#include <stdbool.h>
#include <string.h>

enum { PIECE = 256 << 10, SHARED_FROM = 3 << 20 /* bytes that threads share */ };

typedef struct copy_work {
    char *to;
    const char *from;
    size_t bytes;
} copy_work;

static void copy(void *to, const void *from, size_t bytes, bool stream)
{
    if (stream) {
        dsi_stream_copy(to, from, bytes);
        dsi_stream_fence();
    } else {
        dsi_near_copy(to, from, bytes);
    }
}

static void copy_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const copy_work *w = arg;
    const size_t begin = (size_t)task * PIECE;
    const size_t n = w->bytes - begin < PIECE ? w->bytes - begin : PIECE;
    copy(w->to + begin, w->from + begin, n, w->bytes >= SHM_STREAM_FROM);
}

void shm_copy(dsi_pool *pool, void *to, const void *from, size_t bytes)
{
    if (bytes == 0 || to == from) {
        return;
    }
    if (bytes < SHARED_FROM || dsi_pool_n_threads(pool) <= 1) {
        copy(to, from, bytes, bytes >= SHM_STREAM_FROM);
        return;
    }
    copy_work work = {to, from, bytes};
    dsi_pool_run(pool, copy_task, &work, (uint32_t)((bytes + PIECE - 1) / PIECE));
}
