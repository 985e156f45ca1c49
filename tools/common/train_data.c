/* SPDX-License-Identifier: Apache-2.0 */
/* The data of a run: the files that --data and --eval_data name, opened as data sets, and their
 * loaders. Called by train_setup. */
#include "comm/same_text.h"
#include "common/train.h"
#include "config/config_values.h"
#include "data/data_cache.h"
#include "data/dataset.h"
#include "data/rows/rows.h"
#include "io/file.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Smaller data is read anew by each run, unless --data_cache is given. */
enum { CACHE_FROM_BYTES = 256 << 20 };

static bool has_rows(const dsi_data_files *files)
{
    for (size_t i = 0; i < files->n; ++i) {
        if (dsi_rows_knows(files->paths[i])) {
            return true;
        }
    }
    return false;
}

bool train_data_has_rows(const train_run *run)
{
    return has_rows(&run->data_files) || has_rows(&run->eval_files);
}

static ds_status find(train_run *run)
{
    const train_options *o = run->options;
    DS_TRY(dsi_data_files_list(run->ctx, o->data.items, o->data.n, &run->data_files));
    return dsi_data_files_list(run->ctx, o->eval_data.items, o->eval_data.n, &run->eval_files);
}

ds_status train_data_find(train_run *run)
{
    return ds_comm_agree(run->comm, run->ctx, find(run));
}

/* Says what was left out of the data, and that all of it is of the model's vocabulary. */
static ds_status check_dataset(const train_run *run, const ds_dataset *dataset, const char *path)
{
    const ds_dataset_info info = ds_dataset_get_info(dataset);
    const int64_t vocab = ds_model_get_info(run->model)->vocab_size;
    if (info.n_bad > 0) {
        ds_log(run->ctx, DS_LOG_WARN, "data: %llu bad rows were left out",
               (unsigned long long)info.n_bad);
    }
    if (info.n_uncounted > 0) {
        ds_log(run->ctx, DS_LOG_WARN,
               "data: %llu samples were left out: no answer within their first %lld tokens",
               (unsigned long long)info.n_uncounted, (long long)run->seq_length);
    }
    if (info.n_truncated + info.n_dropped > 0) {
        ds_log(run->ctx, DS_LOG_WARN,
               "data: %llu samples longer than %lld tokens were truncated, %llu dropped",
               (unsigned long long)info.n_truncated, (long long)run->seq_length,
               (unsigned long long)info.n_dropped);
    }
    return (int64_t)info.max_id < vocab
               ? DS_OK
               : ds_fail(run->ctx, DS_ERR_ARG,
                         "%s holds token %u, outside of the model's vocabulary of %lld", path,
                         info.max_id, (long long)vocab);
}

/* One dataset to open. */
typedef struct source {
    char *const *paths;
    size_t n;
    train_datasets *set;
} source;

/* A reward model reads whole answers, as TRL's. */
static ds_too_long too_long_of(const train_run *run)
{
    const train_options *o = run->options;
    if (strcmp(o->too_long, "drop") == 0 || run->preference.loss == DS_PREFERENCE_REWARD) {
        return DS_TOO_LONG_DROP;
    }
    return o->truncation_mode != NULL && strcmp(o->truncation_mode, "keep_end") == 0
               ? DS_TOO_LONG_KEEP_END
               : DS_TOO_LONG_TRUNCATE;
}

static ds_dataset_params params_of(const train_run *run, const source *from)
{
    const train_options *o = run->options;
    return (ds_dataset_params){.files = (const char *const *)from->paths,
                               .n_files = (uint32_t)from->n,
                               .tokenizer = run->tokenizer,
                               .chat = run->chat,
                               .seq_length = run->seq_length,
                               .too_long = too_long_of(run),
                               .rows = train_rows(run),
                               .problem = run->task_params.problem,
                               .n_negatives = run->task_params.contrast.n_negatives,
                               .classes = (const char *const *)run->classes,
                               .n_classes = run->n_classes,
                               .append_eos = o->append_eos,
                               .column_map = o->column_map,
                               .skip_bad = (uint64_t)o->skip_bad,
                               .alpaca = run->alpaca,
                               .cache = run->cache,
                               .cache_from_bytes = o->data_cache != NULL ? 0 : CACHE_FROM_BYTES};
}

/* Whether each word of --data is a dataset of its own: with weights, or an adapter for each. */
static bool keeps_apart(const train_run *run)
{
    return run->options->n_weights > 0 || run->options->adapter.names.n > 0;
}

/* With weights or adapters each word of --data is a dataset, else all its files together are one;
 * and so are those of --eval_data. The i-th of them; false: there are no more. */
