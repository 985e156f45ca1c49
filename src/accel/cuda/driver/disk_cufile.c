/* SPDX-License-Identifier: Apache-2.0 */
/* See disk.h. Source: "cuFile API Reference Guide" of GPUDirect Storage. */
#include "accel/cuda/driver/cufile_api.h"
#include "accel/cuda/driver/disk.h"
#include "accel/cuda/driver/library_load.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct ds_accel_file {
    ds_accel_device *device;
    dsc_cufile_handle handle;
};

static struct {
    pthread_once_t once;
    dsc_cufile_api api;
    bool loaded;
    char why[512];
} library = {.once = PTHREAD_ONCE_INIT};

static void load(void)
{
    static const char *const files[] = {"libcufile.so.0", NULL};
    static const dsc_symbol symbols[] = {
#define X(type, member, symbol, params) {#symbol, offsetof(dsc_cufile_api, member)},
        DSC_CUFILE_LIST(X)
#undef X
    };
    static const dsc_library_row row = {
        .what = "cuFile",
        .files = files,
        .package = "the package libcufile of NVIDIA's CUDA toolkit, or nvidia-cufile of PyPI, has "
                   "libcufile.so.0",
        .old = "GPUDirect Storage 1.8 or newer",
        .symbols = symbols,
        .n_symbols = sizeof symbols / sizeof symbols[0]};
    library.loaded = dsc_library_load(&row, &library.api, library.why, sizeof library.why);
}

static const dsc_cufile_api *cufile_of(const char **why_out)
{
    (void)pthread_once(&library.once, load);
    *why_out = library.why;
    return library.loaded ? &library.api : NULL;
}

void dsc_disk_say(char *text_out, size_t n)
{
    const char *why = NULL;
    const dsc_cufile_api *api = cufile_of(&why);
    int version = 0;
    if (api == NULL || api->version(&version).code != DSC_CUFILE_SUCCESS) {
        (void)snprintf(text_out, n, "disks: none (aio.use_gds); %s",
                       api != NULL ? "cuFile does not say its version" : why);
        return;
    }
    (void)snprintf(text_out, n, "disks: cuFile %d.%d", version / 1000, version % 1000 / 10);
}

/* ---- what failed ---------------------------------------------------------------------------- */

