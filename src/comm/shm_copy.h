/* SPDX-License-Identifier: Apache-2.0 */
/* Large copies, by the threads of a pool where there is one.
 *
 * From some MiB on, what is written goes past the caches: it will not be read soon by anybody in
 * them, and the lines need not be fetched first. Sums, which read more, begin with that earlier.
 */
#ifndef DSI_COMM_SHM_COPY_H
#define DSI_COMM_SHM_COPY_H

#include "base/pool.h"
#include <stddef.h>

#define SHM_STREAM_FROM      ((size_t)6 << 20)
#define SHM_STREAM_SUMS_FROM ((size_t)3 << 20)

/* Nothing when from == to. No other overlap. */
void shm_copy(dsi_pool *pool, void *to, const void *from, size_t bytes);

#endif
