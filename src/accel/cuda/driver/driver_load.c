/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda, loaded by name, and what it finds. See driver_device.h. */
#include "accel/cuda/driver/custom_kernel.h"
#include "accel/cuda/driver/disk.h"
#include "accel/cuda/driver/driver_device.h"
#include "accel/cuda/driver/group.h"
#include "accel/cuda/driver/health.h"
#include "accel/cuda/driver/library_load.h"
#include "accel/cuda/driver/lt.h"
#include "base/library_open.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_MAJOR = 8 }; /* sm_80: asynchronous copies, mma of bf16 */

static struct {
    pthread_once_t once;
    dsc_driver cu;
    bool loaded;
    bool absent; /* no driver, or one that has no GPU */
    char why[512];
} driver = {.once = PTHREAD_ONCE_INIT};

/* What helps against results of cuInit that a new machine has. */
static const char *remedy_of(dsc_cu_result result)
{
    return result == DSC_CU_SYSTEM_NOT_READY ? "; is nvidia-fabricmanager running?"
           : result == DSC_CU_SYSTEM_DRIVER_MISMATCH
               ? "; libcuda and the kernel's module nvidia are of two versions: load it again, or "
                 "reboot"
           : result == DSC_CU_UNKNOWN ? "; is the kernel's module nvidia-uvm there?"
                                      : "";
}

static void load(void)
{
    static const char *const files[] = {"libcuda.so.1", NULL};
    static const dsc_symbol symbols[] = {
#define X(member, symbol, params) {#symbol, offsetof(dsc_driver, member)},
        DSC_CU_LIST(X)
#undef X
    };
    static const dsc_library_row row = {.what = "CUDA driver",
                                        .files = files,
                                        .package = "NVIDIA's driver package has libcuda.so.1",
                                        .old = "a driver of CUDA 12.0 or newer",
                                        .symbols = symbols,
                                        .n_symbols = sizeof symbols / sizeof symbols[0]};
    if (!dsc_library_load(&row, &driver.cu, driver.why, sizeof driver.why)) {
        char text[256];
        bool is_there = false; /* damaged, or too old */
        driver.absent =
            dsi_library_open(files[0], RTLD_LAZY, &is_there, text, sizeof text) == NULL &&
            !is_there;
        return;
    }
    const dsc_cu_result result = driver.cu.init(0);
    if (result != DSC_CU_SUCCESS) {
        const char *text = NULL;
        (void)driver.cu.error_text(result, &text);
        (void)snprintf(driver.why, sizeof driver.why, "cuInit: %.200s (%d)%s",
                       text != NULL ? text : "unknown error", result, remedy_of(result));
        driver.absent = result == DSC_CU_NO_DEVICE;
        return;
    }
    driver.loaded = true;
}

const dsc_driver *dsc_driver_load(const char **why_out)
{
    (void)pthread_once(&driver.once, load);
    *why_out = driver.why;
    return driver.loaded ? &driver.cu : NULL;
}

int dsc_driver_version(void)
{
    const char *why = NULL;
    int version = 0;
    const dsc_driver *cu = dsc_driver_load(&why);
    return cu != NULL && cu->version(&version) == DSC_CU_SUCCESS ? version : 0;
}

const char *const *dsc_libraries_for(const char *const *names)
{
    const int version = dsc_driver_version();
    return version > 0 && version < 13000 ? names + 1 : names;
}

ds_status dsc_fail(ds_ctx *ctx, ds_status status, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return dsc_library->fail(ctx, status, text);
}

ds_status dsc_fail_cu(ds_ctx *ctx, const dsc_driver *cu, dsc_cu_result result, const char *what)
{
    const char *name = NULL;
    const char *text = NULL;
    (void)cu->error_name(result, &name);
    (void)cu->error_text(result, &text);
    char cause[512];
    dsc_health_diagnose(result, cause, sizeof cause);
    return dsc_fail(ctx, result == DSC_CU_OUT_OF_MEMORY ? DS_ERR_NOMEM : DS_ERR_DEVICE,
                    "accelerator cuda: %s: %s (%s, %d)%s", what, text != NULL ? text : "no text",
                    name != NULL ? name : "unknown", result, cause);
}

ds_status dsc_check_device(ds_ctx *ctx, const dsc_driver *cu, int ordinal)
{
    int n = 0;
    int major = 0;
    int minor = 0;
    int unified = 0;
    dsc_cu_device device = 0;
    const dsc_cu_result counted = cu->n_devices(&n);
    if (counted == DSC_CU_NO_DEVICE || (counted == DSC_CU_SUCCESS && n == 0)) {
        return dsc_fail(ctx, DS_ERR_NOT_FOUND,
                        "accelerator cuda: the driver is there and finds no GPU (is "
                        "CUDA_VISIBLE_DEVICES empty?)");
    }
    DSC_CU(ctx, cu, counted, "cuDeviceGetCount");
    if (ordinal >= n) {
        return dsc_fail(ctx, DS_ERR_NOT_FOUND,
                        "accelerator cuda: there is no device %d; there are %d, from 0 on", ordinal,
                        n);
    }
    DSC_CU(ctx, cu, cu->device(&device, ordinal), "cuDeviceGet");
    DSC_CU(ctx, cu, cu->attribute(&major, DSC_CU_ATTRIBUTE_MAJOR, device), "cuDeviceGetAttribute");
    DSC_CU(ctx, cu, cu->attribute(&minor, DSC_CU_ATTRIBUTE_MINOR, device), "cuDeviceGetAttribute");
    DSC_CU(ctx, cu, cu->attribute(&unified, DSC_CU_ATTRIBUTE_UNIFIED_ADDRESSING, device),
           "cuDeviceGetAttribute");
    if (major < LEAST_MAJOR || unified == 0) {
        return dsc_fail(ctx, DS_ERR_UNSUPPORTED,
                        "accelerator cuda: device %d has compute capability %d.%d%s; the kernels "
                        "need 8.0 (A100, RTX 30) and unified addressing",
                        ordinal, major, minor, unified == 0 ? " and no unified addressing" : "");
    }
    return DS_OK;
}

