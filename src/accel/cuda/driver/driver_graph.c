/* SPDX-License-Identifier: Apache-2.0 */
/* Captured work: the driver's graphs. See driver_device.h. */
#include "accel/cuda/driver/driver_device.h"

#include <stdlib.h>

struct ds_accel_graph {
    ds_accel_device *device;
    dsc_cu_graph_exec exec;
};

/* Relaxed: cuBLASLt loads an algorithm's code when it is first used, which is in the first capture,
 * and the other modes forbid what loads and allocates to the thread that captures. */
static ds_status begin(ds_accel_stream *stream)
{
    const ds_accel_device *device = stream->device;
    if (!device->has_graphs) {
        return DS_ERR_UNSUPPORTED;
    }
    DS_TRY(dsc_enter(device, stream->ctx));
    DSC_CU(stream->ctx, device->cu,
           device->cu->capture_begin(stream->queue, DSC_CU_CAPTURE_RELAXED),
           "cuStreamBeginCapture");
    return DS_OK;
}

static void destroy(ds_accel_graph **graph)
{
    if (graph != NULL && *graph != NULL) {
        (void)(*graph)->device->cu->set_current((*graph)->device->context);
        (void)(*graph)->device->cu->exec_destroy((*graph)->exec);
        free(*graph);
        *graph = NULL;
    }
}

static ds_status end(ds_accel_stream *stream, ds_accel_graph **graph_out)
{
    ds_accel_device *device = stream->device;
    dsc_cu_graph captured = NULL;
    *graph_out = NULL;
    DS_TRY(dsc_enter(device, stream->ctx));
    DSC_CU(stream->ctx, device->cu, device->cu->capture_end(stream->queue, &captured),
           "cuStreamEndCapture");
    ds_accel_graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL) {
        (void)device->cu->graph_destroy(captured);
        return dsc_fail(stream->ctx, DS_ERR_NOMEM, "no memory for captured work");
    }
    graph->device = device;
    const dsc_cu_result result = device->cu->instantiate(&graph->exec, captured, 0);
    (void)device->cu->graph_destroy(captured); /* what runs is a copy */
    if (result != DSC_CU_SUCCESS) {
        free(graph);
        return dsc_fail_cu(stream->ctx, device->cu, result, "cuGraphInstantiate");
    }
    *graph_out = graph;
    return DS_OK;
}

static ds_status launch(ds_accel_stream *stream, ds_accel_graph *graph)
{
    DS_TRY(dsc_enter(stream->device, stream->ctx));
    DSC_CU(stream->ctx, stream->device->cu,
           stream->device->cu->graph_launch(graph->exec, stream->queue), "cuGraphLaunch");
    return DS_OK;
}

const ds_accel_graphs dsc_graphs = {
    .begin = begin, .end = end, .launch = launch, .destroy = destroy};
