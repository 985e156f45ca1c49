/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a checkpoint from other hosts. See ckpt_pool.h.
 *
 * Every rank knows which shards every rank sees, and for a tensor which part every rank wants. So
 * all of them find the same slices that somebody wants and does not see, and the same lender of
 * each: the lowest rank that sees its shard. The lender sends the slice to all, in blocks; those
 * that want it put it in place of the mapped one until they have read, and check its checksum as
 * that of their own.
 */
#include "ckpt/ckpt_pool.h"

#include "ckpt/ckpt_group.h"
#include "ckpt/ckpt_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4 << 20 };

/* What a rank wants of the present tensor. */
typedef struct want {
    uint64_t tensor; /* its place in the list: the same on all ranks */
    int64_t first, end;
    ds_extent extent;
    bool any;
} want;

struct dsi_ckpt_pool {
    ds_ctx *ctx;
    ds_checkpoint *ckpt;
    dsi_ckpt_manifest *m;
    dsi_ckpt_group group;
    uint8_t *absent;         /* [size * n_shards]; NULL: every rank sees every shard */
    uint32_t *lender;        /* [n_shards]; size: nobody sees it */
    want *wants;             /* [size] */
    uint8_t *block;          /* BLOCK bytes: of slices that this rank does not want */
    ds_safetensor *borrowed; /* of the present tensor, one for each of its slices */
};

static ds_status no_memory(const dsi_ckpt_pool *pool)
{
    return ds_fail(pool->ctx, DS_ERR_NOMEM, "out of memory loading %s", pool->m->info.path);
}

/* ---- opening ---- */

static ds_status learn_shards(dsi_ckpt_pool *pool, uint8_t *mine)
{
    dsi_ckpt_group *g = &pool->group;
    const size_t n = pool->m->n_shards;
    bool all = true;
    for (size_t i = 0; i < n; ++i) {
        mine[i] = pool->m->shards[i].absent;
    }
    DS_TRY(dsi_ckpt_gather(g, mine, n, pool->absent));
    for (size_t i = 0; i < n; ++i) {
        pool->lender[i] = g->size;
        for (uint32_t r = g->size; r-- > 0;) {
            const bool seen = pool->absent[r * n + i] == 0;
            pool->lender[i] = seen ? r : pool->lender[i];
            all = all && seen;
        }
    }
    if (all) {
        free(pool->absent);
        pool->absent = NULL;
    }
    return DS_OK;
}

static ds_status fill(dsi_ckpt_pool *pool)
{
    const size_t n = pool->m->n_shards;
    uint8_t *mine = malloc(n + 1);
    pool->absent = calloc(pool->group.size, n + 1);
    pool->lender = calloc(n + 1, sizeof *pool->lender);
    pool->wants = calloc(pool->group.size, sizeof *pool->wants);
    pool->block = malloc(BLOCK);
    const bool right = mine != NULL && pool->absent != NULL && pool->lender != NULL &&
                       pool->wants != NULL && pool->block != NULL;
    ds_status status = dsi_ckpt_agree(&pool->group, right ? DS_OK : no_memory(pool));
    if (status == DS_OK) {
        status = learn_shards(pool, mine);
    }
    free(mine);
    return status;
}

ds_status dsi_ckpt_pool_open(ds_ctx *ctx, ds_checkpoint *ckpt, dsi_comm *comm,
                             dsi_ckpt_pool **pool_out)
{
    dsi_ckpt_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        dsi_comm_abort(comm, "out of memory for a checkpoint");
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory for a checkpoint");
    }
    *pool = (dsi_ckpt_pool){.ctx = ctx, .ckpt = ckpt, .m = dsi_ckpt_manifest_of(ckpt)};
    ds_status status = dsi_ckpt_group_open(ctx, comm, &pool->group);
    if (status >= 0 && pool->group.comm != NULL) {
        (void)snprintf(pool->group.what, sizeof pool->group.what, "loading a checkpoint");
        status = fill(pool);
    }
    if (status < 0) {
        dsi_ckpt_pool_close(&pool);
        return status;
    }
    *pool_out = pool;
    return DS_OK;
}

