/* SPDX-License-Identifier: Apache-2.0 */
/* ds_generate: text from a model folder or a training checkpoint. */
#include "base/buf.h"
#include "ckpt/ckpt_foreign.h"
#include "common/combine_adapters.h"
#include "common/environment.h"
#include "common/generate.h"
#include "common/hub_flag.h"
#include "common/output.h"
#include "common/sample.h"
#include "config/config_values.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    EXIT_USE = 2,
    EXIT_INTERRUPTED = 130,

    PROMPT_CEILING = 64 << 20,
    PATH_BYTES = 4096
};

static ds_status generate(ds_ctx *ctx, generate_options *o, const generate_parts *all,
                          const dsi_buf *prompt, const ds_tokens *tokens)
{
    const ds_sampling sampling = generate_sampling(o);
    if (o->num_beams > 1) {
        if (!o->no_echo) {
            (void)fwrite(dsi_buf_text(prompt), 1, prompt->size, stdout);
        }
        DS_TRY(generate_beams(ctx, o, all, tokens->ids, tokens->n));
        (void)fputc('\n', stdout);
        return DS_OK;
    }
    ds_generator *generator = NULL;
    int64_t drawn = 0;
    double seconds = 0.0;
    DS_TRY(generate_open(ctx, o, all, generate_positions(o, all->model, tokens->n), &generator));
    if (!o->no_echo) {
        (void)fwrite(dsi_buf_text(prompt), 1, prompt->size, stdout);
    }
    const ds_status status = sample_stream(ctx, generator, all->tokenizer, tokens->ids, tokens->n,
                                           o->max_new_tokens, &sampling, stdout, &drawn, &seconds);
    (void)fputc('\n', stdout);
    if (status >= 0 && o->stats && seconds > 0.0) {
        (void)fprintf(stderr, "%lld tokens in %.2f s: %.1f tokens/s, %.2f GB/s\n", (long long)drawn,
                      seconds, (double)drawn / seconds,
                      (double)drawn / seconds * ds_generator_step_bytes(generator) * 1e-9);
    }
    ds_generator_destroy(&generator);
    return status;
}

static ds_status find_models(ds_ctx *ctx, generate_options *o)
{
    if (o->model != NULL && unpacked_is_file(o->model) &&
        (o->model_revision != NULL || o->adapters.n > 0)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--model %s is a file: --model_revision and --adapter do not go with it",
                       o->model);
    }
    if (o->offload.config_path != NULL) {
        DS_TRY(offload_flags_open(ctx, &o->offload, NULL, ds_comm_size(o->comm)));
        o->unpacked.rounds_later = offload_says_dtype(o->offload.config);
        if (o->tokenizer == NULL && ds_config_get_kind(o->offload.config) == DS_CONFIG_MII) {
            o->tokenizer = dsi_config_inference(o->offload.config)->tokenizer;
        }
    }
    DS_TRY(unpacked_open(ctx, &o->unpacked, &o->model, &o->dtype, o->tokenizer != NULL));
    const uint32_t tokenizer = o->tokenizer == NULL ? DS_HUB_TOKENIZER : 0;
    DS_TRY(hub_flag_find(ctx, "model", &o->model, o->model_revision, DS_HUB_MODEL | tokenizer,
                         &o->model_found));
    DS_TRY(o->offload.config == NULL
               ? offload_flags_open(ctx, &o->offload, o->model, ds_comm_size(o->comm))
               : DS_OK);
    return hub_flag_find(ctx, "tokenizer", &o->tokenizer, o->tokenizer_revision, DS_HUB_TOKENIZER,
                         &o->tokenizer_found);
}

static ds_status open_all(ds_ctx *ctx, generate_options *o, generate_parts *all)
{
    const char *dir = o->model != NULL ? o->model : o->checkpoint;
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    if (access(path, F_OK) != 0) {
        DS_TRY(dsi_ckpt_foreign(ctx, dir, o->tag));
    }
    DS_TRY(ds_model_from_config(ctx, path, &all->model));
    DS_TRY(o->adapters.n > 0
               ? combine_open(ctx, &o->adapters, &o->adapter_weights, &o->combined, &all->adapter)
               : DS_OK);
    DS_TRY(ds_adapter_fit(all->adapter, &all->model));
    DS_TRY(packing_flags_set(&o->packing, all->adapter));
    DS_TRY(ds_tokenizer_open(ctx, o->tokenizer != NULL ? o->tokenizer : dir, &all->tokenizer));
    return ds_tokenizer_scratch_create(all->tokenizer, 0, &all->scratch);
}

