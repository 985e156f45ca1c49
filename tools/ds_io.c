/* SPDX-License-Identifier: Apache-2.0 */
/* ds_io: how fast files are read and written. Thin: io_bench measures. */
#include "common/args.h"
#include "common/io_bench.h"
#include "common/output.h"
#include "common/size_text.h"

#include <deepspeed/context.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2, MAX_FOLDERS = 64 };

static const char about[] =
    "Times reading and writing of files with the library's asynchronous I/O, which is what offload "
    "to disk uses: past the page cache (O_DIRECT), through io_uring or threads.\n\n"
    "Each task has a file of --io_size bytes and a buffer of the same size; in a loop every task "
    "moves its whole file. The files have no name: they are gone when the program ends, also by "
    "Ctrl-C. The free space is looked at first.";

static const char after[] =
    "Latency is the time for one file (Task) and for all of them (E2E), the median over the loops;"
    "\nspeed is all bytes over that time; GB are 2^30 bytes.\n\n"
    "Examples:\n"
    "  ds_io --folder /mnt/nvme0 --io_size 1G --read\n"
    "  ds_io --folder /mnt/nvme0 /mnt/nvme1 --io_size 4G --block_size 8M \\\n"
    "        --queue_depth 32 --io_parallel 4\n\n"
    "ds_nvme_tune searches the settings for you and writes the section `aio`.\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage.";

typedef struct options {
    dsi_arg_list folders;
    io_bench_params bench;
    ds_aio_params io;
    const char *size, *block, *backend, *engine;
    int64_t tasks, depth, threads, loops, warmups;
    bool read, write, single, sequential, json;
} options;

static int fail(ds_ctx *ctx, int code)
{
    (void)fprintf(stderr, "ds_io: %s\n", ds_ctx_error(ctx));
    return code;
}

/* ---- the command line ---- */

static ds_status check(ds_ctx *ctx, options *o)
{
    if (o->folders.n == 0 || o->folders.n > MAX_FOLDERS || o->size == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "expected --folder DIR and --io_size BYTES; --help says "
                       "more");
    }
    DS_TRY(size_parse_binary(ctx, "io_size", o->size, &o->bench.bytes));
    DS_TRY(size_parse_binary(ctx, "block_size", o->block, &o->io.block_size));
    if (o->io.block_size < 4096 || o->io.block_size % 4096 != 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--block_size: expected a multiple of 4096 bytes, found %" PRIu64,
                       o->io.block_size);
    }
    if (o->bench.bytes < 4096 || o->bench.bytes % 8 != 0 || o->bench.bytes > UINT64_C(1) << 46) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--io_size: expected 4096 to 2^46 bytes, a multiple of 8, found %" PRIu64,
                       o->bench.bytes);
    }
    o->bench.folders = o->folders.items;
    o->bench.n_folders = o->folders.n;
    o->bench.per_folder = (uint32_t)o->tasks;
    o->io.queue_depth = (uint32_t)o->depth;
    o->io.intra_op_parallelism = (uint32_t)o->threads;
    o->io.single_submit = o->single;
    o->io.overlap_events = !o->sequential;
    o->io.backend = strcmp(o->backend, "io_uring") == 0  ? DS_AIO_URING
                    : strcmp(o->backend, "threads") == 0 ? DS_AIO_THREADS
                                                         : DS_AIO_AUTO;
    o->write = o->write || !o->read;
    return DS_OK;
}

#define SWITCH(flag, field, text)                                                                  \
    {                                                                                              \
        .name = (flag), .type = DSI_ARG_SWITCH, .out = &o->field, .alone = "", .doc = text         \
    }
#define NUMBER(flag, field, first, least, most, text)                                              \
    {                                                                                              \
        .name = (flag), .type = DSI_ARG_INT, .out = &o->field, .value = "N", .def = (first),       \
        .min = (least), .max = (most), .doc = text                                                 \
    }

