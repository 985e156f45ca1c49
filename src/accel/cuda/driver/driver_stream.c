/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events of the accelerator, which are the driver's, and launches of kernels. See
 * driver_device.h.
 *
 * A kernel of the library's queues kernels of the device when it is run: on the stream that
 * `launch` was called for. Operands that it cannot work with it reports in the stream's fault,
 * which synchronize turns into an error of the call. See dsc_launch.
 */
#include "accel/cuda/driver/driver_device.h"

#include <stdlib.h>
#include <string.h>

/* Where this thread's launch goes. */
static _Thread_local ds_accel_stream *current;

const ds_accel_stream *dsc_current_stream(void)
{
    return current;
}

static dsc_cu_ptr ptr(const void *memory)
{
    return (dsc_cu_ptr)(uintptr_t)memory;
}

static ds_status create(ds_accel_device *device, ds_ctx *ctx, ds_accel_stream **stream_out)
{
    const dsc_driver *cu = device->cu;
    void *fault = NULL;
    DS_TRY(dsc_enter(device, ctx));
    ds_accel_stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return dsc_fail(ctx, DS_ERR_NOMEM, "no memory for a stream");
    }
    s->device = device;
    s->ctx = ctx;
    dsc_cu_result result = cu->stream_create(&s->queue, DSC_CU_STREAM_NON_BLOCKING);
    if (result == DSC_CU_SUCCESS) {
        result = cu->host_alloc(&fault, sizeof *s->fault, DSC_CU_MEMHOSTALLOC_PORTABLE);
    }
    if (result != DSC_CU_SUCCESS) {
        (void)(s->queue != NULL ? cu->stream_destroy(s->queue) : DSC_CU_SUCCESS);
        free(s);
        return dsc_fail_cu(ctx, cu, result, "a stream");
    }
    s->fault = fault;
    memset(s->fault, 0, sizeof *s->fault);
    *stream_out = s;
    return DS_OK;
}

static void destroy(ds_accel_stream **stream)
{
    ds_accel_stream *s = stream != NULL ? *stream : NULL;
    if (s == NULL) {
        return;
    }
    (void)s->device->cu->set_current(s->device->context);
    (void)s->device->cu->stream_destroy(s->queue);
    (void)s->device->cu->host_free(s->fault);
    free(s);
    *stream = NULL;
}

static ds_status launch(ds_accel_stream *stream, const ds_kernel *kernel,
                        const ds_kernel_call *call)
{
    DS_TRY(dsc_enter(stream->device, stream->ctx));
    current = stream;
    const ds_status status = kernel->run(call);
    current = NULL;
    return status;
}

ds_status dsc_launch_on(const ds_accel_device *device, ds_ctx *ctx, dsc_cu_stream queue, dsc_fn fn,
                        const dsc_shape *shape, const void *args, size_t args_bytes,
                        const char *what)
{
    void *extra[] = {DSC_CU_PARAM_POINTER, (void *)(uintptr_t)args, DSC_CU_PARAM_SIZE, &args_bytes,
                     DSC_CU_PARAM_END};
    DSC_CU(ctx, device->cu,
           device->cu->launch(device->functions[fn], shape->grid[0], shape->grid[1], shape->grid[2],
                              shape->block[0], shape->block[1], shape->block[2], 0, queue, NULL,
                              extra),
           what);
    return DS_OK;
}

ds_status dsc_launch(const ds_kernel_call *call, dsc_fn fn, const dsc_shape *shape,
                     const void *args, size_t args_bytes)
{
    if (current == NULL) {
        return dsc_fail(call->ctx, DS_ERR_STATE, "accelerator cuda: a kernel runs on no stream");
    }
    return dsc_launch_on(current->device, current->ctx, current->queue, fn, shape, args, args_bytes,
                         call->sig->op->name);
}

struct dsc_fault *dsc_fault_of(const ds_kernel_call *call)
{
    (void)call;
    return current != NULL ? current->fault : NULL;
}

