/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens and templates, which need no engine. See http.h. */
#include "http.h"

#include <stdlib.h>
#include <string.h>

enum MHD_Result http_tokenize(exchange *x, const char *behind)
{
    front *f = front_of(x);
    api_error e = {0};
    const char *key = NULL;
    json_t *value = NULL;
    ds_tokens tokens;
    uint32_t flags = 0;
    (void)behind;
    json_t *body = door_json(x, &e);
    json_t *content = json_object_get(body, "content");
    bool ok = body != NULL;
    json_object_foreach(body, key, value)
    {
        if (ok && strcmp(key, "add_special") == 0 && json_is_boolean(value)) {
            flags |= json_is_true(value) ? DS_ENCODE_ADD_SPECIAL : 0;
        } else if (ok && strcmp(key, "parse_special") == 0 && json_is_boolean(value)) {
            flags |= json_is_true(value) ? 0 : DS_ENCODE_NO_SPECIAL_PARSE;
        } else if (ok && strcmp(key, "content") != 0) {
            ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, "unknown_field", key,
                          "expected content, and true or false as add_special and parse_special");
        }
    }
    if (ok && !json_is_string(content)) {
        ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, NULL, "content", "content: expected a text");
    }
    if (ok && ds_tokenizer_encode(f->tokenizer, f->scratch, json_string_value(content),
                                  json_string_length(content), flags, &tokens) < 0) {
        ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, NULL, "content", "%.400s",
                      ds_ctx_error(f->http_ctx));
    }
    json_decref(body);
    if (!ok) {
        return reply_error(x, &e);
    }
    dsi_buf text = dsi_buf_make(1u << 30);
    dsi_buf_puts(&text, "{\"tokens\":[");
    for (size_t i = 0; i < tokens.n; ++i) {
        dsi_buf_printf(&text, i > 0 ? ",%u" : "%u", tokens.ids[i]);
    }
    dsi_buf_puts(&text, "]}\n");
    return reply_json(x, MHD_HTTP_OK, &text);
}

/* The ids of an array; false: something else is among them. */
static bool read_ids(const front *f, json_t *array, uint32_t *ids)
{
    for (size_t i = 0; i < json_array_size(array); ++i) {
        json_t *v = json_array_get(array, i);
        const json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= ds_tokenizer_vocab_size(f->tokenizer)) {
            return false;
        }
        ids[i] = (uint32_t)id;
    }
    return true;
}

enum MHD_Result http_detokenize(exchange *x, const char *behind)
{
    front *f = front_of(x);
    api_error e = {0};
    char *text = NULL;
    size_t size = 0;
    (void)behind;
    json_t *body = door_json(x, &e);
    json_t *tokens = json_object_get(body, "tokens");
    const size_t n = json_array_size(tokens);
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    bool ok = body != NULL;
    if (ok && (!json_is_array(tokens) || json_object_size(body) != 1 || ids == NULL ||
               !read_ids(f, tokens, ids))) {
        ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, NULL, "tokens",
                      "expected tokens alone: an array of ids of the tokenizer");
    }
    if (ok && ds_tokenizer_decode(f->tokenizer, ids, n, DS_DECODE_REPAIR, &text, &size) < 0) {
        ok =
            api_fail(&e, MHD_HTTP_BAD_REQUEST, NULL, "tokens", "%.400s", ds_ctx_error(f->http_ctx));
    }
    free(ids);
    json_decref(body);
    if (!ok) {
        return reply_error(x, &e);
    }
    dsi_buf out = dsi_buf_make(1u << 30);
    dsi_buf_puts(&out, "{\"content\":\"");
    dsi_buf_json(&out, text, size);
    dsi_buf_puts(&out, "\"}\n");
    free(text);
    return reply_json(x, MHD_HTTP_OK, &out);
}

enum MHD_Result http_template(exchange *x, const char *behind)
{
    api_error e = {0};
    ds_chat_text text = {0};
    const char *key = NULL;
    json_t *value = NULL;
    (void)behind;
    json_t *body = door_json(x, &e);
    bool ok = body != NULL;
    json_object_foreach(body, key, value)
    {
        if (ok && strcmp(key, "messages") != 0 && strcmp(key, "chat_template_kwargs") != 0 &&
            strcmp(key, "tools") != 0) {
            ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, "unknown_field", key,
                          "expected messages, tools and chat_template_kwargs");
        }
    }
    ok = ok && api_render(front_of(x), body, &text, &x->ignored, &e);
    json_decref(body);
    if (!ok) {
        return reply_error(x, &e);
    }
    dsi_buf out = dsi_buf_make(1u << 30);
    dsi_buf_puts(&out, "{\"prompt\":\"");
    dsi_buf_json(&out, text.text, text.size);
    dsi_buf_puts(&out, "\"}\n");
    ds_chat_text_free(&text);
    return reply_json(x, MHD_HTTP_OK, &out);
}
