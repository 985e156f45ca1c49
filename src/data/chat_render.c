/* Chat messages to text for each template family. See chat.h.
 *
 * Called by the data reader for each sample and by tools that talk with a model. A chat is const
 * here. Invariant: every span lies within the text and spans ascend.
 */
#include "data/chat_template.h"
#include "data/unicode_table.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_CEILING = 1 << 30 };

typedef struct slice {
    const char *text;
    size_t n;
} slice;

typedef struct render {
    const ds_chat *chat;
    const ds_chat_message *messages;
    size_t n;
    uint32_t flags;
    dsi_buf out;
    ds_chat_span *spans; /* [n] */
    size_t n_spans;
    char *error; /* text of an error, error_size bytes */
    size_t error_size;
} render;

static void put(render *r, const char *text)
{
    dsi_buf_puts(&r->out, text);
}

static void put_slice(render *r, slice s)
{
    dsi_buf_append(&r->out, s.text, s.n);
}

static slice content_of(const render *r, size_t i)
{
    return (slice){r->messages[i].content, r->messages[i].content_size};
}

static bool role_is(const render *r, size_t i, const char *role)
{
    return strcmp(r->messages[i].role, role) == 0;
}

/* The assistant's turn starts here, and ends here. */
static void begin_span(render *r)
{
    r->spans[r->n_spans].begin = r->out.size;
}

static void end_span(render *r)
{
    r->spans[r->n_spans++].end = r->out.size;
}

/* ---- Python's string methods ---- */

/* What str.strip() takes off: White_Space and the separators 1C to 1F. */
static bool is_space(uint32_t cp)
{
    return (cp >= 0x1C && cp <= 0x1F) || (dsi_uc_flags(cp) & DSI_UC_SPACE) != 0;
}

static slice strip(slice s)
{
    const unsigned char *p = (const unsigned char *)s.text;
    const unsigned char *end = p + s.n;
    const unsigned char *begin = end;
    const unsigned char *stop = p;
    while (p < end) {
        uint32_t cp;
        const unsigned char *next = p + dsi_utf8_decode(p, end, &cp);
        if (!is_space(cp)) {
            begin = p < begin ? p : begin;
            stop = next;
        }
        p = next;
    }
    return begin < stop ? (slice){(const char *)begin, (size_t)(stop - begin)} : (slice){s.text, 0};
}

static slice lstrip_newlines(slice s)
{
    while (s.n > 0 && *s.text == '\n') {
        ++s.text;
        --s.n;
    }
    return s;
}

static slice rstrip_newlines(slice s)
{
    while (s.n > 0 && s.text[s.n - 1] == '\n') {
        --s.n;
    }
    return s;
}

static const char *find(slice s, const char *what)
{
    return s.n > 0 ? memmem(s.text, s.n, what, strlen(what)) : NULL;
}

/* split(what)[0] and split(what)[-1] */
static slice before_first(slice s, const char *what)
{
    const char *at = find(s, what);
    return at != NULL ? (slice){s.text, (size_t)(at - s.text)} : s;
}

static slice after_last(slice s, const char *what)
{
    const size_t n = strlen(what);
    for (const char *at = find(s, what); at != NULL; at = find(s, what)) {
        s.n -= (size_t)(at - s.text) + n;
        s.text = at + n;
    }
    return s;
}

static bool wrapped_in(slice s, const char *open, const char *close)
{
    const size_t n_open = strlen(open);
    const size_t n_close = strlen(close);
    return s.n >= n_open && s.n >= n_close && memcmp(s.text, open, n_open) == 0 &&
           memcmp(s.text + s.n - n_close, close, n_close) == 0;
}

/* ---- errors ---- */

static ds_status refuse(const render *r, size_t i, const char *why)
{
    (void)snprintf(r->error, r->error_size,
                   "messages[%zu] (role \"%.40s\") does not fit the chat template %s: %s", i,
                   r->messages[i].role, r->chat->form.name, why);
    return DS_ERR_FORMAT;
}

