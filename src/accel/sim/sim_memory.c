/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of `sim`: two ranges of addresses, one without any permission, which everybody
 * gets, and one with the bytes. See sim_device.h.
 */
#include "accel/sim/sim_device.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

void *dsi_sim_real(const ds_accel_device *device, const void *memory, size_t n)
{
    const unsigned char *at = memory;
    for (uint32_t i = 0; i < device->n_regions; ++i) {
        const sim_region *r = &device->regions[i];
        if (at >= r->seen && at < r->seen + r->bytes && n <= (size_t)(r->seen + r->bytes - at)) {
            return r->real + (at - r->seen);
        }
    }
    return NULL;
}

static ds_status add_region(ds_accel_device *device, ds_ctx *ctx, unsigned char *seen,
                            unsigned char *real, size_t bytes)
{
    ds_status status = DS_OK;
    (void)pthread_mutex_lock(&device->lock);
    if (device->n_regions == SIM_MAX_REGIONS) {
        status = ds_fail(ctx, DS_ERR_LIMIT, "accelerator sim: more than %d blocks of memory",
                         SIM_MAX_REGIONS);
    } else {
        device->regions[device->n_regions++] = (sim_region){seen, real, bytes};
    }
    (void)pthread_mutex_unlock(&device->lock);
    return status;
}

static ds_status alloc(ds_accel_device *device, ds_ctx *ctx, size_t bytes, const char *what,
                       void **memory_out)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *real = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    void *seen = real != MAP_FAILED ? mmap(NULL, bytes, PROT_NONE, flags, -1, 0) : MAP_FAILED;
    if (seen == MAP_FAILED) {
        const ds_status status = ds_fail(ctx, DS_ERR_NOMEM, "cannot map %.1f MiB for %s: %s",
                                         (double)bytes / 1048576.0, what, strerror(errno));
        (void)(real != MAP_FAILED ? munmap(real, bytes) : 0);
        return status;
    }
    const ds_status status = add_region(device, ctx, seen, real, bytes);
    if (status < 0) {
        (void)munmap(real, bytes);
        (void)munmap(seen, bytes);
        return status;
    }
    *memory_out = seen;
    return DS_OK;
}

static void release(ds_accel_device *device, void *memory, size_t bytes)
{
    (void)pthread_mutex_lock(&device->lock);
    for (uint32_t i = 0; i < device->n_regions; ++i) {
        sim_region *r = &device->regions[i];
        if (r->seen == memory) {
            (void)munmap(r->seen, bytes);
            (void)munmap(r->real, bytes);
            *r = device->regions[--device->n_regions];
            break;
        }
    }
    (void)pthread_mutex_unlock(&device->lock);
}

static ds_status adopt(ds_accel_device *device, ds_ctx *ctx, void *memory, size_t bytes)
{
    return add_region(device, ctx, memory, memory, bytes);
}

static void *peer_view(ds_accel_device *device, void *memory)
{
    return dsi_sim_real(device, memory, 0);
}

/* Device memory at its bytes, host memory as it is. */
static void *either(const ds_accel_device *device, const void *memory, size_t n)
{
    void *real = dsi_sim_real(device, memory, n);
    return real != NULL ? real : (void *)(uintptr_t)memory;
}

static ds_status copy(ds_accel_device *device, void *to, const void *from, size_t bytes)
{
    memcpy(either(device, to, bytes), either(device, from, bytes), bytes);
    (void)pthread_mutex_lock(&device->lock);
    dsi_sim_time_host_copy(device, bytes);
    (void)pthread_mutex_unlock(&device->lock);
    return DS_OK;
}

static ds_status fill(ds_accel_device *device, void *to, int byte, size_t bytes)
{
    memset(either(device, to, bytes), byte, bytes);
    return DS_OK;
}

const ds_accel_memory dsi_sim_memory = {.alloc = alloc,
                                        .release = release,
                                        .adopt = adopt,
                                        .peer_view = peer_view,
                                        .copy = copy,
                                        .fill = fill};
