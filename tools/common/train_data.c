/* The data of a run: the files that --data and --eval_data name, opened as data sets, and their
 * loaders. Called by train_setup. */
#include "common/train.h"
#include "config/config_values.h"
#include "data/rows/rows.h"

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

static ds_status open_dataset(train_run *run, const dsi_data_files *files, ds_dataset **out)
{
    const ds_dataset_params params = {.files = (const char *const *)files->paths,
                                      .n_files = (uint32_t)files->n,
                                      .tokenizer = run->tokenizer,
                                      .chat = run->chat,
                                      .seq_length = run->seq_length,
                                      .too_long = strcmp(run->options->too_long, "drop") == 0
                                                      ? DS_TOO_LONG_DROP
                                                      : DS_TOO_LONG_TRUNCATE,
                                      .append_eos = run->options->append_eos,
                                      .column_map = run->options->column_map,
                                      .skip_bad = (uint64_t)run->options->skip_bad};
    DS_TRY(ds_dataset_open(run->ctx, &params, out));
    const ds_dataset_info info = ds_dataset_get_info(*out);
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
    if ((int64_t)info.max_id >= ds_model_get_info(run->model)->vocab_size) {
        return ds_fail(
            run->ctx, DS_ERR_ARG, "%s holds token %u, outside of the model's vocabulary of %lld",
            files->paths[0], info.max_id, (long long)ds_model_get_info(run->model)->vocab_size);
    }
    return DS_OK;
}

ds_status train_data_open(train_run *run)
{
    const train_options *o = run->options;
    if (o->column_map != NULL && !train_data_has_rows(run)) {
        return ds_fail(run->ctx, DS_ERR_ARG, "--column_map: no file of --data has rows");
    }
    DS_TRY(open_dataset(run, &run->data_files, &run->train_data));
    if (run->eval_files.n > 0) {
        return open_dataset(run, &run->eval_files, &run->eval_data);
    }
    if (o->eval_fraction > 0.0) {
        return ds_dataset_split(run->train_data, o->eval_fraction, &run->eval_data);
    }
    return DS_OK;
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
    DS_TRY(ds_loader_create(run->ctx, run->train_data, &params, &run->train_loader));
    if (run->eval_data != NULL) {
        params.shuffle = false;
        DS_TRY(ds_loader_create(run->ctx, run->eval_data, &params, &run->eval_loader));
    }
    return DS_OK;
}
