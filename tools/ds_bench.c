/* SPDX-License-Identifier: Apache-2.0 */
/* ds_bench: how fast the ranks of a job exchange data; with --profile, what one host can do; with
 * --serve, how a server answers under load. Thin: coll_bench measures, coll_table prints;
 * profile_run and load/ are the other two. */
#include "comm/comm.h"
#include "comm/net.h"
#include "common/args.h"
#include "common/coll_table.h"
#include "common/output.h"
#include "common/profile_run.h"
#include "common/size_text.h"
#include "load/load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, PATH_BYTES = 4096, MAX_ROWS = 4096, MAX_WORDS = 256, TEXT_BYTES = 1 << 24 };

static const char about[] =
    "Times the collectives of a job by message size, in the table of DeepSpeed's benchmark: the "
    "median duration of a call, what the caller gets done (throughput) and what each link carries "
    "(bus bandwidth).\n\n"
    "Run it as any program of several ranks: under `deepspeed`, mpirun or srun. Alone, it starts "
    "itself through `deepspeed`. Under mpirun MPI's own collectives take turns with these, and the "
    "column MPI/ours is how many times longer MPI takes.\n\n"
    "With --serve it loads a server that speaks OpenAI's HTTP interface instead, and says how long "
    "requests take to their first token, between tokens and to their end, and how many are within "
    "limits. Times count from a request's arrival, also while no client is free for it.";

static const char after[] =
    "A size is what one rank passes: of an all_gather its slice, of the others the whole tensor. "
    "\nThroughput and bus bandwidth of n ranks, B bytes and t seconds:\n"
    "  all_reduce                  2B/t    B/t 2(n-1)/n\n"
    "  all_gather                  nB/t    nB/t (n-1)/n\n"
    "  reduce_scatter, all_to_all   B/t    B/t (n-1)/n\n"
    "  broadcast, pt2pt             B/t    B/t\n\n"
    "Examples:\n"
    "  deepspeed --num_gpus 2 ds_bench --all_reduce --max_size 64M\n"
    "  mpirun -n 2 ds_bench --bound --json > bench.json\n"
    "  deepspeed --num_gpus 2 ds_bench --profile machine.json\n"
    "  ds_bench --serve http://127.0.0.1:8000 --rate 4 --slo_ttft 500\n"
    "  ds_bench --serve http://127.0.0.1:8000 --prompt_tokens lognormal:256,0.8\n"
    "  ds_bench --serve http://127.0.0.1:8000 --trace trace.jsonl --html load.html\n\n"
    "Exit codes: 0 done, 1 failed (with --serve: a request, too), 2 wrong usage.";

typedef struct options {
    coll_bench_params bench;
    coll_table_params table;
    profile_options profile;
    load_options load;
    uint64_t min_size, max_size;
    int64_t maxsize, trials, warmups, step, num_gpus;
    const char *min_text, *max_text, *dtype, *unit, *operands;
    bool json, no_mpi, scan, maxsize_given, max_given;
} options;

static int fail(ds_ctx *ctx, int code)
{
    (void)fprintf(stderr, "ds_bench: %s\n", ds_ctx_error(ctx));
    return code;
}

/* ---- the command line ---- */

static const char server_heading[] = "A server under load instead";

static ds_status read_dtype(ds_ctx *ctx, options *o)
{
    static const struct {
        const char *name;
        ds_dtype dtype;
    } others[] = {{"float", DS_DTYPE_F32},   {"double", DS_DTYPE_F64}, {"fp64", DS_DTYPE_F64},
                  {"float64", DS_DTYPE_F64}, {"int8", DS_DTYPE_I8},    {"uint8", DS_DTYPE_U8},
                  {"int32", DS_DTYPE_I32},   {"int64", DS_DTYPE_I64},  {"int", DS_DTYPE_I32},
                  {"long", DS_DTYPE_I64}};
    const char *name = strncmp(o->dtype, "torch.", 6) == 0 ? o->dtype + 6 : o->dtype;
    o->bench.dtype = ds_dtype_from_name(name);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
        if (strcmp(name, others[i].name) == 0) {
            o->bench.dtype = others[i].dtype;
        }
    }
    if (o->bench.dtype == DS_DTYPE_NONE || o->bench.dtype == DS_DTYPE_BOOL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--dtype: expected fp32, bf16, fp16, fp64, int8, uint8, int32 or int64, "
                       "found '%s'",
                       o->dtype);
    }
    return DS_OK;
}

