/* SPDX-License-Identifier: Apache-2.0 */
/* See swap.h. */
#include "exec/swap.h"

#include "base/clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ZERO_BYTES = 1 << 22 };

typedef struct place {
    dsi_residency residency;
    dsi_swap_content content; /* which scratch file */
    size_t offset;            /* in the host map or the scratch file */
    size_t bytes;             /* of the content */
    size_t stride;            /* between slots; 0: they have the same content */
    bool sourced;             /* it lies in a file that has a name, and is only read */
    uint32_t file;            /* then: that one */
} place;

struct dsi_swap {
    ds_ctx *ctx;
    place *places;
    uint32_t n;
    unsigned char *host;
    size_t host_bytes;
    size_t disk_bytes[DSI_SWAP_CONTENTS];
    dsi_aio *aio;
    bool moves; /* there is a mover */
    uint32_t files[DSI_SWAP_CONTENTS];
    void *zeros;      /* ZERO_BYTES of them, when there is a disk */
    atomic_bool lost; /* see dsi_swap_has_lost; waits may be on two threads */
};

const char *dsi_swap_content_name(dsi_swap_content content)
{
    static const char *const names[DSI_SWAP_CONTENTS] = {
        [DSI_SWAP_STATES] = "offloaded states",
        [DSI_SWAP_PARAMS] = "offloaded parameters",
        [DSI_SWAP_ACTIVATIONS] = "offloaded activations",
        [DSI_SWAP_KEYS] = "offloaded keys and values"};
    return names[content];
}

static dsi_swap_content content_of(ds_cell_kind kind)
{
    return kind == DS_CELL_PARAM   ? DSI_SWAP_PARAMS
           : kind == DS_CELL_STATE ? DSI_SWAP_ACTIVATIONS
           : kind == DS_CELL_KV    ? DSI_SWAP_KEYS
                                   : DSI_SWAP_STATES;
}

/* Deals out storage: first the cells that have their own, then the parts in those. */
static void deal_out(dsi_swap *swap, const ds_cells *cells, const dsi_cell_residency *residencies,
                     const dsi_swap_source *sources, uint32_t n_slots)
{
    for (int parts = 0; parts < 2; ++parts) {
        for (ds_cell c = 0; c < swap->n; ++c) {
            const dsi_cell_residency *residency = &residencies[c];
            place *p = &swap->places[c];
            if (residency->where == DSI_RESIDENCY_DEVICE ||
                (residency->parent != DS_NONE) != (parts == 1)) {
                continue;
            }
            const ds_cell_info *info = ds_cells_get(cells, c);
            *p = (place){.residency = residency->where,
                         .content = content_of(info->kind),
                         .bytes = ds_meta_bytes(info->meta)};
            if (parts == 1) {
                p->content = swap->places[residency->parent].content;
                p->offset = swap->places[residency->parent].offset + residency->offset;
                p->sourced = swap->places[residency->parent].sourced;
                continue;
            }
            if (residency->where == DSI_RESIDENCY_DISK && sources != NULL &&
                sources[c].path != NULL) {
                p->sourced = true;
                p->offset = sources[c].offset;
                continue;
            }
            size_t *end = residency->where == DSI_RESIDENCY_HOST ? &swap->host_bytes
                                                                 : &swap->disk_bytes[p->content];
            p->offset = *end;
            p->stride = residency->per_slot ? dsi_swap_block_bytes(p->bytes) : 0;
            *end += dsi_swap_block_bytes(p->bytes) * (residency->per_slot ? n_slots : 1);
        }
    }
}

static ds_status map_host(dsi_swap *swap)
{
    void *map =
        mmap(NULL, swap->host_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        const size_t bytes = swap->host_bytes;
        swap->host_bytes = 0;
        return ds_fail(swap->ctx, DS_ERR_NOMEM, "cannot map %.1f MiB of host memory: %s",
                       (double)bytes / 1048576.0, strerror(errno));
    }
    (void)madvise(map, swap->host_bytes, MADV_HUGEPAGE);
    swap->host = map;
    return DS_OK;
}

