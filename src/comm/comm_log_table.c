/* SPDX-License-Identifier: Apache-2.0 */
/* The log of collectives: rows, averages and the summary in DeepSpeed's layout. See comm_log.h. */
#include "comm/comm_log.h"
#include "comm/rank_names.h"

#include "base/buf.h"
#include "comm/bandwidth.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_CEILING = 1 << 22 };

#define GBPS 8e-9 /* of bytes a second */

/* ---- samples by row ---- */

/* The values of row r are values[begin[r] … begin[r + 1]), in the order of the calls. */
typedef struct by_row {
    size_t *begin;
    float *values;
} by_row;

static void free_rows(by_row *rows)
{
    free(rows->begin);
    free(rows->values);
    *rows = (by_row){0};
}

static size_t held(const dsi_log_samples *samples)
{
    return samples->n < DSI_LOG_SAMPLES ? (size_t)samples->n : DSI_LOG_SAMPLES;
}

/* values[i]: one for each held sample of that ring, in its places; NULL: leave the ring out.
 * Negative ones are left out. */
static ds_status split_by_row(ds_ctx *ctx, const dsi_comm_log *log,
                              const float *const values[DSI_LOG_N_SAMPLES], by_row *rows_out)
{
    by_row rows = {.begin = calloc((size_t)log->n_rows + 2, sizeof *rows.begin),
                   .values = malloc(sizeof(float) * DSI_LOG_SAMPLES * DSI_LOG_N_SAMPLES)};
    if (rows.begin == NULL || rows.values == NULL) {
        free_rows(&rows);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the summary of collectives");
    }
    /* counts, two places further; then begins, one place further; then filled: in place */
    for (int fill = 0; fill < 2; ++fill) {
        for (uint32_t r = 0; r < log->n_rows && fill == 1; ++r) {
            rows.begin[r + 1] += rows.begin[r];
        }
        for (int k = 0; k < DSI_LOG_N_SAMPLES; ++k) {
            const dsi_log_samples *samples = &log->samples[k];
            const size_t n = values[k] != NULL ? held(samples) : 0;
            for (size_t i = 0; i < n; ++i) {
                const size_t at = (size_t)((samples->n - n + i) % DSI_LOG_SAMPLES);
                if (values[k][at] >= 0.0f && fill == 0) {
                    ++rows.begin[samples->rows[at] + 2];
                } else if (values[k][at] >= 0.0f) {
                    rows.values[rows.begin[samples->rows[at] + 1]++] = values[k][at];
                }
            }
        }
    }
    *rows_out = rows;
    return DS_OK;
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a;
    const float y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Sorts the values of a row and leaves out the tenth at each end, rounded to even. */
static size_t trim(const by_row *rows, uint32_t row, const float **values_out)
{
    float *values = rows->values + rows->begin[row];
    const size_t n = rows->begin[row + 1] - rows->begin[row];
    const size_t cut = (size_t)nearbyint(0.1 * (double)n);
    if (n > 0) {
        qsort(values, n, sizeof *values, compare_floats);
    }
    *values_out = values + cut;
    return n - 2 * cut;
}

static double trimmed_mean(const by_row *rows, uint32_t row)
{
    const float *values;
    double sum = 0.0;
    const size_t n = trim(rows, row, &values);
    for (size_t i = 0; i < n; ++i) {
        sum += values[i];
    }
    return n > 0 ? sum / (double)n : 0.0;
}

static double sum_of(const by_row *rows, uint32_t row)
{
    double sum = 0.0;
    for (size_t i = rows->begin[row]; i < rows->begin[row + 1]; ++i) {
        sum += rows->values[i];
    }
    return sum;
}

/* ---- the order of rows ---- */

static bool same_name(const dsi_log_row *a, const dsi_log_row *b)
{
    return a->kind == b->kind && a->n_ranks == b->n_ranks && a->group == b->group &&
           strcmp(a->caller, b->caller) == 0;
}

/* Operations in the order in which they first came, each by size; row 0, if it counted, last. */
static size_t order_rows(const dsi_comm_log *log, uint16_t order[DSI_LOG_ROWS])
{
    bool listed[DSI_LOG_ROWS] = {false};
    size_t n = 0;
    for (uint32_t first = 1; first < log->n_rows; ++first) {
        const size_t begin = n;
        for (uint32_t r = first; r < log->n_rows; ++r) {
            if (listed[r] || !same_name(&log->rows[r], &log->rows[first])) {
                continue;
            }
            listed[r] = true;
            size_t at = n++;
            for (; at > begin && log->rows[order[at - 1]].bytes > log->rows[r].bytes; --at) {
                order[at] = order[at - 1];
            }
            order[at] = (uint16_t)r;
        }
    }
    if (log->rows[0].count > 0) {
        order[n++] = 0;
    }
    return n;
}

static ds_comm_log_row describe(const dsi_comm_log *log, const by_row *latencies, uint16_t r)
{
    const dsi_log_row *row = &log->rows[r];
    const float *values;
    ds_comm_log_row out = {.op = (ds_comm_op)row->kind,
                           .caller = row->caller,
                           .axes = log->groups[row->group].axes,
                           .n_ranks = row->n_ranks,
                           .bytes = row->bytes,
                           .count = row->count,
                           .total_ms = row->seconds * 1e3,
                           .average_ms = trimmed_mean(latencies, r) * 1e3};
    const size_t n = trim(latencies, r, &values);
    for (size_t i = 0; i < n; ++i) {
        const dsi_bandwidth rate =
            dsi_coll_bandwidth(row->kind, row->bytes, row->n_ranks, (double)values[i]);
        out.algbw_gbps += rate.algorithm * GBPS / (double)n;
        out.busbw_gbps += rate.bus * GBPS / (double)n;
    }
    return out;
}

static ds_status split_latencies(const dsi_comm *comm, by_row *rows_out)
{
    const dsi_comm_log *log = comm->log;
    const float *const values[DSI_LOG_N_SAMPLES] = {log->samples[0].seconds,
                                                    log->samples[1].seconds};
    return split_by_row(comm->ctx, log, values, rows_out);
}

size_t ds_comm_log_n_rows(const ds_comm *comm)
{
    uint16_t order[DSI_LOG_ROWS];
    return comm != NULL && comm->log != NULL ? order_rows(comm->log, order) : 0;
}

ds_status ds_comm_log_get_row(const ds_comm *comm, size_t index, ds_comm_log_row *row_out)
{
    uint16_t order[DSI_LOG_ROWS];
    by_row latencies;
    if (index >= ds_comm_log_n_rows(comm)) {
        return ds_fail(comm != NULL ? comm->ctx : NULL, DS_ERR_ARG,
                       "the log of collectives has no row %zu", index);
    }
    (void)order_rows(comm->log, order);
    DS_TRY(split_latencies(comm, &latencies));
    *row_out = describe(comm->log, &latencies, order[index]);
    free_rows(&latencies);
    return DS_OK;
}

/* ---- the table ---- */

static void heading(dsi_buf *text, const char *const titles[7])
{
    for (int i = 0; i < 7; ++i) {
        dsi_buf_printf(text, "%-20s", titles[i]);
    }
    dsi_buf_putc(text, '\n');
}

/* The line with an operation's name, when `row` is the first of it. */
static void name_line(dsi_buf *text, const dsi_comm *comm, const dsi_log_row *row,
                      const dsi_log_row *before)
{
    if (before != NULL && same_name(row, before)) {
        return;
    }
    if (row == comm->log->rows) {
        dsi_buf_puts(text, "(others)\n");
        return;
    }
    dsi_buf_puts(text, dsi_coll_name(row->kind));
    if (row->group != 0) {
        dsi_buf_printf(text, " over %s", comm->log->groups[row->group].axes);
    }
    if (row->n_ranks != comm->size) {
        dsi_buf_printf(text, " (%u ranks)", row->n_ranks);
    }
    if (row->caller[0] != '\0') {
        dsi_buf_printf(text, " | [Caller Func: %s]", row->caller);
    }
    dsi_buf_putc(text, '\n');
}

static void add_notes(dsi_buf *text, const dsi_comm_log *log)
{
    if (log->samples[0].n > DSI_LOG_SAMPLES || log->samples[1].n > DSI_LOG_SAMPLES) {
        dsi_buf_printf(text,
                       "Averages and the straggler effect are those of the latest %d calls.\n",
                       DSI_LOG_SAMPLES);
    }
    if (log->rows[0].count > 0) {
        dsi_buf_printf(
            text, "(others): calls of further operations and sizes; %d have their own lines.\n",
            DSI_LOG_ROWS - 1);
    }
    if (log->n_lost > 0) {
        dsi_buf_printf(text, "%llu calls were not timed: more than %d were under way at once.\n",
                       (unsigned long long)log->n_lost, DSI_LOG_UNDER_WAY);
    }
}

static ds_status add_summary(dsi_buf *text, const dsi_comm *comm)
{
    static const char *const titles[7] = {"Comm. Op",          "Message Size",    "Count",
                                          "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)",
                                          "busbw_avg (Gbps)"};
    const dsi_comm_log *log = comm->log;
    uint16_t order[DSI_LOG_ROWS];
    char size[DSI_SIZE_TEXT_BYTES];
    by_row latencies;
    const size_t n = order_rows(log, order);
    DS_TRY(split_latencies(comm, &latencies));
    heading(text, titles);
    for (size_t i = 0; i < n; ++i) {
        const ds_comm_log_row row = describe(log, &latencies, order[i]);
        name_line(text, comm, &log->rows[order[i]], i > 0 ? &log->rows[order[i - 1]] : NULL);
        dsi_buf_printf(text, "%-20s%-20s%-20llu%-20.2f%-20.2f%-20.2f%-20.2f\n", " ",
                       dsi_size_text(row.bytes, size), (unsigned long long)row.count, row.total_ms,
                       row.average_ms, row.algbw_gbps, row.busbw_gbps);
    }
    add_notes(text, log);
    free_rows(&latencies);
    return DS_OK;
}

/* ---- the straggler effect ---- */

/* Of each held collective: the least latency of any rank, and what this one waited beyond it; in
 * the places of the samples. */
typedef struct effect {
    float *least, *waited;
    double total; /* seconds waited on this rank */
} effect;

static void free_effect(effect *e)
{
    free(e->least);
    free(e->waited);
    *e = (effect){0};
}

static ds_status greatest(dsi_comm *comm, ds_dtype dtype, void *values, size_t n)
{
    const dsi_comm_part part = {.in = values, .out = values, .count = n};
    return dsi_comm_run(comm, &(dsi_comm_call){.kind = DS_COMM_ALL_REDUCE,
                                               .dtype = dtype,
                                               .reduction = DSI_REDUCE_MAX,
                                               .factor = 1.0f,
                                               .parts = &part,
                                               .n_parts = 1,
                                               .what = "latencies of the straggler table"});
}

/* Ranks number collectives alike only when they made as many. */
static ds_status check_same_calls(dsi_comm *comm, uint64_t n)
{
    int64_t ends[2] = {(int64_t)n, -(int64_t)n};
    DS_TRY(greatest(comm, DS_DTYPE_I64, ends, 2));
    if (ends[0] != -ends[1]) {
        return ds_fail(comm->ctx, DS_ERR_PEER,
                       "straggler effect: the ranks logged from %lld to %lld collectives, expected "
                       "the same number; start and reset their logs between the same calls",
                       (long long)-ends[1], (long long)ends[0]);
    }
    return DS_OK;
}

/* Fills `least`, negated, where a call was one of this group; `waited` is scratch memory. */
static ds_status least_of_group(dsi_comm *comm, const dsi_comm_log *log, uint32_t g, size_t n,
                                effect *e)
{
    const dsi_log_samples *samples = &log->samples[DSI_LOG_ALL_RANKS];
    for (size_t i = 0; i < n; ++i) {
        const bool own = log->rows[samples->rows[i]].group == g;
        e->waited[i] = own ? -samples->seconds[i] : -FLT_MAX;
    }
    dsi_comm_log *kept = comm->log;
    comm->log = NULL; /* this call is none of the run's */
    const ds_status status = greatest(comm, DS_DTYPE_F32, e->waited, n);
    comm->log = kept;
    for (size_t i = 0; i < n && status >= 0; ++i) {
        e->least[i] = log->rows[samples->rows[i]].group == g ? e->waited[i] : e->least[i];
    }
    return status;
}

static ds_status find_effect(dsi_comm *comm, const dsi_comm_log *log, effect *effect_out)
{
    const dsi_log_samples *samples = &log->samples[DSI_LOG_ALL_RANKS];
    const size_t n = held(samples);
    effect e = {.least = malloc(DSI_LOG_SAMPLES * sizeof(float)),
                .waited = malloc(DSI_LOG_SAMPLES * sizeof(float))};
    ds_status status = e.least != NULL && e.waited != NULL
                           ? DS_OK
                           : ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory for the straggler table");
    status = ds_comm_agree(comm, comm->ctx, status);
    status = status < 0 ? status : check_same_calls(comm, samples->n);
    for (size_t i = 0; i < n && status >= 0; ++i) {
        e.least[i] = 1.0f; /* not timed: of a group that is gone */
    }
    for (uint32_t g = 0; g < log->n_groups && n > 0 && status >= 0; ++g) {
        dsi_comm *group = g == 0 ? comm : log->groups[g].comm;
        status = group == NULL ? DS_OK : least_of_group(group, log, g, n, &e);
    }
    if (status < 0) {
        free_effect(&e);
        return status;
    }
    for (size_t i = 0; i < n; ++i) {
        e.least[i] = -e.least[i]; /* negative: not timed on some rank */
        e.waited[i] = e.least[i] < 0.0f ? -1.0f : samples->seconds[i] - e.least[i];
        e.total += e.least[i] < 0.0f ? 0.0 : (double)e.waited[i];
    }
    *effect_out = e;
    return DS_OK;
}

/* Who waited least is who the others waited for. */
static ds_status add_verdict(dsi_buf *text, dsi_comm *comm, double waited)
{
    double *all = calloc(comm->size, sizeof *all);
    uint32_t least = 0;
    uint32_t most = 0;
    ds_status status =
        all != NULL ? DS_OK : ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory for the straggler table");
    status = ds_comm_agree(comm, comm->ctx, status);
    if (status >= 0) {
        all[comm->rank] = waited;
        status = greatest(comm, DS_DTYPE_F64, all, comm->size); /* none is negative */
    }
    for (uint32_t r = 0; r < comm->size && status >= 0; ++r) {
        least = all[r] < all[least] ? r : least;
        most = all[r] > all[most] ? r : most;
    }
    if (status >= 0 && comm->size > 1) {
        dsi_buf_printf(text, "R%s", dsi_comm_rank_name(comm, least).text + 1); /* a sentence */
        dsi_buf_printf(text, " waited least for the others (%.2f ms in all), %s most (%.2f ms).\n",
                       all[least] * 1e3, dsi_comm_rank_name(comm, most).text, all[most] * 1e3);
    }
    free(all);
    return status;
}

static ds_status add_straggler(dsi_buf *text, const dsi_comm *comm, const dsi_comm_log *log,
                               const effect *e)
{
    static const char *const titles[7] = {
        "Comm. Op",           "Message Size",        "Count",
        "Total comm lat(ms)", "Total straggler(ms)", "Avg comm lat(ms)",
        "Avg straggler(ms)"};
    const float *const of_least[DSI_LOG_N_SAMPLES] = {e->least, NULL};
    const float *const of_waited[DSI_LOG_N_SAMPLES] = {e->waited, NULL};
    uint16_t order[DSI_LOG_ROWS];
    char size[DSI_SIZE_TEXT_BYTES];
    by_row least;
    by_row waited;
    const size_t n = order_rows(log, order);
    DS_TRY(split_by_row(comm->ctx, log, of_least, &least));
    const ds_status status = split_by_row(comm->ctx, log, of_waited, &waited);
    if (status < 0) {
        free_rows(&least);
        return status;
    }
    dsi_buf_puts(text, "_______________________________\nBreakdown with straggler effect\n"
                       "-------------------------------\n");
    heading(text, titles);
    const dsi_log_row *before = NULL;
    for (size_t i = 0; i < n; ++i) {
        const uint16_t r = order[i];
        const size_t count = least.begin[r + 1] - least.begin[r];
        if (count == 0) {
            continue;
        }
        name_line(text, comm, &log->rows[r], before);
        before = &log->rows[r];
        dsi_buf_printf(text, "%-20s%-20s%-20zu%-20.2f%-20.2f%-20.2f%-20.2f\n", " ",
                       dsi_size_text(log->rows[r].bytes, size), count, sum_of(&least, r) * 1e3,
                       sum_of(&waited, r) * 1e3, trimmed_mean(&least, r) * 1e3,
                       trimmed_mean(&waited, r) * 1e3);
    }
    free_rows(&least);
    free_rows(&waited);
    return DS_OK;
}

/* own: whether this rank has come so far. Its own calls are not logged. */
static ds_status straggler(dsi_buf *text, dsi_comm *comm, ds_status own)
{
    dsi_comm_log *log = comm->log;
    effect e = {0};
    comm->log = NULL;
    ds_status status = ds_comm_agree(comm, comm->ctx, own);
    status = status < 0 ? status : find_effect(comm, log, &e);
    const double waited = e.total;
    dsi_buf verdict = dsi_buf_make(TEXT_CEILING);
    status = status < 0 ? status : add_verdict(&verdict, comm, waited);
    comm->log = log;
    status = status < 0 ? status : add_straggler(text, comm, log, &e);
    dsi_buf_puts(text, dsi_buf_text(&verdict));
    dsi_buf_free(&verdict);
    free_effect(&e);
    return status;
}

ds_status ds_comm_log_summary(ds_comm *comm, bool show_straggler, char **text_out)
{
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    if (comm == NULL || comm->log == NULL) {
        return ds_fail(comm != NULL ? comm->ctx : NULL, DS_ERR_STATE,
                       "no collectives were logged; set comms_logger.enabled, or call "
                       "ds_comm_log_start");
    }
    ds_status status = add_summary(&text, comm);
    if (show_straggler) {
        status = straggler(&text, comm, status);
    }
    if (status >= 0 && text.failed) {
        status = ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory for the summary of collectives");
    }
    if (status < 0) {
        dsi_buf_free(&text);
        return status;
    }
    *text_out = text.data;
    return DS_OK;
}
