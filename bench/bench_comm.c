/* Collectives of ranks of one host over shared memory, against the bound and against Open MPI.
 *
 * usage: bench_comm [RANKS=2] [MIN=8] [MAX=1073741824] [ROUNDS=5] [KIND=all_reduce|…]
 *        mpirun -n 2 bench_comm …      (when built with MPI: alternates with MPI's collectives)
 *
 * P is the size of the whole tensor in bytes, fp32. Modes: `symmetric` (operands in symmetric
 * memory, in place for all_reduce and all_gather), `private` (operands from malloc, likewise in
 * place), `mpi` (the same buffers as private, MPI_IN_PLACE). From 4 KiB each rank writes its
 * operand anew before each call, untimed. Rounds alternate among the modes and a copy; medians. The
 * bound, N ranks:
 *
 *   bytes that each rank must read and write:  all_reduce P + P;  reduce_scatter P + P/N;
 *                                              all_gather (N-1)P/N + (N-1)P/N
 *   rate: 2·P / (time in which every rank at once copies P bytes, the better of memcpy and a copy
 *         with streaming stores, between its own buffers)
 *   fraction of the bound = bytes / rate / time
 */
#include "base/clock.h"
#include "comm/shm.h"
#include "common/timing.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#ifdef DS_BENCH_MPI
#include <mpi.h>
#endif

enum {
    MODE_SYMMETRIC,
    MODE_PRIVATE,
    MODE_MPI,
    MODE_COPY,
    N_MODES,
    MOST_ROUNDS = 31,
    RENEW_FROM = 4096
};

typedef struct bench {
    dsi_comm *comm;
    bool mpi;
    char *symmetric, *from, *to;
    size_t min, max;
    uint32_t rounds;
    const char *kind;
} bench;

static void copy_stream(char *to, const char *from, size_t bytes)
{
#if defined(__x86_64__)
    size_t i = 0;
    for (; i + 64 <= bytes; i += 64) {
        const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(from + i));
        const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 16));
        const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 32));
        const __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 48));
        _mm_stream_si128((__m128i *)(void *)(to + i), a);
        _mm_stream_si128((__m128i *)(void *)(to + i + 16), b);
        _mm_stream_si128((__m128i *)(void *)(to + i + 32), c);
        _mm_stream_si128((__m128i *)(void *)(to + i + 48), d);
    }
    _mm_sfence();
    memcpy(to + i, from + i, bytes - i);
#else
    memcpy(to, from, bytes);
#endif
}

static void run_ours(const bench *b, dsi_coll kind, size_t bytes, bool symmetric)
{
    const size_t count = bytes / 4;
    char *memory = symmetric ? b->symmetric : b->from;
    const size_t slice = dsi_comm_slice(count, b->comm->size);
    dsi_comm_part part = {.in = memory, .out = memory, .count = count};
    if (kind == DSI_COLL_REDUCE_SCATTER) {
        part.out = b->to;
    } else if (kind == DSI_COLL_ALL_GATHER) {
        part.in = memory + slice * b->comm->rank * 4;
    }
    const dsi_comm_call call = {.kind = kind,
                                .dtype = DS_DTYPE_F32,
                                .factor = 1.0f / (float)b->comm->size,
                                .parts = &part,
                                .n_parts = 1,
                                .symmetric = symmetric,
                                .what = "benchmark"};
    if (dsi_comm_run(b->comm, &call) < 0) {
        (void)fprintf(stderr, "%s\n", ds_ctx_error(b->comm->ctx));
        exit(1);
    }
}