/* Users and assistants must take turns from message `from` on. */
static ds_status check_turns(const render *r, size_t from)
{
    for (size_t i = from; i < r->n; ++i) {
        const bool user = role_is(r, i, "user");
        if (role_is(r, i, "system")) {
            return refuse(r, i, "a system message can only be the first");
        }
        if (!user && !role_is(r, i, "assistant")) {
            return refuse(r, i, "it knows the roles system, user and assistant");
        }
        if (user != ((i - from) % 2 == 0)) {
            return refuse(r, i,
                          user ? "the assistant's turn is here, as user and assistant alternate"
                               : "the user's turn is here, as user and assistant alternate, the "
                                 "user first");
        }
    }
    return DS_OK;
}

/* ---- ChatML and Qwen ---- */

static void im_system(render *r, slice text)
{
    put(r, "<|im_start|>system\n");
    put_slice(r, text);
    put(r, "<|im_end|>\n");
}

static void im_message(render *r, size_t i)
{
    const bool assistant = role_is(r, i, "assistant");
    put(r, "<|im_start|>");
    put(r, r->messages[i].role);
    put(r, "\n");
    if (assistant) {
        begin_span(r);
    }
    put_slice(r, content_of(r, i));
    put(r, "<|im_end|>");
    if (assistant) {
        end_span(r);
    }
    put(r, "\n");
}

/* A tool's answer, within a user's turn that neighbouring answers share. */
static void im_tool(render *r, size_t i)
{
    if (i == 0 || !role_is(r, i - 1, "tool")) {
        put(r, "<|im_start|>user");
    }
    put(r, "\n<tool_response>\n");
    put_slice(r, content_of(r, i));
    put(r, "\n</tool_response>");
    if (i + 1 == r->n || !role_is(r, i + 1, "tool")) {
        put(r, "<|im_end|>\n");
    }
}

static void im_prompt(render *r)
{
    if (r->flags & DS_CHAT_GENERATION_PROMPT) {
        put(r, "<|im_start|>assistant\n");
        if (r->chat->form.kind == DSI_CHAT_QWEN3 && (r->flags & DS_CHAT_NO_THINKING)) {
            put(r, "<think>\n\n</think>\n\n");
        }
    }
}

/* The message that Qwen3 takes for the question in hand: thoughts are kept only after it. */
static size_t last_query(const render *r)
{
    for (size_t i = r->n; i-- > 0;) {
        if (role_is(r, i, "user") &&
            !wrapped_in(content_of(r, i), "<tool_response>", "</tool_response>")) {
            return i;
        }
    }
    return r->n - 1;
}

static void qwen3_answer(render *r, size_t i, size_t query)
{
    const slice whole = content_of(r, i);
    slice content = whole;
    slice thoughts = {"", 0};
    if (find(whole, "</think>") != NULL) {
        thoughts = rstrip_newlines(before_first(whole, "</think>"));
        thoughts = lstrip_newlines(after_last(thoughts, "<think>"));
        content = lstrip_newlines(after_last(whole, "</think>"));
    }
    put(r, "<|im_start|>assistant\n");
    begin_span(r);
    if (i > query && (i + 1 == r->n || thoughts.n > 0)) {
        put(r, "<think>\n");
        put_slice(r, rstrip_newlines(lstrip_newlines(thoughts)));
        put(r, "\n</think>\n\n");
        content = lstrip_newlines(content);
    }
    put_slice(r, content);
    put(r, "<|im_end|>");
    end_span(r);
    put(r, "\n");
}