void dsi_ckpt_pool_close(dsi_ckpt_pool **pool_inout)
{
    dsi_ckpt_pool *pool = *pool_inout;
    if (pool == NULL) {
        return;
    }
    dsi_ckpt_group_close(&pool->group);
    free(pool->absent);
    free(pool->lender);
    free(pool->wants);
    free(pool->block);
    free(pool);
    *pool_inout = NULL;
}

/* ---- reading ---- */

static bool wants_slice(const dsi_ckpt_pool *pool, uint32_t rank, const ds_checkpoint_tensor *t,
                        const dsi_ckpt_slice *slice)
{
    const want *w = &pool->wants[rank];
    if (!w->any || pool->absent[rank * pool->m->n_shards + slice->shard] == 0) {
        return false;
    }
    int64_t first = 0;
    int64_t end = 0;
    dsi_extent_span(&slice->extent, t->meta.shape, &first, &end);
    dsi_extent_copy common = {.shape = t->meta.shape,
                              .from = &slice->extent,
                              .in_dtype = t->meta.dtype,
                              .to = &w->extent,
                              .out_dtype = t->meta.dtype};
    return first < w->end && w->first < end && dsi_extent_copy_run(&common) > 0;
}

/* Whether a slice travels: somebody wants and does not see it, somebody else sees it. */
static bool travels(const dsi_ckpt_pool *pool, const ds_checkpoint_tensor *t,
                    const dsi_ckpt_slice *slice)
{
    if (pool->lender[slice->shard] == pool->group.size) {
        return false;
    }
    uint32_t r = 0;
    while (r < pool->group.size && !wants_slice(pool, r, t, slice)) {
        ++r;
    }
    return r < pool->group.size;
}

static size_t bytes_of(const ds_checkpoint_tensor *t, const dsi_ckpt_slice *slice)
{
    return (size_t)ds_extent_count(&slice->extent, t->meta.shape) * ds_dtype_bytes(t->meta.dtype);
}

static ds_status learn_wants(dsi_ckpt_pool *pool, const ds_checkpoint_tensor *t,
                             const ds_extent *extent)
{
    want mine = {.tensor = (uint64_t)(t - pool->m->tensors), .any = extent != NULL};
    if (extent != NULL) {
        if (!dsi_extent_is_inside(extent, t->meta.shape)) {
            mine.any = false; /* the read that follows says so */
        } else {
            mine.extent = *extent;
            dsi_extent_span(extent, t->meta.shape, &mine.first, &mine.end);
        }
    }
    DS_TRY(dsi_ckpt_gather(&pool->group, &mine, sizeof mine, pool->wants));
    for (uint32_t r = 1; r < pool->group.size; ++r) {
        if (pool->wants[r].tensor != pool->wants[0].tensor) {
            return ds_fail(pool->ctx, DS_ERR_PEER,
                           "%s: %s reads another tensor than rank 0: their models differ",
                           pool->m->info.path, dsi_comm_rank_name(pool->group.comm, r).text);
        }
        if (pool->wants[r].any && !dsi_extent_is_inside(&pool->wants[r].extent, t->meta.shape)) {
            return ds_fail(pool->ctx, DS_ERR_PEER, "%s: %s asks for a part beyond %s/%s",
                           pool->m->info.path, dsi_comm_rank_name(pool->group.comm, r).text,
                           t->kind, t->name);
        }
    }
    return DS_OK;
}

