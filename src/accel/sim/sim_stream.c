/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of `sim`: work waits in queues, and a turn runs the next of a stream drawn by chance
 * among those that no event holds; for a while, drawn too, one of them has no turn while others
 * can. Copies take a turn for each piece, so that others see them half done. Turns are taken while
 * somebody waits for a stream, and now and then when work is queued, so that work comes late or
 * early. One seed, one order. See sim_device.h.
 */
#include "accel/sim/sim_device.h"

#include <stdlib.h>
#include <string.h>

/* ---- what runs ------------------------------------------------------------------------------- */

/* Draws below n (splitmix64). */
static uint32_t draw(ds_accel_device *device, uint32_t n)
{
    device->random += 0x9e3779b97f4a7c15u;
    uint64_t x = device->random;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ (x >> 31)) % n);
}

static ds_status translate(const ds_accel_stream *s, const ds_kernel_call *call, uint32_t n,
                           const ds_tensor *from, const char *what, ds_tensor *to)
{
    for (uint32_t i = 0; i < n; ++i) {
        to[i] = from[i];
        if (from[i].data == NULL) {
            continue;
        }
        to[i].data = dsi_sim_real(s->device, from[i].data, ds_meta_bytes(from[i].meta));
        if (to[i].data == NULL) {
            return ds_fail(s->ctx, DS_ERR_STATE, "accelerator sim: %s %u of %s is no device memory",
                           what, i, call->sig->op->name);
        }
    }
    return DS_OK;
}

static ds_status run_kernel(const ds_accel_stream *s, const sim_work *w)
{
    ds_tensor in[DS_MAX_IN];
    ds_tensor out[DS_MAX_OUT];
    ds_kernel_call call = *w->call;
    if (call.sig->n_in > DS_MAX_IN || call.sig->n_out > DS_MAX_OUT) {
        return ds_fail(s->ctx, DS_ERR_LIMIT, "accelerator sim: too many operands of %s",
                       call.sig->op->name);
    }
    DS_TRY(translate(s, w->call, call.sig->n_in, call.in, "input", in));
    DS_TRY(translate(s, w->call, call.sig->n_out, call.out, "output", out));
    call.in = in;
    call.out = out;
    if (call.work != NULL) {
        const size_t bytes = w->kernel->work_bytes != NULL ? w->kernel->work_bytes(call.sig) : 0;
        call.work = dsi_sim_real(s->device, call.work, bytes);
    }
    return w->kernel->run(&call);
}

/* A turn of a copy or a fill; whether it is done. */
static bool move(const ds_accel_device *device, sim_work *w)
{
    const size_t left = w->bytes - w->done;
    const size_t n = left < device->turn_bytes ? left : (size_t)device->turn_bytes;
    unsigned char *to = (unsigned char *)w->to + w->done;
    if (w->kind == SIM_COPY) {
        memcpy(to, (const unsigned char *)w->from + w->done, n);
    } else {
        memset(to, w->byte, n);
    }
    w->done += n;
    return w->done == w->bytes;
}

static void take_turn(ds_accel_stream *s)
{
    sim_work *w = &s->queue[s->head];
    bool done = true;
    switch (w->kind) {
    case SIM_LAUNCH:
        s->failed = run_kernel(s, w);
        done = s->failed >= 0;
        break;
    case SIM_COPY:
    case SIM_FILL:
        done = move(s->device, w);
        break;
    case SIM_RECORD:
        w->event->done = w->ticket;
        break;
    case SIM_CALL:
        w->fn(w->arg);
        break;
    case SIM_WAIT:
        break;
    }
    if (done) {
        s->head = (s->head + 1) % SIM_QUEUE;
        s->n -= 1;
    }
}

static bool is_runnable(const ds_accel_stream *s, const ds_ctx *ctx)
{
    const sim_work *w = &s->queue[s->head];
    return s->ctx == ctx && s->n > 0 && s->failed >= 0 &&
           (w->kind != SIM_WAIT || w->event->done >= w->ticket);
}

