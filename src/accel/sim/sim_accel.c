/* SPDX-License-Identifier: Apache-2.0 */
/* The accelerator that finds what an executor or a plan does wrong: the processor's kernels, on
 * memory that the host cannot touch, in streams that run late and in random order. See
 * sim_device.h and accel/accel.h.
 */
#include "accel/cpu/registry.h"
#include "accel/sim/sim_device.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* An option: a whole number. */
typedef struct sim_option {
    const char *key;
    uint64_t least, most;
    size_t offset; /* of a uint64_t of the device */
} sim_option;

static const sim_option rows[] = {
    {"seed", 0, UINT64_MAX, offsetof(ds_accel_device, random)},
    {"turn", 1, UINT64_MAX, offsetof(ds_accel_device, turn_bytes)},
    {"copy_gbps", 1, UINT64_MAX, offsetof(ds_accel_device, copy_gbps)},
    {"kernel_us", 1, 1000000000, offsetof(ds_accel_device, kernel_us)},
    {"graphs", 0, 1, offsetof(ds_accel_device, has_graphs)},
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

static ds_status read_option(ds_accel_device *device, const char *key, const char *value)
{
    uint32_t i = 0;
    while (i < N_ROWS && strcmp(rows[i].key, key) != 0) {
        i += 1;
    }
    if (i == N_ROWS) {
        return ds_fail(
            device->ctx, DS_ERR_ARG,
            "accelerator sim: there is no option \"%.60s\"; expected seed=N, turn=BYTES, "
            "copy_gbps=GB_A_SECOND, kernel_us=MICROSECONDS or graphs=0, with commas between them",
            key);
    }
    char *end = NULL;
    errno = 0;
    const unsigned long long number =
        value[0] >= '0' && value[0] <= '9' ? strtoull(value, &end, 10) : 0;
    if (end == NULL || errno != 0 || *end != '\0' || number < rows[i].least ||
        number > rows[i].most) {
        return ds_fail(device->ctx, DS_ERR_ARG,
                       "accelerator sim: %s=%.60s: expected a whole number from %llu to %llu", key,
                       value, (unsigned long long)rows[i].least, (unsigned long long)rows[i].most);
    }
    const uint64_t kept = number;
    memcpy((char *)device + rows[i].offset, &kept, sizeof kept);
    return DS_OK;
}

/* "seed=7,turn=4096": of two with one key the last counts. */
static ds_status read_options(ds_accel_device *device, const char *options)
{
    char text[DSI_ACCEL_OPTIONS];
    const size_t n = strlen(options);
    if (n >= sizeof text) {
        return ds_fail(device->ctx, DS_ERR_ARG, "accelerator sim: options of more than %zu bytes",
                       sizeof text - 1);
    }
    memcpy(text, options, n + 1);
    for (char *at = text; at != NULL && n > 0;) {
        char *next = strchr(at, ',');
        if (next != NULL) {
            *next++ = '\0';
        }
        char *value = strchr(at, '=');
        if (value != NULL) {
            *value++ = '\0';
        }
        DS_TRY(read_option(device, at, value != NULL ? value : ""));
        at = next;
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
    device->has_graphs = 1;
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
        dsi_sim_say_times(*device);
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
    .streams = &dsi_sim_streams,
    .graphs = &dsi_sim_graphs};