static bool source_at(train_run *run, size_t i, source *out)
{
    const dsi_data_files *files = &run->data_files;
    const dsi_data_files *eval = &run->eval_files;
    const size_t n = keeps_apart(run) ? files->n_words : 1;
    if (i < n && keeps_apart(run)) {
        const size_t begin = files->begin[i];
        *out = (source){files->paths + begin, files->begin[i + 1] - begin, &run->train_data};
    } else if (i < n) {
        *out = (source){files->paths, files->n, &run->train_data};
    } else {
        *out = (source){eval->paths, eval->n, &run->eval_data};
    }
    return i < n || (i == n && eval->n > 0);
}

static ds_status open_all(train_run *run, train_wait *wait)
{
    source from;
    for (size_t i = 0; source_at(run, i, &from); ++i) {
        ds_dataset_params params = params_of(run, &from);
        train_wait_use(wait, &params);
        DS_TRY(ds_dataset_open(run->ctx, &params, &from.set->items[from.set->n]));
        DS_TRY(check_dataset(run, from.set->items[from.set->n++], from.paths[0]));
    }
    return DS_OK;
}

/* Whether any rank would use the cache: the answer is the same on all. */
static ds_status wants_cache(train_run *run, bool *wants_out)
{
    double wants = 0.0;
    source from;
    for (size_t i = 0; source_at(run, i, &from); ++i) {
        const ds_dataset_params params = params_of(run, &from);
        wants += dsi_cache_wanted(&params) ? 1.0 : 0.0;
    }
    DS_TRY(ds_comm_sum(run->comm, &wants, 1));
    *wants_out = wants > 0.0;
    return DS_OK;
}

/* A host's first rank fills the cache, which the others find then. */
static ds_status open_in_turn(train_run *run)
{
    const bool first = run->options->local_rank == 0;
    train_wait wait;
    bool wants = false;
    DS_TRY(wants_cache(run, &wants));
    train_wait_begin(run, &wait);
    DS_TRY(first || !wants ? open_all(run, &wait) : DS_OK);
    DS_TRY(train_wait_all(&wait));
    if (wants) {
        DS_TRY(first ? DS_OK : open_all(run, &wait));
        DS_TRY(train_wait_all(&wait));
    }
    return DS_OK;
}

static ds_status make_set(const train_run *run, size_t n, train_datasets *set)
{
    set->items = calloc(n, sizeof(*set->items));
    return set->items != NULL ? DS_OK : ds_fail(run->ctx, DS_ERR_NOMEM, "no memory for data");
}

/* Each source gives its last part. */
static ds_status split(train_run *run)
{
    train_datasets *set = &run->eval_data;
    for (; set->n < run->train_data.n; ++set->n) {
        DS_TRY(ds_dataset_split(run->train_data.items[set->n], run->options->eval_fraction,
                                &set->items[set->n]));
    }
    return DS_OK;
}

/* A cache of one host may be another's: what the ranks have read must be the same. */
static ds_status same_content(const train_run *run)
{
    uint64_t content = 0;
    char text[32];
    for (uint32_t i = 0; i < run->train_data.n; ++i) {
        content = content * 31 + dsi_dataset_content(run->train_data.items[i]);
    }
    for (uint32_t i = 0; i < run->eval_data.n; ++i) {
        content = content * 31 + dsi_dataset_content(run->eval_data.items[i]);
    }
    (void)snprintf(text, sizeof text, "tokens: %016llx", (unsigned long long)content);
    return dsi_same_text(run->ctx, run->comm, text, "data",
                         "remove the data cache on its host (--data_cache)");
}

/* From malloc; NULL: none. */
static char *cache_folder(const train_options *o)
{
    static const char name[] = "deepspeed_native";
    const char *home = getenv("HOME");
    const char *caches = getenv("XDG_CACHE_HOME");
    char *path = NULL;
    if (o->data_cache != NULL) {
        return strcmp(o->data_cache, "none") == 0 ? NULL : strdup(o->data_cache);
    }
    if (caches != NULL && caches[0] == '/') { /* others are to be passed over, the standard says */
        return dsi_path_join(caches, name);
    }
    if (home == NULL || home[0] != '/' || asprintf(&path, "%s/.cache/%s", home, name) < 0) {
        return NULL;
    }
    return path;
}

