/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: from ids to the frames and bodies that OpenAI's clients read. See front.h.
 *
 * A text is held back while it may begin a stop string; the detokenizer holds back bytes that are
 * no whole character yet.
 */
#include "front.h"

#include "base/clock.h"
#include "base/escape.h"

#include <stdlib.h>
#include <string.h>

static void free_choice(choice *c)
{
    if (c->owns_ids) {
        free(c->ids);
    }
    free(c->echo);
    ds_detokenizer_destroy(&c->decoder);
    dsi_buf_free(&c->text);
    dsi_buf_free(&c->pending);
    dsi_buf_free(&c->vector);
    dsi_buf_free(&c->drawn);
    dsi_buf_free(&c->calls);
    dsi_buf_free(&c->arguments);
    dsi_buf_free(&c->reader.held);
    dsi_buf_free(&c->logprobs);
    dsi_buf_free(&c->tops);
    dsi_buf_free(&c->offsets);
    dsi_buf_free(&c->pieces);
    dsi_buf_free(&c->prompt);
}

void job_release(job *j)
{
    if (--j->holders > 0) {
        return;
    }
    j->f->n_jobs -= 1;
    for (size_t i = 0; i < j->n_choices; ++i) {
        free_choice(&j->choices[i]);
    }
    free(j->choices);
    free(j->model);
    free((void *)(uintptr_t)j->request.bias);
    free((void *)(uintptr_t)j->request.stop_ids);
    free((void *)(uintptr_t)j->request.beams);
    if (j->request.dry != NULL) {
        free((void *)(uintptr_t)j->request.dry->breakers);
        free((void *)(uintptr_t)j->request.dry);
    }
    dsi_guide_destroy(&j->guide);
    dsi_buf_free(&j->echoed);
    dsi_buf_free(&j->out);
    free(j);
}

static int index_of(const job *j, const choice *c)
{
    return (int)(c - j->choices);
}

/* {"id": … up to the choices. */
static void put_head(job *j, const char *object)
{
    dsi_buf_printf(&j->out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", j->id,
                   object, (long long)j->created);
    const char *model = j->model != NULL ? j->model : j->f->name;
    put_text(&j->out, model, strlen(model));
    dsi_buf_printf(&j->out, ",\"system_fingerprint\":\"%s\",\"choices\":[", j->f->fingerprint);
}

static void put_usage(job *j)
{
    int64_t prompt = 0;
    int64_t cached = 0;
    int64_t drawn = 0;
    for (size_t i = 0; i < j->n_choices; ++i) {
        prompt += i % j->n_of_each == 0 ? (int64_t)j->choices[i].n_ids : 0;
        cached += i % j->n_of_each == 0 ? j->choices[i].n_cached : 0;
        drawn += j->choices[i].n_new;
    }
    dsi_buf_printf(&j->out,
                   "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,"
                   "\"total_tokens\":%lld,\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
                   (long long)prompt, (long long)drawn, (long long)(prompt + drawn),
                   (long long)cached);
}

static void put_finish(job *j, const char *finish)
{
    if (finish != NULL) {
        dsi_buf_printf(&j->out, ",\"finish_reason\":\"%s\"}", finish);
    } else {
        dsi_buf_puts(&j->out, ",\"finish_reason\":null}");
    }
}

/* The log-probabilities of what is new; the columns begin anew. */
static void put_logprobs(job *j, choice *c)
{
    dsi_buf *out = &j->out;
    if (!j->logprobs) {
        dsi_buf_puts(out, ",\"logprobs\":null");
    } else if (j->of_chat) {
        dsi_buf_printf(out, ",\"logprobs\":{\"content\":[%s],\"refusal\":null}",
                       dsi_buf_text(&c->logprobs));
    } else {
        dsi_buf_printf(out,
                       ",\"logprobs\":{\"tokens\":[%s],\"token_logprobs\":[%s],"
                       "\"top_logprobs\":[%s],\"text_offset\":[%s]}",
                       dsi_buf_text(&c->pieces), dsi_buf_text(&c->logprobs), dsi_buf_text(&c->tops),
                       dsi_buf_text(&c->offsets));
    }
    dsi_buf_clear(&c->logprobs);
    dsi_buf_clear(&c->pieces);
    dsi_buf_clear(&c->tops);
    dsi_buf_clear(&c->offsets);
    c->n_logprobs = 0;
}

