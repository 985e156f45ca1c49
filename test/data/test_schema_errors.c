/* SPDX-License-Identifier: Apache-2.0 */
/* data/schema: rows that a schema does not allow are named by file and line with the column and the
 * reason; --column_map and what it chooses; --skip_bad leaves rows out and counts them.
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
static ds_chat *chat;
static char *folder;
static char noted[4096];

static void note(void *user, ds_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)snprintf(noted + strlen(noted), sizeof noted - strlen(noted), "%s\n", text);
}

/* Opens a file of this text; "%s" of `says` in an error or the notices is its path. */
static ds_status open_text(const char *text, const char *column_map, uint64_t skip_bad,
                           ds_dataset **data)
{
    static char path[512];
    const char *file = path;
    (void)snprintf(path, sizeof path, "%s/x.jsonl", folder);
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_true(fputs(text, stream) >= 0);
    assert_int_equal(fclose(stream), 0);
    noted[0] = '\0';
    const ds_dataset_params params = {.files = &file,
                                      .n_files = 1,
                                      .tokenizer = tok,
                                      .chat = chat,
                                      .seq_length = 512,
                                      .column_map = column_map,
                                      .skip_bad = skip_bad};
    *data = NULL;
    return ds_dataset_open(ctx, &params, data);
}

static void check_bad(const char *line, ds_status status, const char *says)
{
    char text[2048];
    char want[512];
    ds_dataset *data = NULL;
    (void)snprintf(text, sizeof text, "{\"prompt\":\"a\",\"completion\":\"b\"}\n%s\n", line);
    (void)snprintf(want, sizeof want, "%s/x.jsonl:2: ", folder);
    const ds_status found = open_text(text, NULL, 0, &data);
    ds_dataset_close(&data);
    if (found != status || strncmp(ds_ctx_error(ctx), want, strlen(want)) != 0 ||
        strstr(ds_ctx_error(ctx), says) == NULL) {
        fail_msg("%s\nstatus %d, %s\nlacks %s%s", line, found, ds_ctx_error(ctx), want, says);
    }
}

#define CHAT(key, messages) "{\"" key "\":[" messages "]}"
#define USER                "{\"role\":\"user\",\"content\":\"a\"}"
#define HUMAN               "{\"from\":\"human\",\"value\":\"a\"}"
#define SAID                "{\"role\":\"assistant\",\"content\":\"b\"}"

