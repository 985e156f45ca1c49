/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of memory, streams and events. Each draws operations from a seed, does them on the device
 * and, in plain C, on a copy in host memory, and compares the bytes. See accel_conform.h.
 */
#include "common/accel_conform.h"

#include "base/rng.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCKS = 5,
    BLOCK_BYTES = 20000,
    STREAMS = 4,
    OPERATIONS = 300,
    GRAPH_OPERATIONS = 200,
    MANY = 5000
};

/* Blocks of device memory, and what they should hold. */
typedef struct shadow {
    unsigned char *device[BLOCKS], *host[BLOCKS];
    unsigned char *room; /* what is copied from the host, OPERATIONS * BLOCK_BYTES */
} shadow;

static uint32_t below(const accel_conform *c, uint32_t site, uint64_t at, uint32_t n)
{
    return (uint32_t)dsi_rng_below(c->seed, site, at, n);
}

static const size_t ROOM_BYTES = (size_t)OPERATIONS * BLOCK_BYTES;

static void drop(accel_conform *c, shadow *s)
{
    if (s->room != NULL && c->accel->memory->unpin != NULL) {
        c->accel->memory->unpin(c->device, s->room, ROOM_BYTES);
    }
    for (int b = 0; b < BLOCKS; ++b) {
        if (s->device[b] != NULL) {
            c->accel->memory->release(c->device, s->device[b], BLOCK_BYTES);
        }
        free(s->host[b]);
    }
    free(s->room);
}

static ds_status make(accel_conform *c, shadow *s)
{
    *s = (shadow){.room = aligned_alloc(4096, (ROOM_BYTES + 4095) / 4096 * 4096)};
    bool whole = s->room != NULL;
    if (whole) {
        memset(s->room, 0, ROOM_BYTES);
    }
    if (whole && c->accel->memory->pin != NULL) {
        DS_TRY(c->accel->memory->pin(c->device, c->ctx, s->room, ROOM_BYTES));
    }
    for (int b = 0; b < BLOCKS; ++b) {
        void *memory = NULL;
        DS_TRY(c->accel->memory->alloc(c->device, c->ctx, BLOCK_BYTES, "a check", &memory));
        s->device[b] = memory;
        s->host[b] = calloc(1, BLOCK_BYTES);
        whole = whole && s->host[b] != NULL;
        if ((uintptr_t)memory % 64 != 0) {
            return ds_fail(c->ctx, DS_ERR_STATE,
                           "alloc: expected memory aligned to 64 bytes, got %p", memory);
        }
    }
    return whole ? DS_OK : ds_fail(c->ctx, DS_ERR_NOMEM, "no memory for a check");
}

static ds_status compare(accel_conform *c, const shadow *s, const char *when)
{
    unsigned char seen[BLOCK_BYTES];
    for (int b = 0; b < BLOCKS; ++b) {
        DS_TRY(c->accel->memory->copy(c->device, seen, s->device[b], BLOCK_BYTES));
        for (size_t i = 0; i < BLOCK_BYTES; ++i) {
            if (seen[i] != s->host[b][i]) {
                return ds_fail(c->ctx, DS_ERR_STATE,
                               "%s: byte %zu of block %d is %u, expected %u (seed %" PRIu64 ")",
                               when, i, b, seen[i], s->host[b][i], c->seed);
            }
        }
    }
    return DS_OK;
}

/* One operation: bytes of block `to`, from block `from`, from the host, or one value. */
typedef struct operation {
    enum { FROM_HOST, FROM_BLOCK, FILL, KINDS } kind;
    uint32_t to, from;
    size_t to_at, from_at, bytes;
    int value;
} operation;

static operation draw(const accel_conform *c, uint64_t at)
{
    operation o = {.kind = below(c, 0, at, KINDS), .to = below(c, 1, at, BLOCKS)};
    o.from = (o.to + 1 + below(c, 2, at, BLOCKS - 1)) % BLOCKS; /* another: no overlap */
    o.bytes = below(c, 3, at, 4) == 0 ? below(c, 4, at, BLOCK_BYTES) : below(c, 4, at, 200);
    o.to_at = below(c, 5, at, (uint32_t)(BLOCK_BYTES - o.bytes) + 1);
    o.from_at = below(c, 6, at, (uint32_t)(BLOCK_BYTES - o.bytes) + 1);
    o.value = (int)below(c, 7, at, 256);
    return o;
}

