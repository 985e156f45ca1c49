/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated clock of `sim`, in nanoseconds; no real clock is read. Times follow from what is
 * queued, in the order in which the host queues it, and not from the turns in which it runs: the
 * same calls take the same time with every seed. See sim_device.h.
 *
 *  - work begins when its stream has passed what was queued before it, and not before the host
 *    queued it; queueing takes no time;
 *  - a kernel and a fill take kernel_us, a copy its bytes at copy_gbps, whatever lies at its ends;
 *  - an event's time is that of its newest record; a wait moves its stream there;
 *  - synchronize moves the host to the stream, a copy of the memory table moves it by what it
 * takes;
 *  - each context has a host of its own, which starts at 0: what orders two contexts is not seen.
 */
#include "accel/sim/sim_device.h"

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The clock of a context's host; more contexts than there is room for share the last. */
static uint64_t *host_of(ds_accel_device *device, const ds_ctx *ctx)
{
    uint32_t i = 0;
    while (i < SIM_MAX_HOSTS - 1 && device->hosts[i].ctx != NULL && device->hosts[i].ctx != ctx) {
        i += 1;
    }
    device->hosts[i].ctx = ctx;
    return &device->hosts[i].now;
}

static void pass(ds_accel_device *device, uint64_t *clock, uint64_t until)
{
    *clock = later(*clock, until);
    device->times.total = later(device->times.total, *clock);
}

static uint64_t copy_time(const ds_accel_device *device, size_t bytes)
{
    const uint64_t rate = device->copy_gbps; /* bytes a nanosecond */
    return rate > 0 ? (bytes + rate - 1) / rate : 0;
}

void dsi_sim_time_new_stream(ds_accel_device *device, sim_clock *clock)
{
    const uint32_t n = device->times.n_streams;
    clock->row = n < SIM_MAX_TIMES ? n : SIM_MAX_TIMES - 1;
    device->times.n_streams = n < SIM_MAX_TIMES ? n + 1 : SIM_MAX_TIMES;
}

static void work(ds_accel_device *device, const ds_ctx *ctx, sim_clock *clock, uint64_t takes,
                 uint64_t *busy)
{
    pass(device, &clock->now, later(clock->now, *host_of(device, ctx)) + takes);
    *busy += takes;
}

void dsi_sim_time_kernel(ds_accel_device *device, const ds_ctx *ctx, sim_clock *clock)
{
    work(device, ctx, clock, device->kernel_us * 1000, &device->times.kernels[clock->row]);
}

void dsi_sim_time_copy(ds_accel_device *device, const ds_ctx *ctx, sim_clock *clock, size_t bytes)
{
    work(device, ctx, clock, copy_time(device, bytes), &device->times.copies[clock->row]);
}

void dsi_sim_time_record(ds_accel_device *device, const ds_ctx *ctx, sim_clock *clock,
                         uint64_t *event)
{
    pass(device, &clock->now, *host_of(device, ctx));
    *event = clock->now;
}

void dsi_sim_time_wait(ds_accel_device *device, sim_clock *clock, uint64_t event)
{
    pass(device, &clock->now, event);
}

void dsi_sim_time_synchronize(ds_accel_device *device, const ds_ctx *ctx, const sim_clock *clock)
{
    pass(device, host_of(device, ctx), clock->now);
}

void dsi_sim_time_host_copy(ds_accel_device *device, size_t bytes)
{
    const uint64_t takes = copy_time(device, bytes);
    uint64_t *host = host_of(device, device->ctx);
    pass(device, host, *host + takes);
    device->times.host_copies += takes;
}

/* ---- what it comes to ------------------------------------------------------------------------ */

sim_times dsi_sim_times(ds_accel_device *device)
{
    (void)pthread_mutex_lock(&device->lock);
    const sim_times times = device->times;
    (void)pthread_mutex_unlock(&device->lock);
    return times;
}

void dsi_sim_say_times(ds_accel_device *device)
{
    const sim_times t = dsi_sim_times(device);
    if (device->copy_gbps == 0 && device->kernel_us == 0) {
        return;
    }
    ds_log(device->ctx, DS_LOG_JOB, "accelerator sim: %llu ns of simulated time, host copies %llu",
           (unsigned long long)t.total, (unsigned long long)t.host_copies);
    for (uint32_t i = 0; i < t.n_streams; ++i) {
        ds_log(device->ctx, DS_LOG_JOB, "accelerator sim: stream %u: kernels %llu ns, copies %llu",
               i, (unsigned long long)t.kernels[i], (unsigned long long)t.copies[i]);
    }
}
