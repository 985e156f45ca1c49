/* SPDX-License-Identifier: Apache-2.0 */
/* data/chat: templates of models and the built-in ones give what transformers' apply_chat_template
 * gave (test/golden/data/chat.json, made by make_chat.py), and where the assistant speaks. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/chat.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static ds_ctx *ctx;
static json_t *golden;
static char *folder;

/* A tokenizer whose template is `text`. */
static ds_tokenizer *tokenizer_with(const char *text)
{
    json_t *config =
        json_pack("{s:s, s:{s:s}}", "bos_token", "<BOS>", "eos_token", "content", "<EOS>");
    if (text != NULL) {
        json_object_set_new(config, "chat_template", json_string(text));
    }
    char path[96];
    (void)snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    ds_tokenizer *tok = NULL;
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    return tok;
}

static size_t messages_of(const json_t *conversation, ds_chat_message *messages)
{
    const size_t n = json_array_size(conversation);
    for (size_t i = 0; i < n; ++i) {
        const json_t *one = json_array_get(conversation, i);
        const json_t *content = json_object_get(one, "content");
        messages[i] = (ds_chat_message){json_string_value(json_object_get(one, "role")),
                                        json_string_value(content), json_string_length(content)};
    }
    return n;
}

/* The expected text with today's date where it stands for one. */
static char *dated(const json_t *want)
{
    char date[32];
    const time_t now = time(NULL);
    (void)strftime(date, sizeof date, "%d %b %Y", localtime(&now));
    const char *text = json_string_value(want);
    const char *mark = strstr(text, "@DATE@");
    char *out = malloc(strlen(text) + sizeof date);
    assert_non_null(out);
    if (mark == NULL) {
        return strcpy(out, text);
    }
    (void)sprintf(out, "%.*s%s%s", (int)(mark - text), text, date, mark + strlen("@DATE@"));
    return out;
}

static bool ends_with(const char *text, size_t n, const char *tail)
{
    return n >= strlen(tail) && memcmp(text + n - strlen(tail), tail, strlen(tail)) == 0;
}

/* Spans lie behind the assistant's header and end with the end token. */
static void check_spans(const ds_chat_text *got)
{
    size_t at = 0;
    for (size_t i = 0; i < got->n_spans; ++i) {
        assert_true(got->spans[i].begin >= at && got->spans[i].begin < got->spans[i].end);
        at = got->spans[i].end;
        assert_true(at <= got->size);
        const char *p = got->text + got->spans[i].begin;
        const size_t n = at - got->spans[i].begin;
        assert_true(ends_with(p, n, "<|im_end|>") || ends_with(p, n, "<|eot_id|>") ||
                    ends_with(p, n, "<EOS>"));
        const size_t before = got->spans[i].begin;
        assert_true(ends_with(got->text, before, "<|im_start|>assistant\n") ||
                    ends_with(got->text, before, "assistant<|end_header_id|>\n\n") ||
                    ends_with(got->text, before, "[/INST]"));
    }
}

static void check_text(const ds_chat *chat, const json_t *conversation, uint32_t flags,
                       const json_t *want, const char *where)
{
    ds_chat_message messages[16];
    const size_t n = messages_of(conversation, messages);
    ds_chat_text got;
    const ds_status status = ds_chat_render(chat, messages, n, flags, &got);
    if (json_is_null(want)) {
        if (status != DS_ERR_FORMAT || strstr(ds_ctx_error(ctx), "line ") == NULL) {
            fail_msg("%s: not refused", where);
        }
        return;
    }
    if (status < 0) {
        fail_msg("%s: %s", where, ds_ctx_error(ctx));
    }
    char *text = dated(want);
    if (strcmp(got.text, text) != 0 || got.size != strlen(text)) {
        fail_msg("%s:\ngot  <%s>\nwant <%s>", where, got.text, text);
    }
    if (flags & DS_CHAT_SPANS) {
        check_spans(&got);
    }
    free(text);
    ds_chat_text_free(&got);
}

