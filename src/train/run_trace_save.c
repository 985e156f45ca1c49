/* Merges what the ranks recorded into one trace file. See run_trace.h, cost/trace.h.
 *
 * Ranks run the same plan, so a rank sends only its records, and rank 0, which writes, knows the
 * names. Rank 0 holds one other rank's records at a time.
 */
#include "base/buf.h"
#include "base/clock.h"
#include "cost/trace.h"
#include "io/file.h"
#include "plan/plan_sim.h"
#include "train/engine_same.h"
#include "train/run_trace.h"

#include <deepspeed/profile.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { TEXT_CEILING = 1 << 22, TEXT_FLUSH = 1 << 20, CLOCK_ROUNDS = 20 };

/* What a rank tells the others of its trace. */
typedef struct card {
    uint64_t host; /* equal where the clocks are the same */
    uint64_t n, n_lost;
    double begin; /* of its first record */
} card;

/* Something that a stream did beside the thread. */
typedef struct piece {
    uint32_t stream, node, step;
    double begin, end, waited;
} piece;

/* Of rank 0. */
typedef struct writer {
    const ds_engine *engine;
    dsi_sim_step *steps; /* of the plan, as the simulator names them */
    double (*issued)[2]; /* per step of the plan: its newest run, of STARTs */
    dsi_run_record *records;
    piece *pieces;
    uint32_t n_pieces;
    dsi_file_out *file;
    dsi_buf text;
    dsi_trace trace;
    double origin; /* on the clock of the rank that is being written */
    uint32_t pid;
} writer;

/* ---- one rank ---- */

static ds_phase phase_of(const writer *w, const dsi_run_record *r)
{
    if (r->node == (uint32_t)DSI_HOST_BATCH || r->node == (uint32_t)DSI_HOST_CLEAR) {
        return r->node == (uint32_t)DSI_HOST_BATCH ? DS_PHASE_FORWARD : DS_PHASE_BACKWARD;
    }
    return w->steps[r->node].phase;
}

static void put(writer *w, dsi_trace_span span, uint32_t step, double begin, double end)
{
    span.pid = w->pid;
    span.step = w->engine->trace->first + step;
    span.start = begin - w->origin;
    span.end = end - w->origin;
    dsi_trace_add(&w->trace, &span);
}

/* Spans of steps, and of phases inside of them. Steps come first: viewers want the outer one of two
 * spans that begin together first. */
static void put_phases(writer *w, const dsi_run_record *records, size_t n)
{
    for (int whole = 1; whole >= 0; --whole) {
        for (size_t i = 0; i < n;) {
            const ds_phase phase = phase_of(w, &records[i]);
            size_t last = i;
            while (last + 1 < n && records[last + 1].step == records[i].step &&
                   (whole == 1 || phase_of(w, &records[last + 1]) == phase)) {
                ++last;
            }
            put(w, dsi_trace_of_phase(whole == 1 ? DS_PHASE_COUNT : phase), records[i].step,
                records[i].begin, records[last].end);
            i = last + 1;
        }
    }
}

static void put_host(writer *w, const dsi_run_record *r)
{
    dsi_trace_span span = dsi_trace_of_phase(phase_of(w, r));
    span.tid = DSI_STREAM_COMPUTE;
    span.name = r->node == (uint32_t)DSI_HOST_BATCH ? "copy batch" : "clear gradients";
    span.category = "host";
    put(w, span, r->step, r->begin, r->end);
}

static void add_piece(writer *w, const dsi_run_record *r, uint32_t node, double begin, double end)
{
    w->pieces[w->n_pieces++] = (piece){.stream = (uint32_t)w->steps[node].stream,
                                       .node = node,
                                       .step = r->step,
                                       .begin = begin,
                                       .end = end,
                                       .waited = r->waited};
}

