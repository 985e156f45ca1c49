/* Puts a profile together from measurements. See measure.h. */
#include "cost/measure.h"

#include "accel/cpu/cpu_features.h"
#include "base/clock.h"

#include <deepspeed/aio.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_SAMPLES = 8,
    COPY_BYTES = 256 << 20,
    COLL_BYTES = 64 << 20,
    COLL_RUNS = 7,
    SMALL_RUNS = 201,
    FILE_BYTES = 512 << 20
};

typedef struct session {
    ds_ctx *ctx;
    const dsi_measure_spec *spec;
    dsi_device *device;
    double n_ranks;
} session;

/* Shapes of GPT-2 124M and of smaller models; see the make_ functions for what variant means. */
static const dsi_measure_point points[] = {
    {DSI_CLASS_LINEAR, 0, 4096, 768, 768},
    {DSI_CLASS_LINEAR, 1, 4096, 768, 3072},
    {DSI_CLASS_LINEAR, 3, 4096, 3072, 768},
    {DSI_CLASS_LINEAR, 1, 1024, 2304, 768},
    {DSI_CLASS_LINEAR, 0, 2048, 512, 512},
    {DSI_CLASS_LINEAR, 0, 512, 1408, 512},
    {DSI_CLASS_LINEAR, 0, 256, 256, 256},
    {DSI_CLASS_LINEAR_DW, 3, 768, 3072, 4096},
    {DSI_CLASS_LINEAR_DW, 3, 768, 768, 4096},
    {DSI_CLASS_LINEAR_DW, 1, 3072, 768, 1024},
    {DSI_CLASS_LINEAR_DW, 0, 512, 1408, 2048},
    {DSI_CLASS_LINEAR_DW, 0, 256, 256, 512},
    {DSI_CLASS_LOSS, 0, 2048, 50257, 768},
    {DSI_CLASS_LOSS, 0, 1024, 32000, 512},
    {DSI_CLASS_LOSS, 0, 512, 8192, 512},
    {DSI_CLASS_LOSS_BACKWARD, 0, 2048, 50257, 768},
    {DSI_CLASS_LOSS_BACKWARD, 0, 1024, 32000, 512},
    {DSI_CLASS_LOSS_BACKWARD, 0, 512, 8192, 512},
    {DSI_CLASS_ATTENTION, 12, 12288, 1024, 64},
    {DSI_CLASS_ATTENTION, 12, 12288, 256, 64},
    {DSI_CLASS_ATTENTION, 8, 16384, 2048, 64},
    {DSI_CLASS_ATTENTION, 4, 4096, 512, 128},
    {DSI_CLASS_ATTENTION_BACKWARD, 12, 12288, 1024, 64},
    {DSI_CLASS_ATTENTION_BACKWARD, 12, 12288, 256, 64},
    {DSI_CLASS_ATTENTION_BACKWARD, 8, 16384, 2048, 64},
    {DSI_CLASS_ATTENTION_BACKWARD, 4, 4096, 512, 128},
    {DSI_CLASS_NORM, 0, 4096, 768, 0},
    {DSI_CLASS_NORM, 1, 2048, 512, 0},
    {DSI_CLASS_NORM_BACKWARD, 0, 4096, 768, 0},
    {DSI_CLASS_NORM_BACKWARD, 1, 2048, 512, 0},
    {DSI_CLASS_ELEMENTWISE, 0, 4096, 3072, 0},
    {DSI_CLASS_ELEMENTWISE, 1, 2048, 1408, 0},
    {DSI_CLASS_ELEMENTWISE, 2, 2048, 1408, 0},
    {DSI_CLASS_ELEMENTWISE, 3, 4096, 768, 0},
    {DSI_CLASS_EMBEDDING, 0, 4096, 768, 50257},
    {DSI_CLASS_EMBEDDING_BACKWARD, 0, 4096, 768, 50257},
    {DSI_CLASS_REDUCE, 0, 96 << 20, 0, 0},
    {DSI_CLASS_REDUCE, 1, 96 << 20, 0, 0},
    {DSI_CLASS_OPTIMIZER, 0, 24 << 20, 0, 0},
    {DSI_CLASS_COPY, 0, 24 << 20, 0, 0},
};

