/* SPDX-License-Identifier: Apache-2.0 */
/* data/schema: rows of every schema become the ids and the loss mask that TRL's preparation gives
 * (test/golden/data/schemas.json, made by make_schemas.py). */
#include "common/check.h"
#include "data/source.h"

#include <deepspeed/context.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ds_ctx *ctx;
static char folder[64];

static void save(const char *name, const json_t *value)
{
    char path[128];
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
    (void)strcpy(folder, "/tmp/ds_schemas_XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[96];
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_as_trl_prepares_them),
                                       cmocka_unit_test(turns_that_do_not_count),
                                       cmocka_unit_test(parts_for_a_template_of_texts)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
