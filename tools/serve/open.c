/* SPDX-License-Identifier: Apache-2.0 */
/* Opens what is served. See open.h. */
#include "open.h"

#include "base/process_memory.h"
#include "comm/comm.h"
#include "common/chat_turns.h"
#include "common/hub_flag.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static ds_status open_draft(ds_ctx *ctx, const serve_options *o, parts *p)
{
    char path[PATH_BYTES];
    if (o->draft_model == NULL) {
        return DS_OK;
    }
    p->draft_folder = o->draft_model;
    DS_TRY(
        hub_flag_find(ctx, "draft_model", &p->draft_folder, NULL, DS_HUB_MODEL, &p->draft_found));
    DS_TRY(no_pipes(ctx, p->draft_folder));
    (void)snprintf(path, sizeof path, "%s/config.json", p->draft_folder);
    DS_TRY(ds_model_from_config(ctx, path, &p->draft));
    const int64_t own = ds_model_get_info(p->draft)->vocab_size;
    const int64_t target = ds_model_get_info(p->model)->vocab_size;
    return own == target
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG,
                         "--draft_model %s has a vocabulary of %lld, the model's is %lld: take one "
                         "with the same tokenizer",
                         o->draft_model, (long long)own, (long long)target);
}

ds_status open_model(ds_ctx *ctx, serve_options *o, front *f, parts *p)
{
    char path[PATH_BYTES];
    sigset_t signals;
    DS_TRY(no_pipes(ctx, o->model));
    f->name = o->served_name != NULL ? o->served_name : o->model;
    p->unpacked.quantize = o->quantize;
    p->unpacked.rounds_later = o->deployment != NULL && offload_says_dtype(o->deployment);
    if (unpacked_is_file(o->model)) {
        if (o->model_revision != NULL || o->adapter != NULL) {
            return ds_fail(ctx, DS_ERR_ARG,
                           "--model %s is a file: --model_revision and --adapter do not go with it",
                           o->model);
        }
        listen_hold_signals(&signals); /* also after the folder is gone */
    }
    DS_TRY(unpacked_open(ctx, &p->unpacked, &o->model, &o->sizes.dtype, o->tokenizer != NULL));
    DS_TRY(hub_flag_find(ctx, "model", &o->model, o->model_revision,
                         DS_HUB_MODEL | (o->tokenizer == NULL ? DS_HUB_TOKENIZER : 0),
                         &o->model_found));
    DS_TRY(no_pipes(ctx, o->model)); /* the folder that a name stands for */
    DS_TRY(o->adapter != NULL ? no_pipes(ctx, o->adapter) : DS_OK);
    (void)snprintf(path, sizeof path, "%s/config.json", o->model);
    DS_TRY(ds_model_from_config(ctx, path, &p->model));
    DS_TRY(open_draft(ctx, o, p));
    DS_TRY(o->adapter != NULL ? ds_adapter_open(ctx, o->adapter, &p->adapter) : DS_OK);
    return ds_adapter_fit(p->adapter, &p->model);
}

/* The ids that end a text: eos, and behind them what the template writes behind an answer. */
static ds_status find_stop_ids(front *f)
{
    const uint32_t n = ds_tokenizer_vocab_size(f->tokenizer);
    const chat_form form = {.chat = f->chat, .tokenizer = f->tokenizer, .scratch = f->scratch};
    const int64_t turn = f->chat != NULL ? chat_end_of_turn(&form) : -1;
    for (uint32_t id = 0; id < n; ++id) {
        f->n_eos_ids += ds_tokenizer_is_eos(f->tokenizer, id) ? 1 : 0;
    }
    f->stop_ids = calloc(f->n_eos_ids + 1, sizeof *f->stop_ids);
    if (f->stop_ids == NULL) {
        return ds_fail(f->http_ctx, DS_ERR_NOMEM, "no memory");
    }
    f->n_stop_ids = 0;
    for (uint32_t id = 0; id < n; ++id) {
        if (ds_tokenizer_is_eos(f->tokenizer, id)) {
            f->stop_ids[f->n_stop_ids++] = id;
        }
    }
    if (turn >= 0 && !ds_tokenizer_is_eos(f->tokenizer, (uint32_t)turn)) {
        f->stop_ids[f->n_stop_ids++] = (uint32_t)turn;
    }
    return DS_OK;
}

