/* SPDX-License-Identifier: Apache-2.0 */
/* The history of a run in its output folder, and its page. See train.h, monitor/run_history.h.
 *
 * 1. OUTPUT/history.jsonl holds the run from its first step on, whatever resumes and restarts: what
 *    came after the checkpoint that a run goes on from is cut off before the first new line.
 * 2. The page is made of the lines of the history alone, so that ds_report --runs makes the same.
 * 3. Pages cost at most a hundredth of the time: the next one waits a hundred times as long as the
 *    last one took to write. A page that is a pipe or a device is written once, at the end.
 */
#include "base/clock.h"
#include "common/output.h"
#include "common/train.h"
#include "io/file.h"
#include "monitor/html.h"
#include "monitor/run_page.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static const double seconds_a_page = 3.0;
static const double part_of_time = 0.01;
static const double least_silence = 600.0; /* seconds */

struct train_history {
    FILE *file;        /* NULL: no --output */
    char *path, *page; /* page NULL: none */
    bool live;         /* the page can be written anew */
    dsi_run_history *seen;
    double due;     /* seconds, monotonic */
    double newest;  /* line, likewise; 0: none */
    double longest; /* seconds between two lines */
    ds_status failed;
};

static char *in_output(const train_options *o, const char *name)
{
    return o->output != NULL && !o->trial ? dsi_path_join(o->output, name) : NULL;
}

/* From malloc; NULL: no page. */
static char *page_path(const train_options *o)
{
    if (o->report == NULL) {
        return in_output(o, DSI_RUN_PAGE_NAME);
    }
    return strcmp(o->report, "none") != 0 ? strdup(o->report) : NULL;
}

static bool is_stream(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

/* Files of another run stay, unless --overwrite was said; a run that goes on keeps to its own. */
static ds_status check_files(const train_run *run)
{
    const train_options *o = run->options;
    const bool keeps = o->overwrite || o->resume_given || o->restarted;
    const bool page = o->report != NULL && strcmp(o->report, "none") != 0;
    const char *const flags[] = {"--metrics", "--trace", "--report"};
    const char *const paths[] = {o->metrics, o->trace, page ? o->report : NULL};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; ++i) {
        const ds_status status = output_free(run->ctx, paths[i], NULL, keeps);
        if (status < 0) {
            return ds_fail(run->ctx, status, "%s: %s", flags[i], ds_ctx_error(run->ctx));
        }
    }
    return DS_OK;
}

ds_status train_history_check(const train_run *run)
{
    const train_options *o = run->options;
    char *page = page_path(o);
    char *path = in_output(o, DSI_RUN_HISTORY_NAME);
    struct stat st;
    const bool there = o->report != NULL || (o->output != NULL && stat(o->output, &st) == 0);
    ds_status status = DS_OK;
    if (page != NULL && there) {
        status = dsi_html_check(run->ctx, page, DSI_RUN_PAGE_KIND);
    }
    if (status >= 0 && path != NULL) {
        status = dsi_run_history_check(run->ctx, path);
    }
    free(page);
    free(path);
    return status < 0 ? status : check_files(run);
}

static void free_history(train_history *h)
{
    if (h->file != NULL) {
        (void)fclose(h->file);
    }
    dsi_run_history_destroy(&h->seen);
    free(h->path);
    free(h->page);
    free(h);
}

/* How long the page of a run that goes on may stay as it is: many times what it did so far. */
static double silence_of(const train_history *h)
{
    return fmax(least_silence, 10.0 * h->longest);
}

static ds_status write_page(const train_run *run, bool live)
{
    const train_history *h = run->history;
    char *text = NULL;
    DS_TRY(dsi_run_page(run->ctx, h->seen, live ? silence_of(h) : 0.0, &text));
    const ds_status status = dsi_file_replace(run->ctx, h->page, text, strlen(text));
    free(text);
    return status;
}

static void note_failure(train_run *run, ds_status status)
{
    train_history *h = run->history;
    if (status < 0 && h->failed == DS_OK) {
        h->failed = status;
        ds_log(run->ctx, DS_LOG_ERROR, "the history of the run is not whole: %s; the run goes on",
               ds_ctx_error(run->ctx));
    }
}

static void page_in_time(train_run *run)
{
    train_history *h = run->history;
    const double start = dsi_clock_seconds();
    if (h->page == NULL || !h->live || h->failed < 0 || start < h->due) {
        return;
    }
    note_failure(run, write_page(run, true));
    const double end = dsi_clock_seconds();
    const double wait = (end - start) / part_of_time;
    h->due = end + (wait > seconds_a_page ? wait : seconds_a_page);
}

