/* SPDX-License-Identifier: Apache-2.0 */
/* Rows in normal form to tokens with loss flags, as TRL's SFTTrainer prepares them: a prompt and
 * its answer are tokenized as one text, and what follows the tokens that both the prompt alone and
 * the whole begin with is the answer. See schema.h. */
#include "data/schema/schema.h"
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* A row's tokens are made from. */
typedef struct work {
    const dsi_schema_row *r;
    ds_tokenizer_scratch *scratch;
} work;

/* Appends tokens to the line; `counts` says whether they are in the loss. */
static bool append(const work *w, const uint32_t *ids, size_t n, bool counts)
{
    dsi_line *line = w->r->line;
    uint32_t *grown = realloc(line->ids, (line->n + n + 1) * sizeof *grown);
    if (grown != NULL) {
        line->ids = grown;
    }
    uint8_t *flags = realloc(line->counted, line->n + n + 1);
    if (flags != NULL) {
        line->counted = flags;
    }
    if (grown == NULL || flags == NULL) {
        return dsi_schema_no_memory(w->r);
    }
    if (n > 0) { /* ids may be NULL otherwise */
        memcpy(line->ids + line->n, ids, n * sizeof *ids);
    }
    memset(line->counted + line->n, counts ? 1 : 0, n);
    line->n += n;
    return true;
}

static bool encode(const work *w, const char *text, size_t n, uint32_t flags, ds_tokens *tokens)
{
    const ds_status status =
        ds_tokenizer_encode(w->r->params->tokenizer, w->scratch, text, n, flags, tokens);
    return status >= 0 ||
           dsi_schema_refuse(w->r, status, "the row cannot be tokenized: too long, or no memory");
}

/* ---- one text with spans that count ---- */

static bool holds_part(ds_token_range token, ds_chat_span span)
{
    return token.end > token.begin && token.end > span.begin && token.begin < span.end;
}

/* Marks the tokens from the first to the last that hold a byte of a span, also one that begins
 * before it (a line break of the header joined with the answer's), as transformers' assistant mask
 * does. One between that stands for no byte is the span's, too. */
static void count_spans(uint8_t *counted, const ds_tokens *tokens, const ds_chat_span *spans,
                        size_t n_spans)
{
    size_t i = 0;
    for (size_t s = 0; s < n_spans; ++s) {
        while (i < tokens->n && !holds_part(tokens->ranges[i], spans[s]) &&
               tokens->ranges[i].begin < spans[s].end) {
            ++i;
        }
        size_t last = i;
        for (size_t k = i; k < tokens->n && tokens->ranges[k].begin < spans[s].end; ++k) {
            last = holds_part(tokens->ranges[k], spans[s]) ? k + 1 : last;
        }
        memset(counted + i, 1, last - i);
        i = last > i ? last - 1 : i; /* a token may hold the next span's beginning, too */
    }
}

static bool tokenize_spans(const work *w, const char *text, size_t n, uint32_t flags,
                           const ds_chat_span *spans, size_t n_spans)
{
    ds_tokens tokens;
    const uint64_t begin = w->r->line->n;
    if (!encode(w, text, n, flags | DS_ENCODE_RANGES, &tokens) ||
        !append(w, tokens.ids, tokens.n, false)) {
        return false;
    }
    count_spans(w->r->line->counted + begin, &tokens, spans, n_spans);
    return true;
}

/* The end token's text, or nothing where there is none or the text ends with it. */
static const char *missing_eos(const work *w, const char *text, size_t size)
{
    const char *eos = w->r->params->tokenizer->eos_text;
    const size_t n = eos != NULL ? strlen(eos) : 0;
    return n > 0 && (size < n || memcmp(text + size - n, eos, n) != 0) ? eos : "";
}

static void add(const work *w, dsi_buf *buf, const json_t *text, bool ends)
{
    const char *bytes = json_string_value(text);
    const size_t n = json_string_length(text);
    dsi_buf_append(buf, bytes, n);
    dsi_buf_puts(buf, ends ? missing_eos(w, bytes, n) : "");
}

/* Texts of which every second counts, the last with the end token. */
static bool tokenize_pieces(const work *w, const json_t *pieces)
{
    const size_t n = json_array_size(pieces);
    dsi_buf text = dsi_buf_make(DSI_ROW_TEXT_MAX);
    ds_chat_span *spans = calloc(n / 2 + 1, sizeof *spans);
    for (size_t i = 0; i < n && spans != NULL; ++i) {
        const size_t begin = text.size;
        add(w, &text, json_array_get(pieces, i), i + 1 == n);
        if (i % 2 == 1) {
            spans[i / 2] = (ds_chat_span){begin, text.size};
        }
    }
    const bool fine =
        spans != NULL && !text.failed
            ? tokenize_spans(w, dsi_buf_text(&text), text.size, DS_ENCODE_ADD_SPECIAL, spans, n / 2)
            : dsi_schema_no_memory(w->r);
    dsi_buf_free(&text);
    free(spans);
    return fine;
}

