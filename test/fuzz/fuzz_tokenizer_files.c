/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of a tokenizer's folder: the parts are vocab.json, merges.txt, tokenizer_config.json,
 * special_tokens_map.json, generation_config.json, chat_template.jinja, added_tokens.json,
 * config.json and tokenizer.json (without which the first two count), separated by "%%%%"; an
 * empty part is an absent file. What opens encodes, decodes, and chooses its chat template. */
#include "fuzz/fuzz_files.h"

#include <deepspeed/chat.h>

static void use(const ds_tokenizer *tok)
{
    static const char text[] = "It's a test \xE2\x96\x81 of 2024\xC3\xA9\xFF <s>\n  x";
    static const ds_chat_message messages[2] = {{"user", "Hi", 2}, {"assistant", "Yes", 3}};
    ds_tokenizer_scratch *scratch = NULL;
    ds_chat *chat = NULL;
    ds_chat_text rendered;
    ds_tokens tokens;
    if (ds_tokenizer_scratch_create(tok, 4096, &scratch) >= 0 &&
        ds_tokenizer_encode(tok, scratch, text, sizeof text - 1, DS_ENCODE_ADD_SPECIAL, &tokens) >=
            0) {
        char *back = NULL;
        size_t n = 0;
        for (size_t i = 0; i < tokens.n; ++i) {
            fuzz_require(tokens.ids[i] < ds_tokenizer_vocab_size(tok), "an id out of range");
        }
        fuzz_require(ds_tokenizer_decode(tok, tokens.ids, tokens.n, 0, &back, &n) >= 0, "decode");
        free(back);
    }
    ds_tokenizer_scratch_destroy(&scratch);
    if (ds_chat_create(fuzz_context(), tok, NULL, &chat) >= 0 &&
        ds_chat_render(chat, messages, 2, 0, &rendered) >= 0) {
        ds_chat_text_free(&rendered);
    }
    ds_chat_destroy(&chat);
    fuzz_require(ds_tokenizer_bos_id(tok) < ds_tokenizer_vocab_size(tok) &&
                     ds_tokenizer_eos_id(tok) < ds_tokenizer_vocab_size(tok) &&
                     ds_tokenizer_pad_id(tok) < ds_tokenizer_vocab_size(tok),
                 "a special id is out of range");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"vocab.json",
                                        "merges.txt",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "generation_config.json",
                                        "chat_template.jinja",
                                        "added_tokens.json",
                                        "config.json",
                                        "tokenizer.json"};
    fuzz_input input = {data, size, true};
    const uint8_t *part = NULL;
    size_t n = 0;
    ds_tokenizer *tok = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        if (fuzz_part(&input, &part, &n) && n > 0) {
            (void)fuzz_put(names[i], part, n);
        } else {
            fuzz_drop(names[i]);
        }
    }
    if (ds_tokenizer_open(fuzz_context(), fuzz_dir.path, &tok) >= 0) {
        use(tok);
        ds_tokenizer_close(&tok);
    } else {
        fuzz_require(*ds_ctx_error(fuzz_context()) != '\0', "an error without a message");
    }
    return 0;
}