static ds_status check(ds_ctx *ctx, options *o)
{
    bool any = false;
    DS_TRY(read_dtype(ctx, o));
    DS_TRY(size_parse_binary(ctx, "min_size", o->min_text, &o->min_size));
    DS_TRY(size_parse_binary(ctx, "max_size", o->max_text, &o->max_size));
    if (o->maxsize_given && o->max_given) {
        return ds_fail(ctx, DS_ERR_ARG, "give --max_size or --maxsize, not both");
    }
    if (o->maxsize_given) {
        o->max_size = UINT64_C(1) << o->maxsize;
    }
    if (o->min_size < 1 || o->min_size > o->max_size) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--min_size %llu: expected from 1 to --max_size, which is "
                       "%llu",
                       (unsigned long long)o->min_size, (unsigned long long)o->max_size);
    }
    for (int op = 0; op < COLL_BENCH_OP_COUNT; ++op) {
        any = any || o->bench.ops[op];
    }
    for (int op = 0; op < COLL_BENCH_OP_COUNT && !any; ++op) {
        o->bench.ops[op] = true;
    }
    o->bench.trials = (uint32_t)o->trials;
    o->bench.warmups = (uint32_t)o->warmups;
    o->bench.max_bytes = o->max_size;
    o->bench.private_operands = strcmp(o->operands, "private") == 0;
    o->table.bytes = strcmp(o->unit, "GBps") == 0;
    return DS_OK;
}

/* Flags of a server and of what is timed here do not meet. */
static ds_status check_mode(ds_ctx *ctx, const dsi_arg *rows, size_t n, bool serves)
{
    static const char *const both[] = {"serve", "warmups", "json"};
    bool of_server = false;
    for (size_t i = 0; i < n; ++i) {
        bool fits = rows[i].type == DSI_ARG_HEADING || !*rows[i].given_out;
        if (rows[i].type == DSI_ARG_HEADING) {
            of_server = strcmp(rows[i].doc, server_heading) == 0;
        }
        for (size_t k = 0; k < sizeof both / sizeof both[0] && !fits; ++k) {
            fits = strcmp(rows[i].name, both[k]) == 0;
        }
        if (!fits && of_server != serves) {
            return ds_fail(ctx, DS_ERR_ARG,
                           serves ? "--%s and --serve do not go together: a server is loaded, or "
                                    "collectives are timed"
                                  : "--%s is for --serve, which is not given",
                           rows[i].name);
        }
    }
    return DS_OK;
}

#define OP_ROW(flag, op, what)                                                                     \
    {                                                                                              \
        .name = (flag), .type = DSI_ARG_SWITCH, .out = &o->bench.ops[op], .alone = "",             \
        .doc = "Time " what "."                                                                    \
    }

