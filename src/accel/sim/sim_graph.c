/* SPDX-License-Identifier: Apache-2.0 */
/* Captured work of `sim`: a list of what was queued, with copies of calls, their operands and
 * attributes, so that a plan that changes one of those later shows in the bits. A launch queues the
 * list on the streams that it came from; order is as uncaptured. See sim_device.h.
 */
#include "accel/sim/sim_device.h"

#include <stdlib.h>
#include <string.h>

typedef struct sim_item {
    ds_accel_stream *stream;
    sim_work work;
    void *copy; /* of the call; NULL: the work has none */
} sim_item;

struct ds_accel_graph {
    ds_accel_stream *origin;
    sim_item *items;
    size_t n, capacity;
};

/* A call and all that its kernel is told, in one block. */
typedef struct sim_call_copy {
    ds_kernel_call call;
    ds_kernel_sig sig;
    ds_tensor operands[]; /* in, out; then attributes */
} sim_call_copy;

static void *copy_call(const ds_kernel_call *call)
{
    const ds_kernel_sig *sig = call->sig;
    const size_t n = (size_t)sig->n_in + sig->n_out;
    const size_t attrs = sig->attrs != NULL ? sig->op->attrs_bytes : 0;
    sim_call_copy *c = malloc(sizeof *c + n * sizeof(ds_tensor) + attrs);
    if (c == NULL) {
        return NULL;
    }
    c->call = *call;
    c->sig = *sig;
    for (size_t i = 0; i < n; ++i) {
        c->operands[i] = i < sig->n_in ? call->in[i] : call->out[i - sig->n_in];
    }
    if (attrs > 0) {
        memcpy(c->operands + n, sig->attrs, attrs);
        c->sig.attrs = c->operands + n;
    }
    c->call.sig = &c->sig;
    c->call.in = c->operands;
    c->call.out = c->operands + sig->n_in;
    return c;
}

static ds_status append(ds_accel_graph *g, ds_accel_stream *s, const sim_work *work)
{
    if (g->n == g->capacity) {
        const size_t capacity = g->capacity > 0 ? 2 * g->capacity : 256;
        sim_item *items = realloc(g->items, capacity * sizeof *items);
        if (items == NULL) {
            return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for captured work");
        }
        g->items = items;
        g->capacity = capacity;
    }
    sim_item *item = &g->items[g->n];
    *item = (sim_item){s, *work, NULL};
    if (work->kind == SIM_LAUNCH) {
        item->copy = copy_call(work->call);
        if (item->copy == NULL) {
            return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for captured work");
        }
        item->work.call = &((sim_call_copy *)item->copy)->call;
    }
    g->n += 1;
    return DS_OK;
}

ds_status dsi_sim_capture(ds_accel_stream *s, const sim_work *work, bool *kept_out)
{
    if (work->kind == SIM_WAIT && work->event->capture != NULL && s->capture == NULL) {
        s->capture = work->event->capture; /* it takes part from here on */
    }
    *kept_out = s->capture != NULL;
    if (s->capture == NULL) {
        return DS_OK;
    }
    if (work->kind == SIM_WAIT && work->event->capture != s->capture) {
        return ds_fail(s->ctx, DS_ERR_STATE,
                       "accelerator sim: a stream that is captured waits for an event recorded "
                       "outside of the capture");
    }
    if (work->kind == SIM_RECORD) {
        work->event->capture = s->capture;
    }
    return append(s->capture, s, work);
}

/* Place of the record that the wait at `i` is for; such a one is captured. */
static size_t record_of(const ds_accel_graph *g, size_t i)
{
    size_t r = i;
    while (r > 0 && (g->items[r].work.kind != SIM_RECORD ||
                     g->items[r].work.event != g->items[i].work.event)) {
        r -= 1;
    }
    return r;
}

/* Whether the origin has waited for all work of the other streams. Backwards: work of stream k
 * before place until[k] ends before the origin's last does. */
static bool is_joined(const ds_accel_graph *g)
{
    const ds_accel_device *device = g->origin->device;
    size_t until[SIM_MAX_STREAMS] = {0};
    bool joined = true;
    for (size_t i = g->n; i-- > 0 && joined;) {
        const size_t r = g->items[i].work.kind == SIM_WAIT ? record_of(g, i) : 0;
        joined = false;
        for (uint32_t k = 0; k < device->n_streams; ++k) {
            joined = joined || (device->streams[k] == g->items[i].stream &&
                                (i < until[k] || g->items[i].stream == g->origin));
        }
        for (uint32_t k = 0; k < device->n_streams && g->items[i].work.kind == SIM_WAIT; ++k) {
            if (device->streams[k] == g->items[r].stream && r + 1 > until[k]) {
                until[k] = r + 1;
            }
        }
    }
    return joined;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void destroy(ds_accel_graph **graph)
{
    ds_accel_graph *g = graph != NULL ? *graph : NULL;
    if (g == NULL) {
        return;
    }
    for (size_t i = 0; i < g->n; ++i) {
        free(g->items[i].copy);
    }
    free(g->items);
    free(g);
    *graph = NULL;
}

static ds_status begin(ds_accel_stream *stream)
{
    if (stream->device->has_graphs == 0) {
        return DS_ERR_UNSUPPORTED;
    }
    if (stream->capture != NULL) {
        return ds_fail(stream->ctx, DS_ERR_STATE, "accelerator sim: a stream is captured already");
    }
    ds_accel_graph *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return ds_fail(stream->ctx, DS_ERR_NOMEM, "no memory for captured work");
    }
    g->origin = stream;
    (void)pthread_mutex_lock(&stream->device->lock);
    stream->capture = g;
    (void)pthread_mutex_unlock(&stream->device->lock);
    return DS_OK;
}

static ds_status end(ds_accel_stream *stream, ds_accel_graph **graph_out)
{
    ds_accel_graph *g = stream->capture;
    ds_accel_device *device = stream->device;
    *graph_out = NULL;
    if (g == NULL || g->origin != stream) {
        return ds_fail(stream->ctx, DS_ERR_STATE, "accelerator sim: no capture began on a stream");
    }
    (void)pthread_mutex_lock(&device->lock);
    for (uint32_t i = 0; i < device->n_streams; ++i) {
        if (device->streams[i]->capture == g) {
            device->streams[i]->capture = NULL;
        }
    }
    for (size_t i = 0; i < g->n; ++i) {
        if (g->items[i].work.kind == SIM_RECORD) {
            g->items[i].work.event->capture = NULL;
        }
    }
    const bool joined = is_joined(g);
    (void)pthread_mutex_unlock(&device->lock);
    if (!joined) {
        destroy(&g);
        return ds_fail(stream->ctx, DS_ERR_STATE,
                       "accelerator sim: a capture ends before what another stream has to do");
    }
    *graph_out = g;
    return DS_OK;
}

static ds_status launch(ds_accel_stream *stream, ds_accel_graph *graph)
{
    if (stream != graph->origin) {
        return ds_fail(stream->ctx, DS_ERR_STATE,
                       "accelerator sim: captured work is launched on another stream");
    }
    for (size_t i = 0; i < graph->n; ++i) {
        DS_TRY(dsi_sim_put(graph->items[i].stream, graph->items[i].work));
    }
    return DS_OK;
}

const ds_accel_graphs dsi_sim_graphs = {
    .begin = begin, .end = end, .launch = launch, .destroy = destroy};
