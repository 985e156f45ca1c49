/* SPDX-License-Identifier: Apache-2.0 */
/* ds_report: what this machine has and what this installation can do with it. */
#include "accel/accel.h"
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/build_id.h"
#include "base/processor.h"
#include "comm/comm.h"
#include "comm/net.h"
#include "comm/shm.h"
#include "common/args.h"
#include "common/machine.h"
#include "common/output.h"
#include "common/size_text.h"
#include "io/link.h"
#include "monitor/html.h"
#include "monitor/run_page.h"
#include "op/isa.h"
#include "op/ops.h"

#include <deepspeed/aio.h>
#include <deepspeed/context.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAME_WIDTH = 33, LINE_BYTES = 4096, SMALL_SHM = 512 };

typedef struct options {
    bool hide_operator_status, hide_errors_and_warnings;
    dsi_arg_list runs;
    const char *output;
    bool overwrite;
} options;

static const char about[] =
    "Reports what this machine has (processor, memory, disks, compilers, MPI, CUDA) and what this "
    "installation can do with it: operators by instruction set, what is compiled at first use, and "
    "each backend, with the reason where one cannot be used. With --runs: the page of a run of "
    "ds_train, or of several side by "
    "side.";

static void row(const char *name, const char *format, ...) DS_PRINTF(2, 3);
static void row(const char *name, const char *format, ...)
{
    va_list args;
    const int n = printf("%s ", name);
    for (int i = n; i < NAME_WIDTH; ++i) {
        (void)putchar('.');
    }
    (void)putchar(' ');
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    (void)putchar('\n');
}

static void heading(const char *text)
{
    (void)printf("--------------------------------------------------\n%s\n"
                 "--------------------------------------------------\n",
                 text);
}

/* First line that a command prints; where a program is that prints none; "not found" else. */
static void version_row(const char *name, const char *command)
{
    char line[LINE_BYTES] = "";
    char quiet[LINE_BYTES];
    (void)snprintf(quiet, sizeof quiet, "{ { %s; } || command -v %.*s; } 2>/dev/null", command,
                   (int)strcspn(command, " "), command);
    FILE *pipe = popen(quiet, "r");
    if (pipe != NULL) {
        if (fgets(line, sizeof line, pipe) == NULL) {
            line[0] = '\0';
        }
        (void)pclose(pipe);
    }
    line[strcspn(line, "\n")] = '\0';
    row(name, "%s", line[0] != '\0' ? line : "not found");
}

/* ---- operators ------------------------------------------------------------------------------- */

static void report_operators(void)
{
    uint32_t n_ops = 0;
    uint32_t n_kernels[DSI_ISA_LEVELS] = {0};
    for (uint32_t i = 0; dsi_op_all()[i] != NULL; ++i) {
        n_ops += (dsi_op_all()[i]->flags & DS_OP_COMM) == 0 ? 1 : 0;
    }
    for (uint32_t i = 0; dsi_cpu_kernel_list(i) != NULL; ++i) {
        for (uint32_t level = 0; level < DSI_ISA_LEVELS; ++level) {
            n_kernels[level] += dsi_cpu_kernel_list(i)->needs == dsi_isa_level(level) ? 1 : 0;
        }
    }
    heading("Native operator report");
    (void)printf(
        "Operators are built with the library; of custom ones CUDA source is compiled on first "
        "use.\n");
    (void)printf("%-22s %-10s %s\n", "instruction set", "kernels", "usable here");
    for (uint32_t level = 0; level < DSI_ISA_LEVELS; ++level) {
        (void)printf("%-22s %-10u %s\n", dsi_isa_level_name(level), n_kernels[level],
                     dsi_cpu_has_level(level) ? "[OKAY]" : "[NO]");
    }
    (void)printf("%u operators; each has a plain C kernel\n", n_ops);
}

static void report_accelerators(void)
{
    heading("Accelerators (--accelerator)");
    uint32_t n = 0;
    const dsi_accel_row *rows = dsi_accel_rows(&n);
    const dsi_accel_row *best = dsi_accel_auto(rows, n);
    for (uint32_t i = 0; i < n; ++i) {
        row(rows[i].accel->name, "%s%s", rows[i].accel->doc,
            &rows[i] == best        ? "; auto takes it"
            : rows[i].priority == 0 ? "; only by name"
                                    : "");
    }
    const dsi_accel_module *modules = dsi_accel_modules(&n);
    for (uint32_t i = 0; i < n; ++i) {
        row(modules[i].name, "%s; auto takes it where it finds a device (Backends)",
            modules[i].doc);
    }
    if (best != NULL) {
        row("auto", "%s: %s, the best of those that are built in", best->accel->name, best->why);
    }
}

