/* SPDX-License-Identifier: Apache-2.0 */
/* The processor as an accelerator: memory of the process, which the host reads and writes where it
 * lies, and the kernels of the registry. See accel/accel.h.
 */
#include "accel/accel.h"
#include "accel/cpu/registry.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* Pages are taken when they are touched: the arena costs what a plan uses of it. */
static ds_status alloc(ds_accel_device *device, ds_ctx *ctx, size_t bytes, const char *what,
                       void **memory_out)
{
    (void)device;
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return ds_fail(ctx, DS_ERR_NOMEM, "cannot map %.1f MiB for %s: %s",
                       (double)bytes / 1048576.0, what, strerror(errno));
    }
    (void)madvise(map, bytes, MADV_HUGEPAGE);
    *memory_out = map;
    return DS_OK;
}

static void release(ds_accel_device *device, void *memory, size_t bytes)
{
    (void)device;
    (void)munmap(memory, bytes);
}

static ds_status copy(ds_accel_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, bytes);
    return DS_OK;
}

static ds_status fill(ds_accel_device *device, void *to, int byte, size_t bytes)
{
    (void)device;
    memset(to, byte, bytes);
    return DS_OK;
}

const ds_accel_memory dsi_host_memory = {
    .alloc = alloc, .release = release, .copy = copy, .fill = fill, .on_host = true};

static const ds_accel_kernels kernels = {.choose = dsi_cpu_kernel_choose};

const ds_accel dsi_accel_cpu = {.version = DS_ACCEL_VERSION,
                                .name = "cpu",
                                .doc = "the processor, with the best kernels that it has",
                                .memory = &dsi_host_memory,
                                .kernels = &kernels};