ds_status open_tokenizer(const serve_options *o, front *f, parts *p)
{
    DS_TRY(ds_tokenizer_open(f->http_ctx, o->tokenizer != NULL ? o->tokenizer : o->model,
                             &p->tokenizer));
    DS_TRY(ds_tokenizer_scratch_create(p->tokenizer, 0, &p->scratch));
    f->tokenizer = p->tokenizer;
    f->scratch = p->scratch;
    if (o->chat_template != NULL || ds_tokenizer_chat_template(p->tokenizer) != NULL) {
        DS_TRY(ds_chat_create(f->http_ctx, p->tokenizer, o->chat_template, &p->chat));
        f->chat = p->chat;
        f->calls = o->chat_template == NULL ? calls_form(ds_tokenizer_chat_template(p->tokenizer))
                                            : NULL; /* those that are built in have no tools */
    }
    return find_stop_ids(f);
}

static ds_status open_sentence(ds_ctx *ctx, const serve_options *o, front *f, const parts *p)
{
    f->sentence.pool = ds_model_get_info(p->model)->encoder ? DS_POOL_MEAN : DS_POOL_LAST;
    f->sentence.normalize = true;
    if (o->no_embeddings) {
        return DS_OK;
    }
    DS_TRY(sentence_folder(ctx, o->model, o->pooling, &f->sentence));
    if (f->sentence.n_dense > 0 && !ds_model_get_info(p->model)->encoder) {
        sentence_form_close(&f->sentence);
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s/modules.json: a module Dense behind a decoder is not built; give "
                       "--no_embeddings",
                       o->model);
    }
    if (strcmp(o->normalize, "auto") != 0) {
        f->sentence.normalize = strcmp(o->normalize, "yes") == 0;
    }
    return DS_OK;
}

static bool says_where(const offload_flags *f)
{
    return f->config_path != NULL || f->device != NULL || f->nvme_path != NULL ||
           f->max_in_cpu > 0 || f->kv;
}

static ds_status open_encoder(ds_ctx *ctx, const serve_options *o, front *f, const parts *p)
{
    if (o->quantize != NULL || o->adapter != NULL || o->sizes.draft > 0 || o->draft_model != NULL ||
        o->no_embeddings || o->max_loras > 0 || f->comm != NULL || o->sizes.kv_type != NULL ||
        o->sizes.kv_tokens > 0 || o->sizes.no_prefix_cache || o->sizes.state_snapshots > 0 ||
        says_where(&o->sizes.offload)) {
        return ds_fail(
            ctx, DS_ERR_ARG,
            "%s is an encoder: --quantize, --adapter, --lora, --draft, --no_embeddings, "
            "--kv_tokens, --kv_type, --no_prefix_cache, --state_snapshots, --deepspeed_config, "
            "--offload_param with what goes with it, and several ranks do not go with it",
            o->model);
    }
    const ds_encoder_params params = {
        .model = p->model,
        .weights = o->model,
        .dtype = o->sizes.dtype != NULL ? ds_dtype_from_name(o->sizes.dtype) : DS_DTYPE_NONE,
        .max_length =
            sentence_length(&f->sentence, o->sizes.max_length, ds_model_get_info(p->model)),
        .task = DS_TASK_HIDDEN,
        .accelerator = o->accelerator};
    DS_TRY(ds_encoder_create(ctx, &params, &f->encoder));
    f->max_length = ds_encoder_max_length(f->encoder);
    f->vocab_size = ds_model_get_info(p->model)->vocab_size;
    DS_TRY(sentence_form_check(ctx, &f->sentence, ds_encoder_width(f->encoder)));
    f->width = sentence_width(&f->sentence, ds_encoder_width(f->encoder));
    f->metrics.stats = (ds_serve_stats){.max_sequences = o->sizes.max_sequences,
                                        .max_length = f->max_length,
                                        .vocab_size = f->vocab_size,
                                        .width = f->width};
    ds_log(ctx, DS_LOG_JOB, "an encoder: vectors of %lld numbers, texts of up to %lld tokens",
           (long long)f->width, (long long)f->max_length);
    return DS_OK;
}