static ds_status copy(ds_accel_stream *s, void *to, const void *from, size_t bytes)
{
    DS_TRY(dsc_enter(s->device, s->ctx));
    if (bytes > 0) {
        DSC_CU(s->ctx, s->device->cu, s->device->cu->copy(ptr(to), ptr(from), bytes, s->queue),
               "cuMemcpyAsync");
    }
    return DS_OK;
}

static ds_status fill(ds_accel_stream *s, void *to, int byte, size_t bytes)
{
    DS_TRY(dsc_enter(s->device, s->ctx));
    if (bytes > 0) {
        DSC_CU(s->ctx, s->device->cu,
               s->device->cu->fill(ptr(to), (unsigned char)byte, bytes, s->queue),
               "cuMemsetD8Async");
    }
    return DS_OK;
}

/* What kernels found, once. */
static ds_status take_fault(ds_accel_stream *s, const ds_kernel_call **failed_out)
{
    const dsc_fault f = *s->fault;
    if (f.call == 0) {
        return DS_OK;
    }
    memset(s->fault, 0, sizeof *s->fault);
    const ds_kernel_call *call = (const ds_kernel_call *)(uintptr_t)f.call;
    *failed_out = call;
    return dsc_fail(s->ctx, DS_ERR_ARG, "%s: element %lld is %lld, expected 0 to %lld",
                    call->sig->op->name, (long long)f.at, (long long)f.value,
                    (long long)f.bound - 1);
}

static ds_status synchronize(ds_accel_stream *s, const ds_kernel_call **failed_out)
{
    *failed_out = NULL;
    DS_TRY(dsc_enter(s->device, s->ctx));
    DSC_CU(s->ctx, s->device->cu, s->device->cu->synchronize(s->queue), "cuStreamSynchronize");
    return take_fault(s, failed_out);
}

static ds_status event_create(ds_accel_device *device, ds_ctx *ctx, ds_accel_event **event_out)
{
    DS_TRY(dsc_enter(device, ctx));
    ds_accel_event *event = calloc(1, sizeof *event);
    if (event == NULL) {
        return dsc_fail(ctx, DS_ERR_NOMEM, "no memory for an event");
    }
    event->device = device;
    const dsc_cu_result result =
        device->cu->event_create(&event->event, DSC_CU_EVENT_DISABLE_TIMING);
    if (result != DSC_CU_SUCCESS) {
        free(event);
        return dsc_fail_cu(ctx, device->cu, result, "cuEventCreate");
    }
    *event_out = event;
    return DS_OK;
}

static void event_destroy(ds_accel_event **event)
{
    if (event != NULL && *event != NULL) {
        (void)(*event)->device->cu->set_current((*event)->device->context);
        (void)(*event)->device->cu->event_destroy((*event)->event);
        free(*event);
        *event = NULL;
    }
}

static ds_status record(ds_accel_stream *s, ds_accel_event *event)
{
    DS_TRY(dsc_enter(s->device, s->ctx));
    DSC_CU(s->ctx, s->device->cu, s->device->cu->record(event->event, s->queue), "cuEventRecord");
    return DS_OK;
}

static ds_status wait(ds_accel_stream *s, ds_accel_event *event)
{
    DS_TRY(dsc_enter(s->device, s->ctx));
    DSC_CU(s->ctx, s->device->cu, s->device->cu->wait(s->queue, event->event, 0),
           "cuStreamWaitEvent");
    return DS_OK;
}

static ds_status call(ds_accel_stream *s, void (*fn)(void *arg), void *arg)
{
    DS_TRY(dsc_enter(s->device, s->ctx));
    DSC_CU(s->ctx, s->device->cu, s->device->cu->launch_host(s->queue, fn, arg),
           "cuLaunchHostFunc");
    return DS_OK;
}

const ds_accel_streams dsc_streams = {.create = create,
                                      .destroy = destroy,
                                      .launch = launch,
                                      .copy = copy,
                                      .fill = fill,
                                      .synchronize = synchronize,
                                      .event_create = event_create,
                                      .event_destroy = event_destroy,
                                      .record = record,
                                      .wait = wait,
                                      .call = call};
