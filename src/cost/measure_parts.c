/* SPDX-License-Identifier: Apache-2.0 */
/* Measures memory, the collectives of several ranks, and a file. See measure_session.h. */
#include "cost/measure_session.h"

#include "base/clock.h"

#include <deepspeed/aio.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Sizes that no cache holds, as parameters and gradients of a model are. */
enum {
    COPY_BYTES = 256 << 20,
    COPY_RUNS = 5,
    COLL_BYTES = 256 << 20,
    COLL_RUNS = 5,
    SMALL_RUNS = 201,
    FILE_BYTES = 512 << 20
};

/* ---- memory ---- */

typedef struct copies {
    unsigned char *from, *to;
    size_t each;
} copies;

static void copy_part(void *arg, uint32_t task, uint32_t thread)
{
    const copies *c = arg;
    (void)thread;
    memcpy(c->to + task * c->each, c->from + task * c->each, c->each);
}

/* Bytes a second read and written by n threads of this rank; the active ranks at once. */
static ds_status time_copies(const dsi_measure_session *s, copies *c, uint32_t n, double *rate_out)
{
    double best = INFINITY;
    c->each = (size_t)COPY_BYTES / n;
    for (int i = 0; i < COPY_RUNS; ++i) {
        double seconds = 0.0;
        DS_TRY(dsi_measure_average(s, &seconds));
        if (s->active) {
            const double start = dsi_clock_seconds();
            ds_parallel(s->ctx, copy_part, c, n);
            seconds = dsi_clock_seconds() - start;
        }
        DS_TRY(dsi_measure_average(s, &seconds));
        best = fmin(best, seconds);
    }
    *rate_out = 2.0 * (double)(c->each * n) / best;
    return DS_OK;
}

ds_status dsi_measure_memory(dsi_measure_session *s)
{
    copies c = {.from = malloc(COPY_BYTES), .to = malloc(COPY_BYTES)};
    ds_status status = DS_OK;
    if (c.from == NULL || c.to == NULL) {
        status = ds_fail(s->ctx, DS_ERR_NOMEM, "no memory to measure copies");
        goto done;
    }
    memset(c.from, 1, COPY_BYTES);
    memset(c.to, 2, COPY_BYTES);
    status = time_copies(s, &c, ds_ctx_n_threads(s->ctx), &s->device->memory_bandwidth);
done:
    free(c.from);
    free(c.to);
    return status;
}

/* ---- collectives ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct exchange {
    dsi_comm *comm;
    void *in, *out;
} exchange;

static ds_status time_collective(const exchange *e, ds_comm_op kind, size_t bytes, int runs,
                                 double *median_out)
{
    double seconds[SMALL_RUNS];
    const dsi_comm_part part = {.in = e->in, .out = e->out, .count = bytes / 2};
    const dsi_comm_call call = {.kind = kind,
                                .dtype = DS_DTYPE_BF16,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .symmetric = true,
                                .what = "a measurement"};
    for (int i = -1; i < runs; ++i) {
        DS_TRY(dsi_comm_barrier(e->comm, "a measurement"));
        const double start = dsi_clock_seconds();
        DS_TRY(dsi_comm_run(e->comm, &call));
        seconds[i < 0 ? 0 : i] = dsi_clock_seconds() - start;
    }
    qsort(seconds, (size_t)runs, sizeof seconds[0], by_value);
    *median_out = seconds[runs / 2];
    return DS_OK;
}

static ds_status measure_exchange(dsi_measure_session *s, const exchange *e)
{
    static const ds_comm_op kinds[] = {DS_COMM_ALL_REDUCE, DS_COMM_REDUCE_SCATTER,
                                       DS_COMM_ALL_GATHER};
    dsi_link *link = &s->device->node;
    double *const shares[] = {&link->all_reduce, &link->reduce_scatter, &link->all_gather};
    const double n = s->n_ranks;
    for (int i = 0; i < 3; ++i) {
        double small = 0.0;
        double large = 0.0;
        DS_TRY(time_collective(e, kinds[i], 64, SMALL_RUNS, &small));
        DS_TRY(time_collective(e, kinds[i], COLL_BYTES, COLL_RUNS, &large));
        DS_TRY(dsi_measure_average(s, &small));
        DS_TRY(dsi_measure_average(s, &large));
        const double sent = (i == 0 ? 2.0 : 1.0) * (n - 1.0) / n * (double)COLL_BYTES;
        *shares[i] = sent / fmax(large - small, 1e-9);
        link->latency += small / 3.0;
        link->bandwidth = fmax(link->bandwidth, *shares[i]);
    }
    for (int i = 0; i < 3; ++i) {
        *shares[i] /= link->bandwidth;
    }
    return DS_OK;
}

ds_status dsi_measure_collectives(dsi_measure_session *s)
{
    dsi_comm *comm = s->spec->comm;
    exchange e = {0};
    ds_status status = DS_OK;
    if (comm == NULL || comm->size < 2) {
        return DS_OK;
    }
    (void)snprintf(s->device->node.name, sizeof s->device->node.name, "%s", comm->transport->name);
    s->device->in_place = strcmp(comm->transport->name, "shm") == 0;
    DS_TRY(dsi_comm_split(comm, 0, comm->rank, &e.comm));
    e.out = malloc(COLL_BYTES);
    if (e.out == NULL) {
        status = ds_fail(s->ctx, DS_ERR_NOMEM, "no memory to measure collectives");
        goto done;
    }
    memset(e.out, 0, COLL_BYTES);
    DS_TRY_GOTO(status, dsi_comm_symmetric(e.comm, COLL_BYTES, &e.in), done);
    memset(e.in, 0, COLL_BYTES);
    status = measure_exchange(s, &e);
done:
    dsi_comm_destroy(&e.comm);
    free(e.out);
    return status;
}

/* ---- disk ---- */

