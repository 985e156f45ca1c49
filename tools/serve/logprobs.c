/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities as OpenAI's clients read them: of what was drawn, and of prompts, also in
 * vLLM's form (prompt_logprobs). See front.h. */
#include "front.h"

#include "base/escape.h"

#include <stdlib.h>
#include <string.h>

void put_text(dsi_buf *out, const char *text, size_t n)
{
    dsi_buf_putc(out, '"');
    dsi_buf_json(out, text, n);
    dsi_buf_putc(out, '"');
}

/* The bytes that a token adds to a text: decoded behind itself, where no space is left out. */
static char *token_text(front *f, uint32_t id, size_t *n_out)
{
    char *one = NULL;
    char *two = NULL;
    size_t n_one = 0;
    size_t n_two = 0;
    const uint32_t ids[2] = {id, id};
    *n_out = 0;
    if (id >= ds_tokenizer_vocab_size(f->tokenizer) ||
        ds_tokenizer_decode(f->tokenizer, ids, 1, 0, &one, &n_one) < 0 ||
        ds_tokenizer_decode(f->tokenizer, ids, 2, 0, &two, &n_two) < 0) {
        free(one);
        return NULL;
    }
    *n_out = n_two - n_one;
    memmove(two, two + n_one, *n_out);
    free(one);
    return two;
}

/* Bytes of the UTF-8 character at text, 0: it is none. */
static size_t character_at(const char *text, size_t n)
{
    uint32_t cp = 0;
    const unsigned char first = (unsigned char)text[0];
    const size_t size = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    char again[4];
    if (first >= 0xF5 || (first >= 0x80 && first < 0xC2) || size > n) {
        return 0;
    }
    cp = size == 1 ? first : first & (0x7Fu >> size);
    for (size_t i = 1; i < size; ++i) {
        cp = cp << 6 | ((unsigned char)text[i] & 63u);
    }
    const bool surrogate = cp >= 0xD800 && cp < 0xE000;
    const bool same =
        cp < 0x110000 && dsi_utf8_encode(cp, again) == size && memcmp(again, text, size) == 0;
    return same && !surrogate ? size : 0;
}

void put_clean(dsi_buf *out, const char *text, size_t n)
{
    dsi_buf_putc(out, '"');
    for (size_t at = 0, size = 0; at<n; at += size> 0 ? size : 1) {
        size = character_at(text + at, n - at);
        dsi_buf_json(out, size > 0 ? text + at : "?", size > 0 ? size : 1);
    }
    dsi_buf_putc(out, '"');
}

/* The text of a token; one that is no whole characters as OpenAI writes it, "bytes:\xe2\x80". */
static void put_token_text(dsi_buf *out, const char *text, size_t n)
{
    size_t at = 0;
    size_t size = 1;
    while (at < n && size > 0) {
        size = character_at(text + at, n - at);
        at += size;
    }
    if (at == n) {
        put_text(out, n > 0 ? text : "", n);
        return;
    }
    dsi_buf_puts(out, "\"bytes:");
    for (size_t i = 0; i < n; ++i) {
        dsi_buf_printf(out, "\\\\x%02x", (unsigned char)text[i]);
    }
    dsi_buf_putc(out, '"');
}

static void put_token(front *f, dsi_buf *out, uint32_t id, float logprob)
{
    size_t n = 0;
    char *text = token_text(f, id, &n);
    dsi_buf_puts(out, "{\"token\":");
    put_token_text(out, text, n);
    dsi_buf_printf(out, ",\"logprob\":%.9g,\"bytes\":[", (double)logprob);
    for (size_t i = 0; i < n; ++i) {
        dsi_buf_printf(out, "%s%u", i > 0 ? "," : "", (unsigned char)text[i]);
    }
    dsi_buf_putc(out, ']');
    free(text);
}

static void chat_logprob(front *f, choice *c, const ds_serve_event *e)
{
    dsi_buf *out = &c->logprobs;
    dsi_buf_puts(out, c->n_logprobs++ > 0 ? "," : "");
    put_token(f, out, e->id, e->logprob);
    dsi_buf_puts(out, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < e->n_top; ++i) {
        dsi_buf_puts(out, i > 0 ? "," : "");
        put_token(f, out, e->top_ids[i], e->top_logprobs[i]);
        dsi_buf_putc(out, '}');
    }
    dsi_buf_puts(out, "]}");
}

static void put_piece(front *f, dsi_buf *out, uint32_t id)
{
    size_t n = 0;
    char *text = token_text(f, id, &n);
    put_token_text(out, text, n);
    free(text);
}

