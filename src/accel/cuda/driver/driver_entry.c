/* SPDX-License-Identifier: Apache-2.0 */
/* The accelerator `cuda`: its tables, and a device from open to close. See driver_device.h. */
#include "accel/cuda/driver/custom_kernel.h"
#include "accel/cuda/driver/disk.h"
#include "accel/cuda/driver/driver_device.h"
#include "accel/cuda/driver/group.h"
#include "accel/cuda/driver/health.h"
#include "accel/cuda/driver/lt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const ds_accel_library *dsc_library;

ds_status dsc_enter(const ds_accel_device *device, ds_ctx *ctx)
{
    DSC_CU(ctx, device->cu, device->cu->set_current(device->context), "cuCtxSetCurrent");
    return DS_OK;
}

/* ---- options ------------------------------------------------------------------------------- */

static bool read_number(const char *text, long most, long *number_out)
{
    char *end = NULL;
    errno = 0;
    const long number = text[0] >= '0' && text[0] <= '9' ? strtol(text, &end, 10) : -1;
    *number_out = number;
    return end != NULL && errno == 0 && *end == '\0' && number >= 0 && number <= most;
}

/* "device=0,graphs=1" */
static ds_status read_options(ds_ctx *ctx, const char *options, long *ordinal, long *graphs)
{
    char text[128];
    if (strlen(options) >= sizeof text) {
        return dsc_fail(ctx, DS_ERR_ARG, "accelerator cuda: options of more than %zu bytes",
                        sizeof text - 1);
    }
    memcpy(text, options, strlen(options) + 1);
    for (char *at = text; at != NULL && text[0] != '\0';) {
        char *next = strchr(at, ',');
        if (next != NULL) {
            *next++ = '\0';
        }
        char *value = strchr(at, '=');
        if (value != NULL) {
            *value++ = '\0';
        }
        const bool is_device = strcmp(at, "device") == 0;
        if (!is_device && strcmp(at, "graphs") != 0) {
            return dsc_fail(ctx, DS_ERR_ARG,
                            "accelerator cuda: there is no option \"%.60s\"; expected device=N or "
                            "graphs=0, with a comma between them",
                            at);
        }
        if (value == NULL ||
            !read_number(value, is_device ? 1023 : 1, is_device ? ordinal : graphs)) {
            return dsc_fail(ctx, DS_ERR_ARG,
                            "accelerator cuda: %s=%.60s: expected a whole number from 0 to %d", at,
                            value != NULL ? value : "", is_device ? 1023 : 1);
        }
        at = next;
    }
    return DS_OK;
}

/* ---- open and close ------------------------------------------------------------------------ */

static const char *const names[DSC_FN_COUNT] = {
#define DSC_ONE(name)   #name,
#define DSC_THREE(name) #name "_f32", #name "_bf16", #name "_f16",
    DSC_KERNEL_LIST(DSC_ONE, DSC_THREE)
#undef DSC_ONE
#undef DSC_THREE
};

/* Every kernel, in whichever image has it. */
static ds_status find_functions(ds_accel_device *device, ds_ctx *ctx)
{
    for (uint32_t f = 0; f < DSC_FN_COUNT; ++f) {
        dsc_cu_result result = DSC_CU_NOT_FOUND;
        for (uint32_t i = 0; i < dsc_n_images && result == DSC_CU_NOT_FOUND; ++i) {
            result = device->cu->function(&device->functions[f], device->modules[i], names[f]);
        }
        DSC_CU(ctx, device->cu, result, names[f]);
    }
    return DS_OK;
}

/* An image that the driver does not take: it is too old for it, or made for other devices. */
static ds_status fail_image(const ds_accel_device *device, ds_ctx *ctx, dsc_cu_result result,
                            const char *name)
{
    const int version = dsc_driver_version();
    const bool refused = result == DSC_CU_NO_BINARY_FOR_GPU || result == DSC_CU_INVALID_IMAGE ||
                         result == DSC_CU_UNSUPPORTED_PTX_VERSION;
    if (refused && version < dsc_image_cuda) {
        return dsc_fail(ctx, DS_ERR_UNSUPPORTED,
                        "accelerator cuda: the kernels were compiled by CUDA %d.%d, the driver is "
                        "of CUDA %d.%d and does not take those of %s (%d); update the driver, or "
                        "build with an nvcc that is no newer than the driver",
                        dsc_image_cuda / 1000, dsc_image_cuda % 1000 / 10, version / 1000,
                        version % 1000 / 10, name, result);
    }
    if (result == DSC_CU_NO_BINARY_FOR_GPU) {
        return dsc_fail(ctx, DS_ERR_UNSUPPORTED,
                        "accelerator cuda: the kernels of %s are made for %s, and device %d is "
                        "none of these; build with -DDS_CUDA_ARCHS and its architecture",
                        name, dsc_image_archs, device->ordinal);
    }
    return dsc_fail_cu(ctx, device->cu, result, name);
}

