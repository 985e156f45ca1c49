/* SPDX-License-Identifier: Apache-2.0 */
/* MII's pipeline: prompts in, texts out, over a server of this process. See mii.h. */
#include "base/buf.h"
#include "base/reserved.h"
#include "config/config_values.h"

#include <deepspeed/mii.h>
#include <deepspeed/tokenizer.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 1024, LONGEST = 8192, SOURCE = 512, TEXT_CEILING = 64 << 20 };

/* One prompt and what comes of it. */
typedef struct text {
    uint64_t uid; /* 0: it has ended */
    ds_detokenizer *decoder;
    dsi_buf out;
    size_t n_prompt; /* bytes of out that are the prompt */
    ds_serve_request request;
    uint32_t *ids;
} text;

struct ds_pipeline {
    ds_ctx *ctx;
    ds_model *model;
    ds_tokenizer *tokenizer;
    ds_tokenizer_scratch *scratch;
    ds_server *server;
    ds_serve_stats sizes;
    ds_serve_event *events;
    uint32_t *stop_ids; /* [n_stop_ids] */
    size_t n_stop_ids;
    text *texts; /* [n]; of the newest call */
    ds_text_response *responses;
    size_t n;
};

static void forget(ds_pipeline *p)
{
    for (size_t i = 0; i < p->n; ++i) {
        text *t = &p->texts[i];
        if (t->uid != 0) {
            (void)ds_serve_cancel(p->server, t->uid);
        }
        ds_detokenizer_destroy(&t->decoder);
        dsi_buf_free(&t->out);
        free(t->ids);
    }
    free(p->texts);
    free(p->responses);
    p->texts = NULL;
    p->responses = NULL;
    p->n = 0;
}

static ds_status find_stops(ds_pipeline *p)
{
    const uint32_t n = ds_tokenizer_vocab_size(p->tokenizer);
    for (uint32_t id = 0; id < n; ++id) {
        p->n_stop_ids += ds_tokenizer_is_eos(p->tokenizer, id) ? 1 : 0;
    }
    p->stop_ids = calloc(p->n_stop_ids + 1, sizeof *p->stop_ids);
    if (p->stop_ids == NULL) {
        return ds_fail(p->ctx, DS_ERR_NOMEM, "no memory for a pipeline");
    }
    size_t k = 0;
    for (uint32_t id = 0; id < n; ++id) {
        if (ds_tokenizer_is_eos(p->tokenizer, id)) {
            p->stop_ids[k++] = id;
        }
    }
    return DS_OK;
}

static ds_status open_all(ds_pipeline *p, const ds_pipeline_params *params)
{
    char path[4096];
    ds_serve_params serve = {.source = {.weights = params->model}};
    (void)snprintf(path, sizeof path, "%s/config.json", params->model);
    DS_TRY(ds_model_from_config(p->ctx, path, &p->model));
    const char *tokenizer = params->tokenizer;
    if (tokenizer == NULL && params->config != NULL &&
        ds_config_get_kind(params->config) == DS_CONFIG_MII) {
        tokenizer = dsi_config_inference(params->config)->tokenizer;
    }
    DS_TRY(ds_tokenizer_open(p->ctx, tokenizer != NULL ? tokenizer : params->model, &p->tokenizer));
    DS_TRY(ds_tokenizer_scratch_create(p->tokenizer, 0, &p->scratch));
    DS_TRY(find_stops(p));
    const int64_t longest = ds_model_get_info(p->model)->pairs ? SOURCE : LONGEST;
    const int64_t most = ds_model_get_info(p->model)->max_positions;
    serve.source.model = p->model;
    serve.source.max_length = most > 0 && most < longest ? most : longest;
    if (params->config != NULL) {
        DS_TRY(ds_serve_configure(p->ctx, params->config, &serve));
        DS_TRY(ds_generator_copy(p->ctx, params->config, &serve.source, params->model));
    }
    DS_TRY(ds_serve_create(p->ctx, &serve, &p->server));
    ds_serve_get_stats(p->server, &p->sizes);
    p->events =
        calloc((size_t)(p->sizes.max_sequences * (1 + p->sizes.max_draft)), sizeof *p->events);
    return p->events != NULL ? DS_OK : ds_fail(p->ctx, DS_ERR_NOMEM, "no memory for a pipeline");
}