/* What was started goes on from its START to its end, which its WAIT tells. */
static void put_wait(writer *w, const dsi_run_record *r)
{
    const uint32_t start = w->steps[r->node].start;
    const double *issued = w->issued[start];
    const double end = r->work > 0.0f ? issued[0] + r->work : issued[1];
    add_piece(w, r, start, issued[0], end < r->end ? end : r->end);
    put(w, dsi_trace_of_step(w->steps, r->node, true), r->step, r->begin, r->end);
}

static void put_record(writer *w, const dsi_run_record *r)
{
    if (r->node >= w->engine->train_plan->n_steps) {
        put_host(w, r);
        return;
    }
    const dsi_sim_step *step = &w->steps[r->node];
    dsi_trace_span span = dsi_trace_of_step(w->steps, r->node, step->stream != DSI_STREAM_COMPUTE);
    switch (step->kind) {
    case DSI_SIM_WAIT:
        put_wait(w, r);
        return;
    case DSI_SIM_START:
        w->issued[r->node][0] = r->begin;
        w->issued[r->node][1] = r->end;
        span.name = span.category = "start";
        break;
    case DSI_SIM_RUN:
        if (step->stream != DSI_STREAM_COMPUTE) {
            add_piece(w, r, r->node, r->begin, r->end);
        }
        break;
    }
    put(w, span, r->step, r->begin, r->end);
}