long dsc_local_rank(void)
{
    static const char *const names[] = {"LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MV2_COMM_WORLD_LOCAL_RANK",
                                        "PALS_LOCAL_RANKID",
                                        "MPI_LOCALRANKID",
                                        "SLURM_LOCALID"};
    const char *text = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && text == NULL; ++i) {
        text = getenv(names[i]);
    }
    return text != NULL ? strtol(text, NULL, 10) : 0;
}

ds_status dsc_own_device(ds_ctx *ctx, const dsc_driver *cu, long *ordinal_out)
{
    const long rank = dsc_local_rank();
    int n = 0;
    const dsc_cu_result counted = cu->n_devices(&n);
    *ordinal_out = counted == DSC_CU_SUCCESS && n > 1 ? rank : 0; /* none: dsc_check_device */
    return counted != DSC_CU_SUCCESS || n <= 1 || (rank >= 0 && rank < n)
               ? DS_OK
               : dsc_fail(ctx, DS_ERR_DEVICE,
                          "accelerator cuda: rank %ld of this node has no device of its own, there "
                          "are %d; start as many ranks as devices",
                          rank, n);
}

static void say_device(const dsc_driver *cu, int ordinal, char *text, size_t n)
{
    char name[128] = "";
    size_t bytes = 0;
    int major = 0;
    int minor = 0;
    dsc_cu_device device = 0;
    if (cu->device(&device, ordinal) != DSC_CU_SUCCESS ||
        cu->device_name(name, (int)sizeof name, device) != DSC_CU_SUCCESS ||
        cu->device_bytes(&bytes, device) != DSC_CU_SUCCESS ||
        cu->attribute(&major, DSC_CU_ATTRIBUTE_MAJOR, device) != DSC_CU_SUCCESS ||
        cu->attribute(&minor, DSC_CU_ATTRIBUTE_MINOR, device) != DSC_CU_SUCCESS) {
        (void)snprintf(text, n, "device %d: does not answer\n", ordinal);
        return;
    }
    char state[256];
    dsc_health_say(cu, device, state, sizeof state);
    (void)snprintf(text, n, "device %d: %s, %.1f GiB, sm_%d%d%s\n", ordinal, name,
                   (double)bytes / 1073741824.0, major, minor, state);
}

/* What needs no device: what is compiled, and which libraries there are. */
static void say_software(char *text_out, size_t n)
{
    char products[700];
    char collectives[700];
    char disks[700];
    char custom[1000];
    dsc_lt_say(products, sizeof products);
    dsc_nccl_say(collectives, sizeof collectives);
    dsc_disk_say(disks, sizeof disks);
    dsc_custom_say(custom, sizeof custom);
    (void)snprintf(text_out, n, "kernels ahead of time: %s (CUDA %d.%d)\n%s\n%s\n%s\n%s\n",
                   dsc_image_archs, dsc_image_cuda / 1000, dsc_image_cuda % 1000 / 10, custom,
                   products, collectives, disks);
}

static void say_driver(const dsc_driver *cu, char *text_out, size_t n)
{
    char driver_text[700];
    int version = 0;
    (void)cu->version(&version);
    dsc_health_say_driver(driver_text, sizeof driver_text);
    (void)snprintf(text_out, n, "driver: CUDA %d.%d%s%s\n", version / 1000, version % 1000 / 10,
                   driver_text[0] != '\0' ? ", " : "", driver_text);
}

ds_status dsc_probe(ds_ctx *ctx, char *text_out, size_t n)
{
    const char *why = NULL;
    const dsc_driver *cu = dsc_driver_load(&why);
    int n_devices = 0;
    size_t used = 0;
    if (n > 0 && cu != NULL) {
        say_driver(cu, text_out, n);
        used = strlen(text_out);
    }
    if (n > 0) {
        say_software(text_out + used, n - used);
    }
    if (cu == NULL) {
        return dsc_fail(ctx, driver.absent ? DS_ERR_NOT_FOUND : DS_ERR_DEVICE,
                        "accelerator cuda: %s", why);
    }
    DS_TRY(dsc_check_device(ctx, cu, 0));
    (void)cu->n_devices(&n_devices);
    for (int i = 0; i < n_devices && n > 0; ++i) {
        used = strlen(text_out);
        say_device(cu, i, text_out + used, n - used);
    }
    return DS_OK;
}
