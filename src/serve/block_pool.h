/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of keys and values: who holds which, and which hold a begin that another sequence may use.
 *
 * Invariants:
 *  1. A block is held by `refs` sequences; at 0 it is free. A free block that is registered keeps
 *     its content until it is taken, the least recently used first.
 *  2. A registered block is full. Its content is a function of its ids and of all before them,
 * which the serial of the block before stands for: serials are never used twice.
 *  3. Ids are compared, not only their hash: no content is taken for another.
 */
#ifndef DSI_SERVE_BLOCK_POOL_H
#define DSI_SERVE_BLOCK_POOL_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct dsi_block_pool dsi_block_pool;

ds_status dsi_block_pool_create(ds_ctx *ctx, int64_t n_blocks, int64_t block,
                                dsi_block_pool **pool_out);
void dsi_block_pool_destroy(dsi_block_pool **pool);
int64_t dsi_block_pool_n_free(const dsi_block_pool *pool);
/* A free block for one holder, -1: there is none. */
int32_t dsi_block_pool_take(dsi_block_pool *pool);
/* One holder less. */
void dsi_block_pool_release(dsi_block_pool *pool, int32_t block);
/* One holder more of a block that dsi_block_pool_find gave. */
void dsi_block_pool_share(dsi_block_pool *pool, int32_t block);
/* The registered block behind the one with serial `before` (0: at the begin) with these ids; -1. */
int32_t dsi_block_pool_find(const dsi_block_pool *pool, uint64_t before, const uint32_t *ids);
/* Registers a held block as that, unless there is one; the one that there is. */
int32_t dsi_block_pool_register(dsi_block_pool *pool, int32_t block, uint64_t before,
                                const uint32_t *ids);
/* No block is found any more that is registered now; holders keep theirs. */
void dsi_block_pool_forget(dsi_block_pool *pool);
uint64_t dsi_block_pool_serial(const dsi_block_pool *pool, int32_t block);
/* Whether the block is still registered under that serial. */
bool dsi_block_pool_holds(const dsi_block_pool *pool, int32_t block, uint64_t serial);
bool dsi_block_pool_is_free(const dsi_block_pool *pool, int32_t block);

#endif
