/* SPDX-License-Identifier: Apache-2.0 */
/* Logits of many model folders, one process: for the comparison of config.json with transformers.
 *
 *     model_logits LIST OUT SHORT LONG [bf16]
 *
 * LIST names a folder a line, or a folder, a tab and the folder of an adapter. For each a line is
 * printed: "ok L V", L being LONG or the model's positions where that is less, and the last logits
 * of the first SHORT and of the first L ids, of pairs those behind `target`, go to OUT as fp32
 * (2·V); or "refused MESSAGE". The ids are those of config_cases.py.
 */
#include <deepspeed/adapter.h>
#include <deepspeed/encoder.h>
#include <deepspeed/infer.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, MAX_IDS = 1024, VOCAB = 37, N_TARGET = 3 };

static const uint32_t target[N_TARGET] = {5, 11, 2};

static ds_status prompt(ds_generator *generator, const uint32_t *ids, size_t n, bool pairs,
                        FILE *out)
{
    const ds_sampling greedy = {0};
    int64_t n_vocab = 0;
    uint32_t id = 0;
    DS_TRY(ds_generator_prompt(generator, ids, n));
    for (int i = 0; i < N_TARGET && pairs; ++i) { /* made the likeliest, and drawn */
        float *all = (float *)(uintptr_t)ds_generator_logits(generator, &n_vocab);
        all[target[i]] = FLT_MAX;
        DS_TRY(ds_generator_next(generator, &greedy, &id));
    }
    const float *logits = ds_generator_logits(generator, &n_vocab);
    return fwrite(logits, sizeof *logits, (size_t)n_vocab, out) == (size_t)n_vocab ? DS_OK
                                                                                   : DS_ERR_IO;
}

/* The last position's logits of an encoder, for both lengths. */
static ds_status encode(ds_ctx *ctx, const ds_encoder_params *params, const uint32_t *ids,
                        size_t n_short, FILE *out)
{
    const size_t lengths[2] = {n_short, (size_t)params->max_length};
    ds_encoder *encoder = NULL;
    ds_status status = ds_encoder_create(ctx, params, &encoder);
    for (size_t i = 0; i < 2 && status >= 0; ++i) {
        ds_tensor rows;
        status = ds_encoder_run(encoder, ids, lengths[i], &rows);
        if (status >= 0) {
            const size_t width = (size_t)rows.meta.shape.dims[1];
            const float *last = (const float *)rows.data + (lengths[i] - 1) * width;
            status = fwrite(last, sizeof *last, width, out) == width ? DS_OK : DS_ERR_IO;
        }
    }
    ds_encoder_destroy(&encoder);
    return status;
}

static ds_status run(ds_ctx *ctx, char *folder, ds_dtype dtype, size_t n_short, size_t n_long,
                     FILE *out)
{
    char path[PATH_BYTES + 16];
    uint32_t ids[MAX_IDS];
    char *own = strchr(folder, '\t'); /* the adapter's folder */
    ds_model *model = NULL;
    ds_adapter *adapter = NULL;
    ds_generator *generator = NULL;
    for (uint32_t i = 0; i < MAX_IDS; ++i) {
        ids[i] = (11 * i + 5 * (i / 7) + 3) % VOCAB;
    }
    if (own != NULL) {
        *own++ = '\0';
    }
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    ds_status status = ds_model_from_config(ctx, path, &model);
    if (status >= 0 && own != NULL) {
        status = ds_adapter_open(ctx, own, &adapter);
        status = status >= 0 ? ds_adapter_fit(adapter, &model) : status;
    }
    const ds_model_info *info = status >= 0 ? ds_model_get_info(model) : NULL;
    if (status >= 0) {
        const int64_t limit = info->max_positions;
        const int64_t longest = limit > 0 && limit < (int64_t)n_long ? limit : (int64_t)n_long;
        const ds_generator_params params = {.model = model,
                                            .weights = folder,
                                            .dtype = dtype,
                                            .max_length = longest,
                                            .adapter = adapter};
        const ds_encoder_params encoder = {
            .model = model, .weights = folder, .dtype = dtype, .max_length = longest};
        if (info->encoder && !info->pairs) {
            status = encode(ctx, &encoder, ids, n_short, out);
        } else {
            status = ds_generator_create(ctx, &params, &generator);
        }
        if (status >= 0 && generator != NULL) {
            status = prompt(generator, ids, n_short, info->pairs, out);
        }
        if (status >= 0 && generator != NULL) {
            status = prompt(generator, ids, (size_t)longest, info->pairs, out);
        }
        if (status >= 0) {
            printf("ok %lld %lld\n", (long long)longest, (long long)info->vocab_size);
        }
    }
    ds_generator_destroy(&generator);
    ds_adapter_destroy(&adapter);
    ds_model_destroy(&model);
    return status;
}

/* One line: newlines of a message become spaces. */
static void print_refusal(const char *message)
{
    printf("refused ");
    for (; *message != '\0'; ++message) {
        (void)putchar(*message == '\n' ? ' ' : *message);
    }
    (void)putchar('\n');
}

int main(int argc, char **argv)
{
    char folder[PATH_BYTES];
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    FILE *list = argc >= 5 ? fopen(argv[1], "r") : NULL;
    FILE *out = argc >= 5 ? fopen(argv[2], "wb") : NULL;
    if (list == NULL || out == NULL || ds_ctx_create(&params, &ctx) < 0) {
        fprintf(stderr, "usage: model_logits LIST OUT SHORT LONG [bf16]\n");
        return 2;
    }
    const size_t n_short = (size_t)strtoul(argv[3], NULL, 10);
    const size_t n_long = (size_t)strtoul(argv[4], NULL, 10);
    const bool narrow = argc > 5 && strcmp(argv[5], "bf16") == 0;
    while (n_long <= MAX_IDS && fgets(folder, sizeof folder, list) != NULL) {
        folder[strcspn(folder, "\n")] = '\0';
        const long at = ftell(out);
        if (run(ctx, folder, narrow ? DS_DTYPE_BF16 : DS_DTYPE_F32, n_short, n_long, out) < 0) {
            (void)fseek(out, at, SEEK_SET);
            print_refusal(ds_ctx_error(ctx));
        }
    }
    ds_ctx_destroy(&ctx);
    (void)fclose(list);
    return fclose(out) == 0 ? 0 : 1;
}
