/* SPDX-License-Identifier: Apache-2.0 */
/* The log of collectives: measuring. See comm_log.h. */
#include "comm/comm_log.h"

#include "base/clock.h"
#include "base/reserved.h"
#include "comm/bandwidth.h"
#include "comm/comm_call.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLACES = 4 * DSI_LOG_ROWS };

_Static_assert(DSI_LOG_ROWS <= UINT16_MAX, "a row's number has 16 bits");

/* ---- life ---- */

static void destroy(dsi_comm_log *log)
{
    if (log == NULL) {
        return;
    }
    for (int i = 0; i < DSI_LOG_N_SAMPLES; ++i) {
        free(log->samples[i].seconds);
        free(log->samples[i].rows);
    }
    free(log->places);
    free(log->rows);
    free(log);
}

static void reset(dsi_comm_log *log)
{
    memset(log->places, 0, PLACES * sizeof *log->places);
    memset(log->rows, 0, DSI_LOG_ROWS * sizeof *log->rows);
    log->n_rows = 1;
    log->n_groups = log->n_groups == 0 ? 1 : log->n_groups;
    log->n_calls = 0;
    log->n_lost = 0;
    for (int i = 0; i < DSI_LOG_N_SAMPLES; ++i) { /* written, so that a step meets no new page */
        memset(log->samples[i].seconds, 0, DSI_LOG_SAMPLES * sizeof *log->samples[i].seconds);
        memset(log->samples[i].rows, 0, DSI_LOG_SAMPLES * sizeof *log->samples[i].rows);
        log->samples[i].n = 0;
    }
}

static dsi_comm_log *create(void)
{
    dsi_comm_log *log = calloc(1, sizeof *log);
    bool made = log != NULL;
    if (made) {
        log->rows = calloc(DSI_LOG_ROWS, sizeof *log->rows);
        log->places = calloc(PLACES, sizeof *log->places);
        made = log->rows != NULL && log->places != NULL;
    }
    for (int i = 0; i < DSI_LOG_N_SAMPLES && made; ++i) {
        log->samples[i].seconds = calloc(DSI_LOG_SAMPLES, sizeof *log->samples[i].seconds);
        log->samples[i].rows = calloc(DSI_LOG_SAMPLES, sizeof *log->samples[i].rows);
        made = log->samples[i].seconds != NULL && log->samples[i].rows != NULL;
    }
    if (!made) {
        destroy(log);
        return NULL;
    }
    reset(log);
    return log;
}

ds_status ds_comm_log_start(ds_comm *comm, const ds_comm_log_params *params)
{
    if (comm == NULL) {
        return ds_fail(NULL, DS_ERR_ARG, "a log of collectives needs a communicator");
    }
    DS_TRY(DSI_RESERVED_CHECK(comm->ctx, "ds_comm_log_params", params));
    if (comm->log == NULL) {
        comm->log = create();
        comm->owns_log = comm->log != NULL;
        if (comm->log == NULL) {
            return ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory for the log of collectives");
        }
    }
    comm->log->params = *params;
    return DS_OK;
}

void ds_comm_log_reset(ds_comm *comm)
{
    if (comm != NULL && comm->log != NULL) {
        reset(comm->log);
    }
}

/* The group of these axes; made when new, 0 when there is no room. */
static dsi_log_group *group_of(dsi_comm_log *log, const char *axes)
{
    uint32_t i = 1;
    while (i < log->n_groups && strcmp(log->groups[i].axes, axes) != 0) {
        ++i;
    }
    if (axes[0] == '\0' || i == DSI_LOG_MOST_GROUPS) {
        return log->groups;
    }
    if (i >= log->n_groups) {
        log->n_groups = i + 1;
        memcpy(log->groups[i].axes, axes, sizeof log->groups[i].axes);
    }
    return &log->groups[i];
}

void dsi_comm_log_share(const dsi_comm *from, dsi_comm *to)
{
    dsi_comm_log_detach(to);
    to->log = from->log;
    if (to->log != NULL && to->axes[0] != '\0') {
        dsi_log_group *group = group_of(to->log, to->axes);
        group->comm = group == to->log->groups ? NULL : to;
    }
}

void dsi_comm_log_detach(dsi_comm *comm)
{
    for (uint32_t i = 0; comm->log != NULL && i < comm->log->n_groups; ++i) {
        dsi_log_group *group = &comm->log->groups[i];
        group->comm = group->comm == comm ? NULL : group->comm;
    }
    if (comm->owns_log) {
        destroy(comm->log);
    }
    comm->log = NULL;
    comm->owns_log = false;
}

/* ---- rows ---- */

/* What one rank passes, alike on every rank where the call allows it. */
static size_t message_bytes(const dsi_comm *comm, const dsi_comm_call *call)
{
    size_t count = 0;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        count += call->kind == DS_COMM_ALL_GATHER ? dsi_comm_slice(part->count, comm->size)
                 : call->kind == DS_COMM_ALL_TO_ALL
                     ? dsi_part_in_count(call, part, comm->rank, comm->size)
                     : part->count;
    }
    return count * ds_dtype_bytes(call->dtype);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
}

