/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events of the stand-in, and what is queued. See standin.h. */
#include "accel/standin/standin.h"

#include <stdlib.h>
#include <string.h>

bool standin_is_stream(const struct CUstream_st *s)
{
    for (uint32_t i = 0; i < standin_all.n_streams; ++i) {
        if (standin_all.streams[i] == s) {
            return true;
        }
    }
    return false;
}

static bool make_room(struct CUstream_st *s)
{
    if (s->n < s->capacity) {
        return true;
    }
    const uint32_t capacity = s->capacity > 0 ? 2 * s->capacity : 64;
    work *queue = malloc(capacity * sizeof *queue);
    if (queue == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < s->n; ++i) {
        queue[i] = s->queue[(s->head + i) % s->capacity];
    }
    free(s->queue);
    s->queue = queue;
    s->head = 0;
    s->capacity = capacity;
    return true;
}

dsc_cu_result standin_put(struct CUstream_st *s, const work *w)
{
    if (!standin_is_stream(s)) {
        return DSC_CU_INVALID_HANDLE;
    }
    const bool joins = w->kind == WAIT && standin_capture_of(w->event->capture) != NULL;
    if (w->kind == WAIT && w->event->capture != 0 && !joins) {
        return DSC_CU_CAPTURED_EVENT;
    }
    if (s->capture != NULL || joins) {
        return standin_capture(s, w);
    }
    standin_early();
    if (!make_room(s)) {
        return DSC_CU_OUT_OF_MEMORY;
    }
    work *queued = &s->queue[(s->head + s->n++) % s->capacity];
    *queued = *w;
    if (w->kind == RECORD) {
        queued->ticket = ++w->event->recorded;
        w->event->capture = 0;
    } else if (w->kind == WAIT) {
        queued->ticket = w->event->recorded;
    }
    return DSC_CU_SUCCESS;
}

static dsc_cu_result put(struct CUstream_st *s, const work *w)
{
    const dsc_cu_result entered = standin_enter();
    return standin_leave(entered != DSC_CU_SUCCESS ? entered : standin_put(s, w));
}

dsc_cu_result standin_call(struct CUstream_st *s, bool (*call)(const void *args), const void *args,
                           size_t bytes)
{
    work w = {.kind = CALL, .call = call};
    if (bytes > sizeof w.args) {
        return DSC_CU_INVALID_VALUE;
    }
    memcpy(w.args, args, bytes);
    return put(s, &w);
}

static bool drain(const struct CUstream_st *s)
{
    while (s->n > 0 && standin_turn()) {
    }
    return s->n == 0;
}

STANDIN_API dsc_cu_result cuStreamCreate(dsc_cu_stream *stream_out, unsigned flags);
dsc_cu_result cuStreamCreate(dsc_cu_stream *stream_out, unsigned flags)
{
    const dsc_cu_result entered = standin_enter();
    if (entered != DSC_CU_SUCCESS || flags != DSC_CU_STREAM_NON_BLOCKING) {
        return standin_leave(entered != DSC_CU_SUCCESS ? entered : DSC_CU_NOT_SUPPORTED);
    }
    struct CUstream_st *s = standin_all.n_streams < MOST_STREAMS ? calloc(1, sizeof *s) : NULL;
    if (s == NULL) {
        return standin_leave(DSC_CU_OUT_OF_MEMORY);
    }
    standin_all.streams[standin_all.n_streams++] = s;
    *stream_out = s;
    return standin_leave(DSC_CU_SUCCESS);
}

/* What it has to do is done first: later would be right too. */
STANDIN_API dsc_cu_result cuStreamDestroy_v2(dsc_cu_stream s);
dsc_cu_result cuStreamDestroy_v2(dsc_cu_stream s)
{
    const dsc_cu_result entered = standin_enter();
    if (entered != DSC_CU_SUCCESS || !standin_is_stream(s)) {
        return standin_leave(entered != DSC_CU_SUCCESS ? entered : DSC_CU_INVALID_HANDLE);
    }
    (void)drain(s);
    for (uint32_t i = 0; i < standin_all.n_streams; ++i) {
        if (standin_all.streams[i] == s) {
            standin_all.streams[i] = standin_all.streams[--standin_all.n_streams];
            break;
        }
    }
    standin_all.starved = NULL;
    free(s->queue);
    free(s->after.items);
    free(s);
    return standin_leave(DSC_CU_SUCCESS);
}

