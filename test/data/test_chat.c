/* data/chat: every known template is recognised and gives what transformers' apply_chat_template
 * gave (test/golden/data/chat.json, made by make_chat.py); others are refused by name. */
#include "common/check.h"

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
static char folder[64];

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
        if (status != DS_ERR_FORMAT || strstr(ds_ctx_error(ctx), "messages[") == NULL) {
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
    check_spans(&got);
    free(text);
    ds_chat_text_free(&got);
}

static void equals_transformers(void **state)
{
    (void)state;
    const json_t *conversations = json_object_get(golden, "conversations");
    size_t i;
    size_t k;
    const json_t *one;
    const json_t *conversation;
    size_t n_checked = 0;
    json_array_foreach(json_object_get(golden, "templates"), i, one)
    {
        const char *expect = json_string_value(json_object_get(one, "expect"));
        ds_tokenizer *tok = tokenizer_with(json_string_value(json_object_get(one, "text")));
        ds_chat *chat = NULL;
        if (expect == NULL) {
            CHECK_FAILS(ctx, ds_chat_create(ctx, tok, NULL, &chat), DS_ERR_UNSUPPORTED,
                        "--chat_template");
            ds_tokenizer_close(&tok);
            continue;
        }
        CHECK_OK(ctx, ds_chat_create(ctx, tok, NULL, &chat));
        assert_string_equal(ds_chat_name(chat), expect);
        json_array_foreach(conversations, k, conversation)
        {
            char where[96];
            (void)snprintf(where, sizeof where, "%s, conversation %zu",
                           json_string_value(json_object_get(one, "file")), k);
            const json_t *results = json_array_get(json_object_get(one, "results"), k);
            check_text(chat, conversation, 0, json_array_get(results, 0), where);
            check_text(chat, conversation, DS_CHAT_GENERATION_PROMPT, json_array_get(results, 1),
                       where);
            check_text(chat, conversation, DS_CHAT_GENERATION_PROMPT | DS_CHAT_NO_THINKING,
                       json_array_get(json_object_get(one, "no_thinking"), k), where);
            ++n_checked;
        }
        ds_chat_destroy(&chat);
        assert_null(chat);
        ds_tokenizer_close(&tok);
    }
    assert_true(n_checked > 300);
}

static void a_name_forces_a_template(void **state)
{
    (void)state;
    ds_tokenizer *tok = tokenizer_with("{{ 'something else' }}");
    ds_chat *chat = NULL;
    for (const char *const *name = ds_chat_names(); *name != NULL; ++name) {
        CHECK_OK(ctx, ds_chat_create(ctx, tok, *name, &chat));
        assert_string_equal(ds_chat_name(chat), *name);
        ds_chat_destroy(&chat);
    }
    CHECK_FAILS(ctx, ds_chat_create(ctx, tok, "lama2", &chat), DS_ERR_ARG, "chatml, llama2");
    CHECK_OK(ctx, ds_chat_create(ctx, tok, "chatml", &chat));
    const ds_chat_message hi = {"assistant", "x", 1};
    ds_chat_text text;
    CHECK_OK(ctx, ds_chat_render(chat, &hi, 1, 0, &text));
    assert_string_equal(text.text, "<|im_start|>assistant\nx<|im_end|>\n");
    assert_int_equal(text.n_spans, 1);
    assert_int_equal(text.spans[0].begin, strlen("<|im_start|>assistant\n"));
    assert_int_equal(text.spans[0].end, text.size - 1);
    ds_chat_text_free(&text);
    CHECK_FAILS(ctx, ds_chat_render(chat, NULL, 0, 0, &text), DS_ERR_FORMAT, "without messages");
    ds_chat_destroy(&chat);
    ds_tokenizer_close(&tok);
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

static void a_jinja_file_counts(void **state)
{
    (void)state;
    ds_tokenizer *tok = tokenizer_with("{{ 'something else' }}");
    ds_tokenizer_close(&tok);
    char path[96];
    (void)snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
                "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if "
                "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n",
                file);
    (void)fclose(file);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    ds_chat *chat = NULL;
    CHECK_OK(ctx, ds_chat_create(ctx, tok, "", &chat));
    assert_string_equal(ds_chat_name(chat), "chatml");
    ds_chat_destroy(&chat);
    ds_tokenizer_close(&tok);
    (void)unlink(path);
}

static int set_up(void **state)
{
    (void)state;
    json_error_t error;
    golden = json_load_file(DS_SOURCE_DIR "/test/golden/data/chat.json", 0, &error);
    (void)strcpy(folder, "test_chat_XXXXXX");
    ds_tokenizer *tok = NULL;
    if (golden == NULL || mkdtemp(folder) == NULL || ds_ctx_create(NULL, &ctx) < 0 ||
        ds_tokenizer_open(ctx, "bytes", &tok) < 0 || ds_tokenizer_save(ctx, tok, folder) < 0) {
        return 1;
    }
    ds_tokenizer_close(&tok);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[96];
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    const int removed = system(command);
    json_decref(golden);
    ds_ctx_destroy(&ctx);
    return removed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_transformers),
        cmocka_unit_test(a_name_forces_a_template),
        cmocka_unit_test(missing_parts_are_named),
        cmocka_unit_test(a_jinja_file_counts),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
