/* SPDX-License-Identifier: Apache-2.0 */
/* A sample from a folder: ds_train's closing words. */
#include "common/sample.h"

#include <string.h>

enum { PATH_BYTES = 4096 };

static ds_status with_tokenizer(ds_ctx *ctx, ds_generator *generator, const ds_tokenizer *tokenizer,
                                const char *prompt, int64_t n)
{
    const ds_sampling sampling = {.temperature = 0.8, .top_p = 0.95, .seed = 1};
    ds_tokenizer_scratch *scratch = NULL;
    ds_tokens tokens;
    DS_TRY(ds_tokenizer_scratch_create(tokenizer, 0, &scratch));
    ds_status status = ds_tokenizer_encode(tokenizer, scratch, prompt, strlen(prompt),
                                           DS_ENCODE_ADD_SPECIAL, &tokens);
    if (status >= 0) {
        (void)fputs(prompt, stdout);
        status = sample_stream(ctx, generator, tokenizer, tokens.ids, tokens.n, n, &sampling,
                               stdout, NULL, NULL);
        (void)fputc('\n', stdout);
    }
    ds_tokenizer_scratch_destroy(&scratch);
    return status;
}

ds_status sample_from_folder(ds_ctx *ctx, const char *dir, const char *prompt, int64_t n,
                             const char *accelerator)
{
    char path[PATH_BYTES];
    ds_model *model = NULL;
    ds_tokenizer *tokenizer = NULL;
    ds_generator *generator = NULL;
    ds_status status = DS_OK;
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    DS_TRY_GOTO(status, ds_model_from_config(ctx, path, &model), done);
    DS_TRY_GOTO(status, ds_tokenizer_open(ctx, dir, &tokenizer), done);
    const ds_generator_params params = {.model = model, .weights = dir, .accelerator = accelerator};
    DS_TRY_GOTO(status, ds_generator_create(ctx, &params, &generator), done);
    status = with_tokenizer(ctx, generator, tokenizer, prompt, n);
done:
    ds_generator_destroy(&generator);
    ds_tokenizer_close(&tokenizer);
    ds_model_destroy(&model);
    return status;
}