static ds_status open_files(dsi_swap *swap, const dsi_swap_params *params)
{
    uint32_t first = 0;
    for (int c = 0; c < DSI_SWAP_CONTENTS; ++c) {
        const uint32_t n = params->disks[c].n_folders;
        if (swap->disk_bytes[c] > 0 && n == 0) {
            return ds_fail(swap->ctx, DS_ERR_CONFIG,
                           "offload to nvme needs nvme_path, a folder on the disk to use");
        }
        if (swap->disk_bytes[c] > 0) {
            const ds_status status =
                dsi_aio_add_scratch(swap->aio, dsi_swap_content_name((dsi_swap_content)c),
                                    swap->disk_bytes[c], first, n, &swap->files[c]);
            if (status < 0) {
                char *reason = strdup(ds_ctx_error(swap->ctx)); /* the record is written anew */
                const ds_status named = ds_fail(swap->ctx, status, "%s: %s", params->disks[c].key,
                                                reason != NULL ? reason : "failed");
                free(reason);
                return named;
            }
        }
        first += n;
    }
    return DS_OK;
}

/* Distinct files of sources, of which neighbouring cells mostly have the same one. */
static uint32_t count_sources(const dsi_swap *swap, const dsi_swap_source *sources)
{
    uint32_t n = 0;
    const char *last = NULL;
    for (ds_cell c = 0; c < swap->n; ++c) {
        if (swap->places[c].sourced && sources != NULL && sources[c].path != NULL) {
            n += last != sources[c].path;
            last = sources[c].path;
        }
    }
    return n;
}

static ds_status open_sources(dsi_swap *swap, const dsi_swap_source *sources,
                              const dsi_cell_residency *residencies)
{
    const char *last = NULL;
    uint32_t file = 0;
    for (ds_cell c = 0; c < swap->n; ++c) {
        place *p = &swap->places[c];
        if (!p->sourced || residencies[c].parent != DS_NONE) {
            continue;
        }
        if (last != sources[c].path) {
            DS_TRY(dsi_aio_add_path(swap->aio, sources[c].path, false, &file));
            last = sources[c].path;
        }
        p->file = file;
    }
    for (ds_cell c = 0; c < swap->n; ++c) {
        if (swap->places[c].sourced && residencies[c].parent != DS_NONE) {
            swap->places[c].file = swap->places[residencies[c].parent].file;
        }
    }
    return DS_OK;
}

static ds_status open_disk(dsi_swap *swap, const dsi_swap_params *params,
                           const dsi_cell_residency *residencies)
{
    uint32_t n = 0;
    for (int c = 0; c < DSI_SWAP_CONTENTS; ++c) {
        n += params->disks[c].n_folders;
    }
    const char **folders = calloc((size_t)n + 1, sizeof *folders); /* those of all contents */
    if (folders == NULL) {
        return ds_fail(swap->ctx, DS_ERR_NOMEM, "no memory for offload");
    }
    n = 0;
    for (int c = 0; c < DSI_SWAP_CONTENTS; ++c) {
        for (uint32_t i = 0; i < params->disks[c].n_folders; ++i) {
            folders[n++] = params->disks[c].folders[i];
        }
    }
    const dsi_aio_params aio = {.io = params->aio,
                                .mover = params->mover,
                                .folders = folders,
                                .n_folders = n,
                                .max_files =
                                    DSI_SWAP_CONTENTS + count_sources(swap, params->sources),
                                .max_requests = params->max_requests + 1,
                                .patience = params->patience};
    ds_status status = ds_aio_buffer_create(swap->ctx, ZERO_BYTES, false, &swap->zeros);
    status = status < 0 ? status : dsi_aio_open(swap->ctx, &aio, &swap->aio);
    free(folders);
    status = status < 0 ? status : open_files(swap, params);
    return status < 0 ? status : open_sources(swap, params->sources, residencies);
}

