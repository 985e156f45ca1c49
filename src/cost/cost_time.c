/* SPDX-License-Identifier: Apache-2.0 */
/* Times of computation, moves and collectives from a profile. See device.h for the formulas. */
#include "cost/device.h"

#include "base/processor.h"

#include <math.h>

static dsi_peak peak_of(ds_dtype dtype)
{
    switch (dtype) {
    case DS_DTYPE_BF16:
        return DSI_PEAK_BF16;
    case DS_DTYPE_F16:
        return DSI_PEAK_F16;
    default:
        return DSI_PEAK_F32;
    }
}

double dsi_device_peak(const dsi_device *device, ds_dtype dtype)
{
    return device->peak[peak_of(dtype)];
}

/* 1 for a size that is not known. */
static double filled(int64_t size, double half)
{
    return size > 0 ? (double)size / ((double)size + half) : 1.0;
}

double dsi_time_work(const dsi_device *device, const dsi_work *work)
{
    if (work->op_class == DS_CLASS_VIEW) {
        return 0.0;
    }
    const dsi_peak p = peak_of(work->dtype);
    const dsi_rate *rate = &device->rates[p][work->op_class];
    double arithmetic = 0.0;
    if (dsi_op_class_is_model(work->op_class)) {
        const double share = rate->compute * filled(work->m, rate->half_m) *
                             filled(work->n, rate->half_n) * filled(work->k, rate->half_k);
        arithmetic = work->flops / (device->peak[p] * share);
    }
    const double memory = work->bytes / (device->memory_bandwidth * rate->memory);
    return device->latency + fmax(arithmetic, memory);
}

double dsi_time_message(const dsi_device *device, bool far, double bytes)
{
    const dsi_link *link = far ? &device->net : &device->node;
    return link->latency + bytes / link->bandwidth;
}

double dsi_time_host(const dsi_device *device, double bytes, uint32_t local_ranks)
{
    const double share = device->host_bandwidth / (double)(local_ranks > 0 ? local_ranks : 1);
    return bytes / fmin(device->host_link, share);
}

double dsi_time_disk(const dsi_device *device, bool write, double bytes, uint32_t local_ranks)
{
    const double rate = write ? device->disk_write : device->disk_read;
    return device->disk_latency + bytes * (double)(local_ranks > 0 ? local_ranks : 1) / rate;
}

dsi_device dsi_device_of_rank(const dsi_device *device, uint32_t local_ranks, uint32_t threads)
{
    dsi_device own = *device;
    const uint32_t ranks = local_ranks > 0 ? local_ranks : 1;
    const double n = (double)ranks;
    if (device->shared) {
        own.cores = (dsi_cores){device->cores.n, threads, ranks};
        const double share = dsi_cores_share(&own.cores, ranks);
        for (int i = 0; i < DSI_PEAK_COUNT; ++i) {
            own.peak[i] *= share;
        }
        own.memory_bytes /= n;
        own.memory_bandwidth *= share;
        own.node.bandwidth /= n;
        own.shared = false;
        own.in_place = true;
    }
    return own;
}

uint32_t dsi_device_cores(const dsi_device *device)
{
    return device != NULL && device->shared && device->cores.n > 0 ? device->cores.n
                                                                   : dsi_processor_n_cores();
}