static int by_stream_then_end(const void *a, const void *b)
{
    const piece *x = a;
    const piece *y = b;
    if (x->stream != y->stream) {
        return x->stream < y->stream ? -1 : 1;
    }
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* As the simulator has it, a stream does one thing after the other: of several that were under way
 * together, each has the time from the end of the one before. The time that the stream is busy
 * stays what it is. */
static void put_pieces(writer *w)
{
    double free_at = 0.0;
    qsort(w->pieces, w->n_pieces, sizeof *w->pieces, by_stream_then_end);
    for (uint32_t i = 0; i < w->n_pieces; ++i) {
        const piece *p = &w->pieces[i];
        if (i == 0 || p->stream != w->pieces[i - 1].stream) {
            free_at = p->begin;
        }
        dsi_trace_span span = dsi_trace_of_step(w->steps, p->node, false);
        span.waited = p->waited;
        put(w, span, p->step, p->begin > free_at ? p->begin : free_at, p->end);
        free_at = p->end;
    }
}

static ds_status flush(writer *w, size_t least)
{
    if (w->text.failed) {
        return ds_fail(w->engine->ctx, DS_ERR_NOMEM, "no memory for the text of a trace");
    }
    if (w->text.size >= least) {
        DS_TRY(dsi_file_write(w->file, w->text.data, w->text.size));
        dsi_buf_clear(&w->text);
    }
    return DS_OK;
}

/* Records come from another process: a node is checked before it is used. */
static ds_status write_rank(writer *w, uint32_t rank, const dsi_run_record *records, size_t n,
                            double origin)
{
    bool used[DSI_STREAM_COUNT] = {[DSI_STREAM_COMPUTE] = true};
    char name[32];
    const uint32_t n_steps = w->engine->train_plan->n_steps;
    for (size_t i = 0; i < n; ++i) {
        if (records[i].node < n_steps) {
            used[w->steps[records[i].node].stream] = true;
        } else if (records[i].node < (uint32_t)DSI_HOST_CLEAR) {
            return ds_fail(w->engine->ctx, DS_ERR_PEER, "rank %u sent no trace", rank);
        }
    }
    w->pid = rank + 1;
    w->origin = origin;
    w->n_pieces = 0;
    (void)snprintf(name, sizeof name, "rank %u", rank);
    dsi_trace_process(&w->trace, w->pid, name);
    dsi_trace_streams(&w->trace, w->pid, used);
    put_phases(w, records, n);
    for (size_t i = 0; i < n; ++i) {
        put_record(w, &records[i]);
        DS_TRY(flush(w, TEXT_FLUSH));
    }
    put_pieces(w);
    return flush(w, TEXT_FLUSH);
}

/* ---- all ranks ---- */

static uint64_t this_host(uint32_t rank)
{
    char boot[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL) {
        return rank;
    }
    const char *got = fgets(boot, sizeof boot, file);
    (void)fclose(file);
    return got != NULL ? XXH3_64bits(boot, strlen(boot)) : rank;
}

static ds_status gather(dsi_comm *comm, const void *mine, void *all, size_t bytes, const char *what)
{
    if (comm == NULL) {
        memcpy(all, mine, bytes);
        return DS_OK;
    }
    const dsi_comm_part part = {.in = mine, .out = all, .count = comm->size * bytes};
    return dsi_comm_run(comm, &(dsi_comm_call){.kind = DSI_COLL_ALL_GATHER,
                                               .dtype = DS_DTYPE_U8,
                                               .factor = 1.0f,
                                               .parts = &part,
                                               .n_parts = 1,
                                               .what = what});
}

/* One end of the way of some bytes between rank 0 and another. */
static ds_status carry(dsi_comm *comm, dsi_coll kind, uint32_t peer, void *data, size_t bytes)
{
    const dsi_comm_part part = {.in = data, .out = data, .count = bytes};
    return dsi_comm_run(comm, &(dsi_comm_call){.kind = kind,
                                               .dtype = DS_DTYPE_U8,
                                               .factor = 1.0f,
                                               .peer = peer,
                                               .parts = &part,
                                               .n_parts = 1,
                                               .what = "records of a trace"});
}

/* Rank 0 asks for the time; of several answers the quickest is right to half of its way. */
static ds_status ask_clock(dsi_comm *comm, uint32_t rank, double *ahead_out)
{
    double least = INFINITY;
    for (int i = 0; i < CLOCK_ROUNDS; ++i) {
        double theirs = 0.0;
        const double begin = dsi_clock_seconds();
        DS_TRY(carry(comm, DSI_COLL_SEND, rank, &theirs, sizeof theirs));
        DS_TRY(carry(comm, DSI_COLL_RECV, rank, &theirs, sizeof theirs));
        const double end = dsi_clock_seconds();
        if (end - begin < least) {
            least = end - begin;
            *ahead_out = theirs - 0.5 * (begin + end);
        }
    }
    return DS_OK;
}

static ds_status tell_clock(dsi_comm *comm)
{
    for (int i = 0; i < CLOCK_ROUNDS; ++i) {
        double mine = 0.0;
        DS_TRY(carry(comm, DSI_COLL_RECV, 0, &mine, sizeof mine));
        mine = dsi_clock_seconds();
        DS_TRY(carry(comm, DSI_COLL_SEND, 0, &mine, sizeof mine));
    }
    return DS_OK;
}

/* How far each rank's clock is ahead of rank 0's, on rank 0: nothing on one host. */
static ds_status compare_clocks(dsi_comm *comm, const card *cards, double *ahead)
{
    const uint32_t rank = ds_comm_rank(comm);
    for (uint32_t r = 1; r < ds_comm_size(comm); ++r) {
        if (cards[r].host != cards[0].host && rank == 0) {
            DS_TRY(ask_clock(comm, r, &ahead[r]));
        } else if (cards[r].host != cards[0].host && rank == r) {
            DS_TRY(tell_clock(comm));
        }
    }
    return DS_OK;
}

static void close_writer(writer *w)
{
    dsi_file_abort(&w->file);
    dsi_buf_free(&w->text);
    free(w->steps);
    free(w->issued);
    free(w->records);
    free(w->pieces);
}

static ds_status open_writer(writer *w, const ds_engine *engine, const card *cards,
                             const char *path)
{
    const dsi_plan *plan = engine->train_plan;
    uint64_t most = 1;
    uint64_t lost = 0;
    for (uint32_t r = 0; r < ds_comm_size(engine->comm); ++r) {
        most = cards[r].n > most ? cards[r].n : most;
        lost += cards[r].n_lost;
    }
    if (lost > 0) {
        ds_log(engine->ctx, DS_LOG_WARN,
               "the trace lacks %llu steps of plans: there were more micro-batches than the "
               "configuration says",
               (unsigned long long)lost);
    }
    w->engine = engine;
    w->text = dsi_buf_make(TEXT_CEILING);
    w->issued = calloc((size_t)plan->n_steps + 1, sizeof *w->issued);
    w->records = malloc(most * sizeof *w->records);
    w->pieces = malloc(most * sizeof *w->pieces);
    if (w->issued == NULL || w->records == NULL || w->pieces == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a trace of %llu records",
                       (unsigned long long)most);
    }
    DS_TRY(dsi_plan_sim_steps(plan, ds_comm_size(engine->comm), &engine->homes, &w->steps));
    DS_TRY(dsi_file_stage(engine->ctx, path, &w->file));
    w->trace = dsi_trace_begin(&w->text);
    return DS_OK;
}