static const char *text_of(int code)
{
    static const struct {
        int code;
        const char *text;
    } rows[] = {
        {DSC_CUFILE_DRIVER_NOT_INITIALIZED,
         "the kernel module nvidia-fs is not loaded and cuFile's compatible mode is off "
         "(allow_compat_mode in cufile.json)"},
        {DSC_CUFILE_DRIVER_VERSION_MISMATCH, "the kernel module nvidia-fs has another version"},
        {DSC_CUFILE_PLATFORM_NOT_SUPPORTED, "not on this platform"},
        {DSC_CUFILE_IO_NOT_SUPPORTED, "not on this file system"},
        {DSC_CUFILE_DEVICE_NOT_SUPPORTED, "not on this GPU"},
        {DSC_CUFILE_NVFS_DRIVER_ERROR, "the kernel module nvidia-fs failed"},
        {DSC_CUFILE_CUDA_DRIVER_ERROR, "the CUDA driver failed"},
        {DSC_CUFILE_CUDA_POINTER_INVALID, "an address that is not the device's"},
        {DSC_CUFILE_CUDA_MEMORY_TYPE_INVALID, "memory of another kind than the device's"},
        {DSC_CUFILE_CUDA_POINTER_RANGE_ERROR, "a range beyond the memory that was allocated"},
        {DSC_CUFILE_CUDA_CONTEXT_MISMATCH, "memory of another context"},
        {DSC_CUFILE_INVALID_MAPPING_SIZE, "more than the device can map (BAR1, or cuFile's limit)"},
        {DSC_CUFILE_INVALID_MAPPING_RANGE, "a range beyond what is registered"},
        {DSC_CUFILE_INVALID_FILE_TYPE, "no regular file, or one without a name"},
        {DSC_CUFILE_INVALID_FILE_OPEN_FLAG, "the file was opened with a flag that cuFile refuses"},
        {DSC_CUFILE_DIO_NOT_SET, "the file was opened without O_DIRECT"},
        {DSC_CUFILE_INVALID_VALUE, "an invalid argument"},
        {DSC_CUFILE_PERMISSION_DENIED, "no permission for the file or for nvidia-fs"},
        {DSC_CUFILE_INTERNAL_ERROR, "an internal error, see cufile.log"},
        {DSC_CUFILE_NVFS_SETUP_ERROR, "the kernel module nvidia-fs could not be set up"},
        {DSC_CUFILE_IO_DISABLED, "cufile.json forbids it on this file system"},
        {DSC_CUFILE_GPU_MEMORY_PINNING_FAILED, "the device has no room to map that"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        if (rows[i].code == code) {
            return rows[i].text;
        }
    }
    return "an error that its reference explains";
}

/* reason: CUfileOpError, or an errno. */
static const char *text(int reason)
{
    return reason >= DSC_CUFILE_LEAST_ERROR ? text_of(reason) : NULL;
}

static ds_status fail(const ds_accel_device *device, ds_ctx *ctx, dsc_cufile_error error,
                      const char *what)
{
    const char *cuda = NULL;
    if (error.code == DSC_CUFILE_CUDA_DRIVER_ERROR) {
        (void)device->cu->error_text(error.cuda, &cuda);
    }
    return dsc_fail(ctx, DS_ERR_DEVICE, "accelerator cuda: %s: cuFile says %s%s%s (%d)", what,
                    text_of(error.code), cuda != NULL ? ": " : "", cuda != NULL ? cuda : "",
                    error.code);
}

/* ---- the table ------------------------------------------------------------------------------- */

static ds_status check(ds_accel_device *device, ds_ctx *ctx)
{
    const char *why = NULL;
    const dsc_cufile_api *api = cufile_of(&why);
    if (api == NULL) {
        return dsc_fail(ctx, DS_ERR_UNSUPPORTED,
                        "aio.use_gds: %s; or set use_gds to false and offload to cpu", why);
    }
    DS_TRY(dsc_enter(device, ctx));
    if (!device->has_disks) {
        const dsc_cufile_error error = api->driver_open();
        if (error.code != DSC_CUFILE_SUCCESS) {
            return dsc_fail(ctx, DS_ERR_UNSUPPORTED,
                            "aio.use_gds: cuFileDriverOpen: %s (%d); or set use_gds to false and "
                            "offload to cpu",
                            text_of(error.code), error.code);
        }
        device->has_disks = true;
    }
    return DS_OK;
}

void dsc_disk_close(ds_accel_device *device)
{
    if (device->has_disks) {
        (void)library.api.driver_close();
        device->has_disks = false;
    }
}

static ds_status open_file(ds_accel_device *device, ds_ctx *ctx, int fd, const char *path,
                           ds_accel_file **file_out)
{
    dsc_cufile_descr descr = {.type = DSC_CUFILE_HANDLE_TYPE_OPAQUE_FD, .handle = {.fd = fd}};
    DS_TRY(check(device, ctx));
    ds_accel_file *file = calloc(1, sizeof *file);
    if (file == NULL) {
        return dsc_fail(ctx, DS_ERR_NOMEM, "no memory for a file");
    }
    file->device = device;
    const dsc_cufile_error error = library.api.handle_register(&file->handle, &descr);
    if (error.code != DSC_CUFILE_SUCCESS) {
        free(file);
        return fail(device, ctx, error, path);
    }
    *file_out = file;
    return DS_OK;
}

static void close_file(ds_accel_file **file_inout)
{
    ds_accel_file *file = file_inout != NULL ? *file_inout : NULL;
    if (file != NULL) {
        (void)file->device->cu->set_current(file->device->context);
        library.api.handle_deregister(file->handle);
        free(file);
        *file_inout = NULL;
    }
}

static ds_status map(ds_accel_device *device, ds_ctx *ctx, void *memory, size_t bytes)
{
    uint32_t i = 0;
    DS_TRY(check(device, ctx));
    while (i < DSC_MOST_MAPPED && device->mapped[i].base != NULL) {
        ++i;
    }
    if (i == DSC_MOST_MAPPED) {
        return dsc_fail(ctx, DS_ERR_LIMIT, "more than %d blocks of memory for the disk",
                        DSC_MOST_MAPPED);
    }
    const dsc_cufile_error error = library.api.buf_register(memory, bytes, 0);
    if (error.code == DSC_CUFILE_INVALID_MAPPING_SIZE ||
        error.code == DSC_CUFILE_GPU_MEMORY_PINNING_FAILED) {
        return dsc_fail(ctx, DS_ERR_LIMIT,
                        "cuFile cannot register %.1f MiB of device memory, %s (%d): transfers go "
                        "through its own buffers",
                        (double)bytes / 1048576.0, text_of(error.code), error.code);
    }
    if (error.code != DSC_CUFILE_SUCCESS) {
        return fail(device, ctx, error, "memory for the disk");
    }
    device->mapped[i].base = memory;
    device->mapped[i].bytes = bytes;
    return DS_OK;
}

static void unmap(ds_accel_device *device, void *memory)
{
    (void)device->cu->set_current(device->context);
    for (uint32_t i = 0; i < DSC_MOST_MAPPED; ++i) {
        if (device->mapped[i].base == memory) {
            (void)library.api.buf_deregister(memory);
            device->mapped[i].base = NULL;
        }
    }
}

/* The registered block that has all of it; else itself. */
static char *base_of(const ds_accel_device *device, char *memory, size_t bytes)
{
    for (uint32_t i = 0; i < DSC_MOST_MAPPED; ++i) {
        char *base = device->mapped[i].base;
        if (base != NULL && memory >= base && bytes <= device->mapped[i].bytes &&
            (size_t)(memory - base) <= device->mapped[i].bytes - bytes) {
            return base;
        }
    }
    return memory;
}

static int64_t move(ds_accel_file *file, bool write, void *memory, size_t bytes, uint64_t offset)
{
    const ds_accel_device *device = file->device;
    char *base = base_of(device, memory, bytes);
    const off_t within = (off_t)((char *)memory - base);
    if (device->cu->set_current(device->context) != DSC_CU_SUCCESS) {
        return -DSC_CUFILE_CUDA_DRIVER_ERROR;
    }
    const ssize_t done = write ? library.api.write(file->handle, base, bytes, (off_t)offset, within)
                               : library.api.read(file->handle, base, bytes, (off_t)offset, within);
    return done == -1 ? -(int64_t)errno : (int64_t)done;
}

const ds_accel_disks dsc_disks = {.check = check,
                                  .open = open_file,
                                  .close = close_file,
                                  .map = map,
                                  .unmap = unmap,
                                  .move = move,
                                  .text = text};
