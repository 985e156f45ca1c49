/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a run in words and a curve. See train.h. */
#include "base/plain.h"
#include "common/plot.h"
#include "common/train.h"
#include "monitor/chart_axis.h"

#include <math.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { COLUMNS = 80, LEFT = 14 /* of them, for the figures */, MOST = 120, ROWS = 10, FEW = 3 };

static int descriptor_of(FILE *out)
{
    return out == stdout ? STDOUT_FILENO : fileno(out); /* terminal.h makes it another stream */
}

static size_t columns_of(FILE *out)
{
    struct winsize size;
    const bool known = ioctl(descriptor_of(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 2 * LEFT;
    const size_t columns = (known ? size.ws_col : COLUMNS) - LEFT;
    return columns < MOST ? columns : MOST;
}

/* The smoothed loss; gaps are passed over. */
static void put_curve(const dsi_series *loss, FILE *out)
{
    char title[128];
    double *values = malloc((loss->n + 1) * sizeof *values);
    size_t n = 0;
    if (values == NULL) {
        return;
    }
    const size_t span = dsi_series_smooth(loss, values) * loss->width;
    for (size_t i = 0; i < loss->n; ++i) {
        if (isfinite(values[i])) {
            values[n++] = values[i];
        }
    }
    (void)snprintf(title, sizeof title, "loss by step, mean of about %zu", span);
    if (n >= FEW) {
        dsi_plot(out, span > 1 ? title : "loss by step", values, n, loss->points[0].first,
                 loss->points[loss->n - 1].last, columns_of(out), ROWS);
    }
    free(values);
}

static void put_loss(const dsi_run_history *h, FILE *out)
{
    const dsi_series *loss = &h->curves[DSI_RUN_LOSS];
    (void)fprintf(out, "; loss %.4f", h->loss);
    if (loss->n > 1) {
        (void)fprintf(out, " from %.4f", dsi_point_value(&loss->points[0]));
    }
    if (h->n_evals > 0) {
        (void)fprintf(out, "; validation loss %.4f", h->eval_loss);
    }
    if (h->n_evals > 1 && isfinite(h->best_eval)) {
        (void)fprintf(out, ", best %.4f at step %llu", h->best_eval,
                      (unsigned long long)h->best_eval_step);
    }
    if (h->model_step > 0 && h->model_step == h->best_eval_step) {
        (void)fprintf(out, ", whose weights the model has");
    }
}

/* Of the whole process without mapped files, measured and planned. */
static void put_memory(const dsi_run_history *h, FILE *out)
{
    const double planned = json_number_value(json_object_get(h->start, "planned_bytes"));
    const double more = h->peak_bytes - planned;
    char text[DSI_CHART_TEXT];
    (void)fprintf(out, "; memory %s", dsi_bytes_text(h->peak_bytes, text));
    (void)fprintf(out, "%s %s planned", more > 0.0 ? "," : " of", dsi_bytes_text(planned, text));
    if (more > 0.0) {
        (void)fprintf(out, " and %s beside the plan (data, tokenizer, libraries)",
                      dsi_bytes_text(more, text));
    }
}

void train_summary_print(const train_run *run, FILE *out)
{
    const dsi_run_history *h = train_history_seen(run);
    const char *page = train_history_page(run);
    char text[DSI_CHART_TEXT];
    char plain[1024];
    if (h->n_steps == 0) {
        return;
    }
    if (isatty(descriptor_of(out)) != 0) {
        put_curve(&h->curves[DSI_RUN_LOSS], out);
    }
    (void)fprintf(out, "summary: %llu steps in %s, %.0f tok/s", (unsigned long long)h->n_steps,
                  dsi_clock_text(h->seconds, text),
                  h->seconds > 0.0 ? h->tokens / h->seconds : 0.0);
    put_loss(h, out);
    put_memory(h, out);
    (void)fprintf(out, "; %llu skipped; %llu saved\n", (unsigned long long)h->n_skipped,
                  (unsigned long long)h->n_saves);
    if (page != NULL) {
        (void)fprintf(out, "page of the run: %s\n", dsi_plain_name(page, plain, sizeof plain));
    }
    (void)fflush(out);
}