#define N_POINTS (sizeof points / sizeof points[0])

/* ---- ranks together ---- */

/* The mean over ranks; they meet here, so that what follows runs on all of them at once. */
static ds_status average(const session *s, double *value)
{
    double sum = *value;
    if (s->spec->comm == NULL) {
        return DS_OK;
    }
    const dsi_comm_part part = {.in = value, .out = &sum, .count = 1};
    const dsi_comm_call call = {.kind = DSI_COLL_ALL_REDUCE,
                                .dtype = DS_DTYPE_F64,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "a measurement"};
    DS_TRY(dsi_comm_run(s->spec->comm, &call));
    *value = sum / s->n_ranks;
    return DS_OK;
}

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

/* Bytes read and written by copies far larger than caches a core owns. */
static ds_status measure_memory(session *s)
{
    const uint32_t n = ds_ctx_n_threads(s->ctx);
    const size_t each = (size_t)COPY_BYTES / n;
    copies c = {.from = malloc(COPY_BYTES), .to = malloc(COPY_BYTES), .each = each};
    ds_status status = DS_OK;
    double best = INFINITY;
    if (c.from == NULL || c.to == NULL) {
        status = ds_fail(s->ctx, DS_ERR_NOMEM, "no memory to measure copies");
        goto done;
    }
    memset(c.from, 1, COPY_BYTES);
    memset(c.to, 2, COPY_BYTES);
    for (int i = 0; i < 5; ++i) {
        double seconds = 0.0;
        DS_TRY_GOTO(status, average(s, &seconds), done);
        const double start = dsi_clock_seconds();
        ds_parallel(s->ctx, copy_part, &c, n);
        seconds = dsi_clock_seconds() - start;
        DS_TRY_GOTO(status, average(s, &seconds), done);
        best = fmin(best, seconds);
    }
    s->device->memory_bandwidth = 2.0 * (double)(each * n) / best;
done:
    free(c.from);
    free(c.to);
    return status;
}

/* ---- operators ---- */

/* Loss in f32 on fewer rows: it takes long. */
static dsi_measure_point point_for(size_t i, ds_dtype dtype)
{
    dsi_measure_point p = points[i];
    const bool slow = p.op_class == DSI_CLASS_LOSS || p.op_class == DSI_CLASS_LOSS_BACKWARD;
    p.m = slow && dtype != DS_DTYPE_BF16 ? p.m / 8 : p.m;
    return p;
}

static ds_status measure_point(session *s, size_t i, ds_dtype dtype, dsi_measure_sample *sample)
{
    const double seconds = s->spec->seconds > 0.0 ? s->spec->seconds : 0.15;
    const dsi_measure_point p = point_for(i, dtype);
    dsi_measure_trial *trial = NULL;
    DS_TRY(dsi_measure_open(s->ctx, &p, dtype, &trial));
    ds_status status = average(s, &(double){0.0}); /* all begin together */
    status = status < 0 ? status : dsi_measure_median(trial, seconds, sample);
    dsi_measure_close(&trial);
    return status < 0 ? status : average(s, &sample->seconds);
}

static ds_status measure_class(session *s, dsi_op_class op_class, ds_dtype dtype,
                               dsi_measure_sample *samples, uint32_t *n_out)
{
    uint32_t n = 0;
    for (size_t i = 0; i < N_POINTS && n < MOST_SAMPLES; ++i) {
        if (points[i].op_class == op_class) {
            DS_TRY(measure_point(s, i, dtype, &samples[n++]));
        }
    }
    *n_out = n;
    return DS_OK;
}

