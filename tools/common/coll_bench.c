/* SPDX-License-Identifier: Apache-2.0 */
/* Times collectives by size. See coll_bench.h. */
#include "common/coll_bench.h"

#include "base/clock.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { WAY_OURS, WAY_MPI, WAY_COPY, WAY_STREAM, N_WAYS, HUGE = 2 << 20 };

struct coll_bench {
    dsi_comm *comm;
    coll_bench_params params;
    size_t *counts; /* of an all_to_all: for each rank */
    char *shared;   /* what peers read in place; NULL: private operands */
    char *from, *to;
    double *times; /* by way and trial */
};

/* One message: whole = all elements of the tensor, own = those that this rank passes. */
typedef struct job {
    coll_bench_op op;
    size_t own, whole, element;
    char *from, *to;
} job;

static const struct {
    const char *name;
    ds_comm_op kind;
    dsi_mpi_peer_kind mpi;
} ops[COLL_BENCH_OP_COUNT] = {
    [COLL_BENCH_ALL_REDUCE] = {"all_reduce", DS_COMM_ALL_REDUCE, DSI_MPI_PEER_ALL_REDUCE},
    [COLL_BENCH_REDUCE_SCATTER] = {"reduce_scatter", DS_COMM_REDUCE_SCATTER,
                                   DSI_MPI_PEER_REDUCE_SCATTER},
    [COLL_BENCH_ALL_GATHER] = {"all_gather", DS_COMM_ALL_GATHER, DSI_MPI_PEER_ALL_GATHER},
    [COLL_BENCH_ALL_TO_ALL] = {"all_to_all", DS_COMM_ALL_TO_ALL, DSI_MPI_PEER_ALL_TO_ALL},
    [COLL_BENCH_BROADCAST] = {"broadcast", DS_COMM_BROADCAST, DSI_MPI_PEER_BROADCAST},
    [COLL_BENCH_PT2PT] = {"pt2pt", DS_COMM_SEND, DSI_MPI_PEER_PING_PONG},
};

const char *coll_bench_name(coll_bench_op op)
{
    return ops[op].name;
}

ds_comm_op coll_bench_kind(coll_bench_op op)
{
    return ops[op].kind;
}

/* ---- buffers ---- */

static ds_status allocate(dsi_comm *comm, size_t bytes, char **data_out)
{
    const size_t rounded = (bytes + HUGE - 1) / HUGE * HUGE;
    char *data = bytes < SIZE_MAX - HUGE ? aligned_alloc(HUGE, rounded) : NULL;
    if (data == NULL) {
        return ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory for buffers of %zu bytes", bytes);
    }
    (void)madvise(data, rounded, MADV_HUGEPAGE);
    memset(data, 0, rounded);
    *data_out = data;
    return DS_OK;
}

static ds_status make_buffers(coll_bench *b, const coll_bench_params *p)
{
    const uint32_t n = b->comm->size;
    /* raised to a multiple of the ranks; the whole of an all_gather has n messages */
    const size_t message = p->max_bytes + n * sizeof(double);
    const size_t whole = p->ops[COLL_BENCH_ALL_GATHER] ? message * n : message;
    void *memory = NULL;
    if (p->max_bytes > SIZE_MAX / 4 / n) {
        return ds_fail(b->comm->ctx, DS_ERR_ARG, "messages of %zu bytes are too large",
                       p->max_bytes);
    }
    b->counts = calloc(n, sizeof *b->counts);
    b->times = calloc((size_t)N_WAYS * p->trials, sizeof *b->times);
    if (b->counts == NULL || b->times == NULL) {
        return ds_fail(b->comm->ctx, DS_ERR_NOMEM, "no memory for a benchmark");
    }
    DS_TRY(allocate(b->comm, whole, &b->from));
    DS_TRY(allocate(b->comm, whole, &b->to));
    if (!p->private_operands) {
        DS_TRY(dsi_comm_symmetric(b->comm, whole, &memory));
        b->shared = memory;
    }
    return DS_OK;
}

ds_status coll_bench_create(dsi_comm *comm, const coll_bench_params *params, coll_bench **bench_out)
{
    coll_bench *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory for a benchmark");
    }
    b->comm = comm;
    b->params = *params;
    const ds_status status = make_buffers(b, params);
    if (status < 0) {
        coll_bench_destroy(&b);
        return status;
    }
    *bench_out = b;
    return DS_OK;
}

void coll_bench_destroy(coll_bench **bench_inout)
{
    coll_bench *b = bench_inout != NULL ? *bench_inout : NULL;
    if (b == NULL) {
        return;
    }
    free(b->counts);
    free(b->times);
    free(b->from);
    free(b->to);
    free(b);
    *bench_inout = NULL;
}

/* ---- one call of each way ---- */

