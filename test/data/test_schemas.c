/* SPDX-License-Identifier: Apache-2.0 */
/* data/schema: rows of every schema become the ids and the loss mask that TRL's preparation gives
 * (test/golden/data/schemas.json, made by make_schemas.py). */
#include "common/check.h"
#include "common/scratch.h"
#include "data/source.h"

#include <deepspeed/context.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;
static char *folder;

static void save(const char *name, const json_t *value)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    if (json_is_string(value)) {
        assert_true(fputs(json_string_value(value), stream) >= 0);
    } else {
        assert_int_equal(json_dumpf(value, stream, 0), 0);
    }
    assert_int_equal(fclose(stream), 0);
}

/* A model folder of a family. */
static ds_tokenizer *tokenizer_of(const json_t *golden, const json_t *family)
{
    char command[512];
    ds_tokenizer *tok = NULL;
    json_t *config = json_pack("{s:O, s:O}", "bos_token", json_object_get(family, "bos"),
                               "eos_token", json_object_get(family, "eos"));
    save("tokenizer_config.json", config);
    save("chat_template.jinja", json_object_get(golden, "template"));
    json_decref(config);
    (void)snprintf(command, sizeof command, "cp %s/test/golden/data/%s %s/tokenizer.json",
                   DS_SOURCE_DIR, json_string_value(json_object_get(family, "tokenizer")), folder);
    assert_int_equal(system(command), 0);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    return tok;
}

static void check_row(const ds_dataset_params *params, ds_tokenizer_scratch *scratch,
                      const json_t *row)
{
    char *text = json_dumps(json_object_get(row, "line"), 0);
    const json_t *ids = json_object_get(row, "ids");
    const json_t *mask = json_object_get(row, "mask");
    dsi_line line;
    dsi_line_tokenize(params, scratch, text, strlen(text), &line);
    if (line.status < 0 || line.n != json_array_size(ids)) {
        fail_msg("%s\n%s: %zu tokens, want %zu", text, line.message, (size_t)line.n,
                 json_array_size(ids));
    }
    for (size_t i = 0; i < line.n; ++i) {
        if ((json_int_t)line.ids[i] != json_integer_value(json_array_get(ids, i)) ||
            (json_int_t)line.counted[i] != json_integer_value(json_array_get(mask, i))) {
            fail_msg("%s\ntoken %zu is %u, counted %d", text, i, line.ids[i], line.counted[i]);
        }
    }
    assert_string_equal(dsi_schema_name(line.schema),
                        json_string_value(json_object_get(row, "schema")));
    if (line.schema == DSI_SCHEMA_PREFERENCE) {
        assert_int_equal(line.n_chosen, json_integer_value(json_object_get(row, "n_chosen")));
    }
    dsi_line_free(&line);
    free(text);
}

static void rows_as_trl_prepares_them(void **state)
{
    (void)state;
    json_error_t error;
    json_t *golden = json_load_file(DS_SOURCE_DIR "/test/golden/data/schemas.json", 0, &error);
    const json_t *families = json_object_get(golden, "families");
    size_t n = 0;
    for (size_t f = 0; f < json_array_size(families); ++f) {
        const json_t *family = json_array_get(families, f);
        const json_t *rows = json_object_get(family, "rows");
        ds_tokenizer_scratch *scratch = NULL;
        ds_chat *chat = NULL;
        ds_tokenizer *tok = tokenizer_of(golden, family);
        CHECK_OK(ctx, ds_chat_create(ctx, tok, NULL, &chat));
        CHECK_OK(ctx, ds_tokenizer_scratch_create(tok, 0, &scratch));
        const ds_dataset_params params = {.tokenizer = tok, .chat = chat, .append_eos = true};
        for (size_t i = 0; i < json_array_size(rows); ++i, ++n) {
            check_row(&params, scratch, json_array_get(rows, i));
        }
        ds_tokenizer_scratch_destroy(&scratch);
        ds_chat_destroy(&chat);
        ds_tokenizer_close(&tok);
    }
    assert_true(n >= 72);
    json_decref(golden);
}

static json_t *message(const char *role, const char *a, const char *b)
{
    return json_pack("{s:s, s:s++}", "role", role, "content", a, *a && *b ? "\n" : "", b);
}

static const char *text_of(const json_t *row, const char *field)
{
    const char *text = json_string_value(json_object_get(row, field));
    return text != NULL ? text : "";
}

/* The messages that an Alpaca row stands for; *answer_out: the last of them, apart. */
static json_t *chat_of(const json_t *row, json_t **answer_out)
{
    json_t *list = json_array();
    size_t i;
    json_t *turn;
    if (*text_of(row, "system") != '\0') {
        (void)json_array_append_new(list, message("system", text_of(row, "system"), ""));
    }
    json_array_foreach(json_object_get(row, "history"), i, turn)
    {
        (void)json_array_append_new(
            list, message("user", json_string_value(json_array_get(turn, 0)), ""));
        (void)json_array_append_new(
            list, message("assistant", json_string_value(json_array_get(turn, 1)), ""));
    }
    (void)json_array_append_new(
        list, message("user", text_of(row, "instruction"), text_of(row, "input")));
    *answer_out = message("assistant", text_of(row, "output"), "");
    return list;
}