static ds_status render_im(render *r)
{
    const dsi_chat_kind kind = r->chat->form.kind;
    const bool system_first = role_is(r, 0, "system");
    if (r->chat->form.bos_first) {
        put(r, r->chat->bos);
    }
    if (!system_first && (kind == DSI_CHAT_QWEN2 || kind == DSI_CHAT_QWEN25)) {
        im_system(r, (slice){r->chat->form.system_text, r->chat->form.system_size});
    }
    const bool any_role = kind == DSI_CHAT_CHATML || kind == DSI_CHAT_QWEN2;
    const size_t query = last_query(r);
    for (size_t i = 0; i < r->n; ++i) {
        if (any_role || role_is(r, i, "user") || role_is(r, i, "system")) {
            im_message(r, i);
        } else if (role_is(r, i, "assistant")) {
            if (kind == DSI_CHAT_QWEN3) {
                qwen3_answer(r, i, query);
            } else {
                im_message(r, i);
            }
        } else if (role_is(r, i, "tool")) {
            im_tool(r, i);
        } /* the template leaves other roles out */
    }
    im_prompt(r);
    return DS_OK;
}

/* ---- Llama 3 ---- */

static void l3_open(render *r, const char *role)
{
    put(r, "<|start_header_id|>");
    put(r, role);
    put(r, "<|end_header_id|>\n\n");
}

static void l3_message(render *r, size_t i)
{
    const bool assistant = role_is(r, i, "assistant");
    l3_open(r, r->messages[i].role);
    if (assistant) {
        begin_span(r);
    }
    put_slice(r, strip(content_of(r, i)));
    put(r, "<|eot_id|>");
    if (assistant) {
        end_span(r);
    }
}

/* A tool's answer is written as a JSON text. */
static void l3_tool(render *r, size_t i)
{
    const slice content = content_of(r, i);
    l3_open(r, "ipython");
    put(r, "\"");
    dsi_buf_json(&r->out, content.text, content.n);
    put(r, "\"<|eot_id|>");
}

static ds_status render_llama3(render *r)
{
    size_t from = 0;
    put(r, r->chat->bos);
    if (r->chat->form.kind != DSI_CHAT_LLAMA3) {
        l3_open(r, "system");
        put(r, "Cutting Knowledge Date: December 2023\nToday Date: ");
        put(r, r->chat->date);
        put(r, "\n\n");
        if (role_is(r, 0, "system")) {
            put_slice(r, strip(content_of(r, 0)));
            from = 1;
        }
        put(r, "<|eot_id|>");
    }
    for (size_t i = from; i < r->n; ++i) {
        const bool tool = role_is(r, i, "tool") || role_is(r, i, "ipython");
        if (tool && r->chat->form.kind != DSI_CHAT_LLAMA3) {
            l3_tool(r, i);
        } else {
            l3_message(r, i);
        }
    }
    if ((r->flags & DS_CHAT_GENERATION_PROMPT) || r->chat->form.always_prompt) {
        l3_open(r, "assistant");
    }
    return DS_OK;
}

/* ---- Llama 2 and Mistral ---- */

/* The system message and the user's text as one stripped text. */
static ds_status llama2_user(render *r, size_t i, bool with_system)
{
    dsi_buf joined = dsi_buf_make(TEXT_CEILING);
    if (with_system) {
        dsi_buf_puts(&joined, "<<SYS>>\n");
        dsi_buf_append(&joined, r->messages[0].content, r->messages[0].content_size);
        dsi_buf_puts(&joined, "\n<</SYS>>\n\n");
    }
    dsi_buf_append(&joined, r->messages[i].content, r->messages[i].content_size);
    put(r, r->chat->bos);
    put(r, "[INST] ");
    put_slice(r, strip((slice){dsi_buf_text(&joined), joined.size}));
    put(r, " [/INST]");
    r->out.failed = r->out.failed || joined.failed;
    dsi_buf_free(&joined);
    return DS_OK;
}