static ds_status parse(ds_ctx *ctx, int argc, char **argv, options *o, bool *help_out)
{
    const dsi_arg rows[] = {
        {.type = DSI_ARG_HEADING, .doc = "What is moved"},
        {.name = "folder",
         .type = DSI_ARG_LIST,
         .out = &o->folders,
         .value = "DIR",
         .doc = "Where the files go: one or several, as a rule one a disk. Needed."},
        {.name = "io_size",
         .type = DSI_ARG_TEXT,
         .out = &o->size,
         .value = "BYTES",
         .doc = "Size of each file; K, M, G for powers of 1024. Needed."},
        SWITCH("read", read, "Time reading."),
        SWITCH("write", write, "Time writing; what is done without --read."),
        NUMBER("multi_process", tasks, "1", 1, 64, "Tasks in each folder, at the same time."),
        SWITCH("validate", bench.validate, "Compare what is read with what was written."),
        {.type = DSI_ARG_HEADING, .doc = "How, as in the section `aio`"},
        {.name = "block_size",
         .type = DSI_ARG_TEXT,
         .out = &o->block,
         .value = "BYTES",
         .def = "1M",
         .doc = "Bytes of one transfer, a multiple of 4096."},
        NUMBER("queue_depth", depth, "32", 1, 4096, "Transfers in flight, of each thread."),
        NUMBER("io_parallel", threads, "1", 1, 64,
               "Threads that submit and reap, of each task: intra_op_parallelism."),
        SWITCH("single_submit", single, "A system call for each transfer, not for a batch."),
        SWITCH("sequential_requests", sequential,
               "A batch of queue_depth transfers ends before the next begins: overlap_events "
               "false."),
        {.name = "backend",
         .type = DSI_ARG_TEXT,
         .out = &o->backend,
         .value = "WHICH",
         .def = "auto",
         .choices = "auto|io_uring|threads",
         .doc = "auto: io_uring where the kernel permits it, else threads."},
        {.name = "engine",
         .type = DSI_ARG_TEXT,
         .out = &o->engine,
         .value = "NAME",
         .def = "aio_handle",
         .choices = "aio_handle",
         .doc = "DeepSpeed's flag; there is only this one here."},
        {.type = DSI_ARG_HEADING, .doc = "Measuring"},
        NUMBER("loops", loops, "3", 1, 10000, "Timed loops, of which the median counts."),
        NUMBER("warmup_loops", warmups, "1", 0, 10000, "Loops before them that do not count."),
        SWITCH("json", json, "One JSON object a direction instead of text."),
    };
    const dsi_args_spec spec = {.usage = "ds_io --folder DIR... --io_size BYTES [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    DS_TRY(dsi_args_parse_flags(ctx, &spec, argc, argv, help_out));
    return *help_out ? DS_OK : check(ctx, o);
}

/* ---- the results ---- */

static double giga(uint64_t bytes, double seconds)
{
    return (double)bytes / seconds / (double)(1 << 30);
}

static const char *backend_name(const io_bench_result *r)
{
    return r->in_force.backend == DS_AIO_URING ? "io_uring" : "threads";
}

static void print_text(const options *o, const char *what, const io_bench_result *r)
{
    char size[32];
    (void)printf("Task %s Latency = %.6f sec\n", what, r->task_seconds);
    (void)printf("Task %s Speed = %.3f GB/sec\n", what, giga(r->all_bytes, r->task_seconds));
    (void)printf("E2E %s Latency = %.6f sec\n", what, r->all_seconds);
    (void)printf("E2E %s Speed = %.3f GB/sec (best loop %.3f, worst %.3f)\n", what,
                 giga(r->all_bytes, r->all_seconds), giga(r->all_bytes, r->best_seconds),
                 giga(r->all_bytes, r->worst_seconds));
    (void)printf("Transfers of %s: mean %.3f ms, slowest %.3f ms\n",
                 size_text(o->io.block_size, size, sizeof size), r->piece_seconds * 1e3,
                 r->slowest_piece * 1e3);
    (void)printf("By %s, %s the page cache\n", backend_name(r), r->direct ? "past" : "through");
}

static void print_json(const options *o, const char *what, const io_bench_result *r)
{
    (void)printf("{\"operation\": \"%s\", \"bytes\": %" PRIu64 ", \"block_size\": %" PRIu64
                 ", \"queue_depth\": %" PRIu32 ", \"intra_op_parallelism\": %" PRIu32
                 ", \"single_submit\": %s, \"overlap_events\": %s, \"backend\": \"%s\", "
                 "\"direct\": %s, \"task_seconds\": %.9f, \"seconds\": %.9f, \"best_seconds\": "
                 "%.9f, \"worst_seconds\": %.9f, \"bytes_per_second\": %.0f, "
                 "\"transfer_seconds\": %.9f, \"slowest_transfer_seconds\": %.9f}\n",
                 what, r->all_bytes, o->io.block_size, o->io.queue_depth,
                 o->io.intra_op_parallelism, o->io.single_submit ? "true" : "false",
                 o->io.overlap_events ? "true" : "false", backend_name(r),
                 r->direct ? "true" : "false", r->task_seconds, r->all_seconds, r->best_seconds,
                 r->worst_seconds, (double)r->all_bytes / r->all_seconds, r->piece_seconds,
                 r->slowest_piece);
}

static ds_status run(ds_ctx *ctx, const options *o)
{
    io_bench *bench = NULL;
    ds_status status = DS_OK;
    DS_TRY(io_bench_create(ctx, &o->bench, &bench));
    for (int write = 0; write < 2 && status >= 0; ++write) {
        io_bench_result r;
        if (!(write != 0 ? o->write : o->read)) {
            continue;
        }
        status =
            io_bench_time(bench, write != 0, &o->io, (uint32_t)o->warmups, (uint32_t)o->loops, &r);
        if (status >= 0 && o->json) {
            print_json(o, write != 0 ? "write" : "read", &r);
        } else if (status >= 0) {
            print_text(o, write != 0 ? "Write" : "Read", &r);
        }
        (void)fflush(stdout);
    }
    io_bench_destroy(&bench);
    return status;
}

int main(int argc, char **argv)
{
    output_guard("ds_io");
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    options o = {0};
    bool help = false;
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    int code = EXIT_SUCCESS;
    if (parse(ctx, argc, argv, &o, &help) < 0) {
        code = fail(ctx, EXIT_USAGE);
    } else if (!help && run(ctx, &o) < 0) {
        code = fail(ctx, EXIT_FAILURE);
    }
    dsi_arg_list_free(&o.folders);
    ds_ctx_destroy(&ctx);
    return code;
}
