/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer: any text through the tokenizers of test/golden/data. The first byte chooses one.
 *
 * Checked: ranges ascend within the text, remembered words change nothing, a byte-level tokenizer
 * gives the text back, streamed decoding equals decoding at once (but of bad bytes under byte
 * fallback), and the text cut at every safe place has the same ids.
 */
#include "data/tokenizer.h"

#include <deepspeed/context.h>
#include <deepspeed/tokenizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DS_SOURCE_DIR
#define DS_SOURCE_DIR "." /* run from the top of the sources */
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_TOKENIZERS = 12 };
static const char *const names[N_TOKENIZERS] = {"gpt2",          "llama3",  "qwen2",   "gpt4o",
                                                "llama2",        "mistral", "unknown", "odd",
                                                "llama2-legacy", "bytes",   "bert",    "bert-odd"};

typedef struct subject {
    ds_tokenizer *tok;
    ds_tokenizer_scratch *scratch;
} subject;

static void require(bool condition, const char *what)
{
    if (!condition) {
        (void)fprintf(stderr, "fuzz_tokenizer_encode: %s\n", what);
        abort();
    }
}

static subject *subjects(void)
{
    static subject all[N_TOKENIZERS]; /* opened once for the run of the fuzzer */
    static ds_ctx *ctx;
    for (size_t i = 0; ctx == NULL && i < 1; ++i) {
        ds_ctx_params params = ds_ctx_params_default();
        params.n_threads = 1;
        require(ds_ctx_create(&params, &ctx) >= 0, "context");
    }
    for (size_t i = 0; i < N_TOKENIZERS && all[i].tok == NULL; ++i) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/test/golden/data/tokenizer-%s.json", DS_SOURCE_DIR,
                       names[i]);
        const char *from = strcmp(names[i], "bytes") == 0 ? "bytes" : path;
        require(ds_tokenizer_open(ctx, from, &all[i].tok) >= 0, ds_ctx_error(ctx));
        require(ds_tokenizer_scratch_create(all[i].tok, 0, &all[i].scratch) >= 0, "scratch");
    }
    return all;
}

/* Under byte fallback one bad byte spoils the good ones beside it when all are decoded at once, and
 * a stream has given those already. */
static bool may_differ(const ds_tokenizer *tok, const uint32_t *ids, size_t n, const char *repaired,
                       size_t size)
{
    char *raw = NULL;
    size_t n_raw = 0;
    require(ds_tokenizer_decode(tok, ids, n, 0, &raw, &n_raw) >= 0, "decode");
    const bool bad = n_raw != size || memcmp(raw, repaired, size) != 0;
    free(raw);
    return tok->falls_back && bad;
}

static void check_stream(const ds_tokenizer *tok, const uint32_t *ids, size_t n)
{
    char *whole = NULL;
    size_t size = 0;
    require(ds_tokenizer_decode(tok, ids, n, DS_DECODE_REPAIR, &whole, &size) >= 0, "decode");
    ds_detokenizer *decoder = NULL;
    require(ds_detokenizer_create(tok, 0, &decoder) >= 0, "decoder");
    const bool free_to_differ = may_differ(tok, ids, n, whole, size);
    size_t at = 0;
    for (size_t i = 0; i <= n; ++i) {
        const char *piece;
        size_t n_piece;
        require((i < n ? ds_detokenizer_push(decoder, ids[i], &piece, &n_piece)
                       : ds_detokenizer_flush(decoder, &piece, &n_piece)) >= 0,
                "stream");
        require(free_to_differ || (at + n_piece <= size && memcmp(whole + at, piece, n_piece) == 0),
                "streamed text differs");
        at += n_piece;
    }
    require(free_to_differ || at == size, "streamed text is shorter");
    ds_detokenizer_destroy(&decoder);
    free(whole);
}

static void check_back(const ds_tokenizer *tok, const uint32_t *ids, size_t n, const char *text,
                       size_t n_text)
{
    char *back = NULL;
    size_t size = 0;
    require(ds_tokenizer_decode(tok, ids, n, 0, &back, &size) >= 0, "decode");
    require(size == n_text && memcmp(back, text, size) == 0, "round trip");
    free(back);
}

static void check_parts(const subject *s, const uint32_t *ids, size_t n_ids, const char *text,
                        size_t n, uint32_t flags)
{
    size_t done = 0;
    for (size_t at = 0; at < n;) {
        ds_tokens tokens;
        const size_t size = dsi_tok_next_cut(s->tok, text + at, n - at, 1);
        const uint32_t part =
            (at > 0 ? DSI_ENCODE_CONTINUES : 0u) | (at + size < n ? DSI_ENCODE_GOES_ON : 0u);
        require(size > 0 && at + size <= n, "a place within the text");
        require(ds_tokenizer_encode(s->tok, s->scratch, text + at, size, flags | part, &tokens) >=
                    0,
                "encode a part");
        require(done + tokens.n <= n_ids &&
                    (tokens.n == 0 || memcmp(ids + done, tokens.ids, tokens.n * sizeof *ids) == 0),
                "ids of the parts differ");
        done += tokens.n;
        at += size;
    }
    require(done == n_ids, "ids of the parts are fewer");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    const size_t chosen = data[0] % N_TOKENIZERS;
    const subject *s = &subjects()[chosen];
    const char *text = (const char *)data + 1;
    const size_t n = size - 1;
    const uint32_t extra = data[0] & 0x80 ? DS_ENCODE_NO_SPECIAL_PARSE : 0;
    ds_tokens tokens;
    require(ds_tokenizer_encode(s->tok, s->scratch, text, n, extra, &tokens) >= 0, "encode");
    const size_t n_ids = tokens.n;
    uint32_t *ids = malloc((n_ids + 1) * sizeof *ids);
    require(ids != NULL, "memory");
    if (n_ids > 0) {
        memcpy(ids, tokens.ids, n_ids * sizeof *ids);
    }
    require(ds_tokenizer_encode(s->tok, s->scratch, text, n, extra | DS_ENCODE_RANGES, &tokens) >=
                0,
            "encode with ranges");
    require(tokens.n == n_ids && (n_ids == 0 || memcmp(ids, tokens.ids, n_ids * sizeof *ids) == 0),
            "ids differ the second time");
    for (size_t i = 0, at = 0; i < n_ids; ++i) {
        require(tokens.ranges[i].begin >= at && tokens.ranges[i].begin <= tokens.ranges[i].end &&
                    tokens.ranges[i].end <= n,
                "ranges");
        at = tokens.ranges[i].begin;
    }
    check_stream(s->tok, ids, n_ids);
    if (n > 0) {
        check_parts(s, ids, n_ids, text, n, extra);
    }
    if (chosen < 2 || chosen == 3 || chosen == 9) { /* byte-level without normalizer, and bytes */
        check_back(s->tok, ids, n_ids, text, n);
    }
    free(ids);
    return 0;
}
