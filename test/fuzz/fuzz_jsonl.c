/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of training text: the first byte chooses a tokenizer, columns and whether bad rows are
 * left out, the second template, file kind and how samples that are too long are handled; the rest
 * is a .jsonl or a .txt. Run from the top of the sources: it reads test/golden/data. */
#include "fuzz/fuzz_rows.h"

#include <deepspeed/chat.h>

enum { N_TOKENIZERS = 7, N_CHATS = 32, LENGTH = 24 };

typedef struct subject {
    ds_tokenizer *tokenizer;
    ds_chat *chats[N_CHATS]; /* templates that this tokenizer can have */
    size_t n_chats;
} subject;

static const subject *subjects(void)
{
    static const char *const names[N_TOKENIZERS] = {"bytes",   "llama3", "qwen2", "llama2",
                                                    "mistral", "gpt2",   "odd"};
    static subject all[N_TOKENIZERS]; /* opened once for the run of the fuzzer */
    for (size_t i = 0; i < N_TOKENIZERS && all[i].tokenizer == NULL; ++i) {
        char path[256];
        (void)snprintf(path, sizeof path, "test/golden/data/tokenizer-%s.json", names[i]);
        fuzz_require(
            ds_tokenizer_open(fuzz_context(), i == 0 ? "bytes" : path, &all[i].tokenizer) >= 0,
            ds_ctx_error(fuzz_context()));
        for (const char *const *name = ds_chat_names(); *name != NULL; ++name) {
            fuzz_require(all[i].n_chats < N_CHATS, "chats");
            all[i].n_chats += ds_chat_create(fuzz_context(), all[i].tokenizer, *name,
                                             &all[i].chats[all[i].n_chats]) >= 0;
        }
    }
    return all;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    const subject *s = &subjects()[data[0] % N_TOKENIZERS];
    const bool text = data[1] % 16 == 15;
    const char *path = fuzz_put(text ? "d.txt" : "d.jsonl", data + 2, size - 2);
    const char *files[2] = {path, path};
    const ds_dataset_params params = {
        .files = files,
        .n_files = 1 + (data[0] & 0x80) / 0x80,
        .tokenizer = s->tokenizer,
        .chat = s->n_chats > 0 ? s->chats[data[1] / 4 % s->n_chats] : NULL,
        .seq_length = LENGTH,
        .too_long = data[1] & 1 ? DS_TOO_LONG_DROP : DS_TOO_LONG_TRUNCATE,
        .append_eos = (data[1] & 2) != 0,
        .column_map = data[0] & 0x40 ? "text=t,prompt=p,messages=m" : NULL,
        .skip_bad = data[0] & 0x20 ? 3 : 0};
    ds_dataset *dataset = NULL;
    if (ds_dataset_open(fuzz_context(), &params, &dataset) >= 0) {
        fuzz_require(ds_dataset_get_info(dataset).max_id < ds_tokenizer_vocab_size(s->tokenizer),
                     "an id beyond the vocabulary");
        fuzz_walk(dataset, 2, LENGTH);
        ds_dataset_close(&dataset);
    } else {
        fuzz_require(*ds_ctx_error(fuzz_context()) != '\0', "an error without a message");
    }
    return 0;
}
