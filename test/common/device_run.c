/* SPDX-License-Identifier: Apache-2.0 */
/* See device_run.h. */
#include "common/device_run.h"

#include <string.h>

static const ds_accel *on;
static ds_accel_device *device;
static ds_accel_stream *stream;
static const ds_kernel *kernel;
static ds_kernel wrapper;

void device_run_on(const ds_accel *accel, ds_accel_device *its_device, ds_accel_stream *its_stream)
{
    on = accel;
    device = its_device;
    stream = its_stream;
}

typedef struct room {
    ds_tensor in[DS_MAX_IN], out[DS_MAX_OUT];
    void *work;
    size_t work_bytes;
} room;

static ds_status place(ds_ctx *ctx, const ds_tensor *host, ds_tensor *t, bool copies)
{
    *t = *host;
    const size_t bytes = ds_meta_bytes(host->meta);
    if (host->data == NULL) {
        return DS_OK;
    }
    DS_TRY(on->memory->alloc(device, ctx, bytes, "an operand", &t->data));
    return copies && bytes > 0 ? on->memory->copy(device, t->data, host->data, bytes) : DS_OK;
}

static ds_status place_all(const ds_kernel_call *call, room *r)
{
    for (uint32_t i = 0; i < call->sig->n_in; ++i) {
        DS_TRY(place(call->ctx, &call->in[i], &r->in[i], true));
    }
    for (uint32_t o = 0; o < call->sig->n_out; ++o) {
        void *shared = NULL;
        for (uint32_t i = 0; i < call->sig->n_in && call->out[o].data != NULL; ++i) {
            shared = call->in[i].data == call->out[o].data ? r->in[i].data : shared;
        }
        r->out[o] = call->out[o];
        r->out[o].data = shared;
        DS_TRY(shared == NULL ? place(call->ctx, &call->out[o], &r->out[o], true) : DS_OK);
    }
    r->work_bytes = kernel->work_bytes != NULL ? kernel->work_bytes(call->sig) : 0;
    return r->work_bytes > 0
               ? on->memory->alloc(device, call->ctx, r->work_bytes, "scratch", &r->work)
               : DS_OK;
}

static ds_status launch(const ds_kernel_call *call, const room *r)
{
    const ds_kernel_call *failed = NULL;
    const ds_kernel_call own = {
        .ctx = call->ctx, .sig = call->sig, .in = r->in, .out = r->out, .work = r->work};
    const ds_status launched = on->streams->launch(stream, kernel, &own);
    const ds_status done = on->streams->synchronize(stream, &failed);
    DS_TRY(launched < 0 ? launched : done);
    for (uint32_t o = 0; o < call->sig->n_out; ++o) {
        const size_t bytes = ds_meta_bytes(call->out[o].meta);
        if (call->out[o].data != NULL && bytes > 0) {
            DS_TRY(on->memory->copy(device, call->out[o].data, r->out[o].data, bytes));
        }
    }
    return DS_OK;
}

static void release(const ds_kernel_call *call, room *r)
{
    for (uint32_t o = 0; o < call->sig->n_out; ++o) {
        bool shared = false;
        for (uint32_t i = 0; i < call->sig->n_in; ++i) {
            shared = shared || r->in[i].data == r->out[o].data;
        }
        if (!shared && r->out[o].data != NULL) {
            on->memory->release(device, r->out[o].data, ds_meta_bytes(r->out[o].meta));
        }
    }
    for (uint32_t i = 0; i < call->sig->n_in; ++i) {
        if (r->in[i].data != NULL) {
            on->memory->release(device, r->in[i].data, ds_meta_bytes(r->in[i].meta));
        }
    }
    if (r->work != NULL) {
        on->memory->release(device, r->work, r->work_bytes);
    }
}

static ds_status run(const ds_kernel_call *call)
{
    room r;
    memset(&r, 0, sizeof r);
    const ds_status placed = place_all(call, &r);
    const ds_status status = placed < 0 ? placed : launch(call, &r);
    release(call, &r);
    return status;
}

const ds_kernel *device_run_kernel(const ds_kernel *inner)
{
    kernel = inner;
    wrapper =
        (ds_kernel){.version = DS_OP_VERSION, .name = inner->name, .op = inner->op, .run = run};
    return &wrapper;
}