static ds_status parse(ds_ctx *ctx, int argc, char **argv, options *o, bool *help_out)
{
    dsi_arg rows[] = {
        {.type = DSI_ARG_HEADING, .doc = "What is timed (default: everything)"},
        OP_ROW("all_reduce", COLL_BENCH_ALL_REDUCE, "all_reduce"),
        OP_ROW("reduce_scatter", COLL_BENCH_REDUCE_SCATTER, "reduce_scatter"),
        OP_ROW("all_gather", COLL_BENCH_ALL_GATHER, "all_gather"),
        OP_ROW("all_to_all", COLL_BENCH_ALL_TO_ALL, "all_to_all, equal parts"),
        OP_ROW("broadcast", COLL_BENCH_BROADCAST, "broadcast from rank 0"),
        OP_ROW("pt2pt", COLL_BENCH_PT2PT, "messages between ranks 0 and 1, half of there and back"),
        {.type = DSI_ARG_HEADING, .doc = "Messages"},
        {.name = "min_size",
         .type = DSI_ARG_TEXT,
         .out = &o->min_text,
         .value = "BYTES",
         .def = "8",
         .doc = "Smallest message; K, M, G for powers of 1024."},
        {.name = "max_size",
         .type = DSI_ARG_TEXT,
         .out = &o->max_text,
         .value = "BYTES",
         .def = "16M",
         .given_out = &o->max_given,
         .doc = "Largest message."},
        {.name = "maxsize",
         .type = DSI_ARG_INT,
         .out = &o->maxsize,
         .value = "N",
         .min = 1,
         .max = 40,
         .given_out = &o->maxsize_given,
         .doc = "Largest message as a power of 2, DeepSpeed's spelling."},
        {.name = "step",
         .type = DSI_ARG_INT,
         .out = &o->step,
         .value = "N",
         .def = "2",
         .min = 2,
         .max = 1 << 20,
         .doc = "Each size is N times the one before."},
        {.name = "scan",
         .type = DSI_ARG_SWITCH,
         .out = &o->scan,
         .alone = "",
         .doc = "DeepSpeed's flag for all sizes, which are always run here."},
        {.name = "dtype",
         .type = DSI_ARG_TEXT,
         .out = &o->dtype,
         .value = "TYPE",
         .def = "fp32",
         .doc = "fp32, bf16, fp16, fp64, int8, uint8, int32 or int64. MPI has no sums of bf16 and "
                "fp16."},
        {.name = "operands",
         .type = DSI_ARG_TEXT,
         .out = &o->operands,
         .value = "WHERE",
         .def = "symmetric",
         .choices = "symmetric|private",
         .doc = "symmetric: in memory that ranks of one host read in place, as the engine's are. "
                "private: in memory of each process, as MPI's are in the comparison."},
        {.type = DSI_ARG_HEADING, .doc = "Measuring"},
        {.name = "trials",
         .type = DSI_ARG_INT,
         .out = &o->trials,
         .value = "N",
         .def = "50",
         .min = 1,
         .max = COLL_BENCH_MOST_TRIALS,
         .doc = "Timed calls of a size, of which the median counts; below 4 KiB a trial is 200 "
                "calls in a row. A trial lasts as long as on its slowest rank."},
        {.name = "warmups",
         .type = DSI_ARG_INT,
         .out = &o->warmups,
         .value = "N",
         .def = "5",
         .min = 0,
         .max = COLL_BENCH_MOST_TRIALS,
         .doc = "Calls before them that do not count."},
        {.name = "bound",
         .type = DSI_ARG_SWITCH,
         .out = &o->bench.bound,
         .alone = "",
         .doc = "Also time copies, and show the time in which the bytes that a rank must read and "
                "write could be copied, and the fraction of that speed."},
        {.name = "no_mpi",
         .type = DSI_ARG_SWITCH,
         .out = &o->no_mpi,
         .alone = "",
         .doc = "No comparison with MPI's own collectives."},
        {.name = "num_gpus",
         .type = DSI_ARG_INT,
         .out = &o->num_gpus,
         .value = "N",
         .def = "0",
         .min = 0,
         .max = 4096,
         .doc = "Ranks to start here, when nothing has started this one. 0: as `deepspeed` does."},
        {.type = DSI_ARG_HEADING, .doc = "A device profile instead"},
        {.name = "profile",
         .type = DSI_ARG_TEXT,
         .out = &o->profile.file,
         .value = "FILE",
         .doc = "Measure the processor's kernels and memory, and with several ranks of one host "
                "their collectives, and write the profile that ds_plan --device takes. Some "
                "minute, the machine otherwise idle. Alone it starts no other ranks."},
        {.name = "profile_name",
         .type = DSI_ARG_TEXT,
         .out = &o->profile.name,
         .value = "NAME",
         .doc = "Name in the profile; default: the host's."},
        {.name = "profile_folder",
         .type = DSI_ARG_TEXT,
         .out = &o->profile.folder,
         .value = "DIR",
         .doc = "Also measure the disk there, with a file of 512 MiB that is removed."},
        {.type = DSI_ARG_HEADING, .doc = server_heading},
        {.name = "serve",
         .type = DSI_ARG_TEXT,
         .out = &o->load.url,
         .value = "URL",
         .doc = "http[s]://HOST[:PORT]: send requests there. --warmups of them do not count."},
        {.name = "endpoint",
         .type = DSI_ARG_TEXT,
         .out = &o->load.endpoint,
         .value = "NAME",
         .def = "completions",
         .choices = "completions|chat",
         .doc = "Where to. Prompts are lists of ids where completions say how many there are "
                "(/v1/models), else so many English words."},
        {.name = "model",
         .type = DSI_ARG_TEXT,
         .out = &o->load.model,
         .value = "NAME",
         .doc = "Default: the first that the server has."},
        {.name = "api_key_file",
         .type = DSI_ARG_TEXT,
         .out = &o->load.api_key_file,
         .value = "FILE",
         .doc = "A key in its first line."},
        {.name = "cacert",
         .type = DSI_ARG_TEXT,
         .out = &o->load.cacert,
         .value = "FILE",
         .doc = "Of https: trust the authorities or the certificate of this file, PEM; default: "
                "the authorities of this machine."},
        {.name = "insecure",
         .type = DSI_ARG_SWITCH,
         .out = &o->load.insecure,
         .doc = "Of https: take any certificate, of anybody."},
        {.name = "requests",
         .type = DSI_ARG_INT,
         .out = &o->load.requests,
         .value = "N",
         .def = "100",
         .min = 1,
         .max = 1e9,
         .given_out = &o->load.requests_given,
         .doc = "How many; with --duration or --trace alone, as many as those give."},
        {.name = "duration",
         .type = DSI_ARG_REAL,
         .out = &o->load.duration,
         .value = "SECONDS",
         .def = "0",
         .max = 1e7,
         .doc = "No request begins later. 0: any time."},
        {.name = "clients",
         .type = DSI_ARG_INT,
         .out = &o->load.clients,
         .value = "N",
         .def = "16",
         .min = 1,
         .max = LOAD_MOST_CLIENTS,
         .doc = "Most requests at a time, a connection each."},
        {.name = "rate",
         .type = DSI_ARG_REAL,
         .out = &o->load.rate,
         .value = "R",
         .def = "0",
         .max = 1e6,
         .doc = "Requests a second that arrive by chance (Poisson). 0: one when a client is free."},
        {.name = "prompt_tokens",
         .type = DSI_ARG_TEXT,
         .out = &o->load.prompt_tokens,
         .value = "LENGTHS",
         .def = "uniform:64,256",
         .doc = "N, uniform:LOW,HIGH, normal:MEAN,SD, lognormal:MEDIAN,SIGMA or exp:MEAN. Prompts "
                "and texts are cut to the longest that the server says."},
        {.name = "output_tokens",
         .type = DSI_ARG_TEXT,
         .out = &o->load.output_tokens,
         .value = "LENGTHS",
         .def = "64",
         .doc = "The same of texts, which end there alone (ignore_eos)."},
        {.name = "keep_eos",
         .type = DSI_ARG_SWITCH,
         .out = &o->load.keep_eos,
         .doc = "Let texts end where the model ends them; for servers without ignore_eos."},
        {.name = "shared_prefix",
         .type = DSI_ARG_INT,
         .out = &o->load.shared_prefix,
         .value = "N",
         .def = "0",
         .max = 1e6,
         .doc = "Tokens at the begin of each prompt, before its own, that others have, too."},
        {.name = "prefixes",
         .type = DSI_ARG_INT,
         .out = &o->load.prefixes,
         .value = "N",
         .def = "1",
         .min = 1,
         .max = 1e6,
         .doc = "How many different ones of these there are."},
        {.name = "trace",
         .type = DSI_ARG_TEXT,
         .out = &o->load.trace,
         .value = "FILE",
         .doc = "Arrivals and lengths instead: lines of JSON with timestamp (ms), input_length, "
                "output_length and hash_ids (of blocks of 512 tokens, as in Mooncake's traces), or "
                "CSV with a head: at (s), prompt, output, or the names of Azure's traces."},
        {.name = "seed",
         .type = DSI_ARG_INT,
         .out = &o->load.seed,
         .value = "N",
         .def = "0",
         .max = 1e15,
         .doc = "Of arrivals, lengths and prompts: the same seed, the same requests."},
        {.name = "slo_ttft",
         .type = DSI_ARG_REAL,
         .out = &o->load.slo_ttft,
         .value = "MS",
         .def = "0",
         .max = 1e9,
         .doc = "Limit of the time to the first token; 0: none. Goodput: requests within limits."},
        {.name = "slo_tpot",
         .type = DSI_ARG_REAL,
         .out = &o->load.slo_tpot,
         .value = "MS",
         .def = "0",
         .max = 1e9,
         .doc = "Limit of the time per token after it, in the mean of a text."},
        {.name = "slo_e2e",
         .type = DSI_ARG_REAL,
         .out = &o->load.slo_e2e,
         .value = "MS",
         .def = "0",
         .max = 1e9,
         .doc = "Limit of the time to the end."},
        {.name = "timeout_seconds",
         .type = DSI_ARG_INT,
         .out = &o->load.timeout_seconds,
         .value = "N",
         .def = "600",
         .min = 1,
         .max = 1e6,
         .doc = "A request that takes longer has failed."},
        {.name = "html",
         .type = DSI_ARG_TEXT,
         .out = &o->load.html,
         .value = "FILE",
         .doc = "Also write a page with plots, one file."},
        {.name = "overwrite",
         .type = DSI_ARG_SWITCH,
         .out = &o->load.overwrite,
         .doc = "Let --html replace a file that is there and that it did not write."},
        {.type = DSI_ARG_HEADING, .doc = "Output"},
        {.name = "bw_unit",
         .type = DSI_ARG_TEXT,
         .out = &o->unit,
         .value = "UNIT",
         .def = "Gbps",
         .choices = "Gbps|GBps",
         .doc = "Gigabits or gigabytes a second."},
        {.name = "raw",
         .type = DSI_ARG_SWITCH,
         .out = &o->table.raw,
         .alone = "",
         .doc = "Sizes and times as plain numbers, bytes and microseconds."},
        {.name = "json",
         .type = DSI_ARG_SWITCH,
         .out = &o->json,
         .alone = "",
         .doc = "One JSON object instead of tables."},
    };
    const dsi_args_spec spec = {.usage = "ds_bench [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    bool given[sizeof rows / sizeof rows[0]] = {false};
    for (size_t i = 0; i < spec.n_rows; ++i) {
        rows[i].given_out = rows[i].given_out != NULL ? rows[i].given_out : &given[i];
    }
    DS_TRY(dsi_args_parse_flags(ctx, &spec, argc, argv, help_out));
    DS_TRY(*help_out ? DS_OK : check_mode(ctx, rows, spec.n_rows, o->load.url != NULL));
    return *help_out ? DS_OK : check(ctx, o);
}

/* ---- starting the ranks ---- */

static bool is_launched(void)
{
    static const char *const names[] = {"RANK",     "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK",
                                        "PMI_RANK", "PALS_LOCAL_RANKID",    "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        if (getenv(names[i]) != NULL) {
            return true;
        }
    }
    return false;
}