static void close_all(generate_parts *all)
{
    ds_tokenizer_scratch_destroy(&all->scratch);
    ds_tokenizer_close(&all->tokenizer);
    ds_adapter_destroy(&all->adapter);
    ds_model_destroy(&all->model);
}

/* The prompt's text, continued. */
static ds_status run_text(ds_ctx *ctx, generate_options *o, const generate_parts *all)
{
    ds_tokens tokens;
    dsi_buf prompt = dsi_buf_make(PROMPT_CEILING);
    ds_status status = generate_prompt(ctx, o, &prompt);
    if (status >= 0) {
        status = ds_tokenizer_encode(all->tokenizer, all->scratch, dsi_buf_text(&prompt),
                                     prompt.size, DS_ENCODE_ADD_SPECIAL, &tokens);
    }
    if (status >= 0 && tokens.n == 0) {
        status = ds_fail(ctx, DS_ERR_ARG, "the prompt is empty");
    }
    if (status >= 0) {
        status = generate(ctx, o, all, &prompt, &tokens);
    }
    dsi_buf_free(&prompt);
    return status;
}

/* The ranks above 0: they have a part of each layer, and do as rank 0 does. */
static ds_status follow(ds_ctx *ctx, generate_options *o, const generate_parts *all)
{
    ds_generator *generator = NULL;
    DS_TRY(generate_open(ctx, o, all, 0, &generator));
    const ds_status status = ds_generator_follow(generator);
    ds_generator_destroy(&generator);
    return status;
}

static ds_status run(ds_ctx *ctx, generate_options *o, bool *interrupted)
{
    generate_parts all = {0};
    ds_status status = find_models(ctx, o);
    status = status < 0 ? status : open_all(ctx, o, &all);
    if (status >= 0 && ds_comm_rank(o->comm) > 0) {
        status = follow(ctx, o, &all);
    } else if (status >= 0) {
        status = o->chat ? generate_chat(ctx, o, &all, interrupted) : run_text(ctx, o, &all);
    }
    close_all(&all);
    unpacked_remove(&o->combined);
    unpacked_remove(&o->unpacked);
    offload_flags_close(&o->offload);
    return status;
}

/* With the threads of this rank, among its ranks. */
static ds_status run_ranks(ds_ctx *ctx, generate_options *o, bool *interrupted)
{
    ds_status status = ds_comm_open(ctx, &o->comm);
    status = status < 0 ? status : run(ctx, o, interrupted);
    if (status < 0) {
        ds_comm_abort(o->comm, ds_ctx_error(ctx));
    }
    ds_comm_close(&o->comm);
    return status;
}

int main(int argc, char **argv)
{
    output_guard("ds_generate");
    ds_ctx *ctx = NULL;
    generate_options o = {0};
    bool help = false;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    ds_status status = generate_parse(ctx, argc, argv, &o, &help);
    int code = status < 0 ? EXIT_USE : EXIT_SUCCESS;
    if (status >= 0 && !help) {
        ds_ctx_params params;
        status = environment_context(ctx, o.threads, &params, NULL);
        if (status >= 0) {
            ds_ctx_destroy(&ctx);
            status = ds_ctx_create(&params, &ctx);
        }
        code = EXIT_FAILURE;
    }
    if (status >= 0 && !help) {
        bool interrupted = false;
        status = run_ranks(ctx, &o, &interrupted);
        code = status < 0 ? EXIT_FAILURE : interrupted ? EXIT_INTERRUPTED : EXIT_SUCCESS;
    }
    if (status < 0) {
        (void)fprintf(stderr, "ds_generate: %s\n", ds_ctx_error(ctx));
    }
    free(o.model_found);
    free(o.tokenizer_found);
    dsi_arg_list_free(&o.adapters);
    dsi_arg_list_free(&o.adapter_weights);
    ds_ctx_destroy(&ctx);
    return code;
}
