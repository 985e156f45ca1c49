/* SPDX-License-Identifier: Apache-2.0 */
/* Histories in files: which lines count, and the cut for a run that is resumed. See run_history.h.
 *
 * A line is kept when no later line of a step repeats or precedes its step; lines of sessions
 * always. A last line without newline is the torn one of a killed writer and is left out.
 */
#include "io/file.h"
#include "io/json_load.h"
#include "monitor/run_history.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_REWINDS = 10000 };

typedef struct kept_line {
    size_t at, n;
    uint64_t step;
    bool session;
} kept_line;

typedef struct lines {
    kept_line *items;
    size_t n, room;
    uint64_t last; /* step of the newest line of a step */
    uint32_t n_rewinds;
} lines;

static bool push(lines *l, kept_line line)
{
    if (l->n == l->room) {
        const size_t room = l->room > 0 ? 2 * l->room : 256;
        kept_line *items = realloc(l->items, room * sizeof *items);
        if (items == NULL) {
            return false;
        }
        l->items = items;
        l->room = room;
    }
    l->items[l->n++] = line;
    return true;
}

/* Removes what is of `step` or later. */
static void rewind_to(lines *l, uint64_t step)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; ++i) {
        if (l->items[i].session || l->items[i].step < step) {
            l->items[n++] = l->items[i];
        }
    }
    l->n = n;
}

typedef enum line_kind { LINE_OTHER, LINE_SESSION, LINE_STEP, LINE_MARK } line_kind;

static line_kind kind_of(const char *text, size_t n, uint64_t *step_out)
{
    json_error_t error;
    json_t *root = dsi_json_parse(text, n, 0, &error);
    const json_t *step = json_object_get(root, "step");
    line_kind kind = LINE_OTHER;
    if (json_is_integer(step) && json_integer_value(step) >= 0) {
        *step_out = (uint64_t)json_integer_value(step);
        kind = json_object_get(root, "event") != NULL  ? LINE_SESSION
               : json_object_get(root, "loss") != NULL ? LINE_STEP
                                                       : LINE_MARK;
    }
    json_decref(root);
    return kind;
}

/* Which lines count. Out of memory: false. */
static bool choose(const dsi_map *map, lines *l)
{
    const char *text = (const char *)map->data;
    for (size_t at = 0; at < map->size;) {
        const char *end = memchr(text + at, '\n', map->size - at);
        if (end == NULL) {
            return true;
        }
        kept_line line = {.at = at, .n = (size_t)(end - text) - at};
        const line_kind kind = kind_of(text + at, line.n, &line.step);
        at += line.n + 1;
        if (kind == LINE_OTHER) {
            continue;
        }
        if (kind == LINE_STEP) {
            if (line.step <= l->last && l->n_rewinds++ < MAX_REWINDS) {
                rewind_to(l, line.step);
            }
            l->last = line.step;
        }
        line.session = kind == LINE_SESSION;
        if (!push(l, line)) {
            return false;
        }
    }
    return true;
}

/* The file, or that of the folder; from malloc. */
static char *file_of(const char *path)
{
    struct stat st;
    const bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    return folder ? dsi_path_join(path, DSI_RUN_HISTORY_NAME) : strdup(path);
}

static ds_status read_map(ds_ctx *ctx, const char *path, const dsi_map *map, dsi_run_history *h)
{
    lines l = {0};
    if (!choose(map, &l)) {
        free(l.items);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the history %s", path);
    }
    for (size_t i = 0; i < l.n; ++i) {
        (void)dsi_run_history_feed(h, (const char *)map->data + l.items[i].at, l.items[i].n);
    }
    free(l.items);
    return h->n_steps + h->n_sessions > 0
               ? DS_OK
               : ds_fail(
                     ctx, DS_ERR_FORMAT,
                     "%s is no history of a run: it has no line such as {\"step\": 1, \"loss\": "
                     "2.5}; give ds_train's --metrics file or its output folder",
                     path);
}

ds_status dsi_run_history_read(ds_ctx *ctx, const char *path, dsi_run_history **history_out)
{
    dsi_map map;
    char *file = file_of(path);
    dsi_run_history *h = dsi_run_history_create(path);
    ds_status status = file == NULL || h == NULL
                           ? ds_fail(ctx, DS_ERR_NOMEM, "no memory for the history %s", path)
                           : dsi_map_open(ctx, file, 0, &map);
    if (status >= 0) {
        status = read_map(ctx, file, &map, h);
        dsi_map_close(&map);
    }
    free(file);
    if (status < 0) {
        dsi_run_history_destroy(&h);
        return status;
    }
    *history_out = h;
    return DS_OK;
}

/* What ds_train writes first; an empty file is nobody's. */
static bool is_ours(const dsi_map *map)
{
    static const char begin[] = DSI_RUN_HISTORY_BEGIN;
    const size_t n = map->size < sizeof begin - 1 ? map->size : sizeof begin - 1;
    return n == 0 || memcmp(map->data, begin, n) == 0;
}

static ds_status not_ours(ds_ctx *ctx, const char *path)
{
    return ds_fail(ctx, DS_ERR_STATE,
                   "%s is there and is no history of a run: it would be lost; move it, or give "
                   "another folder",
                   path);
}

ds_status dsi_run_history_check(ds_ctx *ctx, const char *path)
{
    struct stat st;
    dsi_map map;
    if (stat(path, &st) != 0) {
        return DS_OK; /* whoever makes it says what is wrong */
    }
    if (!S_ISREG(st.st_mode)) {
        return not_ours(ctx, path);
    }
    DS_TRY(dsi_map_open(ctx, path, 0, &map));
    const bool ours = is_ours(&map);
    dsi_map_close(&map);
    return ours ? DS_OK : not_ours(ctx, path);
}

static ds_status write_kept(dsi_file_out *out, const dsi_map *map, const lines *l, uint64_t step,
                            dsi_run_history *h)
{
    for (size_t i = 0; i < l->n; ++i) {
        const kept_line *line = &l->items[i];
        const char *text = (const char *)map->data + line->at;
        if (line->session || line->step <= step) {
            DS_TRY(dsi_file_write(out, text, line->n + 1));
            (void)dsi_run_history_feed(h, text, line->n);
        }
    }
    return DS_OK;
}

ds_status dsi_run_history_cut(ds_ctx *ctx, const char *path, uint64_t step, dsi_run_history *h)
{
    struct stat st;
    dsi_map map = {0};
    lines l = {0};
    dsi_file_out *out = NULL;
    DS_TRY(dsi_run_history_check(ctx, path));
    if (stat(path, &st) == 0) {
        DS_TRY(dsi_map_open(ctx, path, 0, &map));
    }
    ds_status status = choose(&map, &l)
                           ? dsi_file_stage(ctx, path, &out)
                           : ds_fail(ctx, DS_ERR_NOMEM, "no memory for the history %s", path);
    if (status >= 0) {
        status = write_kept(out, &map, &l, step, h);
    }
    free(l.items);
    dsi_map_close(&map);
    if (status < 0) {
        dsi_file_abort(&out);
        return status;
    }
    return dsi_file_commit(&out);
}
