/* Large copies, by the threads of a pool where there is one. */
#ifndef DSI_COMM_SHM_COPY_H
#define DSI_COMM_SHM_COPY_H

#include "base/pool.h"
#include <stddef.h>

/* Nothing when from == to. No other overlap. */
void shm_copy(dsi_pool *pool, void *to, const void *from, size_t bytes);

#endif