/* ---- machine --------------------------------------------------------------------------------- */

static void cpu_row(void)
{
    char flags[LINE_BYTES] = "";
    size_t n = 0;
    const char *name = NULL;
    for (size_t i = 0; (name = dsi_processor_feature_name(i)) != NULL && n < sizeof flags; ++i) {
        if (dsi_processor_has(1u << i)) {
            n += (size_t)snprintf(flags + n, sizeof flags - n, "%s%s", n > 0 ? " " : "", name);
        }
    }
    row("processor", "%s", dsi_processor_get()->name);
    row("processor features", "%s", flags);
    row("instruction set in use", "%s", dsi_isa_print(dsi_cpu_isa()).text);
}

static void read_text(const char *path, char *text, size_t n)
{
    FILE *file = fopen(path, "r");
    text[0] = '\0';
    if (file != NULL) {
        if (fgets(text, (int)n, file) == NULL) {
            text[0] = '\0';
        }
        (void)fclose(file);
    }
    text[strcspn(text, "\n")] = '\0';
}

static void disk_row(const char *name, const char *path)
{
    struct statvfs st;
    char free_text[32];
    char whole_text[32];
    if (statvfs(path, &st) != 0) {
        row(name, "not there");
        return;
    }
    row(name, "%s free of %s",
        size_text((uint64_t)st.f_bavail * st.f_frsize, free_text, sizeof free_text),
        size_text((uint64_t)st.f_blocks * st.f_frsize, whole_text, sizeof whole_text));
}

