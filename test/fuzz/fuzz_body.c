/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer: any text as the body of a request of ds_serve, by its first byte of a chat, a completion,
 * a response, of MII, for vectors, or of messages alone; up to the job that the engine would get.
 */
#include "serve/api.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CHAT, COMPLETION, RESPONSE, MII, VECTORS, MESSAGES, N_KINDS, TOKENS = 512 };

static void must(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void open_front(front *f, serve_options *o)
{
    static const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    static ds_tokenizer *tokenizer;
    static ds_chat *chat;
    *o = (serve_options){.max_choices = 16, .max_body = 1 << 20, .sizes.max_sequences = 8};
    *f = (front){.options = o, .name = "m", .max_length = TOKENS, .vocab_size = 320, .width = 32};
    must(ds_ctx_create(&params, &f->http_ctx) >= 0 &&
         ds_tokenizer_open(f->http_ctx, "bytes", &tokenizer) >= 0 &&
         ds_tokenizer_scratch_create(tokenizer, 0, &f->scratch) >= 0 &&
         ds_chat_create(f->http_ctx, tokenizer, "chatml", &chat) >= 0 &&
         pthread_mutex_init(&f->lock, NULL) == 0);
    f->tokenizer = tokenizer;
    f->chat = chat;
    f->calls = calls_form("tools <tool_call>");
    f->door.options = o;
}

static bool read_body(front *f, int kind, json_t *body, job *j, exchange *x, api_error *e)
{
    ds_chat_text text = {0};
    json_t *other = NULL;
    bool ok = false;
    switch (kind) {
    case CHAT:
    case COMPLETION:
        return api_read(f, body, kind == CHAT, j, &x->ignored, e);
    case VECTORS:
        j->embeds = true;
        return embed_read(f, body, j, &x->ignored, e);
    case MESSAGES:
        ok = api_render(f, body, &text, &x->ignored, e);
        ds_chat_text_free(&text);
        return ok;
    case RESPONSE:
        j->of_response = true;
        j->echoed = dsi_buf_make(8 << 20);
        other = response_body(body, &j->echoed, &x->ignored, e);
        break;
    default:
        other = mii_body(body, "m", j, &x->ignored, e);
        break;
    }
    ok = other != NULL && api_read(f, other, kind == RESPONSE, j, &x->ignored, e);
    json_decref(other);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static front f;
    static serve_options o;
    if (f.http_ctx == NULL) {
        open_front(&f, &o);
    }
    if (size == 0) {
        return 0;
    }
    exchange x = {.door = &f.door, .body = dsi_buf_make(size), .ignored = dsi_buf_make(1024)};
    api_error e = {0};
    dsi_buf_append(&x.body, data + 1, size - 1);
    json_t *body = door_json(&x, &e);
    job *j = calloc(1, sizeof *j);
    must(j != NULL);
    j->f = &f;
    j->holders = 1;
    const bool ok = body != NULL && read_body(&f, data[0] % N_KINDS, body, j, &x, &e);
    must(ok || (e.status >= 400 && e.status < 500 && e.message[0] != '\0' && e.type != NULL));
    must(!x.ignored.failed && strpbrk(dsi_buf_text(&x.ignored), "\r\n") == NULL);
    for (size_t i = 0; ok && i < j->n_choices; ++i) {
        must(j->choices[i].n_ids > 0 && j->choices[i].n_ids <= TOKENS);
    }
    dsi_buf out = dsi_buf_make(1 << 16);
    api_error_print(&e, &out);
    json_t *answer = ok ? NULL : json_loads(dsi_buf_text(&out), JSON_REJECT_DUPLICATES, NULL);
    must(ok || answer != NULL);
    json_decref(answer);
    dsi_buf_free(&out);
    job_release(j);
    json_decref(body);
    dsi_buf_free(&x.body);
    dsi_buf_free(&x.ignored);
    return 0;
}