STANDIN_API dsc_cu_result cuStreamSynchronize(dsc_cu_stream s);
dsc_cu_result cuStreamSynchronize(dsc_cu_stream s)
{
    const dsc_cu_result entered = standin_enter();
    if (entered != DSC_CU_SUCCESS || !standin_is_stream(s)) {
        return standin_leave(entered != DSC_CU_SUCCESS ? entered : DSC_CU_INVALID_HANDLE);
    }
    if (s->capture != NULL) {
        s->capture->broken = true;
        return standin_leave(DSC_CU_STREAM_CAPTURE_UNSUPPORTED);
    }
    if (standin_all.broken != 0 && ++standin_all.n_syncs >= standin_all.broken) {
        return standin_leave(DSC_CU_ECC_UNCORRECTABLE);
    }
    return standin_leave(standin_ignores(s->n == 0) || drain(s) ? DSC_CU_SUCCESS
                                                                : DSC_CU_LAUNCH_FAILED);
}

/* Memory that is not pinned may hold up the host. */
static dsc_cu_result put_copy(struct CUstream_st *s, const work *w)
{
    bool to = false;
    bool from = false;
    const dsc_cu_result entered = standin_enter();
    if (entered != DSC_CU_SUCCESS || !standin_is_stream(s) ||
        !standin_reaches(w->to, w->bytes, &to) || !standin_reaches(w->from, w->bytes, &from)) {
        return standin_leave(entered != DSC_CU_SUCCESS ? entered : DSC_CU_INVALID_VALUE);
    }
    const bool pinned = to && from;
    if (s->capture != NULL && !pinned) {
        s->capture->broken = true;
        return standin_leave(DSC_CU_STREAM_CAPTURE_UNSUPPORTED);
    }
    const dsc_cu_result result = standin_put(s, w);
    if (result == DSC_CU_SUCCESS && !pinned && standin_draw(2) == 0) {
        (void)drain(s);
    }
    return standin_leave(result);
}

STANDIN_API dsc_cu_result cuMemcpyAsync(dsc_cu_ptr to, dsc_cu_ptr from, size_t bytes,
                                        dsc_cu_stream s);
dsc_cu_result cuMemcpyAsync(dsc_cu_ptr to, dsc_cu_ptr from, size_t bytes, dsc_cu_stream s)
{
    return put_copy(s, &(work){.kind = COPY,
                               .to = (unsigned char *)(uintptr_t)to,
                               .from = (const unsigned char *)(uintptr_t)from,
                               .bytes = bytes});
}

STANDIN_API dsc_cu_result cuMemsetD8Async(dsc_cu_ptr to, unsigned char byte, size_t bytes,
                                          dsc_cu_stream s);
dsc_cu_result cuMemsetD8Async(dsc_cu_ptr to, unsigned char byte, size_t bytes, dsc_cu_stream s)
{
    return put(
        s,
        &(work){.kind = FILL, .to = (unsigned char *)(uintptr_t)to, .byte = byte, .bytes = bytes});
}

STANDIN_API dsc_cu_result cuEventCreate(dsc_cu_event *event_out, unsigned flags);
dsc_cu_result cuEventCreate(dsc_cu_event *event_out, unsigned flags)
{
    const dsc_cu_result entered = standin_enter();
    (void)flags;
    *event_out = calloc(1, sizeof **event_out);
    return standin_leave(entered != DSC_CU_SUCCESS ? entered
                         : *event_out != NULL      ? DSC_CU_SUCCESS
                                                   : DSC_CU_OUT_OF_MEMORY);
}

static bool is_named(const struct CUevent_st *event)
{
    for (uint32_t i = 0; i < standin_all.n_streams; ++i) {
        const struct CUstream_st *s = standin_all.streams[i];
        for (uint32_t k = 0; k < s->n; ++k) {
            const work *w = &s->queue[(s->head + k) % s->capacity];
            if ((w->kind == RECORD || w->kind == WAIT) && w->event == event) {
                return true;
            }
        }
    }
    return false;
}