/* Room for what this rank borrows; what it lends is compared with its checksum first. */
static ds_status make_ready(dsi_ckpt_pool *pool, const ds_checkpoint_tensor *t)
{
    const uint32_t me = pool->group.rank;
    pool->borrowed = calloc((size_t)t->n_slices + 1, sizeof *pool->borrowed);
    if (pool->borrowed == NULL) {
        return no_memory(pool);
    }
    for (uint32_t k = 0; k < t->n_slices; ++k) {
        dsi_ckpt_slice *slice = &pool->m->slices[t->first_slice + k];
        if (wants_slice(pool, me, t, slice) && travels(pool, t, slice)) {
            const size_t bytes = bytes_of(t, slice);
            pool->borrowed[k] = (ds_safetensor){
                .name = slice->entry,
                .meta = {t->meta.dtype, dsi_ckpt_entry_shape(&slice->extent, t->meta.shape)},
                .data = malloc(bytes),
                .bytes = bytes,
                .path = pool->m->shards[slice->shard].file};
            if (pool->borrowed[k].data == NULL) {
                return no_memory(pool);
            }
        } else if (pool->lender[slice->shard] == me && travels(pool, t, slice)) {
            DS_TRY(dsi_ckpt_verify_slice(pool->ckpt, t, slice));
        }
    }
    return DS_OK;
}

static ds_status send_slice(dsi_ckpt_pool *pool, const ds_checkpoint_tensor *t, uint32_t k)
{
    dsi_ckpt_slice *slice = &pool->m->slices[t->first_slice + k];
    const uint32_t lender = pool->lender[slice->shard];
    const bool lends = lender == pool->group.rank;
    uint8_t *into = (uint8_t *)(uintptr_t)pool->borrowed[k].data;
    const size_t bytes = bytes_of(t, slice);
    for (size_t at = 0; at < bytes; at += BLOCK) {
        const size_t n = bytes - at < BLOCK ? bytes - at : BLOCK;
        uint8_t *block = into != NULL ? into + at : pool->block;
        if (lends) {
            memcpy(block, (const uint8_t *)slice->stored->data + at, n);
        }
        DS_TRY(dsi_ckpt_broadcast(&pool->group, block, n, lender));
    }
    if (into != NULL) {
        slice->stored = &pool->borrowed[k];
        slice->verified = false;
    }
    return DS_OK;
}

static void give_back(dsi_ckpt_pool *pool, const ds_checkpoint_tensor *t)
{
    for (uint32_t k = 0; k < t->n_slices && pool->borrowed != NULL; ++k) {
        dsi_ckpt_slice *slice = &pool->m->slices[t->first_slice + k];
        if (slice->stored == &pool->borrowed[k]) {
            slice->stored = NULL;
            slice->verified = false;
        }
        free((void *)(uintptr_t)pool->borrowed[k].data);
    }
    free(pool->borrowed);
    pool->borrowed = NULL;
}

static ds_status exchange(dsi_ckpt_pool *pool, const ds_checkpoint_tensor *t)
{
    DS_TRY(dsi_ckpt_agree(&pool->group, make_ready(pool, t)));
    for (uint32_t k = 0; k < t->n_slices; ++k) {
        if (travels(pool, t, &pool->m->slices[t->first_slice + k])) {
            DS_TRY(send_slice(pool, t, k));
        }
    }
    return DS_OK;
}

ds_status dsi_ckpt_pool_read(dsi_ckpt_pool *pool, const ds_checkpoint_tensor *t,
                             const ds_extent *extent, ds_dtype dtype, void *data)
{
    if (pool->absent == NULL) {
        return extent != NULL ? ds_checkpoint_read(pool->ckpt, t, extent, dtype, data) : DS_OK;
    }
    DS_TRY(learn_wants(pool, t, extent));
    ds_status status = exchange(pool, t);
    if (status >= 0) {
        status = extent != NULL ? ds_checkpoint_read(pool->ckpt, t, extent, dtype, data) : DS_OK;
        status = dsi_ckpt_agree(&pool->group, status);
    }
    give_back(pool, t);
    return status;
}
