/* The data of a run: the files that --data and --eval_data name, opened as data sets, and their
 * loaders. Called by train_setup. */
#include "common/train.h"
#include "config/config_values.h"
#include "data/rows/rows.h"

#include <stdlib.h>
#include <string.h>

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

/* Opens n files as the next dataset of the set. */
static ds_status open_next(train_run *run, char *const *paths, size_t n, train_datasets *set)
{
    const train_options *o = run->options;
    const ds_dataset_params params = {
        .files = (const char *const *)paths,
        .n_files = (uint32_t)n,
        .tokenizer = run->tokenizer,
        .chat = run->chat,
        .seq_length = run->seq_length,
        .too_long = strcmp(o->too_long, "drop") == 0 ? DS_TOO_LONG_DROP : DS_TOO_LONG_TRUNCATE,
        .append_eos = o->append_eos,
        .column_map = o->column_map,
        .skip_bad = (uint64_t)o->skip_bad};
    DS_TRY(ds_dataset_open(run->ctx, &params, &set->items[set->n]));
    return check_dataset(run, set->items[set->n++], paths[0]);
}

static ds_status make_set(const train_run *run, size_t n, train_datasets *set)
{
    set->items = calloc(n, sizeof(*set->items));
    return set->items != NULL ? DS_OK : ds_fail(run->ctx, DS_ERR_NOMEM, "no memory for data");
}

/* With weights each word is a dataset, else all files together are one. */
static ds_status open_train(train_run *run)
{
    const dsi_data_files *files = &run->data_files;
    const bool weighted = run->options->n_weights > 0;
    DS_TRY(make_set(run, files->n_words, &run->train_data));
    if (!weighted) {
        return open_next(run, files->paths, files->n, &run->train_data);
    }
    for (size_t i = 0; i < files->n_words; ++i) {
        DS_TRY(open_next(run, files->paths + files->begin[i], files->begin[i + 1] - files->begin[i],
                         &run->train_data));
    }
    return DS_OK;
}

/* Each source gives its last part. */
static ds_status split(train_run *run)
{
    train_datasets *set = &run->eval_data;
    DS_TRY(make_set(run, run->train_data.n, set));
    for (; set->n < run->train_data.n; ++set->n) {
        DS_TRY(ds_dataset_split(run->train_data.items[set->n], run->options->eval_fraction,
                                &set->items[set->n]));
    }
    return DS_OK;
}

ds_status train_data_open(train_run *run)
{
    const train_options *o = run->options;
    if (o->column_map != NULL && !train_data_has_rows(run)) {
        return ds_fail(run->ctx, DS_ERR_ARG, "--column_map: no file of --data has rows");
    }
    DS_TRY(open_train(run));
    if (run->eval_files.n > 0) {
        DS_TRY(make_set(run, 1, &run->eval_data));
        return open_next(run, run->eval_files.paths, run->eval_files.n, &run->eval_data);
    }
    return o->eval_fraction > 0.0 ? split(run) : DS_OK;
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
    }
    return sum;
}

static ds_status create_loader(const train_run *run, const train_datasets *set,
                               const double *weights, const ds_loader_params *params,
                               ds_loader **out)
{
    return ds_loader_create_mixed(run->ctx, (const ds_dataset *const *)set->items, weights, set->n,
                                  params, out);
}

ds_status train_data_loaders(train_run *run)
{
    const ds_config_values *v = dsi_config_values(run->config);
    ds_loader_params params = {.batch = v->batch.train_micro_batch_size_per_gpu,
                               .seq_length = run->seq_length,
                               .seed = (uint64_t)run->options->seed,
                               .shuffle = true,
                               .n_vocab = ds_model_get_info(run->model)->vocab_size,
                               .rank = ds_comm_rank(run->comm),
                               .n_ranks = ds_comm_size(run->comm)};
    DS_TRY(
        create_loader(run, &run->train_data, run->options->weights, &params, &run->train_loader));
    if (run->eval_data.n > 0) {
        params.shuffle = false;
        DS_TRY(create_loader(run, &run->eval_data, NULL, &params, &run->eval_loader));
    }
    return DS_OK;
}