/* One frame of a stream; what: the delta of a chat or the text of a completion, as JSON. */
static void put_frame(job *j, choice *c, const char *what, const char *finish)
{
    dsi_buf *out = &j->out;
    dsi_buf_puts(out, "data: ");
    put_head(j, j->of_chat ? "chat.completion.chunk" : "text_completion");
    dsi_buf_printf(out, "{\"index\":%d,\"%s\":", index_of(j, c), j->of_chat ? "delta" : "text");
    dsi_buf_puts(out, what);
    put_logprobs(j, c);
    put_finish(j, finish);
    dsi_buf_puts(out, j->usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

/* A frame with n bytes of text. */
static void put_text_frame(job *j, choice *c, const char *text, size_t n)
{
    if (j->of_mii) {
        mii_frame(j, c, text, n, NULL);
        return;
    }
    dsi_buf what = dsi_buf_make(j->out.ceiling);
    dsi_buf_puts(&what, j->of_chat ? "{\"content\":" : "");
    put_text(&what, text, n);
    dsi_buf_puts(&what, j->of_chat ? "}" : "");
    put_frame(j, c, dsi_buf_text(&what), NULL);
    dsi_buf_free(&what);
}

static void begin(job *j, choice *c, const ds_serve_event *e)
{
    if (c->begun) {
        return;
    }
    c->begun = true;
    if (e->prompt != NULL) {
        logprobs_prompt(j, c, e->prompt);
    }
    if (c->echo != NULL) {
        dsi_buf_puts(&c->text, c->echo);
    }
    if (j->of_response) {
        if (j->streams) {
            response_begin(j);
        }
    } else if (j->streams && j->of_chat) {
        put_frame(j, c, "{\"role\":\"assistant\",\"content\":\"\"}", NULL);
    } else if (j->streams && c->echo != NULL) {
        put_text_frame(j, c, c->echo, strlen(c->echo));
    }
}

/* ---- stop strings ---- */
/* The earliest stop string in the pending text; its offset, SIZE_MAX: none. */
static size_t find_stop(const job *j, const choice *c)
{
    const dsi_buf *pending = &c->pending;
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < j->n_stops && pending->size > c->n_early; ++i) {
        const size_t n = strlen(j->stops[i]);
        const size_t from = c->n_early >= n ? c->n_early + 1 - n : 0;
        const char *at = memmem(pending->data + from, pending->size - from, j->stops[i], n);
        while (at != NULL && (size_t)(at - pending->data) + n <= c->n_early) {
            ++at;
            at = memmem(at, pending->size - (size_t)(at - pending->data), j->stops[i], n);
        }
        if (at != NULL && (size_t)(at - pending->data) < best) {
            best = (size_t)(at - pending->data);
        }
    }
    return best;
}

/* How many bytes at the end may begin a stop string. */
static size_t held_back(const job *j, const dsi_buf *pending)
{
    size_t most = 0;
    for (size_t i = 0; i < j->n_stops; ++i) {
        size_t n = strlen(j->stops[i]) - 1;
        n = n < pending->size ? n : pending->size;
        while (n > most && memcmp(pending->data + pending->size - n, j->stops[i], n) != 0) {
            --n;
        }
        most = n > most ? n : most;
    }
    return most;
}

/* ---- calls of tools ---- */
typedef struct call_target {
    job *j;
    choice *c;
} call_target;

static void call_text(void *user, const char *text, size_t n)
{
    const call_target *t = user;
    if (n > 0) {
        dsi_buf_append(&t->c->text, text, n);
        if (t->j->streams) {
            put_text_frame(t->j, t->c, text, n);
        }
    }
}

static void call_begin(void *user, const char *name)
{
    const call_target *t = user;
    const int64_t k = t->c->reader.n_calls; /* before this one */
    dsi_buf one = dsi_buf_make(1024);
    dsi_buf_printf(&one,
                   "\"id\":\"call_%s_%d_%lld\",\"type\":\"function\",\"function\":{\"name\":\"%s\","
                   "\"arguments\":\"",
                   t->j->id, index_of(t->j, t->c), (long long)k, name);
    dsi_buf_printf(&t->c->calls, "%s{%s", k > 0 ? "\"}}," : "", dsi_buf_text(&one));
    if (t->j->streams) {
        dsi_buf what = dsi_buf_make(2048);
        dsi_buf_printf(&what, "{\"tool_calls\":[{\"index\":%lld,%s\"}}]}", (long long)k,
                       dsi_buf_text(&one));
        put_frame(t->j, t->c, dsi_buf_text(&what), NULL);
        dsi_buf_free(&what);
    }
    dsi_buf_free(&one);
}

/* Pieces gather until the end of what was drawn; see send_calls. */
static void call_arguments(void *user, const char *text, size_t n)
{
    const call_target *t = user;
    dsi_buf_json(&t->c->calls, text, n);
    dsi_buf_json(&t->c->arguments, text, n);
}

static void put_arguments(job *j, choice *c)
{
    if (j->streams && c->arguments.size > 0) {
        dsi_buf what = dsi_buf_make(j->out.ceiling);
        dsi_buf_printf(&what, "{\"tool_calls\":[{\"index\":%lld,\"function\":{\"arguments\":\"",
                       (long long)(c->reader.n_calls - 1));
        dsi_buf_append(&what, c->arguments.data, c->arguments.size);
        dsi_buf_puts(&what, "\"}}]}");
        put_frame(j, c, dsi_buf_text(&what), NULL);
        dsi_buf_free(&what);
    }
    dsi_buf_clear(&c->arguments);
}

static void send_calls(job *j, choice *c, const char *text, size_t n, bool ends)
{
    call_target target = {j, c};
    const call_sink sink = {&target, call_text, call_begin, call_arguments};
    calls_take(&c->reader, j->calls, text, n, &sink);
    if (ends) {
        calls_end(&c->reader, &sink);
    }
    put_arguments(j, c);
}

/* The first n bytes of what is pending are the client's. */
static void send_text(job *j, choice *c, size_t n)
{
    if (n == 0 && c->n_logprobs == 0) {
        return;
    }
    if (j->calls != NULL) {
        send_calls(j, c, dsi_buf_text(&c->pending), n, false);
    } else {
        dsi_buf_append(&c->text, dsi_buf_text(&c->pending), n);
        if (j->streams && j->of_response) {
            response_delta(j, dsi_buf_text(&c->pending), n);
        } else if (j->streams) {
            put_text_frame(j, c, dsi_buf_text(&c->pending), n);
        }
    }
    const size_t left = c->pending.size - n;
    if (n > 0) {
        memmove(c->pending.data, c->pending.data + n, left);
        c->pending.size = left;
        c->pending.data[left] = '\0';
        c->n_early -= n < c->n_early ? n : c->n_early;
    }
}

static void finish(job *j, choice *c, const char *why)
{
    if (j->calls != NULL) {
        send_calls(j, c, "", 0, true);
        why = calls_whole(&c->reader) && strcmp(why, "stop") == 0 ? "tool_calls" : why;
    }
    c->finish = why;
    if (j->streams && j->of_mii) {
        mii_frame(j, c, "", 0, why);
    } else if (j->streams && !j->of_response) {
        put_frame(j, c, j->of_chat ? "{}" : "\"\"", why);
    }
}

static void push_id(job *j, choice *c, uint32_t id)
{
    const char *text = NULL;
    size_t n = 0;
    if (id < ds_tokenizer_vocab_size(j->f->tokenizer) &&
        ds_detokenizer_push(c->decoder, id, &text, &n) >= 0) {
        dsi_buf_append(&c->pending, text, n);
    }
}

void job_guide(void *opaque, const uint32_t *text, size_t n, float *logits, int64_t n_logits)
{
    const job *j = opaque;
    dsi_guide_mask(j->guide, text, n, j->request.stop_ids, j->request.n_stop_ids, logits, n_logits);
}

/* Where the text of the choice stands in its form, with a new id; MAY_END where it has none. */
static dsi_guide_state place_in_form(job *j, choice *c, const ds_serve_event *e)
{
    if (j->guide == NULL) {
        return DSI_GUIDE_MAY_END;
    }
    if (e->finish != DS_SERVE_STOP) {
        dsi_buf_append(&c->drawn, &e->id, sizeof e->id);
    }
    return dsi_guide_where(j->guide, (const uint32_t *)(const void *)c->drawn.data,
                           c->drawn.size / sizeof e->id);
}

static const char *finish_of(const ds_serve_event *e)
{
    return e->finish == DS_SERVE_STOP ? "stop" : e->finish == DS_SERVE_LENGTH ? "length" : NULL;
}

void job_take(job *j, choice *c, const ds_serve_event *e, bool *stop_out)
{
    front *f = j->f;
    *stop_out = false;
    if (c->n_new == 0) {
        c->n_cached = e->n_cached;
        f->metrics.ttft_sum += dsi_clock_seconds() - j->arrived;
        f->metrics.ttft_count += 1;
    }
    begin(j, c, e);
    if (j->prompt_alone) {
        *stop_out = e->finish == DS_SERVE_GOES_ON;
        finish(j, c, "length");
        return;
    }
    c->n_new += 1;
    c->logprob += (double)e->logprob;
    const bool ends = e->finish == DS_SERVE_STOP; /* its token is not text */
    if (j->logprobs && !ends) {
        logprobs_take(j, c, e);
    }
    if (!ends) {
        push_id(j, c, e->id);
    }
    const dsi_guide_state place = place_in_form(j, c, e);
    if (place == DSI_GUIDE_BROKEN && j->own_stops && c->n_new <= j->request.min_new_tokens) {
        job_fail(j, MHD_HTTP_BAD_REQUEST, "invalid_request_error",
                 "before min_tokens no id of stop_token_ids is drawn, and the form that was asked "
                 "for has no other there");
        return;
    }
    if (place == DSI_GUIDE_BROKEN || (place == DSI_GUIDE_GOES_ON && ends && !j->own_stops)) {
        job_fail(j, MHD_HTTP_INTERNAL_SERVER_ERROR, "server_error",
                 "the model's vocabulary has no token that goes on in the form that was asked for");
        return;
    }
    if (c->n_new <= j->request.min_new_tokens && !j->of_mii) {
        c->n_early = c->pending.size; /* as vLLM: min_tokens holds for stop strings, too */
    }
    size_t stop = find_stop(j, c);
    if (stop == SIZE_MAX && place == DSI_GUIDE_ENDS) {
        stop = c->pending.size;
    }
    if (stop == SIZE_MAX && e->finish != DS_SERVE_GOES_ON) {
        const char *text = NULL;
        size_t n = 0;
        if (ds_detokenizer_flush(c->decoder, &text, &n) >= 0) {
            dsi_buf_append(&c->pending, text, n);
        }
        stop = find_stop(j, c);
    }
    if (stop != SIZE_MAX) {
        send_text(j, c, stop);
        *stop_out = e->finish == DS_SERVE_GOES_ON;
        finish(j, c, "stop");
        return;
    }
    send_text(j, c,
              c->pending.size - (e->finish == DS_SERVE_GOES_ON ? held_back(j, &c->pending) : 0));
    if (e->finish != DS_SERVE_GOES_ON) {
        finish(j, c, finish_of(e));
    }
}

/* ---- the end ---- */
static void put_choice(job *j, choice *c, size_t index)
{
    dsi_buf *out = &j->out;
    dsi_buf_printf(out, "%s{\"index\":%zu,", index == 0 ? "" : ",", index);
    dsi_buf_puts(out,
                 j->of_chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    if (c->calls.size > 0 && c->text.size == 0) {
        dsi_buf_puts(out, "null");
    } else {
        put_text(out, dsi_buf_text(&c->text), c->text.size);
    }
    if (c->calls.size > 0) {
        dsi_buf_printf(out, ",\"tool_calls\":[%s\"}}]", dsi_buf_text(&c->calls));
    }
    dsi_buf_puts(out, j->of_chat ? ",\"refusal\":null}" : "");
    put_logprobs(j, c);
    if (c->prompt.size > 0 && !j->of_chat) {
        dsi_buf_printf(out, ",\"prompt_logprobs\":%s", dsi_buf_text(&c->prompt));
    }
    put_finish(j, c->finish);
}

/* The likeliest a token of those of a prompt that were not taken yet; the first of equal ones. */
static choice *take_best(choice *of_prompt, size_t n, bool *taken)
{
    size_t best = n;
    for (size_t i = 0; i < n; ++i) {
        const choice *c = &of_prompt[i];
        const choice *b = &of_prompt[best];
        if (!taken[i] && (best == n || c->logprob / (double)(c->n_new + (c->n_new == 0)) >
                                           b->logprob / (double)(b->n_new + (b->n_new == 0)))) {
            best = i;
        }
    }
    taken[best] = true;
    return &of_prompt[best];
}

static void put_choices(job *j)
{
    enum { MOST = 1024 }; /* --max_choices is at most that */
    const size_t kept = j->n_kept > 0 ? j->n_kept : j->n_of_each;
    for (size_t p = 0; p < j->n_prompts; ++p) {
        choice *of_prompt = &j->choices[p * j->n_of_each];
        bool taken[MOST] = {false};
        for (size_t k = 0; k < kept; ++k) {
            put_choice(
                j, kept == j->n_of_each ? &of_prompt[k] : take_best(of_prompt, j->n_of_each, taken),
                p * kept + k);
        }
    }
}

void job_end(job *j)
{
    if (j->done) {
        return;
    }
    j->done = true;
    j->status = MHD_HTTP_OK;
    if (j->embeds) {
        embed_end(j);
        return;
    }
    if (j->of_response) {
        response_end(j);
        return;
    }
    if (j->of_mii) {
        mii_end(j);
        return;
    }
    if (!j->streams) {
        put_head(j, j->of_chat ? "chat.completion" : "text_completion");
        put_choices(j);
        dsi_buf_puts(&j->out, "],");
        if (j->of_chat && j->ranks_prompt) { /* all its choices go on from one prompt */
            dsi_buf_printf(&j->out, "\"prompt_logprobs\":%s,", dsi_buf_text(&j->choices[0].prompt));
        }
        put_usage(j);
        dsi_buf_puts(&j->out, "}\n");
        return;
    }
    if (j->usage) {
        dsi_buf_puts(&j->out, "data: ");
        put_head(j, j->of_chat ? "chat.completion.chunk" : "text_completion");
        dsi_buf_puts(&j->out, "],");
        put_usage(j);
        dsi_buf_puts(&j->out, "}\n\n");
    }
    dsi_buf_puts(&j->out, "data: [DONE]\n\n");
}

void job_fail(job *j, unsigned status, const char *type, const char *message)
{
    if (j->done) {
        return;
    }
    api_error e = {.status = status, .type = type};
    (void)snprintf(e.message, sizeof e.message, "%s", message);
    j->done = true;
    j->status = status;
    if (j->streams && j->of_response) {
        response_fail(j, &e);
        return;
    }
    if (j->streams) {
        dsi_buf_puts(&j->out, "data: ");
    } else {
        dsi_buf_clear(&j->out);
    }
    api_error_print(&e, &j->out);
    dsi_buf_puts(&j->out, j->streams ? "\n" : "");
}