/* Does it on the host; `room`: what a copy from the host brings, and keeps. */
static void do_on_host(const shadow *s, const operation *o, unsigned char *room)
{
    unsigned char *to = s->host[o->to] + o->to_at;
    for (size_t i = 0; o->kind == FROM_HOST && i < o->bytes; ++i) {
        room[i] = (unsigned char)((size_t)o->value + i * 7);
    }
    if (o->kind == FILL) {
        memset(to, o->value, o->bytes);
    } else {
        memcpy(to, o->kind == FROM_HOST ? room : s->host[o->from] + o->from_at, o->bytes);
    }
}

static ds_status check_memory(accel_conform *c)
{
    const ds_accel_memory *m = c->accel->memory;
    shadow s;
    ds_status status = make(c, &s);
    status = status < 0 ? status : compare(c, &s, "alloc");
    for (uint32_t i = 0; i < OPERATIONS * c->rounds && status >= 0; ++i) {
        const operation o = draw(c, i);
        unsigned char *to = s.device[o.to] + o.to_at;
        do_on_host(&s, &o, s.room);
        status =
            o.kind == FILL
                ? m->fill(c->device, to, o.value, o.bytes)
                : m->copy(c->device, to,
                          o.kind == FROM_HOST ? s.room : s.device[o.from] + o.from_at, o.bytes);
    }
    status = status < 0 ? status : compare(c, &s, "copy and fill");
    if (status >= 0 && m->on_host) {
        for (int b = 0; b < BLOCKS; ++b) {
            memset(s.device[b], b + 1, BLOCK_BYTES);
            memset(s.host[b], b + 1, BLOCK_BYTES);
        }
        status = compare(c, &s, "on_host: writes of the host");
    }
    drop(c, &s);
    return status;
}

/* ---- streams --------------------------------------------------------------------------------- */

typedef struct queues {
    ds_accel_stream *streams[STREAMS];
    ds_accel_event *events[OPERATIONS]; /* behind each operation */
} queues;

static ds_status open_queues(accel_conform *c, queues *q)
{
    const ds_accel_streams *t = c->accel->streams;
    *q = (queues){{NULL}, {NULL}};
    for (int i = 0; i < STREAMS; ++i) {
        DS_TRY(t->create(c->device, c->ctx, &q->streams[i]));
    }
    for (int i = 0; i < OPERATIONS; ++i) {
        DS_TRY(t->event_create(c->device, c->ctx, &q->events[i]));
    }
    return DS_OK;
}

static ds_status synchronize(accel_conform *c, const queues *q)
{
    for (int i = 0; i < STREAMS; ++i) {
        const ds_kernel_call *failed = NULL;
        DS_TRY(c->accel->streams->synchronize(q->streams[i], &failed));
    }
    return DS_OK;
}

static void close_queues(accel_conform *c, queues *q)
{
    const ds_accel_streams *t = c->accel->streams;
    for (int i = 0; i < OPERATIONS; ++i) {
        t->event_destroy(&q->events[i]);
    }
    for (int i = 0; i < STREAMS; ++i) {
        t->destroy(&q->streams[i]);
    }
}

static ds_status enqueue(accel_conform *c, const shadow *s, const operation *o,
                         ds_accel_stream *stream, const unsigned char *room)
{
    const ds_accel_streams *t = c->accel->streams;
    unsigned char *to = s->device[o->to] + o->to_at;
    if (o->kind == FILL) {
        return t->fill(stream, to, o->value, o->bytes);
    }
    return t->copy(stream, to, o->kind == FROM_HOST ? room : s->device[o->from] + o->from_at,
                   o->bytes);
}

