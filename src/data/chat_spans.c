/* SPDX-License-Identifier: Apache-2.0 */
/* Where the assistant speaks in a rendered chat. See chat.h.
 *
 * A template may say so itself: {% generation %}. In others the loop over the messages shows what
 * was written for each (jinja_loop.c); the assistant's header is what a generation prompt adds at
 * the end, and the turn ends with the last character that is no white space. A template in which
 * this cannot be seen is refused, since the loss would fall on other text.
 */
#include "data/chat_template.h"
#include "data/jinja/jinja_unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct turn {
    const char *begin, *end;
} turn;

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static turn without_blanks(turn t)
{
    while (t.begin < t.end && is_blank(*t.begin)) {
        ++t.begin;
    }
    while (t.end > t.begin && is_blank(t.end[-1])) {
        --t.end;
    }
    return t;
}

/* Without what Python's strip() takes off. */
static turn stripped(turn t)
{
    const char *begin = dsi_ji_skip_space(t.begin, t.end);
    return (turn){begin, dsi_ji_trim_end(begin, t.end)};
}

/* What stands behind the last message: with a generation prompt, the assistant's header. */
static turn tail_of(const dsi_jinja_result *rendered, size_t n_messages)
{
    size_t last = 0;
    for (size_t i = 0; i < n_messages; ++i) {
        last = rendered->turns[i].end > last ? rendered->turns[i].end : last;
    }
    const char *text = dsi_buf_text(&rendered->out);
    return (turn){text + last, text + rendered->out.size};
}

/* Behind the whole header; NULL when it is not there. */
static const char *behind_header(turn t, turn header)
{
    const size_t n = (size_t)(header.end - header.begin);
    const char *at = memmem(t.begin, (size_t)(t.end - t.begin), header.begin, n);
    return at != NULL ? at + n : NULL;
}

/* Behind the part of the header that the turn begins with, as a prompt may open a thought that the
 * turn has not; up to a line break or the end of a special token. NULL: none. */
static const char *behind_part(turn t, turn header)
{
    const turn bare = without_blanks(header);
    const char *p = without_blanks(t).begin;
    const char *q = bare.begin;
    const char *behind = NULL;
    for (; p < t.end && q < header.end && *p == *q; ++p, ++q) {
        if (*p == '\n' || *p == '>' || *p == ']') {
            behind = p + 1;
        }
    }
    return behind;
}

/* Where the assistant's own text begins; NULL: not to be seen. */
static const char *begin_of(turn t, turn header, const json_t *message)
{
    const turn bare = without_blanks(header);
    if (bare.begin < bare.end) {
        const char *behind = behind_header(t, header);
        return behind != NULL ? behind : behind_part(t, header);
    }
    /* no header at all: the turn is the text, as in Llama 2 */
    const json_t *content = json_object_get(message, "content");
    const char *text = json_string_value(content);
    if (text != NULL) {
        const turn said = stripped((turn){text, text + json_string_length(content)});
        const turn wrote = stripped(t);
        const size_t n = (size_t)(said.end - said.begin);
        if ((size_t)(wrote.end - wrote.begin) < n || memcmp(wrote.begin, said.begin, n) != 0) {
            return NULL;
        }
    }
    return t.begin;
}

static ds_status refuse(char *error, size_t error_size, size_t i, const char *why)
{
    (void)snprintf(error, error_size,
                   "messages[%zu] (role \"assistant\"): %s; mark what the assistant says by "
                   "{%% generation %%} in the template",
                   i, why);
    return DS_ERR_UNSUPPORTED;
}

static bool is_assistant(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role != NULL && strcmp(role, "assistant") == 0;
}

