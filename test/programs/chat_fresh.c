/* SPDX-License-Identifier: Apache-2.0 */
/* Answers each question of a saved conversation with a fresh generator: chat_fresh FOLDER TEMPLATE
 * DTYPE LENGTH MAX_NEW TEMPERATURE, the conversation as JSON on standard input. Prints the answers
 * as JSON, a line each. test/tools/test_chat_talk.sh compares them with those of the conversation.
 */
#include <deepspeed/chat.h>
#include <deepspeed/infer.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct world {
    ds_ctx *ctx;
    ds_model *model;
    ds_tokenizer *tokenizer;
    ds_tokenizer_scratch *scratch;
    ds_chat *chat;
    ds_generator_params params;
    ds_sampling sampling;
    int64_t max_new;
} world;

/* The ids of messages [0,n) without the `left` oldest behind a system message. */
static ds_status encode(const world *w, json_t *all, size_t n, size_t left, ds_tokens *tokens_out)
{
    json_t *messages = json_array();
    const char *first = json_string_value(json_object_get(json_array_get(all, 0), "role"));
    const size_t system = strcmp(first, "system") == 0 ? 1 : 0;
    for (size_t i = 0; i < n; ++i) {
        if (i < system || i >= system + left) {
            (void)json_array_append(messages, json_array_get(all, i));
        }
    }
    json_t *chat = json_pack("{s:o}", "messages", messages);
    char *json = json_dumps(chat, 0);
    ds_chat_text text = {0};
    ds_status status =
        ds_chat_render_json(w->chat, json, strlen(json), DS_CHAT_GENERATION_PROMPT, &text);
    if (status >= 0) {
        status = ds_tokenizer_encode(w->tokenizer, w->scratch, text.text, text.size, 0, tokens_out);
        ds_chat_text_free(&text);
    }
    free(json);
    json_decref(chat);
    return status;
}

/* Draws up to the end of the turn, and prints the text as a whole. */
static ds_status answer(const world *w, const ds_tokens *prompt)
{
    enum { MOST = 4096 };
    uint32_t ids[MOST];
    size_t n = 0;
    bool ended = false;
    char *text = NULL;
    size_t size = 0;
    ds_generator *generator = NULL;
    ds_status status = ds_generator_create(w->ctx, &w->params, &generator);
    status = status < 0 ? status : ds_generator_prompt(generator, prompt->ids, prompt->n);
    for (int64_t drawn = 0; status >= 0 && !ended && drawn < w->max_new && n < MOST &&
                            ds_generator_length(generator) < w->params.max_length;
         ++drawn) {
        status = ds_generator_next(generator, &w->sampling, &ids[n]);
        ended = ds_tokenizer_is_eos(w->tokenizer, ids[n]);
        n += !ended && ids[n] < ds_tokenizer_vocab_size(w->tokenizer);
    }
    ds_generator_destroy(&generator);
    status = status < 0
                 ? status
                 : ds_tokenizer_decode(w->tokenizer, ids, n,
                                       DS_DECODE_SKIP_SPECIAL | DS_DECODE_REPAIR, &text, &size);
    json_t *said = json_stringn(text, size);
    (void)json_dumpf(said, stdout, JSON_ENCODE_ANY);
    (void)putchar('\n');
    json_decref(said);
    free(text);
    return status;
}

static ds_status answer_all(const world *w, json_t *all)
{
    const int64_t quarter = w->params.max_length / 4;
    const int64_t room = w->max_new < quarter ? w->max_new : quarter;
    const char *first = json_string_value(json_object_get(json_array_get(all, 0), "role"));
    const size_t system = strcmp(first, "system") == 0 ? 1 : 0;
    size_t left = 0;
    for (size_t i = system + 1; i < json_array_size(all); i += 2) {
        ds_tokens tokens;
        DS_TRY(encode(w, all, i, left, &tokens));
        while ((int64_t)tokens.n + room > w->params.max_length && system + left + 1 < i) {
            left += 2;
            DS_TRY(encode(w, all, i, left, &tokens));
        }
        DS_TRY(answer(w, &tokens));
    }
    return DS_OK;
}

int main(int argc, char **argv)
{
    world w = {0};
    char path[4096];
    if (argc != 7 || ds_ctx_create(NULL, &w.ctx) < 0) {
        return 2;
    }
    (void)snprintf(path, sizeof path, "%s/config.json", argv[1]);
    json_t *root = json_loadf(stdin, 0, NULL);
    ds_status status = ds_model_from_config(w.ctx, path, &w.model);
    status = status < 0 ? status : ds_tokenizer_open(w.ctx, argv[1], &w.tokenizer);
    status = status < 0 ? status : ds_tokenizer_scratch_create(w.tokenizer, 0, &w.scratch);
    status = status < 0 ? status : ds_chat_create(w.ctx, w.tokenizer, argv[2], &w.chat);
    w.params = (ds_generator_params){.model = w.model,
                                     .weights = argv[1],
                                     .dtype = ds_dtype_from_name(argv[3]),
                                     .max_length = strtoll(argv[4], NULL, 10)};
    w.max_new = strtoll(argv[5], NULL, 10);
    w.sampling = (ds_sampling){.temperature = strtod(argv[6], NULL), .seed = 42};
    status = status < 0 ? status : answer_all(&w, json_object_get(root, "messages"));
    if (status < 0) {
        (void)fprintf(stderr, "chat_fresh: %s\n", ds_ctx_error(w.ctx));
    }
    json_decref(root);
    ds_chat_destroy(&w.chat);
    ds_tokenizer_scratch_destroy(&w.scratch);
    ds_tokenizer_close(&w.tokenizer);
    ds_model_destroy(&w.model);
    ds_ctx_destroy(&w.ctx);
    return status < 0;
}