/* Becomes `deepspeed [--num_gpus N] ds_bench FLAGS`; the launcher lies beside this program. */
static int launch(ds_ctx *ctx, const options *o, int argc, char **argv)
{
    char self[PATH_BYTES];
    char launcher[PATH_BYTES + 16];
    char number[24];
    char *words[MAX_WORDS + 8];
    int n = 0;
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    const char *slash = strrchr(self, '/');
    if (slash == NULL || argc > MAX_WORDS) {
        (void)ds_fail(ctx, DS_ERR_IO, "cannot start myself: %s",
                      slash == NULL ? "/proc/self/exe cannot be read" : "too many words");
        return fail(ctx, EXIT_FAILURE);
    }
    (void)snprintf(launcher, sizeof launcher, "%.*s/deepspeed", (int)(slash - self), self);
    words[n++] = launcher;
    if (o->num_gpus > 0) {
        (void)snprintf(number, sizeof number, "%lld", (long long)o->num_gpus);
        words[n++] = "--num_gpus";
        words[n++] = number;
    }
    words[n++] = self;
    for (int i = 1; i < argc; ++i) {
        words[n++] = argv[i];
    }
    words[n] = NULL;
    (void)execv(launcher, words);
    (void)ds_fail(ctx, DS_ERR_IO, "cannot start %s: %s; start the ranks with mpirun or srun",
                  launcher, strerror(errno));
    return fail(ctx, EXIT_FAILURE);
}