/* An Alpaca row by the chat template is the chat that it stands for. */
static void check_as_chat(const ds_dataset_params *params, ds_tokenizer_scratch *scratch,
                          const json_t *row)
{
    ds_dataset_params as_chat = *params;
    json_t *answer = NULL;
    json_t *list = chat_of(row, &answer);
    const bool history = json_array_size(json_object_get(row, "history")) > 0;
    if (history) {
        (void)json_array_append(list, answer);
    }
    json_t *chat = history ? json_pack("{s:O}", "messages", list)
                           : json_pack("{s:O, s:[O]}", "prompt", list, "completion", answer);
    char *texts[2] = {json_dumps(row, 0), json_dumps(chat, 0)};
    dsi_line lines[2];
    as_chat.alpaca = DS_ALPACA_CHAT;
    for (int i = 0; i < 2; ++i) {
        dsi_line_tokenize(i == 0 ? &as_chat : params, scratch, texts[i], strlen(texts[i]),
                          &lines[i]);
    }
    if (lines[0].status != lines[1].status || lines[0].n != lines[1].n ||
        memcmp(lines[0].ids, lines[1].ids, lines[0].n * sizeof *lines[0].ids) != 0 ||
        memcmp(lines[0].counted, lines[1].counted, lines[0].n) != 0) {
        fail_msg("%s\nis not\n%s\n%s\n%s", texts[0], texts[1], lines[0].message, lines[1].message);
    }
    assert_int_equal(lines[0].schema, DSI_SCHEMA_ALPACA);
    assert_true(lines[0].status < 0 || lines[0].n > 0);
    for (int i = 0; i < 2; ++i) {
        dsi_line_free(&lines[i]);
        free(texts[i]);
    }
    json_decref(chat);
    json_decref(list);
    json_decref(answer);
}

static void alpaca_by_the_template(void **state)
{
    (void)state;
    json_error_t error;
    json_t *golden = json_load_file(DS_SOURCE_DIR "/test/golden/data/schemas.json", 0, &error);
    const json_t *families = json_object_get(golden, "families");
    size_t n = 0;
    for (size_t f = 0; f < json_array_size(families); ++f) {
        const json_t *rows = json_object_get(json_array_get(families, f), "rows");
        ds_tokenizer_scratch *scratch = NULL;
        ds_chat *chat = NULL;
        ds_tokenizer *tok = tokenizer_of(golden, json_array_get(families, f));
        CHECK_OK(ctx, ds_chat_create(ctx, tok, NULL, &chat));
        CHECK_OK(ctx, ds_tokenizer_scratch_create(tok, 0, &scratch));
        const ds_dataset_params params = {.tokenizer = tok, .chat = chat};
        for (size_t i = 0; i < json_array_size(rows); ++i) {
            const json_t *row = json_array_get(rows, i);
            if (strcmp(text_of(row, "schema"), "Alpaca") == 0) {
                check_as_chat(&params, scratch, json_object_get(row, "line"));
                ++n;
            }
        }
        ds_tokenizer_scratch_destroy(&scratch);
        ds_chat_destroy(&chat);
        ds_tokenizer_close(&tok);
    }
    assert_true(n >= 10);
    json_decref(golden);
}

/* The text of the tokens of a row that count: with the tokenizer "bytes" an id is a byte. */
static void check_counted(const char *template, const char *row, const char *counted,
                          const char *whole)
{
    ds_tokenizer *tok = NULL;
    ds_tokenizer_scratch *scratch = NULL;
    ds_chat *chat = NULL;
    dsi_line line;
    char found[256] = "";
    char all[256] = "";
    size_t n = 0;
    CHECK_OK(ctx, ds_tokenizer_open(ctx, "bytes", &tok));
    CHECK_OK(ctx, ds_chat_create(ctx, tok, template, &chat));
    CHECK_OK(ctx, ds_tokenizer_scratch_create(tok, 0, &scratch));
    const ds_dataset_params params = {.tokenizer = tok, .chat = chat};
    dsi_line_tokenize(&params, scratch, row, strlen(row), &line);
    assert_int_equal(line.status, DS_OK);
    assert_true(line.n < sizeof all);
    for (size_t i = 0; i < line.n; ++i) {
        all[i] = (char)line.ids[i];
        if (line.counted[i] != 0) {
            found[n++] = (char)line.ids[i];
        }
    }
    assert_string_equal(found, counted);
    assert_string_equal(all, whole);
    dsi_line_free(&line);
    ds_tokenizer_scratch_destroy(&scratch);
    ds_chat_destroy(&chat);
    ds_tokenizer_close(&tok);
}

/* Also where the template does not mark what the assistant says. */
static void turns_that_do_not_count(void **state)
{
    (void)state;
    check_counted("chatml",
                  "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"weight\":1},"
                  "{\"role\":\"assistant\",\"content\":\"b\",\"train\":false},"
                  "{\"role\":\"user\",\"content\":\"c\",\"train\":null},"
                  "{\"role\":\"assistant\",\"content\":\"d\"}]}",
                  "d<|im_end|>",
                  "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
                  "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n");
    check_counted("chatml",
                  "{\"system\":\"s\",\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},"
                  "{\"from\":\"gpt\",\"value\":\"b\",\"weight\":1.0},"
                  "{\"from\":\"human\",\"value\":\"c\"},"
                  "{\"from\":\"gpt\",\"value\":\"d\",\"weight\":0}]}",
                  "b<|im_end|>",
                  "<|im_start|>system\ns<|im_end|>\n"
                  "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
                  "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n");
}

/* chatml never says "text": transformers would fail, other templates print the list. */
static void parts_for_a_template_of_texts(void **state)
{
    (void)state;
    check_counted(
        "chatml",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"b\"}]},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"c\"}]}]}",
        "c<|im_end|>", "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n");
}

static int set_up(void **state)
{
    (void)state;
    folder = scratch_make();
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_as_trl_prepares_them), cmocka_unit_test(alpaca_by_the_template),
        cmocka_unit_test(turns_that_do_not_count), cmocka_unit_test(parts_for_a_template_of_texts)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