/* The geometric mean of what the samples move over what memory can. */
static dsi_rate memory_rate(const dsi_measure_sample *samples, uint32_t n, double bandwidth)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; ++i) {
        sum += log(samples[i].work.bytes / (samples[i].seconds * bandwidth));
    }
    return (dsi_rate){.compute = 1.0, .memory = n > 0 ? exp(sum / (double)n) : 1.0};
}

/* Long streams through memory, which no cache holds anyway, and what is not measured: apart. */
static bool is_mixed(dsi_op_class op_class)
{
    switch (op_class) {
    case DSI_CLASS_REDUCE:
    case DSI_CLASS_OPTIMIZER:
    case DSI_CLASS_COPY:
    case DSI_CLASS_COMM:
    case DSI_CLASS_VIEW:
        return false;
    default:
        return true;
    }
}

/* One round: each once, one after the other. sums: predicted and measured seconds, of products and
 * of the others. */
static ds_status run_mix(session *s, dsi_measure_trial *const *trials, bool counts,
                         double sums[2][2])
{
    for (size_t i = 0; i < N_POINTS; ++i) {
        double seconds = 0.0;
        if (trials[i] == NULL) {
            continue;
        }
        DS_TRY(dsi_measure_run(trials[i], &seconds));
        if (counts) {
            const dsi_work *work = dsi_measure_work(trials[i]);
            const int row = dsi_op_class_is_model(work->op_class) ? 0 : 1;
            sums[row][0] += dsi_time_work(s->device, work);
            sums[row][1] += seconds;
        }
    }
    return DS_OK;
}

/* Kernels in sequence are slower than one again and again: caches hold other data, and the clock
 * falls under load. The rates of a dtype are scaled by what a sequence takes. */
static ds_status scale_by_mix(session *s, dsi_peak peak, ds_dtype dtype)
{
    enum { ROUNDS = 4 };
    dsi_measure_trial *trials[N_POINTS] = {NULL};
    double sums[2][2] = {{0.0}};
    ds_status status = DS_OK;
    for (size_t i = 0; i < N_POINTS; ++i) {
        const dsi_measure_point p = point_for(i, dtype);
        if (is_mixed(p.op_class) && points[i].m >= 512) {
            DS_TRY_GOTO(status, dsi_measure_open(s->ctx, &p, dtype, &trials[i]), done);
        }
    }
    for (int round = 0; round < ROUNDS; ++round) {
        DS_TRY_GOTO(status, average(s, &(double){0.0}), done);
        DS_TRY_GOTO(status, run_mix(s, trials, round > 0, sums), done);
    }
    for (int row = 0; row < 2; ++row) {
        DS_TRY_GOTO(status, average(s, &sums[row][1]), done);
    }
    for (int c = 0; c < DSI_CLASS_COUNT; ++c) {
        dsi_rate *rate = &s->device->rates[peak][c];
        if (dsi_op_class_is_model((dsi_op_class)c)) {
            rate->compute *= sums[0][0] / sums[0][1];
        } else if (is_mixed((dsi_op_class)c)) {
            rate->memory *= sums[1][0] / sums[1][1];
        }
    }
done:
    for (size_t i = 0; i < N_POINTS; ++i) {
        dsi_measure_close(&trials[i]);
    }
    return status;
}

static ds_status measure_dtype(session *s, dsi_peak peak, ds_dtype dtype)
{
    dsi_measure_sample samples[DSI_CLASS_COUNT][MOST_SAMPLES];
    uint32_t n[DSI_CLASS_COUNT];
    double best = 0.0;
    for (int c = 0; c < DSI_CLASS_COUNT; ++c) {
        DS_TRY(measure_class(s, (dsi_op_class)c, dtype, samples[c], &n[c]));
        for (uint32_t i = 0; i < n[c] && dsi_op_class_is_model((dsi_op_class)c); ++i) {
            best = fmax(best, samples[c][i].work.flops / samples[c][i].seconds);
        }
    }
    s->device->peak[peak] = best;
    for (int c = 0; c < DSI_CLASS_COUNT; ++c) {
        s->device->rates[peak][c] =
            dsi_op_class_is_model((dsi_op_class)c)
                ? dsi_measure_fit(samples[c], n[c], best)
                : memory_rate(samples[c], n[c], s->device->memory_bandwidth);
    }
    return scale_by_mix(s, peak, dtype);
}