static void rows_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {CHAT("conversations", HUMAN ",{\"from\":\"bot\",\"value\":\"b\"}"),
         "conversations[1] (from \"bot\"): \"from\" must be human, user, gpt, assistant, system"},
        {CHAT("conversations", "{\"from\":7,\"value\":\"b\"}"),
         "conversations[0]: \"from\" must be a string; found a number"},
        {CHAT("conversations", "{\"from\":\"gpt\",\"role\":\"user\",\"value\":\"b\"}"),
         "conversations[0]: both \"role\" and \"from\" are there"},
        {CHAT("messages", "{\"role\":\"user\",\"content\":\"a\",\"value\":\"b\"}"),
         "messages[0] (role \"user\"): both \"content\" and \"value\" are there"},
        {CHAT("conversations", HUMAN ",{\"from\":\"function_call\",\"value\":\"call it\"}"),
         "conversations[1].value is a text that is no JSON: its line 1, column"},
        {CHAT("conversations",
              HUMAN ",{\"from\":\"function_call\",\"value\":\"{\\\"name\\\":7}\"}"),
         "conversations[1] (from \"function_call\"): a call must be {\"name\": \"…\", "
         "\"arguments\": {…}}; found an object"},
        {CHAT("conversations", HUMAN ",{\"from\":\"function_call\"}"),
         "a call must be {\"name\": \"…\", \"arguments\": {…}}; found nothing"},
        {CHAT("messages", USER ",{\"role\":\"assistant\",\"content\":\"b\",\"weight\":\"1\"}"),
         "messages[1] (role \"assistant\"): \"weight\" must be 0 or 1; found a string"},
        {CHAT("messages", USER ",{\"role\":\"assistant\",\"content\":\"b\",\"train\":1}"),
         "messages[1] (role \"assistant\"): \"train\" must be true or false; found a number"},
        {CHAT("messages",
              USER ",{\"role\":\"assistant\",\"content\":\"b\",\"train\":true,\"weight\":0}"),
         "messages[1] (role \"assistant\"): \"weight\" says otherwise than \"train\""},
        {CHAT("messages", "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":7}]}"),
         "content[0] must be {\"type\": \"text\", \"text\": \"…\"}; found an object"},
        {CHAT("messages", "{\"role\":\"user\",\"content\":[\"a\"]}"),
         "content[0] must be {\"type\": \"text\", \"text\": \"…\"}; found a string"},
        {CHAT("messages", "{\"role\":\"user\",\"content\":7}"),
         "content must be a string, a list of parts or null; found a number"},
        {"{\"messages\":\"[{'role': 'user'}]\"}",
         "messages is a text that is no JSON: its line 1, column 3"},
        {"{\"messages\":\"[]\"}", "\"messages\" must be a list of messages; found an empty list"},
        {"{\"messages\":{\"role\":\"user\"}}",
         "\"messages\" must be a list of messages; found an object"},
        {"{\"tools\":\"none\",\"messages\":[" USER "," SAID "]}",
         "tools is a text that is no JSON"},
        {"{\"tools\":[7],\"messages\":[" USER "," SAID "]}",
         "tools[0] must be an object; found a number"},
        {"{\"tools\":{\"name\":\"a\"},\"messages\":[" USER "," SAID "]}",
         "\"tools\" must be a list; found an object"},
        {CHAT("messages", USER ",{\"role\":\"assistant\",\"tool_calls\":\"[\"}"),
         "messages[1].tool_calls is a text that is no JSON"},
        {"{\"system\":7,\"messages\":[" USER "," SAID "]}",
         "\"system\" must be a string; found a number"},
        {"{\"instruction\":\"a\",\"output\":7}",
         "\"instruction\" and \"output\" must both be strings; found a string and a number"},
        {"{\"instruction\":\"a\",\"output\":\"b\",\"input\":[\"c\"]}",
         "\"input\" must be a string; found a list"},
        {"{\"instruction\":\"a\",\"output\":\"b\",\"history\":{}}",
         "\"history\" must be a list; found an object"},
        {"{\"instruction\":\"a\",\"output\":\"b\",\"history\":[[\"c\",\"d\"],[\"e\"]]}",
         "history[1] must be [\"instruction\", \"answer\"]; found a list"},
        {"{\"prompt\":[" USER "],\"completion\":\"b\"}",
         "\"prompt\" and \"completion\" must both be strings, or both lists of messages; found a "
         "list and a string"},
        {"{\"prompt\":[],\"completion\":[" SAID "]}",
         "\"prompt\" must be a list of messages; found an empty list"},
        {"{\"chosen\":\"a\"}", "\"chosen\" and \"rejected\" must both be strings, or both lists of "
                               "messages; found a string and nothing"},
        {"{\"chosen\":[" USER "],\"rejected\":\"b\"}",
         "\"chosen\" and \"rejected\" must both be strings, or both lists of messages; found a "
         "list and a string"},
        {"{\"chosen\":[" USER "],\"rejected\":[" SAID "]}",
         "\"chosen\" and \"rejected\" have no first message in common"},
        {"{\"text\":\"a\",\"messages\":[" USER "," SAID "]}",
         "two schemas fit, messages by \"messages\" and text by \"text\": choose by --column_map "
         "messages=messages or text=text"},
        {"{\"instruction\":\"a\",\"output\":\"b\",\"text\":\"c\"}",
         "two schemas fit, Alpaca by \"instruction\" and text by \"text\""},
        {"{\"prompt\":\"a\",\"completion\":\"b\",\"chosen\":\"c\",\"rejected\":\"d\"}",
         "two schemas fit, preference by \"chosen\" and prompt-completion by \"prompt\""},
        {"{\"conversations\":[" HUMAN "],\"messages\":[" USER "]}",
         "two schemas fit, messages by \"messages\" and messages by \"conversations\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        check_bad(cases[i].line, DS_ERR_FORMAT, cases[i].says);
    }
}

static void rows_that_are_not_supported(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {CHAT("messages", "{\"role\":\"user\",\"content\":\"a\",\"train\":true}," SAID),
         "messages[0] (role \"user\"): is to count in the loss, and only turns of the assistant"},
        {"{\"prompt\":[" USER "],\"completion\":[{\"role\":\"assistant\",\"content\":\"b\","
         "\"train\":false}]}",
         "completion[0] (role \"assistant\"): \"train\" and \"weight\" choose among the turns"},
        {CHAT("messages", "{\"role\":\"user\",\"content\":[{\"type\":\"audio\"}]}," SAID),
         "messages[0] (role \"user\"): content[0] is of the type \"audio\""},
        {"{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}",
         "a row of the schema preference, which is for preference training (--objective dpo, "
         "kto and the like)"},
        {"{\"prompt\":\"a\",\"completion\":\"b\",\"label\":false}",
         "a row of the schema unpaired preference"},
        {"{\"prompt\":\"a\",\"completion\":\"b\",\"images\":[\"c.png\"]}",
         "\"images\" is not supported here and would be lost"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        check_bad(cases[i].line, DS_ERR_UNSUPPORTED, cases[i].says);
    }
}

/* ---- columns ---- */

static uint64_t tokens_of(const char *text, const char *column_map)
{
    ds_dataset *data = NULL;
    CHECK_OK(ctx, open_text(text, column_map, 0, &data));
    const uint64_t n = ds_dataset_get_info(data).n_tokens;
    ds_dataset_close(&data);
    return n;
}

