/* SPDX-License-Identifier: Apache-2.0 */
/* See nvrtc.h. */
#include "accel/cuda/driver/nvrtc.h"

#include "accel/cuda/driver/driver_device.h"
#include "accel/cuda/driver/library_load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static struct {
    pthread_once_t once;
    dsc_nvrtc_api api;
    bool loaded;
    int major, minor;
    char build[96]; /* which of the libraries of that version it is */
    char why[512];
} library = {.once = PTHREAD_ONCE_INIT};

/* The version is that of the toolkit: an update of it has the same. */
static void find_build(void)
{
    Dl_info info;
    struct stat st;
    if (dladdr((void *)(uintptr_t)library.api.version, &info) != 0 && info.dli_fname != NULL &&
        stat(info.dli_fname, &st) == 0) {
        (void)snprintf(library.build, sizeof library.build, "%lld bytes, %lld.%09ld",
                       (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    }
}

static void load(void)
{
    static const char *const all[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};
    const char *const *files = dsc_libraries_for(all);
    static const dsc_symbol symbols[] = {
#define X(type, member, symbol, params) {#symbol, offsetof(dsc_nvrtc_api, member)},
        DSC_NVRTC_LIST(X)
#undef X
    };
    const dsc_library_row row = {
        .what = "NVRTC",
        .files = files,
        .package = files == all ? "the package cuda-nvrtc-13-0 of NVIDIA's repository, or "
                                  "nvidia-cuda-nvrtc of PyPI, has libnvrtc.so.13"
                                : "the package cuda-nvrtc-12-8 of NVIDIA's repository, or "
                                  "nvidia-cuda-nvrtc-cu12 of PyPI, has libnvrtc.so.12, which this "
                                  "driver needs",
        .old = "that of CUDA 12.0 or newer",
        .symbols = symbols,
        .n_symbols = sizeof symbols / sizeof symbols[0]};
    if (!dsc_library_load(&row, &library.api, library.why, sizeof library.why)) {
        return;
    }
    const dsc_nvrtc_result result = library.api.version(&library.major, &library.minor);
    library.loaded = result == DSC_NVRTC_SUCCESS;
    find_build();
    if (!library.loaded) {
        (void)snprintf(library.why, sizeof library.why, "nvrtcVersion: %.100s",
                       library.api.text(result));
    }
}

const char *dsc_nvrtc_build(void)
{
    return library.build;
}

const dsc_nvrtc_api *dsc_nvrtc_load(const char **why_out)
{
    (void)pthread_once(&library.once, load);
    *why_out = library.why;
    return library.loaded ? &library.api : NULL;
}

void dsc_nvrtc_say(char *text_out, size_t n)
{
    const char *why = NULL;
    if (dsc_nvrtc_load(&why) != NULL) {
        (void)snprintf(text_out, n, "NVRTC %d.%d", library.major, library.minor);
    } else {
        (void)snprintf(text_out, n, "%s", why);
    }
}

int dsc_nvrtc_arch(const dsc_nvrtc_api *nvrtc, int major, int minor, char *known_out, size_t n)
{
    int n_archs = 0;
    int best = 0;
    size_t used = 0;
    known_out[0] = '\0';
    int *archs = nvrtc->n_archs(&n_archs) == DSC_NVRTC_SUCCESS && n_archs > 0
                     ? calloc((size_t)n_archs, sizeof *archs)
                     : NULL;
    if (archs == NULL || nvrtc->archs(archs) != DSC_NVRTC_SUCCESS) {
        free(archs);
        return 0;
    }
    for (int i = 0; i < n_archs; ++i) {
        const bool runs = archs[i] / 10 == major && archs[i] % 10 <= minor;
        best = runs && archs[i] > best ? archs[i] : best;
        if (used < n) {
            used += (size_t)snprintf(known_out + used, n - used, "%ssm_%d", i > 0 ? ", " : "",
                                     archs[i]);
        }
    }
    free(archs);
    return best;
}

/* NULL where it has none, or no memory for it. */
static char *take_log(const dsc_nvrtc_api *nvrtc, dsc_nvrtc_program program)
{
    size_t bytes = 0;
    if (nvrtc->log_bytes(program, &bytes) != DSC_NVRTC_SUCCESS || bytes <= 1) {
        return NULL;
    }
    char *log = malloc(bytes);
    if (log != NULL && nvrtc->log(program, log) != DSC_NVRTC_SUCCESS) {
        free(log);
        return NULL;
    }
    return log;
}

static dsc_nvrtc_result take_code(const dsc_nvrtc_api *nvrtc, dsc_nvrtc_program program,
                                  dsc_nvrtc_made *made)
{
    dsc_nvrtc_result result = nvrtc->code_bytes(program, &made->code_bytes);
    made->code =
        result == DSC_NVRTC_SUCCESS && made->code_bytes > 0 ? malloc(made->code_bytes) : NULL;
    if (made->code == NULL) {
        return result != DSC_NVRTC_SUCCESS ? result : DSC_NVRTC_OUT_OF_MEMORY;
    }
    result = nvrtc->code(program, made->code);
    if (result != DSC_NVRTC_SUCCESS) {
        free(made->code);
        made->code = NULL;
    }
    return result;
}

void dsc_nvrtc_compile(const dsc_nvrtc_api *nvrtc, const dsc_nvrtc_job *job,
                       dsc_nvrtc_made *made_out)
{
    const char *header = dsc_device_header;
    const char *header_name = DSC_DEVICE_HEADER_NAME;
    const char *options[DSC_NVRTC_MOST_OPTIONS + 1];
    char arch[40];
    dsc_nvrtc_program program = NULL;
    *made_out = (dsc_nvrtc_made){.code = NULL};
    (void)snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d", job->arch);
    options[0] = arch;
    for (uint32_t i = 0; i < job->n_options; ++i) {
        options[i + 1] = job->options[i];
    }
    const char *call = "nvrtcCreateProgram";
    dsc_nvrtc_result result =
        nvrtc->create(&program, job->source, job->name, 1, &header, &header_name);
    if (result == DSC_NVRTC_SUCCESS) {
        call = "nvrtcCompileProgram";
        result = nvrtc->compile(program, (int)job->n_options + 1, options);
        made_out->log = take_log(nvrtc, program);
    }
    if (result == DSC_NVRTC_SUCCESS) {
        call = "nvrtcGetCUBIN";
        result = take_code(nvrtc, program, made_out);
    }
    if (result != DSC_NVRTC_SUCCESS) {
        (void)snprintf(made_out->why, sizeof made_out->why, "%s: %.150s (%d)", call,
                       nvrtc->text(result), result);
    }
    if (program != NULL) {
        (void)nvrtc->destroy(&program);
    }
}
