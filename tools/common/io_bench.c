/* SPDX-License-Identifier: Apache-2.0 */
/* Timing of file transfers. See io_bench.h. */
#include "common/io_bench.h"

#include "base/clock.h"
#include "io/aio.h"
#include "io/file.h"
#include "io/file_temp.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct task {
    io_bench *bench;
    const char *folder;
    int fd;        /* of the file, which has no name */
    char path[32]; /* "/proc/self/fd/7": how a handle opens it */
    uint64_t *data;
    dsi_aio *aio;
    uint32_t file;
    pthread_t thread;
    double seconds; /* of the loop just done */
    ds_status status;
} task;

struct io_bench {
    ds_ctx *ctx;
    io_bench_params params;
    task *tasks;
    uint32_t n_tasks;
    bool write;
};

/* ---- files and buffers ---- */

static ds_status check_room(ds_ctx *ctx, const char *folder, uint64_t bytes)
{
    struct statvfs st;
    if (statvfs(folder, &st) != 0) {
        return dsi_io_fail(ctx, "use", folder, errno);
    }
    const uint64_t free_bytes = (uint64_t)st.f_bavail * (uint64_t)st.f_frsize;
    if (free_bytes < bytes) {
        return ds_fail(ctx, DS_ERR_IO,
                       "%s: expected %" PRIu64 " free bytes for the files, found %" PRIu64
                       "; choose a smaller size or another folder",
                       folder, bytes, free_bytes);
    }
    return DS_OK;
}