static void columns_stand_for_fields(void **state)
{
    (void)state;
    static const char plain[] = "{\"prompt\":\"abc\",\"completion\":\"de\"}\n";
    static const char mapped[] = "{\"a,b\":\"abc\",\"A: \":\"de\",\"completion\":\"other\"}\n";
    assert_int_equal(tokens_of(mapped, "prompt=a,b,completion=A: "), tokens_of(plain, NULL));
    assert_non_null(strstr(noted, "the column \"completion\" is not read"));
    /* two columns change places */
    assert_int_equal(tokens_of("{\"completion\":\"abc\",\"prompt\":\"de\"}\n",
                               "prompt=completion,completion=prompt"),
                     tokens_of(plain, NULL));
    /* a mapped field chooses among schemas, also under its own name */
    static const char both[] = "{\"text\":\"abcdefgh\",\"prompt\":\"abc\",\"completion\":\"de\"}\n";
    assert_int_equal(tokens_of(both, "prompt=prompt"), tokens_of(plain, NULL));
    /* what is empty is not there */
    assert_int_equal(tokens_of("{\"text\":\"\",\"messages\":[],\"prompt\":\"abc\",\"completion\":"
                               "\"de\"}\n",
                               NULL),
                     tokens_of(plain, NULL));
    assert_int_equal(tokens_of(both, "text=text"), tokens_of("{\"text\":\"abcdefgh\"}\n", NULL));
}

static void maps_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *map, *says;
    } cases[] = {
        {"", "--column_map : expected FIELD=COLUMN,… with the fields text, messages"},
        {"txt=a", "--column_map txt=a: expected FIELD=COLUMN,… with the fields text, messages"},
        {"text=", "--column_map text=: text= names no column"},
        {"text=a,text=b", "--column_map text=a,text=b: text is there twice"},
        {"text=a,prompt=a", "--column_map text=a,prompt=a: a is there twice"},
        {"text=a,system=b", "x.jsonl: no row has the column \"b\" of --column_map"},
        {"text=a,system=c", "--column_map system=c: rows of the schema text have no \"system\""},
        {"text=b", "x.jsonl:1: expected \"text\", \"messages\", "},
        {"messages=a", "x.jsonl:1: \"a\" must be a list of messages; found a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        ds_dataset *data = NULL;
        assert_true(open_text("{\"a\":\"some text\",\"c\":\"d\"}\n", cases[i].map, 0, &data) < 0);
        if (strstr(ds_ctx_error(ctx), cases[i].says) == NULL) {
            fail_msg("%s: %s\nlacks %s", cases[i].map, ds_ctx_error(ctx), cases[i].says);
        }
    }
}

/* ---- rows left out ---- */

#define GOOD "{\"prompt\":\"a\",\"completion\":\"b\"}\n"
static const char three_bad[] = GOOD "{\"prompt\":7}\n" GOOD "{broken\n" GOOD "[]\n" GOOD;

static void bad_rows_are_left_out_and_counted(void **state)
{
    (void)state;
    ds_dataset *data = NULL;
    char want[512];
    CHECK_OK(ctx, open_text(three_bad, NULL, 3, &data));
    assert_int_equal(ds_dataset_get_info(data).n_bad, 3);
    assert_int_equal(ds_dataset_get_info(data).n_documents, 4);
    (void)snprintf(want, sizeof want,
                   "%s/x.jsonl:2: left out: \"prompt\" and \"completion\" must both be strings, or "
                   "both lists of messages; found a number and nothing\n"
                   "%s/x.jsonl:4: left out: column 7: ",
                   folder, folder);
    if (strncmp(noted, want, strlen(want)) != 0) {
        fail_msg("%s\nbegins not with %s", noted, want);
    }
    ds_dataset_close(&data);
    CHECK_FAILS(
        ctx, open_text(three_bad, NULL, 2, &data), DS_ERR_FORMAT,
        "x.jsonl:6: a row must be a JSON object; found an empty list (and 2 bad rows before");
    CHECK_FAILS(ctx, open_text(three_bad, NULL, 0, &data), DS_ERR_FORMAT, "x.jsonl:2: \"prompt\"");
}

/* Rows for another objective, or a template that is not there, is no fault of one row. */
static void not_every_error_is_a_bad_row(void **state)
{
    (void)state;
    ds_dataset *data = NULL;
    CHECK_FAILS(
        ctx,
        open_text(GOOD "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}\n", NULL, 9, &data),
        DS_ERR_UNSUPPORTED, "preference training");
    ds_chat *kept = chat;
    chat = NULL;
    CHECK_FAILS(ctx, open_text(GOOD CHAT("messages", USER), NULL, 9, &data), DS_ERR_ARG,
                "messages need a chat template");
    chat = kept;
}

static int set_up(void **state)
{
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 3;
    params.log = note;
    folder = scratch_make();
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, "bytes", &tok));
    CHECK_OK(ctx, ds_chat_create(ctx, tok, "chatml", &chat));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    ds_chat_destroy(&chat);
    ds_tokenizer_close(&tok);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_are_wrong),
        cmocka_unit_test(rows_that_are_not_supported),
        cmocka_unit_test(columns_stand_for_fields),
        cmocka_unit_test(maps_that_are_wrong),
        cmocka_unit_test(bad_rows_are_left_out_and_counted),
        cmocka_unit_test(not_every_error_is_a_bad_row),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