/* Whether a model of sources and what is made of them is there for its encoder's vectors alone: a
 * folder of sentence-transformers, or one without a decoder. */
static bool is_half(const serve_options *o)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/modules.json", o->model);
    if (access(path, F_OK) == 0) {
        return true;
    }
    (void)snprintf(path, sizeof path, "%s/config.json", o->model);
    json_t *config = json_load_file(path, 0, NULL);
    const char *name =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    const bool encodes = name != NULL && strcmp(name, "T5EncoderModel") == 0;
    json_decref(config);
    return encodes;
}

ds_status open_server(ds_ctx *ctx, const serve_options *o, front *f, const parts *p)
{
    ds_status status = ds_comm_agree(f->comm, ctx, open_sentence(ctx, o, f, p));
    const ds_model_info *info = ds_model_get_info(p->model);
    if (status >= 0 && info->encoder && (!info->pairs || is_half(o))) {
        return open_encoder(ctx, o, f, p);
    }
    f->pairs = info->pairs;
    const ds_generator_params draft = {
        .model = p->draft,
        .weights = p->draft_folder,
        .dtype = o->sizes.dtype != NULL ? ds_dtype_from_name(o->sizes.dtype) : DS_DTYPE_NONE,
        .accelerator = o->accelerator};
    ds_serve_params params = {.source = {.model = p->model,
                                         .weights = o->model,
                                         .gguf = unpacked_gguf(&p->unpacked),
                                         .adapter = p->adapter,
                                         .quantize = unpacked_quantize(&p->unpacked),
                                         .keep_blocks = p->unpacked.keeps,
                                         .accelerator = o->accelerator,
                                         .comm = f->comm},
                              .rank_seconds = f->comm != NULL ? (double)o->rank_seconds : 0.0};
    serve_flags sizes = o->sizes; /* whose weights may be away, in this folder's own files */
    if (status >= 0) {
        status = offload_flags_open(ctx, &sizes.offload, o->model, ds_comm_size(f->comm));
    }
    serve_flags_set(&sizes, &params);
    if (p->draft != NULL) {
        params.draft = &draft;
        params.max_draft = o->sizes.draft > 0 ? o->sizes.draft : 4;
    }
    params.embeddings = !o->no_embeddings;
    params.adapters = o->max_loras;
    params.adapter_rank = o->max_loras > 0 ? o->max_lora_rank : 0;
    status = status < 0 ? status : serve_flags_configure(ctx, &sizes, &params);
    if (status >= 0 && sizes.offload.config != NULL) {
        status = ds_generator_copy(ctx, sizes.offload.config, &params.source, o->model);
    }
    status = ds_comm_agree(f->comm, ctx, status);
    status = status < 0 ? status : ds_serve_create(ctx, &params, &f->server);
    offload_flags_close(&sizes.offload);
    if (status < 0 || ds_comm_rank(f->comm) > 0) {
        return status;
    }
    dsi_process_memory_trim(); /* what reading the folder has left: no plan of memory holds it */
    DS_TRY(lora_open(ctx, f));
    ds_serve_get_stats(f->server, &f->metrics.stats);
    const ds_serve_stats *s = &f->metrics.stats;
    f->max_length = s->max_length;
    f->width = s->width;
    f->vocab_size = s->vocab_size;
    ds_log(ctx, DS_LOG_JOB,
           "weights %.1f MB; %lld blocks of %lld positions, %.1f KB a position: %.1f MB; texts of "
           "up to %lld, %lld in a batch of %lld tokens",
           s->weight_bytes * 1e-6, (long long)s->n_blocks, (long long)s->block,
           s->kv_token_bytes * 1e-3, s->kv_token_bytes * (double)(s->n_blocks * s->block) * 1e-6,
           (long long)s->max_length, (long long)s->max_sequences, (long long)s->max_batch_tokens);
    return DS_OK;
}

void parts_close(parts *p)
{
    unpacked_remove(&p->unpacked);
    ds_chat_destroy(&p->chat);
    ds_tokenizer_scratch_destroy(&p->scratch);
    ds_tokenizer_close(&p->tokenizer);
    ds_adapter_destroy(&p->adapter);
    ds_model_destroy(&p->model);
    ds_model_destroy(&p->draft);
    free(p->draft_found);
}