void train_history_line(train_run *run, const char *line, bool soon)
{
    train_history *h = run->history;
    if (h == NULL) {
        return;
    }
    (void)dsi_run_history_feed(h->seen, line, strlen(line));
    const double now = dsi_clock_seconds();
    h->longest = h->newest > 0.0 ? fmax(h->longest, now - h->newest) : 0.0;
    h->newest = now;
    if (h->file != NULL && h->failed == DS_OK &&
        (fprintf(h->file, "%s\n", line) < 0 || fflush(h->file) != 0)) {
        note_failure(run, dsi_io_fail(run->ctx, "write", h->path, errno));
    }
    const double second = now + 1.0;
    h->due = soon && second < h->due ? second : h->due;
    page_in_time(run);
}

/* The name on the page: the output folder's, else the page's own. */
static const char *name_of(const train_run *run)
{
    const train_options *o = run->options;
    return o->output != NULL ? o->output : o->model != NULL ? o->model : o->model_config;
}

/* A run begun anew has its own history; one that the launcher started again keeps its sessions. */
static ds_status open_file(train_run *run)
{
    train_history *h = run->history;
    const train_options *o = run->options;
    const bool goes_on = o->resume_given || o->restarted;
    if (h->path == NULL) {
        return DS_OK;
    }
    DS_TRY(dsi_run_history_check(run->ctx, h->path));
    if (goes_on) {
        DS_TRY(
            dsi_run_history_cut(run->ctx, h->path, ds_engine_global_steps(run->engine), h->seen));
    }
    return dsi_file_stream(run->ctx, h->path, goes_on, &h->file);
}

static ds_status open_history(train_run *run)
{
    train_history *h = run->history;
    char *line = NULL;
    if (h->seen == NULL) {
        return ds_fail(run->ctx, DS_ERR_NOMEM, "no memory for the history of the run");
    }
    DS_TRY(open_file(run));
    if (h->page != NULL) {
        DS_TRY(dsi_html_check(run->ctx, h->page, DSI_RUN_PAGE_KIND));
        h->live = !is_stream(h->page);
    }
    line = train_history_start_text(run);
    if (line == NULL) {
        return ds_fail(run->ctx, DS_ERR_NOMEM, "no memory for the history of the run");
    }
    train_history_line(run, line, false);
    free(line);
    return h->failed;
}

ds_status train_history_open(train_run *run)
{
    const train_options *o = run->options;
    char *page = page_path(o);
    char *path = in_output(o, DSI_RUN_HISTORY_NAME);
    run->history = calloc(1, sizeof *run->history);
    if (run->history == NULL) {
        free(page);
        free(path);
        return ds_fail(run->ctx, DS_ERR_NOMEM, "no memory for the history of the run");
    }
    *run->history =
        (train_history){.page = page, .path = path, .seen = dsi_run_history_create(name_of(run))};
    const ds_status status = open_history(run);
    if (status < 0) {
        free_history(run->history);
        run->history = NULL;
    }
    return status;
}

const dsi_run_history *train_history_seen(const train_run *run)
{
    return run->history->seen;
}

const char *train_history_page(const train_run *run)
{
    return run->history->page;
}

/* {"event": "end", …} of jansson, since an error holds any text. */
static char *end_text(const train_run *run, bool interrupted, const char *error)
{
    const char *verdict = error != NULL ? "failed" : interrupted ? "interrupted" : "finished";
    json_t *line =
        json_pack("{s:s,s:I,s:f,s:s}", "event", "end", "step", (json_int_t)train_steps_done(run),
                  "time", (double)time(NULL), "verdict", verdict);
    char *text = NULL;
    char why[256] = "";
    if (error == NULL && !interrupted) {
        train_best_stop_text(run, why, sizeof why);
    }
    if (line != NULL && why[0] != '\0') {
        (void)json_object_set_new(line, "why", json_string(why));
    }
    if (line != NULL && error != NULL) {
        json_t *value = json_string(error);
        (void)json_object_set_new(line, "error",
                                  value != NULL ? value : json_string("(no plain text)"));
    }
    text = line != NULL ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    return text;
}

ds_status train_history_end(train_run *run, bool interrupted, const char *error)
{
    train_history *h = run->history;
    if (h == NULL) {
        return DS_OK;
    }
    char *why = error != NULL ? strdup(error) : NULL; /* the context's, which others write to */
    char *line = end_text(run, interrupted, why);
    h->live = h->live && line == NULL; /* the last page is written below */
    if (line != NULL) {
        train_history_line(run, line, false);
    }
    if (h->page != NULL) {
        const ds_status status = write_page(run, false);
        note_failure(run, status);
    }
    const ds_status failed = h->failed;
    free(line);
    free(why);
    free_history(h);
    run->history = NULL;
    return failed;
}