ds_status train_data_open(train_run *run)
{
    const train_options *o = run->options;
    if (o->column_map != NULL && !train_data_has_rows(run)) {
        return ds_fail(run->ctx, DS_ERR_ARG, "--column_map: no file of --data has rows");
    }
    run->cache = cache_folder(o);
    (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of the write */
    DS_TRY(make_set(run, run->data_files.n_words, &run->train_data));
    DS_TRY(make_set(run, run->data_files.n_words, &run->eval_data));
    DS_TRY(open_in_turn(run));
    DS_TRY(o->eval_fraction > 0.0 ? split(run) : DS_OK);
    return same_content(run);
}

void train_data_close(train_datasets *set)
{
    for (uint32_t i = 0; i < set->n; ++i) {
        ds_dataset_close(&set->items[i]);
    }
    free(set->items);
    *set = (train_datasets){0};
}

ds_dataset_info train_data_info(const train_datasets *set)
{
    ds_dataset_info sum = {0};
    for (uint32_t i = 0; i < set->n; ++i) {
        const ds_dataset_info info = ds_dataset_get_info(set->items[i]);
        sum.n_documents += info.n_documents;
        sum.n_tokens += info.n_tokens;
        sum.n_truncated += info.n_truncated;
        sum.n_dropped += info.n_dropped;
        sum.n_uncounted += info.n_uncounted;
        sum.n_bad += info.n_bad;
        sum.max_id = info.max_id > sum.max_id ? info.max_id : sum.max_id;
        sum.samples = info.samples;
        sum.rows = info.rows;
    }
    return sum;
}

static ds_status create_loader(const train_run *run, const train_datasets *set,
                               const double *weights, const ds_loader_params *params,
                               ds_loader **out)
{
    const ds_status status = ds_loader_create_mixed(run->ctx, (const ds_dataset *const *)set->items,
                                                    weights, set->n, params, out);
    return status >= 0
               ? DS_OK
               : ds_fail(run->ctx, status, "--%s: %s",
                         set == &run->eval_data ? "eval_data" : "data", ds_ctx_error(run->ctx));
}

static const ds_preference *preference_of(const train_run *run)
{
    return train_has_preference(run) ? &run->preference : NULL;
}

ds_status train_data_loaders(train_run *run)
{
    const ds_config_values *v = dsi_config_values(run->config);
    const bool kto = run->preference.loss == DS_PREFERENCE_KTO;
    if (kto && v->batch.train_micro_batch_size_per_gpu < 2) {
        return ds_fail(run->ctx, DS_ERR_CONFIG,
                       "kto compares an answer with those of its micro-batch: "
                       "train_micro_batch_size_per_gpu (--micro_batch) must be above 1");
    }
    const ds_contrast *contrast = &run->task_params.contrast;
    const uint32_t ranks =
        contrast->gather_across_devices != 0 ? dsi_mesh_data_size(&run->mesh) : 1;
    if (contrast->scale > 0.0 && contrast->n_negatives == 0 && ranks == 1 &&
        v->batch.train_micro_batch_size_per_gpu < 2) {
        return ds_fail(run->ctx, DS_ERR_CONFIG,
                       "embeddings are compared with the others of their micro-batch: "
                       "train_micro_batch_size_per_gpu (--micro_batch) must be above 1, or give "
                       "--negatives, or --gather_across_devices on more ranks");
    }
    ds_loader_params params = {.batch = v->batch.train_micro_batch_size_per_gpu,
                               .seq_length = run->seq_length,
                               .seed = (uint64_t)run->options->seed,
                               .shuffle = !kto, /* its neighbours are those of the data */
                               .preference = preference_of(run),
                               .masking = run->masking.tokenizer != NULL ? &run->masking : NULL,
                               .alone = run->options->packing ? 0 : 1,
                               .n_vocab = ds_model_get_info(run->model)->vocab_size,
                               .pad_id = ds_model_get_info(run->model)->pad_id,
                               .pool = run->form.pool,
                               .rank = dsi_mesh_data_rank(&run->mesh, ds_comm_rank(run->comm)),
                               .n_ranks = dsi_mesh_data_size(&run->mesh)};
    DS_TRY(
        create_loader(run, &run->train_data, run->options->weights, &params, &run->train_loader));
    if (run->eval_data.n > 0) {
        params.shuffle = false;
        DS_TRY(create_loader(run, &run->eval_data, NULL, &params, &run->eval_loader));
    }
    return DS_OK;
}

ds_status train_data_rows(const train_run *run, uint64_t *rows_out)
{
    const ds_loader_params params = {.batch = 1,
                                     .seq_length = run->seq_length,
                                     .n_vocab = ds_model_get_info(run->model)->vocab_size,
                                     .preference = preference_of(run),
                                     .alone = run->options->packing ? 0 : 1,
                                     .n_ranks = 1};
    ds_loader *loader = NULL;
    DS_TRY(create_loader(run, &run->train_data, run->options->weights, &params, &loader));
    *rows_out = ds_loader_epoch_rows(loader);
    ds_loader_destroy(&loader);
    return DS_OK;
}