static void report_machine(const options *o)
{
    struct utsname u;
    struct sysinfo info;
    struct statvfs shm;
    char text[LINE_BYTES];
    char a[32];
    char b[32];
    heading("Machine");
    if (uname(&u) == 0) {
        row("host", "%s, %s %s %s", u.nodename, u.sysname, u.release, u.machine);
    }
    cpu_row();
    row("cores of this process", "%u of %ld", dsi_processor_n_cores(),
        sysconf(_SC_NPROCESSORS_CONF));
    if (sysinfo(&info) == 0) {
        row("memory", "%s free of %s",
            size_text((uint64_t)info.freeram * info.mem_unit, a, sizeof a),
            size_text((uint64_t)info.totalram * info.mem_unit, b, sizeof b));
    }
    read_text("/sys/fs/cgroup/memory.max", text, sizeof text);
    row("memory limit of the group", "%s", text[0] != '\0' ? text : "none known");
    read_text("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text);
    row("huge pages", "%s", text[0] != '\0' ? text : "unknown");
    disk_row("shared memory (/dev/shm) size", "/dev/shm");
    if (!o->hide_errors_and_warnings && statvfs("/dev/shm", &shm) == 0 &&
        (uint64_t)shm.f_blocks * shm.f_frsize < (uint64_t)SMALL_SHM << 20) {
        (void)printf(
            " [NOTE] /dev/shm is small. This library does not use it: ranks pass memory as "
            "descriptors. MPI may.\n");
    }
    disk_row("disk of this folder", ".");
    disk_row("disk of /tmp", "/tmp");
}

/* ---- software -------------------------------------------------------------------------------- */

static void report_software(void)
{
    char build[80];
    heading("Software");
    dsi_build_id(build, sizeof build);
    row("library", "%s, build %s", ds_version_text(), build);
    version_row("C compiler", "cc --version");
    version_row(
        "nvcc",
        "env PATH=$PATH:/usr/local/cuda/bin nvcc --version | sed -n 's/.*release/release/p'");
    version_row("mpirun", "mpirun --version");
    version_row("srun", "srun --version");
    version_row("pdsh", "pdsh -V");
    version_row("ssh", "ssh -V 2>&1");
}

/* ---- backends -------------------------------------------------------------------------------- */

static ds_status probe_shm(ds_ctx *ctx, const char *unused)
{
    char job[64];
    dsi_comm *comm = NULL;
    (void)unused;
    (void)snprintf(job, sizeof job, "ds_report-%ld", (long)getpid());
    const dsi_shm_params params = {.size = 1, .job = job, .timeout = 5.0};
    DS_TRY(dsi_comm_shm_open(ctx, &params, &comm));
    dsi_comm_destroy(&comm);
    return DS_OK;
}

/* The first module with such a file. What there is stands in the message, as an error would, or
 * behind it. */
static ds_status probe_accelerator(ds_ctx *ctx, const char *file)
{
    uint32_t n = 0;
    char text[LINE_BYTES] = "";
    char line[LINE_BYTES] = "";
    ds_status status = DS_OK;
    const ds_accel *accel = NULL;
    const dsi_accel_module *modules = dsi_accel_modules(&n);
    for (uint32_t i = 0; i < n && status >= 0; ++i) {
        if (strcmp(modules[i].file, file) == 0) {
            status = dsi_accel_probe(ctx, &modules[i], text, sizeof text, &accel);
        }
    }
    (void)snprintf(line, sizeof line, "%s", status < 0 ? ds_ctx_error(ctx) : "");
    size_t used = strlen(line);
    for (char *rest = NULL, *at = strtok_r(text, "\n", &rest); at != NULL && used < sizeof line;
         at = strtok_r(NULL, "\n", &rest)) {
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s", used > 0 ? "; " : "", at);
    }
    (void)ds_fail(ctx, DS_ERR_STATE, "%s", line);
    return status;
}

static ds_status probe_uring(ds_ctx *ctx, const char *unused)
{
    ds_aio_params params = ds_aio_params_default();
    ds_aio_handle *handle = NULL;
    (void)unused;
    params.backend = DS_AIO_URING;
    DS_TRY(ds_aio_handle_create(ctx, &params, &handle));
    ds_aio_handle_destroy(&handle);
    return DS_OK;
}

/* Where this machine has no authorities to trust, the message says so. */
static ds_status probe_https(ds_ctx *ctx, const char *unused)
{
    const dsi_trust_params any = {.insecure = true};
    const dsi_trust_params usual = {0};
    dsi_trust *trust = NULL;
    (void)unused;
    DS_TRY(dsi_trust_open(ctx, &any, &trust));
    dsi_trust_close(&trust);
    if (dsi_trust_open(ctx, &usual, &trust) >= 0) {
        dsi_trust_close(&trust);
    }
    return DS_OK;
}

/* Probes in a child process: a module that is loaded cannot be taken out, and may kill. */
static void probe_row(const options *o, const char *name,
                      ds_status (*probe)(ds_ctx *ctx, const char *file), const char *file)
{
    int ends[2];
    char why[LINE_BYTES] = "";
    int code = 1;
    (void)fflush(stdout);
    if (pipe(ends) != 0) {
        row(name, "[FAIL] no pipe");
        return;
    }
    const pid_t child = fork();
    if (child == 0) {
        const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
        ds_ctx *ctx = NULL;
        const ds_status status = ds_ctx_create(&params, &ctx) < 0 ? DS_ERR_NOMEM : probe(ctx, file);
        if (ds_ctx_error(ctx)[0] != '\0' &&
            write(ends[1], ds_ctx_error(ctx), strlen(ds_ctx_error(ctx))) < 0) {
            _exit(2);
        }
        _exit(status < 0 ? 1 : 0);
    }
    (void)close(ends[1]);
    const ssize_t n = read(ends[0], why, sizeof why - 1);
    why[n > 0 ? n : 0] = '\0';
    (void)close(ends[0]);
    if (child < 0 || waitpid(child, &code, 0) < 0) {
        code = 1;
    }
    if (child >= 0 && WIFSIGNALED(code)) {
        const size_t used = strlen(why);
        (void)snprintf(why + used, sizeof why - used, "%sthe probe was killed by signal %d (%s)",
                       used > 0 ? "; " : "", WTERMSIG(code), strsignal(WTERMSIG(code)));
    }
    const bool says = why[0] != '\0' && (code == 0 || !o->hide_errors_and_warnings);
    row(name, "%s%s%s", code == 0 ? "[OKAY]" : "[NO]", says ? " " : "", says ? why : "");
}

static void report_backends(const options *o)
{
    heading("Backends");
    row("accelerator cpu", "[OKAY]");
    uint32_t n = 0;
    const dsi_accel_module *modules = dsi_accel_modules(&n);
    for (uint32_t i = 0; i < n; ++i) {
        char name[64];
        (void)snprintf(name, sizeof name, "accelerator %s", modules[i].name);
        probe_row(o, name, probe_accelerator, modules[i].file);
    }
    probe_row(o, "ranks: shared memory", probe_shm, NULL);
    probe_row(o, "ranks: Open MPI", dsi_comm_net_probe, "libdeepspeed_mpi_openmpi.so");
    probe_row(o, "ranks: MPICH", dsi_comm_net_probe, "libdeepspeed_mpi_mpich.so");
    probe_row(o, "ranks: UCX", dsi_comm_net_probe, "libdeepspeed_ucx.so");
    probe_row(o, "https of clients: GnuTLS", probe_https, NULL);
    probe_row(o, "file I/O: io_uring", probe_uring, NULL);
    row("file I/O: threads", "[OKAY]");
}

/* ---- pages of runs --------------------------------------------------------------------------- */

static ds_status check_runs(ds_ctx *ctx, const options *o)
{
    if (o->runs.n == 0) {
        return ds_fail(ctx, DS_ERR_ARG, "--output needs --runs RUN…: the runs whose page it is");
    }
    if (o->runs.n > DSI_RUN_PAGE_MOST) {
        return ds_fail(ctx, DS_ERR_ARG, "--runs: %zu runs; a page has room for %d", o->runs.n,
                       DSI_RUN_PAGE_MOST);
    }
    if (o->output == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--runs needs --output FILE.html");
    }
    DS_TRY(output_not_input(ctx, o->output, (const char *const *)o->runs.items, o->runs.n));
    if (o->overwrite || strcmp(o->output, "-") == 0) {
        return output_check(ctx, o->output);
    }
    /* a page of one run may be ds_train's own, or of a run whose history is gone */
    return o->runs.n == 1 ? output_free(ctx, o->output, NULL, false)
                          : dsi_html_check(ctx, o->output, DSI_RUN_COMPARE_KIND);
}

static ds_status report_runs(ds_ctx *ctx, const options *o)
{
    dsi_run_history *runs[DSI_RUN_PAGE_MOST] = {NULL};
    char *text = NULL;
    DS_TRY(check_runs(ctx, o));
    ds_status status = DS_OK;
    for (size_t i = 0; i < o->runs.n && status >= 0; ++i) {
        status = dsi_run_history_read(ctx, o->runs.items[i], &runs[i]);
    }
    if (status >= 0) {
        status = o->runs.n == 1 ? dsi_run_page(ctx, runs[0], 0.0, &text)
                                : dsi_run_page_compare(ctx, runs, o->runs.n, &text);
    }
    if (status >= 0) {
        status = output_put(ctx, o->output, text, strlen(text));
    }
    for (size_t i = 0; i < o->runs.n; ++i) {
        dsi_run_history_destroy(&runs[i]);
    }
    free(text);
    return status;
}

static void report_all(const options *o)
{
    if (!o->hide_operator_status) {
        report_operators();
        report_accelerators();
    }
    report_machine(o);
    report_software();
    report_backends(o);
}

int main(int argc, char **argv)
{
    output_guard("ds_report");
    options o = {0};
    const dsi_arg rows[] = {
        {.name = "hide_operator_status",
         .type = DSI_ARG_SWITCH,
         .out = &o.hide_operator_status,
         .doc = "Leave out the operators."},
        {.name = "hide_errors_and_warnings",
         .type = DSI_ARG_SWITCH,
         .out = &o.hide_errors_and_warnings,
         .doc = "Leave out the reasons why something cannot be used."},
        {.name = "runs",
         .type = DSI_ARG_LIST,
         .out = &o.runs,
         .value = "RUN…",
         .doc = "Output folders or --metrics files of ds_train: writes their page to --output "
                "instead. Several (at most 12) are compared: curves in the same charts, figures in "
                "a table, and what their configurations differ in."},
        {.name = "output",
         .type = DSI_ARG_TEXT,
         .out = &o.output,
         .value = "FILE.html",
         .doc = "That page; - is standard output. A comparison that is there is replaced."},
        {.name = "overwrite",
         .type = DSI_ARG_SWITCH,
         .out = &o.overwrite,
         .doc = "Replace whatever file is there."},
    };
    const dsi_args_spec spec = {.usage = "ds_report [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0]};
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    bool help = false;
    if (dsi_args_parse_flags(ctx, &spec, argc, argv, &help) < 0) {
        (void)fprintf(stderr, "ds_report: %s\n", ds_ctx_error(ctx));
        dsi_arg_list_free(&o.runs);
        ds_ctx_destroy(&ctx);
        return 2;
    }
    int code = EXIT_SUCCESS;
    if (!help && (o.runs.n > 0 || o.output != NULL)) {
        if (report_runs(ctx, &o) < 0) {
            (void)fprintf(stderr, "ds_report: %s\n", ds_ctx_error(ctx));
            code = EXIT_FAILURE;
        }
    } else if (!help) {
        report_all(&o);
    }
    dsi_arg_list_free(&o.runs);
    ds_ctx_destroy(&ctx);
    return code;
}