ds_status dsi_swap_create(ds_ctx *ctx, const ds_cells *cells, const dsi_cell_residency *residencies,
                          uint32_t n, const dsi_swap_params *params, dsi_swap **swap_out)
{
    dsi_swap *swap = calloc(1, sizeof *swap);
    if (swap == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for offload");
    }
    swap->ctx = ctx;
    swap->n = n;
    swap->moves = params->mover != NULL;
    swap->places = calloc((size_t)n + 1, sizeof *swap->places);
    ds_status status = DS_OK;
    if (swap->places == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory for offload");
    } else {
        deal_out(swap, cells, residencies, params->sources,
                 params->n_slots > 0 ? params->n_slots : 1);
    }
    if (status >= 0 && swap->host_bytes > 0) {
        status = map_host(swap);
    }
    if (status >= 0 &&
        (dsi_swap_disk_bytes(swap) > 0 || count_sources(swap, params->sources) > 0)) {
        status = open_disk(swap, params, residencies);
    }
    if (status < 0) {
        dsi_swap_destroy(&swap);
        return status;
    }
    *swap_out = swap;
    return DS_OK;
}

void dsi_swap_destroy(dsi_swap **swap_inout)
{
    dsi_swap *swap = swap_inout != NULL ? *swap_inout : NULL;
    if (swap == NULL) {
        return;
    }
    const bool drained = dsi_swap_drain(swap);
    dsi_aio_close(&swap->aio);
    if (drained) {
        ds_aio_buffer_destroy(&swap->zeros, ZERO_BYTES);
    }
    if (swap->host != NULL) {
        (void)munmap(swap->host, swap->host_bytes);
    }
    free(swap->places);
    free(swap);
    *swap_inout = NULL;
}

ds_status dsi_swap_start(dsi_swap *swap, ds_cell cell, uint32_t slot, bool write, void *data,
                         dsi_swap_ticket *ticket_out)
{
    const place *p = &swap->places[cell];
    const size_t offset = p->offset + slot * p->stride;
    const size_t blocks = dsi_swap_block_bytes(p->bytes);
    *ticket_out = (dsi_swap_ticket){.begin = dsi_clock_seconds(), .write = write};
    if (p->residency == DSI_RESIDENCY_HOST) {
        unsigned char *host = swap->host + offset;
        memcpy(write ? (void *)host : data, write ? data : (void *)host, p->bytes);
        return DS_OK;
    }
    if (p->sourced && write) {
        return ds_fail(swap->ctx, DS_ERR_STATE,
                       "a cell that lies in a model's file is not written");
    }
    const uint32_t file = p->sourced ? p->file : swap->files[p->content];
    if (swap->moves) {
        return dsi_aio_move(swap->aio, file, offset, write, data, p->sourced ? p->bytes : blocks,
                            &ticket_out->aio);
    }
    if (p->sourced) {
        return dsi_aio_read(swap->aio, file, offset, data, p->bytes, &ticket_out->aio);
    }
    return write ? dsi_aio_write(swap->aio, file, offset, data, blocks, &ticket_out->aio)
                 : dsi_aio_read(swap->aio, file, offset, data, blocks, &ticket_out->aio);
}

ds_status dsi_swap_wait(dsi_swap *swap, dsi_swap_ticket *ticket, double *seconds_out)
{
    if (seconds_out != NULL) {
        *seconds_out = 0.0;
    }
    if (ticket->aio != 0) { /* which stays after an error, for dsi_swap_discard */
        const ds_status status = dsi_aio_wait_timed(swap->aio, ticket->aio, seconds_out);
        if (status < 0 && ticket->write) {
            atomic_store(&swap->lost, true);
        }
        DS_TRY(status);
        ticket->aio = 0;
    }
    return DS_OK;
}

bool dsi_swap_has_lost(const dsi_swap *swap)
{
    return swap != NULL && atomic_load(&swap->lost);
}

void dsi_swap_forgive(dsi_swap *swap)
{
    if (swap != NULL) {
        atomic_store(&swap->lost, false);
    }
}

bool dsi_swap_drain(dsi_swap *swap)
{
    return swap == NULL || swap->aio == NULL || dsi_aio_drain(swap->aio);
}

void dsi_swap_discard(dsi_swap *swap, dsi_swap_ticket *ticket)
{
    if (ticket->aio != 0) {
        dsi_aio_discard(swap->aio, ticket->aio);
        ticket->aio = 0;
    }
}

