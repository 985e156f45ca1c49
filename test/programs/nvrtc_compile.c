/* SPDX-License-Identifier: Apache-2.0 */
/* Custom operators' sources compiled by whichever NVRTC the linker finds, as the module does it
 * (driver/nvrtc.c, custom_source.c), without a driver: machine code for devices with the functions
 * in it, for each architecture that the library has from sm_80 on and each dtype; every option that
 * is allowed is one of NVRTC's; errors are the compiler's, whole. For test/long/nvrtc_real.sh.
 * Usage: nvrtc_compile [FILE FUNCTION…]: a source of other operators beside those of cuda_op.h. */
#include "accel/cuda/driver/custom_kernel.h"
#include "common/cuda_op.h"

#include <elf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_ARCH = 80, MOST_ARCHS = 64, EM_CUDA_DEVICE = 190 };

static const dsc_nvrtc_api *nvrtc;
static uint32_t n_compiled;

/* There is no driver that could need older ones. */
const char *const *dsc_libraries_for(const char *const *names)
{
    return names;
}

/* The module's own goes through the library's table (driver_load.c). */
ds_status dsc_fail(ds_ctx *ctx, ds_status status, const char *format, ...)
{
    va_list args;
    (void)ctx;
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
    return status;
}

static _Noreturn void give_up(const char *what, const dsc_nvrtc_made *made)
{
    (void)fprintf(stderr, "nvrtc_compile: %s: %s\n%s\n", what, made->why,
                  made->log != NULL ? made->log : "");
    exit(EXIT_FAILURE);
}

static bool has_text(const void *bytes, size_t n, const char *text)
{
    return memmem(bytes, n, text, strlen(text)) != NULL;
}

static void check_code(const ds_cuda_kernel *row, int arch, const dsc_nvrtc_made *made)
{
    Elf64_Ehdr h = {.e_machine = 0};
    char symbol[160];
    if (made->code == NULL) {
        give_up(row->name, made);
    }
    memcpy(&h, made->code, made->code_bytes < sizeof h ? made->code_bytes : sizeof h);
    bool right = memcmp(h.e_ident, ELFMAG, SELFMAG) == 0 && h.e_machine == EM_CUDA_DEVICE;
    for (uint32_t f = 0; row->functions[f] != NULL && right; ++f) {
        (void)snprintf(symbol, sizeof symbol, ".text.%s", row->functions[f]);
        right = has_text(made->code, made->code_bytes, symbol);
    }
    if (!right) {
        (void)fprintf(stderr, "nvrtc_compile: %s for sm_%d: %zu bytes that are no code of it\n",
                      row->functions[0], arch, made->code_bytes);
        exit(EXIT_FAILURE);
    }
    n_compiled += 1;
}

static dsc_nvrtc_made compile(const ds_op *op, const ds_cuda_kernel *row, ds_dtype dtype, int arch)
{
    const ds_meta metas[2] = {{dtype, ds_shape_1d(8)}, {dtype, ds_shape_1d(8)}};
    const ds_kernel_sig sig = {
        .op = op, .n_in = op->n_in_max, .n_out = 1, .in = metas, .out = metas, .n_threads = 1};
    char *source = NULL;
    static dsc_custom_build build;
    dsc_nvrtc_made made;
    if (dsc_custom_read(NULL, op, row, &source) < 0 ||
        dsc_custom_describe(NULL, row, &sig, source, arch, &build) < 0) {
        exit(EXIT_FAILURE);
    }
    dsc_nvrtc_compile(nvrtc, &build.job, &made);
    free(build.key);
    free(source);
    return made;
}

static void compile_well(const ds_op *op, const ds_cuda_kernel *row, ds_dtype dtype, int arch)
{
    dsc_nvrtc_made made = compile(op, row, dtype, arch);
    check_code(row, arch, &made);
    if (made.log != NULL && made.log[0] != '\0') {
        give_up("a warning", &made);
    }
    free(made.code);
    free(made.log);
}