/* ---- measuring ---- */

static ds_status print(ds_ctx *ctx, dsi_buf *text)
{
    const bool failed = text->failed;
    (void)fputs(dsi_buf_text(text), stdout);
    (void)fflush(stdout);
    dsi_buf_clear(text);
    return failed ? ds_fail(ctx, DS_ERR_NOMEM, "no memory for the table") : DS_OK;
}

/* All sizes of one operation; rank 0 prints as it goes. */
static ds_status time_op(const options *o, coll_bench *bench, dsi_comm *comm, coll_bench_op op,
                         dsi_buf *text, coll_bench_row *rows, size_t *n_rows)
{
    const bool prints = comm->rank == 0 && !o->json;
    if (prints) {
        coll_table_heading(text, &o->table, op);
        DS_TRY(print(comm->ctx, text));
    }
    for (uint64_t bytes = o->min_size; bytes <= o->max_size && *n_rows < MAX_ROWS;
         bytes *= (uint64_t)o->step) {
        coll_bench_row *row = &rows[(*n_rows)++];
        DS_TRY(coll_bench_time(bench, op, bytes, row));
        if (prints) {
            coll_table_row(text, &o->table, row);
            DS_TRY(print(comm->ctx, text));
        }
    }
    return DS_OK;
}

static ds_status time_all(const options *o, dsi_comm *comm, coll_bench_row *rows, dsi_buf *text)
{
    coll_bench *bench = NULL;
    size_t n_rows = 0;
    ds_status status = DS_OK;
    DS_TRY(coll_bench_create(comm, &o->bench, &bench));
    for (int op = 0; op < COLL_BENCH_OP_COUNT; ++op) {
        if (o->bench.ops[op] && !(op == COLL_BENCH_PT2PT && comm->size == 1)) {
            DS_TRY_GOTO(status, time_op(o, bench, comm, (coll_bench_op)op, text, rows, &n_rows),
                        done);
        }
    }
    if (comm->rank == 0 && o->json) {
        coll_table_json(text, &o->table, rows, n_rows);
        status = print(comm->ctx, text);
    }
done:
    coll_bench_destroy(&bench);
    return status;
}

