/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of SentencePiece's model files: a byte that says which class the folder names, and the
 * model. What opens encodes and decodes. */
#include "fuzz/fuzz_files.h"

#include <deepspeed/tokenizer.h>

static void use(const ds_tokenizer *tok)
{
    static const char text[] = "It's  a test \xE2\x96\x81 of 2024\xC3\xA9\xFF <s> aaaaa\n  x ";
    ds_tokenizer_scratch *scratch = NULL;
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
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const configs[] = {
        "{}", "{\"tokenizer_class\":\"LlamaTokenizer\",\"add_bos_token\":true}",
        "{\"tokenizer_class\":\"T5Tokenizer\",\"extra_ids\":3}",
        "{\"legacy\":false,\"added_tokens_decoder\":{\"3\":{\"content\":\"new\"},"
        "\"5\":{\"content\":\"a\"}}}"};
    ds_tokenizer *tok = NULL;
    if (size == 0) {
        return 0;
    }
    const char *config = configs[data[0] % (sizeof configs / sizeof *configs)];
    (void)fuzz_put("tokenizer_config.json", (const uint8_t *)config, strlen(config));
    (void)fuzz_put("tokenizer.model", data + 1, size - 1);
    if (ds_tokenizer_open(fuzz_context(), fuzz_dir.path, &tok) >= 0) {
        use(tok);
        ds_tokenizer_close(&tok);
    } else {
        fuzz_require(*ds_ctx_error(fuzz_context()) != '\0', "an error without a message");
    }
    return 0;
}