static void try_options(int arch)
{
    static const char *const allowed[] = {"-DNAME=3",
                                          "--use_fast_math",
                                          "-use_fast_math",
                                          "--fmad=true",
                                          "-fmad=true",
                                          "--ftz=true",
                                          "-ftz=true",
                                          "--prec-div=false",
                                          "-prec-div=false",
                                          "--prec-sqrt=false",
                                          "-prec-sqrt=false",
                                          "--maxrregcount=32",
                                          "-maxrregcount=32",
                                          "-w",
                                          "-lineinfo",
                                          "--extra-device-vectorization",
                                          "--disable-warnings",
                                          "--generate-line-info",
                                          "-extra-device-vectorization"};
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; ++i) {
        const char *const options[] = {allowed[i], NULL};
        ds_cuda_kernel row = *cuda_wave.cuda[0];
        row.options = options;
        dsc_nvrtc_made made = compile(&cuda_wave, &row, DS_DTYPE_F32, arch);
        if (made.code == NULL) {
            give_up(allowed[i], &made);
        }
        check_code(&row, arch, &made);
        free(made.code);
        free(made.log);
    }
}

static void try_errors(int arch)
{
    static const struct {
        const char *source, *words[3];
    } rows[] = {
        {"extern \"C\" __global__ void wave(int n)\n{\n first_unknown(n);\n "
         "second_unknown(n);\n}\n",
         {"first_unknown", "second_unknown", "cuda_wave(3)"}},
        {"extern \"C\" __global__ void wave(int n) { n = ; }\n", {"error", "cuda_wave(1)", "wave"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        ds_cuda_kernel row = *cuda_wave.cuda[0];
        row.source = rows[i].source;
        dsc_nvrtc_made made = compile(&cuda_wave, &row, DS_DTYPE_F32, arch);
        bool right = made.code == NULL && made.log != NULL &&
                     strstr(made.why, "nvrtcCompileProgram: NVRTC_ERROR_COMPILATION (6)") != NULL;
        for (int w = 0; w < 3 && right; ++w) {
            right = strstr(made.log, rows[i].words[w]) != NULL;
        }
        if (!right) {
            give_up("a wrong source", &made);
        }
        free(made.log);
    }
}

int main(int argc, char **argv)
{
    const char *why = NULL;
    char version[128];
    int archs[MOST_ARCHS];
    int n = 0;
    nvrtc = dsc_nvrtc_load(&why);
    if (nvrtc == NULL) {
        (void)fprintf(stderr, "nvrtc_compile: %s\n", why);
        return 77;
    }
    if (nvrtc->n_archs(&n) != DSC_NVRTC_SUCCESS || n > MOST_ARCHS ||
        nvrtc->archs(archs) != DSC_NVRTC_SUCCESS) {
        (void)fprintf(stderr, "nvrtc_compile: no list of architectures\n");
        return EXIT_FAILURE;
    }
    int last = 0;
    for (int i = 0; i < n; ++i) {
        if (archs[i] < LEAST_ARCH) {
            continue;
        }
        last = archs[i];
        compile_well(&cuda_wave, cuda_wave.cuda[0], DS_DTYPE_F32, last);
        compile_well(&cuda_wave, cuda_wave.cuda[0], DS_DTYPE_BF16, last);
        compile_well(&cuda_wave, cuda_wave.cuda[0], DS_DTYPE_F16, last);
        compile_well(&cuda_shares, cuda_shares.cuda[0], DS_DTYPE_F32, last);
        if (argc > 2) {
            ds_op op = cuda_wave;
            op.n_in_max = 2;
            const ds_cuda_kernel row = {
                .name = "file", .file = argv[1], .functions = (const char *const *)(argv + 2)};
            compile_well(&op, &row, DS_DTYPE_F32, last);
        }
    }
    try_options(last);
    try_errors(last);
    dsc_nvrtc_say(version, sizeof version);
    (void)printf("%s: %u sources compiled, up to sm_%d\n", version, n_compiled, last);
    return EXIT_SUCCESS;
}