double dsi_swap_waited(const dsi_swap *swap)
{
    return swap != NULL && swap->aio != NULL ? dsi_aio_get_stats(swap->aio).wait_seconds : 0.0;
}

static ds_status access_cell(dsi_swap *swap, ds_cell cell, size_t offset, bool write, void *data,
                             size_t bytes)
{
    const place *p = &swap->places[cell];
    dsi_aio_ticket ticket = 0;
    if (offset > p->bytes || bytes > p->bytes - offset) {
        return ds_fail(swap->ctx, DS_ERR_ARG, "bytes %zu to %zu of a cell of %zu", offset,
                       offset + bytes, p->bytes);
    }
    if (p->residency == DSI_RESIDENCY_HOST) {
        unsigned char *host = swap->host + p->offset + offset;
        memcpy(write ? (void *)host : data, write ? data : (void *)host, bytes);
        return DS_OK;
    }
    if (p->sourced && write) {
        return ds_fail(swap->ctx, DS_ERR_STATE,
                       "a cell that lies in a model's file is not written");
    }
    const size_t at = p->offset + offset;
    const uint32_t file = p->sourced ? p->file : swap->files[p->content];
    DS_TRY(write ? dsi_aio_write(swap->aio, file, at, data, bytes, &ticket)
                 : dsi_aio_read(swap->aio, file, at, data, bytes, &ticket));
    return dsi_aio_wait(swap->aio, ticket);
}

ds_status dsi_swap_read(dsi_swap *swap, ds_cell cell, size_t offset, void *data, size_t bytes)
{
    return access_cell(swap, cell, offset, false, data, bytes);
}

ds_status dsi_swap_write(dsi_swap *swap, ds_cell cell, size_t offset, const void *data,
                         size_t bytes)
{
    return access_cell(swap, cell, offset, true, (void *)(uintptr_t)data, bytes);
}

ds_status dsi_swap_clear(dsi_swap *swap, ds_cell cell)
{
    const place *p = &swap->places[cell];
    if (p->residency == DSI_RESIDENCY_HOST) {
        memset(swap->host + p->offset, 0, p->bytes);
        return DS_OK;
    }
    for (size_t at = 0; at < p->bytes; at += ZERO_BYTES) {
        const size_t n = p->bytes - at < ZERO_BYTES ? p->bytes - at : ZERO_BYTES;
        DS_TRY(dsi_swap_write(swap, cell, at, swap->zeros, n));
    }
    return DS_OK;
}

void dsi_swap_exchange(dsi_swap *swap, ds_cell a, ds_cell b)
{
    const place kept = swap->places[a];
    swap->places[a] = swap->places[b];
    swap->places[b] = kept;
}

void dsi_swap_place_parts(dsi_swap *swap, const dsi_cell_residency *residencies)
{
    for (ds_cell c = 0; c < swap->n; ++c) {
        if (residencies[c].where != DSI_RESIDENCY_DEVICE && residencies[c].parent != DS_NONE) {
            const place *parent = &swap->places[residencies[c].parent];
            swap->places[c].content = parent->content;
            swap->places[c].offset = parent->offset + residencies[c].offset;
        }
    }
}

void *dsi_swap_host(const dsi_swap *swap, ds_cell cell, uint32_t slot)
{
    const place *p = &swap->places[cell];
    return swap->host + p->offset + slot * p->stride;
}

void *dsi_swap_host_memory(const dsi_swap *swap)
{
    return swap != NULL ? swap->host : NULL;
}

size_t dsi_swap_host_bytes(const dsi_swap *swap)
{
    return swap != NULL ? swap->host_bytes : 0;
}

size_t dsi_swap_disk_bytes_of(const dsi_swap *swap, dsi_swap_content content)
{
    return swap != NULL ? swap->disk_bytes[content] : 0;
}

bool dsi_swap_disk_is_unused(const dsi_swap *swap)
{
    return swap == NULL || swap->aio == NULL;
}

size_t dsi_swap_disk_bytes(const dsi_swap *swap)
{
    size_t bytes = 0;
    for (int c = 0; swap != NULL && c < DSI_SWAP_CONTENTS; ++c) {
        bytes += swap->disk_bytes[c];
    }
    return bytes;
}
