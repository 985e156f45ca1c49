/* SPDX-License-Identifier: Apache-2.0 */
/* Times reads and writes of files in given folders; for ds_io and ds_nvme_tune.
 *
 * A task is a thread with a file, a buffer as large as the file, and a handle. Files have no name
 * from their first byte on: they are gone with the process, however it ends. */
#ifndef DSI_TOOLS_IO_BENCH_H
#define DSI_TOOLS_IO_BENCH_H

#include <deepspeed/aio.h>

typedef struct io_bench io_bench;

typedef struct io_bench_params {
    const char *const *folders; /* borrowed while the bench lives */
    size_t n_folders;
    uint32_t per_folder; /* tasks in each folder */
    uint64_t bytes;      /* of each file */
    bool validate;       /* reads are compared with what was written */
} io_bench_params;

typedef struct io_bench_result {
    double task_seconds; /* one file on the slowest task: median over the loops */
    double all_seconds;  /* all files, from the first start to the last end: median */
    double best_seconds, worst_seconds;  /* of all_seconds */
    double piece_seconds, slowest_piece; /* one transfer: mean, longest */
    uint64_t all_bytes;                  /* of one loop */
    ds_aio_params in_force;
    bool direct; /* past the page cache */
} io_bench_result;

/* Makes files and buffers, after a look at the free space, and writes the files once.
 * Errors: ERR_IO (no room: says how much there is and how much it takes), ERR_NOT_FOUND, ERR_NOMEM.
 */
ds_status io_bench_create(ds_ctx *ctx, const io_bench_params *params, io_bench **bench_out);
void io_bench_destroy(io_bench **bench);

/* `warmups` loops that do not count, then `loops`; in a loop every task moves its whole file.
 * Errors: as ds_aio_pread; ERR_CORRUPT (validate: names the first byte that differs). */
ds_status io_bench_time(io_bench *bench, bool write, const ds_aio_params *io, uint32_t warmups,
                        uint32_t loops, io_bench_result *result_out);

#endif
