/* SPDX-License-Identifier: Apache-2.0 */
/* data/jsonl_line: a line that is refused is named by file and line, with what is wrong in it: the
 * column of broken JSON, the member of a wrong type, the message that breaks the template's rule.
 *
 * labels: threads
 */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/context.h>
#include <deepspeed/data.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;
static ds_tokenizer *tok;
static char *folder;

static void write_file(const char *name, const char *text, char *path, size_t room)
{
    (void)snprintf(path, room, "%s/%s", folder, name);
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(text, 1, strlen(text), stream), strlen(text));
    assert_int_equal(fclose(stream), 0);
}

/* Opens a file of `good` good lines and the bad one; the error names the line and holds `says`. */
static void check_line(const char *chat_name, size_t good, const char *bad, ds_status status,
                       const char *says)
{
    static char text[1 << 17];
    char path[512];
    const char *file = path;
    ds_chat *chat = NULL;
    ds_dataset *data = NULL;
    text[0] = '\0';
    size_t n = 0;
    for (size_t i = 0; i < good; ++i) {
        n += (size_t)sprintf(text + n, "{\"prompt\":\"a\",\"completion\":\"b\"}\n");
    }
    (void)sprintf(text + n, "%s\n{\"broken behind it\n", bad);
    write_file("x.jsonl", text, path, sizeof path);
    if (chat_name != NULL) {
        CHECK_OK(ctx, ds_chat_create(ctx, tok, chat_name, &chat));
    }
    const ds_dataset_params params = {
        .files = &file, .n_files = 1, .tokenizer = tok, .chat = chat, .seq_length = 64};
    char want[1024];
    (void)snprintf(want, sizeof want, "%s:%zu: ", path, good + 1);
    assert_int_equal(ds_dataset_open(ctx, &params, &data), status);
    if (strncmp(ds_ctx_error(ctx), want, strlen(want)) != 0 ||
        strstr(ds_ctx_error(ctx), says) == NULL) {
        fail_msg("%s\nlacks %s%s", ds_ctx_error(ctx), want, says);
    }
    ds_chat_destroy(&chat);
}

#define FIRST      "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}"
#define CHAT(more) "{\"messages\":[" FIRST more "]}"

static void messages_that_break_the_rule(void **state)
{
    (void)state;
    static const struct {
        const char *chat, *line, *says;
    } cases[] = {
        {"llama2", CHAT(",{\"role\":\"assistant\",\"content\":\"c\"}"),
         "messages[2] (role \"assistant\") does not fit: user and assistant alternate, the user "
         "first"},
        {"llama2", "{\"messages\":[{\"role\":\"assistant\",\"content\":\"c\"}]}",
         "the template raises: messages[0] (role \"assistant\") does not fit: user and assistant"},
        {"mistral-v0.2",
         CHAT(",{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"user\","
              "\"content\":\"c\"}"),
         "messages[3] (role \"user\") does not fit: user and assistant alternate"},
        {"llama2", CHAT(",{\"role\":\"tool\",\"content\":\"c\"}"),
         "messages[2] (role \"tool\") does not fit: it knows the roles system (as the first), "
         "user"},
        {"llama2", CHAT(",{\"role\":\"system\",\"content\":\"c\"}"),
         "messages[2] (role \"system\") does not fit: it knows the roles system (as the first), "
         "user"},
        {"mistral-v0.1", "{\"messages\":[{\"role\":\"system\",\"content\":\"c\"}," FIRST "]}",
         "the chat template mistral-v0.1: line 1, column 56: the template raises: messages[0] "
         "(role "
         "\"system\") does not fit: it takes no system message"},
        {"llama2", CHAT(",{\"role\":\"a\\u001b[1m\",\"content\":\"c\"}"),
         "messages[2] (role \"a?[1m\") does not fit: it knows the roles system"},
        {"chatml", "{\"messages\":[]}",
         "\"messages\" must be a list of messages; found an empty list"},
        {"chatml", CHAT(",\"c\""),
         "messages[2] must be an object with \"role\" and \"content\"; found a string"},
        {"chatml", CHAT(",{\"content\":\"c\"}"),
         "messages[2]: \"role\" must be a string; found nothing"},
        {"chatml", CHAT(",{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"),
         "messages[2] (role \"user\"): content[0] must be {\"type\": \"text\", \"text\": \"…\"}; "
         "found an object"},
        {"chatml", CHAT(",{\"role\":\"assistant\",\"content\":null}"), "dict has no \"content\""},
        {"chatml", "{\"messages\":\"hello\"}",
         "\"messages\" must be a list of messages; found a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        check_line(cases[i].chat, i, cases[i].line, DS_ERR_FORMAT, cases[i].says);
    }
    check_line(NULL, 3, CHAT(""), DS_ERR_ARG,
               "messages need a chat template, and the tokenizer has none: give "
               "--chat_template, such as chatml");
}

static void lines_of_a_wrong_shape(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"{\"text\": \"a\" \"b\"}", "column 16: '}' expected near '\"b\"'"},
        {"{\"text\": \"\xFF\"}", "column 10: unable to decode byte 0xff near '\"'"},
        {"[\"text\"]", "a row must be a JSON object; found a list"},
        {"{}",
         "expected \"text\", \"messages\", \"prompt\" and \"completion\", \"instruction\" and "
         "\"output\", or \"chosen\" and \"rejected\" (--column_map names other columns); found "
         "an empty object"},
        {"{\"question\":\"a\",\"output\":null}",
         "(--column_map names other columns); found the keys \"question\", \"output\" (null)"},
        {"{\"text\":null}", "found the keys \"text\" (null)"},
        {"{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1}",
         "(--column_map names other columns); found the keys \"a\", \"b\", \"c\", \"d\", …"},
        {"{\"text\":7}", "\"text\" must be a string; found a number"},
        {"{\"prompt\":\"a\"}",
         "\"prompt\" and \"completion\" must both be strings, or both lists of messages; "
         "found a string and nothing"},
        {"{\"completion\":\"a\"}",
         "\"prompt\" and \"completion\" must both be strings, or both lists of messages; "
         "found nothing and a string"},
        {"{\"prompt\":true,\"completion\":{}}",
         "\"prompt\" and \"completion\" must both be strings, or both lists of messages; "
         "found true or false and an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        check_line(NULL, 300 * i, cases[i].line, DS_ERR_FORMAT, cases[i].says);
    }
}

