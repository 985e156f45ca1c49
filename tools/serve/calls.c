/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of tools in an answer: what is text, a name, arguments. See front.h.
 *
 * A guide has made the answer, so that a call that has begun is as its form says; only its length
 * or a stop string may cut it.
 */
#include "front.h"

#include <string.h>

/* Qwen, Hermes and others; Llama 3; what is known to no template in particular. */
static const dsi_call_form tagged = {.begin = "<tool_call>\n{\"name\": \"",
                                     .middle = "\", \"arguments\": ",
                                     .end = "}\n</tool_call>",
                                     .trigger = "<tool_call>",
                                     .between = "\n"};
static const dsi_call_form parameters = {.begin = "{\"name\": \"",
                                         .middle = "\", \"parameters\": ",
                                         .end = "}",
                                         .trigger = "{",
                                         .at_begin = true};
static const dsi_call_form plain = {.begin = "{\"name\": \"",
                                    .middle = "\", \"arguments\": ",
                                    .end = "}",
                                    .trigger = "{",
                                    .at_begin = true};

const dsi_call_form *calls_form(const char *template)
{
    if (template == NULL || strstr(template, "tools") == NULL) {
        return NULL;
    }
    return strstr(template, "<tool_call>") != NULL        ? &tagged
           : strstr(template, "\"parameters\": ") != NULL ? &parameters
                                                          : &plain;
}

/* How many bytes at the end of the text may begin `word`. */
static size_t begins(const dsi_buf *text, const char *word)
{
    const size_t n = strlen(word) - 1;
    for (size_t k = n < text->size ? n : text->size; k > 0; --k) {
        if (memcmp(text->data + text->size - k, word, k) == 0) {
            return k;
        }
    }
    return 0;
}

static void skip(call_reader *r, size_t n, call_state then)
{
    r->skip = n;
    r->then = then;
    r->state = CALL_SKIPS;
}

static void send_held(call_reader *r, size_t n, const call_sink *to)
{
    to->text(to->user, r->held.data, n);
    memmove(r->held.data, r->held.data + n, r->held.size - n);
    r->held.size -= n;
}

/* A byte of what is text so far; it is sent by the piece, see calls_take. */
static void take_text(call_reader *r, const dsi_call_form *form, char c, const call_sink *to)
{
    if (form->at_begin && r->n_taken == 1) {
        if (c == form->begin[0]) {
            skip(r, strlen(form->begin) - 1, CALL_NAME);
            return;
        }
        r->state = CALL_NEVER;
    }
    dsi_buf_putc(&r->held, c);
    const size_t n = strlen(form->begin);
    if (r->state == CALL_TEXT && r->held.size >= n &&
        memcmp(r->held.data + r->held.size - n, form->begin, n) == 0) {
        send_held(r, r->held.size - n, to);
        dsi_buf_clear(&r->held);
        r->state = CALL_NAME;
    }
}

static void take_name(call_reader *r, const dsi_call_form *form, char c, const call_sink *to)
{
    if (c != '"') {
        dsi_buf_putc(&r->held, c);
        return;
    }
    to->begin(to->user, dsi_buf_text(&r->held));
    dsi_buf_clear(&r->held);
    r->n_calls += 1;
    r->depth = 0;
    r->in_string = false;
    skip(r, strlen(form->middle) - 1, CALL_ARGUMENTS);
}

static void take_argument(call_reader *r, const dsi_call_form *form, char c, const call_sink *to)
{
    if (r->depth == 0 && c != '{') {
        return; /* white space in front */
    }
    to->arguments(to->user, &c, 1);
    if (r->in_string) {
        r->in_string = r->escaped || c != '"';
        r->escaped = !r->escaped && c == '\\';
        return;
    }
    r->in_string = c == '"';
    r->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (r->depth == 0) {
        skip(r, strlen(form->end), CALL_BETWEEN);
    }
}

void calls_take(call_reader *r, const dsi_call_form *form, const char *text, size_t n,
                const call_sink *to)
{
    for (size_t i = 0; i < n; ++i) {
        const char c = text[i];
        r->n_taken += 1;
        if (r->state == CALL_BETWEEN) {
            skip(r, strlen(form->between) + strlen(form->begin), CALL_NAME);
        }
        if (r->state == CALL_SKIPS) {
            r->state = --r->skip == 0 ? r->then : CALL_SKIPS;
        } else if (r->state == CALL_NAME) {
            take_name(r, form, c, to);
        } else if (r->state == CALL_ARGUMENTS) {
            take_argument(r, form, c, to);
        } else {
            take_text(r, form, c, to);
        }
    }
    if ((r->state == CALL_TEXT || r->state == CALL_NEVER) && r->held.size > 0) {
        const size_t kept = r->state == CALL_TEXT ? begins(&r->held, form->begin) : 0;
        send_held(r, r->held.size - kept, to);
    }
}

bool calls_whole(const call_reader *r)
{
    return r->n_calls > 0 &&
           (r->state == CALL_BETWEEN || (r->state == CALL_SKIPS && r->then == CALL_BETWEEN));
}

void calls_end(call_reader *r, const call_sink *to)
{
    if (r->held.size > 0 && (r->state == CALL_TEXT || r->state == CALL_NEVER)) {
        to->text(to->user, r->held.data, r->held.size);
    }
    dsi_buf_free(&r->held);
}
