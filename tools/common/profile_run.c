/* SPDX-License-Identifier: Apache-2.0 */
/* See profile_run.h. */
#include "common/profile_run.h"

#include "base/processor.h"
#include "common/environment.h"
#include "common/output.h"
#include "cost/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 48, TEXT_BYTES = 1 << 20 };

/* DS_THREADS, which the launcher gives, else this rank's share of the cores. */
static uint32_t share_of_cores(uint32_t local_ranks)
{
    const uint32_t cores = dsi_processor_n_cores();
    uint32_t asked = 0;
    (void)environment_threads(NULL, &asked); /* checked at the start */
    if (asked > 0) {
        return asked;
    }
    return local_ranks > 0 && cores > local_ranks ? cores / local_ranks : 1;
}

static ds_status write_file(ds_ctx *ctx, const char *path, const dsi_device *device)
{
    dsi_buf text = dsi_buf_make(TEXT_BYTES);
    dsi_device_print(device, &text);
    const ds_status status = text.failed ? ds_fail(ctx, DS_ERR_NOMEM, "no memory for a profile")
                                         : output_put(ctx, path, dsi_buf_text(&text), text.size);
    dsi_buf_free(&text);
    return status;
}

static void tell(const dsi_device *d, const char *path)
{
    (void)printf("%s: %s\n", d->name, d->source);
    (void)printf("products: %.3f TFLOP/s bf16, %.3f f16, %.3f f32; memory %.1f GB/s\n",
                 1e-12 * d->peak[DSI_PEAK_BF16], 1e-12 * d->peak[DSI_PEAK_F16],
                 1e-12 * d->peak[DSI_PEAK_F32], 1e-9 * d->memory_bandwidth);
    if (d->node.bandwidth > 0.0) {
        const double each = 1e-9 * d->node.bandwidth / (double)d->ranks_per_node;
        (void)printf("collectives of %u ranks: %.1f us; a rank sends %.2f GB/s in all_reduce, %.2f "
                     "in reduce_scatter, %.2f in all_gather\n",
                     d->ranks_per_node, 1e6 * d->node.latency, each * d->node.all_reduce,
                     each * d->node.reduce_scatter, each * d->node.all_gather);
    }
    if (d->disk_read > 0.0) {
        (void)printf("disk: read %.2f GB/s, write %.2f GB/s, both at once %.2f GB/s, %.0f us\n",
                     1e-9 * d->disk_read, 1e-9 * d->disk_write, 1e-9 * d->disk_both,
                     1e6 * d->disk_latency);
    }
    (void)printf("profile: %s\n", path);
}

static ds_status measure(ds_ctx *ctx, const profile_options *options, dsi_comm *comm)
{
    char host[NAME_BYTES] = "";
    dsi_device device;
    (void)gethostname(host, sizeof host - 1);
    const dsi_measure_spec spec = {.name = options->name != NULL ? options->name : host,
                                   .comm = comm,
                                   .folder = options->folder};
    DS_TRY(dsi_measure(ctx, &spec, &device));
    if (comm != NULL && comm->rank != 0) {
        return DS_OK;
    }
    DS_TRY(write_file(ctx, options->file, &device));
    tell(&device, options->file);
    return DS_OK;
}

/* The measuring context has threads; its error is the caller's. */
ds_status profile_run(ds_ctx *ctx, const profile_options *options, bool launched)
{
    ds_ctx_params params = ds_ctx_params_default();
    dsi_comm_world world = {.size = 1, .local_size = 1};
    dsi_comm *comm = NULL;
    ds_ctx *own = NULL;
    DS_TRY(output_check(ctx, options->file)); /* before a minute of measuring */
    if (launched) {
        DS_TRY(dsi_comm_world_read(ctx, &world));
    }
    if (world.n_nodes > 1) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "--profile measures the ranks of one host, this job has %u hosts; give the "
                       "link between them in the profile: \"network\"",
                       world.n_nodes);
    }
    params.rank = world.rank;
    params.world_size = world.size;
    params.n_threads = share_of_cores(world.local_size);
    DS_TRY(ds_ctx_create(&params, &own));
    ds_status status = launched ? dsi_comm_open(own, &world, &comm) : DS_OK;
    status = status < 0 ? status : measure(own, options, comm);
    if (status < 0) {
        status = ds_fail(ctx, status, "%s", ds_ctx_error(own));
        if (comm != NULL) {
            dsi_comm_abort(comm, ds_ctx_error(own));
        }
    }
    dsi_comm_destroy(&comm);
    ds_ctx_destroy(&own);
    return status;
}