static ds_status run_collectives(options *o, dsi_comm *comm)
{
    dsi_buf text = dsi_buf_make(TEXT_BYTES);
    coll_bench_row *rows = calloc(MAX_ROWS, sizeof *rows);
    if (rows == NULL) {
        return ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory for the results");
    }
    o->table.dtype = o->bench.dtype;
    o->table.n_ranks = comm->size;
    o->table.transport = comm->transport->name;
    o->table.trials = o->bench.trials;
    o->table.warmups = o->bench.warmups;
    o->table.private_operands = o->bench.private_operands;
    o->table.mpi = o->bench.mpi != NULL;
    o->table.bound = o->bench.bound;
    const ds_status status = time_all(o, comm, rows, &text);
    dsi_buf_free(&text);
    free(rows);
    return status;
}

/* MPI's own collectives, where mpirun started this process and its module is installed. */
static ds_status find_mpi(ds_ctx *ctx, options *o, const dsi_comm_world *world, char *library,
                          size_t n, bool *begun_out)
{
    char error[DSI_MPI_PEER_ERROR_BYTES] = "";
    if (o->no_mpi || (getenv("OMPI_COMM_WORLD_RANK") == NULL && getenv("PMI_RANK") == NULL)) {
        return DS_OK;
    }
    if (dsi_comm_mpi_peer(ctx, &o->bench.mpi) < 0) {
        if (world->rank == 0) {
            ds_log(ctx, DS_LOG_WARN, "no comparison with MPI: %s", ds_ctx_error(ctx));
        }
        o->bench.mpi = NULL;
        return DS_OK;
    }
    const int begun = o->bench.mpi->begin(world->rank, world->size, error);
    if (begun < 0) {
        return ds_fail(ctx, DS_ERR_PEER, "%s; --no_mpi leaves the comparison out", error);
    }
    *begun_out = begun > 0;
    o->bench.mpi->library(library, n);
    o->table.mpi_library = library;
    return DS_OK;
}