static ds_status make_file(ds_ctx *ctx, task *t, uint64_t bytes)
{
    char *path = NULL;
    int lock = -1;
    dsi_folder_clean(t->folder, "ds_io");
    DS_TRY(dsi_temp_file(ctx, t->folder, "ds_io", &path, &lock));
    t->fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    const int reason = t->fd < 0 ? errno : 0;
    (void)unlink(path);
    (void)close(lock);
    free(path);
    if (reason != 0) {
        return dsi_io_fail(ctx, "open a file in", t->folder, reason);
    }
    if (fallocate(t->fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP) {
        return dsi_io_fail(ctx, "make room in", t->folder, errno);
    }
    (void)snprintf(t->path, sizeof t->path, "/proc/self/fd/%d", t->fd);
    return DS_OK;
}

/* The i-th word of every file. */
static uint64_t word_at(uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return x * 0xbf58476d1ce4e5b9u;
}

static void fill(const io_bench *bench, task *t)
{
    for (uint64_t i = 0; i < bench->params.bytes / 8; ++i) {
        t->data[i] = word_at(i);
    }
}

static ds_status make_task(io_bench *bench, task *t)
{
    void *data = NULL;
    DS_TRY(make_file(bench->ctx, t, bench->params.bytes));
    DS_TRY(ds_aio_buffer_create(bench->ctx, bench->params.bytes, false, &data));
    t->data = data;
    fill(bench, t);
    return DS_OK;
}

static ds_status make_tasks(io_bench *bench)
{
    const io_bench_params *p = &bench->params;
    for (size_t i = 0; i < p->n_folders; ++i) {
        DS_TRY(check_room(bench->ctx, p->folders[i], p->bytes * p->per_folder));
    }
    bench->tasks = calloc(p->n_folders * p->per_folder, sizeof *bench->tasks);
    if (bench->tasks == NULL) {
        return ds_fail(bench->ctx, DS_ERR_NOMEM, "no memory for the tasks");
    }
    bench->n_tasks = (uint32_t)p->n_folders * p->per_folder;
    for (uint32_t i = 0; i < bench->n_tasks; ++i) {
        bench->tasks[i] = (task){.bench = bench, .folder = p->folders[i / p->per_folder], .fd = -1};
    }
    for (uint32_t i = 0; i < bench->n_tasks; ++i) {
        DS_TRY(make_task(bench, &bench->tasks[i]));
    }
    return DS_OK;
}

ds_status io_bench_create(ds_ctx *ctx, const io_bench_params *params, io_bench **bench_out)
{
    io_bench_result ignored;
    const ds_aio_params first = {
        .block_size = 4 << 20, .queue_depth = 8, .intra_op_parallelism = 1, .overlap_events = true};
    io_bench *bench = calloc(1, sizeof *bench);
    if (bench == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the measurement");
    }
    bench->ctx = ctx;
    bench->params = *params;
    ds_status status = make_tasks(bench);
    if (status >= 0) {
        status = io_bench_time(bench, true, &first, 0, 1, &ignored);
    }
    if (status < 0) {
        io_bench_destroy(&bench);
        return status;
    }
    *bench_out = bench;
    return DS_OK;
}

void io_bench_destroy(io_bench **bench_inout)
{
    io_bench *bench = bench_inout != NULL ? *bench_inout : NULL;
    if (bench == NULL) {
        return;
    }
    for (uint32_t i = 0; i < bench->n_tasks; ++i) {
        void *data = bench->tasks[i].data;
        ds_aio_buffer_destroy(&data, bench->params.bytes);
        if (bench->tasks[i].fd >= 0) {
            (void)close(bench->tasks[i].fd);
        }
    }
    free(bench->tasks);
    free(bench);
    *bench_inout = NULL;
}

/* ---- timing ---- */

static ds_status move(task *t)
{
    const uint64_t bytes = t->bench->params.bytes;
    dsi_aio_ticket ticket = 0;
    DS_TRY(t->bench->write ? dsi_aio_write(t->aio, t->file, 0, t->data, bytes, &ticket)
                           : dsi_aio_read(t->aio, t->file, 0, t->data, bytes, &ticket));
    return dsi_aio_wait(t->aio, ticket);
}

static void *task_main(void *opaque)
{
    task *t = opaque;
    const double start = dsi_clock_seconds();
    t->status = move(t);
    t->seconds = dsi_clock_seconds() - start;
    return NULL;
}

/* Reads must give what was written; the memory is cleared before, so that nothing old passes. */
static ds_status check_content(const io_bench *bench, const task *t)
{
    for (uint64_t i = 0; i < bench->params.bytes / 8; ++i) {
        if (t->data[i] != word_at(i)) {
            return ds_fail(bench->ctx, DS_ERR_CORRUPT,
                           "%s: byte %" PRIu64 " of a file is not what was written there",
                           t->folder, i * 8);
        }
    }
    return DS_OK;
}

/* One loop: every task once, at the same time. */
static ds_status run_loop(io_bench *bench, double *all_out, double *slowest_out)
{
    const bool reads = bench->params.validate && !bench->write;
    for (uint32_t i = 0; reads && i < bench->n_tasks; ++i) {
        memset(bench->tasks[i].data, 0, bench->params.bytes);
    }
    const double start = dsi_clock_seconds();
    uint32_t n = 0;
    while (n < bench->n_tasks &&
           pthread_create(&bench->tasks[n].thread, NULL, task_main, &bench->tasks[n]) == 0) {
        ++n;
    }
    *slowest_out = 0;
    ds_status status = n == bench->n_tasks
                           ? DS_OK
                           : ds_fail(bench->ctx, DS_ERR_NOMEM, "cannot start %u threads",
                                     (unsigned)bench->n_tasks);
    for (uint32_t i = 0; i < n; ++i) {
        const task *t = &bench->tasks[i];
        (void)pthread_join(t->thread, NULL);
        *slowest_out = t->seconds > *slowest_out ? t->seconds : *slowest_out;
        if (status >= 0 && t->status < 0) {
            status = ds_fail(bench->ctx, t->status, "a file in %s: %s", t->folder,
                             ds_ctx_error(bench->ctx));
        }
    }
    *all_out = dsi_clock_seconds() - start;
    for (uint32_t i = 0; reads && status >= 0 && i < n; ++i) {
        status = check_content(bench, &bench->tasks[i]);
    }
    return status;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static ds_status run_loops(io_bench *bench, uint32_t warmups, uint32_t loops, double *all,
                           double *slowest)
{
    for (uint32_t i = 0; i < warmups; ++i) {
        DS_TRY(run_loop(bench, &all[0], &slowest[0]));
    }
    for (uint32_t i = 0; i < loops; ++i) {
        DS_TRY(run_loop(bench, &all[i], &slowest[i]));
    }
    return DS_OK;
}

static ds_status open_handles(io_bench *bench, const ds_aio_params *io)
{
    const dsi_aio_params params = {.io = *io, .max_files = 1, .max_requests = 1};
    for (uint32_t i = 0; i < bench->n_tasks; ++i) {
        task *t = &bench->tasks[i];
        DS_TRY(dsi_aio_open(bench->ctx, &params, &t->aio));
        DS_TRY(dsi_aio_add_path(t->aio, t->path, true, &t->file));
    }
    return DS_OK;
}

static void close_handles(io_bench *bench)
{
    for (uint32_t i = 0; i < bench->n_tasks; ++i) {
        dsi_aio_close(&bench->tasks[i].aio);
    }
}

static void collect(const io_bench *bench, io_bench_result *r)
{
    uint64_t n_pieces = 0;
    r->direct = true;
    for (uint32_t i = 0; i < bench->n_tasks; ++i) {
        const task *t = &bench->tasks[i];
        const dsi_aio_stats stats = dsi_aio_get_stats(t->aio);
        n_pieces += stats.n_pieces;
        r->piece_seconds += stats.piece_seconds;
        r->slowest_piece =
            stats.slowest_piece > r->slowest_piece ? stats.slowest_piece : r->slowest_piece;
        r->direct = r->direct && dsi_aio_is_direct(t->aio, t->file);
        r->in_force = dsi_aio_in_force(t->aio);
    }
    r->piece_seconds /= n_pieces > 0 ? (double)n_pieces : 1;
}

ds_status io_bench_time(io_bench *bench, bool write, const ds_aio_params *io, uint32_t warmups,
                        uint32_t loops, io_bench_result *result_out)
{
    io_bench_result r = {.all_bytes = bench->params.bytes * bench->n_tasks};
    double *all = calloc((size_t)loops + 1, 2 * sizeof *all);
    double *slowest = all != NULL ? all + loops + 1 : NULL;
    ds_status status = DS_OK;
    bench->write = write;
    if (all == NULL) {
        return ds_fail(bench->ctx, DS_ERR_NOMEM, "no memory for %u loops", (unsigned)loops);
    }
    DS_TRY_GOTO(status, open_handles(bench, io), done);
    DS_TRY_GOTO(status, run_loops(bench, warmups, loops, all, slowest), done);
    collect(bench, &r);
    r.task_seconds = median(slowest, loops);
    r.all_seconds = median(all, loops);
    r.best_seconds = all[0];
    r.worst_seconds = all[loops - 1];
    *result_out = r;
done:
    close_handles(bench);
    free(all);
    return status;
}