static bool conflict(const operation *a, const operation *b)
{
    return a->to == b->to || (a->kind == FROM_BLOCK && a->from == b->to) ||
           (b->kind == FROM_BLOCK && b->from == a->to);
}

/* A round: operations on random streams, an event behind each, and a wait for each earlier one that
 * touches the same block from another stream. Then the order is that of one thread. */
static ds_status run_round(accel_conform *c, const shadow *s, const queues *q, uint64_t round)
{
    const ds_accel_streams *t = c->accel->streams;
    operation done[OPERATIONS];
    uint32_t on[OPERATIONS];
    for (uint32_t i = 0; i < OPERATIONS; ++i) {
        unsigned char *room = s->room + (size_t)i * BLOCK_BYTES;
        done[i] = draw(c, round * OPERATIONS + i);
        on[i] = below(c, 8, round * OPERATIONS + i, STREAMS);
        for (uint32_t k = 0; k < i; ++k) {
            if (on[k] != on[i] && conflict(&done[k], &done[i])) {
                DS_TRY(t->wait(q->streams[on[i]], q->events[k]));
            }
        }
        do_on_host(s, &done[i], room);
        DS_TRY(enqueue(c, s, &done[i], q->streams[on[i]], room));
        DS_TRY(t->record(q->streams[on[i]], q->events[i]));
    }
    DS_TRY(synchronize(c, q));
    return compare(c, s, "streams and events");
}

static ds_status check_streams(accel_conform *c)
{
    shadow s;
    queues q;
    ds_status status = make(c, &s);
    status = status < 0 ? status : open_queues(c, &q);
    for (uint64_t round = 0; round < c->rounds && status >= 0; ++round) {
        status = run_round(c, &s, &q, round);
    }
    if (status >= 0) {
        close_queues(c, &q);
    }
    drop(c, &s);
    return status;
}

/* Queues a round's operations, as run_round does, and all streams behind the first at its begin and
 * before the first at its end. events: all are recorded since the begin. */
static ds_status queue_graph(accel_conform *c, const shadow *s, const queues *q, operation *done)
{
    const ds_accel_streams *t = c->accel->streams;
    uint32_t on[OPERATIONS];
    ds_accel_event *fork = q->events[OPERATIONS - 1];
    DS_TRY(t->record(q->streams[0], fork));
    for (uint32_t k = 1; k < STREAMS; ++k) {
        DS_TRY(t->wait(q->streams[k], fork));
    }
    for (uint32_t i = 0; i < GRAPH_OPERATIONS; ++i) {
        unsigned char *room = s->room + (size_t)i * BLOCK_BYTES;
        done[i] = draw(c, UINT64_C(1000000) + i);
        on[i] = below(c, 8, UINT64_C(1000000) + i, STREAMS);
        for (uint32_t k = 0; k < i; ++k) {
            if (on[k] != on[i] && conflict(&done[k], &done[i])) {
                DS_TRY(t->wait(q->streams[on[i]], q->events[k]));
            }
        }
        DS_TRY(enqueue(c, s, &done[i], q->streams[on[i]], room));
        DS_TRY(t->record(q->streams[on[i]], q->events[i]));
    }
    for (uint32_t k = 1; k < STREAMS; ++k) {
        DS_TRY(t->record(q->streams[k], q->events[GRAPH_OPERATIONS + k]));
        DS_TRY(t->wait(q->streams[0], q->events[GRAPH_OPERATIONS + k]));
    }
    return DS_OK;
}

/* Captured work does not run; launched, it does, as often as it is, with what its operands hold by
 * then, between what is before and behind it on its stream. */
