/* SPDX-License-Identifier: Apache-2.0 */
/* ds_nvme_tune: searches the settings of asynchronous I/O on given folders and writes the section
 * `aio`. Thin: io_bench measures, tune_space enumerates. */
#include "common/args.h"
#include "common/io_bench.h"
#include "common/output.h"
#include "common/size_text.h"
#include "common/tune_space.h"

#include <deepspeed/context.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2, MAX_FOLDERS = 64, N_FINAL = 4, FINAL_LOOPS = 3 };

static const char about[] =
    "Searches the settings of asynchronous I/O for the disks of given folders: each combination "
    "reads and writes a file in every folder; the best few take turns once more; the winner is "
    "printed as the section `aio` of a DeepSpeed configuration.\n\n"
    "The winner moves a byte there and back in the least time, which is what offload of optimizer "
    "states does. Of settings that are equally good within 3 % the one with the fewest bytes in "
    "flight is taken. The files have no name and are gone when the program ends, also by Ctrl-C.";

static const char after[] =
    "--sweep_config names a JSON file with the values to try; what it leaves out has one value, "
    "the\ndefault of the section:\n"
    "  {\"block_size\": [\"1M\", \"8M\"], \"queue_depth\": [8, 32], \"io_parallel\": [1, 2],\n"
    "   \"single_submit\": [false], \"sequential_requests\": [false]}\n"
    "Without it: block_size 1M 8M, queue_depth 32 128, io_parallel 1 2 4 8, both values of the "
    "others.\n\n"
    "Examples:\n"
    "  ds_nvme_tune --nvme_dir /mnt/nvme0\n"
    "  ds_nvme_tune --nvme_dir /mnt/nvme0 /mnt/nvme1 --output aio.json\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage.";

typedef struct options {
    dsi_arg_list folders;
    const char *size, *sweep, *output;
    int64_t loops;
    uint64_t bytes;
    bool no_read, no_write, verbose;
} options;

typedef struct point {
    ds_aio_params io;
    double read, write; /* bytes a second; 0: not measured */
    double cost;        /* seconds a byte, there and back */
} point;

static int fail(ds_ctx *ctx, int code)
{
    (void)fprintf(stderr, "ds_nvme_tune: %s\n", ds_ctx_error(ctx));
    return code;
}

/* ---- the command line ---- */

static ds_status check(ds_ctx *ctx, options *o)
{
    if (o->folders.n == 0 || o->folders.n > MAX_FOLDERS) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "expected --nvme_dir DIR, up to %d of them; --help says "
                       "more",
                       MAX_FOLDERS);
    }
    if (o->no_read && o->no_write) {
        return ds_fail(ctx, DS_ERR_ARG, "expected at most one of --no_read and --no_write");
    }
    DS_TRY(output_not_input(ctx, o->output, &o->sweep, 1));
    DS_TRY(o->output != NULL ? output_check(ctx, o->output) : DS_OK);
    DS_TRY(size_parse_binary(ctx, "io_size", o->size, &o->bytes));
    if (o->bytes < (1 << 20) || o->bytes % 4096 != 0 || o->bytes > UINT64_C(1) << 46) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--io_size: expected 1M to 2^46 bytes, a multiple of 4096, found %" PRIu64,
                       o->bytes);
    }
    return DS_OK;
}

