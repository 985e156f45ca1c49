/* SPDX-License-Identifier: Apache-2.0 */
/* Storage of cells that do not live on the device, and transfers from and to it.
 *
 * Host memory is one map; on disk states, parameters, activations and keys have a scratch file
 * each, without a name, striped over folders, which goes with the process however that ends. Each
 * cell has whole blocks of its own; parts share those of their parent.
 */
#ifndef DSI_EXEC_SWAP_H
#define DSI_EXEC_SWAP_H

#include "io/aio.h"
#include "pass/cell_residency.h"

typedef struct dsi_swap dsi_swap;

/* What a cell holds; STATES: all that is none of the others. */
typedef enum dsi_swap_content {
    DSI_SWAP_STATES,
    DSI_SWAP_PARAMS,
    DSI_SWAP_ACTIVATIONS,
    DSI_SWAP_KEYS, /* and values, of generation */
    DSI_SWAP_CONTENTS
} dsi_swap_content;

/* Where the scratch file of a content goes. */
typedef struct dsi_swap_disk {
    const char *const *folders; /* borrowed for the call */
    uint32_t n_folders;         /* 0: none of it may live on disk */
    const char *key; /* of the configuration, which gave them; an error names it; static */
} dsi_swap_disk;

/* A file whose bytes from `offset` on are what a cell holds; it is only read. */
typedef struct dsi_swap_source {
    const char *path; /* borrowed for the call; NULL: the cell has storage of its own */
    uint64_t offset;
} dsi_swap_source;

typedef struct dsi_swap_params {
    ds_aio_params aio;
    bool use_gds;               /* the device moves what is on disk by itself (dsi_exec_allocate) */
    const dsi_aio_mover *mover; /* then: by this; borrowed for the call */
    dsi_swap_disk disks[DSI_SWAP_CONTENTS];
    const dsi_swap_source *sources; /* of each cell; borrowed for the call; NULL: none has one */
    uint32_t max_requests;          /* transfers in flight */
    uint32_t n_slots;               /* of cells that are per slot; 0: 1 */
    double patience; /* seconds without any progress until a wait fails; 0: for ever */
} dsi_swap_params;

typedef struct dsi_swap_ticket {
    dsi_aio_ticket aio; /* 0: done */
    double begin;       /* clock; of a transfer that is not done */
    bool write;
} dsi_swap_ticket;

/* residencies: an entry for each of the first n cells, the others live on the device; borrowed. All
 * storage is zero. What lives on disk and has a source is in that file, never written. Errors:
 * ERR_CONFIG (cells on disk and no folder), and those of dsi_aio_open and dsi_aio_add_scratch, such
 * as a full disk. */
ds_status dsi_swap_create(ds_ctx *ctx, const ds_cells *cells, const dsi_cell_residency *residencies,
                          uint32_t n, const dsi_swap_params *params, dsi_swap **swap_out);
void dsi_swap_destroy(dsi_swap **swap);
/* Waits for all transfers. False: the disk does not answer, and memory that was given to
 * dsi_swap_start must stay mapped for good. Accepts NULL. */
bool dsi_swap_drain(dsi_swap *swap);

/* Moves a whole cell from or to memory, which is aligned to and has room for whole blocks, and is
 * the device's where there is a mover. slot: of
 * a cell that is per slot; of others it is not looked at. */
ds_status dsi_swap_start(dsi_swap *swap, ds_cell cell, uint32_t slot, bool write, void *data,
                         dsi_swap_ticket *ticket_out);
/* *seconds_out (may be NULL): from the start to the end of the transfer; 0: it ended within its
 * start. */
ds_status dsi_swap_wait(dsi_swap *swap, dsi_swap_ticket *ticket, double *seconds_out);
/* After an error of another step: waits, as dsi_swap_drain does, and reports nothing. */
void dsi_swap_discard(dsi_swap *swap, dsi_swap_ticket *ticket);
/* Whether a wait has found that what was moved to a cell did not get there; until dsi_swap_forgive.
 * Accept NULL. */
bool dsi_swap_has_lost(const dsi_swap *swap);
void dsi_swap_forgive(dsi_swap *swap);
/* Seconds that waits held the caller so far. Accepts NULL. */
double dsi_swap_waited(const dsi_swap *swap);

/* Any bytes of a cell, any alignment; for the host's own accesses between steps. */
ds_status dsi_swap_read(dsi_swap *swap, ds_cell cell, size_t offset, void *data, size_t bytes);
ds_status dsi_swap_write(dsi_swap *swap, ds_cell cell, size_t offset, const void *data,
                         size_t bytes);

/* Fills a cell with zeros. */
ds_status dsi_swap_clear(dsi_swap *swap, ds_cell cell);

/* Two cells of the same size and residence change their contents; no transfer of them is in flight.
 * Then place_parts, with the residencies of the creation, does the same for their parts. */
void dsi_swap_exchange(dsi_swap *swap, ds_cell a, ds_cell b);
void dsi_swap_place_parts(dsi_swap *swap, const dsi_cell_residency *residencies);

/* Memory of a cell that lives on the host, of a slot as in dsi_swap_start. */
void *dsi_swap_host(const dsi_swap *swap, ds_cell cell, uint32_t slot);
/* All of that memory; NULL when there is none. Accepts NULL, as what follows. */
void *dsi_swap_host_memory(const dsi_swap *swap);
/* Bytes of storage in host memory and on disk. */
size_t dsi_swap_host_bytes(const dsi_swap *swap);
size_t dsi_swap_disk_bytes(const dsi_swap *swap);
bool dsi_swap_disk_is_unused(
    const dsi_swap *swap); /* no cell lies on disk, in a file of any kind */
size_t dsi_swap_disk_bytes_of(const dsi_swap *swap, dsi_swap_content content);
const char *dsi_swap_content_name(dsi_swap_content content); /* "offloaded states" */

#endif