static ds_status render_llama2(render *r)
{
    const size_t from = role_is(r, 0, "system");
    DS_TRY(check_turns(r, from));
    for (size_t i = from; i < r->n; ++i) {
        if (role_is(r, i, "user")) {
            DS_TRY(llama2_user(r, i, from == 1 && i == 1));
            continue;
        }
        begin_span(r);
        put(r, " ");
        put_slice(r, strip(content_of(r, i)));
        put(r, " ");
        put(r, r->chat->eos);
        end_span(r);
    }
    return DS_OK;
}

static ds_status render_mistral(render *r)
{
    const dsi_mistral_form *form = &r->chat->form.mistral;
    const size_t from = role_is(r, 0, "system");
    if (from == 1 && form->system == DSI_SYSTEM_REFUSE) {
        return refuse(r, 0, "it takes no system message");
    }
    DS_TRY(check_turns(r, from));
    put(r, r->chat->bos);
    for (size_t i = from; i < r->n; ++i) {
        if (role_is(r, i, "user")) {
            const bool here = form->system == DSI_SYSTEM_FIRST ? i == from : i + 1 == r->n;
            put(r, form->open);
            if (from == 1 && here) {
                put_slice(r, content_of(r, 0));
                put(r, "\n\n");
            }
            put_slice(r, content_of(r, i));
            put(r, form->close);
            continue;
        }
        begin_span(r);
        put(r, form->answer);
        put_slice(r, form->trim ? strip(content_of(r, i)) : content_of(r, i));
        put(r, r->chat->eos);
        end_span(r);
        put(r, form->space_after_eos ? " " : "");
    }
    return DS_OK;
}

/* ---- the public calls ---- */

static ds_status render_kind(render *r)
{
    switch (r->chat->form.kind) {
    case DSI_CHAT_LLAMA2:
        return render_llama2(r);
    case DSI_CHAT_MISTRAL:
        return render_mistral(r);
    case DSI_CHAT_LLAMA3:
    case DSI_CHAT_LLAMA31:
    case DSI_CHAT_LLAMA32:
        return render_llama3(r);
    default:
        return render_im(r);
    }
}

ds_status dsi_chat_render(const ds_chat *chat, const ds_chat_message *messages, size_t n_messages,
                          uint32_t flags, ds_chat_text *text_out, char *error, size_t error_size)
{
    if (n_messages == 0) {
        (void)snprintf(error, error_size, "a chat without messages");
        return DS_ERR_FORMAT;
    }
    render r = {.chat = chat,
                .messages = messages,
                .n = n_messages,
                .flags = flags,
                .out = dsi_buf_make(TEXT_CEILING),
                .spans = calloc(n_messages, sizeof *r.spans),
                .error = error,
                .error_size = error_size};
    ds_status status = DS_ERR_NOMEM;
    (void)snprintf(error, error_size, "no memory to render a chat");
    if (r.spans != NULL) {
        dsi_buf_puts(&r.out, ""); /* an empty text is a text, too */
        status = render_kind(&r);
    }
    if (status >= 0 && r.out.failed) {
        (void)snprintf(error, error_size, "a chat is longer than %d bytes", TEXT_CEILING);
        status = DS_ERR_LIMIT;
    }
    if (status < 0) {
        dsi_buf_free(&r.out);
        free(r.spans);
        return status;
    }
    *text_out = (ds_chat_text){r.out.data, r.out.size, r.spans, r.n_spans};
    return DS_OK;
}

ds_status ds_chat_render(const ds_chat *chat, const ds_chat_message *messages, size_t n_messages,
                         uint32_t flags, ds_chat_text *text_out)
{
    char error[DSI_CHAT_ERROR];
    const ds_status status =
        dsi_chat_render(chat, messages, n_messages, flags, text_out, error, sizeof error);
    return status < 0 ? ds_fail(chat->ctx, status, "%s", error) : status;
}

void ds_chat_text_free(ds_chat_text *text)
{
    free((void *)(uintptr_t)text->text);
    free((void *)(uintptr_t)text->spans);
    *text = (ds_chat_text){0};
}
