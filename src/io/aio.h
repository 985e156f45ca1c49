/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous transfers between memory and files: what swapping to disk stands on.
 *
 * Open once with every ceiling; add files; then submit (buffer, file, offset, bytes) and get a
 * ticket; wait for the ticket. Nothing is allocated between open and close except by the functions
 * that add a file. Called by the executor (states and parameters on disk) and by aio_handle.c.
 *
 *     const dsi_aio_params params = {.io = ds_aio_params_default(), .folders = folders,
 *                                    .n_folders = 2, .max_files = 8, .max_requests = 64};
 *     DS_TRY(dsi_aio_open(ctx, &params, &aio));
 *     DS_TRY(dsi_aio_add_scratch(aio, "exp_avg", bytes, 0, 2, &file));
 *     DS_TRY(dsi_aio_write(aio, file, 0, buffer, n, &ticket));
 *     DS_TRY(dsi_aio_wait(aio, ticket));
 *
 * Thread rule: read, write, wait and stats may be called from any thread, at once; a ticket
 * is waited for by one thread. Open, add, remove and close: one thread, and the file concerned (for
 * close: every file) has no request that another thread still submits or waits for.
 *
 * Order: there is none between requests in flight, so wait for a write before its bytes are read or
 * written again. Reads and writes that are both waiting take turns; among themselves the oldest
 * goes first.
 *
 * Alignment: buffers, offsets and sizes that are multiples of DSI_AIO_ALIGN move without a copy.
 * Others are right but slower: pieces with a misaligned buffer are copied, edges that are no whole
 * block of the disk go through the page cache.
 *
 * Memory of a device (dsi_aio_mover) is moved by the device, in the same pieces, between the same
 * files; the host's accesses to them go on beside it.
 */
#ifndef DSI_IO_AIO_H
#define DSI_IO_AIO_H

#include <deepspeed/aio.h>

enum { DSI_AIO_ALIGN = 4096 };

typedef struct dsi_aio dsi_aio;
typedef uint64_t dsi_aio_ticket; /* 0: no request; waiting for it is fine */

/* Who moves bytes between files and memory that is not the host's, on the workers' threads. */
typedef struct dsi_aio_mover {
    void *user;
    /* As ds_accel_disks has them. */
    ds_status (*open)(void *user, int fd, const char *path, void **file_out);
    void (*close)(void *user, void *file);
    int64_t (*move)(void *user, void *file, bool write, void *memory, size_t bytes,
                    uint64_t offset);
    const char *(*text)(int reason);
} dsi_aio_mover;

typedef struct dsi_aio_params {
    ds_aio_params io;
    const dsi_aio_mover *mover; /* copied; NULL: there is none. With one, workers are threads, and
                                   every file must allow O_DIRECT */
    const char *const *folders; /* where scratch files go, striped over all; borrowed for the call.
                                   They must exist. */
    uint32_t n_folders;         /* 0: no scratch files */
    uint64_t stripe_bytes;      /* multiple of DSI_AIO_ALIGN; 0: io.block_size */
    uint32_t max_files;
    uint32_t max_requests; /* submitted and not yet waited for; at most 65536 */
    double patience;       /* seconds in which no transfer ends, after which a wait fails: the disk
                              does not answer; 0: for ever */
} dsi_aio_params;

typedef struct dsi_aio_stats { /* since the opening */
    uint64_t read_bytes, write_bytes;
    uint64_t n_pieces; /* transfers given to the system */
    uint64_t n_copied; /* of them, those that went through a copy or the page cache */
    double piece_seconds, slowest_piece; /* how long they took: the sum, the longest */
    double wait_seconds;                 /* that waits held their threads */
} dsi_aio_stats;

ds_status dsi_aio_open(ds_ctx *ctx, const dsi_aio_params *params, dsi_aio **aio_out);
/* Waits for what is in flight, stops the threads, closes the files. Accepts NULL. When a wait has
 * found that the disk does not answer, and it still does not, all that is left to the process, for
 * its buffers are the disk's: they must stay mapped (dsi_aio_drain says). */
void dsi_aio_close(dsi_aio **aio);
/* Waits for what is in flight, not for a disk that does not answer. False: some of it still is. */
bool dsi_aio_drain(dsi_aio *aio);
/* The values in force, backend URING or THREADS. */
ds_aio_params dsi_aio_in_force(const dsi_aio *aio);
dsi_aio_stats dsi_aio_get_stats(dsi_aio *aio);

/* A file for swapping over `n` of the folders, from number `first` on, of `bytes` rounded up to
 * DSI_AIO_ALIGN, its room taken from the disks at once, its content zero. It has no name: it goes
 * with the process however that ends, and no other job can meet it. `name` is for messages. Errors:
 * ERR_NOT_FOUND, ERR_IO (folder missing or not writable, disk full: says how much is free),
 * ERR_LIMIT (max_files). */
ds_status dsi_aio_add_scratch(dsi_aio *aio, const char *name, uint64_t bytes, uint32_t first,
                              uint32_t n, uint32_t *file_out);
/* A file that has a name. write false: for reading only. write true: reading and writing, created
 * when missing, grows as written. */
ds_status dsi_aio_add_path(dsi_aio *aio, const char *path, bool write, uint32_t *file_out);
/* Closes a file, whose requests have all been waited for. */
void dsi_aio_remove(dsi_aio *aio, uint32_t file);
/* Whether its transfers pass by the page cache. */
bool dsi_aio_is_direct(dsi_aio *aio, uint32_t file);

/* Submit a transfer of bytes [offset, offset + bytes). The buffer is the request's until the wait
 * returns. bytes 0 gives ticket 0. Errors: ERR_ARG (beyond the end of a scratch file), ERR_LIMIT
 * (max_requests are not waited for yet). */
ds_status dsi_aio_read(dsi_aio *aio, uint32_t file, uint64_t offset, void *buffer, size_t bytes,
                       dsi_aio_ticket *ticket_out);
ds_status dsi_aio_write(dsi_aio *aio, uint32_t file, uint64_t offset, const void *buffer,
                        size_t bytes, dsi_aio_ticket *ticket_out);
/* The same for memory of the mover's, at any address and offset. */
ds_status dsi_aio_move(dsi_aio *aio, uint32_t file, uint64_t offset, bool write, void *memory,
                       size_t bytes, dsi_aio_ticket *ticket_out);
/* Waits and uses the ticket up. A wait of more than 30 s (or a tenth of the patience, if that is
 * less) is logged, with file, bytes, seconds and pace; then one of twice as long, and so on.
 * Errors: ERR_IO (names file, offset, reason, remedy; which bytes of the range were moved is then
 * unknown; of a disk that does not answer, the request stays in flight), ERR_ARG (a ticket that is
 * used up). */
ds_status dsi_aio_wait(dsi_aio *aio, dsi_aio_ticket ticket);
/* The same. *seconds_out (may be NULL): from the submission to the end of the transfer, whenever
 * that was; 0 for ticket 0. */
ds_status dsi_aio_wait_timed(dsi_aio *aio, dsi_aio_ticket ticket, double *seconds_out);
/* After an error elsewhere: waits as dsi_aio_drain does, and uses the ticket up without a word. */
void dsi_aio_discard(dsi_aio *aio, dsi_aio_ticket ticket);

#endif
