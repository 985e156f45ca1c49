/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous file I/O past the page cache, as DeepSpeed's aio_handle.
 *
 *     ds_aio_handle *io = NULL;
 *     void *block = NULL;
 *     DS_TRY(ds_aio_handle_create(ctx, NULL, &io));
 *     DS_TRY(ds_aio_buffer_create(ctx, bytes, false, &block));
 *     DS_TRY(ds_aio_async_pread(io, block, bytes, "weights.bin", 0));
 *     …                                           // the disk works, the program goes on
 *     DS_TRY(ds_aio_wait(io, NULL));              // the bytes are there
 *
 * A request is cut into pieces of block_size bytes; intra_op_parallelism threads keep queue_depth
 * pieces each in flight. Files are opened with O_DIRECT where the file system allows it, else
 * through the page cache, and the log says so. Any offset, size and buffer address is right; what
 * is aligned to 4096 goes to the disk without a copy.
 *
 * Thread rule: one thread at a time uses a handle; several handles work concurrently, on the
 * same file too as long as their ranges do not overlap. Buffers belong to the handle from the async
 * call to the end of the wait.
 */
#ifndef DEEPSPEED_AIO_H
#define DEEPSPEED_AIO_H

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ds_aio_backend {
    DS_AIO_AUTO = 0, /* io_uring where the kernel permits it, else threads; the log says which */
    DS_AIO_URING,    /* io_uring; creation fails without it */
    DS_AIO_THREADS   /* pread and pwrite on threads */
} ds_aio_backend;

/* The keys of a configuration's section `aio`, and the way of doing it. */
typedef struct ds_aio_params {
    uint64_t block_size;           /* bytes, a multiple of 4096 up to 1 GiB; default 1048576 */
    uint32_t queue_depth;          /* 1 to 4096; default 8 */
    uint32_t intra_op_parallelism; /* threads that submit and reap, 1 to 64; default 1 */
    bool single_submit;            /* a system call for each piece; default false: for a batch */
    bool overlap_events;    /* default true: a piece that ends makes room for the next at once;
                               false: a batch of queue_depth pieces ends before the next begins */
    ds_aio_backend backend; /* default DS_AIO_AUTO. With DS_AIO_THREADS queue_depth times
                               intra_op_parallelism threads (at most 32) have a piece each;
                               single_submit and overlap_events then change nothing */
    DS_RESERVED(8);
} ds_aio_params;

typedef struct ds_aio_handle ds_aio_handle;

/* The defaults named above, which are those of the section `aio`. */
DS_API ds_aio_params ds_aio_params_default(void);

/* Starts the threads. params NULL: defaults. ctx must outlive the handle. The caller owns
 * *handle_out. Errors: ERR_ARG (a value out of its range), ERR_UNSUPPORTED (DS_AIO_URING where the
 * kernel does not permit it), ERR_NOMEM. */
DS_API ds_status ds_aio_handle_create(ds_ctx *ctx, const ds_aio_params *params,
                                      ds_aio_handle **handle_out);
/* Waits for what is in flight, stops the threads, frees, nulls. Accepts NULL. */
DS_API void ds_aio_handle_destroy(ds_aio_handle **handle);
/* The values in force: backend is URING or THREADS. */
DS_API ds_aio_params ds_aio_handle_params(const ds_aio_handle *handle);

/* ---- whole calls: they return when the transfer is done -------------------------------------- */

/* Reads bytes [offset, offset + bytes) of the file. Errors: ERR_NOT_FOUND, ERR_IO (names file,
 * offset and the system's reason; a file that ends before is one). */
DS_API ds_status ds_aio_pread(ds_aio_handle *handle, void *buffer, size_t bytes, const char *path,
                              uint64_t offset);
/* Writes them; a missing file is created, the rest of an existing one stays. Not synced: call
 * fsync where a power cut matters. Errors: ERR_IO, ERR_NOT_FOUND (the folder). */
DS_API ds_status ds_aio_pwrite(ds_aio_handle *handle, const void *buffer, size_t bytes,
                               const char *path, uint64_t offset);
/* Reads a whole file, which must have exactly `bytes` bytes. Errors: as ds_aio_pread, ERR_SHAPE
 * names both sizes. */
DS_API ds_status ds_aio_read(ds_aio_handle *handle, void *buffer, size_t bytes, const char *path);
/* Writes a whole file: afterwards it has exactly `bytes` bytes. Errors: as ds_aio_pwrite. */
DS_API ds_status ds_aio_write(ds_aio_handle *handle, const void *buffer, size_t bytes,
                              const char *path);

/* ---- in the background ----------------------------------------------------------------------- */

/* Start a transfer; at most 256 may be in flight (ERR_LIMIT beyond). There is no order among them:
 * wait between transfers of the same bytes. Errors that show at once are returned and nothing is in
 * flight; the rest comes from the wait. */
DS_API ds_status ds_aio_async_pread(ds_aio_handle *handle, void *buffer, size_t bytes,
                                    const char *path, uint64_t offset);
DS_API ds_status ds_aio_async_pwrite(ds_aio_handle *handle, const void *buffer, size_t bytes,
                                     const char *path, uint64_t offset);
/* Waits for all of them. n_out (NULL: not wanted) gets how many have succeeded, also when another
 * failed. Returns the first error in the order of the calls. */
DS_API ds_status ds_aio_wait(ds_aio_handle *handle, size_t *n_out);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Zeroed memory aligned for direct transfers; locked: also kept from being paged out. The caller
 * owns *buffer_out. Any thread. Errors: ERR_NOMEM, ERR_LIMIT (locked, and `ulimit -l` does not
 * allow it). */
DS_API ds_status ds_aio_buffer_create(ds_ctx *ctx, size_t bytes, bool locked, void **buffer_out);
/* Frees and nulls; bytes as at creation. Accepts NULL and *buffer == NULL. */
DS_API void ds_aio_buffer_destroy(void **buffer, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