static ds_status use_graph(accel_conform *c, const shadow *s, const queues *q)
{
    const ds_accel_graphs *g = c->accel->graphs;
    operation done[GRAPH_OPERATIONS];
    ds_accel_graph *graph = NULL;
    ds_status status = g->begin(q->streams[0]);
    if (status == DS_ERR_UNSUPPORTED) {
        return DS_OK; /* not as it was opened */
    }
    DS_TRY(status);
    status = queue_graph(c, s, q, done);
    const ds_status ended = g->end(q->streams[0], &graph);
    status = status < 0 ? status : ended;
    status = status < 0 ? status : synchronize(c, q);
    status = status < 0 ? status : compare(c, s, "graphs: before a launch");
    for (uint64_t round = 0; round < 2 * (uint64_t)c->rounds && status >= 0; ++round) {
        const int byte = (int)below(c, 9, round, 256);
        status = c->accel->streams->fill(q->streams[0], s->device[0], byte, BLOCK_BYTES);
        memset(s->host[0], byte, BLOCK_BYTES);
        for (uint32_t i = 0; i < GRAPH_OPERATIONS; ++i) {
            do_on_host(s, &done[i], s->room + (size_t)i * BLOCK_BYTES);
        }
        status = status < 0 ? status : g->launch(q->streams[0], graph);
        status = status < 0 ? status
                            : c->accel->streams->copy(q->streams[0], s->device[1], s->device[2],
                                                      BLOCK_BYTES);
        memcpy(s->host[1], s->host[2], BLOCK_BYTES);
        status = status < 0 || round % 2 == 0 ? status : synchronize(c, q);
        status = status < 0 || round % 2 == 0 ? status : compare(c, s, "graphs");
    }
    const ds_status last = synchronize(c, q);
    g->destroy(&graph);
    return status < 0 ? status : last;
}

static ds_status check_graphs(accel_conform *c)
{
    shadow s;
    queues q;
    ds_status status = make(c, &s);
    status = status < 0 ? status : open_queues(c, &q);
    status = status < 0 ? status : use_graph(c, &s, &q);
    if (status >= 0) {
        close_queues(c, &q);
    }
    drop(c, &s);
    return status;
}

/* A wait without a record passes; one behind a record of long ago too; and the newest record before
 * the call counts. */
static ds_status use_events(accel_conform *c, const shadow *s, const queues *q)
{
    const ds_accel_streams *t = c->accel->streams;
    ds_accel_stream *first = q->streams[0];
    ds_accel_stream *second = q->streams[1];
    DS_TRY(t->wait(first, q->events[0]));
    DS_TRY(t->fill(first, s->device[0], 1, BLOCK_BYTES));
    DS_TRY(t->record(first, q->events[0]));
    DS_TRY(synchronize(c, q));
    DS_TRY(t->wait(second, q->events[0]));
    DS_TRY(t->fill(first, s->device[0], 2, BLOCK_BYTES));
    DS_TRY(t->record(first, q->events[0]));
    DS_TRY(t->wait(second, q->events[0]));
    DS_TRY(t->copy(second, s->device[1], s->device[0], BLOCK_BYTES));
    DS_TRY(t->record(second, q->events[1]));
    DS_TRY(t->wait(first, q->events[1]));
    DS_TRY(t->fill(first, s->device[0], 3, BLOCK_BYTES));
    memset(s->host[0], 3, BLOCK_BYTES);
    memset(s->host[1], 2, BLOCK_BYTES);
    for (int i = 0; i < MANY; ++i) { /* more than any queue holds */
        DS_TRY(t->fill(first, s->device[2] + i, i, 1));
        s->host[2][i] = (unsigned char)i;
    }
    DS_TRY(synchronize(c, q));
    DS_TRY(synchronize(c, q)); /* with nothing to wait for */
    return compare(c, s, "events");
}

static ds_status check_events(accel_conform *c)
{
    shadow s;
    queues q;
    ds_status status = make(c, &s);
    status = status < 0 ? status : open_queues(c, &q);
    status = status < 0 ? status : use_events(c, &s, &q);
    if (status >= 0) {
        close_queues(c, &q);
    }
    drop(c, &s);
    return status;
}

/* ---- calls of the host ----------------------------------------------------------------------- */

typedef struct host_job {
    const unsigned char *from;
    unsigned char *to;
    uint32_t n; /* how often it was called */
} host_job;

static void add_one(void *arg)
{
    host_job *job = arg;
    for (size_t i = 0; i < BLOCK_BYTES; ++i) {
        job->to[i] = (unsigned char)(job->from[i] + 1);
    }
    job->n += 1;
}