/* Offsets are in characters of the text, as OpenAI's. */
static int64_t characters(const char *text, size_t size)
{
    int64_t n = 0;
    for (size_t i = 0; i < size; ++i) {
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return n;
}

/* A row of a completion's columns; logprob NULL: nothing is before the token. */
static void put_row(front *f, choice *c, uint32_t id, const float *logprob, int64_t offset,
                    int32_t n_top, const uint32_t *top_ids, const float *top_logprobs)
{
    const char *comma = c->n_logprobs++ > 0 ? "," : "";
    dsi_buf_puts(&c->pieces, comma);
    put_piece(f, &c->pieces, id);
    dsi_buf_printf(&c->offsets, "%s%lld", comma, (long long)offset);
    if (logprob == NULL) {
        dsi_buf_printf(&c->logprobs, "%snull", comma);
        dsi_buf_printf(&c->tops, "%snull", comma);
        return;
    }
    dsi_buf_printf(&c->logprobs, "%s%.9g", comma, (double)*logprob);
    dsi_buf_printf(&c->tops, "%s{", comma);
    for (int32_t i = 0; i < n_top; ++i) {
        dsi_buf_puts(&c->tops, i > 0 ? "," : "");
        put_piece(f, &c->tops, top_ids[i]);
        dsi_buf_printf(&c->tops, ":%.9g", (double)top_logprobs[i]);
    }
    dsi_buf_putc(&c->tops, '}');
}

void logprobs_take(job *j, choice *c, const ds_serve_event *e)
{
    if (j->of_chat) {
        chat_logprob(j->f, c, e);
        return;
    }
    const int64_t offset = characters(dsi_buf_text(&c->text), c->text.size) +
                           characters(dsi_buf_text(&c->pending), c->pending.size);
    put_row(j->f, c, e->id, &e->logprob, offset, e->n_top, e->top_ids, e->top_logprobs);
}

/* ---- prompts ---- */
/* The columns of a prompt that is echoed: what its ids add to that text, one after the other. */
static void echo_columns(job *j, choice *c, const ds_prompt_score *scores)
{
    ds_detokenizer *decoder = NULL;
    const int32_t most = j->request.n_top;
    int64_t offset = 0;
    if (ds_detokenizer_create(j->f->tokenizer, c->echo_flags, &decoder) < 0) {
        c->logprobs.failed = true;
        return;
    }
    for (size_t i = 0; i < c->n_ids; ++i) {
        const ds_prompt_score *s = &scores[i];
        const char *text = NULL;
        size_t n = 0;
        put_row(j->f, c, c->ids[i], i > 0 ? &s->logprob : NULL, offset,
                s->n_top < most ? s->n_top : most, s->top_ids, s->top_logprobs);
        if (c->ids[i] < ds_tokenizer_vocab_size(j->f->tokenizer) &&
            ds_detokenizer_push(decoder, c->ids[i], &text, &n) >= 0) {
            offset += characters(text, n);
        }
    }
    ds_detokenizer_destroy(&decoder);
}

static void put_ranked(front *f, dsi_buf *out, uint32_t id, float logprob, int32_t rank)
{
    dsi_buf_printf(out, "\"%u\":{\"logprob\":%.9g,\"rank\":%d,\"decoded_token\":", id,
                   (double)logprob, rank);
    put_piece(f, out, id);
    dsi_buf_putc(out, '}');
}

/* As vLLM's: of each id an object by ids, its own first, with the likeliest. */
static void ranked_list(front *f, choice *c, const ds_prompt_score *scores, int32_t most)
{
    dsi_buf *out = &c->prompt;
    dsi_buf_puts(out, "[null");
    for (size_t i = 1; i < c->n_ids; ++i) {
        const ds_prompt_score *s = &scores[i];
        dsi_buf_puts(out, ",{");
        put_ranked(f, out, c->ids[i], s->logprob, s->rank);
        for (int32_t k = 0; k < s->n_top && k < most; ++k) {
            if (s->top_ids[k] != c->ids[i]) {
                dsi_buf_putc(out, ',');
                put_ranked(f, out, s->top_ids[k], s->top_logprobs[k], k + 1);
            }
        }
        dsi_buf_putc(out, '}');
    }
    dsi_buf_putc(out, ']');
}

void logprobs_prompt(job *j, choice *c, const ds_prompt_score *scores)
{
    if (j->logprobs && c->echo != NULL) {
        echo_columns(j, c, scores);
    }
    if (j->ranks_prompt) {
        ranked_list(j->f, c, scores, j->n_ranked);
    }
}
