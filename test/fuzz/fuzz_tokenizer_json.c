/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer: a tokenizer.json of any content. What opens must encode, decode and close. */
#include <deepspeed/context.h>
#include <deepspeed/tokenizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static ds_ctx *context(void)
{
    static ds_ctx *ctx; /* one for the run of the fuzzer */
    if (ctx == NULL) {
        ds_ctx_params params = ds_ctx_params_default();
        params.n_threads = 1;
        params.level = DS_LOG_ERROR;
        if (ds_ctx_create(&params, &ctx) < 0) {
            abort();
        }
    }
    return ctx;
}

static void use(const ds_tokenizer *tok)
{
    static const char text[] = "It's a test \xE2\x96\x81 of 2024\xC3\xA9\xFF <s>\n  x";
    ds_tokenizer_scratch *scratch = NULL;
    if (ds_tokenizer_scratch_create(tok, 4096, &scratch) < 0) {
        return;
    }
    ds_tokens tokens;
    const uint32_t flags[] = {0, DS_ENCODE_ADD_SPECIAL | DS_ENCODE_RANGES};
    for (size_t i = 0; i < 2; ++i) {
        if (ds_tokenizer_encode(tok, scratch, text, sizeof text - 1, flags[i], &tokens) >= 0) {
            char *back = NULL;
            size_t n = 0;
            if (ds_tokenizer_decode(tok, tokens.ids, tokens.n, DS_DECODE_REPAIR, &back, &n) >= 0) {
                free(back);
            }
        }
    }
    ds_tokenizer_scratch_destroy(&scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("tokenizer", 0);
    if (fd < 0 || (size > 0 && write(fd, data, size) != (ssize_t)size)) {
        abort();
    }
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ds_tokenizer *tok = NULL;
    if (ds_tokenizer_open(context(), path, &tok) >= 0) {
        use(tok);
        ds_tokenizer_close(&tok);
    } else if (*ds_ctx_error(context()) == '\0') {
        abort(); /* an error without a message */
    }
    (void)close(fd);
    return 0;
}