/* Returns at once on a device, which keeps what is still needed; here what is queued and names it
 * runs first. */
STANDIN_API dsc_cu_result cuEventDestroy_v2(dsc_cu_event event);
dsc_cu_result cuEventDestroy_v2(dsc_cu_event event)
{
    const dsc_cu_result entered = standin_enter();
    if (entered == DSC_CU_SUCCESS) {
        while (is_named(event) && standin_turn()) {
        }
        free(event->after.items);
        free(event);
    }
    return standin_leave(entered);
}

STANDIN_API dsc_cu_result cuEventRecord(dsc_cu_event event, dsc_cu_stream s);
dsc_cu_result cuEventRecord(dsc_cu_event event, dsc_cu_stream s)
{
    return put(s, &(work){.kind = RECORD, .event = event});
}

/* Time passes. */
STANDIN_API dsc_cu_result cuEventQuery(dsc_cu_event event);
dsc_cu_result cuEventQuery(dsc_cu_event event)
{
    enum { TURNS = 40 };
    const dsc_cu_result entered = standin_unsafe(standin_enter());
    if (entered != DSC_CU_SUCCESS) {
        return standin_leave(entered);
    }
    if (event->capture != 0) { /* in any mode: it has not been recorded */
        return standin_leave(DSC_CU_CAPTURED_EVENT);
    }
    for (int i = 0; i < TURNS && event->done < event->recorded && standin_turn(); ++i) {
    }
    return standin_leave(event->done < event->recorded ? DSC_CU_NOT_READY : DSC_CU_SUCCESS);
}

STANDIN_API dsc_cu_result cuStreamWaitEvent(dsc_cu_stream s, dsc_cu_event event, unsigned flags);
dsc_cu_result cuStreamWaitEvent(dsc_cu_stream s, dsc_cu_event event, unsigned flags)
{
    const dsc_cu_result entered = standin_enter();
    (void)flags;
    return standin_leave(entered != DSC_CU_SUCCESS ? entered
                         : standin_ignores(event->capture == 0 && event->done == event->recorded)
                             ? DSC_CU_SUCCESS
                             : standin_put(s, &(work){.kind = WAIT, .event = event}));
}

/* kernelParams are not known here: a size is in `extra` alone. */
STANDIN_API dsc_cu_result cuLaunchKernel(dsc_cu_function function, unsigned grid_x, unsigned grid_y,
                                         unsigned grid_z, unsigned block_x, unsigned block_y,
                                         unsigned block_z, unsigned shared_bytes, dsc_cu_stream s,
                                         void **params, void **extra);
dsc_cu_result cuLaunchKernel(dsc_cu_function function, unsigned grid_x, unsigned grid_y,
                             unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, dsc_cu_stream s, void **params, void **extra)
{
    work w = {.kind = LAUNCH,
              .kernel = function->row,
              .grid = {grid_x, grid_y, grid_z},
              .block = {block_x, block_y, block_z}};
    const void *args = NULL;
    size_t bytes = 0;
    for (; params == NULL && extra != NULL && *extra != DSC_CU_PARAM_END; extra += 2) {
        args = extra[0] == DSC_CU_PARAM_POINTER ? extra[1] : args;
        bytes = extra[0] == DSC_CU_PARAM_SIZE ? *(const size_t *)extra[1] : bytes;
    }
    const uint64_t threads = (uint64_t)block_x * block_y * block_z;
    if (args == NULL || bytes > ARGS_BYTES || shared_bytes != 0 || threads == 0 || threads > 1024 ||
        grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_y > 65535 || grid_z > 65535 ||
        grid_x > 0x7fffffffu) {
        return DSC_CU_INVALID_VALUE;
    }
    memcpy(w.args, args, bytes);
    return put(s, &w);
}

STANDIN_API dsc_cu_result cuLaunchHostFunc(dsc_cu_stream s, void (*fn)(void *arg), void *arg);
dsc_cu_result cuLaunchHostFunc(dsc_cu_stream s, void (*fn)(void *arg), void *arg)
{
    return fn == NULL ? DSC_CU_INVALID_VALUE : put(s, &(work){.kind = HOST, .fn = fn, .arg = arg});
}