/* All conversations through one template, with what transformers gave for `one`. */
static void check_template(const ds_chat *chat, const json_t *one, uint32_t spans)
{
    const char *file = json_string_value(json_object_get(one, "file"));
    size_t k;
    const json_t *conversation;
    json_array_foreach(json_object_get(golden, "conversations"), k, conversation)
    {
        char where[96];
        (void)snprintf(where, sizeof where, "%s, %s, conversation %zu", ds_chat_name(chat), file,
                       k);
        const json_t *results = json_array_get(json_object_get(one, "results"), k);
        check_text(chat, conversation, spans, json_array_get(results, 0), where);
        check_text(chat, conversation, spans | DS_CHAT_GENERATION_PROMPT,
                   json_array_get(results, 1), where);
        check_text(chat, conversation, DS_CHAT_GENERATION_PROMPT | DS_CHAT_NO_THINKING,
                   json_array_get(json_object_get(one, "no_thinking"), k), where);
    }
}

static void equals_transformers(void **state)
{
    (void)state;
    size_t i;
    const json_t *one;
    size_t n_checked = 0;
    json_array_foreach(json_object_get(golden, "templates"), i, one)
    {
        const char *file = json_string_value(json_object_get(one, "file"));
        const bool other = strncmp(file, "other-", strlen("other-")) == 0;
        ds_tokenizer *tok = tokenizer_with(json_string_value(json_object_get(one, "text")));
        ds_chat *chat = NULL;
        if (strcmp(file, "other-broken") == 0) {
            CHECK_FAILS(ctx, ds_chat_create(ctx, tok, NULL, &chat), DS_ERR_FORMAT, "line 1");
        } else {
            CHECK_OK(ctx, ds_chat_create(ctx, tok, NULL, &chat));
            check_template(chat, one, other ? 0 : DS_CHAT_SPANS);
            ds_chat_destroy(&chat);
            assert_null(chat);
            ++n_checked;
        }
        ds_tokenizer_close(&tok);
    }
    assert_true(n_checked > 30);
}

static const json_t *golden_of(const char *name)
{
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(golden, "templates"), i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "file")), name) == 0) {
            return one;
        }
    }
    return NULL;
}

/* The built-in template of a name gives what the model's own gives. */
static void a_name_forces_a_template(void **state)
{
    (void)state;
    ds_tokenizer *tok = tokenizer_with("{{ 'something else' }}");
    ds_chat *chat = NULL;
    for (const char *const *name = ds_chat_names(); *name != NULL; ++name) {
        const json_t *one = golden_of(*name);
        assert_non_null(one);
        CHECK_OK(ctx, ds_chat_create(ctx, tok, *name, &chat));
        assert_string_equal(ds_chat_name(chat), *name);
        check_template(chat, one, DS_CHAT_SPANS);
        ds_chat_destroy(&chat);
    }
    CHECK_FAILS(ctx, ds_chat_create(ctx, tok, "lama2", &chat), DS_ERR_ARG, "chatml, llama2");
    CHECK_OK(ctx, ds_chat_create(ctx, tok, "chatml", &chat));
    const ds_chat_message hi = {"assistant", "x", 1};
    ds_chat_text text;
    CHECK_OK(ctx, ds_chat_render(chat, &hi, 1, DS_CHAT_SPANS, &text));
    assert_string_equal(text.text, "<|im_start|>assistant\nx<|im_end|>\n");
    assert_int_equal(text.n_spans, 1);
    assert_int_equal(text.spans[0].begin, strlen("<|im_start|>assistant\n"));
    assert_int_equal(text.spans[0].end, text.size - 1);
    ds_chat_text_free(&text);
    CHECK_FAILS(ctx, ds_chat_render(chat, NULL, 0, 0, &text), DS_ERR_FORMAT, "without messages");
    ds_chat_destroy(&chat);
    ds_tokenizer_close(&tok);
}