/* Drawn turn by turn, no stream comes far behind the others; so one of them is held back. */
static void draw_starved(ds_accel_device *device)
{
    if (device->starved_for > 0) {
        device->starved_for -= 1;
        return;
    }
    const uint32_t which = draw(device, device->n_streams + 1);
    device->starved = which < device->n_streams ? device->streams[which] : NULL;
    device->starved_for = draw(device, 1000);
}

/* One turn of some stream of the context; false: all are empty or held. */
static bool turn(ds_accel_device *device, const ds_ctx *ctx)
{
    ds_accel_stream *can[SIM_MAX_STREAMS];
    uint32_t n = 0;
    draw_starved(device);
    for (uint32_t i = 0; i < device->n_streams; ++i) {
        if (is_runnable(device->streams[i], ctx) && device->streams[i] != device->starved) {
            can[n++] = device->streams[i];
        }
    }
    for (uint32_t i = 0; i < device->n_streams && n == 0; ++i) {
        if (is_runnable(device->streams[i], ctx)) {
            can[n++] = device->streams[i];
        }
    }
    if (n > 0) {
        take_turn(can[draw(device, n)]);
    }
    return n > 0;
}

/* The end of work behind a failure: what does not depend on it has run, the rest is dropped. */
static ds_status fail_group(ds_accel_device *device, const ds_ctx *ctx,
                            const ds_kernel_call **failed_out)
{
    ds_status status = DS_OK;
    for (uint32_t i = 0; i < device->n_streams; ++i) {
        ds_accel_stream *s = device->streams[i];
        if (s->ctx != ctx) {
            continue;
        }
        if (s->failed < 0) {
            status = s->failed;
            *failed_out = s->queue[s->head].told;
        }
        for (; s->n > 0; --s->n, s->head = (s->head + 1) % SIM_QUEUE) {
            const sim_work *w = &s->queue[s->head];
            if (w->kind == SIM_RECORD) {
                w->event->done = w->ticket;
            }
        }
        s->failed = DS_OK;
    }
    return status;
}

/* ---- the table ------------------------------------------------------------------------------- */

static ds_status create(ds_accel_device *device, ds_ctx *ctx, ds_accel_stream **stream_out)
{
    ds_accel_stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a stream");
    }
    s->device = device;
    s->ctx = ctx;
    (void)pthread_mutex_lock(&device->lock);
    const bool full = device->n_streams == SIM_MAX_STREAMS;
    if (!full) {
        device->streams[device->n_streams++] = s;
        dsi_sim_time_new_stream(device, &s->clock);
    }
    (void)pthread_mutex_unlock(&device->lock);
    if (full) {
        free(s);
        return ds_fail(ctx, DS_ERR_LIMIT, "accelerator sim: more than %d streams", SIM_MAX_STREAMS);
    }
    *stream_out = s;
    return DS_OK;
}

static void destroy(ds_accel_stream **stream)
{
    ds_accel_stream *s = stream != NULL ? *stream : NULL;
    if (s == NULL) {
        return;
    }
    ds_accel_device *device = s->device;
    (void)pthread_mutex_lock(&device->lock);
    device->starved = device->starved == s ? NULL : device->starved;
    for (uint32_t i = 0; i < device->n_streams; ++i) {
        if (device->streams[i] == s) {
            device->streams[i] = device->streams[--device->n_streams];
            break;
        }
    }
    (void)pthread_mutex_unlock(&device->lock);
    free(s);
    *stream = NULL;
}

static void take_time(ds_accel_stream *s, const sim_work *w)
{
    switch (w->kind) {
    case SIM_LAUNCH:
    case SIM_FILL:
    case SIM_CALL:
        dsi_sim_time_kernel(s->device, s->ctx, &s->clock);
        break;
    case SIM_COPY:
        dsi_sim_time_copy(s->device, s->ctx, &s->clock, w->bytes);
        break;
    case SIM_RECORD:
        dsi_sim_time_record(s->device, s->ctx, &s->clock, &w->event->time);
        break;
    case SIM_WAIT:
        dsi_sim_time_wait(s->device, &s->clock, w->event->time);
        break;
    }
}