static void run_mpi(const bench *b, dsi_coll kind, size_t bytes)
{
#ifdef DS_BENCH_MPI
    const int count = (int)(bytes / 4);
    const int slice = (int)dsi_comm_slice((size_t)count, b->comm->size);
    if (kind == DSI_COLL_ALL_REDUCE) {
        MPI_Allreduce(MPI_IN_PLACE, b->from, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (kind == DSI_COLL_REDUCE_SCATTER) {
        MPI_Reduce_scatter_block(b->from, b->to, slice, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else {
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b->from, slice, MPI_FLOAT,
                      MPI_COMM_WORLD);
    }
#else
    (void)b;
    (void)kind;
    (void)bytes;
#endif
}

static void run_mode(const bench *b, uint32_t mode, dsi_coll kind, size_t bytes, bool stream)
{
    if (mode == MODE_COPY && stream) {
        copy_stream(b->to, b->from, bytes);
    } else if (mode == MODE_COPY) {
        memcpy(b->to, b->from, bytes);
    } else if (mode == MODE_MPI) {
        run_mpi(b, kind, bytes);
    } else {
        run_ours(b, kind, bytes, mode == MODE_SYMMETRIC);
    }
}

/* The owner writes its operand anew, as a training step does: otherwise the lines of a call that
 * works in place stay in the caches of those who worked on them. */
static void renew(const bench *b, uint32_t mode, size_t bytes)
{
    float *x = (float *)(void *)(mode == MODE_SYMMETRIC ? b->symmetric : b->from);
    for (size_t i = 0; i < bytes / 4; ++i) {
        x[i] = 1.0f;
    }
}

/* Seconds of one run, from as many as fill some milliseconds. */
static double time_mode(const bench *b, uint32_t mode, dsi_coll kind, size_t bytes, bool stream)
{
    const bool large = bytes >= RENEW_FROM;
    const uint32_t n = bytes >= 4 << 20 ? 1 : large ? 50 : 2000;
    double seconds = 0.0;
    double begin = 0.0;
    for (uint32_t i = 0; i < n; ++i) {
        if (large) {
            renew(b, mode, bytes);
        }
        if ((large || i == 0) && dsi_comm_barrier(b->comm, "benchmark") < 0) {
            exit(1);
        }
        if (large || i == 0) {
            begin = dsi_clock_seconds();
        }
        run_mode(b, mode, kind, bytes, stream);
        if (large || i == n - 1) {
            seconds += dsi_clock_seconds() - begin;
        }
    }
    return seconds / n;
}

static double must_move(const bench *b, dsi_coll kind, double bytes)
{
    const double n = b->comm->size;
    return kind == DSI_COLL_ALL_REDUCE       ? 2.0 * bytes
           : kind == DSI_COLL_REDUCE_SCATTER ? bytes + bytes / n
                                             : 2.0 * bytes * (n - 1.0) / n;
}

static void bench_size(const bench *b, dsi_coll kind, size_t bytes)
{
    double seconds[N_MODES + 1][MOST_ROUNDS];
    double median[N_MODES + 1] = {0};
    for (uint32_t round = 0; round < b->rounds + 1; ++round) { /* the first warms up */
        for (uint32_t mode = 0; mode <= N_MODES; ++mode) {
            if (mode == MODE_MPI && !b->mpi) {
                continue;
            }
            const uint32_t at = round > 0 ? round - 1 : 0;
            const bool stream = mode == N_MODES;
            seconds[mode][at] = time_mode(b, stream ? MODE_COPY : mode, kind, bytes, stream);
        }
    }
    for (uint32_t mode = 0; mode <= N_MODES; ++mode) {
        if (mode != MODE_MPI || b->mpi) {
            median[mode] = bench_median(seconds[mode], b->rounds);
        }
    }
    if (b->comm->rank > 0) {
        return;
    }
    const double copy = median[N_MODES] < median[MODE_COPY] ? median[N_MODES] : median[MODE_COPY];
    const double bound = must_move(b, kind, (double)bytes) / (2.0 * (double)bytes / copy);
    (void)printf("%-14s %10zu %11.2f %11.2f", dsi_coll_name(kind), bytes,
                 median[MODE_SYMMETRIC] * 1e6, median[MODE_PRIVATE] * 1e6);
    if (b->mpi) {
        (void)printf(" %11.2f %7.2f %7.2f", median[MODE_MPI] * 1e6,
                     median[MODE_MPI] / median[MODE_SYMMETRIC],
                     median[MODE_MPI] / median[MODE_PRIVATE]);
    }
    (void)printf(" %11.2f %7.2f %7.2f\n", bound * 1e6, bound / median[MODE_SYMMETRIC],
                 bound / median[MODE_PRIVATE]);
    (void)fflush(stdout);
}

static void bench_all(bench *b)
{
    static const dsi_coll kinds[3] = {DSI_COLL_ALL_REDUCE, DSI_COLL_REDUCE_SCATTER,
                                      DSI_COLL_ALL_GATHER};
    void *memory;
    if (dsi_comm_symmetric(b->comm, b->max, &memory) < 0) {
        (void)fprintf(stderr, "%s\n", ds_ctx_error(b->comm->ctx));
        exit(1);
    }
    b->symmetric = memory;
    b->from = bench_alloc(b->max);
    b->to = bench_alloc(b->max);
    for (size_t i = 0; i < b->max / 4; ++i) {
        ((float *)(void *)b->symmetric)[i] = ((float *)(void *)b->from)[i] = 1.0f;
    }
    memset(b->to, 1, b->max);
    if (b->comm->rank == 0) {
        (void)printf("%u ranks, microseconds; ratio: MPI's time over ours; fraction of the bound\n",
                     b->comm->size);
        (void)printf("%-14s %10s %11s %11s", "", "bytes", "symmetric", "private");
        if (b->mpi) {
            (void)printf(" %11s %7s %7s", "mpi", "ratio", "ratio");
        }
        (void)printf(" %11s %7s %7s\n", "bound", "symm.", "priv.");
    }
    for (uint32_t k = 0; k < 3; ++k) {
        if (b->kind != NULL && strcmp(b->kind, dsi_coll_name(kinds[k])) != 0) {
            continue;
        }
        for (size_t bytes = b->min; bytes <= b->max; bytes *= bytes == 2 << 20 ? 8 : 4) {
            bench_size(b, kinds[k], bytes);
        }
    }
}

static int bench_rank(bench *b, uint32_t rank, uint32_t size, const char *name)
{
    ds_ctx *ctx;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    const dsi_shm_params shm = {rank, size, name, 60.0};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    if (dsi_comm_shm_open(ctx, &shm, &b->comm) < 0) {
        (void)fprintf(stderr, "%s\n", ds_ctx_error(ctx));
        return 1;
    }
    bench_all(b);
    dsi_comm_destroy(&b->comm);
    ds_ctx_destroy(&ctx);
    return 0;
}

static const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
    const size_t n = strlen(name);
    for (int i = 1; i < argc; ++i) {
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=') {
            return argv[i] + n + 1;
        }
    }
    return otherwise;
}

static int run_alone(bench *b, uint32_t size)
{
    char name[64];
    int worst = 0;
    (void)snprintf(name, sizeof name, "bench %d", (int)getpid());
    for (uint32_t r = 0; r < size; ++r) {
        if (fork() == 0) {
            exit(bench_rank(b, r, size, name));
        }
    }
    for (uint32_t r = 0; r < size; ++r) {
        int status;
        (void)wait(&status);
        worst |= status;
    }
    return worst != 0 ? 1 : 0;
}

int main(int argc, char **argv)
{
    bench b = {.min = strtoull(option(argc, argv, "MIN", "8"), NULL, 10),
               .max = strtoull(option(argc, argv, "MAX", "1073741824"), NULL, 10),
               .rounds = (uint32_t)strtoul(option(argc, argv, "ROUNDS", "5"), NULL, 10),
               .kind = option(argc, argv, "KIND", NULL)};
    b.rounds = b.rounds < 1 ? 1 : b.rounds > MOST_ROUNDS ? MOST_ROUNDS : b.rounds;
#ifdef DS_BENCH_MPI
    if (getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMI_SIZE") != NULL) {
        int rank;
        int size;
        MPI_Init(&argc, &argv);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        char name[64] = "";
        (void)snprintf(name, sizeof name, "bench %d", (int)getpid());
        MPI_Bcast(name, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
        b.mpi = true;
        const int code = bench_rank(&b, (uint32_t)rank, (uint32_t)size, name);
        MPI_Finalize();
        return code;
    }
#endif
    return run_alone(&b, (uint32_t)strtoul(option(argc, argv, "RANKS", "2"), NULL, 10));
}