static ds_status parse(ds_ctx *ctx, int argc, char **argv, options *o, bool *help_out)
{
    const dsi_arg rows[] = {
        {.name = "nvme_dir",
         .type = DSI_ARG_LIST,
         .out = &o->folders,
         .value = "DIR",
         .doc = "Where the files go: one folder on each disk that offload will use. Needed."},
        {.name = "io_size",
         .type = DSI_ARG_TEXT,
         .out = &o->size,
         .value = "BYTES",
         .def = "400M",
         .doc = "Size of the file in each folder; K, M, G for powers of 1024."},
        {.name = "sweep_config",
         .type = DSI_ARG_TEXT,
         .out = &o->sweep,
         .value = "FILE",
         .doc = "The values to try, see below."},
        {.name = "no_read",
         .type = DSI_ARG_SWITCH,
         .out = &o->no_read,
         .alone = "",
         .doc = "Only writes count."},
        {.name = "no_write",
         .type = DSI_ARG_SWITCH,
         .out = &o->no_write,
         .alone = "",
         .doc = "Only reads count."},
        {.name = "loops",
         .type = DSI_ARG_INT,
         .out = &o->loops,
         .value = "N",
         .def = "1",
         .min = 1,
         .max = 1000,
         .doc = "Timed loops of each combination, of which the median counts."},
        {.name = "output",
         .type = DSI_ARG_TEXT,
         .out = &o->output,
         .value = "FILE",
         .doc = "Also write the section to this file."},
        {.name = "verbose",
         .type = DSI_ARG_SWITCH,
         .out = &o->verbose,
         .alone = "",
         .doc = "Say which backend moves the bytes, and how."},
    };
    const dsi_args_spec spec = {.usage = "ds_nvme_tune --nvme_dir DIR... [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    DS_TRY(dsi_args_parse_flags(ctx, &spec, argc, argv, help_out));
    return *help_out ? DS_OK : check(ctx, o);
}

/* ---- the search ---- */

static ds_status measure(const options *o, io_bench *bench, uint32_t loops, point *p,
                         io_bench_result *result_out)
{
    p->read = p->write = p->cost = 0;
    if (!o->no_read) {
        DS_TRY(io_bench_time(bench, false, &p->io, 0, loops, result_out));
        p->read = (double)result_out->all_bytes / result_out->all_seconds;
        p->cost += 1 / p->read;
    }
    if (!o->no_write) {
        DS_TRY(io_bench_time(bench, true, &p->io, 0, loops, result_out));
        p->write = (double)result_out->all_bytes / result_out->all_seconds;
        p->cost += 1 / p->write;
    }
    return DS_OK;
}

static void print_heading(void)
{
    (void)printf("%10s %6s %8s %7s %11s %10s %10s\n", "block_size", "depth", "threads", "single",
                 "overlap", "read GB/s", "write GB/s");
}

static void print_speed(double bytes)
{
    if (bytes > 0) {
        (void)printf(" %10.3f", bytes / (1 << 30));
    } else {
        (void)printf(" %10s", "-");
    }
}

static void print_point(const point *p)
{
    (void)printf("%10" PRIu64 " %6" PRIu32 " %8" PRIu32 " %7s %11s", p->io.block_size,
                 p->io.queue_depth, p->io.intra_op_parallelism,
                 p->io.single_submit ? "true" : "false", p->io.overlap_events ? "true" : "false");
    print_speed(p->read);
    print_speed(p->write);
    (void)printf("\n");
    (void)fflush(stdout);
}

static int by_cost(const void *a, const void *b)
{
    const double x = ((const point *)a)->cost;
    const double y = ((const point *)b)->cost;
    return (x > y) - (x < y);
}

static uint64_t in_flight(const point *p)
{
    return p->io.block_size * p->io.queue_depth * p->io.intra_op_parallelism;
}

/* Points in the order of their cost: of those near the first, the one with the least in flight. */
static const point *choose(const point *points, size_t n)
{
    const point *best = &points[0];
    for (size_t i = 1; i < n && points[i].cost <= points[0].cost * 1.03; ++i) {
        if (in_flight(&points[i]) < in_flight(best)) {
            best = &points[i];
        }
    }
    return best;
}

static ds_status search(const options *o, io_bench *bench, point *points, size_t n)
{
    io_bench_result result = {0};
    print_heading();
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(measure(o, bench, (uint32_t)o->loops, &points[i], &result));
        print_point(&points[i]);
    }
    if (o->verbose) {
        (void)printf("By %s, %s the page cache\n",
                     result.in_force.backend == DS_AIO_URING ? "io_uring" : "threads",
                     result.direct ? "past" : "through");
    }
    qsort(points, n, sizeof *points, by_cost);
    const size_t n_final = n < N_FINAL ? n : N_FINAL;
    (void)printf("The best %zu once more, %d loops each:\n", n_final, FINAL_LOOPS);
    for (size_t i = 0; i < n_final; ++i) {
        DS_TRY(measure(o, bench, FINAL_LOOPS, &points[i], &result));
        print_point(&points[i]);
    }
    qsort(points, n_final, sizeof *points, by_cost);
    const point *best = choose(points, n_final);
    points[0] = *best;
    return DS_OK;
}

static ds_status tell(ds_ctx *ctx, const options *o, const point *best)
{
    char text[512];
    const int n = snprintf(
        text, sizeof text,
        "{\n  \"aio\": {\n    \"block_size\": %" PRIu64 ",\n    \"queue_depth\": %" PRIu32
        ",\n    \"intra_op_parallelism\": %" PRIu32
        ",\n    \"single_submit\": %s,\n    \"overlap_events\": %s\n  }\n}\n",
        best->io.block_size, best->io.queue_depth, best->io.intra_op_parallelism,
        best->io.single_submit ? "true" : "false", best->io.overlap_events ? "true" : "false");
    (void)printf("Best performance (GB/sec): read = %5.2f, write = %5.2f\n%s",
                 best->read / (1 << 30), best->write / (1 << 30), text);
    return o->output != NULL ? output_put(ctx, o->output, text, (size_t)n) : DS_OK;
}

static ds_status run(ds_ctx *ctx, const options *o)
{
    const io_bench_params params = {
        .folders = o->folders.items, .n_folders = o->folders.n, .per_folder = 1, .bytes = o->bytes};
    tune_space space;
    io_bench *bench = NULL;
    DS_TRY(tune_space_read(ctx, o->sweep, &space));
    const size_t n = tune_space_size(&space);
    point *points = calloc(n, sizeof *points);
    ds_status status = points != NULL ? io_bench_create(ctx, &params, &bench)
                                      : ds_fail(ctx, DS_ERR_NOMEM, "no memory for the table");
    for (size_t i = 0; status >= 0 && i < n; ++i) {
        points[i].io = tune_space_at(&space, i);
    }
    status = status < 0 ? status : search(o, bench, points, n);
    status = status < 0 ? status : tell(ctx, o, &points[0]);
    io_bench_destroy(&bench);
    free(points);
    return status;
}

int main(int argc, char **argv)
{
    output_guard("ds_nvme_tune");
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