/* Rank 0 takes every rank's records, even after a failure: the others are sending them. */
static ds_status write_all(writer *w, const card *cards, const double *ahead)
{
    const ds_engine *engine = w->engine;
    const uint32_t size = ds_comm_size(engine->comm);
    ds_status status = DS_OK;
    double origin = INFINITY;
    for (uint32_t r = 0; r < size; ++r) {
        origin = cards[r].n > 0 ? fmin(origin, cards[r].begin - ahead[r]) : origin;
    }
    for (uint32_t r = 0; r < size; ++r) {
        const size_t n = (size_t)cards[r].n;
        const dsi_run_record *records = r == 0 ? engine->trace->records : w->records;
        if (r > 0 && n > 0) {
            DS_TRY(carry(engine->comm, DSI_COLL_RECV, r, w->records, n * sizeof *records));
        }
        status = status < 0 ? status : write_rank(w, r, records, n, origin + ahead[r]);
    }
    DS_TRY(status);
    dsi_trace_end(&w->trace);
    DS_TRY(flush(w, 0));
    return dsi_file_commit(&w->file);
}

static ds_status exchange(const ds_engine *engine, const char *path, card *cards, double *ahead)
{
    const dsi_run_trace *t = engine->trace;
    const uint32_t rank = ds_comm_rank(engine->comm);
    const card mine = {.host = this_host(rank),
                       .n = t->n,
                       .n_lost = t->n_lost,
                       .begin = t->n > 0 ? t->records[0].begin : 0.0};
    writer w = {0};
    DS_TRY(gather(engine->comm, &mine, cards, sizeof mine, "sizes of a trace"));
    DS_TRY(compare_clocks(engine->comm, cards, ahead));
    ds_status status = rank == 0 ? open_writer(&w, engine, cards, path) : DS_OK;
    status = ds_comm_agree(engine->comm, engine->ctx, status);
    if (status >= 0) {
        if (rank == 0) {
            status = write_all(&w, cards, ahead);
        } else if (t->n > 0) {
            status = carry(engine->comm, DSI_COLL_SEND, 0, t->records, t->n * sizeof *t->records);
        }
        status = ds_comm_agree(engine->comm, engine->ctx, status);
    }
    close_writer(&w);
    return status;
}

ds_status ds_engine_trace_save(ds_engine *engine, const char *path)
{
    const dsi_run_trace *t = engine->trace;
    const size_t size = ds_comm_size(engine->comm);
    const ds_status own = t != NULL ? DS_OK
                                    : ds_fail(engine->ctx, DS_ERR_STATE,
                                              "no trace is recorded: ds_engine_trace_start first");
    const uint64_t range[2] = {t != NULL ? t->first : 0, t != NULL ? t->last : 0};
    card *cards = calloc(size, sizeof *cards);
    double *ahead = calloc(size, sizeof *ahead);
    ds_status status = cards != NULL && ahead != NULL
                           ? own
                           : ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to save a trace");
    status = dsi_engine_same(engine, "save a trace", XXH3_64bits(range, sizeof range), status);
    if (status >= 0) {
        status = exchange(engine, path, cards, ahead);
    }
    if (status >= 0) {
        ds_engine_trace_drop(engine);
    }
    free(cards);
    free(ahead);
    return status;
}
