/* SPDX-License-Identifier: Apache-2.0 */
/* Puts a profile together from measurements. See measure.h and measure_session.h. */
#include "cost/measure_session.h"

#include "accel/cpu/cpu_features.h"
#include "base/processor.h"
#include "op/isa.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

ds_status dsi_measure_average(const dsi_measure_session *s, double *value)
{
    double own = s->active ? *value : 0.0;
    double sum = own;
    if (s->spec->comm == NULL) {
        return DS_OK;
    }
    const dsi_comm_part part = {.in = &own, .out = &sum, .count = 1};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                .dtype = DS_DTYPE_F64,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "a measurement"};
    DS_TRY(dsi_comm_run(s->spec->comm, &call));
    *value = sum / s->n_active;
    return DS_OK;
}

/* The ranks that compute while kernels are measured: on fewer cores than threads each would be
 * timed now alone, now with others on its cores. */
static dsi_measure_session open_session(ds_ctx *ctx, const dsi_measure_spec *spec,
                                        dsi_device *device)
{
    const uint32_t ranks = spec->comm != NULL ? spec->comm->size : 1;
    const uint32_t rank = spec->comm != NULL ? spec->comm->rank : 0;
    const uint32_t fit = dsi_processor_n_cores() / ds_ctx_n_threads(ctx);
    const uint32_t n_active = fit < 1 ? 1 : fit < ranks ? fit : ranks;
    return (dsi_measure_session){.ctx = ctx,
                                 .spec = spec,
                                 .device = device,
                                 .n_ranks = (double)ranks,
                                 .n_active = (double)n_active,
                                 .active = rank < n_active};
}

static void describe(dsi_measure_session *s)
{
    dsi_device *d = s->device;
    (void)snprintf(d->name, sizeof d->name, "%s",
                   s->spec->name != NULL ? s->spec->name : "this-machine");
    (void)snprintf(d->source, sizeof d->source,
                   "measured: %.0f ranks of %u threads, %.100s kernels", s->n_ranks,
                   ds_ctx_n_threads(s->ctx), dsi_isa_print(dsi_cpu_isa()).text);
    d->shared = true;
    d->cores.n = (uint32_t)s->n_active * ds_ctx_n_threads(s->ctx);
    d->cores.n = d->cores.n < dsi_processor_n_cores() ? d->cores.n : dsi_processor_n_cores();
    d->ranks_per_node = (uint32_t)s->n_ranks;
    d->memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

/* From the figures of a rank to those of the node. */
static void of_node(dsi_measure_session *s)
{
    dsi_device *d = s->device;
    for (int p = 0; p < DSI_PEAK_COUNT; ++p) {
        d->peak[p] *= s->n_active;
    }
    d->memory_bandwidth *= s->n_active;
    d->node.bandwidth *= s->n_ranks;
    d->host_memory_bytes = d->memory_bytes;
    d->host_bandwidth = d->memory_bandwidth;
    d->host_link = 0.5 * d->memory_bandwidth; /* a copy reads and writes */
    d->host_adam = d->memory_bandwidth * d->rates[DSI_PEAK_F32][DS_CLASS_OPTIMIZER].memory / 28.0;
}

/* What readers of profiles would refuse comes of a machine that did other work meanwhile. */
static ds_status check(ds_ctx *ctx, const dsi_device *device)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    dsi_device read;
    dsi_device_print(device, &text);
    ds_status status = dsi_device_parse(ctx, "the profile", dsi_buf_text(&text), text.size, &read);
    if (status < 0) {
        char why[256];
        (void)snprintf(why, sizeof why, "%s", ds_ctx_error(ctx));
        status =
            ds_fail(ctx, status,
                    "the machine was too busy to be measured, try again when it is idle: %s", why);
    }
    dsi_buf_free(&text);
    return status;
}

/* Everybody's profile is rank 0's. */
static ds_status share(const dsi_measure_session *s)
{
    if (s->spec->comm == NULL) {
        return DS_OK;
    }
    const dsi_comm_part part = {.in = s->device, .out = s->device, .count = sizeof *s->device};
    const dsi_comm_call call = {.kind = DS_COMM_BROADCAST,
                                .dtype = DS_DTYPE_U8,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "a profile"};
    return dsi_comm_run(s->spec->comm, &call);
}

ds_status dsi_measure(ds_ctx *ctx, const dsi_measure_spec *spec, dsi_device *device_out)
{
    dsi_device device = {0};
    dsi_measure_session s = open_session(ctx, spec, &device);
    describe(&s);
    ds_log(ctx, DS_LOG_JOB, "measuring memory and the start of a step");
    DS_TRY(dsi_measure_memory(&s));
    DS_TRY(dsi_measure_kernels(&s));
    if (spec->comm != NULL || spec->folder != NULL) {
        ds_log(ctx, DS_LOG_JOB, "measuring %s",
               spec->comm == NULL     ? "the disk"
               : spec->folder == NULL ? "collectives"
                                      : "collectives and the disk");
    }
    DS_TRY(dsi_measure_collectives(&s));
    DS_TRY(dsi_measure_disk(&s));
    of_node(&s);
    DS_TRY(share(&s));
    DS_TRY(check(ctx, &device));
    *device_out = device;
    return DS_OK;
}
