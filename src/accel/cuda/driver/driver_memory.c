/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory, and memory of the host that is pinned. What a caller sees as done has been waited
 * for on a stream of the device's own: the driver's calls without a stream may return before a copy
 * between two places of the device has ended. See driver_device.h.
 */
#include "accel/cuda/driver/driver_device.h"

static dsc_cu_ptr ptr(const void *memory)
{
    return (dsc_cu_ptr)(uintptr_t)memory;
}

static ds_status alloc(ds_accel_device *device, ds_ctx *ctx, size_t bytes, const char *what,
                       void **memory_out)
{
    const dsc_driver *cu = device->cu;
    dsc_cu_ptr memory = 0;
    size_t n_free = 0;
    size_t n_all = 0;
    DS_TRY(dsc_enter(device, ctx));
    const dsc_cu_result result = cu->alloc(&memory, bytes > 0 ? bytes : 1);
    if (result == DSC_CU_OUT_OF_MEMORY) {
        (void)cu->mem_info(&n_free, &n_all);
        return dsc_fail(ctx, DS_ERR_NOMEM,
                        "accelerator cuda: no %.1f MiB for %s: %.1f of %.1f MiB of device %d are "
                        "free",
                        (double)bytes / 1048576.0, what, (double)n_free / 1048576.0,
                        (double)n_all / 1048576.0, device->ordinal);
    }
    DSC_CU(ctx, cu, result, what);
    dsc_cu_result cleared = cu->fill(memory, 0, bytes, device->own);
    cleared = cleared == DSC_CU_SUCCESS ? cu->synchronize(device->own) : cleared;
    if (cleared != DSC_CU_SUCCESS) {
        (void)cu->free(memory);
        return dsc_fail_cu(ctx, cu, cleared, what);
    }
    *memory_out = (void *)(uintptr_t)memory;
    return DS_OK;
}

static void release(ds_accel_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    (void)device->cu->set_current(device->context);
    (void)device->cu->free(ptr(memory));
}

static ds_status copy(ds_accel_device *device, void *to, const void *from, size_t bytes)
{
    const dsc_driver *cu = device->cu;
    if (bytes == 0) {
        return DS_OK;
    }
    DS_TRY(dsc_enter(device, device->ctx));
    DSC_CU(device->ctx, cu, cu->copy(ptr(to), ptr(from), bytes, device->own), "a copy");
    DSC_CU(device->ctx, cu, cu->synchronize(device->own), "a copy");
    return DS_OK;
}

static ds_status fill(ds_accel_device *device, void *to, int byte, size_t bytes)
{
    const dsc_driver *cu = device->cu;
    if (bytes == 0) {
        return DS_OK;
    }
    DS_TRY(dsc_enter(device, device->ctx));
    DSC_CU(device->ctx, cu, cu->fill(ptr(to), (unsigned char)byte, bytes, device->own), "a fill");
    DSC_CU(device->ctx, cu, cu->synchronize(device->own), "a fill");
    return DS_OK;
}

static ds_status pin(ds_accel_device *device, ds_ctx *ctx, void *memory, size_t bytes)
{
    DS_TRY(dsc_enter(device, ctx));
    const dsc_cu_result result =
        device->cu->host_register(memory, bytes, DSC_CU_MEMHOSTREGISTER_PORTABLE);
    if (result == DSC_CU_OUT_OF_MEMORY) {
        return dsc_fail(ctx, DS_ERR_NOMEM,
                        "accelerator cuda: cannot pin %.1f MiB of host memory; is the limit of "
                        "locked memory (ulimit -l) too low?",
                        (double)bytes / 1048576.0);
    }
    DSC_CU(ctx, device->cu, result, "cuMemHostRegister");
    return DS_OK;
}

static void unpin(ds_accel_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    (void)device->cu->set_current(device->context);
    (void)device->cu->host_unregister(memory);
}

const ds_accel_memory dsc_memory = {
    .alloc = alloc, .release = release, .copy = copy, .fill = fill, .pin = pin, .unpin = unpin};