static ds_status of_turns(const json_t *messages, const uint8_t *counts,
                          const dsi_jinja_result *rendered, turn header, ds_chat_span *spans,
                          size_t *n_out, char *error, size_t error_size)
{
    const char *text = dsi_buf_text(&rendered->out);
    size_t at = 0;
    for (size_t i = 0; i < json_array_size(messages); ++i) {
        const json_t *message = json_array_get(messages, i);
        const dsi_jinja_range range = rendered->turns[i];
        const turn t = {text + range.begin, text + range.end};
        if (!is_assistant(message)) {
            continue;
        }
        if (rendered->turns_hidden || range.end == range.begin || range.begin < at) {
            return refuse(error, error_size, i, "it is not seen where the template writes it");
        }
        at = range.end;
        const char *begin = begin_of(t, header, message);
        if (begin == NULL) {
            return refuse(error, error_size, i, "it is not seen where its header ends");
        }
        const char *end = without_blanks(t).end;
        if (end > begin && (counts == NULL || counts[i] != 0)) {
            spans[(*n_out)++] = (ds_chat_span){(size_t)(begin - text), (size_t)(end - text)};
        }
    }
    return DS_OK;
}

/* counts, or NULL where they leave out no turn of the assistant. */
static const uint8_t *choosing(const uint8_t *counts, const json_t *messages)
{
    for (size_t i = 0; counts != NULL && i < json_array_size(messages); ++i) {
        if (counts[i] == 0 && is_assistant(json_array_get(messages, i))) {
            return counts;
        }
    }
    return NULL;
}

/* Whether the turn counts in which a range stands; -1: it stands in none. */
static int counts_at(const dsi_jinja_result *rendered, const uint8_t *counts, size_t n_messages,
                     dsi_jinja_range range)
{
    for (size_t i = 0; i < n_messages; ++i) {
        if (rendered->turns[i].begin <= range.begin && range.end <= rendered->turns[i].end) {
            return counts[i];
        }
    }
    return -1;
}

/* counts NULL: all count. */
static ds_status of_generation(const dsi_jinja_result *rendered, const uint8_t *counts,
                               size_t n_messages, ds_chat_span *spans, size_t *n_out, char *error,
                               size_t error_size)
{
    if (rendered->generated_hidden) {
        (void)snprintf(error, error_size,
                       "{%% generation %%} within a macro, a caught block or a recursive loop: its "
                       "place in the text is not known");
        return DS_ERR_UNSUPPORTED;
    }
    for (size_t i = 0; i < rendered->n_generated; ++i) {
        const dsi_jinja_range range = rendered->generated[i];
        int said = 1;
        if (range.end > range.begin && counts != NULL) {
            said = rendered->turns_hidden ? -1 : counts_at(rendered, counts, n_messages, range);
        }
        if (said < 0) {
            (void)snprintf(error, error_size,
                           "not every turn is to count, and it is not seen of which turn a "
                           "{%% generation %%} is");
            return DS_ERR_UNSUPPORTED;
        }
        if (range.end > range.begin && said > 0) {
            spans[(*n_out)++] = (ds_chat_span){range.begin, range.end};
        }
    }
    return DS_OK;
}

ds_status dsi_chat_find_spans(const dsi_jinja *template, json_t *variables, const uint8_t *counts,
                              const dsi_jinja_result *rendered, ds_chat_span **spans_out,
                              size_t *n_out, char *error, size_t error_size)
{
    const json_t *messages = json_object_get(variables, "messages");
    const size_t n = json_array_size(messages);
    dsi_jinja_result prompted = {0};
    ds_status status = DS_ERR_NOMEM;
    ds_chat_span *spans = calloc(n + rendered->n_generated + 1, sizeof *spans);
    (void)snprintf(error, error_size, "no memory to render a chat");
    *n_out = 0;
    if (spans != NULL && dsi_jinja_has_generation(template)) {
        status =
            of_generation(rendered, choosing(counts, messages), n, spans, n_out, error, error_size);
    } else if (spans != NULL &&
               json_object_set_new(variables, "add_generation_prompt", json_true()) == 0) {
        status = dsi_jinja_render(template, variables, &prompted, error, error_size);
        if (status >= 0) {
            status = of_turns(messages, counts, rendered, tail_of(&prompted, n), spans, n_out,
                              error, error_size);
            dsi_jinja_result_free(&prompted);
        }
    }
    if (status < 0) {
        free(spans);
        return status;
    }
    *spans_out = spans;
    return DS_OK;
}