static ds_status load_kernels(ds_accel_device *device, ds_ctx *ctx)
{
    device->modules = calloc(dsc_n_images + 1, sizeof(dsc_cu_module));
    if (device->modules == NULL) {
        return dsc_fail(ctx, DS_ERR_NOMEM, "no memory for an accelerator");
    }
    for (uint32_t i = 0; i < dsc_n_images; ++i) {
        const dsc_cu_result result =
            device->cu->module_load(&device->modules[i], dsc_images[i].bytes);
        if (result != DSC_CU_SUCCESS) {
            return fail_image(device, ctx, result, dsc_images[i].name);
        }
    }
    return find_functions(device, ctx);
}

/* Without it plans have no step of it. */
static void open_products(ds_accel_device *device)
{
    const char *why = NULL;
    const dsc_lt_api *lt = dsc_lt_load(&why);
    if (lt != NULL && lt->create(&device->lt) != DSC_LT_SUCCESS) {
        device->lt = NULL;
    }
}

static void close_products(ds_accel_device *device)
{
    const char *why = NULL;
    if (device->lt != NULL) {
        (void)dsc_lt_load(&why)->destroy(device->lt);
        device->lt = NULL;
    }
}

static void close_device(ds_accel_device **device_inout)
{
    ds_accel_device *device = device_inout != NULL ? *device_inout : NULL;
    if (device == NULL) {
        return;
    }
    if (device->context != NULL) {
        (void)device->cu->set_current(device->context);
        dsc_disk_close(device);
        dsc_custom_close(device);
        for (uint32_t i = 0; device->modules != NULL && i < dsc_n_images; ++i) {
            if (device->modules[i] != NULL) {
                (void)device->cu->module_unload(device->modules[i]);
            }
        }
        close_products(device);
        dsc_lt_forget_device();
        if (device->own != NULL) {
            (void)device->cu->stream_destroy(device->own);
        }
        (void)device->cu->release(device->ordinal);
    }
    dsc_health_end(&device->health);
    free(device->modules);
    free(device);
    *device_inout = NULL;
}

static ds_status open_context(ds_accel_device *device, ds_ctx *ctx, long ordinal)
{
    const dsc_driver *cu = device->cu;
    DS_TRY(ordinal < 0 ? dsc_own_device(ctx, cu, &ordinal) : DS_OK);
    DS_TRY(dsc_check_device(ctx, cu, (int)ordinal));
    DSC_CU(ctx, cu, cu->device(&device->ordinal, (int)ordinal), "cuDeviceGet");
    DSC_CU(ctx, cu, cu->retain(&device->context, device->ordinal), "cuDevicePrimaryCtxRetain");
    DS_TRY(dsc_enter(device, ctx));
    DSC_CU(ctx, cu, cu->stream_create(&device->own, DSC_CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    dsc_lt_forget_device();
    open_products(device);
    device->health = dsc_health_watch(cu, device->ordinal);
    return load_kernels(device, ctx);
}

static ds_status open_device(ds_ctx *ctx, const char *options, ds_accel_device **device_out)
{
    const char *why = NULL;
    long ordinal = -1; /* that of the rank */
    long graphs = 1;
    DS_TRY(read_options(ctx, options, &ordinal, &graphs));
    const dsc_driver *cu = dsc_driver_load(&why);
    if (cu == NULL) {
        return dsc_fail(ctx, DS_ERR_DEVICE, "accelerator cuda: %s", why);
    }
    ds_accel_device *device = calloc(1, sizeof *device);
    if (device == NULL) {
        return dsc_fail(ctx, DS_ERR_NOMEM, "no memory for an accelerator");
    }
    device->cu = cu;
    device->ctx = ctx;
    device->has_graphs = graphs != 0;
    const ds_status status = open_context(device, ctx, ordinal);
    if (status < 0) {
        close_device(&device);
        return status;
    }
    *device_out = device;
    return DS_OK;
}

/* Of options that `open` may yet refuse. */
static size_t memory_bytes(const char *options)
{
    const char *at = strstr(options, "device=");
    return dsc_device_bytes(at != NULL ? strtol(at + strlen("device="), NULL, 10) : -1);
}

/* ---- the tables ---------------------------------------------------------------------------- */

static const ds_kernel *choose(const ds_kernel_sig *sig, ds_isa has)
{
    (void)has; /* the kernels need nothing of the processor */
    if (sig->op->cuda != NULL) {
        return dsc_custom_kernel(sig);
    }
    const ds_kernel *product = dsc_lt_kernel(sig);
    return product != NULL ? product : dsc_kernel_at(sig, 0);
}

static const ds_accel_kernels kernels = {.choose = choose, .prepare = dsc_custom_prepare};

static const ds_accel cuda = {.version = DS_ACCEL_VERSION,
                              .name = "cuda",
                              .doc = "an NVIDIA GPU through the CUDA driver",
                              .open = open_device,
                              .close = close_device,
                              .memory = &dsc_memory,
                              .kernels = &kernels,
                              .streams = &dsc_streams,
                              .graphs = &dsc_graphs,
                              .probe = dsc_probe,
                              .groups = &dsc_groups,
                              .disks = &dsc_disks,
                              .memory_bytes = memory_bytes};

__attribute__((visibility("default"))) const ds_accel *ds_accel_v9(const ds_accel_library *given);

const ds_accel *ds_accel_v9(const ds_accel_library *given)
{
    dsc_library = given;
    return &cuda;
}
