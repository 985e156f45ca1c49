/* See shm_copy.h. */
#include "comm/shm_copy.h"

#include "comm/stream_copy.h"
#include <string.h>

enum { PIECE = 256 << 10 };

typedef struct copy_work {
    char *to;
    const char *from;
    size_t bytes;
} copy_work;

static void copy_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const copy_work *w = arg;
    const size_t begin = (size_t)task * PIECE;
    dsi_stream_copy(w->to + begin, w->from + begin,
                    w->bytes - begin < PIECE ? w->bytes - begin : PIECE);
    dsi_stream_fence();
}

void shm_copy(dsi_pool *pool, void *to, const void *from, size_t bytes)
{
    if (bytes == 0 || to == from) {
        return;
    }
    if (bytes < SHM_STREAM_FROM) {
        dsi_near_copy(to, from, bytes);
        return;
    }
    if (dsi_pool_n_threads(pool) <= 1) {
        dsi_stream_copy(to, from, bytes);
        dsi_stream_fence();
        return;
    }
    copy_work work = {to, from, bytes};
    dsi_pool_run(pool, copy_task, &work, (uint32_t)((bytes + PIECE - 1) / PIECE));
}
