/* SPDX-License-Identifier: Apache-2.0 */
/* The output of ds_bench. See coll_table.h. */
#include "common/coll_table.h"

#include "comm/bandwidth.h"
#include <stdio.h>
#include <string.h>

static uint32_t ranks_of(const coll_table_params *p, coll_bench_op op)
{
    return op == COLL_BENCH_PT2PT ? 2 : p->n_ranks;
}

/* Rules of DeepSpeed's table, longer by the columns that are ours. */
static void rule(dsi_buf *text, const coll_table_params *p, size_t used)
{
    const size_t width = 100 + (p->mpi ? 32u : 0u) + (p->bound ? 32u : 0u);
    for (size_t i = used; i < width; ++i) {
        dsi_buf_putc(text, '-');
    }
    dsi_buf_putc(text, '\n');
}

void coll_table_heading(dsi_buf *text, const coll_table_params *p, coll_bench_op op)
{
    const char *unit = p->bytes ? "GBps" : "Gbps";
    char heading[96];
    char rates[2][32];
    dsi_buf_putc(text, '\n');
    const int n = snprintf(heading, sizeof heading, "---- Performance of %s on %u devices ",
                           coll_bench_name(op), ranks_of(p, op));
    dsi_buf_puts(text, heading);
    rule(text, p, n > 0 ? (size_t)n : 0);
    (void)snprintf(rates[0], sizeof rates[0], "Throughput (%s)", unit);
    (void)snprintf(rates[1], sizeof rates[1], "BusBW (%s)", unit);
    dsi_buf_printf(text, "%-20s %-25s %-20s %-20s %-20s", "Size (Bytes)", "Description",
                   p->raw ? "Duration (us)" : "Duration", rates[0], rates[1]);
    if (p->mpi) {
        dsi_buf_printf(text, " %-20s %-10s", p->raw ? "MPI (us)" : "MPI", "MPI/ours");
    }
    if (p->bound) {
        dsi_buf_printf(text, " %-20s %-10s", p->raw ? "Bound (us)" : "Bound", "of bound");
    }
    dsi_buf_putc(text, '\n');
    rule(text, p, 0);
}

static const char *duration(const coll_table_params *p, double seconds, char *text, size_t n)
{
    if (seconds <= 0.0) {
        (void)snprintf(text, n, "-");
    } else if (p->raw) {
        (void)snprintf(text, n, "%.3f", seconds * 1e6);
    } else if (seconds < 1e-3) {
        (void)snprintf(text, n, "%.3f us", seconds * 1e6);
    } else {
        (void)snprintf(text, n, "%.3f ms", seconds * 1e3);
    }
    return text;
}

/* A time of others, and how many times ours it is (or, inverse, ours is of it). */
static void compare_with(dsi_buf *text, const coll_table_params *p, double other, double ours)
{
    char time[32];
    dsi_buf_printf(text, " %-20s ", duration(p, other, time, sizeof time));
    if (other > 0.0 && ours > 0.0) {
        dsi_buf_printf(text, "%-10.2f", other / ours);
    } else {
        dsi_buf_printf(text, "%-10s", "-");
    }
}

void coll_table_row(dsi_buf *text, const coll_table_params *p, const coll_bench_row *row)
{
    const dsi_bandwidth rate = dsi_coll_bandwidth(coll_bench_kind(row->op), row->bytes,
                                                  ranks_of(p, row->op), row->seconds);
    const double unit = p->bytes ? 1e9 : 1e9 / 8.0;
    char size[DSI_SIZE_TEXT_BYTES];
    char shape[48];
    char time[32];
    (void)snprintf(size, sizeof size, "%zu", row->bytes);
    (void)snprintf(shape, sizeof shape, "%zux%zu", row->count, ds_dtype_bytes(p->dtype));
    dsi_buf_printf(text, "%-20s %-25s %-20s %-20.3f %-20.3f",
                   p->raw ? size : dsi_size_text(row->bytes, size), shape,
                   duration(p, row->seconds, time, sizeof time), rate.algorithm / unit,
                   rate.bus / unit);
    if (p->mpi) {
        compare_with(text, p, row->mpi_seconds, row->seconds);
    }
    if (p->bound) {
        compare_with(text, p, row->bound, row->seconds);
    }
    dsi_buf_putc(text, '\n');
}

void coll_table_json(dsi_buf *text, const coll_table_params *p, const coll_bench_row *rows,
                     size_t n_rows)
{
    dsi_buf_printf(text,
                   "{\"ranks\": %u, \"transport\": \"%s\", \"dtype\": \"%s\", \"trials\": %u, "
                   "\"warmups\": %u, \"operands\": \"%s\", ",
                   p->n_ranks, p->transport, ds_dtype_name(p->dtype), p->trials, p->warmups,
                   p->private_operands ? "private" : "symmetric");
    if (p->mpi_library != NULL) {
        dsi_buf_puts(text, "\"mpi\": \"");
        dsi_buf_json(text, p->mpi_library, strlen(p->mpi_library));
        dsi_buf_puts(text, "\", ");
    }
    dsi_buf_puts(text, "\"results\": [");
    for (size_t i = 0; i < n_rows; ++i) {
        const coll_bench_row *row = &rows[i];
        const dsi_bandwidth rate = dsi_coll_bandwidth(coll_bench_kind(row->op), row->bytes,
                                                      ranks_of(p, row->op), row->seconds);
        dsi_buf_printf(text,
                       "%s\n  {\"op\": \"%s\", \"bytes\": %zu, \"count\": %zu, \"seconds\": %.9g, "
                       "\"throughput_bytes_per_s\": %.9g, \"busbw_bytes_per_s\": %.9g",
                       i > 0 ? "," : "", coll_bench_name(row->op), row->bytes, row->count,
                       row->seconds, rate.algorithm, rate.bus);
        if (row->mpi_seconds > 0.0) {
            dsi_buf_printf(text, ", \"mpi_seconds\": %.9g", row->mpi_seconds);
        }
        if (row->bound > 0.0) {
            dsi_buf_printf(text, ", \"bound_seconds\": %.9g", row->bound);
        }
        dsi_buf_putc(text, '}');
    }
    dsi_buf_puts(text, "\n]}\n");
}
