/* SPDX-License-Identifier: Apache-2.0 */
/* See perplexity.h. */
#include "common/perplexity.h"

#include "base/buf.h"
#include "common/unpacked.h"

#include <deepspeed/infer.h>
#include <deepspeed/tokenizer.h>
#include <math.h>
#include <stdio.h>

enum { WINDOW = 256, TEXT_CEILING = 1 << 26, PATH_BYTES = 4096 };

typedef struct opened {
    unpacked unpacked;
    ds_model *model;
    ds_generator *generator;
    ds_tokenizer *tokenizer;
    ds_tokenizer_scratch *scratch;
} opened;

static ds_status open_model(ds_ctx *ctx, const char *model, opened *o)
{
    char path[PATH_BYTES];
    const char *dtype = "f32";
    o->unpacked.quantize = unpacked_is_file(model) ? "file" : NULL;
    DS_TRY(unpacked_open(ctx, &o->unpacked, &model, &dtype, false));
    (void)snprintf(path, sizeof path, "%s/config.json", model);
    DS_TRY(ds_model_from_config(ctx, path, &o->model));
    DS_TRY(ds_tokenizer_open(ctx, model, &o->tokenizer));
    DS_TRY(ds_tokenizer_scratch_create(o->tokenizer, 0, &o->scratch));
    const int64_t most = ds_model_get_info(o->model)->max_positions;
    const ds_generator_params params = {.model = o->model,
                                        .weights = model,
                                        .gguf = unpacked_gguf(&o->unpacked),
                                        .dtype = DS_DTYPE_F32,
                                        .max_length = most > 0 && most < WINDOW ? most : WINDOW};
    return ds_generator_create(ctx, &params, &o->generator);
}

/* -log p of an id. */
static double surprise(const float *logits, int64_t n, uint32_t id)
{
    double top = (double)logits[0];
    double sum = 0.0;
    for (int64_t i = 1; i < n; ++i) {
        top = (double)logits[i] > top ? (double)logits[i] : top;
    }
    for (int64_t i = 0; i < n; ++i) {
        sum += exp((double)logits[i] - top);
    }
    return log(sum) + top - (double)logits[id];
}

static ds_status tell(const opened *o, const uint32_t *ids, int64_t n, double *value_out,
                      int64_t *n_out)
{
    const int64_t window = ds_generator_max_length(o->generator);
    double sum = 0.0;
    int64_t told = 0;
    for (int64_t first = 0; first < n; first += window) {
        const int64_t part = n - first < window ? n - first : window;
        for (int64_t i = 1; i < part; ++i) {
            int64_t n_logits = 0;
            DS_TRY(ds_generator_prompt_on(o->generator, ids + first, (size_t)i, NULL));
            const float *logits = ds_generator_logits(o->generator, &n_logits);
            sum += surprise(logits, n_logits, ids[first + i]);
            ++told;
        }
    }
    *value_out = exp(sum / (double)told);
    *n_out = told;
    return DS_OK;
}

static ds_status run(ds_ctx *ctx, const char *model, const perplexity_text *text, opened *o,
                     double *value_out, int64_t *n_out)
{
    ds_tokens tokens = {0};
    dsi_buf buf = dsi_buf_make(TEXT_CEILING);
    ds_status status = dsi_buf_read_file(ctx, text->path, &buf);
    status = status < 0 ? status : open_model(ctx, model, o);
    status = status < 0 ? status
                        : ds_tokenizer_encode(o->tokenizer, o->scratch, dsi_buf_text(&buf),
                                              buf.size, DS_ENCODE_ADD_SPECIAL, &tokens);
    if (status >= 0 && tokens.n < 2) {
        status = ds_fail(ctx, DS_ERR_ARG, "%s has less than two tokens", text->path);
    }
    if (status >= 0) {
        const int64_t n = (int64_t)tokens.n;
        status = tell(o, tokens.ids, n < text->most ? n : text->most, value_out, n_out);
    }
    dsi_buf_free(&buf);
    return status;
}

ds_status perplexity_of(ds_ctx *ctx, const char *model, const perplexity_text *text,
                        double *value_out, int64_t *n_out)
{
    opened o = {0};
    const ds_status status = run(ctx, model, text, &o, value_out, n_out);
    ds_generator_destroy(&o.generator);
    ds_tokenizer_scratch_destroy(&o.scratch);
    ds_tokenizer_close(&o.tokenizer);
    ds_model_destroy(&o.model);
    unpacked_remove(&o.unpacked);
    return status;
}
