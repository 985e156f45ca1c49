/* SPDX-License-Identifier: Apache-2.0 */
/* Who stores what all ranks have: replicated tensors are laid end to end, in the order they were
 * given, and cut so that every shard comes to the same size where the rank's own slices allow it.
 */
#include "ckpt/ckpt_writer.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { CUT_BYTES = 4096 }; /* cuts inside of a tensor are at multiples */

typedef struct load {
    uint64_t own;        /* bytes of slices that only this rank has */
    uint64_t replicated; /* bytes of replicated tensors */
    uint64_t digest;     /* of the list of them */
} load;

static uint64_t bytes_of(const dsi_ckpt_pending *p)
{
    return (uint64_t)ds_extent_count(&p->extent, p->tensor.meta.shape) *
           ds_dtype_bytes(p->tensor.meta.dtype);
}

static load measure(const ds_checkpoint_writer *w)
{
    load mine = {0};
    for (size_t i = 0; i < w->n_pending; ++i) {
        const dsi_ckpt_pending *p = &w->pending[i];
        if (!p->replicated) {
            mine.own += bytes_of(p);
            continue;
        }
        const ds_meta *meta = &p->tensor.meta;
        mine.replicated += bytes_of(p);
        mine.digest = XXH3_64bits_withSeed(p->tensor.kind, strlen(p->tensor.kind), mine.digest);
        mine.digest = XXH3_64bits_withSeed(p->tensor.name, strlen(p->tensor.name), mine.digest);
        mine.digest =
            XXH3_64bits_withSeed(meta->shape.dims, meta->shape.n_dims * sizeof meta->shape.dims[0],
                                 mine.digest + (uint64_t)meta->dtype);
    }
    return mine;
}

static ds_status check_alike(const ds_checkpoint_writer *w, const load *all)
{
    for (uint32_t r = 1; r < w->group.size; ++r) {
        if (all[r].replicated != all[0].replicated || all[r].digest != all[0].digest) {
            return ds_fail(w->ctx, DS_ERR_PEER,
                           "checkpoint %s: %s gives other replicated tensors than rank 0",
                           w->m.info.tag, dsi_comm_rank_name(w->group.comm, r).text);
        }
    }
    return DS_OK;
}

/* Bytes that fill every rank up to `level`. */
static uint64_t fill_to(const load *all, uint32_t n, uint64_t level)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < n; ++r) {
        sum += all[r].own < level ? level - all[r].own : 0;
    }
    return sum;
}

/* The largest level that needs no more than all replicated bytes. */
static uint64_t find_level(const load *all, uint32_t n)
{
    uint64_t low = 0;
    uint64_t high = all[0].replicated;
    for (uint32_t r = 0; r < n; ++r) {
        high = all[r].own + all[0].replicated > high ? all[r].own + all[0].replicated : high;
    }
    while (low < high) {
        const uint64_t middle = low + (high - low + 1) / 2;
        if (fill_to(all, n, middle) <= all[0].replicated) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* Bytes of the laid-out tensors [*begin_out, *end_out) that rank r stores. */
static void range_of(const load *all, uint32_t n, uint32_t rank, uint64_t *begin_out,
                     uint64_t *end_out)
{
    const uint64_t level = find_level(all, n);
    uint64_t begin = 0;
    for (uint32_t r = 0; r < rank; ++r) {
        begin += all[r].own < level ? level - all[r].own : 0;
    }
    *begin_out = begin;
    *end_out = rank + 1 == n ? all[0].replicated
                             : begin + (all[rank].own < level ? level - all[rank].own : 0);
}

/* The same cut from both of its sides: a place in the layout as a place in a tensor of `bytes`
 * bytes that begins at `first`. */
static uint64_t cut_in(uint64_t place, uint64_t first, uint64_t bytes)
{
    if (place <= first) {
        return 0;
    }
    return place - first >= bytes ? bytes : (place - first) / CUT_BYTES * CUT_BYTES;
}

static void deal(ds_checkpoint_writer *w, uint64_t begin, uint64_t end)
{
    uint64_t first = 0;
    size_t kept = 0;
    for (size_t i = 0; i < w->n_pending; ++i) {
        dsi_ckpt_pending p = w->pending[i];
        if (p.replicated) {
            const uint64_t bytes = bytes_of(&p);
            const size_t width = ds_dtype_bytes(p.tensor.meta.dtype);
            const uint64_t low = cut_in(begin, first, bytes);
            const uint64_t high = cut_in(end, first, bytes);
            first += bytes;
            if (low >= high && (bytes > 0 || w->group.rank != 0)) {
                continue;
            }
            p.extent = ds_extent_flat((int64_t)(low / width), (int64_t)((high - low) / width));
            p.data = p.data != NULL ? (const uint8_t *)p.data + low : NULL;
            p.fill_base = low;
            p.replicated = false;
        }
        w->pending[kept++] = p;
    }
    w->n_pending = kept;
}

/* The others wait while the largest shard is written: at least 20 MB/s are granted to it. */
static void grant_time(ds_checkpoint_writer *w, const load *all)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < w->group.size; ++r) {
        most = all[r].own > most ? all[r].own : most;
    }
    if (w->group.comm != NULL && w->group.comm->timeout > 0) {
        w->group.granted = (double)(most + all[0].replicated) / 20e6;
        w->group.comm->timeout += w->group.granted;
    }
}

ds_status dsi_ckpt_share_out(ds_checkpoint_writer *w)
{
    dsi_ckpt_group *g = &w->group;
    load *all = calloc(g->size, sizeof *all);
    ds_status status = dsi_ckpt_agree(g, all != NULL ? DS_OK
                                                     : ds_fail(w->ctx, DS_ERR_NOMEM,
                                                               "out of memory saving a "
                                                               "checkpoint"));
    if (status == DS_OK) {
        const load mine = measure(w);
        status = dsi_ckpt_gather(g, &mine, sizeof mine, all);
    }
    if (status == DS_OK) {
        status = check_alike(w, all);
    }
    if (status == DS_OK) {
        uint64_t begin = 0;
        uint64_t end = 0;
        range_of(all, g->size, g->rank, &begin, &end);
        deal(w, begin, end);
        grant_time(w, all);
    }
    free(all);
    return status;
}