/* Tools, documents, the template's own variables, and members of a message reach the template. */
static void every_part_reaches_the_template(void **state)
{
    (void)state;
    static const char row[] =
        "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"a\":1}],"
        "\"reasoning\":\"why\"}],\"tools\":[{\"n\":\"t\"}],\"documents\":[{\"d\":2}],"
        "\"chat_template_kwargs\":{\"k\":[1]},\"other\":3}";
    ds_tokenizer *tok = tokenizer_with("{{ tools|tojson }}{{ documents[0].d }}{{ k }}{{ "
                                       "messages[0]|tojson }}{{ other is defined }}"
                                       "{{ bos_token }}{{ messages[0].content is defined }}");
    ds_chat *chat = NULL;
    ds_chat_text text;
    CHECK_OK(ctx, ds_chat_create(ctx, tok, NULL, &chat));
    CHECK_OK(ctx, ds_chat_render_json(chat, row, strlen(row), 0, &text));
    assert_string_equal(text.text,
                        "[{\"n\": \"t\"}]2[1]{\"thinking\": \"why\", \"role\": \"assistant\", "
                        "\"tool_calls\": [{\"a\": 1}], \"reasoning\": \"why\", "
                        "\"reasoning_content\": \"why\"}False<BOS>False");
    ds_chat_text_free(&text);
    static const char bad[] = "{\"messages\":[{}],\"chat_template_kwargs\":{\"tools\":1}}";
    CHECK_FAILS(ctx, ds_chat_render_json(chat, bad, strlen(bad), 0, &text), DS_ERR_FORMAT,
                "\"chat_template_kwargs\" must not set \"tools\"");
    ds_chat_destroy(&chat);
    ds_tokenizer_close(&tok);
}

static void write_text(const char *name, const char *text)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs(text, file);
    (void)fclose(file);
}

static void check_choice(const char *name, const char *json, const char *want)
{
    ds_tokenizer *tok = NULL;
    ds_chat *chat = NULL;
    ds_chat_text text;
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    CHECK_OK(ctx, ds_chat_create(ctx, tok, name, &chat));
    CHECK_OK(ctx, ds_chat_render_json(chat, json, strlen(json), 0, &text));
    assert_string_equal(text.text, want);
    ds_chat_text_free(&text);
    ds_chat_destroy(&chat);
    ds_tokenizer_close(&tok);
}

/* Several templates: the default, "tool_use" for chats with tools, others by name; files of
 * templates take the place of those in tokenizer_config.json. */
static void one_of_several_is_chosen(void **state)
{
    (void)state;
    static const char plain[] = "{\"messages\":[{\"role\":\"user\"}]}";
    static const char tools[] = "{\"messages\":[{\"role\":\"user\"}],\"tools\":[{}]}";
    char path[160];
    write_text("tokenizer_config.json",
               "{\"chat_template\":[{\"name\":\"default\",\"template\":\"d\"},{\"name\":"
               "\"tool_use\",\"template\":\"t\"},{\"name\":\"rag\",\"template\":\"r\"}]}");
    check_choice(NULL, plain, "d");
    check_choice(NULL, tools, "t");
    check_choice("rag", tools, "r");
    (void)snprintf(path, sizeof path, "%s/additional_chat_templates", folder);
    assert_int_equal(mkdir(path, 0777), 0);
    write_text("additional_chat_templates/tool_use.jinja", "T");
    write_text("chat_template.jinja", "D\n");
    check_choice(NULL, plain, "D");
    check_choice(NULL, tools, "T");
    ds_tokenizer *tok = NULL;
    ds_chat *chat = NULL;
    (void)snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    assert_int_equal(unlink(path), 0);
    write_text("additional_chat_templates/x.jinja", "X");
    (void)snprintf(path, sizeof path, "%s/additional_chat_templates/tool_use.jinja", folder);
    assert_int_equal(unlink(path), 0);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    CHECK_FAILS(ctx, ds_chat_create(ctx, tok, NULL, &chat), DS_ERR_FORMAT,
                "none is the default; choose one by --chat_template: x, chatml");
    ds_tokenizer_close(&tok);
    (void)snprintf(path, sizeof path, "%s/additional_chat_templates/x.jinja", folder);
    assert_int_equal(unlink(path), 0);
}

