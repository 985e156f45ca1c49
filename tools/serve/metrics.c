/* SPDX-License-Identifier: Apache-2.0 */
/* /slots, and /metrics in the text format of Prometheus, under the names of vLLM's that dashboards
 * know. */
#include "front.h"

#include <string.h>

static void put(dsi_buf *out, const char *kind, const char *name, double value)
{
    dsi_buf_printf(out, "# TYPE %s %s\n%s %.17g\n", name, kind, name, value);
}

void ranks_print(const front *f, dsi_buf *out)
{
    for (size_t r = 0; r < f->n_ranks; ++r) {
        dsi_buf_printf(out,
                       "%s{\"rank\":%zu,\"process\":%lld,\"host\":", r == 0 ? ",\"ranks\":[" : ",",
                       r, (long long)f->ranks[r].process);
        put_clean(out, f->ranks[r].host, strlen(f->ranks[r].host));
        dsi_buf_putc(out, '}');
    }
    if (f->n_ranks > 0) {
        dsi_buf_putc(out, ']');
    }
}

static void put_ranks(const front *f, dsi_buf *out)
{
    dsi_buf_puts(out, "# TYPE ds_serve_rank_info gauge\n");
    for (size_t r = 0; r < f->n_ranks; ++r) {
        dsi_buf_printf(out, "ds_serve_rank_info{rank=\"%zu\",host=", r);
        put_clean(out, f->ranks[r].host, strlen(f->ranks[r].host));
        dsi_buf_printf(out, ",process=\"%lld\"} 1\n", (long long)f->ranks[r].process);
    }
}

void metrics_print(front *f, dsi_buf *out)
{
    const front_metrics *m = &f->metrics;
    const ds_serve_stats *s = &m->stats;
    put(out, "gauge", "vllm:num_requests_running", (double)s->n_running);
    put(out, "gauge", "vllm:num_requests_waiting", (double)s->n_waiting);
    put(out, "gauge", "vllm:kv_cache_usage_perc",
        s->n_blocks > 0 ? 1.0 - (double)s->n_free_blocks / (double)s->n_blocks : 0.0);
    put(out, "counter", "vllm:prefix_cache_queries_total", (double)s->n_prompt_tokens);
    put(out, "counter", "vllm:prefix_cache_hits_total", (double)s->n_cached_tokens);
    put(out, "counter", "vllm:prompt_tokens_total", (double)s->n_prompt_tokens);
    put(out, "counter", "vllm:generation_tokens_total", (double)s->n_new_tokens);
    put(out, "counter", "vllm:num_preemptions_total", (double)s->n_preemptions);
    dsi_buf_printf(out,
                   "# TYPE vllm:request_success_total counter\n"
                   "vllm:request_success_total{finished_reason=\"stop\"} %lld\n"
                   "vllm:request_success_total{finished_reason=\"length\"} %lld\n"
                   "vllm:request_success_total{finished_reason=\"abort\"} %lld\n",
                   (long long)m->n_finished_stop, (long long)m->n_finished_length,
                   (long long)m->n_finished_cancelled);
    dsi_buf_printf(out,
                   "# TYPE vllm:time_to_first_token_seconds summary\n"
                   "vllm:time_to_first_token_seconds_sum %.9g\n"
                   "vllm:time_to_first_token_seconds_count %lld\n",
                   m->ttft_sum, (long long)m->ttft_count);
    put(out, "counter", "vllm:spec_decode_num_draft_tokens_total", (double)s->n_drafted);
    put(out, "counter", "vllm:spec_decode_num_accepted_tokens_total", (double)s->n_accepted);
    put(out, "counter", "ds_serve_steps_total", (double)s->n_steps);
    put(out, "counter", "ds_serve_step_tokens_total", (double)s->n_tokens);
    put(out, "counter", "ds_serve_step_seconds_total", m->step_seconds);
    put(out, "counter", "ds_serve_reloads_total", (double)f->n_reloads);
    put(out, "counter", "ds_serve_failed_reloads_total", (double)f->n_failed_reloads);
    put(out, "counter", "ds_serve_beat_total", (double)f->beat);
    put(out, "gauge", "ds_serve_stalled_seconds", f->stalled);
    put(out, "gauge", "ds_serve_jobs", (double)f->n_jobs);
    put(out, "gauge", "ds_serve_ranks", f->n_ranks > 0 ? (double)f->n_ranks : 1.0);
    if (f->n_ranks > 0) {
        put_ranks(f, out);
    }
    dsi_buf_puts(out, "# TYPE http_requests_total counter\n");
    for (int i = 2; i < 6; ++i) {
        dsi_buf_printf(out, "http_requests_total{status=\"%dxx\"} %lld\n", i,
                       (long long)f->door.n_answers[i]);
    }
}

static void put_slot(dsi_buf *out, const front *f, int64_t id, const job *j, const choice *c)
{
    dsi_buf_printf(out, "%s{\"id\":%lld,\"n_ctx\":%lld,\"is_processing\":%s", id > 0 ? "," : "",
                   (long long)id, (long long)f->max_length, j != NULL ? "true" : "false");
    if (j != NULL) {
        dsi_buf_printf(out,
                       ",\"request\":\"%s\",\"index\":%lld,\"state\":\"%s\",\"prompt_tokens\":%zu,"
                       "\"cached_tokens\":%lld,\"completion_tokens\":%lld,\"max_tokens\":%lld,"
                       "\"stream\":%s",
                       j->id, (long long)(c - j->choices), c->n_new > 0 ? "text" : "prompt",
                       c->n_ids, (long long)c->n_cached, (long long)c->n_new,
                       (long long)j->request.max_new_tokens, j->streams ? "true" : "false");
    }
    dsi_buf_putc(out, '}');
}

void slots_print(front *f, dsi_buf *out)
{
    int64_t n = 0;
    dsi_buf_putc(out, '[');
    for (const job *j = f->running; j != NULL; j = j->next) {
        for (size_t i = 0; i < j->n_choices; ++i) {
            if (j->choices[i].uid != 0 && j->choices[i].finish == NULL) {
                put_slot(out, f, n++, j, &j->choices[i]);
            }
        }
    }
    while (n < f->metrics.stats.max_sequences) {
        put_slot(out, f, n++, NULL, NULL);
    }
    dsi_buf_puts(out, "]\n");
}