static ds_status run_pair(const coll_bench *b, const job *j)
{
    const uint32_t rank = b->comm->rank;
    dsi_comm_part part = {.in = j->from, .out = j->to, .count = j->own};
    dsi_comm_call call = {.dtype = b->params.dtype,
                          .factor = 1.0f,
                          .peer = 1 - rank,
                          .parts = &part,
                          .n_parts = 1,
                          .symmetric = b->shared != NULL,
                          .what = "benchmark"};
    if (rank > 1) {
        return DS_OK;
    }
    call.kind = rank == 0 ? DS_COMM_SEND : DS_COMM_RECV;
    DS_TRY(dsi_comm_run(b->comm, &call));
    call.kind = rank == 0 ? DS_COMM_RECV : DS_COMM_SEND;
    return dsi_comm_run(b->comm, &call);
}

static bool is_real(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16 ||
           dtype == DS_DTYPE_F64;
}

static ds_status run_ours(const coll_bench *b, const job *j)
{
    const uint32_t n = b->comm->size;
    dsi_comm_part part = {.in = j->from,
                          .out = j->to,
                          .count = j->whole,
                          .counts_in = b->counts,
                          .counts_out = b->counts};
    if (j->op == COLL_BENCH_PT2PT) {
        return run_pair(b, j);
    }
    if (j->op == COLL_BENCH_ALL_REDUCE || j->op == COLL_BENCH_BROADCAST) {
        part.out = j->from;
    } else if (j->op == COLL_BENCH_ALL_GATHER) {
        part.in = j->from + j->own * b->comm->rank * j->element;
        part.out = j->from;
    }
    const dsi_comm_call call = {.kind = ops[j->op].kind,
                                .dtype = b->params.dtype,
                                .factor = is_real(b->params.dtype) ? 1.0f / (float)n : 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .symmetric = b->shared != NULL,
                                .what = "benchmark"};
    return dsi_comm_run(b->comm, &call);
}

static dsi_mpi_peer_type mpi_type(ds_dtype dtype)
{
    switch (dtype) {
    case DS_DTYPE_F32:
        return DSI_MPI_PEER_F32;
    case DS_DTYPE_F64:
        return DSI_MPI_PEER_F64;
    case DS_DTYPE_I8:
        return DSI_MPI_PEER_I8;
    case DS_DTYPE_U8:
        return DSI_MPI_PEER_U8;
    case DS_DTYPE_I32:
        return DSI_MPI_PEER_I32;
    case DS_DTYPE_I64:
        return DSI_MPI_PEER_I64;
    default:
        return DSI_MPI_PEER_HALF;
    }
}

static dsi_mpi_peer_call mpi_call(const coll_bench *b, const job *j)
{
    return (dsi_mpi_peer_call){.kind = ops[j->op].mpi,
                               .type = mpi_type(b->params.dtype),
                               .from = b->from,
                               .to = b->to,
                               .count = j->whole};
}

static void copy_stream(char *to, const char *from, size_t bytes)
{
#if defined(__x86_64__)
    size_t i = 0;
    for (; i + 64 <= bytes; i += 64) {
        for (size_t k = 0; k < 64; k += 16) {
            _mm_stream_si128((__m128i *)(void *)(to + i + k),
                             _mm_loadu_si128((const __m128i *)(const void *)(from + i + k)));
        }
    }
    _mm_sfence();
    memcpy(to + i, from + i, bytes - i);
#else
    memcpy(to, from, bytes);
#endif
}

static ds_status run_way(const coll_bench *b, const job *j, int way)
{
    const dsi_mpi_peer_call call = mpi_call(b, j);
    switch (way) {
    case WAY_OURS:
        return run_ours(b, j);
    case WAY_MPI:
        return b->params.mpi->run(&call) == 0
                   ? DS_OK
                   : ds_fail(b->comm->ctx, DS_ERR_PEER, "MPI's %s of %zu bytes failed",
                             ops[j->op].name, j->own * j->element);
    case WAY_COPY:
        memcpy(b->to, b->from, j->whole * j->element);
        return DS_OK;
    default:
        copy_stream(b->to, b->from, j->whole * j->element);
        return DS_OK;
    }
}

/* ---- trials ---- */

/* Writes ones, so that sums and means neither grow nor vanish. What is written to is in the caches
 * too, whichever way came before: a copy past them would leave it to the next way to fetch it. */
static void renew(const coll_bench *b, const job *j, int way)
{
    static const uint64_t ones[DS_DTYPE_COUNT] = {
        [DS_DTYPE_F32] = 0x3F8000003F800000u, [DS_DTYPE_BF16] = 0x3F803F803F803F80u,
        [DS_DTYPE_F16] = 0x3C003C003C003C00u, [DS_DTYPE_F64] = 0x3FF0000000000000u,
        [DS_DTYPE_I32] = 0x0000000100000001u, [DS_DTYPE_I64] = 1,
        [DS_DTYPE_I8] = 0x0101010101010101u,  [DS_DTYPE_U8] = 0x0101010101010101u,
    };
    const uint64_t word = ones[b->params.dtype];
    uint64_t *x = (uint64_t *)(void *)(way == WAY_OURS ? j->from : b->from);
    memset(b->to, 1, j->whole * j->element);
    for (size_t i = 0; i < (j->whole * j->element + 7) / 8; ++i) {
        x[i] = word;
    }
}