static void check_span(const char *template, const char *json, const char *want)
{
    ds_tokenizer *tok = tokenizer_with(template);
    ds_chat *chat = NULL;
    ds_chat_text text;
    CHECK_OK(ctx, ds_chat_create(ctx, tok, NULL, &chat));
    const ds_status status = ds_chat_render_json(chat, json, strlen(json), DS_CHAT_SPANS, &text);
    if (status < 0) {
        assert_int_equal(status, DS_ERR_UNSUPPORTED);
        if (strstr(ds_ctx_error(ctx), want) == NULL) {
            fail_msg("%s: %s", template, ds_ctx_error(ctx));
        }
    } else {
        char seen[256] = "";
        for (size_t i = 0; i < text.n_spans; ++i) {
            (void)snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "[%.*s]",
                           (int)(text.spans[i].end - text.spans[i].begin),
                           text.text + text.spans[i].begin);
        }
        assert_string_equal(seen, want);
        ds_chat_text_free(&text);
    }
    ds_chat_destroy(&chat);
    ds_tokenizer_close(&tok);
}

/* By {% generation %}, by the loop over the messages, or not at all. */
static void spans_are_seen_or_refused(void **state)
{
    (void)state;
    static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
                               "{\"role\":\"assistant\",\"content\":\"a b\"}]}";
    check_span("{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}"
               "{{ m.content }}E{% endgeneration %}{% endif %}{% endfor %}",
               chat, "[a bE]");
    check_span("{% for m in messages %}<{{ m.role }}>{{ m.content }}E\n{% endfor %}"
               "{% if add_generation_prompt %}<assistant>{% endif %}",
               chat, "[a bE]");
    check_span("{% for m in messages %}<{{ m.role }}>{{ m.content }}E\n{% endfor %}"
               "{% if add_generation_prompt %}<assistant><think>\n{% endif %}",
               chat, "[a bE]");
    check_span("{% for m in messages %} {{ m.content }}E{% endfor %}", chat, "[ a bE]");
    check_span("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", chat,
               "messages[1] (role \"assistant\"): it is not seen where its header ends");
    check_span("{% for i in range(2) %}{{ messages[i].content }}{% endfor %}", chat,
               "it is not seen where the template writes it");
    check_span(
        "{% for k in [1, 2] %}{% for m in messages %}{{ m.content }}{% endfor %}{% endfor %}", chat,
        "it is not seen where the template writes it");
    check_span("{% macro f() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ f() }}", chat,
               "within a macro");
}

static void missing_parts_are_named(void **state)
{
    (void)state;
    ds_tokenizer *tok = tokenizer_with(NULL);
    ds_chat *chat = NULL;
    CHECK_FAILS(ctx, ds_chat_create(ctx, tok, NULL, &chat), DS_ERR_NOT_FOUND, "--chat_template");
    ds_tokenizer_close(&tok);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, "bytes", &tok));
    CHECK_FAILS(ctx, ds_chat_create(ctx, tok, "llama2", &chat), DS_ERR_UNSUPPORTED, "bos token");
    ds_tokenizer_close(&tok);
}

static int set_up(void **state)
{
    (void)state;
    json_error_t error;
    golden = json_load_file(DS_SOURCE_DIR "/test/golden/data/chat.json", 0, &error);
    folder = scratch_make();
    ds_tokenizer *tok = NULL;
    if (golden == NULL || ds_ctx_create(NULL, &ctx) < 0 ||
        ds_tokenizer_open(ctx, "bytes", &tok) < 0 || ds_tokenizer_save(ctx, tok, folder) < 0) {
        return 1;
    }
    ds_tokenizer_close(&tok);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    json_decref(golden);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_transformers),
        cmocka_unit_test(a_name_forces_a_template),
        cmocka_unit_test(missing_parts_are_named),
        cmocka_unit_test(every_part_reaches_the_template),
        cmocka_unit_test(one_of_several_is_chosen),
        cmocka_unit_test(spans_are_seen_or_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
