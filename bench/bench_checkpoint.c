/* SPDX-License-Identifier: Apache-2.0 */
/* Rate at which N processes save a checkpoint together, into a folder on the disk in question.
 *
 *     bench_checkpoint FOLDER MEGABYTES RANKS [behind]
 *
 * Prints "SECONDS MB_PER_S", from the creation of the writer to the end of the commit, with every
 * sync, as rank 0 sees it; with `behind` also the time that training would have stood still.
 * bench_checkpoint.sh alternates it with fio. */
#include "base/clock.h"
#include "ckpt/checkpoint_on.h"
#include "comm/shm.h"
#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TENSORS = 48 };

typedef struct options {
    const char *folder;
    size_t bytes; /* of all ranks */
    uint32_t n_ranks;
    bool behind;
    char job[64];
} options;

static void quiet(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

static ds_status add_slices(ds_checkpoint_writer *w, const options *o, uint32_t rank,
                            const float *data)
{
    const int64_t own = (int64_t)(o->bytes / o->n_ranks / TENSORS / sizeof *data);
    const ds_extent extent = ds_extent_flat(own * rank, own);
    for (int i = 0; i < TENSORS; ++i) {
        char name[32];
        (void)snprintf(name, sizeof name, "layer.%d.weight", i / 3);
        const ds_checkpoint_slice slice = {.kind = i % 3 == 0   ? "master"
                                                   : i % 3 == 1 ? "exp_avg"
                                                                : "exp_avg_sq",
                                           .name = name,
                                           .meta = {DS_DTYPE_F32, ds_shape_1d(own * o->n_ranks)},
                                           .extent = &extent,
                                           .data = data + own * i};
        DS_TRY(ds_checkpoint_writer_add(w, &slice));
    }
    return DS_OK;
}

static ds_status save(ds_ctx *ctx, dsi_comm *comm, const options *o, const float *data)
{
    const ds_checkpoint_params params = {.dir = o->folder, .tag = "bench"};
    ds_checkpoint_writer *w = NULL;
    ds_checkpoint_saver *saver = NULL;
    if (o->behind) {
        DS_TRY(dsi_checkpoint_saver_create_on(ctx, comm, &saver));
        DS_TRY(ds_checkpoint_saver_reserve(saver, o->bytes / o->n_ranks + 65536));
    }
    DS_TRY(dsi_comm_barrier(comm, "start"));
    const double begin = dsi_clock_seconds();
    if (saver != NULL) {
        DS_TRY(ds_checkpoint_saver_begin(saver, &params, &w));
        DS_TRY(add_slices(w, o, comm->rank, data));
        DS_TRY(ds_checkpoint_saver_commit(saver, &w));
        DS_TRY(ds_checkpoint_saver_wait(saver));
    } else {
        DS_TRY(dsi_checkpoint_writer_create_on(ctx, &params, comm, &w));
        DS_TRY(add_slices(w, o, comm->rank, data));
        DS_TRY(ds_checkpoint_writer_commit(&w));
    }
    const double seconds = dsi_clock_seconds() - begin;
    if (comm->rank == 0) {
        (void)printf("%.3f %.1f", seconds, (double)o->bytes / 1e6 / seconds);
        if (saver != NULL) {
            (void)printf(" stall %.4f", ds_checkpoint_saver_get_info(saver)->stall_seconds);
        }
        (void)printf("\n");
        (void)fflush(stdout);
    }
    ds_checkpoint_saver_destroy(&saver);
    return DS_OK;
}

static int rank_main(const options *o, uint32_t rank)
{
    const ds_ctx_params params = {
        .n_threads = 1, .rank = rank, .world_size = o->n_ranks, .log = quiet};
    const dsi_shm_params shm = {.rank = rank, .size = o->n_ranks, .job = o->job, .timeout = 60};
    const size_t n = o->bytes / o->n_ranks / sizeof(float);
    float *data = malloc(n * sizeof *data);
    ds_ctx *ctx = NULL;
    dsi_comm *comm = NULL;
    if (data == NULL || ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    uint32_t x = 12345 + rank;
    for (size_t i = 0; i < n; ++i) { /* nothing that a disk could shorten */
        x = x * 1664525u + 1013904223u;
        memcpy(&data[i], &x, sizeof x);
    }
    ds_status status = dsi_comm_shm_open(ctx, &shm, &comm);
    if (status == DS_OK) {
        status = save(ctx, comm, o, data);
    }
    if (status < 0) {
        (void)fprintf(stderr, "bench_checkpoint: rank %u: %s\n", rank, ds_ctx_error(ctx));
    }
    dsi_comm_destroy(&comm);
    ds_ctx_destroy(&ctx);
    free(data);
    return status < 0;
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 5) {
        (void)fprintf(stderr, "usage: bench_checkpoint FOLDER MEGABYTES RANKS [behind]\n");
        return 2;
    }
    options o = {.folder = argv[1],
                 .bytes = (size_t)strtoull(argv[2], NULL, 10) * 1000000,
                 .n_ranks = (uint32_t)strtoul(argv[3], NULL, 10),
                 .behind = argc == 5};
    (void)snprintf(o.job, sizeof o.job, "bench-checkpoint-%d", (int)getpid());
    if (o.n_ranks < 1 || o.n_ranks > 64 || o.bytes < 1000000) {
        (void)fprintf(stderr, "bench_checkpoint: 1 to 64 ranks, at least 1 megabyte\n");
        return 2;
    }
    for (uint32_t r = 0; r < o.n_ranks; ++r) {
        const pid_t pid = fork();
        if (pid == 0) {
            const int rc = rank_main(&o, r);
            (void)fflush(NULL);
            _exit(rc);
        }
    }
    int rc = 0;
    for (uint32_t r = 0; r < o.n_ranks; ++r) {
        int status = 0;
        rc |= wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return rc;
}
