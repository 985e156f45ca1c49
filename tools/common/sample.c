/* SPDX-License-Identifier: Apache-2.0 */
/* Streams generated text. */
#include "common/sample.h"

#include "base/clock.h"

static ds_status put(ds_ctx *ctx, const char *text, size_t n, FILE *stream)
{
    if (fwrite(text, 1, n, stream) != n || fflush(stream) != 0) {
        return ds_fail(ctx, DS_ERR_IO, "cannot write the generated text");
    }
    return DS_OK;
}

static ds_status draw(ds_ctx *ctx, ds_generator *generator, const ds_tokenizer *tokenizer,
                      int64_t n, const ds_sampling *sampling, ds_detokenizer *decoder, FILE *stream,
                      int64_t *n_out)
{
    const char *text = NULL;
    size_t size = 0;
    for (int64_t i = 0; i < n; ++i) {
        uint32_t id = 0;
        if (ds_generator_length(generator) >= ds_generator_max_length(generator)) {
            break;
        }
        DS_TRY(ds_generator_next(generator, sampling, &id));
        *n_out += 1;
        if (ds_tokenizer_is_eos(tokenizer, id)) {
            break;
        }
        if (id < ds_tokenizer_vocab_size(tokenizer)) { /* a model may have padding ids */
            DS_TRY(ds_detokenizer_push(decoder, id, &text, &size));
            DS_TRY(put(ctx, text, size, stream));
        }
    }
    DS_TRY(ds_detokenizer_flush(decoder, &text, &size));
    return put(ctx, text, size, stream);
}

ds_status sample_stream(ds_ctx *ctx, ds_generator *generator, const ds_tokenizer *tokenizer,
                        const uint32_t *ids, size_t n_ids, int64_t n, const ds_sampling *sampling,
                        FILE *stream, int64_t *n_out, double *seconds_out)
{
    ds_detokenizer *decoder = NULL;
    int64_t drawn = 0;
    DS_TRY(ds_detokenizer_create(tokenizer, DS_DECODE_SKIP_SPECIAL, &decoder));
    ds_status status = ds_generator_prompt(generator, ids, n_ids);
    const double start = dsi_clock_seconds();
    if (status >= 0) {
        status = draw(ctx, generator, tokenizer, n, sampling, decoder, stream, &drawn);
    }
    ds_detokenizer_destroy(&decoder);
    if (n_out != NULL) {
        *n_out = drawn;
    }
    if (seconds_out != NULL) {
        *seconds_out = dsi_clock_seconds() - start;
    }
    return status;
}