#define LOST                                                                                       \
    " is not read by the chat template and would be lost: take it out of the row, or choose "

/* What would change the text or the loss is not dropped. */
static void parts_that_would_be_lost(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {CHAT(
             ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"type\":\"function\"}]}"),
         "messages[2] (role \"assistant\"): \"tool_calls\"" LOST},
        {CHAT(",{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"r\"}"),
         "messages[2] (role \"assistant\"): \"reasoning_content\"" LOST},
        {CHAT(",{\"role\":\"assistant\",\"content\":\"\",\"weight\":0.5}"),
         "messages[2] (role \"assistant\"): \"weight\" is 0.5, and only 0 and 1 are supported"},
        {"{\"tools\":[{}],\"messages\":[" FIRST "]}", "\"tools\"" LOST},
        {"{\"documents\":[{}],\"messages\":[" FIRST "]}", "\"documents\"" LOST},
        {"{\"chat_template_kwargs\":7,\"messages\":[" FIRST "]}",
         "\"chat_template_kwargs\" must be an object"},
        {CHAT(",{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}"),
         "messages[2] (role \"user\"): content[0] is of the type \"image\", and only text is "
         "supported"},
        {"{\"prompt\":\"a\",\"completion\":\"b\",\"tools\":[{}]}",
         "\"tools\" is not supported here and would be lost"},
        {"{\"prompt\":\"a\",\"completion\":\"b\",\"rejected\":\"c\"}",
         "\"rejected\" is not supported here and would be lost"},
        {"{\"text\":\"a\",\"images\":[\"b\"]}",
         "\"images\" is not supported here and would be lost"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        check_line("chatml", i, cases[i].line,
                   strstr(cases[i].says, "must be") != NULL ? DS_ERR_FORMAT : DS_ERR_UNSUPPORTED,
                   cases[i].says);
    }
}

static char noted[512];

static void note(void *user, ds_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)snprintf(noted + strlen(noted), sizeof noted - strlen(noted), "%s\n", text);
}

/* Keys that no template and no trainer reads are said once each; null is no key. */
static void other_keys_are_noted_once(void **state)
{
    (void)state;
    static const char line[] =
        "{\"id\":7,\"tools\":null,\"chat_template_kwargs\":{\"quick\":true},\"messages\":[{"
        "\"role\":\"user\",\"content\":\"a\","
        "\"tool_calls\":null},{\"role\":\"assistant\",\"content\":\"b\",\"mood\":\"m\"}]}\n";
    char text[1024];
    char path[512];
    char want[2048];
    const char *file = path;
    ds_chat *chat = NULL;
    ds_dataset *data = NULL;
    (void)snprintf(text, sizeof text, "%s%s", line, line);
    write_file("noted.jsonl", text, path, sizeof path);
    CHECK_OK(ctx, ds_chat_create(ctx, tok, "chatml", &chat));
    const ds_dataset_params params = {
        .files = &file, .n_files = 1, .tokenizer = tok, .chat = chat, .seq_length = 64};
    CHECK_OK(ctx, ds_dataset_open(ctx, &params, &data));
    (void)snprintf(want, sizeof want,
                   "%s:1: chat_template_kwargs' \"quick\" is not read, here and in later lines\n"
                   "%s:1: a message's \"mood\" is not read, here and in later lines\n"
                   "%s:1: \"id\" is not read, here and in later lines\n",
                   path, path, path);
    assert_string_equal(noted, want);
    ds_dataset_close(&data);
    ds_chat_destroy(&chat);
}

/* The public call records the same text. */
static void a_rendered_chat_names_the_message(void **state)
{
    (void)state;
    static const ds_chat_message list[] = {{"user", "a", 1}, {"user", "b", 1}};
    ds_chat *chat = NULL;
    ds_chat_text text;
    CHECK_OK(ctx, ds_chat_create(ctx, tok, "llama2", &chat));
    CHECK_FAILS(ctx, ds_chat_render(chat, list, 2, 0, &text), DS_ERR_FORMAT,
                "messages[1] (role \"user\") does not fit: user and assistant alternate");
    ds_chat_destroy(&chat);
}

static int set_up(void **state)
{
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    char command[512];
    params.n_threads = 3;
    params.log = note;
    folder = scratch_make();
    (void)snprintf(command, sizeof command,
                   "cp %s/test/golden/data/tokenizer-llama2.json %s/tokenizer.json && "
                   "printf '{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}' > "
                   "%s/tokenizer_config.json",
                   DS_SOURCE_DIR, folder, folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    ds_tokenizer_close(&tok);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_that_break_the_rule),
        cmocka_unit_test(lines_of_a_wrong_shape),
        cmocka_unit_test(parts_that_would_be_lost),
        cmocka_unit_test(other_keys_are_noted_once),
        cmocka_unit_test(a_rendered_chat_names_the_message),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