static uint64_t hash_of(const dsi_log_row *row)
{
    uint64_t hash = mix(mix(mix(mix(0, row->kind), row->n_ranks), row->bytes), row->group);
    for (const char *p = row->caller; *p != '\0'; ++p) {
        hash = mix(hash, (unsigned char)*p);
    }
    return hash;
}

static bool same_row(const dsi_log_row *a, const dsi_log_row *b)
{
    return a->kind == b->kind && a->n_ranks == b->n_ranks && a->bytes == b->bytes &&
           a->group == b->group && strcmp(a->caller, b->caller) == 0;
}

/* The row of this kind of call; made when new, 0 when there is no room. */
static uint16_t find_row(dsi_comm_log *log, const dsi_log_row *wanted)
{
    uint32_t place = (uint32_t)(hash_of(wanted) % PLACES);
    while (log->places[place] != 0 && !same_row(&log->rows[log->places[place]], wanted)) {
        place = (place + 1) % PLACES;
    }
    if (log->places[place] == 0) {
        if (log->n_rows == DSI_LOG_ROWS) {
            return 0;
        }
        log->rows[log->n_rows] = *wanted;
        log->places[place] = (uint16_t)log->n_rows++;
    }
    return log->places[place];
}

static uint16_t row_of(dsi_comm_log *log, const dsi_comm *comm, const dsi_comm_call *call)
{
    dsi_log_row wanted = {.kind = call->kind,
                          .n_ranks = comm->size,
                          .group = (uint32_t)(group_of(log, comm->axes) - log->groups),
                          .bytes = message_bytes(comm, call)};
    if (log->params.debug && call->what != NULL) {
        (void)snprintf(wanted.caller, sizeof wanted.caller, "%s", call->what);
    }
    return find_row(log, &wanted);
}

/* ---- calls ---- */

void dsi_comm_log_started(dsi_comm_log *log, const dsi_comm *comm, const dsi_comm_call *call,
                          dsi_comm_ticket ticket, double begin)
{
    if (!log->params.all && (log->params.ops & (1u << call->kind)) == 0) {
        return;
    }
    const uint8_t which = dsi_coll_is_pair(call->kind) ? DSI_LOG_PAIRS : DSI_LOG_ALL_RANKS;
    dsi_log_samples *samples = &log->samples[which];
    const uint64_t number = samples->n++;
    const uint16_t row = row_of(log, comm, call);
    samples->rows[number % DSI_LOG_SAMPLES] = row;
    samples->seconds[number % DSI_LOG_SAMPLES] = -1.0f;
    if (log->n_calls == DSI_LOG_UNDER_WAY) {
        ++log->n_lost;
        return;
    }
    log->calls[log->n_calls++] = (dsi_log_call){comm, ticket, begin, number, row, which};
}

static void say(const dsi_comm *comm, const dsi_log_row *row, double seconds)
{
    char size[DSI_SIZE_TEXT_BYTES];
    const dsi_bandwidth rate = dsi_coll_bandwidth(row->kind, row->bytes, row->n_ranks, seconds);
    ds_log(comm->ctx, DS_LOG_JOB,
           "comm op: %s%s%s%s%s%s | time (ms): %.2f | msg size: %s | algbw (Gbps): %.2f | busbw "
           "(Gbps): %.2f",
           dsi_coll_name(row->kind), comm->axes[0] != '\0' ? " over " : "", comm->axes,
           row->caller[0] != '\0' ? " | [Caller Func: " : "", row->caller,
           row->caller[0] != '\0' ? "]" : "", seconds * 1e3, dsi_size_text(row->bytes, size),
           rate.algorithm * 8e-9, rate.bus * 8e-9);
}

void dsi_comm_log_ended(dsi_comm_log *log, const dsi_comm *comm, dsi_comm_ticket ticket,
                        ds_status status)
{
    const double end = dsi_clock_seconds();
    uint32_t i = log->n_calls;
    while (i > 0 && (log->calls[i - 1].comm != comm || log->calls[i - 1].ticket != ticket)) {
        --i;
    }
    if (i == 0) {
        return; /* not asked for, or lost */
    }
    const dsi_log_call call = log->calls[i - 1];
    log->calls[i - 1] = log->calls[--log->n_calls];
    if (status < 0) {
        return;
    }
    dsi_log_row *row = &log->rows[call.row];
    const double seconds = end - call.begin;
    dsi_log_samples *samples = &log->samples[call.samples];
    if (samples->n - call.number <= DSI_LOG_SAMPLES) {
        samples->seconds[call.number % DSI_LOG_SAMPLES] = (float)seconds;
    }
    row->count += 1;
    row->seconds += seconds;
    if (log->params.verbose && comm->rank == 0 && call.row != 0) {
        say(comm, row, seconds);
    }
}