static bool tokenize_text(const work *w, const json_t *text)
{
    ds_tokens tokens;
    dsi_buf buf = dsi_buf_make(DSI_ROW_TEXT_MAX);
    add(w, &buf, text, w->r->params->append_eos);
    const bool fine =
        buf.failed ? dsi_schema_no_memory(w->r)
                   : encode(w, dsi_buf_text(&buf), buf.size, DS_ENCODE_ADD_SPECIAL, &tokens) &&
                         append(w, tokens.ids, tokens.n, true);
    dsi_buf_free(&buf);
    return fine;
}

/* ---- chats ---- */

/* The messages of one or two lists, rendered. */
static bool render(const work *w, const dsi_form *form, const json_t *first, const json_t *second,
                   uint32_t flags, ds_chat_text *text_out)
{
    char error[DSI_CHAT_ERROR];
    json_t *all = json_copy((json_t *)(uintptr_t)first);
    json_t *row = json_copy(form->context);
    ds_status status = DS_ERR_NOMEM;
    if (all != NULL && row != NULL &&
        (second == NULL || json_array_extend(all, (json_t *)(uintptr_t)second) == 0) &&
        json_object_set(row, "messages", all) == 0) {
        status = dsi_chat_render_row(w->r->params->chat, row, form->counts, flags, text_out, error,
                                     sizeof error);
    } else {
        (void)strcpy(error, "no memory for a chat");
    }
    json_decref(all);
    json_decref(row);
    return status >= 0 || dsi_schema_refuse(w->r, status, "%s", error);
}

static bool tokenize_chat(const work *w, const dsi_form *form)
{
    ds_chat_text text = {0};
    if (!render(w, form, form->answer, NULL, DS_CHAT_SPANS, &text)) {
        return false;
    }
    const bool fine = tokenize_spans(w, text.text, text.size, 0, text.spans, text.n_spans);
    ds_chat_text_free(&text);
    return fine;
}

/* ---- a prompt and its answer ---- */

/* The text of prompt and answer (NULL: of the prompt alone), tokenized. */
static bool encode_pair(const work *w, const dsi_form *form, const json_t *answer,
                        ds_tokens *tokens)
{
    if (json_is_array(form->prompt)) {
        ds_chat_text text = {0};
        if (!render(w, form, form->prompt, answer, answer == NULL ? DS_CHAT_GENERATION_PROMPT : 0,
                    &text)) {
            return false;
        }
        const bool fine = encode(w, text.text, text.size, 0, tokens);
        ds_chat_text_free(&text);
        return fine;
    }
    dsi_buf buf = dsi_buf_make(DSI_ROW_TEXT_MAX);
    add(w, &buf, form->prompt, false);
    if (answer != NULL) {
        add(w, &buf, answer, true);
    }
    const bool fine = buf.failed
                          ? dsi_schema_no_memory(w->r)
                          : encode(w, dsi_buf_text(&buf), buf.size, DS_ENCODE_ADD_SPECIAL, tokens);
    dsi_buf_free(&buf);
    return fine;
}

/* Appends prompt and answer; *prefix: how many tokens the prompt and all answers so far share. */
static bool append_answer(const work *w, const dsi_form *form, const json_t *answer,
                          const uint32_t *prompt, size_t *prefix)
{
    ds_tokens tokens;
    size_t i = 0;
    if (!encode_pair(w, form, answer, &tokens)) {
        return false;
    }
    while (i < *prefix && i < tokens.n && tokens.ids[i] == prompt[i]) {
        ++i;
    }
    *prefix = i;
    return append(w, tokens.ids, tokens.n, true);
}

static bool tokenize_pair(const work *w, const dsi_form *form)
{
    dsi_line *line = w->r->line;
    ds_tokens tokens;
    if (!encode_pair(w, form, NULL, &tokens)) {
        return false;
    }
    size_t prefix = tokens.n;
    uint32_t *prompt = malloc((prefix + 1) * sizeof *prompt);
    if (prompt == NULL) {
        return dsi_schema_no_memory(w->r);
    }
    if (prefix > 0) { /* ids may be NULL otherwise */
        memcpy(prompt, tokens.ids, prefix * sizeof *prompt);
    }
    bool fine = append_answer(w, form, form->answer, prompt, &prefix);
    line->n_chosen = line->n;
    fine =
        fine && (form->rejected == NULL || append_answer(w, form, form->rejected, prompt, &prefix));
    free(prompt);
    if (fine) {
        memset(line->counted, 0, prefix);
    }
    if (fine && form->rejected != NULL) {
        memset(line->counted + line->n_chosen, 0, prefix);
    }
    return fine;
}

bool dsi_form_tokenize(const dsi_schema_row *r, ds_tokenizer_scratch *scratch, const dsi_form *form)
{
    const work w = {r, scratch};
    if (form->prompt != NULL) {
        return tokenize_pair(&w, form);
    }
    if (json_is_string(form->answer)) {
        return tokenize_text(&w, form->answer);
    }
    const bool pieces = form->schema == DSI_SCHEMA_ALPACA && form->counts == NULL;
    return pieces ? tokenize_pieces(&w, form->answer) : tokenize_chat(&w, form);
}