ds_status ds_pipeline_create(ds_ctx *ctx, const ds_pipeline_params *params,
                             ds_pipeline **pipeline_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_pipeline_params", params));
    ds_pipeline *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a pipeline");
    }
    p->ctx = ctx;
    const ds_status status = params->model != NULL
                                 ? open_all(p, params)
                                 : ds_fail(ctx, DS_ERR_ARG, "ds_pipeline_params: model is missing");
    if (status < 0) {
        ds_pipeline_destroy(&p);
        return status;
    }
    *pipeline_out = p;
    return DS_OK;
}

void ds_pipeline_destroy(ds_pipeline **pipeline)
{
    ds_pipeline *p = pipeline != NULL ? *pipeline : NULL;
    if (p == NULL) {
        return;
    }
    forget(p);
    ds_serve_destroy(&p->server);
    ds_tokenizer_scratch_destroy(&p->scratch);
    ds_tokenizer_close(&p->tokenizer);
    ds_model_destroy(&p->model);
    free(p->events);
    free(p->stop_ids);
    free(p);
    *pipeline = NULL;
}

/* ---- a call ---------------------------------------------------------------------------------- */

static ds_status set_request(ds_pipeline *p, const ds_text_options *o, size_t i)
{
    ds_serve_request *r = &p->texts[i].request;
    const int64_t own = p->sizes.max_length;
    const int64_t most = o->max_length > 0 ? o->max_length : LENGTH < own ? LENGTH : own;
    /* a source takes no positions of the text, which begins with an id of its own */
    const int64_t room = most - (ds_model_get_info(p->model)->pairs ? 1 : (int64_t)r->n);
    if (most > own || room < 1) {
        return ds_fail(p->ctx, DS_ERR_LIMIT,
                       "prompt %zu has %zu tokens: max_length %" PRId64
                       " leaves no room, or is above the model's %" PRId64,
                       i, r->n, most, own);
    }
    r->max_new_tokens =
        o->max_new_tokens > 0 && o->max_new_tokens < room ? o->max_new_tokens : room;
    r->min_new_tokens =
        o->min_new_tokens < r->max_new_tokens ? o->min_new_tokens : r->max_new_tokens;
    r->stop_ids = p->stop_ids;
    r->n_stop_ids = o->ignore_eos ? 0 : p->n_stop_ids;
    if (!o->greedy) {
        r->sampling = (ds_sampling){.temperature = o->temperature > 0.0 ? o->temperature : 1.0,
                                    .top_k = o->top_k,
                                    .top_p = o->top_p > 0.0 ? o->top_p : 0.9,
                                    .seed = o->seed + i};
    }
    return DS_OK;
}

/* Encodes prompt i and checks it. */
static ds_status take_prompt(ds_pipeline *p, const char *prompt, const ds_text_options *o, size_t i)
{
    text *t = &p->texts[i];
    ds_tokens tokens;
    t->out = dsi_buf_make(TEXT_CEILING);
    DS_TRY(ds_tokenizer_encode(p->tokenizer, p->scratch, prompt, strlen(prompt),
                               DS_ENCODE_ADD_SPECIAL, &tokens));
    if (tokens.n == 0) {
        return ds_fail(p->ctx, DS_ERR_ARG, "prompt %zu is empty", i);
    }
    t->ids = calloc(tokens.n, sizeof *t->ids);
    if (t->ids == NULL) {
        return ds_fail(p->ctx, DS_ERR_NOMEM, "no memory for prompt %zu", i);
    }
    memcpy(t->ids, tokens.ids, tokens.n * sizeof *t->ids);
    t->request.ids = t->ids;
    t->request.n = tokens.n;
    p->responses[i].prompt_length = (int64_t)tokens.n;
    if (o->return_full_text) {
        dsi_buf_puts(&t->out, prompt);
    }
    t->n_prompt = t->out.size;
    DS_TRY(set_request(p, o, i));
    return ds_detokenizer_create(p->tokenizer, DS_DECODE_SKIP_SPECIAL | DS_DECODE_REPAIR,
                                 &t->decoder);
}

