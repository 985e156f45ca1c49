/* SPDX-License-Identifier: Apache-2.0 */
/* The accelerator that finds what an executor or a plan does wrong: the processor's kernels, on
 * memory that the host cannot touch, in streams that run late and in random order. See
 * sim_device.h and accel/accel.h.
 */
#include "accel/cpu/registry.h"
#include "accel/sim/sim_device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "seed=7,turn=4096", each at most once or left out. */
static ds_status read_options(ds_accel_device *device, const char *options)
{
    const char *at = options;
    while (*at != '\0') {
        const bool seed = strncmp(at, "seed=", 5) == 0;
        const bool turn = strncmp(at, "turn=", 5) == 0;
        char *end = NULL;
        errno = 0;
        const unsigned long long value =
            (seed || turn) && at[5] >= '0' && at[5] <= '9' ? strtoull(at + 5, &end, 10) : 0;
        if (end == NULL || errno != 0 || (*end != '\0' && *end != ',') || (turn && value == 0)) {
            return ds_fail(device->ctx, DS_ERR_ARG,
                           "accelerator sim: \"%.60s\", expected seed=NUMBER, turn=BYTES (at least "
                           "1), or both with a comma between them",
                           options);
        }
        device->random = seed ? value : device->random;
        device->turn_bytes = turn ? (size_t)value : device->turn_bytes;
        at = *end == ',' ? end + 1 : end;
    }
    return DS_OK;
}

static ds_status open(ds_ctx *ctx, const char *options, ds_accel_device **device_out)
{
    ds_accel_device *device = calloc(1, sizeof *device);
    if (device == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for an accelerator");
    }
    device->ctx = ctx;
    device->turn_bytes = 4096;
    const ds_status status = read_options(device, options);
    if (status < 0) {
        free(device);
        return status;
    }
    (void)pthread_mutex_init(&device->lock, NULL);
    *device_out = device;
    return DS_OK;
}

static void close(ds_accel_device **device)
{
    if (device != NULL && *device != NULL) {
        (void)pthread_mutex_destroy(&(*device)->lock);
        free(*device);
        *device = NULL;
    }
}

static const ds_accel_kernels kernels = {.choose = dsi_cpu_kernel_choose};

const ds_accel dsi_accel_sim = {
    .version = DS_ACCEL_VERSION,
    .name = "sim",
    .doc = "the processor behind memory that faults and streams in random order, for tests",
    .open = open,
    .close = close,
    .memory = &dsi_sim_memory,
    .kernels = &kernels,
    .streams = &dsi_sim_streams};