static ds_status run(ds_ctx *ctx, options *o, const dsi_comm_world *world)
{
    dsi_comm *comm = NULL;
    char library[128] = "";
    bool begun = false;
    DS_TRY(dsi_comm_open(ctx, world, &comm));
    ds_status status = find_mpi(ctx, o, world, library, sizeof library, &begun);
    status = status < 0 ? status : run_collectives(o, comm);
    if (status < 0) {
        dsi_comm_abort(comm, ds_ctx_error(ctx));
    } else if (begun) {
        o->bench.mpi->end();
    }
    dsi_comm_destroy(&comm);
    return status;
}

static int load(ds_ctx *ctx, options *o)
{
    size_t n_failed = 0;
    o->load.warmups = o->warmups;
    o->load.json = o->json;
    const ds_status status = load_main(ctx, &o->load, &n_failed);
    return status < 0     ? fail(ctx, status == DS_ERR_ARG ? EXIT_USAGE : EXIT_FAILURE)
           : n_failed > 0 ? EXIT_FAILURE
                          : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    output_guard("ds_bench");
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    dsi_comm_world world = {0};
    options o = {0};
    bool help = false;
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    int code = EXIT_SUCCESS;
    if (parse(ctx, argc, argv, &o, &help) < 0) {
        code = fail(ctx, EXIT_USAGE);
    } else if (!help && o.load.url != NULL) {
        code = load(ctx, &o);
    } else if (!help && o.profile.file != NULL) {
        code = profile_run(ctx, &o.profile, is_launched()) < 0 ? fail(ctx, EXIT_FAILURE) : code;
    } else if (!help && !is_launched()) {
        code = launch(ctx, &o, argc, argv);
    } else if (!help && (dsi_comm_world_read(ctx, &world) < 0 || run(ctx, &o, &world) < 0)) {
        code = fail(ctx, EXIT_FAILURE);
    }
    ds_ctx_destroy(&ctx);
    return code;
}
