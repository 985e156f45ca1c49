/* SPDX-License-Identifier: Apache-2.0 */
/* The rate at which a thread pool reads memory: the limit of what must read it once. */
#ifndef DS_BENCH_READ_RATE_H
#define DS_BENCH_READ_RATE_H

#include "base/pool.h"

#include <stddef.h>

/* Bytes a second that n_threads (at most 64) read together from data: the best of several loops
 * that do nothing else (two, four and eight streams a thread, several distances of prefetch;
 * the widest vectors that the machine has), each run twice, each thread one part. */
double bench_read_rate(dsi_pool *pool, uint32_t n_threads, const void *data, size_t bytes);

/* The same from memory of its own in huge pages, which is released again. */
double bench_read_rate_huge(dsi_pool *pool, uint32_t n_threads, size_t bytes);

#endif
