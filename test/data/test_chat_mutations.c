/* SPDX-License-Identifier: Apache-2.0 */
/* data/chat: a template that is one token off a known one is rendered as transformers renders it,
 * or refused, which is rare; never as the known one (test/golden/data/chat_mutations.json, made by
 * make_chat_mutations.py). The share of refusals is printed. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/chat.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_BYTES = 1 << 14, MESSAGES = 8 };

static ds_ctx *ctx;
static char *folder;

/* The file's text with the edit made. */
static const char *edited(const json_t *one)
{
    static char text[TEMPLATE_BYTES];
    static char out[TEMPLATE_BYTES];
    const json_t *edit = json_object_get(one, "edit");
    const size_t at = (size_t)json_integer_value(json_array_get(edit, 0));
    const size_t gone = (size_t)json_integer_value(json_array_get(edit, 1));
    char path[512];
    (void)snprintf(path, sizeof path, "%s/test/golden/data/templates/%s", DS_SOURCE_DIR,
                   json_string_value(json_object_get(one, "file")));
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t n = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[n] = '\0';
    assert_true(at + gone <= n);
    const int written = snprintf(out, sizeof out, "%.*s%s%s", (int)at, text,
                                 json_string_value(json_array_get(edit, 2)), text + at + gone);
    assert_true(written > 0 && (size_t)written < sizeof out);
    return out;
}

static ds_tokenizer *tokenizer_with(const char *template)
{
    json_t *config = json_pack("{s:s, s:s, s:s}", "bos_token", "<BOS>", "eos_token", "<EOS>",
                               "chat_template", template);
    char path[96];
    (void)snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    ds_tokenizer *tok = NULL;
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    return tok;
}

static void digest(const ds_chat_text *text, char out[17])
{
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < text->size; ++i) {
        h = (h ^ (unsigned char)text->text[i]) * 0x100000001B3u;
    }
    (void)snprintf(out, 17, "%016" PRIx64, h);
}

static size_t messages_of(const json_t *conversation, ds_chat_message *messages)
{
    const size_t n = json_array_size(conversation);
    for (size_t i = 0; i < n && i < MESSAGES; ++i) {
        const json_t *one = json_array_get(conversation, i);
        const json_t *content = json_object_get(one, "content");
        messages[i] = (ds_chat_message){json_string_value(json_object_get(one, "role")),
                                        json_string_value(content), json_string_length(content)};
    }
    return n;
}

typedef struct tally {
    size_t equal, refused, both, different;
} tally;

static void check_text(const ds_chat *chat, const json_t *conversations, size_t i,
                       const json_t *one, tally *t)
{
    ds_chat_message messages[MESSAGES];
    const size_t n = messages_of(json_array_get(conversations, i / 2), messages);
    const json_t *want = json_array_get(json_object_get(one, "want"), i);
    ds_chat_text got;
    char seen[17] = "refused";
    if (chat != NULL &&
        ds_chat_render(chat, messages, n, i % 2 == 0 ? 0 : DS_CHAT_GENERATION_PROMPT, &got) >= 0) {
        digest(&got, seen);
        ds_chat_text_free(&got);
    }
    if (seen[0] == 'r') {
        t->refused += !json_is_null(want);
        t->both += json_is_null(want);
    } else if (json_is_null(want) || strcmp(seen, json_string_value(want)) != 0) {
        ++t->different;
        char *edit = json_dumps(json_object_get(one, "edit"), 0);
        (void)printf("%s %s, conversation %zu: differs from transformers'\n",
                     json_string_value(json_object_get(one, "file")), edit, i / 2);
        free(edit);
    } else {
        ++t->equal;
    }
}

static void one_token_off_is_no_other_text(void **state)
{
    (void)state;
    json_error_t error;
    json_t *golden =
        json_load_file(DS_SOURCE_DIR "/test/golden/data/chat_mutations.json", 0, &error);
    assert_non_null(golden);
    const json_t *conversations = json_object_get(golden, "conversations");
    tally t = {0};
    size_t k;
    const json_t *one;
    json_array_foreach(json_object_get(golden, "edits"), k, one)
    {
        ds_tokenizer *tok = tokenizer_with(edited(one));
        ds_chat *chat = NULL;
        if (ds_chat_create(ctx, tok, NULL, &chat) < 0) {
            chat = NULL;
        }
        for (size_t i = 0; i < 2 * json_array_size(conversations); ++i) {
            check_text(chat, conversations, i, one, &t);
        }
        ds_chat_destroy(&chat);
        ds_tokenizer_close(&tok);
    }
    (void)printf("%zu equal, %zu refused by both, %zu refused by us alone, %zu different\n",
                 t.equal, t.both, t.refused, t.different);
    assert_true(t.equal + t.both + t.refused > 5000);
    assert_int_equal(t.different, 0);
    assert_true(t.refused * 20 <= t.equal); /* at most one in twenty */
    json_decref(golden);
}

static int set_up(void **state)
{
    (void)state;
    folder = scratch_make();
    ds_tokenizer *tok = NULL;
    if (ds_ctx_create(NULL, &ctx) < 0 || ds_tokenizer_open(ctx, "bytes", &tok) < 0 ||
        ds_tokenizer_save(ctx, tok, folder) < 0) {
        return 1;
    }
    ds_tokenizer_close(&tok);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_token_off_is_no_other_text)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