/* Cuts the text before the first of the stops that is in it; `from`: nothing new is before. */
static bool cut(text *t, const ds_text_options *o, size_t from)
{
    const char *first = NULL;
    for (size_t i = 0; i < o->n_stop; ++i) {
        const size_t n = strlen(o->stop[i]);
        const size_t begin = from > t->n_prompt + n ? from - n : t->n_prompt;
        const char *found = n > 0 ? strstr(dsi_buf_text(&t->out) + begin, o->stop[i]) : NULL;
        first = found != NULL && (first == NULL || found < first) ? found : first;
    }
    if (first != NULL) {
        t->out.size = (size_t)(first - t->out.data);
        t->out.data[t->out.size] = '\0';
    }
    return first != NULL;
}

static ds_status append(ds_pipeline *p, text *t, const ds_text_options *o, bool last, uint32_t id,
                        bool shown, bool *stopped_out)
{
    const char *piece = NULL;
    size_t size = 0;
    const size_t from = t->out.size;
    if (shown) {
        DS_TRY(ds_detokenizer_push(t->decoder, id, &piece, &size));
        dsi_buf_append(&t->out, piece, size);
    }
    if (last) {
        DS_TRY(ds_detokenizer_flush(t->decoder, &piece, &size));
        dsi_buf_append(&t->out, piece, size);
    }
    if (t->out.failed) {
        return ds_fail(p->ctx, DS_ERR_NOMEM, "no memory for a text");
    }
    *stopped_out = cut(t, o, from);
    return DS_OK;
}

static ds_status take_event(ds_pipeline *p, const ds_serve_event *e, const ds_text_options *o)
{
    size_t i = 0;
    bool stopped = false;
    while (i < p->n && p->texts[i].uid != e->uid) {
        ++i;
    }
    if (i == p->n) {
        return DS_OK; /* of a text that ended in this step */
    }
    text *t = &p->texts[i];
    ds_text_response *r = &p->responses[i];
    if (e->finish == DS_SERVE_ERROR) {
        return ds_fail(p->ctx, DS_ERR_NUMERIC, "prompt %zu: the logits are not finite", i);
    }
    const bool last = e->finish != DS_SERVE_GOES_ON;
    ++r->generated_length;
    r->finish = e->finish == DS_SERVE_LENGTH ? DS_TEXT_LENGTH : DS_TEXT_STOP;
    DS_TRY(append(p, t, o, last, e->id, e->finish != DS_SERVE_STOP, &stopped));
    if (stopped) {
        r->finish = DS_TEXT_STOP;
    }
    if (stopped && !last) {
        DS_TRY(ds_serve_cancel(p->server, t->uid));
    }
    t->uid = stopped || last ? 0 : t->uid;
    return DS_OK;
}

static ds_status run(ds_pipeline *p, const ds_text_options *o)
{
    size_t n = 1;
    ds_serve_stats stats;
    do {
        DS_TRY(ds_serve_step(p->server, p->events, &n));
        for (size_t k = 0; k < n; ++k) {
            DS_TRY(take_event(p, &p->events[k], o));
        }
        ds_serve_get_stats(p->server, &stats);
    } while (stats.n_running + stats.n_waiting > 0);
    return DS_OK;
}

static ds_status generate(ds_pipeline *p, const char *const *prompts, const ds_text_options *o)
{
    for (size_t i = 0; i < p->n; ++i) {
        DS_TRY(take_prompt(p, prompts[i], o, i));
    }
    for (size_t i = 0; i < p->n; ++i) {
        DS_TRY(ds_serve_submit(p->server, &p->texts[i].request, &p->texts[i].uid));
    }
    DS_TRY(run(p, o));
    for (size_t i = 0; i < p->n; ++i) {
        p->responses[i].text = dsi_buf_text(&p->texts[i].out);
    }
    return DS_OK;
}

ds_status ds_pipeline_generate(ds_pipeline *p, const char *const *prompts, size_t n,
                               const ds_text_options *options,
                               const ds_text_response **responses_out)
{
    static const ds_text_options usual;
    const ds_text_options *o = options != NULL ? options : &usual;
    DS_TRY(DSI_RESERVED_CHECK(p->ctx, "ds_text_options", o));
    forget(p);
    p->texts = calloc(n + 1, sizeof *p->texts);
    p->responses = calloc(n + 1, sizeof *p->responses);
    if (p->texts == NULL || p->responses == NULL) {
        return ds_fail(p->ctx, DS_ERR_NOMEM, "no memory for %zu prompts", n);
    }
    p->n = n;
    const ds_status status = generate(p, prompts, o);
    if (status < 0) {
        forget(p);
        return status;
    }
    *responses_out = p->responses;
    return DS_OK;
}
