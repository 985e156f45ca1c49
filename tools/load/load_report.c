/* SPDX-License-Identifier: Apache-2.0 */
/* What came of a load: quantiles, rates, goodput; as text and JSON. See load.h. */
#include "load/load.h"

#include "config/config_node.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_REASONS = 8 };

const char *const load_measure_names[LOAD_MEASURES] = {"first token", "time per token",
                                                       "between texts", "end to end"};
static const char *const keys[LOAD_MEASURES] = {"ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"};

double load_quantile(const double *sorted, size_t n, double part)
{
    const double at = part * (double)(n - 1);
    const size_t below = (size_t)at;
    const size_t above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (at - (double)below) * (sorted[above] - sorted[below]);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure_finish(load_measure *m)
{
    double sum = 0;
    if (m->n == 0) {
        return;
    }
    qsort(m->values, m->n, sizeof *m->values, by_value);
    for (size_t i = 0; i < m->n; ++i) {
        sum += m->values[i];
    }
    m->mean = sum / (double)m->n;
    m->p50 = load_quantile(m->values, m->n, 0.5);
    m->p90 = load_quantile(m->values, m->n, 0.9);
    m->p95 = load_quantile(m->values, m->n, 0.95);
    m->p99 = load_quantile(m->values, m->n, 0.99);
    m->most = m->values[m->n - 1];
}

static double ttft(const load_result *r)
{
    return 1e3 * (r->first - r->due);
}

static double tpot(const load_result *r)
{
    return r->n_output > 1 ? 1e3 * (r->last - r->first) / (double)(r->n_output - 1) : 0.0;
}

static double e2e(const load_result *r)
{
    return 1e3 * (r->last - r->due);
}

/* Tokens that make no text of their own (the begin of a character) may leave an answer empty: it
 * has no first text, but an end. */
static bool has_text(const load_result *r)
{
    return r->first > 0;
}

bool load_is_good(const load_options *o, const load_result *r)
{
    return !r->failed && (o->slo_ttft <= 0 || (has_text(r) && ttft(r) <= o->slo_ttft)) &&
           (o->slo_tpot <= 0 || tpot(r) <= o->slo_tpot) &&
           (o->slo_e2e <= 0 || e2e(r) <= o->slo_e2e);
}

static void add(load_measure *m, double value)
{
    m->values[m->n++] = value;
}

ds_status load_report_make(ds_ctx *ctx, const load_options *o, const load_target *target,
                           const load_run *run, load_report *report)
{
    load_report r = {.o = o, .target = target, .run = run};
    for (int k = 0; k < LOAD_MEASURES; ++k) {
        const size_t n = k == LOAD_GAP ? run->gaps.n : run->n;
        r.measures[k].values = malloc((n + 1) * sizeof(double));
        if (r.measures[k].values == NULL) {
            load_report_free(&r);
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a report");
        }
    }
    for (size_t i = 0; i < run->n; ++i) {
        const load_result *x = &run->results[i];
        r.n_failed += x->failed;
        r.n_good += load_is_good(o, x);
        if (x->failed) {
            continue;
        }
        ++r.n_done;
        r.n_input += x->n_prompt;
        r.n_cached += x->n_cached;
        r.n_output += x->n_output;
        add(&r.measures[LOAD_E2E], e2e(x));
        if (has_text(x)) {
            add(&r.measures[LOAD_TTFT], ttft(x));
        }
        if (has_text(x) && x->n_output > 1) {
            add(&r.measures[LOAD_TPOT], tpot(x));
        }
    }
    for (size_t i = 0; i < run->gaps.n; ++i) {
        add(&r.measures[LOAD_GAP], 1e3 * (double)run->gaps.items[i]);
    }
    for (int k = 0; k < LOAD_MEASURES; ++k) {
        measure_finish(&r.measures[k]);
    }
    const double seconds = run->seconds > 0 ? run->seconds : 1e-9;
    r.requests_s = (double)r.n_done / seconds;
    r.input_s = (double)r.n_input / seconds;
    r.output_s = (double)r.n_output / seconds;
    r.good_s = (double)r.n_good / seconds;
    *report = r;
    return DS_OK;
}

void load_report_free(load_report *report)
{
    for (int k = 0; k < LOAD_MEASURES; ++k) {
        free(report->measures[k].values);
        report->measures[k].values = NULL;
    }
}

/* ---- text ---- */

static void put_limits(const load_report *r, dsi_buf *text)
{
    const load_options *o = r->o;
    const char *comma = "";
    const struct {
        const char *name;
        double limit;
    } limits[] = {{"first token", o->slo_ttft}, {"token", o->slo_tpot}, {"answer", o->slo_e2e}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; ++i) {
        if (limits[i].limit > 0) {
            dsi_buf_printf(text, "%s%s %.4g ms", comma, limits[i].name, limits[i].limit);
            comma = ", ";
        }
    }
}

static bool has_limits(const load_options *o)
{
    return o->slo_ttft > 0 || o->slo_tpot > 0 || o->slo_e2e > 0;
}

/* Each reason once, with how often. */
static void put_failures(const load_report *r, dsi_buf *text)
{
    const load_result *reasons[MOST_REASONS];
    size_t counts[MOST_REASONS];
    size_t n = 0;
    for (size_t i = 0; i < r->run->n; ++i) {
        const load_result *x = &r->run->results[i];
        size_t k = 0;
        if (!x->failed) {
            continue;
        }
        while (k < n && (reasons[k]->status != x->status || strcmp(reasons[k]->error, x->error))) {
            ++k;
        }
        if (k == n && n < MOST_REASONS) {
            reasons[n] = x;
            counts[n++] = 0;
        }
        counts[k < n ? k : n - 1] += k < n;
    }
    for (size_t k = 0; k < n; ++k) {
        dsi_buf_printf(text, "  %zu failed with status %d: %s\n", counts[k], reasons[k]->status,
                       reasons[k]->error);
    }
}

void load_report_text(const load_report *r, dsi_buf *text)
{
    const load_options *o = r->o;
    dsi_buf_printf(text, "%s, model %s: %zu requests of %lld clients", o->url, r->target->model,
                   r->run->n, (long long)o->clients);
    if (o->rate > 0) {
        dsi_buf_printf(text, ", %.4g a second", o->rate);
    }
    if (o->trace != NULL) {
        dsi_buf_printf(text, ", as in %s", o->trace);
    }
    dsi_buf_puts(text, r->run->interrupted ? "; interrupted before all were sent" : "");
    dsi_buf_printf(text,
                   "\n%zu done, %zu failed in %.2f s\n"
                   "%.4g requests a second; tokens a second: %.5g in (%.3g %% of them known), "
                   "%.5g out\n\n%-16s %10s %10s %10s %10s %10s %10s\n",
                   r->n_done, r->n_failed, r->run->seconds, r->requests_s, r->input_s,
                   r->n_input > 0 ? 100.0 * (double)r->n_cached / (double)r->n_input : 0.0,
                   r->output_s, "milliseconds", "mean", "50 %", "90 %", "95 %", "99 %", "most");
    for (int k = 0; k < LOAD_MEASURES; ++k) {
        const load_measure *m = &r->measures[k];
        dsi_buf_printf(text, "%-16s %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f\n",
                       load_measure_names[k], m->mean, m->p50, m->p90, m->p95, m->p99, m->most);
    }
    if (has_limits(o)) {
        dsi_buf_printf(text, "\nwithin limits (");
        put_limits(r, text);
        dsi_buf_printf(text, "): %zu of %zu, %.4g a second\n", r->n_good, r->run->n, r->good_s);
    }
    if (r->n_failed > 0) {
        dsi_buf_puts(text, "\n");
        put_failures(r, text);
    }
}

/* ---- JSON ---- */

static void put_text(dsi_buf *text, const char *key, const char *value)
{
    dsi_buf_printf(text, "  \"%s\": \"", key);
    dsi_buf_json(text, value, strlen(value));
    dsi_buf_puts(text, "\",\n");
}

static void put_result(const load_result *x, dsi_buf *text)
{
    dsi_buf_printf(text,
                   "    {\"due\": %.6f, \"sent\": %.6f, \"first\": %.6f, \"last\": %.6f, "
                   "\"prompt\": %lld, \"cached\": %lld, \"output\": %lld, \"asked\": %lld, "
                   "\"status\": %d",
                   x->due, x->sent, x->first, x->last, (long long)x->n_prompt,
                   (long long)x->n_cached, (long long)x->n_output, (long long)x->asked, x->status);
    if (x->failed) {
        dsi_buf_puts(text, ", \"error\": \"");
        dsi_buf_json(text, x->error, strlen(x->error));
        dsi_buf_puts(text, "\"");
    }
    dsi_buf_puts(text, "}");
}

void load_report_json(const load_report *r, dsi_buf *text)
{
    const load_options *o = r->o;
    dsi_buf_puts(text, "{\n  \"ds_bench_serve\": 1,\n");
    put_text(text, "url", o->url);
    put_text(text, "model", r->target->model);
    put_text(text, "endpoint", o->endpoint);
    put_text(text, "prompt_tokens", o->prompt_tokens);
    put_text(text, "output_tokens", o->output_tokens);
    put_text(text, "trace", o->trace != NULL ? o->trace : "");
    dsi_buf_printf(text,
                   "  \"clients\": %lld, \"rate\": %.9g, \"seed\": %lld,\n"
                   "  \"shared_prefix\": %lld, \"prefixes\": %lld,\n"
                   "  \"slo_ttft_ms\": %.9g, \"slo_tpot_ms\": %.9g, \"slo_e2e_ms\": %.9g,\n"
                   "  \"requests\": %zu, \"done\": %zu, \"failed\": %zu, \"good\": %zu,\n"
                   "  \"interrupted\": %s,\n"
                   "  \"seconds\": %.6f, \"requests_per_s\": %.9g, \"good_per_s\": %.9g,\n"
                   "  \"input_tokens\": %lld, \"cached_tokens\": %lld, \"output_tokens_sum\": "
                   "%lld,\n"
                   "  \"input_tokens_per_s\": %.9g, \"output_tokens_per_s\": %.9g",
                   (long long)o->clients, o->rate, (long long)o->seed, (long long)o->shared_prefix,
                   (long long)o->prefixes, o->slo_ttft, o->slo_tpot, o->slo_e2e, r->run->n,
                   r->n_done, r->n_failed, r->n_good, r->run->interrupted ? "true" : "false",
                   r->run->seconds, r->requests_s, r->good_s, (long long)r->n_input,
                   (long long)r->n_cached, (long long)r->n_output, r->input_s, r->output_s);
    for (int k = 0; k < LOAD_MEASURES; ++k) {
        const load_measure *m = &r->measures[k];
        dsi_buf_printf(text,
                       ",\n  \"%s\": {\"n\": %zu, \"mean\": %.9g, \"p50\": %.9g, \"p90\": %.9g, "
                       "\"p95\": %.9g, \"p99\": %.9g, \"max\": %.9g}",
                       keys[k], m->n, m->mean, m->p50, m->p90, m->p95, m->p99, m->most);
    }
    dsi_buf_puts(text, ",\n  \"each\": [");
    for (size_t i = 0; i < r->run->n; ++i) {
        dsi_buf_puts(text, i > 0 ? ",\n" : "\n");
        put_result(&r->run->results[i], text);
    }
    dsi_buf_puts(text, "\n  ]\n}\n");
}