/* Block 0 goes to the host, is changed there in another stream's turn, and comes back as block 1.
 */
static ds_status queue_call(accel_conform *c, const shadow *s, const queues *q, host_job *job)
{
    const ds_accel_streams *t = c->accel->streams;
    DS_TRY(t->copy(q->streams[0], s->room, s->device[0], BLOCK_BYTES));
    DS_TRY(t->record(q->streams[0], q->events[0]));
    DS_TRY(t->wait(q->streams[1], q->events[0]));
    DS_TRY(t->call(q->streams[1], add_one, job));
    DS_TRY(t->record(q->streams[1], q->events[1]));
    DS_TRY(t->wait(q->streams[0], q->events[1]));
    return t->copy(q->streams[0], s->device[1], job->to, BLOCK_BYTES);
}

static ds_status use_calls(accel_conform *c, const shadow *s, const queues *q, bool captured)
{
    const ds_accel_graphs *g = c->accel->graphs;
    host_job job = {s->room, s->room + BLOCK_BYTES, 0};
    ds_accel_graph *graph = NULL;
    ds_status status = captured ? g->begin(q->streams[0]) : DS_OK;
    if (status == DS_ERR_UNSUPPORTED) {
        return DS_OK; /* not as it was opened */
    }
    DS_TRY(status);
    if (captured) {
        status = queue_call(c, s, q, &job);
        const ds_status ended = g->end(q->streams[0], &graph);
        status = status < 0 ? status : ended;
    }
    for (uint32_t round = 0; round < 1 + c->rounds && status >= 0; ++round) {
        const int byte = (int)below(c, 10, round, 255);
        status = c->accel->streams->fill(q->streams[0], s->device[0], byte, BLOCK_BYTES);
        memset(s->host[0], byte, BLOCK_BYTES);
        memset(s->host[1], byte + 1, BLOCK_BYTES);
        status = status < 0 ? status
                 : captured ? g->launch(q->streams[0], graph)
                            : queue_call(c, s, q, &job);
        status = status < 0 ? status : synchronize(c, q);
        status = status < 0 ? status : compare(c, s, "calls of the host");
        if (status >= 0 && job.n != round + 1) {
            status = ds_fail(c->ctx, DS_ERR_STATE, "%u calls of the host, expected %u", job.n,
                             round + 1);
        }
    }
    if (captured) {
        const ds_status last = synchronize(c, q);
        g->destroy(&graph);
        status = status < 0 ? status : last;
    }
    return status;
}

static ds_status check_calls(accel_conform *c)
{
    shadow s;
    queues q;
    ds_status status = make(c, &s);
    status = status < 0 ? status : open_queues(c, &q);
    status = status < 0 ? status : use_calls(c, &s, &q, false);
    if (status >= 0 && c->accel->graphs != NULL) {
        status = use_calls(c, &s, &q, true);
    }
    if (status >= 0) {
        close_queues(c, &q);
    }
    drop(c, &s);
    return status;
}

static const accel_check checks[] = {
    {.name = "memory: zeroed, aligned, copied and filled", .run = check_memory},
    {.name = "streams: random work, ordered by events alone",
     .run = check_streams,
     .streams = true},
    {.name = "events: without a record, recorded again, long queues",
     .run = check_events,
     .streams = true},
    {.name = "calls: of the host, in a stream's turn",
     .run = check_calls,
     .streams = true,
     .calls = true},
    {.name = "graphs: captured work, launched again and again",
     .run = check_graphs,
     .graphs = true},
    {.name = "disks: files that the device reads and writes",
     .run = accel_conform_disks,
     .disks = true},
    {.name = "training: small models give cpu's losses",
     .run = accel_conform_train,
     .computes = true},
    {.name = "generation: the same tokens as on cpu",
     .run = accel_conform_generate,
     .computes = true},
};

const accel_check *accel_conform_at(uint32_t index)
{
    return index < sizeof checks / sizeof checks[0] ? &checks[index] : NULL;
}