/* Seconds of one call. */
static ds_status trial(const coll_bench *b, const job *j, int way, double *seconds_out)
{
    const bool large = j->own * j->element >= COLL_BENCH_RENEW_FROM;
    const uint32_t n = large ? 1 : COLL_BENCH_CALLS_OF_SMALL;
    renew(b, j, way);
    DS_TRY(dsi_comm_barrier(b->comm, "benchmark"));
    const double begin = dsi_clock_seconds();
    for (uint32_t i = 0; i < n; ++i) {
        DS_TRY(run_way(b, j, way));
    }
    *seconds_out = (dsi_clock_seconds() - begin) / n / (j->op == COLL_BENCH_PT2PT ? 2.0 : 1.0);
    return DS_OK;
}

static bool takes_part(const coll_bench *b, const job *j, int way)
{
    const dsi_mpi_peer_call call = mpi_call(b, j);
    return way == WAY_OURS ||
           (way == WAY_MPI && b->params.mpi != NULL && b->params.mpi->can(&call)) ||
           (way > WAY_MPI && b->params.bound);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare);
    return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* Every trial as long as on its slowest rank. */
static ds_status slowest(const coll_bench *b)
{
    const dsi_comm_part part = {
        .in = b->times, .out = b->times, .count = (size_t)N_WAYS * b->params.trials};
    return dsi_comm_run(b->comm, &(dsi_comm_call){.kind = DS_COMM_ALL_REDUCE,
                                                  .dtype = DS_DTYPE_F64,
                                                  .reduction = DSI_REDUCE_MAX,
                                                  .factor = 1.0f,
                                                  .parts = &part,
                                                  .n_parts = 1,
                                                  .what = "times of the benchmark"});
}

static double must_move(const job *j, uint32_t n_ranks)
{
    const double bytes = (double)j->own * (double)j->element;
    const double n = n_ranks;
    switch (j->op) {
    case COLL_BENCH_REDUCE_SCATTER:
        return bytes + bytes / n;
    case COLL_BENCH_ALL_GATHER:
        return 2.0 * bytes * (n - 1.0);
    case COLL_BENCH_ALL_TO_ALL:
        return 2.0 * bytes * (n - 1.0) / n;
    default:
        return 2.0 * bytes;
    }
}

static job make_job(const coll_bench *b, coll_bench_op op, size_t bytes)
{
    const uint32_t n = b->comm->size;
    const size_t element = ds_dtype_bytes(b->params.dtype);
    job j = {.op = op, .element = element, .own = bytes > element ? bytes / element : 1};
    if (op == COLL_BENCH_REDUCE_SCATTER || op == COLL_BENCH_ALL_TO_ALL) {
        j.own = (j.own + n - 1) / n * n;
    }
    j.whole = op == COLL_BENCH_ALL_GATHER ? j.own * n : j.own;
    j.from = b->shared != NULL ? b->shared : b->from;
    j.to = b->to;
    return j;
}

ds_status coll_bench_time(coll_bench *b, coll_bench_op op, size_t bytes, coll_bench_row *row_out)
{
    const uint32_t trials = b->params.trials;
    const job j = make_job(b, op, bytes);
    double middle[N_WAYS] = {0};
    for (uint32_t i = 0; i < b->comm->size; ++i) {
        b->counts[i] = j.own / b->comm->size;
    }
    for (uint32_t i = 0; i < b->params.warmups + trials; ++i) {
        for (int way = 0; way < N_WAYS; ++way) {
            double seconds = 0.0;
            if (takes_part(b, &j, way)) {
                DS_TRY(trial(b, &j, way, &seconds));
            }
            b->times[(size_t)way * trials + (i < b->params.warmups ? 0 : i - b->params.warmups)] =
                seconds;
        }
    }
    DS_TRY(slowest(b));
    for (int way = 0; way < N_WAYS; ++way) {
        middle[way] = median(b->times + (size_t)way * trials, trials);
    }
    const double copy =
        middle[WAY_STREAM] < middle[WAY_COPY] ? middle[WAY_STREAM] : middle[WAY_COPY];
    const double whole = 2.0 * (double)j.whole * (double)j.element;
    *row_out = (coll_bench_row){.op = op,
                                .bytes = j.own * j.element,
                                .count = j.own,
                                .seconds = middle[WAY_OURS],
                                .mpi_seconds = middle[WAY_MPI],
                                .bound = must_move(&j, b->comm->size) / whole * copy};
    return DS_OK;
}
