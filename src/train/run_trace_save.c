/* SPDX-License-Identifier: Apache-2.0 */
/* Merges what the ranks recorded into one trace file. See run_trace.h.
 *
 * Each rank makes the text of its own records, by its own plan, and sends it piece by piece; rank 0
 * writes. It holds one piece at a time.
 */
#include "base/clock.h"
#include "base/machine_id.h"
#include "io/file.h"
#include "train/engine_same.h"
#include "train/run_trace_spans.h"

#include <deepspeed/profile.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { CLOCK_ROUNDS = 20 };

/* What a rank sends the others about its timeline. */
typedef struct card {
    uint64_t host; /* equal where the clocks are the same */
    uint64_t n, n_lost;
    double begin; /* of its first record */
} card;

/* One end of the way of some bytes between rank 0 and another. */
static ds_status transfer(dsi_comm *comm, ds_comm_op kind, uint32_t peer, void *data, size_t bytes)
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
        DS_TRY(transfer(comm, DS_COMM_SEND, rank, &theirs, sizeof theirs));
        DS_TRY(transfer(comm, DS_COMM_RECV, rank, &theirs, sizeof theirs));
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
        DS_TRY(transfer(comm, DS_COMM_RECV, 0, &mine, sizeof mine));
        mine = dsi_clock_seconds();
        DS_TRY(transfer(comm, DS_COMM_SEND, 0, &mine, sizeof mine));
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

static void warn_of_lost(const ds_engine *engine, const card *cards)
{
    uint64_t lost = 0;
    for (uint32_t r = 0; r < ds_comm_size(engine->comm); ++r) {
        lost += cards[r].n_lost;
    }
    if (lost > 0) {
        ds_log(engine->ctx, DS_LOG_WARN,
               "the trace lacks %llu steps of plans: there were more micro-batches than the "
               "configuration says",
               (unsigned long long)lost);
    }
}

static ds_status put_to_file(void *user, const void *data, size_t n)
{
    return dsi_file_write(user, data, n);
}

/* The length of a piece, then the piece. None of length 0: that is the end. */
static ds_status put_to_first(void *user, const void *data, size_t n)
{
    uint64_t bytes = n;
    dsi_comm *comm = user;
    if (n == 0) {
        return DS_OK;
    }
    DS_TRY(transfer(comm, DS_COMM_SEND, 0, &bytes, sizeof bytes));
    return transfer(comm, DS_COMM_SEND, 0, (void *)(uintptr_t)data, n);
}

/* The text of one rank. A failure of the file ends no exchange: the rank is sending. */
static ds_status take_text(const ds_engine *engine, uint32_t rank, dsi_file_out *file)
{
    ds_status status = DS_OK;
    void *piece = NULL;
    uint64_t room = 0;
    for (;;) {
        uint64_t bytes = 0;
        const ds_status came = transfer(engine->comm, DS_COMM_RECV, rank, &bytes, sizeof bytes);
        if (came < 0 || bytes == 0) {
            status = status < 0 ? status : came;
            break;
        }
        if (bytes > room) {
            free(piece);
            piece = malloc((size_t)bytes);
            room = bytes;
        }
        if (piece == NULL) { /* what is under way cannot be taken */
            status = ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a piece of a trace");
            break;
        }
        const ds_status got = transfer(engine->comm, DS_COMM_RECV, rank, piece, (size_t)bytes);
        if (got < 0) {
            status = got;
            break;
        }
        status = status < 0 ? status : dsi_file_write(file, piece, (size_t)bytes);
    }
    free(piece);
    return status;
}

/* Rank 0: its own text, then the others', each of which is told when the trace begins. */
static ds_status write_all(dsi_trace_writer *w, dsi_file_out *file, const card *cards,
                           const double *ahead)
{
    const ds_engine *engine = w->engine;
    double origin = INFINITY;
    for (uint32_t r = 0; r < ds_comm_size(engine->comm); ++r) {
        origin = cards[r].n > 0 ? fmin(origin, cards[r].begin - ahead[r]) : origin;
    }
    ds_status status = dsi_trace_writer_rank(w, origin);
    for (uint32_t r = 1; r < ds_comm_size(engine->comm); ++r) {
        double theirs = origin + ahead[r];
        DS_TRY(transfer(engine->comm, DS_COMM_SEND, r, &theirs, sizeof theirs));
        const ds_status taken = take_text(engine, r, file);
        status = status < 0 ? status : taken;
    }
    return status < 0 ? status : dsi_trace_writer_end(w);
}

static ds_status send_all(dsi_trace_writer *w)
{
    double origin = 0.0;
    uint64_t end = 0;
    dsi_comm *comm = w->engine->comm;
    DS_TRY(transfer(comm, DS_COMM_RECV, 0, &origin, sizeof origin));
    const ds_status status = dsi_trace_writer_rank(w, origin);
    const ds_status told = transfer(comm, DS_COMM_SEND, 0, &end, sizeof end);
    return status < 0 ? status : told;
}

static ds_status exchange(const ds_engine *engine, const char *path, card *cards, double *ahead)
{
    const dsi_run_trace *t = engine->trace;
    const bool writes = ds_comm_rank(engine->comm) == 0;
    const card mine = {.host = dsi_machine_id(),
                       .n = t->n,
                       .n_lost = t->n_lost,
                       .begin = t->n > 0 ? t->records[0].begin : 0.0};
    dsi_trace_writer w = {0};
    dsi_file_out *file = NULL;
    DS_TRY(dsi_comm_gather(engine->comm, &mine, cards, sizeof mine, "sizes of a trace"));
    DS_TRY(compare_clocks(engine->comm, cards, ahead));
    ds_status status = writes ? dsi_file_stage(engine->ctx, path, &file) : DS_OK;
    status = status < 0 ? status
                        : dsi_trace_writer_open(&w, engine, writes ? put_to_file : put_to_first,
                                                writes ? (void *)file : (void *)engine->comm);
    status = ds_comm_agree(engine->comm, engine->ctx, status);
    if (status >= 0) {
        if (writes) {
            warn_of_lost(engine, cards);
        }
        status = writes ? write_all(&w, file, cards, ahead) : send_all(&w);
        status = ds_comm_agree(engine->comm, engine->ctx, status);
        status = status >= 0 && writes ? dsi_file_commit(&file) : status;
        status = ds_comm_agree(engine->comm, engine->ctx, status);
    }
    dsi_file_abort(&file);
    dsi_trace_writer_close(&w);
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