/* Reads one half of the file while it writes the other, as states that are updated do. */
static ds_status exchange_halves(ds_aio_handle *io, unsigned char *block, size_t bytes,
                                 const char *path)
{
    enum { PIECES = 32 };
    const size_t each = bytes / 2 / PIECES / 4096 * 4096;
    ds_status status = DS_OK;
    for (size_t i = 0; i < PIECES && status == DS_OK; ++i) {
        const size_t at = i * each;
        const size_t far = bytes / 2 + at;
        status = ds_aio_async_pread(io, block + at, each, path, at);
        status = status < 0 ? status : ds_aio_async_pwrite(io, block + far, each, path, far);
    }
    const ds_status waited = ds_aio_wait(io, NULL);
    return status < 0 ? status : waited;
}

static double rate_since(double start, size_t bytes)
{
    return (double)bytes / (dsi_clock_seconds() - start);
}

static ds_status time_file(dsi_device *d, ds_aio_handle *io, void *block, size_t bytes,
                           const char *path)
{
    DS_TRY(ds_aio_pwrite(io, block, bytes, path, 0)); /* so that its blocks are allocated */
    double start = dsi_clock_seconds();
    DS_TRY(ds_aio_pwrite(io, block, bytes, path, 0));
    d->disk_write = rate_since(start, bytes);
    start = dsi_clock_seconds();
    DS_TRY(ds_aio_pread(io, block, bytes, path, 0));
    d->disk_read = rate_since(start, bytes);
    start = dsi_clock_seconds();
    DS_TRY(exchange_halves(io, block, bytes, path));
    d->disk_both = rate_since(start, bytes);
    start = dsi_clock_seconds();
    DS_TRY(ds_aio_pread(io, block, 4096, path, 0));
    d->disk_latency = dsi_clock_seconds() - start;
    return DS_OK;
}

static ds_status measure_file(dsi_measure_session *s, ds_aio_handle *io, void *block, size_t bytes)
{
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s/ds_profile.%ld", s->spec->folder, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof path) {
        return ds_fail(s->ctx, DS_ERR_ARG, "the folder's name is too long: %.80s…",
                       s->spec->folder);
    }
    const ds_status status = time_file(s->device, io, block, bytes, path);
    (void)unlink(path);
    return status;
}

ds_status dsi_measure_disk(dsi_measure_session *s)
{
    const bool mine = s->spec->comm == NULL || s->spec->comm->rank == 0;
    const size_t bytes = s->spec->file_bytes > 0 ? s->spec->file_bytes : (size_t)FILE_BYTES;
    ds_aio_handle *io = NULL;
    void *block = NULL;
    ds_status status = DS_OK;
    if (s->spec->folder == NULL || !mine) {
        return DS_OK;
    }
    DS_TRY_GOTO(status, ds_aio_handle_create(s->ctx, NULL, &io), done);
    DS_TRY_GOTO(status, ds_aio_buffer_create(s->ctx, bytes, false, &block), done);
    memset(block, 0x5a, bytes);
    DS_TRY_GOTO(status, measure_file(s, io, block, bytes), done);
done:
    ds_aio_buffer_destroy(&block, bytes);
    ds_aio_handle_destroy(&io);
    return status;
}
