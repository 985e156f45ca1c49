/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of real servers. Two forms, told apart by the first character:
 *   lines of JSON   {"timestamp": MILLISECONDS, "input_length": N, "output_length": N,
 *                    "hash_ids": [...]}                    (Mooncake's traces)
 *   CSV             a head that names at|timestamp, prompt|ContextTokens|input_length and
 *                    output|GeneratedTokens|output_length; times in seconds or as
 *                    2023-11-16 18:15:46.68                (Azure's traces)
 * Times count from the first line's. See load.h.
 */
#include "load/load.h"

#include "base/number.h"
#include "data/json_scan.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { FILE_CEILING = 1 << 30, MOST_COLUMNS = 32 };

typedef struct reader {
    ds_ctx *ctx;
    const char *path;
    load_work *work;
    size_t capacity, block_capacity, line;
    load_request now;
    size_t first_block;
    bool has_time, has_prompt, has_output;
} reader;

static ds_status bad(const reader *r, const char *what)
{
    return ds_fail(r->ctx, DS_ERR_FORMAT, "%s:%zu: %s", r->path, r->line, what);
}

/* room for one more item */
static bool grow(void **items, size_t n, size_t *capacity, size_t size)
{
    if (n < *capacity) {
        return true;
    }
    const size_t more = *capacity > 0 ? 2 * *capacity : 256;
    void *bigger = realloc(*items, more * size);
    if (bigger == NULL) {
        return false;
    }
    *items = bigger;
    *capacity = more;
    return true;
}

static ds_status add(reader *r)
{
    load_work *w = r->work;
    if (!r->has_time || !r->has_prompt || !r->has_output) {
        return bad(r, "expected a time and the lengths of prompt and output");
    }
    if (r->now.prompt < 1 || r->now.output < 1) {
        return bad(r, "a length below 1");
    }
    if (!grow((void **)&w->trace, w->n_trace, &r->capacity, sizeof *w->trace)) {
        return ds_fail(r->ctx, DS_ERR_NOMEM, "no memory for a trace");
    }
    r->now.n_blocks = w->n_blocks - r->first_block;
    w->trace[w->n_trace++] = r->now;
    r->first_block = w->n_blocks;
    r->now = (load_request){0};
    r->has_time = r->has_prompt = r->has_output = false;
    return DS_OK;
}

static ds_status take_real(dsi_json_scan *scan, double *out, bool *has)
{
    dsi_json_scan_space(scan);
    const char *end = dsi_number_start(scan->p, out);
    if (end == NULL || *out < 0) {
        return dsi_json_scan_bad(scan, "a number of at least 0");
    }
    scan->p = end;
    *has = true;
    return DS_OK;
}

static ds_status take_blocks(dsi_json_scan *scan, reader *r)
{
    load_work *w = r->work;
    bool has = false;
    DS_TRY(dsi_json_scan_expect(scan, '['));
    while (!dsi_json_scan_at(scan, ']')) {
        double id = 0;
        DS_TRY(take_real(scan, &id, &has));
        if (!grow((void **)&w->blocks, w->n_blocks, &r->block_capacity, sizeof *w->blocks)) {
            return ds_fail(r->ctx, DS_ERR_NOMEM, "no memory for a trace");
        }
        w->blocks[w->n_blocks++] = id < UINT32_MAX ? (uint32_t)id : UINT32_MAX;
        if (!dsi_json_scan_at(scan, ']')) {
            DS_TRY(dsi_json_scan_expect(scan, ','));
        }
    }
    return dsi_json_scan_expect(scan, ']');
}

static ds_status take_member(dsi_json_scan *scan, const char *key, size_t n, void *arg)
{
    reader *r = arg;
    double value = 0;
    ds_status status = DS_OK;
    if (n == 9 && memcmp(key, "timestamp", n) == 0) {
        status = take_real(scan, &value, &r->has_time);
        r->now.due = value * 1e-3;
    } else if (n == 12 && memcmp(key, "input_length", n) == 0) {
        status = take_real(scan, &value, &r->has_prompt);
        r->now.prompt = (int64_t)value;
    } else if (n == 13 && memcmp(key, "output_length", n) == 0) {
        status = take_real(scan, &value, &r->has_output);
        r->now.output = (int64_t)value;
    } else if (n == 8 && memcmp(key, "hash_ids", n) == 0) {
        status = take_blocks(scan, r);
    } else {
        status = dsi_json_scan_skip(scan);
    }
    return status;
}

static ds_status read_lines(reader *r, const dsi_buf *file)
{
    dsi_json_scan scan = {.ctx = r->ctx,
                          .path = r->path,
                          .begin = file->data,
                          .p = file->data,
                          .end = file->data + file->size};
    for (dsi_json_scan_space(&scan); scan.p < scan.end; dsi_json_scan_space(&scan)) {
        DS_TRY(dsi_json_scan_members(&scan, take_member, r));
        ++r->line;
        DS_TRY(add(r));
    }
    return DS_OK;
}

/* Seconds: a number, or a date with a time of day. */
static bool read_time(const char *text, double *out)
{
    struct tm tm = {0};
    if (dsi_number_real(text, out)) {
        return *out >= 0;
    }
    const char *rest = strptime(text, "%Y-%m-%d %H:%M:%S", &tm);
    rest = rest != NULL ? rest : strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (rest == NULL) {
        return false;
    }
    double part = 0;
    if (*rest == '.') {
        (void)dsi_number_start(rest, &part);
    }
    *out = (double)timegm(&tm) + part;
    return true;
}

static bool is_one_of(const char *text, const char *a, const char *b, const char *c)
{
    return strcasecmp(text, a) == 0 || strcasecmp(text, b) == 0 || strcasecmp(text, c) == 0;
}

static int kind_of(const char *name)
{
    return is_one_of(name, "at", "timestamp", "time")                      ? 0
           : is_one_of(name, "prompt", "ContextTokens", "input_length")    ? 1
           : is_one_of(name, "output", "GeneratedTokens", "output_length") ? 2
                                                                           : -1;
}

static ds_status take_field(reader *r, int kind, const char *text)
{
    bool good = true;
    if (kind == 0) {
        good = r->has_time = read_time(text, &r->now.due);
    } else if (kind == 1) {
        good = r->has_prompt = dsi_number_int(text, 1, INT32_MAX, &r->now.prompt);
    } else if (kind == 2) {
        good = r->has_output = dsi_number_int(text, 1, INT32_MAX, &r->now.output);
    }
    return good ? DS_OK : bad(r, "expected a time, or a length of at least 1");
}

static ds_status read_csv(reader *r, dsi_buf *file)
{
    int kinds[MOST_COLUMNS];
    int n_columns = 0;
    char *rest = file->data;
    for (char *line = NULL; (line = strsep(&rest, "\n")) != NULL;) {
        ++r->line;
        line[strcspn(line, "\r")] = '\0';
        if (line[0] == '\0') {
            continue;
        }
        int column = 0;
        for (char *field = NULL; (field = strsep(&line, ",")) != NULL && column < MOST_COLUMNS;
             ++column) {
            if (n_columns == 0) {
                kinds[column] = kind_of(field);
            } else if (column < n_columns) {
                DS_TRY(take_field(r, kinds[column], field));
            }
        }
        if (n_columns > 0) {
            DS_TRY(add(r));
        }
        n_columns = n_columns > 0 ? n_columns : column;
    }
    return DS_OK;
}

static int by_time(const void *a, const void *b)
{
    const double x = ((const load_request *)a)->due;
    const double y = ((const load_request *)b)->due;
    return (x > y) - (x < y);
}

/* Times from the first; each request's blocks, now that they lie still. */
static void finish(load_work *w)
{
    size_t at = 0;
    for (size_t i = 0; i < w->n_trace; ++i) {
        w->trace[i].blocks = w->blocks != NULL ? w->blocks + at : NULL;
        at += w->trace[i].n_blocks;
    }
    qsort(w->trace, w->n_trace, sizeof *w->trace, by_time);
    const double first = w->trace[0].due;
    for (size_t i = 0; i < w->n_trace; ++i) {
        w->trace[i].due -= first;
    }
}

ds_status load_trace_read(ds_ctx *ctx, const char *path, load_work *work)
{
    dsi_buf file = dsi_buf_make(FILE_CEILING);
    reader r = {.ctx = ctx, .path = path, .work = work};
    ds_status status = dsi_buf_read_file(ctx, path, &file);
    if (status == DS_OK && file.size > 0) {
        status = file.data[strspn(file.data, " \r\n\t")] == '{' ? read_lines(&r, &file)
                                                                : read_csv(&r, &file);
    }
    if (status == DS_OK && work->n_trace == 0) {
        status = ds_fail(ctx, DS_ERR_FORMAT, "%s: there is no request in it", path);
    }
    if (status == DS_OK) {
        finish(work);
    }
    dsi_buf_free(&file);
    return status;
}