static ds_status queue(ds_accel_stream *s, sim_work work)
{
    ds_accel_device *device = s->device;
    uint32_t early = draw(device, 4) == 0 ? draw(device, 8) : 0;
    while (early > 0 && turn(device, s->ctx)) {
        early -= 1;
    }
    while (s->n == SIM_QUEUE && turn(device, s->ctx)) {
    }
    if (s->n == SIM_QUEUE) { /* something has failed: synchronize says what */
        return ds_fail(s->ctx, DS_ERR_STATE, "accelerator sim: the queue of a stream is full");
    }
    if (work.kind == SIM_RECORD) {
        work.ticket = ++work.event->recorded;
    } else if (work.kind == SIM_WAIT) {
        work.ticket = work.event->recorded;
    }
    take_time(s, &work);
    s->queue[(s->head + s->n++) % SIM_QUEUE] = work;
    return DS_OK;
}

ds_status dsi_sim_put(ds_accel_stream *s, sim_work work)
{
    bool kept = false;
    (void)pthread_mutex_lock(&s->device->lock);
    ds_status status = dsi_sim_capture(s, &work, &kept);
    if (status >= 0 && !kept) {
        status = queue(s, work);
    }
    (void)pthread_mutex_unlock(&s->device->lock);
    return status;
}

static ds_status launch(ds_accel_stream *s, const ds_kernel *kernel, const ds_kernel_call *call)
{
    return dsi_sim_put(
        s, (sim_work){.kind = SIM_LAUNCH, .kernel = kernel, .call = call, .told = call});
}

static void *real_of(const ds_accel_stream *s, const void *memory, size_t n)
{
    void *real = dsi_sim_real(s->device, memory, n);
    return real != NULL ? real : (void *)(uintptr_t)memory;
}

static ds_status copy(ds_accel_stream *s, void *to, const void *from, size_t bytes)
{
    return dsi_sim_put(s, (sim_work){.kind = SIM_COPY,
                                     .to = real_of(s, to, bytes),
                                     .from = real_of(s, from, bytes),
                                     .bytes = bytes});
}

static ds_status fill(ds_accel_stream *s, void *to, int byte, size_t bytes)
{
    return dsi_sim_put(
        s, (sim_work){.kind = SIM_FILL, .to = real_of(s, to, bytes), .byte = byte, .bytes = bytes});
}

static ds_status synchronize(ds_accel_stream *s, const ds_kernel_call **failed_out)
{
    ds_accel_device *device = s->device;
    ds_status status = DS_OK;
    *failed_out = NULL;
    if (s->capture != NULL) {
        return ds_fail(s->ctx, DS_ERR_STATE, "accelerator sim: a stream is captured, nothing runs");
    }
    (void)pthread_mutex_lock(&device->lock);
    dsi_sim_time_synchronize(device, s->ctx, &s->clock);
    while (s->n > 0 && turn(device, s->ctx)) {
    }
    if (s->n > 0) { /* held: by a failure, or for ever */
        while (turn(device, s->ctx)) {
        }
        status = fail_group(device, s->ctx, failed_out);
        status = status < 0 ? status
                            : ds_fail(s->ctx, DS_ERR_STATE,
                                      "accelerator sim: a stream waits for an event that no stream "
                                      "will pass");
    }
    (void)pthread_mutex_unlock(&device->lock);
    return status;
}

static ds_status event_create(ds_accel_device *device, ds_ctx *ctx, ds_accel_event **event_out)
{
    ds_accel_event *event = calloc(1, sizeof *event);
    if (event == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for an event");
    }
    event->device = device;
    *event_out = event;
    return DS_OK;
}

static void event_destroy(ds_accel_event **event)
{
    if (event != NULL) {
        free(*event);
        *event = NULL;
    }
}

static ds_status record(ds_accel_stream *s, ds_accel_event *event)
{
    return dsi_sim_put(s, (sim_work){.kind = SIM_RECORD, .event = event});
}

static ds_status wait(ds_accel_stream *s, ds_accel_event *event)
{
    return dsi_sim_put(s, (sim_work){.kind = SIM_WAIT, .event = event});
}

static ds_status call(ds_accel_stream *s, void (*fn)(void *arg), void *arg)
{
    return dsi_sim_put(s, (sim_work){.kind = SIM_CALL, .fn = fn, .arg = arg});
}

const ds_accel_streams dsi_sim_streams = {.create = create,
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