/* What a step costs that has nothing to do. */
static ds_status measure_latency(session *s)
{
    const dsi_measure_point tiny = {DSI_CLASS_ELEMENTWISE, 3, 1, 16, 0};
    dsi_measure_trial *trial = NULL;
    dsi_measure_sample sample = {.seconds = 0.0};
    DS_TRY(dsi_measure_open(s->ctx, &tiny, DS_DTYPE_F32, &trial));
    const ds_status status = dsi_measure_median(trial, 0.01, &sample);
    dsi_measure_close(&trial);
    s->device->latency = sample.seconds;
    return status < 0 ? status : average(s, &s->device->latency);
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

static ds_status time_collective(const exchange *e, dsi_coll kind, size_t bytes, int runs,
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

static ds_status measure_exchange(session *s, const exchange *e)
{
    static const dsi_coll kinds[] = {DSI_COLL_ALL_REDUCE, DSI_COLL_REDUCE_SCATTER,
                                     DSI_COLL_ALL_GATHER};
    dsi_link *link = &s->device->node;
    double *const shares[] = {&link->all_reduce, &link->reduce_scatter, &link->all_gather};
    const double n = s->n_ranks;
    for (int i = 0; i < 3; ++i) {
        double small = 0.0;
        double large = 0.0;
        DS_TRY(time_collective(e, kinds[i], 64, SMALL_RUNS, &small));
        DS_TRY(time_collective(e, kinds[i], COLL_BYTES, COLL_RUNS, &large));
        DS_TRY(average(s, &small));
        DS_TRY(average(s, &large));
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

static ds_status measure_collectives(session *s)
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

static ds_status measure_file(session *s, ds_aio_handle *io, void *block, size_t bytes)
{
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s/ds_profile.%ld", s->spec->folder, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof path) {
        return ds_fail(s->ctx, DS_ERR_ARG, "the folder's name is too long: %.80s…",
                       s->spec->folder);
    }
    double start = dsi_clock_seconds();
    ds_status status = ds_aio_pwrite(io, block, bytes, path, 0);
    s->device->disk_write = (double)bytes / (dsi_clock_seconds() - start);
    start = dsi_clock_seconds();
    status = status < 0 ? status : ds_aio_pread(io, block, bytes, path, 0);
    s->device->disk_read = (double)bytes / (dsi_clock_seconds() - start);
    start = dsi_clock_seconds();
    status = status < 0 ? status : ds_aio_pread(io, block, 4096, path, 0);
    s->device->disk_latency = dsi_clock_seconds() - start;
    (void)unlink(path);
    return status;
}

static ds_status measure_disk(session *s)
{
    const bool mine = s->spec->comm == NULL || s->spec->comm->rank == 0;
    const size_t bytes = s->spec->file_bytes > 0 ? s->spec->file_bytes : (size_t)FILE_BYTES;
    double *const figures[] = {&s->device->disk_read, &s->device->disk_write,
                               &s->device->disk_latency};
    ds_aio_handle *io = NULL;
    void *block = NULL;
    ds_status status = DS_OK;
    if (s->spec->folder == NULL) {
        return DS_OK;
    }
    if (mine) {
        DS_TRY_GOTO(status, ds_aio_handle_create(s->ctx, NULL, &io), done);
        DS_TRY_GOTO(status, ds_aio_buffer_create(s->ctx, bytes, false, &block), done);
        memset(block, 0x5a, bytes);
        DS_TRY_GOTO(status, measure_file(s, io, block, bytes), done);
    }
    for (int i = 0; i < 3; ++i) { /* rank 0's figures are everybody's */
        DS_TRY_GOTO(status, average(s, figures[i]), done);
        *figures[i] *= s->n_ranks;
    }
done:
    ds_aio_buffer_destroy(&block, bytes);
    ds_aio_handle_destroy(&io);
    return status;
}

/* ---- all ---- */

static void describe(session *s)
{
    dsi_device *d = s->device;
    (void)snprintf(d->name, sizeof d->name, "%s",
                   s->spec->name != NULL ? s->spec->name : "this-machine");
    (void)snprintf(d->source, sizeof d->source, "measured: %.0f ranks of %u threads, %s kernels",
                   s->n_ranks, ds_ctx_n_threads(s->ctx), ds_isa_name(dsi_cpu_isa()));
    d->shared = true;
    d->ranks_per_node = (uint32_t)s->n_ranks;
    d->memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

/* From the figures of a rank to those of the node. */
static void of_node(session *s)
{
    dsi_device *d = s->device;
    for (int p = 0; p < DSI_PEAK_COUNT; ++p) {
        d->peak[p] *= s->n_ranks;
    }
    d->memory_bandwidth *= s->n_ranks;
    d->node.bandwidth *= s->n_ranks;
    d->host_memory_bytes = d->memory_bytes;
    d->host_bandwidth = d->memory_bandwidth;
    d->host_link = 0.5 * d->memory_bandwidth; /* a copy reads and writes */
    d->host_adam = d->memory_bandwidth * d->rates[DSI_PEAK_F32][DSI_CLASS_OPTIMIZER].memory / 28.0;
}

/* What readers of profiles would refuse comes of a machine that did other work meanwhile. */
static ds_status check(ds_ctx *ctx, const dsi_device *device)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    dsi_device read;
    dsi_device_print(device, &text);
    ds_status status = dsi_device_parse(ctx, "the profile", dsi_buf_text(&text), text.size, &read);
    if (status < 0) {
        char why[256];
        (void)snprintf(why, sizeof why, "%s", ds_ctx_error(ctx));
        status =
            ds_fail(ctx, status,
                    "the machine was too busy to be measured, try again when it is idle: %s", why);
    }
    dsi_buf_free(&text);
    return status;
}

ds_status dsi_measure(ds_ctx *ctx, const dsi_measure_spec *spec, dsi_device *device_out)
{
    static const struct {
        dsi_peak peak;
        ds_dtype dtype;
    } dtypes[] = {
        {DSI_PEAK_F32, DS_DTYPE_F32}, {DSI_PEAK_BF16, DS_DTYPE_BF16}, {DSI_PEAK_F16, DS_DTYPE_F16}};
    dsi_device device = {0};
    session s = {.ctx = ctx,
                 .spec = spec,
                 .device = &device,
                 .n_ranks = spec->comm != NULL ? (double)spec->comm->size : 1.0};
    describe(&s);
    ds_log(ctx, DS_LOG_JOB, "measuring memory and the start of a step");
    DS_TRY(measure_memory(&s));
    DS_TRY(measure_latency(&s));
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i) {
        ds_log(ctx, DS_LOG_JOB, "measuring kernels in %s", ds_dtype_name(dtypes[i].dtype));
        DS_TRY(measure_dtype(&s, dtypes[i].peak, dtypes[i].dtype));
    }
    if (spec->comm != NULL || spec->folder != NULL) {
        ds_log(ctx, DS_LOG_JOB, "measuring %s",
               spec->comm == NULL     ? "the disk"
               : spec->folder == NULL ? "collectives"
                                      : "collectives and the disk");
    }
    DS_TRY(measure_collectives(&s));
    DS_TRY(measure_disk(&s));
    of_node(&s);
    DS_TRY(check(ctx, &device));
    *device_out = device;
    return DS_OK;
}
